"""The protocol on Bigtable: the tests of §2.2, §2.4 and of the anomalies, on Google's emulator.

Each class holds the tests of one module, which say what they claim; only what they stand on is
another here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from borrowed import MORE, protocol
from emulator import Emulator
from stores import Ground

from percola.coordination.memory import MemoryCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.store.memory import MemoryStore
from percola.store.remote import shared_row


class BigtableGround(Ground):
    """An instance in the emulator; timestamps and liveness tokens come from this process."""

    def __init__(self, emulator: Emulator, folder: Path, stack: ExitStack) -> None:
        self.kind, self.one_step, self.folder = "bigtable", False, folder
        self.near = False
        store = emulator.store()
        # No call of these tests outlives its caller, and they watch what the collector does.
        store.latest_arrival = 0.0
        self.store = store  # type: ignore[assignment]
        self.coordination = MemoryCoordination()
        stack.callback(self.store.close)
        stack.callback(self.coordination.close)
        self.oracle = EmbeddedOracle(MemoryStore())


@pytest.fixture
def ground(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """As `stores.ground`, on Bigtable."""
    # All processes must agree on it; here there is one.
    monkeypatch.setattr(shared_row, "LEASE", 0.02)
    with ExitStack() as stack:
        yield BigtableGround(emulator, tmp_path, stack)


globals().update(protocol(MORE))
