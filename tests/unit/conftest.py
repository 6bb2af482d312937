"""Tests of what runs on a store use the fixtures of `stores`, unless they make their own."""

from __future__ import annotations

from stores import ground, repo

__all__ = ["ground", "repo"]
