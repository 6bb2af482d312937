"""The LMDB store keeps every promise of the contract, at both durabilities."""

from __future__ import annotations

from pathlib import Path

from percola.store.lmdb import LmdbStore
from percola.testing import OneStepConformance


class TestLmdbStore(OneStepConformance):
    def make_store(self, folder: Path) -> LmdbStore:
        return LmdbStore(folder, durability="full")


class TestLmdbStoreWithRelaxedDurability(OneStepConformance):
    def make_store(self, folder: Path) -> LmdbStore:
        return LmdbStore(folder, durability="relaxed")


class TestLmdbStoreInASmallMap(OneStepConformance):
    """The map is full again and again, so that every test runs into its growth."""

    def make_store(self, folder: Path) -> LmdbStore:
        return LmdbStore(folder, durability="relaxed", map_bytes=1 << 16)
