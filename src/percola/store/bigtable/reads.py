"""§2.1, §2.5: reads from Bigtable: cells at a timestamp, scans, entries.

One request reads a row's locks, newest write records and newest data at or below a timestamp, from
one consistent view of the row: locks are read no later than writes. A second request is needed only
where the newest records are all rollbacks or locks without a write, or where the newest data is not
what the visible record put. Entries at or below a reader's timestamp that are not locked no longer
change, except that the collector removes some, which the check of the safe point afterwards
detects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from percola.cells import Cell, Kind
from percola.store.base import NOTHING, CellState, is_wanted
from percola.store.bigtable.client import Calls
from percola.store.bigtable.filters import (
    FAMILIES,
    FILTER_BYTES,
    ColumnRange,
    Filter,
    cell_entries,
    snapshot,
    wanted_ranges,
)
from percola.store.bigtable.row_stream import RowStream, StoredRow
from percola.store.bigtable.shared_row import Shared
from percola.store.chunking import cut
from percola.store.remote.visibility import DataAt, RecordsBelow, visible

T = TypeVar("T")

RECORDS: Final = 4
"""The number of write records of a column that the first request reads."""

_MORE_RECORDS: Final = 256
_KEYS: Final = 500
_AT_ONCE: Final = 32
_LOCK, _WRITE, _DATA = (FAMILIES[kind] for kind in (Kind.LOCK, Kind.WRITE, Kind.DATA))


class Reading:
    """The reads of one store."""

    def __init__(self, calls: Calls, shared: Shared) -> None:
        self._calls = calls
        self._shared = shared

    # --- Cells --------------------------------------------------------------------------

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        """See `Store.read`: one request for all rows with the same columns."""
        if len(cells) == 1:
            return [self._alone(*cells[0], ts)]
        by_row: dict[tuple[str, bytes], set[bytes]] = {}
        for table, row, column in cells:
            by_row.setdefault((table, row), set()).add(column)
        groups: dict[tuple[str, frozenset[bytes]], list[bytes]] = {}
        for (table, row), columns in by_row.items():
            groups.setdefault((table, frozenset(columns)), []).append(row)
        states: dict[Cell, CellState] = {}
        asked = (
            (table, part, rows[at : at + _KEYS])
            for (table, names), rows in groups.items()
            for part in _pieces(names)
            for rows in (sorted(rows),)
            for at in range(0, len(rows), _KEYS)
        )

        def start(one: tuple[str, list[bytes], list[bytes]]) -> RowStream:
            table, columns, rows = one
            return RowStream(self._calls, table, _snapshot(tuple(columns), ts), keys=rows)

        found: list[tuple[Cell, StoredRow]] = []
        for (table, part, _), stream in in_flight(asked, start):
            for row, stored_row in stream:
                found += [(Cell(table, row, column), stored_row) for column in part]
        for cell, state in self._states(found, ts):
            states[cell] = state
        self._shared.check(ts)
        return [states.get(cell, NOTHING) for cell in cells]

    def _alone(self, table: str, row: bytes, column: bytes, ts: int) -> CellState:
        """`read` for a single cell, without the overhead of several."""
        state = NOTHING
        for _, stored in RowStream(self._calls, table, _snapshot((column,), ts), keys=(row,)):
            seen = _state(stored, column)
            if isinstance(seen, (DataAt, RecordsBelow)):
                [(_, state)] = self._states([(Cell(table, row, column), stored)], ts)
            else:
                state = seen
        self._shared.check(ts)
        return state

    def _states(
        self, found: Sequence[tuple[Cell, StoredRow]], ts: int
    ) -> list[tuple[Cell, CellState]]:
        """The states of cells, with a second request for those that need one."""
        states: list[tuple[Cell, CellState]] = []
        wanting: list[tuple[int, Cell, DataAt]] = []
        for cell, row in found:
            state = _state(row, cell.column)
            if isinstance(state, RecordsBelow):
                state = self._older(cell, state.ts)
            if isinstance(state, DataAt):
                wanting.append((len(states), cell, state))
                state = NOTHING
            states.append((cell, state))

        def start(one: tuple[int, Cell, DataAt]) -> RowStream:
            _, cell, (_, start_ts) = one
            filter_ = cell_entries(Kind.DATA, cell.column, start_ts, start_ts, None)
            return RowStream(self._calls, cell.table, filter_, keys=[cell.row])

        for (at, cell, wanted), stream in in_flight(wanting, start):
            values = [
                value for _, row in stream for entries in row.values() for _, value in entries
            ]
            if not values:
                wanted.missing(cell, ts, self._shared)
            states[at] = (cell, (None, wanted.commit_ts, values[0]))
        return states

    def _older(self, cell: Cell, below: int) -> CellState | DataAt:
        """The newest visible record below a timestamp, searched in larger steps."""
        while True:
            records = self.entries(cell, Kind.WRITE, 0, below - 1, _MORE_RECORDS)
            state = visible(records, [], _MORE_RECORDS)
            if not isinstance(state, RecordsBelow):
                return state
            below = state.ts

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None
    ) -> list[tuple[int, bytes]]:
        """See `Store.entries`."""
        if low > high:
            return []
        filter_ = cell_entries(kind, cell.column, low, high, limit)
        stream = RowStream(self._calls, cell.table, filter_, keys=[cell.row])
        return [entry for _, row in stream for entries in row.values() for entry in entries]

    # --- Ranges of rows -----------------------------------------------------------------

    def scan(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        columns: Sequence[tuple[bytes, bool]] | None,
        limit: int,
    ) -> tuple[list[tuple[Cell, CellState]], bytes | None]:
        """See `Store.scan`."""
        found: list[tuple[Cell, CellState]] = []
        following: bytes | None = None
        filter_ = _snapshot_of(columns, ts)
        if filter_ is not None:

            def take(key: bytes, row: StoredRow) -> int:
                found.extend(self._seen(_wanted(table, key, row, columns), ts))
                return len(found)

            following = self.walk(table, filter_, start, end, limit, take)
        self._shared.check(ts)
        return found, following

    def scan_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        ts: int,
        columns: Sequence[tuple[bytes, bool]] | None,
        limit: int,
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        """See `Store.scan_rows`: one request for up to 500 rows."""
        filter_ = _snapshot_of(columns, ts)
        found: dict[bytes, list[tuple[Cell, CellState]]] = {}
        if filter_ is None:
            found, rows = {row: [] for row in rows}, ()
        wanted: list[tuple[Cell, StoredRow]] = []
        for at in range(0, len(rows), _KEYS):
            if at and len(wanted) >= limit:
                break
            # Rows come in key order: those before the first one requested may exceed the limit.
            keys = sorted(rows[at : at + _KEYS])
            until, too_many = keys[-1], set()
            stream = RowStream(self._calls, table, filter_, keys=keys)
            try:
                for key, row in stream:
                    if len(wanted) < limit or key == rows[0]:
                        wanted += _wanted(table, key, row, columns)
                    else:
                        too_many.add(key)
                    if len(wanted) >= limit and (at or key >= rows[0]):
                        until = key
                        break
            finally:
                stream.cancel()
            found.update((key, []) for key in keys if key <= until and key not in too_many)
        for cell, state in self._seen(wanted, ts):
            found[cell.row].append((cell, state))
        self._shared.check(ts)
        return found

    def _seen(
        self, wanted: Sequence[tuple[Cell, StoredRow]], ts: int
    ) -> list[tuple[Cell, CellState]]:
        """The states of the cells that have a lock or a value."""
        states = self._states(wanted, ts)
        return [one for one in states if one[1][0] is not None or one[1][2] is not None]

    def walk(
        self,
        table: str,
        filter_: Filter,
        start: bytes,
        end: bytes,
        limit: int,
        take: Callable[[bytes, StoredRow], int],
    ) -> bytes | None:
        """Pass rows to `take` until it has `limit` items; return the row to continue from."""
        position, count = start, 0
        while not end or position < end:
            most = max(1, limit - count)
            stream = RowStream(self._calls, table, filter_, start=position, end=end, limit=most)
            try:
                for key, row in stream:
                    count = take(key, row)
                    position = key + b"\0"
                    if count >= limit:
                        return position if not end or position < end else None
            finally:
                stream.cancel()
            if stream.count < most:
                return None
        return None


@lru_cache(maxsize=64)
def _snapshot(columns: tuple[bytes, ...], ts: int) -> Filter:
    """The filter for columns: the reads of a snapshot or batch mostly differ only in rows."""
    return snapshot([ColumnRange(column, last=column) for column in columns], ts, RECORDS)


def _snapshot_of(columns: Sequence[tuple[bytes, bool]] | None, ts: int) -> Filter | None:
    """The filter for at least the columns that a scan reads; None if there are none."""
    ranges = wanted_ranges(columns)
    if not ranges:
        return None
    filter_ = snapshot(ranges, ts, RECORDS)
    if filter_.ByteSize() > FILTER_BYTES:
        # Too many columns to name: read all, and filter them here.
        filter_ = snapshot([ColumnRange(b"\0")], ts, RECORDS)
    return filter_


def _wanted(
    table: str, key: bytes, row: StoredRow, columns: Sequence[tuple[bytes, bool]] | None
) -> list[tuple[Cell, StoredRow]]:
    """The cells of a row that a scan reads, in order."""
    names = {name for family, name in row if family in (_LOCK, _WRITE)}
    return [(Cell(table, key, name), row) for name in sorted(names) if is_wanted(name, columns)]


def _pieces(columns: Collection[bytes]) -> Iterator[list[bytes]]:
    """Split columns into parts that fit in a filter, which names each in three families."""
    return cut(
        sorted(columns),
        lambda column: 3 * (2 * len(column) + 40),
        len(columns),
        FILTER_BYTES - 500,
    )


def in_flight(
    things: Iterable[T], start: Callable[[T], RowStream]
) -> Iterator[tuple[T, RowStream]]:
    """Start a stream for each thing, several ahead of the one that is yielded."""
    waiting: deque[tuple[T, RowStream]] = deque()
    try:
        for thing in things:
            waiting.append((thing, start(thing)))
            if len(waiting) >= _AT_ONCE:
                yield waiting[0]
                waiting.popleft()
        while waiting:
            yield waiting[0]
            waiting.popleft()
    finally:
        for _, stream in waiting:
            stream.cancel()


def _state(row: StoredRow, column: bytes) -> CellState | DataAt | RecordsBelow:
    """The state of a cell from the first request, or what to read next."""
    locks = row.get((_LOCK, column))
    if locks:
        return locks[0], 0, None
    records = row.get((_WRITE, column))
    if not records:
        return NOTHING
    return visible(records, row.get((_DATA, column), ()), RECORDS)
