"""§2.5: counts the calls to a network store, by kind and caller.

A call over a network costs as much as thousands of look-ups in memory, so the cost of a document
is counted in calls: in the paper it is "around 50 individual Bigtable operations". `CountedStore`
wraps a network store and counts, by kind and by caller:

    read      cells at a timestamp, one or many
    scan      a range of rows at a timestamp, or whole single rows
    mutate    row mutations, one or many
    entries   the entries of one cell: locks, write records
    look      notify and other entries in a range: pending work, locks of dead clients
    other     the safe point, tablets, feeds, scans of garbage collectors

A call is one wait of its caller. The number of requests per call depends on the store: one for
each row that is changed under conditions on Bigtable, one for each region on HBase.

The caller is a name that a thread sets for a while (`calling_for`): that of an observer, or of the
function that `Repository.run` runs. Resolving a lock, or checking whether a change is dead-lettered
for an observer, counts for the caller that needed it. Embedded stores are not wrapped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Final, NamedTuple

from percola.cells import Cell, Kind, LockRecord
from percola.platform import fork_safety as forks
from percola.store.base import (
    CellState,
    ChangedRow,
    CommitRow,
    PreparedCommit,
    RowMutation,
    Store,
    Tablet,
)
from percola.store.forwarding import ForwardingStore

READ: Final = "read"
SCAN: Final = "scan"
MUTATE: Final = "mutate"
ENTRIES: Final = "entries"
LOOK: Final = "look"
OTHER: Final = "other"


_caller: Final[ContextVar[str]] = ContextVar("caller", default="")


def current_caller() -> str:
    """The caller name of this thread; empty for none."""
    return _caller.get()


class calling_for:  # noqa: N801
    """Set the caller name of this thread for the length of a block."""

    __slots__ = ("_name", "_token")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._token = _caller.set(self._name)

    def __exit__(self, *_: object) -> None:
        _caller.reset(self._token)


def caller() -> str:
    """The caller name of this thread; empty if none is set."""
    return _caller.get()


class Count(NamedTuple):
    """The totals of one caller's calls of one kind.

    Attributes:
        calls: the number of calls.
        rows: the rows that they named; 0 for ranges.
        cells: the cells that they named, or found in ranges; for mutations, the changes.
    """

    calls: int = 0
    rows: int = 0
    cells: int = 0


class StoreCalls:
    """The counts of a process's calls to one store; safe to use from many threads."""

    def __init__(self) -> None:
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[tuple[str, str], list[int]] = {}

    def note(self, kind: str, rows: int, cells: int) -> None:
        """Count a call for this thread's caller."""
        with self._guard:
            count = self._counts.setdefault((_caller.get(), kind), [0, 0, 0])
            count[0] += 1
            count[1] += rows
            count[2] += cells

    def counts(self) -> dict[tuple[str, str], Count]:
        """All counts by (caller, kind)."""
        with self._guard:
            return {key: Count(*count) for key, count in self._counts.items()}


class CountedStore(ForwardingStore):
    """Counts every call that it passes on."""

    def __init__(self, inner: Store, calls: StoreCalls) -> None:
        super().__init__(inner)
        self.calls = calls
        self.prepared_cells = inner.prepared_cells

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        self.calls.note(MUTATE, len(batch), sum(len(one.changes) for one in batch))
        return self.inner.mutate(batch)

    def prepare_commit(
        self, start_ts: int, lock: LockRecord, rows: Sequence[CommitRow]
    ) -> PreparedCommit | None:
        prepared = self.inner.prepare_commit(start_ts, lock, rows)
        return None if prepared is None else _CountedCommit(prepared, self.calls, rows)

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        self.calls.note(READ, len({(table, row) for table, row, _ in cells}), len(cells))
        return self.inner.read(cells, ts)

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        self.calls.note(ENTRIES, 1, 1)
        return self.inner.entries(cell, kind, low, high, limit)

    def entries_of(
        self, cells: Sequence[Cell], kind: Kind, low: int, high: int
    ) -> list[list[tuple[int, bytes]]]:
        self.calls.note(ENTRIES, len({(table, row) for table, row, _ in cells}), len(cells))
        return self.inner.entries_of(cells, kind, low, high)

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
        found = self.inner.scan(table, start, end, ts, columns=columns, limit=limit)
        self.calls.note(SCAN, 0, len(found[0]))
        return found

    def scan_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        ts: int,
        *,
        columns: Sequence[tuple[bytes, bool]] | None = None,
        limit: int = 256,
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        found = self.inner.scan_rows(table, rows, ts, columns=columns, limit=limit)
        self.calls.note(SCAN, len(rows), sum(len(cells) for cells in found.values()))
        return found

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
        found = self.inner.scan_kind(kind, table, start, end, limit, versions=versions)
        self.calls.note(OTHER if kind in (Kind.WRITE, Kind.DATA) else LOOK, 0, len(found[0]))
        return found

    def safe_point(self) -> int:
        self.calls.note(OTHER, 1, 0)
        return self.inner.safe_point()

    # `check_safe_point` is not counted: like the check after a read, it is rarely a call.

    def raise_safe_point(self, ts: int) -> None:
        self.calls.note(OTHER, 1, 0)
        self.inner.raise_safe_point(ts)

    def keep_feed(self, table: str) -> None:
        self.calls.note(OTHER, 1, 0)
        self.inner.keep_feed(table)

    def changes(
        self, table: str, after: int, upto: int, *, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        self.calls.note(OTHER, 0, 0)
        return self.inner.changes(table, after, upto, start=start, end=end)

    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        self.calls.note(OTHER, 1, 1)
        return self.inner.lists_change(cell, commit_ts)

    def forget_changes(
        self, table: str, upto: int, limit: int = 4096, *, start: bytes = b"", end: bytes = b""
    ) -> int:
        self.calls.note(OTHER, 0, 0)
        return self.inner.forget_changes(table, upto, limit, start=start, end=end)

    def tablets(self, table: str) -> list[Tablet]:
        self.calls.note(OTHER, 0, 0)
        return self.inner.tablets(table)


class _CountedCommit:
    """Counts a commit that its store sends by itself as the calls of `mutate` that it replaces."""

    def __init__(
        self, commit: PreparedCommit, calls: StoreCalls, rows: Sequence[CommitRow]
    ) -> None:
        self._commit = commit
        self._calls = calls
        self._rows = rows

    def prewrite(self, seconds: float) -> Sequence[bool | None]:
        applied = self._commit.prewrite(seconds)
        self._note(applied, [len(one.cells) for one in self._rows])
        return applied

    def commit(self, commit_ts: int) -> Sequence[bool | None] | None:
        applied = self._commit.commit(commit_ts)
        if applied is not None:
            # A write record and the removal of a lock for each cell, and notify entries.
            changes = [
                sum(2 + observed for *_, observed in one.cells) + len(one.answered)
                for one in self._rows
            ]
            self._note(applied, changes)
        return applied

    def _note(self, applied: Sequence[bool | None], changes: Sequence[int]) -> None:
        self._calls.note(MUTATE, 1, changes[0])
        if applied[0] and len(changes) > 1:
            self._calls.note(MUTATE, len(changes) - 1, sum(changes[1:]))
