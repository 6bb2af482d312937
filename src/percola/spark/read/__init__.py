"""Batch reads: the data source's scan, its filters, and wide rows."""
