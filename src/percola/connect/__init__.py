"""Addresses, and the repositories that they name."""
