"""The feeds of the simulated store where they are stored in the changed rows, with their index.

`percola.store.remote` does all of it, as on HBase and Bigtable. Here are only the requests that it
makes: of the row that all processes share, and of rows and ranges of rows. Those of a call are read
one after the other, and others may run in between.

Feed entries are DATA entries of columns of their own, put in the mutation that makes the change, by
a process that knows of the feed.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from percola.cells import MAX_TS, SYSTEM_MARK, Cell, Kind
from percola.store.base import Delete, Put, RowMutation
from percola.store.remote.feed_index import is_listed
from percola.store.remote.reads import Entries, RowReading, Rows, StoredRow
from percola.store.remote.shared_row import ROW, SHARED_TABLE, SharedRow
from percola.testing.simulation.environment import SimulatedClock
from percola.testing.simulation.faults import Call

if TYPE_CHECKING:
    from percola.testing.simulation.store import SimulatedStore
    from percola.testing.simulation.world import Process

_LISTED: Final = SYSTEM_MARK + b"feed:"
"""Begins the column of a feed entry."""
_CHUNK: Final = 4
_FASTER: Final = 0.04
"""How much faster or slower than time itself the clock of a lease may be."""


class SimulatedSharedRow(SharedRow):
    """One process's cache of the shared row."""

    def __init__(self, store: SimulatedStore, process: Process) -> None:
        super().__init__(SimulatedClock(process).sleep)
        self._store = store
        self._process = process
        # The clock that leases need: it neither jumps nor stands still, but is not exact.
        rng = random.Random(f"{process.world.seed}/{process.name}/lease")
        self._pace = 1 + _FASTER * (2 * rng.random() - 1)
        self._ahead = 1e6 * rng.random()

    def _start_afresh(self) -> None:
        super()._start_afresh()
        # Its threads are greenlets, and may read the row at the same time.
        self._guard = contextlib.nullcontext()  # type: ignore[assignment]

    def now(self) -> float:
        return self._ahead + self._pace * self._process.schedule.now

    def _read(self) -> Mapping[bytes, int]:
        self._process.call(Call.READ)
        found = self._process.world.store.scan_kind(
            Kind.DATA, SHARED_TABLE, ROW, ROW + b"\0", limit=1
        )[0]
        self._process.gap()
        newest: dict[bytes, int] = {}
        for cell, ts, _ in found:
            newest[cell.column] = max(ts, newest.get(cell.column, 0))
        return newest

    def _put(self, column: bytes, ts: int) -> None:
        put = Put(Kind.DATA, column, ts, b"")
        self._store.mutate([RowMutation(SHARED_TABLE, ROW, (), [put])])


class _Query(NamedTuple):
    """The entries of a kind between two timestamps; those of the feed alone, or all but those.

    `other` is asked for in the same request.
    """

    kind: Kind
    is_feed: bool
    low: int
    high: int
    other: _Query | None = None


class SimulatedRows(RowReading):
    """The requests for rows that one process makes."""

    families = MappingProxyType({kind: (kind, False) for kind in Kind})
    changes = (Kind.DATA, True)
    max_ts = MAX_TS

    def __init__(self, process: Process) -> None:
        self._process = process

    def everything(self, family: tuple[Kind, bool], low: int, high: int) -> _Query:
        return _Query(*family, low, high)

    def both(self, one: _Query, other: _Query) -> _Query:
        return one._replace(other=other)

    def rows(
        self, table: str, keys: Sequence[bytes], query: _Query
    ) -> Generator[tuple[bytes, StoredRow], None, None]:
        self._process.call(Call.READ)
        for key in keys:
            self._process.gap()
            if row := self._row(table, key, query):
                yield key, row

    def chunks(
        self, table: str, query: _Query, start: bytes, end: bytes, limit: int | None
    ) -> Generator[tuple[Rows, bool], None, None]:
        process, found = self._process, 0
        position: bytes | None = start
        while position is not None and (limit is None or found < limit):
            process.call(Call.READ)
            most = process.rng.randint(1, _CHUNK)
            if limit is not None:
                most = min(most, limit - found)
            rows: list[tuple[bytes, StoredRow]] = []
            while position is not None and len(rows) < most:
                cells, position = process.world.store.scan_kind(
                    query.kind, table, position, end, limit=1
                )
                rows += _stored(cells, query)
            process.gap()
            found += len(rows)
            yield rows, position is None

    def look(
        self,
        family: tuple[Kind, bool],
        asked: Mapping[Cell, tuple[int, int]],
        limit: int | None,
    ) -> dict[Cell, Entries]:
        found: dict[Cell, Entries] = {}
        for cell, (low, high) in asked.items():
            self._process.call(Call.READ)
            row = self._row(cell.table, cell.row, _Query(*family, low, high))
            found[cell] = row.get((family, cell.column), [])[:limit]
        return found

    def _row(self, table: str, key: bytes, query: _Query) -> StoredRow:
        cells, _ = self._process.world.store.scan_kind(query.kind, table, key, key + b"\0")
        row = next((row for _, row in _stored(cells, query)), {})
        return row if query.other is None else row | self._row(table, key, query.other)


def _stored(
    cells: Sequence[tuple[Cell, int, bytes]], query: _Query
) -> Iterator[tuple[bytes, StoredRow]]:
    """The rows of what a walk of the memory store has found, as far as they are asked for."""
    kind, is_feed, low, high, _ = query
    for key, entries in itertools.groupby(cells, key=lambda one: one[0].row):
        row: StoredRow = {}
        for cell, ts, value in entries:
            column = cell.column
            if column.startswith(_LISTED) is is_feed and low <= ts <= high:
                name = column[len(_LISTED) :] if is_feed else column
                row.setdefault(((kind, is_feed), name), []).append((ts, value))
        for stands in row.values():
            stands.sort(reverse=True)
        if row:
            yield key, row


def with_entries(mutation: RowMutation) -> RowMutation:
    """The mutation of a row of a table with a feed, together with the entries of the feed."""
    listed = [
        Put(Kind.DATA, _LISTED + change.column, change.ts, b"")
        for change in mutation.changes
        if change.kind is Kind.WRITE and isinstance(change, Put) and is_listed(change)
    ]
    return replace(mutation, changes=[*mutation.changes, *listed])


def is_entry(cell: Cell) -> bool:
    """Whether a DATA entry is one of a feed."""
    return cell.column.startswith(_LISTED)


def removals(table: str, gone: Mapping[bytes, Sequence[tuple[bytes, int]]]) -> list[RowMutation]:
    """The mutations that remove entries of a table's feed: row → (column, timestamp) of each."""
    return [
        RowMutation(
            table, row, (), [Delete(Kind.DATA, _LISTED + column, ts) for column, ts in entries]
        )
        for row, entries in gone.items()
    ]
