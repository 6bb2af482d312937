"""A store whose process dies at a given boundary: before or after a call that changes something.

Every change that a program makes goes through its store, so the boundaries of a protocol are
those between the store's calls; a batch is applied row by row, as a store without batches would.
Each boundary has a name, "before" or "after" and what the row mutation does:

    prewrite primary, prewrite secondary     draw
    commit primary, commit secondary         one step, one step acknowledging
    roll forward, roll back, remove lock     weak notify, answer
    failed attempt, dead-lettered, retry         raise safe point, collect
    create tables                            note: in the system table

Production code has no hooks for this: the store stands between it and LMDB.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from percola.cells import SYSTEM_MARK, Cell, Kind, Op, WriteRecord, decode_lock, decode_write
from percola.store.base import (
    SYSTEM_TABLE,
    Delete,
    OneStepConflict,
    OneStepStore,
    OneStepWrite,
    Put,
    RowMutation,
)
from percola.store.forwarding import ForwardingOneStepStore

T = TypeVar("T")

Say = Callable[[str], object]

At = tuple[str, int]
"""A boundary's name, and how many of that name come before it."""

_ACK = SYSTEM_MARK + b"ack:"


class KillingStore(ForwardingOneStepStore):
    """Kills its process with SIGKILL at one boundary, having told its name.

    Args:
        inner: the store that does the work.
        say: is told the name of each boundary as it is reached.
        at: the boundary to die at: its name, and how many of that name to pass before it. None:
            never. Threads may come to boundaries in another order each time, but to the same.
    """

    def __init__(self, inner: OneStepStore, say: Say, at: At | None) -> None:
        super().__init__(inner)
        self._say = say
        self._at = at
        self._passed: Counter[str] = Counter()
        # The transactions that this process has prewritten, and committed.
        self._own: set[int] = set()
        self._committed: set[int] = set()
        # Threads take turns at the boundaries, so that what has been told has happened.
        self._guard = threading.RLock()
        self.armed = False

    def close(self) -> None:
        """Nothing: `boundaries.opened` closes the inner store."""

    def boundary(self, name: str) -> None:
        """One more place at which a process may die; also for what no store does."""
        if not self.armed:
            return
        with self._guard:
            self._say(name)
            if self._at == (name, self._passed[name]):
                os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()
            self._passed[name] += 1

    def _around(self, what: str, change: Callable[[], T]) -> T:
        with self._guard:
            self.boundary(f"before {what}")
            result = change()
            self.boundary(f"after {what}")
            return result

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        if not self.armed:
            return self.inner.mutate(batch)
        return [self._mutate_row(one) for one in batch]

    def _mutate_row(self, mutation: RowMutation) -> bool:
        return self._around(self._name(mutation), lambda: self.inner.mutate([mutation])[0])

    def create_tables(self, names: Iterable[str]) -> None:
        self._around("create tables", lambda: self.inner.create_tables(names))

    def commit_one_step(
        self,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        notifications: Sequence[Cell] = (),
        deletes: Sequence[tuple[Kind, Cell, int]] = (),
    ) -> int | OneStepConflict:
        acknowledges = deletes or any(cell.column.startswith(_ACK) for cell, _, _, _ in writes)
        return self._around(
            "one step acknowledging" if acknowledges else "one step",
            lambda: self.inner.commit_one_step(start_ts, writes, notifications, deletes),
        )

    def draw(self, count: int = 1) -> int:
        return self._around("draw", lambda: self.inner.draw(count))

    def raise_safe_point(self, ts: int) -> None:
        self._around("raise safe point", lambda: self.inner.raise_safe_point(ts))

    def _name(self, mutation: RowMutation) -> str:
        """What a row mutation of the protocol does; see the module's text."""
        puts = [one for one in mutation.changes if isinstance(one, Put)]
        deleted = {one.kind for one in mutation.changes if isinstance(one, Delete)}
        kinds = {one.kind for one in puts}
        if Kind.LOCK in kinds:
            return self._name_of_locks(mutation, [one for one in puts if one.kind is Kind.LOCK])
        for put in puts:
            if put.kind is Kind.WRITE:
                return self._name_of_record(decode_write(put.value))
        if Kind.FAILED in kinds:
            return "dead-lettered"
        if Kind.NOTIFY in kinds:
            if Kind.FAILED in deleted:
                return "retry"
            failed = any(one.kind is Kind.NOTIFY and one.value for one in puts)
            return "failed attempt" if failed else "weak notify"
        if Kind.LOCK in deleted:
            return "remove lock"
        if deleted & {Kind.NOTIFY, Kind.FAILED}:
            return "answer"
        # The schema, and what the collector writes down: no cells of a transaction's.
        return "note" if mutation.table == SYSTEM_TABLE else "collect"

    def _name_of_locks(self, mutation: RowMutation, locks: list[Put]) -> str:
        if mutation.conditions[0].present:
            return "refresh"
        self._own.add(locks[0].ts)
        primaries = [decode_lock(one.value).primary for one in locks]
        cells = [Cell(mutation.table, mutation.row, one.column) for one in locks]
        return "prewrite primary" if primaries[0] in cells else "prewrite secondary"

    def _name_of_record(self, record: WriteRecord) -> str:
        if record.op is Op.ROLLBACK:
            return "roll back"
        if record.start_ts not in self._own:
            return "roll forward"
        if record.start_ts in self._committed:
            return "commit secondary"
        self._committed.add(record.start_ts)
        return "commit primary"
