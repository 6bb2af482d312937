"""Integrity checks, backup and restore."""
