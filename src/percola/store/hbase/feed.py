"""§2.1: the feed of a table's changes in HBase.

A list of changes in separate rows could not be written by the mutation that makes the changes,
because those rows might be in another region. So it is stored in the changed row: each write
record of a table that keeps a feed comes with an entry in the family of changes, at the same column
and timestamp, in the same mutation. The feed can neither miss a change nor list one too many.

The cost is a small entry per change, until the collector removes it. A reader of the feed reads
that family, which has separate files. The family is not ordered by time, so one call of `changes`
costs as much as all entries of the feed. `walk_changes` makes only one call, and reads only the
rows that it is asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from percola.cells import Cell
from percola.clock import elapsed
from percola.errors import NoFeedError
from percola.store.base import ChangedRow
from percola.store.hbase.client import Calls
from percola.store.hbase.mutations import removal
from percola.store.hbase.reads import Reading, StoredRow
from percola.store.hbase.shared_row import Shared
from percola.store.hbase.wire import CHANGES, MAX_STORED_TS, Ask, get, rows_of
from percola.store.hbase.writes import Writing

_ALL = 2**31 - 1
_ROWS = 4096


class Feeds:
    """The feeds of one store."""

    def __init__(self, calls: Calls, shared: Shared, reading: Reading) -> None:
        self._calls = calls
        self._shared = shared
        self._reading = reading

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
        if low > min(upto, MAX_STORED_TS) or (end and end <= start):
            return
        for key, row in self._rows(table, low, upto, start=start, end=end):
            by_ts: dict[int, list[bytes]] = {}
            for (_, name), entries in row.items():
                for ts, _ in entries:
                    by_ts.setdefault(ts, []).append(name)
            for ts, names in by_ts.items():
                yield ChangedRow(ts, key, tuple(sorted(names)))

    def _rows(
        self,
        table: str,
        low: int,
        upto: int,
        most: int = _ROWS,
        *,
        start: bytes = b"",
        end: bytes = b"",
    ) -> Iterator[tuple[bytes, StoredRow]]:
        """The rows of a range with changes between two timestamps, and these changes."""
        asked = [Ask(CHANGES, None, low, upto)]
        is_all = False
        while not is_all:
            rows, is_all = self._reading.chunk(table, asked, _ALL, start, end, most)
            yield from rows
            if rows:
                start = rows[-1][0] + b"\0"

    def _check(self, table: str, first: int) -> None:
        """Raise NoFeedError or SnapshotTooOldError if the changes read may be incomplete."""
        if table not in self._shared.view(elapsed()).feeds:
            raise NoFeedError(f"The table {table!r} keeps no feed of its changes.")
        self._shared.check(first - 1)

    def lists(self, cell: Cell, commit_ts: int) -> bool:
        """See `Store.lists_change`."""
        if not 0 <= commit_ts <= MAX_STORED_TS:
            return False
        request = get(cell.row, [Ask(CHANGES, [cell.column], commit_ts, commit_ts)], 1)
        return any(True for _ in rows_of(self._calls.get(cell.table, [request])))

    def forget(self, table: str, upto: int, limit: int) -> int:
        """See `Store.forget_changes`."""
        if table not in self._shared.view(elapsed()).feeds:
            return 0
        plans = []
        count = 0
        for key, row in self._rows(table, 0, upto, min(limit, _ROWS)):
            entries = _entries(row.items(), limit - count)
            plans.append(removal(table, key, entries))
            count += len(entries)
            if count >= limit:
                break
        Writing(self._calls).apply(plans)
        return count


def _entries(
    row: Iterable[tuple[tuple[bytes, bytes], Sequence[tuple[int, bytes]]]], most: int
) -> list[tuple[bytes, bytes, int]]:
    every = [(*place, ts) for place, entries in row for ts, _ in entries]
    return every[:most]
