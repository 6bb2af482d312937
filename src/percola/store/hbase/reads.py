"""§2.1, §2.5: reads from HBase: cells at a timestamp, scans, entries.

One request reads each column's lock, newest write record and newest data at or below a timestamp,
from one consistent view of the row: locks are read no later than writes. A second request is
needed only where the newest record is a rollback or a lock without a write, or where the newest
data is not what the visible record put. Entries at or below a reader's timestamp that are not
locked no longer change, except that the collector removes some, which the check of the safe point
afterwards detects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import jpype

from percola.cells import Cell, Kind
from percola.store.base import NOTHING, CellState, is_wanted
from percola.store.hbase.client import Calls, Tries
from percola.store.hbase.jvm import JavaObject
from percola.store.hbase.shared_row import Shared
from percola.store.hbase.wire import (
    FAMILIES,
    LOCK,
    MAX_STORED_TS,
    Ask,
    Entry,
    asked_for,
    get,
    get_asked,
    lock_of,
    rows_of,
)
from percola.store.remote.visibility import DataAt, RecordsBelow, visible

StoredRow: TypeAlias = dict[tuple[bytes, bytes], list[tuple[int, bytes]]]
"""The entries of a row: (family, column) → [(timestamp, value), …], newest first."""

_AT_ONCE: Final = 500
_MORE_RECORDS: Final = 64
_ROWS: Final = 1000
_ALL: Final = 2**31 - 1
_CHUNK_BYTES: Final = 2 * 1024 * 1024
_DATA, _WRITE = FAMILIES[Kind.DATA], FAMILIES[Kind.WRITE]


class Reading:
    """The reads of one store."""

    def __init__(self, calls: Calls, shared: Shared) -> None:
        self._calls = calls
        self._shared = shared

    # --- Cells --------------------------------------------------------------------------

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        """See `Store.read`: one request per row, many rows per call."""
        if len(cells) == 1:
            return [self._alone(*cells[0], ts)]
        wanted: dict[str, dict[bytes, set[bytes]]] = {}
        for table, row, column in cells:
            wanted.setdefault(table, {}).setdefault(row, set()).add(column)
        states: dict[Cell, CellState] = {}
        for table, rows in wanted.items():
            gets = [
                get_asked(row, _asked_for(tuple(sorted(columns)), ts))
                for row, columns in sorted(rows.items())
            ]
            found = [
                (Cell(table, row, column), entries)
                for row, entries in self._rows(table, gets)
                for column in rows[row]
            ]
            states.update(self._states(table, found, ts))
        self._shared.check(ts)
        return [states.get(cell, NOTHING) for cell in cells]

    def _alone(self, table: str, row: bytes, column: bytes, ts: int) -> CellState:
        """`read` for a single cell, without the overhead of several."""
        block = self._calls.get(table, (get_asked(row, _asked_for((column,), ts)),))
        state = NOTHING
        for _, entries in rows_of(block):
            stored = stored_row(entries)
            seen = _state(stored, column, ts)
            if isinstance(seen, (DataAt, RecordsBelow)):
                cell = Cell(table, row, column)
                state = self._states(table, ((cell, stored),), ts)[cell]
            else:
                state = seen
        self._shared.check(ts)
        return state

    def _rows(self, table: str, gets: Sequence[bytes]) -> Iterator[tuple[bytes, StoredRow]]:
        for at in range(0, len(gets), _AT_ONCE):
            for row, entries in rows_of(self._calls.get(table, gets[at : at + _AT_ONCE])):
                yield row, stored_row(entries)

    def _states(
        self, table: str, found: Sequence[tuple[Cell, StoredRow]], ts: int
    ) -> dict[Cell, CellState]:
        """The states of cells of a table, with further requests for those that need them."""
        states: dict[Cell, CellState] = {}
        records: dict[Cell, int] = {}
        data: dict[Cell, DataAt] = {}

        def sort(cell: Cell, state: CellState | DataAt | RecordsBelow) -> None:
            if isinstance(state, RecordsBelow):
                records[cell] = state.ts
            elif isinstance(state, DataAt):
                data[cell] = state
            else:
                states[cell] = state

        for cell, row in found:
            sort(cell, _state(row, cell.column, ts))
        while records:
            below, records = records, {}
            asked = {cell: Ask(_WRITE, [cell.column], 0, high - 1) for cell, high in below.items()}
            for cell, entries in self._look(table, asked, _MORE_RECORDS).items():
                sort(cell, visible(entries, (), _MORE_RECORDS))
        if data:
            at = {
                cell: Ask(_DATA, [cell.column], one.start_ts, one.start_ts)
                for cell, one in data.items()
            }
            values = self._look(table, at, 1)
            for cell, one in data.items():
                if not values[cell]:
                    one.missing(cell, ts, self._shared)
                states[cell] = (None, one.commit_ts, values[cell][0][1])
        return states

    def _look(
        self, table: str, asked: Mapping[Cell, Ask], versions: int
    ) -> dict[Cell, list[tuple[int, bytes]]]:
        """Entries of cells, newest first; one request per cell, as a row may have several."""
        found: dict[Cell, list[tuple[int, bytes]]] = {cell: [] for cell in asked}
        waiting = list(asked.items())
        while waiting:
            # Each row once per call, so that its entries belong to one request.
            wave: dict[bytes, Cell] = {}
            gets: list[bytes] = []
            rest: list[tuple[Cell, Ask]] = []
            for cell, ask in waiting:
                if cell.row in wave:
                    rest.append((cell, ask))
                else:
                    wave[cell.row] = cell
                    gets.append(get(cell.row, [ask], versions))
            for row, entries in self._rows(table, gets):
                cell = wave[row]
                found[cell] = entries.get((asked[cell].family, cell.column), [])
            waiting = rest
        return found

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None
    ) -> list[tuple[int, bytes]]:
        """See `Store.entries`."""
        high = min(high, MAX_STORED_TS)
        if low > high or limit == 0:
            return []
        family = FAMILIES[kind]
        if kind is Kind.LOCK:
            # Locks are stored at one fixed timestamp.
            request = get(cell.row, [Ask(family, [cell.column])], 1)
        else:
            request = get(cell.row, [Ask(family, [cell.column], low, high)], limit or _ALL)
        for _, row in self._rows(cell.table, [request]):
            entries = row.get((family, cell.column), ())
            return [one for one in entries if low <= one[0] <= high]
        return []

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
        if columns is None or columns:

            def take(rows: Sequence[tuple[bytes, StoredRow]]) -> Iterator[int]:
                wanted = [_wanted(table, key, row, columns) for key, row in rows]
                states = self._states(table, [one for part in wanted for one in part], ts)
                for part in wanted:
                    for cell, _ in part:
                        state = states[cell]
                        if state[0] is not None or state[2] is not None:
                            found.append((cell, state))
                    yield len(found)

            asked = _snapshot(_names(columns), ts)
            following = self.walk(table, asked, 1, start, end, limit, take)
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
        """See `Store.scan_rows`: one call for up to 500 rows."""
        found: dict[bytes, list[tuple[Cell, CellState]]] = {}
        if columns is not None and not columns:
            found, rows = {row: [] for row in rows}, ()
        what = asked_for(_snapshot(_names(columns), ts), 1)
        wanted: list[tuple[Cell, StoredRow]] = []
        for at in range(0, len(rows), _AT_ONCE):
            if found and len(wanted) >= limit:
                break
            part = rows[at : at + _AT_ONCE]
            stored = dict(self._rows(table, [get_asked(row, what) for row in part]))
            for row in part:
                if found and len(wanted) >= limit:
                    break
                found[row] = []
                wanted += _wanted(table, row, stored.get(row, {}), columns)
        for cell, state in self._states(table, wanted, ts).items():
            if state[0] is not None or state[2] is not None:
                found[cell.row].append((cell, state))
        self._shared.check(ts)
        return {row: sorted(cells) for row, cells in found.items()}

    def walk(
        self,
        table: str,
        asked: Sequence[Ask],
        versions: int,
        start: bytes,
        end: bytes,
        limit: int,
        take: Callable[[Sequence[tuple[bytes, StoredRow]]], Iterable[int]],
    ) -> bytes | None:
        """Pass rows to `take` until it has `limit` items; return the row to continue from.

        `take` gets some rows at a time and yields its count of items after each.
        """
        position, count = start, 0
        while not end or position < end:
            most = min(max(1, limit - count), _ROWS)
            chunk, is_all = self.chunk(table, asked, versions, position, end, most)
            for at, count in enumerate(take(chunk)):
                if count >= limit:
                    position = chunk[at][0] + b"\0"
                    is_last = is_all and at == len(chunk) - 1
                    return None if is_last or (end and position >= end) else position
            if is_all:
                return None
            position = chunk[-1][0] + b"\0"
        return None

    def chunk(
        self, table: str, asked: Sequence[Ask], versions: int, start: bytes, end: bytes, most: int
    ) -> tuple[list[tuple[bytes, StoredRow]], bool]:
        """Up to `most` whole rows with entries asked for, and whether these are the last."""
        calls = self._calls
        tries = Tries(calls, f"reading the table {table!r}", table)
        rows: list[tuple[bytes, StoredRow]] = []
        while True:
            position = rows[-1][0] + b"\0" if rows else start
            try:
                calls.made["scan"] += 1
                left = most - len(rows)
                scanner = calls.table(table).getScanner(
                    self._scan(asked, versions, position, end, left)
                )
                try:
                    while len(rows) < most:
                        results = scanner.next(left)
                        if not len(results):
                            return rows, True
                        block = calls.client().chains.block_of(results)
                        rows += [(row, stored_row(entries)) for row, entries in rows_of(block)]
                        tries.progressed()
                finally:
                    scanner.close()
                return rows, False
            except jpype.JException as error:
                tries.failed(error)

    def _scan(
        self, asked: Sequence[Ask], versions: int, start: bytes, end: bytes, most: int
    ) -> JavaObject:
        client = self._calls.client()
        scan = client.scan()
        scan.withStartRow(start)
        scan.withStopRow(end)
        scan.readVersions(versions)
        scan.setLimit(most)
        scan.setCaching(most)
        scan.setMaxResultSize(_CHUNK_BYTES)
        for family, columns, low, high in asked:
            if columns is None:
                scan.addFamily(family)
            for column in columns or ():
                scan.addColumn(family, column)
            if low > 0 or high < MAX_STORED_TS:
                # The end is excluded.
                scan.setColumnFamilyTimeRange(family, low, max(low, min(high, MAX_STORED_TS) + 1))
            if family == LOCK:
                # Skips released locks, which are entries without a value: see `wire`.
                scan.setFilter(client.has_value)
        return scan


def _names(columns: Sequence[tuple[bytes, bool]] | None) -> list[bytes] | None:
    """The columns to request; None for all, which are then filtered here."""
    if columns is None or any(is_prefix for _, is_prefix in columns):
        return None
    return sorted({name for name, _ in columns})


def _wanted(
    table: str, key: bytes, row: StoredRow, columns: Sequence[tuple[bytes, bool]] | None
) -> list[tuple[Cell, StoredRow]]:
    """The cells of a row that a scan reads, in order."""
    names = sorted({name for family, name in row if family != _DATA})
    return [(Cell(table, key, name), row) for name in names if is_wanted(name, columns)]


def stored_row(entries: Iterable[Entry]) -> StoredRow:
    """A row without released locks, with the values as they were put."""
    row: StoredRow = {}
    for family, column, ts, value in entries:
        if family == LOCK:
            lock = lock_of(value)
            if lock is not None:
                row[family, column] = [lock]
        else:
            row.setdefault((family, column), []).append((ts, value[1:]))
    return row


def _snapshot(columns: Sequence[bytes] | None, ts: int) -> list[Ask]:
    """What a reader at `ts` requests of columns: locks, newest write record, newest data.

    The newest data at or below `ts` is nearly always what the newest visible put wrote, so that
    one request answers a read.
    """
    high = min(ts, MAX_STORED_TS)
    return [Ask(LOCK, columns), Ask(_WRITE, columns, 0, high), Ask(_DATA, columns, 0, high)]


@lru_cache(maxsize=64)
def _asked_for(columns: tuple[bytes, ...], ts: int) -> bytes:
    """The same, encoded: the reads of a snapshot or a batch mostly differ only in their rows."""
    return asked_for(_snapshot(columns, ts), 1)


def _state(row: StoredRow, column: bytes, ts: int) -> CellState | DataAt | RecordsBelow:
    """The state of a cell from the first request, or what to read next."""
    locks = row.get((LOCK, column))
    if locks and locks[0][0] <= ts:
        return locks[0], 0, None
    records = row.get((_WRITE, column))
    if not records:
        return NOTHING
    return visible(records, row.get((_DATA, column), ()), 1)
