"""Mutants of what readers look at: P9."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from percola.cells import MAX_TS, Cell, Kind, decode_lock
from percola.store.base import CellState
from percola.testing.simulation import SimulatedStore
from percola.testing.simulation.faults import Call
from percola.transactions.context import TransactionContext
from percola.transactions.jobs import JOBS
from percola.transactions.lock_resolver import JOB_PRIMARY, LockResolver
from percola.transactions.read_cache import ReadCache
from percola.transactions.snapshot import Snapshot
from tests.simulation.mutants.mutant import TWO_PHASE, WITH_LOCKS, Collection, Seams
from tests.simulation.mutants.workloads import MILD, Patient
from tests.simulation.workloads.ahead import ReadingAhead
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.joint import Joint
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


@READING.mutant("keeps-what-a-lock-hides", "P9", ReadingAhead, modes=WITH_LOCKS)
def keeps_what_a_lock_hides(seams: Seams) -> None:
    """What comes ahead is kept though it is locked: as it was before whoever holds the lock."""

    @seams.replaces(Snapshot, "_read_ahead")
    def read_ahead(
        original: Any, self: Any, cells: Sequence[Cell], cache: ReadCache
    ) -> list[CellState]:
        store: Any = self._context.store
        for cell in cache.guess(cells, self._writes):
            cache.keep(cell, store._written(cell, self.start_ts), asked=False)
        return list(store.read(cells, self.start_ts))


@READING.mutant("keeps-rows-that-a-lock-hides", "P9", ReadingAhead, modes=WITH_LOCKS)
def keeps_rows_that_a_lock_hides(seams: Seams) -> None:
    """Of a row that comes ahead, the cells that are not locked are kept as if they were all."""

    @seams.replaces(ReadCache, "keep_rows")
    def keep_rows(
        original: Any, self: Any, table: str, columns: Any, found: Any, asked: Any
    ) -> None:
        unlocked = {
            row: [one for one in cells if row in asked or one[1][0] is None]
            for row, cells in found.items()
        }
        original(self, table, columns, unlocked, asked)


@READING.mutant("reads-ahead-of-its-time", "P9", ReadingAhead)
def reads_ahead_of_its_time(seams: Seams) -> None:
    """What comes ahead is the newest that there is, and not what it was at start_ts."""

    @seams.replaces(Snapshot, "_read_ahead")
    def read_ahead(
        original: Any, self: Any, cells: Sequence[Cell], cache: ReadCache
    ) -> list[CellState]:
        store: Any = self._context.store
        guessed = cache.guess(cells, self._writes)
        newest = self._context.oracle.read_timestamp()
        for cell, state in zip(guessed, store.read(guessed, newest), strict=True):
            if state[0] is None:
                cache.keep(cell, state, asked=False)
        return list(store.read(cells, self.start_ts))


@READING.mutant("cache-outlives-its-transaction", "P9", ReadingAhead)
def cache_outlives_its_transaction(seams: Seams) -> None:
    """What one transaction has read is what the next one sees."""

    kept: dict[int, ReadCache] = {}

    @seams.replaces(TransactionContext, "new_cache")
    def new_cache(original: Any, self: Any) -> ReadCache:
        return kept.setdefault(id(self), original(self))


@READING.mutant("committing-job-is-passed", "P9", Joint)
def committing_job_is_passed(seams: Seams) -> None:
    """A reader takes what is beneath a job's lock although the job may commit below it."""

    @seams.replaces(LockResolver, "_begun_commit")
    def begun_commit(original: Any, self: Any, primary: Any, start_ts: int, ts: int) -> int:
        if primary.table != JOBS.name or not primary.column.startswith(JOB_PRIMARY):
            return original(self, primary, start_ts, ts)
        return ts


@READING.mutant("job-is-decided-before-its-state-is-looked-at", "P9", Joint)
def job_is_decided_before_its_state(seams: Seams) -> None:
    """A reader looks at a job's primary first: a commit before it looks at `state` is missed."""

    @seams.replaces(LockResolver, "_only_above")
    def only_above(
        original: Any, self: Any, cell: Any, start_ts: int, raw: bytes, ts: int
    ) -> int | None:
        lock = decode_lock(raw)
        fate = self.fate(lock.primary, start_ts)
        if fate is not None:
            self.settle(cell, start_ts, lock, fate)
            return None
        return self._begun_commit(lock.primary, start_ts, ts)
