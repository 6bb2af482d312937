"""Anomalies are looked for on every store, with one-step commit and without."""

from __future__ import annotations

from stores import ground, repo

__all__ = ["ground", "repo"]
