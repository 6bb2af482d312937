"""§2.1: the feed of a table's changes in Bigtable.

Bigtable changes one row at a time, so a list of changes in separate rows could not be written by
the same mutation. It is stored in the changed row: each write record of a table that keeps a feed
comes with an empty cell in the family `changes`, at the same column and timestamp, in the same
mutation. The feed can neither miss a change nor list one too many.

The cost is a small cell per change, until the collector removes it. A reader of the feed reads the
family over the whole table, as it is not ordered by time. So one call of `changes` costs as much
as a scan of the table's rows; `walk_changes` makes only one call.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from percola.cells import Cell
from percola.clock import elapsed
from percola.errors import NoFeedError
from percola.store.base import ChangedRow
from percola.store.bigtable.client import Calls, MutateRowsRequest
from percola.store.bigtable.filters import CHANGES, Filter, chain, column, family, stamps
from percola.store.bigtable.row_stream import RowStream, StoredRow
from percola.store.bigtable.shared_row import Shared
from percola.store.bigtable.writes import Plan, Writing, delete

_ENTRIES: Final = 4096


class Feeds:
    """The feeds of one store."""

    def __init__(self, calls: Calls, shared: Shared) -> None:
        self._calls = calls
        self._shared = shared

    def changes(
        self, table: str, start: tuple[int, bytes], upto: int, limit: int
    ) -> tuple[list[ChangedRow], tuple[int, bytes] | None]:
        """See `Store.changes`."""
        listed = (one for one in self._listed(table, start[0], upto) if one[:2] >= start)
        found = heapq.nsmallest(limit + 1, listed, key=lambda one: one[:2])
        self._check(table, start[0])
        following = found[limit][:2] if len(found) > limit else None
        return found[:limit], following

    def walk(self, table: str, after: int, upto: int, start: bytes, end: bytes) -> list[ChangedRow]:
        """See `Store.walk_changes`; the changes in order."""
        listed = self._listed(table, after + 1, upto, start, end)
        found = sorted(listed, key=lambda one: one[:2])
        self._check(table, after + 1)
        return found

    def _listed(
        self, table: str, low: int, upto: int, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        if low > upto or (end and end <= start):
            return
        for key, row in RowStream(self._calls, table, _between(low, upto), start=start, end=end):
            by_ts: dict[int, list[bytes]] = {}
            for (_, name), entries in row.items():
                for ts, _ in entries:
                    by_ts.setdefault(ts, []).append(name)
            for ts, names in by_ts.items():
                yield ChangedRow(ts, key, tuple(sorted(names)))

    def _check(self, table: str, first: int) -> None:
        """Raise NoFeedError or SnapshotTooOldError if the changes read may be incomplete."""
        if table not in self._shared.view(elapsed()).feeds:
            raise NoFeedError(f"The table {table!r} keeps no feed of its changes.")
        self._shared.check(first - 1)

    def lists(self, cell: Cell, commit_ts: int) -> bool:
        """See `Store.lists_change`."""
        at = stamps(commit_ts, commit_ts)
        filter_ = chain(column(CHANGES, cell.column), *([] if at is None else [at]))
        return any(True for _ in RowStream(self._calls, cell.table, filter_, keys=[cell.row]))

    def forget(self, table: str, upto: int, limit: int) -> int:
        """See `Store.forget_changes`."""
        if table not in self._shared.view(elapsed()).feeds:
            return 0
        stream = RowStream(self._calls, table, _between(0, upto), limit=limit)
        gone = list(islice(_entries(stream), limit))
        stream.cancel()
        by_row: dict[bytes, list[tuple[bytes, int]]] = {}
        for key, name, ts in gone:
            by_row.setdefault(key, []).append((name, ts))
        plans: Sequence[Plan] = [
            Plan(
                table,
                key,
                entry=MutateRowsRequest.Entry(
                    row_key=key, mutations=[delete(CHANGES, name, ts) for name, ts in entries]
                ),
            )
            for key, entries in by_row.items()
        ]
        Writing(self._calls).apply(plans)
        return len(gone)


def _between(low: int, upto: int) -> Filter:
    within = stamps(low, upto)
    return family(CHANGES) if within is None else chain(family(CHANGES), within)


def _entries(stream: RowStream) -> Iterator[tuple[bytes, bytes, int]]:
    for key, row in stream:
        yield from _of_row(key, row)


def _of_row(key: bytes, row: StoredRow) -> Iterator[tuple[bytes, bytes, int]]:
    for (_, name), entries in row.items():
        for ts, _ in entries:
            yield key, name, ts
