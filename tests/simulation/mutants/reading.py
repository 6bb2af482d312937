"""Mutants of what readers look at: P9."""

from __future__ import annotations

from typing import Any

from percola.cells import MAX_TS, Cell, Kind
from percola.store.base import CellState
from percola.testing.simulation import SimulatedStore
from percola.testing.simulation.faults import Call
from tests.simulation.mutants.mutant import TWO_PHASE, WITH_LOCKS, Collection, Seams
from tests.simulation.mutants.workloads import MILD, Patient
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.large import Large
from tests.simulation.workloads.register import Register

READING = Collection()


@READING.mutant("reads-past-locks", "P9", Bank, Appends, Register, modes=WITH_LOCKS)
def reads_past_locks(seams: Seams) -> None:
    """A reader ignores locks at or below its start_ts, and misses what commits below it."""

    @seams.store
    class PastLocks(SimulatedStore):
        def _lock(self, cell: Cell, ts: int) -> tuple[int, bytes] | None:
            return None


@READING.mutant("write-before-lock-reads", "P9", Bank, Appends, Register, modes=WITH_LOCKS)
def write_before_lock(seams: Seams) -> None:
    """A reader looks for writes first and for locks later: it misses a commit that lands in
    between."""

    @seams.store
    class WritesFirst(SimulatedStore):
        def _read_cell(self, cell: Cell, ts: int) -> CellState:
            self._process.call(Call.READ)
            state = self._written(cell, ts)
            self._process.gap()
            lock = self._lock(cell, ts)
            return state if lock is None else (lock, 0, None)


@READING.mutant("scan-misses-new-cells", "P9", Large, Bank, modes=WITH_LOCKS)
def scan_misses_new_cells(seams: Seams) -> None:
    """A scan goes over the cells that have a write, and does not see the lock on one that has
    none yet."""

    @seams.store
    class OverWrites(SimulatedStore):
        def scan(self, *args: Any, **named: Any) -> Any:
            found, following = super().scan(*args, **named)
            ts = args[3]
            return [
                (cell, state)
                for cell, state in found
                if self._inner.entries(cell, Kind.WRITE, 0, ts)
            ], following


@READING.mutant("waits-for-later-locks", "P9", Patient, modes=TWO_PHASE, kinds=MILD)
def waits_for_later_locks(seams: Seams) -> None:
    """A reader is held up by locks above its start_ts, which will commit above it."""

    @seams.store
    class AllLocks(SimulatedStore):
        def _lock(self, cell: Cell, ts: int) -> tuple[int, bytes] | None:
            return super()._lock(cell, MAX_TS)
