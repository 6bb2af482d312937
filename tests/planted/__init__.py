"""Planted mistakes: one-line bugs that named tests must catch; `python -m tests.planted`."""
