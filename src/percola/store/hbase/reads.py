"""§2.1, §2.5: the requests of `percola.store.remote.reads` to HBase.

A request names one row and its columns; many of them are sent together, as one call per server.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import jpype

from percola.cells import Cell, Kind
from percola.store.hbase.client import Calls, Tries
from percola.store.hbase.errors import Failure
from percola.store.hbase.jvm import JavaObject
from percola.store.hbase.shared_row import Shared
from percola.store.hbase.wire import (
    ALL_VERSIONS,
    CHANGES,
    FAMILIES,
    FEW,
    LOCK,
    MAX_STORED_TS,
    Ask,
    Entry,
    asked_for,
    columns_of,
    get,
    get_asked,
    lock_of,
    rows_of,
)
from percola.store.remote.batches import waves
from percola.store.remote.column_ranges import ColumnRange, wanted_ranges
from percola.store.remote.reads import KEYS, Columns, Entries, Reading, Rows, StoredRow

_ROWS: Final = 4096
"""The most rows of one scan."""

_CHUNK_BYTES: Final = 2 * 1024 * 1024

_FIRST_TAKEN: Final = 4
_MOST_TAKEN: Final = 256
"""Results that are taken from Java at once: where their size is not known, or little is found, and
at most."""

_TAKEN_BYTES: Final = 16 * 1024 * 1024
_DATA, _WRITE = FAMILIES[Kind.DATA], FAMILIES[Kind.WRITE]


class Query:
    """What to read of a row: parts of it, and how many of the newest entries of each column.

    Args:
        within: the ranges that the columns are in, if the parts name none; empty: all.
    """

    def __init__(
        self, asked: Sequence[Ask], versions: int, within: tuple[ColumnRange, ...] = ()
    ) -> None:
        self.asked, self.versions, self.within = asked, versions, within
        self.fields = asked_for(asked, versions, within)
        """The fields of a request, except its row."""


class HBaseReading(Reading):
    """The reads of one store."""

    families = FAMILIES
    changes = CHANGES
    max_ts = MAX_STORED_TS
    records = 1
    rows_ahead = 1000

    def __init__(self, calls: Calls, shared: Shared) -> None:
        super().__init__(shared)
        self._calls = calls

    def snapshot(self, columns: Columns, ts: int) -> Query:
        if columns is None:
            return _snapshot(None, ts)
        if any(is_prefix for _, is_prefix in columns):
            # HBase's requests name columns in full: a filter has the prefixes.
            within = tuple(wanted_ranges(columns))
            return _snapshot(None, ts, within if len(within) <= FEW else ())
        return _snapshot(tuple(sorted({name for name, _ in columns})), ts)

    def everything(self, family: bytes, low: int, high: int) -> Query:
        return Query([Ask(family, None, low, high)], ALL_VERSIONS)

    def newest(self, family: bytes, versions: int) -> Query:
        return Query([Ask(family, None, 0, self.max_ts)], versions)

    def both(self, one: Query, other: Query) -> Query:
        return Query([*one.asked, *other.asked], ALL_VERSIONS)

    def cells(
        self, wanted: Mapping[str, Mapping[bytes, Collection[bytes]]], ts: int
    ) -> Iterator[tuple[str, bytes, StoredRow]]:
        for table, rows in wanted.items():
            gets = [
                get_asked(row, _snapshot(tuple(sorted(columns)), ts).fields)
                for row, columns in sorted(rows.items())
            ]
            for row, stored in self._rows(table, gets):
                yield table, row, stored

    def rows(
        self, table: str, keys: Sequence[bytes], query: Query
    ) -> Generator[tuple[bytes, StoredRow], None, None]:
        yield from self._rows(table, [get_asked(row, query.fields) for row in keys])

    def _rows(self, table: str, gets: Sequence[bytes]) -> Iterator[tuple[bytes, StoredRow]]:
        for at in range(0, len(gets), KEYS):
            for row, entries in rows_of(self._calls.get(table, gets[at : at + KEYS])):
                yield row, stored_row(entries)

    def look(
        self,
        family: bytes,
        asked: Mapping[Cell, tuple[int, int]],
        limit: int | None,
    ) -> dict[Cell, Entries]:
        found: dict[Cell, Entries] = {cell: [] for cell in asked}
        # Columns of a row in one request; but not long values, which may not fit together.
        together: dict[tuple[str, bytes, tuple[int, int], bytes], list[bytes]] = {}
        for (table, row, column), span in asked.items():
            alone = column if family == _DATA else b""
            together.setdefault((table, row, span, alone), []).append(column)
        requests = [(*place[:3], columns) for place, columns in together.items()]
        # Each row once per call, so that its entries belong to one request.
        for wave in waves([(table, row)] for table, row, _, _ in requests):
            tables: dict[str, dict[bytes, tuple[tuple[int, int], list[bytes]]]] = {}
            for at in wave:
                table, row, span, columns = requests[at]
                tables.setdefault(table, {})[row] = span, columns
            for table, rows in tables.items():
                gets = [
                    # Locks are stored at one fixed timestamp.
                    get(row, [Ask(family, columns)], 1)
                    if family == LOCK
                    else get(row, [Ask(family, columns, *span)], limit or ALL_VERSIONS)
                    for row, (span, columns) in rows.items()
                ]
                for row, stored in self._rows(table, gets):
                    (low, high), columns = rows[row]
                    for column in columns:
                        entries = stored.get((family, column), ())
                        found[Cell(table, row, column)] = [
                            one for one in entries if low <= one[0] <= high
                        ]
        return found

    def chunks(
        self, table: str, query: Query, start: bytes, end: bytes, limit: int | None
    ) -> Generator[tuple[Rows, bool], None, None]:
        left = limit or 2**31
        is_all = False
        while left and not is_all:
            rows, is_all = self.chunk(table, query, start, end, min(left, _ROWS))
            yield rows, is_all
            left -= len(rows)
            if rows:
                start = rows[-1][0] + b"\0"

    def chunk(
        self, table: str, query: Query, start: bytes, end: bytes, most: int
    ) -> tuple[list[tuple[bytes, StoredRow]], bool]:
        """Up to `most` whole rows with entries asked for, and whether these are the last.

        Fewer if they are long: all of them are in memory.
        """
        calls = self._calls
        tries = Tries(calls, f"reading the table {table!r}", table)
        rows: list[tuple[bytes, StoredRow]] = []
        position = start
        taken = _FIRST_TAKEN
        size = 0
        while True:
            try:
                calls.made["scan"] += 1
                scan = self._scan(query, position, end, most - len(rows))
                scanner = calls.table(table).getScanner(scan)
                try:
                    while len(rows) < most and size < _TAKEN_BYTES:
                        # All of them have to fit into Java's heap.
                        results = scanner.next(min(taken, most - len(rows)))
                        if not len(results):
                            return rows, True
                        block = calls.client().chains.block_of(results)
                        found = [(row, stored_row(entries)) for row, entries in rows_of(block)]
                        size += len(block)
                        if found:
                            rows += found
                            position = found[-1][0] + b"\0"
                        if len(found) < len(results):
                            position = max(position, _scanned_to(results))
                            taken = _FIRST_TAKEN
                        else:
                            fitting = _TAKEN_BYTES * len(results) // max(1, len(block))
                            taken = max(1, min(fitting, 8 * taken, _MOST_TAKEN))
                        tries.progressed()
                finally:
                    scanner.close()
                return rows, False
            except jpype.JException as error:
                if taken == 1 or not Failure.of(error).is_out_of_memory:
                    tries.failed(error)
            taken = max(1, taken // 8)

    def _scan(self, query: Query, start: bytes, end: bytes, most: int) -> JavaObject:
        client = self._calls.client()
        scan = client.scan()
        scan.withStartRow(start)
        scan.withStopRow(end)
        scan.readVersions(query.versions)
        scan.setLimit(most)
        scan.setCaching(most)
        scan.setMaxResultSize(_CHUNK_BYTES)
        # Where a server finds nothing for long, it says how far it is: see `_scanned_to`.
        scan.setNeedCursorResult(True)
        filters = client.array_list(2)
        only = columns_of(query.asked)
        if len(only) == 1:
            filters.add(client.column_range(*only, True, *only, True))
        if query.within:
            filters.add(client.columns_within(query.within))
        for family, columns, low, high in query.asked:
            if columns is None or len(only) == 1:
                scan.addFamily(family)
            else:
                for column in columns:
                    scan.addColumn(family, column)
            if low > 0 or high < MAX_STORED_TS:
                # The end is excluded.
                scan.setColumnFamilyTimeRange(family, low, max(low, min(high, MAX_STORED_TS) + 1))
            if family == LOCK:
                # Skips released locks, which are entries without a value: see `wire`.
                filters.add(client.has_value)
        if not filters.isEmpty():
            scan.setFilter(client.all_of(filters))
        return scan


def _scanned_to(results: JavaObject) -> bytes:
    """The row up to which all has been scanned, if the last result says so and is no row itself."""
    last = results[len(results) - 1]
    return bytes(last.getCursor().getRow()) if last.isCursor() else b""


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


@lru_cache(maxsize=64)
def _snapshot(
    columns: tuple[bytes, ...] | None, ts: int, within: tuple[ColumnRange, ...] = ()
) -> Query:
    """The query of a snapshot or a batch, whose reads mostly differ only in their rows.

    The newest data at or below `ts` is nearly always what the newest visible put wrote, so that
    one request answers a read.
    """
    high = min(ts, MAX_STORED_TS)
    return Query(
        [Ask(LOCK, columns), Ask(_WRITE, columns, 0, high), Ask(_DATA, columns, 0, high)], 1, within
    )
