"""Integrity checks, copies, backup and restore, and emptying tables."""
