"""Recorded histories, and the checks of snapshot isolation on them."""
