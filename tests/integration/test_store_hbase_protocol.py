"""The protocol on HBase: the tests of §2.2, §2.4 and of the anomalies, on a real HBase.

Each class holds the tests of one module, which say what they claim; only what they stand on is
another here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from borrowed import protocol
from hbase import HBase, empty
from stores import Ground

from percola.coordination.memory import MemoryCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.store import shared_row
from percola.store.hbase import HBaseStore
from percola.store.memory import MemoryStore

NAMESPACE: Final = f"protocol_{os.getpid()}"


class HBaseGround(Ground):
    """A namespace of a real HBase; timestamps and liveness tokens come from this process."""

    def __init__(self, hbase: HBase, cleaner: HBaseStore, folder: Path, stack: ExitStack) -> None:
        self.kind, self.one_step, self.folder = "hbase", False, folder
        self.near, self.timeout = False, 2.0
        store = hbase.store(NAMESPACE)
        # Making a namespace and its tables takes seconds: they are left to the next test.
        stack.callback(empty, [store], cleaner)
        # No call of these tests outlives its caller, and they watch what the collector does.
        store.latest_arrival = 0.0
        self.store = store  # type: ignore[assignment]
        self.coordination = MemoryCoordination()
        stack.callback(self.store.close)
        stack.callback(self.coordination.close)
        self.oracle = EmbeddedOracle(MemoryStore())


@pytest.fixture(scope="module")
def cleaner(hbase: HBase) -> Iterator[HBaseStore]:
    store = hbase.store(NAMESPACE)
    yield store
    store.close()


@pytest.fixture
def ground(
    hbase: HBase, cleaner: HBaseStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    """As `stores.ground`, on HBase."""
    # All processes must agree on it; here there is one.
    monkeypatch.setattr(shared_row, "LEASE", 0.02)
    with ExitStack() as stack:
        yield HBaseGround(hbase, cleaner, tmp_path, stack)


globals().update(protocol())
