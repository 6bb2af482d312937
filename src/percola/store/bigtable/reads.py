"""§2.1, §2.5: the requests of `percola.store.remote.reads` to Bigtable.

A request names rows, or a range of them, and one filter for all. So cells are read with a request
for all rows with the same columns, several requests at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from percola.cells import Cell, Kind
from percola.store.bigtable.client import Calls
from percola.store.bigtable.filters import (
    CHANGES,
    FAMILIES,
    FILTER_BYTES,
    MAX_STORED_TS,
    Filter,
    cell_entries,
    chain,
    family,
    newest,
    snapshot,
    stamps,
    table_of,
    union,
)
from percola.store.bigtable.row_stream import RowStream
from percola.store.bigtable.shared_row import Shared
from percola.store.chunking import cut
from percola.store.remote.column_ranges import ColumnRange, wanted_ranges
from percola.store.remote.reads import KEYS, Columns, Entries, Reading, Rows, StoredRow

T = TypeVar("T")

RECORDS: Final = 4
"""The number of write records of a column that the first request reads."""

_AT_ONCE: Final = 32

_KEY_BYTES: Final = 384 * 1024
"""The most bytes of keys in a request: Bigtable refuses requests of more than 512 KiB."""


class BigtableReading(Reading):
    """The reads of one store."""

    families = FAMILIES
    changes = CHANGES
    max_ts = MAX_STORED_TS
    records = RECORDS
    rows_ahead = 2**31 - 1  # Rows that have been requested and are not taken do not come.

    def __init__(self, calls: Calls, shared: Shared) -> None:
        super().__init__(shared)
        self._calls = calls

    def snapshot(self, columns: Columns, ts: int) -> Filter:
        return _snapshot(None if columns is None else tuple(columns), ts)

    def everything(self, family_: str, low: int, high: int) -> Filter:
        within = stamps(low, high)
        return family(family_) if within is None else chain(family(family_), within)

    def newest(self, family_: str, versions: int) -> Filter:
        return chain(family(family_), newest(versions))

    def both(self, one: Filter, other: Filter) -> Filter:
        return union([one, other])

    def table_of(self, table: str, kind: Kind) -> str:
        return table_of(table, kind)

    def cells(
        self, wanted: Mapping[str, Mapping[bytes, Collection[bytes]]], ts: int
    ) -> Iterator[tuple[str, bytes, StoredRow]]:
        groups: dict[tuple[str, frozenset[bytes]], list[bytes]] = {}
        for table, rows in wanted.items():
            for row, columns in sorted(rows.items()):
                groups.setdefault((table, frozenset(columns)), []).append(row)
        asked = (
            (table, part, some)
            for (table, names), rows in groups.items()
            for part in _pieces(names)
            for some in _requests(rows)
        )

        def start(one: tuple[str, list[bytes], list[bytes]]) -> RowStream:
            table, columns, rows = one
            filter_ = self.snapshot([(column, False) for column in columns], ts)
            return RowStream(self._calls, table, filter_, keys=rows)

        for (table, _, _), stream in in_flight(asked, start):
            for row, stored in stream:
                yield table, row, stored

    def rows(
        self, table: str, keys: Sequence[bytes], query: Filter
    ) -> Generator[tuple[bytes, StoredRow], None, None]:
        for some in _requests(keys):
            stream = RowStream(self._calls, table, query, keys=some)
            try:
                yield from stream
            finally:
                stream.cancel()

    def chunks(
        self, table: str, query: Filter, start: bytes, end: bytes, limit: int | None
    ) -> Generator[tuple[Rows, bool], None, None]:
        stream = RowStream(self._calls, table, query, start=start, end=end, limit=limit or 0)
        try:
            for one in stream:
                yield [one], False
        finally:
            stream.cancel()

    def look(
        self,
        family: str,
        asked: Mapping[Cell, tuple[int, int]],
        limit: int | None,
    ) -> dict[Cell, Entries]:
        found: dict[Cell, Entries] = {cell: [] for cell in asked}

        def start(one: tuple[Cell, tuple[int, int]]) -> RowStream:
            cell, (low, high) = one
            filter_ = cell_entries(family, cell.column, low, high, limit)
            return RowStream(self._calls, cell.table, filter_, keys=[cell.row])

        for (cell, _), stream in in_flight(asked.items(), start):
            found[cell] = [one for _, row in stream for entries in row.values() for one in entries]
        return found


@lru_cache(maxsize=64)
def _snapshot(columns: tuple[tuple[bytes, bool], ...] | None, ts: int) -> Filter:
    """The filter for columns: the reads of a snapshot or batch mostly differ only in rows."""
    filter_ = snapshot(wanted_ranges(columns), ts, RECORDS)
    if filter_.ByteSize() > FILTER_BYTES:
        # Too many columns to name: read all.
        filter_ = snapshot([ColumnRange(b"\0")], ts, RECORDS)
    return filter_


def _requests(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split the keys of rows into those of requests; each takes up to three bytes more."""
    return cut(keys, lambda key: len(key) + 3, KEYS, _KEY_BYTES)


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
