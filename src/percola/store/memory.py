"""§2.1: the store in memory, on which the simulation and many tests run.

One lock, and one sorted map of rows per table. Its data is neither durable nor shared between
processes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sortedcontainers import SortedDict

from percola.cells import (
    INLINE_BYTES,
    MAX_TS,
    SYSTEM_MARK,
    Cell,
    Kind,
    Op,
    decode_write,
    encode_write,
    newest_change,
    repeated_change,
)
from percola.errors import (
    NoFeedError,
    RepositoryClosedError,
    RowTooLongError,
    SnapshotTooOldError,
    UnknownTableError,
)
from percola.platform import fork_safety as forks
from percola.store.base import (
    NOTHING,
    CellState,
    ChangedRow,
    Delete,
    Limits,
    OneStepConflict,
    OneStepStore,
    OneStepWrite,
    Put,
    RowMutation,
    Tablet,
    check_sizes,
    is_wanted,
    missing_data,
)

_Row = dict[tuple[Kind, bytes], SortedDict[int, bytes]]
"""A row's entries: (kind, column) → timestamp → value."""

_CHANGES: Final = 1024  # Changed rows that are read under one lock.
_NONE: Final[SortedDict[int, bytes]] = SortedDict()


class MemoryStore(OneStepStore):
    """Everything in one process's memory; safe to use from many threads."""

    limits = Limits(row_bytes=64 * 1024 - 1, value_bytes=256 * 1024 * 1024)

    def __init__(self) -> None:
        self._start_afresh()
        # No thread changes anything during a fork, so that the child's copy is consistent.
        forks.at_fork(self._start_afresh, before=self._hold_still, in_parent=self._go_on)
        self._tables: dict[str, SortedDict[bytes, _Row]] = {}
        # Rows that hold any entry of a kind that is scanned for by itself.
        self._dirty: dict[tuple[Kind, str], SortedDict[bytes, None]] = {}
        # Of the tables that keep a feed: what was put or deleted, by commit_ts, row and column.
        self._feeds: dict[str, SortedDict[tuple[int, bytes, bytes], None]] = {}
        self._drawn = 0
        self._safe_point = 0
        self._closed = False

    def _start_afresh(self) -> None:
        self._lock = threading.RLock()

    def _hold_still(self) -> None:
        self._lock.acquire()

    def _go_on(self) -> None:
        self._lock.release()

    def create_tables(self, names: Iterable[str]) -> None:
        with self._lock:
            self._check_open()
            for name in names:
                self._tables.setdefault(name, SortedDict())

    def check_row(self, table: str, row: bytes) -> None:
        if len(row) > self.limits.row_bytes:
            raise RowTooLongError(
                f"A row of {len(row)} bytes does not fit: the memory store takes up to "
                f"{self.limits.row_bytes}."
            )

    # --- Writing ------------------------------------------------------------------------

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        for mutation in batch:
            self._rows(mutation.table)
        check_sizes(self, batch)
        results = []
        for mutation in batch:
            with self._lock:
                rows = self._rows(mutation.table)
                row: _Row = rows.get(mutation.row, {})
                holds = all(
                    _holds_any(row.get((kind, column), _NONE), low, high) is present
                    for present, kind, column, low, high in mutation.conditions
                )
                if holds:
                    for change in mutation.changes:
                        self._change(mutation.table, mutation.row, change)
                results.append(holds)
        return results

    def _change(self, table: str, row_key: bytes, change: Put | Delete) -> None:
        rows = self._rows(table)
        kind = change.kind
        if isinstance(change, Put):
            row = rows.setdefault(row_key, {})
            entries = row.get((kind, change.column))
            if entries is None:
                entries = row[kind, change.column] = SortedDict()
            entries[change.ts] = change.value
            if kind in _SCANNED:
                self._dirty.setdefault((kind, table), SortedDict())[row_key] = None
            if kind is Kind.WRITE and table in self._feeds and _is_listed(change):
                self._feeds[table][change.ts, row_key, change.column] = None
            return
        row = rows.get(row_key, {})
        entries = row.get((kind, change.column))
        if entries is None or entries.pop(change.ts, None) is None:
            return
        if not entries:
            del row[kind, change.column]
            if kind in _SCANNED and not any(k == kind for k, _ in row):
                del self._dirty[kind, table][row_key]
            if not row:
                del rows[row_key]

    def commit_one_step(
        self,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        notifications: Sequence[Cell] = (),
        deletes: Sequence[tuple[Kind, Cell, int]] = (),
    ) -> int | OneStepConflict:
        with self._lock:
            self._check_ts(start_ts)
            for cell, _, _, _ in writes:
                row = self._rows(cell.table).get(cell.row, {})
                for lock in row.get((Kind.LOCK, cell.column), {}).items():
                    return OneStepConflict(cell, lock, 0)
                records = row.get((Kind.WRITE, cell.column))
                newest = records.peekitem()[0] if records else 0
                if newest > start_ts:
                    return OneStepConflict(cell, None, newest)
            for cell in notifications:
                self._rows(cell.table)
            commit_ts = self.draw()
            for cell, op, value, observed in writes:
                table, row_key, column = cell
                inline = value is not None and len(value) <= INLINE_BYTES
                last_change = None
                if op == Op.LOCK:
                    records = self._rows(table).get(row_key, {}).get((Kind.WRITE, column), _NONE)
                    last_change = newest_change(_newest_first(records), complete=True)
                record = encode_write(
                    op, start_ts, value if inline else None, last_change, silent=observed is None
                )
                if value is not None and not inline:
                    self._change(table, row_key, Put(Kind.DATA, column, start_ts, value))
                self._change(table, row_key, Put(Kind.WRITE, column, commit_ts, record))
                if observed:
                    self._change(table, row_key, Put(Kind.NOTIFY, column, commit_ts, b""))
            for table, row_key, column in notifications:
                self._change(table, row_key, Put(Kind.NOTIFY, column, commit_ts, b""))
            for kind, (table, row_key, column), ts in deletes:
                self._change(table, row_key, Delete(kind, column, ts))
            return commit_ts

    def draw(self, count: int = 1) -> int:
        with self._lock:
            self._check_open()
            self._drawn += count
            return self._drawn

    def last_drawn(self) -> int:
        self._check_open()
        return self._drawn

    # --- Reading ------------------------------------------------------------------------

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        with self._lock:
            self._check_ts(ts)
            return [
                self._state(self._rows(cell.table).get(cell.row, {}), cell, ts) for cell in cells
            ]

    def _state(self, row: _Row, cell: Cell, ts: int) -> CellState:
        column = cell.column
        for lock in row.get((Kind.LOCK, column), {}).items():
            if lock[0] <= ts:
                return lock, 0, None
        for commit_ts, raw in _newest_first(row.get((Kind.WRITE, column), _NONE), high=ts):
            if change := repeated_change(raw):
                commit_ts, raw = change
                if not raw:
                    return NOTHING
            op, start_ts, value, *_ = decode_write(raw)
            if op == Op.PUT:
                if value is None:
                    value = row.get((Kind.DATA, column), _NONE).get(start_ts)
                if value is None:
                    raise missing_data(cell, commit_ts, start_ts)
                return None, commit_ts, value
            if op == Op.DELETE:
                return None, commit_ts, None
        return NOTHING

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        with self._lock:
            entries = self._rows(cell.table).get(cell.row, {}).get((kind, cell.column), _NONE)
            return list(itertools.islice(_newest_first(entries, low, high), limit))

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
        found: list[tuple[Cell, CellState]] = []
        with self._lock:
            self._check_ts(ts)
            rows = self._rows(table)
            for key in rows.irange(start, end or None, inclusive=(True, False)):
                if len(found) >= limit:
                    return found, key
                row = rows[key]
                names = {c for kind, c in row if kind in (Kind.LOCK, Kind.WRITE)}
                for column in sorted(names):
                    if not is_wanted(column, columns):
                        continue
                    cell = Cell(table, key, column)
                    state = self._state(row, cell, ts)
                    if state[0] is not None or state[2] is not None:
                        found.append((cell, state))
        return found, None

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
        found: list[tuple[Cell, int, bytes]] = []
        with self._lock:
            rows = self._rows(table)
            holding = self._dirty.get((kind, table), SortedDict()) if kind in _SCANNED else rows
            for key in holding.irange(start, end or None, inclusive=(True, False)):
                if len(found) >= limit:
                    return found, key
                for (entry_kind, column), entries in sorted(rows[key].items()):
                    if entry_kind == kind:
                        found += [
                            (Cell(table, key, column), ts, value)
                            for ts, value in (
                                itertools.islice(_newest_first(entries), versions)
                                if kind in (Kind.WRITE, Kind.DATA)
                                else [*entries.items()][-versions if versions else None :]
                            )
                        ]
        return found, None

    def safe_point(self) -> int:
        return self._safe_point

    def raise_safe_point(self, ts: int) -> None:
        with self._lock:
            self._check_open()
            self._safe_point = max(self._safe_point, ts)

    def _check_ts(self, ts: int) -> None:
        if ts < self._safe_point:
            raise SnapshotTooOldError(ts, self._safe_point)

    # --- The feed of a table's changes --------------------------------------------------

    def keep_feed(self, table: str) -> None:
        with self._lock:
            self._rows(table)
            self._feeds.setdefault(table, SortedDict())

    def changes(
        self, table: str, after: int, upto: int, *, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        position: tuple[int, bytes] | None = (after + 1, start)
        while position is not None:
            found, position = self._some_changes(table, position, upto, start, end)
            yield from found

    def _some_changes(
        self, table: str, position: tuple[int, bytes], upto: int, start: bytes, end: bytes
    ) -> tuple[list[ChangedRow], tuple[int, bytes] | None]:
        """Some changed rows from a position on, and the next position."""
        found: list[ChangedRow] = []
        with self._lock:
            self._rows(table)
            feed = self._feeds.get(table)
            if feed is None:
                raise NoFeedError(f"The table {table!r} keeps no feed of its changes.")
            self._check_ts(position[0] - 1)
            listed = feed.irange((*position, b""), (upto + 1, b"", b""), (True, False))
            for (commit_ts, row), group in itertools.groupby(listed, key=lambda one: one[:2]):
                if len(found) >= _CHANGES:
                    return found, (commit_ts, row)
                if start <= row and (not end or row < end):
                    found.append(ChangedRow(commit_ts, row, tuple(column for *_, column in group)))
        return found, None

    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        with self._lock:
            self._rows(cell.table)
            return (commit_ts, cell.row, cell.column) in self._feeds.get(cell.table, ())

    def forget_changes(
        self, table: str, upto: int, limit: int = 4096, *, start: bytes = b"", end: bytes = b""
    ) -> int:
        with self._lock:
            self._rows(table)
            feed = self._feeds.get(table, SortedDict())
            listed = feed.irange(None, (upto + 1, b"", b""))
            inside = (one for one in listed if start <= one[1] and (not end or one[1] < end))
            gone = list(itertools.islice(inside, limit))
            for entry in gone:
                del feed[entry]
            return len(gone)

    def tablets(self, table: str) -> list[Tablet]:
        with self._lock:
            rows = self._rows(table)
            cuts = [b"", *(rows.keys()[len(rows) * i // 4] for i in range(1, 4) if rows), b""]
            bounds = sorted(set(cuts[1:-1]) - {b""})
            return [
                Tablet(low, high) for low, high in zip([b"", *bounds], [*bounds, b""], strict=True)
            ]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tables.clear()
            self._dirty.clear()
            self._feeds.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise RepositoryClosedError("This repository has been closed; open it again.")

    def _rows(self, table: str) -> SortedDict[bytes, _Row]:
        self._check_open()
        try:
            return self._tables[table]
        except KeyError:
            raise UnknownTableError(f"The store has no table {table!r}.") from None


_SCANNED: Final = frozenset((Kind.LOCK, Kind.NOTIFY, Kind.FAILED))


def _holds_any(entries: SortedDict[int, bytes], low: int, high: int) -> bool:
    return next(entries.irange(low, high), None) is not None


def _newest_first(
    entries: SortedDict[int, bytes], low: int = 0, high: int = MAX_TS
) -> Iterator[tuple[int, bytes]]:
    """The entries of a cell in a range of timestamps, both ends included."""
    if not entries:
        return
    newest, value = entries.peekitem()
    if low <= newest <= high:
        # It is usually the entry asked for, and iterating over a range takes longer to set up.
        yield newest, value
        high = newest - 1
    for ts in entries.irange(low, high, reverse=True):
        yield ts, entries[ts]


def _is_listed(record: Put) -> bool:
    """Whether a feed lists a write record: a put or delete outside Percola's own columns."""
    puts = record.value[:1] in (b"P", b"D")
    return puts and not record.column.startswith(SYSTEM_MARK)
