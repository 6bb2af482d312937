"""The memory store keeps every promise of the contract."""

from __future__ import annotations

from pathlib import Path

from percola.store.memory import MemoryStore
from percola.testing import OneStepConformance


class TestMemoryStore(OneStepConformance):
    def make_store(self, folder: Path) -> MemoryStore:
        return MemoryStore()
