"""§2's tests run on every store, with and without one-step commit: `tests/support/stores.py`."""

from __future__ import annotations

from stores import ground, repo

__all__ = ["ground", "repo"]
