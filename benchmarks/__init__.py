"""Benchmarks: each compares or takes apart one thing, prints a table and draws a plot.

`python -m benchmarks` runs all of them; docs/benchmarks.md says what each one measures.
"""
