"""The simulated store: the memory store behind a network, as one process reaches it.

The store guarantees only the contract (`percola.store.base`). The rows of a batch are sent
separately, in any order, interleaved with other calls. The cells of a read are read one after the
other, and of each the lock first and the write later. A scan returns few rows at a time. A mutation
may arrive late, twice, or never; what is not durable may be lost with a server.

If the world has an index of feeds, they and the safe point are kept as on HBase and Bigtable
(`percola.testing.simulation.feeds`). Such a store commits in two phases only.

If notify entries are in a separate table, a mutation of them and of their row is sent in steps,
each of which may fail separately (`percola.store.remote.notify_table`).

A commit in one step is atomic, as an embedded store's is: what can happen is that the process
dies before or after it, or that the store refuses it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from percola.cells import Cell, Kind, Op, decode_write, newest_change
from percola.errors import OutcomeUnknownError, SnapshotTooOldError, StoreError
from percola.store.base import (
    NOTHING,
    CellState,
    ChangedRow,
    OneStepConflict,
    OneStepStore,
    OneStepWrite,
    RowMutation,
    Tablet,
    check_sizes,
    missing_data,
)
from percola.store.remote.feed import Feed, Index
from percola.store.remote.feed_index import FEED_TABLE, unlocked_puts
from percola.store.remote.notify_table import steps_of
from percola.store.remote.shared_row import SHARED_TABLE
from percola.testing.simulation.faults import Call, FaultKind
from percola.testing.simulation.feeds import (
    SimulatedRows,
    SimulatedSharedRow,
    is_entry,
    removals,
    with_entries,
)
from percola.testing.simulation.invariants import broken_step
from percola.testing.simulation.world import ClaimViolatedError, Process

_GIVES_UP_AFTER: Final = 0.05
"""Seconds after which a call without a reply times out."""
_CHUNK: Final = 12


class SimulatedStore(OneStepStore):
    """One process's client of the shared store."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._inner = process.world.store
        self.limits = self._inner.limits
        self.latest_arrival = 2 * process.world.longest_delay
        self.has_notify_table = process.world.has_notify_table
        self.has_volatile_writes = process.world.has_volatile_writes
        self._index: Index | None = None
        if process.world.has_feed_index:
            self._shared, rows = SimulatedSharedRow(self, process), SimulatedRows(process)
            self._feed = Feed(self._shared, rows, self._remove_entries)
            self.feed_index = self._index = Index(self, self._make_index, self._shared, rows)
            self.has_feed_in_rows = True

    def _make_index(self) -> None:
        self._inner.create_tables([FEED_TABLE])

    def create_tables(self, names: Iterable[str]) -> None:
        names = list(names)
        if self._index is not None:
            self._inner.create_tables([SHARED_TABLE])
        self._inner.create_tables(names)
        for name in names:
            self._world.splits.setdefault(name, [Tablet(b"", b"")])

    def check_row(self, table: str, row: bytes) -> None:
        self._inner.check_row(table, row)

    # --- Writing ------------------------------------------------------------------------

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        check_sizes(self, batch)
        if self._index is not None:
            batch = self._with_feeds(batch)
        if len(batch) == 1:
            return [self._send_steps(batch[0])]
        order = list(range(len(batch)))
        self._process.rng.shuffle(order)
        applied = [False] * len(batch)
        unknown: OutcomeUnknownError | None = None
        for position, number in enumerate(order):
            try:
                applied[number] = self._send_steps(batch[number])
            except OutcomeUnknownError as error:
                unknown = error
            except StoreError as error:
                if position == 0:
                    raise
                unknown = OutcomeUnknownError(str(error))
        if unknown is not None:
            raise unknown
        return applied

    def _with_feeds(self, batch: Sequence[RowMutation]) -> Sequence[RowMutation]:
        """With the entries of feeds; entries of the index that precede the batch are put first."""
        if not any(one.kind is Kind.WRITE for mutation in batch for one in mutation.changes):
            return batch
        view = self._shared.current()
        if view.indexed and (puts := unlocked_puts(batch, view.feeds)):
            self.mutate(puts)
        return [with_entries(one) if one.table in view.feeds else one for one in batch]

    def _remove_entries(
        self, table: str, gone: Mapping[bytes, Sequence[tuple[bytes, int]]]
    ) -> None:
        for mutation in removals(table, gone):
            self._send(mutation)

    def _send_steps(self, mutation: RowMutation) -> bool:
        """A row's mutation, in steps if it has to be."""
        if not self.has_notify_table:
            return self._send(mutation)
        *first, deletes = steps_of(mutation)
        if not all(self._send(step) for step in first if step is not None):
            return False
        try:
            return deletes is None or self._send(deletes)
        except StoreError as error:
            raise OutcomeUnknownError(str(error)) from error

    def _send(self, mutation: RowMutation) -> bool:
        """One row's mutation on its way through the network."""
        process, world = self._process, self._world
        # The caller may go on to change it while a copy is on its way.
        sent = replace(mutation)
        deaths = world.server_deaths

        def arrive() -> None:
            world.tell(process.name, "arrives late", sent, self._apply(sent))

        def arrive_again() -> None:
            # A network delivers twice to one server: to one that has died in between, nothing.
            if sent.durable or world.server_deaths == deaths:
                arrive()

        fault = process.call(Call.MUTATE, arrive)
        kind = None if fault is None else fault.kind
        applied = False
        if kind is FaultKind.UNREACHABLE:
            # It goes away with the call on its way, and stays away for a while.
            assert fault is not None
            kind = FaultKind.REPLY_LOST if fault.amount >= 0.5 else FaultKind.CALL_LOST
        if kind not in (FaultKind.CALL_LOST, FaultKind.LATE):
            applied = self._apply(sent)
            world.tell(process.name, "mutates", sent, applied)
        else:
            world.tell(process.name, "sends", sent)
        if fault is None:
            return applied
        if kind is FaultKind.LATE:
            world.deliver_later(world.delay(fault.amount), arrive)
        elif kind is FaultKind.DUPLICATED:
            world.deliver_later(world.delay(fault.amount), arrive_again)
        if kind in (FaultKind.CALL_LOST, FaultKind.LATE, FaultKind.REPLY_LOST):
            process.schedule.pause(_GIVES_UP_AFTER)
            raise OutcomeUnknownError("The simulated store did not answer.")
        return applied

    def _apply(self, mutation: RowMutation) -> bool:
        """It takes effect, or is refused; what it may not do is seen to."""
        watches = self._world.watches_steps
        if self._world.hides(mutation):
            return True
        separate = list(self._world.splits) if self.has_notify_table else []
        lost = self._world.lost_locks
        broken = broken_step(self._inner, mutation, separate, lost) if watches else None
        applied = self._world.mutate(mutation)
        if broken is not None and applied:
            self._world.schedule.fail(ClaimViolatedError.of(*broken))
        return applied

    def commit_one_step(
        self,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        notifications: Sequence[Cell] = (),
        deletes: Sequence[tuple[Kind, Cell, int]] = (),
    ) -> int | OneStepConflict:
        process = self._process

        def arrive() -> None:
            try:
                outcome = self._inner.commit_one_step(start_ts, writes, notifications, deletes)
            except SnapshotTooOldError:
                return  # Refused, and nobody is left to be told.
            self._world.tell(process.name, "commits in one step", start_ts, writes, outcome)

        process.call(Call.ONE_STEP, arrive)
        outcome = self._inner.commit_one_step(start_ts, writes, notifications, deletes)
        self._world.tell(process.name, "commits in one step", start_ts, writes, outcome)
        return outcome

    def draw(self, count: int = 1) -> int:
        self._process.call(Call.ORACLE)
        return self._inner.draw(count)

    def last_drawn(self) -> int:
        self._process.call(Call.ORACLE)
        return self._inner.last_drawn()

    # --- Reading ------------------------------------------------------------------------

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        return [self._read_cell(cell, ts) for cell in cells]

    def _read_cell(self, cell: Cell, ts: int) -> CellState:
        self._process.call(Call.READ)
        lock = self._lock(cell, ts)
        if lock is not None:
            state: CellState = (lock, 0, None)
        else:
            self._process.gap()
            state = self._written(cell, ts)
        self._world.tell(self._process.name, "reads", cell, ts, state)
        return state

    def _lock(self, cell: Cell, ts: int) -> tuple[int, bytes] | None:
        locks = self._inner.entries(cell, Kind.LOCK, 0, ts)
        return locks[-1] if locks else None

    def _written(self, cell: Cell, ts: int) -> CellState:
        """The newest write at or below a timestamp, whatever locks stand there by now."""
        found = NOTHING
        change = newest_change(self._inner.entries(cell, Kind.WRITE, 0, ts), complete=True)
        assert change is not None
        if change.record:
            op, start_ts, value, *_ = decode_write(change.record)
            if op is Op.PUT and value is None:
                data = self._inner.entries(cell, Kind.DATA, start_ts, start_ts)
                self._check_ts(ts)
                if not data:
                    raise missing_data(cell, change.commit_ts, start_ts)
                value = data[0][1]
            found = (None, change.commit_ts, value)
        self._check_ts(ts)
        return found

    def check_safe_point(self, ts: int) -> None:
        if self._index is None:
            super().check_safe_point(ts)
        else:
            self._shared.check(ts)

    def _check_ts(self, ts: int) -> None:
        if self._index is not None:
            self._shared.check(ts)
            return
        safe_point = self._inner.safe_point()
        if ts < safe_point:
            raise SnapshotTooOldError(ts, safe_point)

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        self._process.call(Call.READ)
        found = self._inner.entries(cell, kind, low, high, limit)
        self._world.tell(self._process.name, "looks", cell, kind, found)
        return found

    def scan(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        *,
        columns: Sequence[tuple[bytes, bool]] | None = None,
        limit: int = 256,
    ) -> tuple[list[tuple[Cell, CellState]], bytes | None]:
        process, inner = self._process, self._inner
        process.call(Call.READ)
        limit = min(limit, process.rng.randint(1, _CHUNK))
        # What is there by its locks or writes now, and each cell as `read` would see it: the
        # locks first. What appears only later was locked or committed above `ts`.
        found, following = inner.scan(table, start, end, ts, columns=columns, limit=limit)
        process.gap()
        states: list[tuple[Cell, CellState]] = []
        for cell, (lock, _, _) in found:
            state = (lock, 0, None) if lock is not None else self._written(cell, ts)
            if lock is not None or state[2] is not None:
                states.append((cell, state))
        self._check_ts(ts)
        self._world.tell(process.name, "scans", table, start, end, ts, states)
        return states, following

    def scan_kind(
        self,
        kind: Kind,
        table: str,
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 256,
        *,
        versions: int | None = None,
    ) -> tuple[list[tuple[Cell, int, bytes]], bytes | None]:
        process = self._process
        process.call(Call.READ)
        limit = min(limit, process.rng.randint(1, _CHUNK))
        found, following = self._inner.scan_kind(kind, table, start, end, limit, versions=versions)
        if self._index is not None:
            found = [one for one in found if not is_entry(one[0])]
        if found:
            self._world.tell(process.name, "finds", kind, table, found)
        return found, following

    def safe_point(self) -> int:
        if self._index is not None:
            in_force = self._shared.look().in_force
            # Nobody removes anything before this: it tells the judges what may be gone.
            self._inner.raise_safe_point(in_force)
            return in_force
        self._process.call(Call.READ)
        return self._inner.safe_point()

    def raise_safe_point(self, ts: int) -> None:
        if self._index is not None:
            self._shared.raise_safe_point(ts)
        else:
            self._process.call(Call.READ)
            self._inner.raise_safe_point(ts)
        self._world.tell(self._process.name, "raises the safe point", ts)

    def keep_feed(self, table: str) -> None:
        if self._index is not None:
            self._shared.keep_feed(table)
            return
        self._process.call(Call.READ)
        self._inner.keep_feed(table)

    def changes(
        self, table: str, after: int, upto: int, *, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        if self._index is not None:
            yield from self._feed.changes(table, after, upto, start, end)
            return
        process = self._process
        listed = self._inner.changes(table, after, upto, start=start, end=end)
        while True:
            process.call(Call.READ)
            part = list(itertools.islice(listed, process.rng.randint(1, _CHUNK)))
            yield from part
            if not part:
                return

    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        if self._index is not None:
            return self._feed.lists(cell, commit_ts)
        self._process.call(Call.READ)
        return self._inner.lists_change(cell, commit_ts)

    def forget_changes(
        self, table: str, upto: int, limit: int = 4096, *, start: bytes = b"", end: bytes = b""
    ) -> int:
        if self._index is not None:
            return self._feed.forget(table, upto, limit, start, end)
        self._process.call(Call.READ)
        return self._inner.forget_changes(table, upto, limit, start=start, end=end)

    def tablets(self, table: str) -> list[Tablet]:
        self._process.call(Call.READ)
        return self._world.splits.get(table) or self._inner.tablets(table)

    def close(self) -> None:
        pass  # The world closes the store itself.
