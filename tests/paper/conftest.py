"""§2's tests run on every store, with one-step commit and without: see `tests/stores.py`."""

from __future__ import annotations

from stores import ground, repo

__all__ = ["ground", "repo"]
