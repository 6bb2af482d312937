"""§2.1: the feed of a table's changes, on stores that change one row at a time.

A list of changes in separate rows could not be written by the mutation that makes the changes. So
it is stored in the changed row: each write record of a table that keeps a feed comes with an entry
without a value in the family of changes, at the same column and timestamp, in the same mutation.
The feed can neither miss a change nor list one too many.

These entries are not ordered by time. `percola.store.remote.feed_index` says in which rows they
are: `changes` reads that first, and then those rows, so that it costs what has changed. Where a
repository has no index yet, or only one that begins later, it reads the family over all rows that
it is asked for (in Bigtable, as a scan of these rows).

The cost is an entry in the row and one in the index per change, until the collector removes them.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, TypeAlias

from percola.cells import Cell, Kind, decode_write
from percola.errors import NoFeedError
from percola.platform import fork_safety as forks
from percola.store.base import ChangedRow, PendingEntry, PendingRow, Store
from percola.store.remote.batches import overlapped
from percola.store.remote.feed_index import (
    COMMITTED,
    FEED_TABLE,
    PENDING,
    Entry,
    deletes,
    entry_of,
    key_of,
    spans,
    started_of,
)
from percola.store.remote.reads import KEYS, Query, RowReading, StoredRow
from percola.store.remote.shared_row import SharedRow

RemoveChanges: TypeAlias = Callable[[str, Mapping[bytes, Sequence[tuple[bytes, int]]]], object]
"""Deletes entries of a table's feed: row → (column, timestamp) of each."""

_WORTH_A_SCAN: Final = 65_536
"""With more changes than this, those of a range of rows are read by a scan of that range: the index
is not ordered by row, and each range would read all of it."""

_WORTH_A_FLOOR: Final = 1000
"""So many pending entries that were removed are worth raising the floor."""

_FORGOTTEN: Final = 4096
"""The collector removes so many entries at a time."""


class Feed:
    """The feeds of one store."""

    def __init__(self, shared: SharedRow, reading: RowReading, remove: RemoveChanges) -> None:
        self._shared = shared
        self._reading = reading
        self._remove = remove

    def changes(
        self, table: str, after: int, upto: int, start: bytes, end: bytes
    ) -> Iterator[ChangedRow]:
        """See `Store.changes`."""
        since = self._shared.current().indexed_since
        if since is not None and after >= since:
            found = self._found(table, after + 1, upto, start, end)
            if found is not None:
                yield from self._looked_up(table, found, after)
                return
        # In one go: nothing else puts them in order.
        listed = sorted(self._listed(table, after + 1, upto, start, end))
        self._check(table, after + 1)
        yield from listed

    def _found(
        self, table: str, low: int, upto: int, start: bytes, end: bytes
    ) -> Iterable[Entry] | None:
        """The entries of the index for a range of rows, in order; None if a scan costs less."""
        reading = self._reading

        def is_within(row: bytes) -> bool:
            return start <= row and not (end and row >= end)

        # The pending ones first: a committed entry is put before one of them is deleted.
        low_pending = self._shared.current().floors.get(table, 0) + 1
        pending = [
            row
            for _, row, _ in entries_between(reading, PENDING, table, low_pending, upto)
            if is_within(row)
        ]
        query = reading.everything(reading.changes, low, upto)
        changes = _by_commit(_rows_of(reading, table, pending, query))
        committed = entries_between(reading, COMMITTED, table, low, upto)
        if start or end:
            few = list(itertools.islice(committed, _WORTH_A_SCAN + 1))
            if len(few) > _WORTH_A_SCAN:
                return None
            committed = (one for one in few if is_within(one[1]))
        listed = ((ts, row) for ts, row, _ in committed)
        both = heapq.merge(listed, sorted((one.commit_ts, one.row) for one in changes))
        return (one for one, _ in itertools.groupby(both))

    def _looked_up(self, table: str, found: Iterable[Entry], after: int) -> Iterator[ChangedRow]:
        """The changes of index entries in their order; those of refused mutations have none."""
        reading, found = self._reading, iter(found)

        def read(some: Sequence[Entry]) -> list[ChangedRow]:
            listed, rows = set(some), [row for _, row in some]
            query = reading.everything(reading.changes, some[0][0], some[-1][0])
            changes = _by_commit(_rows_of(reading, table, rows, query))
            return sorted(one for one in changes if (one.commit_ts, one.row) in listed)

        parts = iter(lambda: list(itertools.islice(found, KEYS)), [])
        for changes in overlapped(read, parts):
            self._check(table, after + 1)
            yield from changes
        self._check(table, after + 1)

    def _listed(
        self, table: str, low: int, upto: int, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        yield from _by_commit(self._rows(table, low, upto, start, end))

    def _rows(
        self,
        table: str,
        low: int,
        upto: int,
        start: bytes = b"",
        end: bytes = b"",
        limit: int | None = None,
    ) -> Generator[tuple[bytes, StoredRow], None, None]:
        """The rows of a range with changes between two timestamps, and these changes."""
        reading = self._reading
        upto = min(upto, reading.max_ts)
        if low > upto or (end and end <= start):
            return
        query = reading.everything(reading.changes, low, upto)
        with closing(reading.chunks(table, query, start, end, limit)) as chunks:
            for rows, _ in chunks:
                yield from rows

    def _check(self, table: str, first: int) -> None:
        """Raise NoFeedError or SnapshotTooOldError if the changes read may be incomplete."""
        if table not in self._shared.current().feeds:
            raise NoFeedError(f"The table {table!r} keeps no feed of its changes.")
        self._shared.check(first - 1)

    def lists(self, cell: Cell, commit_ts: int) -> bool:
        """See `Store.lists_change`."""
        reading = self._reading
        if not 0 <= commit_ts <= reading.max_ts:
            return False
        return bool(reading.look(reading.changes, {cell: (commit_ts, commit_ts)}, 1)[cell])

    def forget(self, table: str, upto: int, limit: int, start: bytes, end: bytes) -> int:
        """See `Store.forget_changes`."""
        if table not in self._shared.current().feeds:
            return 0
        gone: dict[bytes, list[tuple[bytes, int]]] = {}
        count = 0
        with closing(self._rows(table, 0, upto, start, end, limit)) as rows:
            for key, row in rows:
                every = [(name, ts) for (_, name), entries in row.items() for ts, _ in entries]
                gone[key] = every[: limit - count]
                count += len(gone[key])
                if count >= limit:
                    break
        self._remove(table, gone)
        return count


class Index:
    """The index of one store: see `FeedIndex`."""

    def __init__(
        self, store: Store, make: Callable[[], None], shared: SharedRow, reading: RowReading
    ) -> None:
        self._store = store
        self._make = make
        self._shared = shared
        self._reading = reading
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        # By table: pending entries removed since a floor was announced; and that floor, with the
        # moment from which all committers know it.
        self._removed: dict[str, float] = {}
        self._announced: dict[str, tuple[int, float]] = {}

    def begin(self, latest: Callable[[], int]) -> bool:
        self._make()
        return self._shared.index_feeds(latest)

    def of(self, tables: Iterable[str]) -> frozenset[str]:
        view = self._shared.current()
        return view.feeds.intersection(tables) if view.indexed else frozenset()

    def floor(self, tables: Iterable[str]) -> int:
        floors = self._shared.current().floors_announced
        return max((floors.get(table, 0) for table in tables), default=0)

    def now(self) -> float:
        return self._shared.now()

    def looked(self, table: str, upto: int, began: float, gone: float, left: int | None) -> None:
        with self._guard:
            removed = self._removed.get(table, 0) + gone
            announced, due = self._announced.get(table, (0, 0.0))
            if not announced and removed >= _WORTH_A_FLOOR:
                # Said before it is announced: another thread need not announce one, too.
                self._announced[table] = upto, math.inf
                removed = 0
            elif announced and began >= due:
                del self._announced[table]
            self._removed[table] = removed
        if not announced and (upto, math.inf) == self._announced.get(table):
            try:
                self._announced[table] = upto, self._shared.announce_floor(table, upto)
            except BaseException:
                del self._announced[table]
                raise
        elif announced and began >= due:
            self._shared.raise_floor(table, min(announced, upto, (left or upto + 1) - 1))

    def since(self) -> int | None:
        return self._shared.current().indexed_since

    def is_walked(self, table: str) -> bool:
        return table in self._shared.current().walked

    def note_walked(self, table: str) -> None:
        self._shared.note_walked(table)

    def pending(self, table: str, upto: int) -> Iterator[PendingEntry]:
        low = self._shared.current().floors.get(table, 0) + 1
        for ts, row, value in entries_between(self._reading, PENDING, table, low, upto):
            yield ts, row, started_of(value)

    def look(self, table: str, entries: Sequence[PendingEntry]) -> list[PendingRow]:
        reading = self._reading
        lock, write = (reading.families[kind] for kind in (Kind.LOCK, Kind.WRITE))
        first = min((min(started) for _, _, started in entries), default=0)
        # Together: of a row that is committed meanwhile either the locks or the records are seen.
        # On HBase all locks are stored at one timestamp.
        query = reading.both(
            reading.everything(lock, 0, reading.max_ts),
            reading.everything(write, first, reading.max_ts),
        )
        stored = dict(_rows_of(reading, table, (row for _, row, _ in entries), query))
        found = []
        for ts, row, started in entries:
            entries_of = stored.get(row, {}).items()
            held = [
                (column, start_ts, raw)
                for (family, column), some in entries_of
                if family == lock
                for start_ts, raw in some
                if start_ts in started
            ]
            commits = {
                commit_ts
                for (family, _), some in entries_of
                if family == write
                for commit_ts, raw in some
                if (start_ts := decode_write(raw).start_ts) in started and commit_ts > start_ts
            }
            found.append(PendingRow(ts, row, started, held, min(commits, default=None)))
        return found

    def missing(
        self, table: str, records: Iterable[tuple[int, bytes, int]], pending_at: dict[int, int]
    ) -> list[Entry]:
        floor = self._shared.look().floors.get(table, 0)
        starts = {(ts, row): start_ts for ts, row, start_ts in records}
        left = starts.keys() - self._standing(COMMITTED, table, starts)
        # The likely keys of pending ones first, as all of a long transaction are at one timestamp.
        likely = {one: (pending_at.get(starts[one], starts[one]), one[1]) for one in left}
        stands = self._standing(PENDING, table, likely.values())
        left = {one for one in left if likely[one] not in stands or likely[one][0] <= floor}
        start_of = starts.__getitem__
        for start_ts, group in itertools.groupby(sorted(left, key=start_of), start_of):
            wanted = {row: (ts, row) for ts, row in group}
            low, upto = max(start_ts, floor + 1), max(ts for ts, _ in wanted.values())
            for ts, row, value in entries_between(self._reading, PENDING, table, low, upto):
                if row in wanted and start_ts in started_of(value):
                    left.remove(wanted.pop(row))
                    pending_at[start_ts] = ts
                if not wanted:
                    break
        # A committed entry is put before the pending one is deleted.
        return sorted(left - self._standing(COMMITTED, table, left))

    def _standing(self, which: bytes, table: str, entries: Iterable[Entry]) -> set[Entry]:
        """Those of the entries that exist."""
        reading, keys = self._reading, [key_of(which, table, *one) for one in entries]
        query = reading.everything(reading.families[Kind.DATA], 0, reading.max_ts)
        return {entry_of(table, key) for key, _ in _rows_of(reading, FEED_TABLE, keys, query)}

    def forget(self, table: str, upto: int) -> Iterator[int]:
        view = self._shared.look()
        if not view.indexed:
            return
        for which, forgotten, last in (
            (COMMITTED, view.forgotten, upto),
            (PENDING, view.floors_forgotten, view.floors.get(table, 0)),
        ):
            low = forgotten.get(table, 0) + 1
            old = entries_between(self._reading, which, table, low, last)
            while gone := [(ts, row) for ts, row, _ in itertools.islice(old, _FORGOTTEN)]:
                self._store.mutate(deletes(which, table, gone))
                yield len(gone)
            if low <= last:
                self._shared.note_forgotten(table, last, pending=which is PENDING)


def entries_between(
    reading: RowReading, which: bytes, table: str, low: int, upto: int
) -> Iterator[tuple[int, bytes, bytes]]:
    """The entries of the index between two timestamps, in order: (timestamp, row, value)."""
    upto = min(upto, reading.max_ts)
    if low > upto:
        return iter(())
    return heapq.merge(*(_span(reading, table, *one) for one in spans(which, table, low, upto)))


def _span(
    reading: RowReading, table: str, start: bytes, end: bytes
) -> Iterator[tuple[int, bytes, bytes]]:
    query = reading.everything(reading.families[Kind.DATA], 0, reading.max_ts)
    with closing(reading.chunks(FEED_TABLE, query, start, end, None)) as chunks:
        for rows, _ in chunks:
            for key, row in rows:
                [[(_, value)]] = row.values()
                yield *entry_of(table, key), value


def _rows_of(
    reading: RowReading, table: str, rows: Iterable[bytes], query: Query
) -> Iterator[tuple[bytes, StoredRow]]:
    """Those of many rows that have entries."""
    keys = sorted(set(rows))
    for at in range(0, len(keys), KEYS):
        yield from reading.rows(table, keys[at : at + KEYS], query)


def _by_commit(rows: Iterable[tuple[bytes, StoredRow]]) -> Iterator[ChangedRow]:
    """The changes that rows with entries of the feed list, row by row."""
    for key, row in rows:
        by_ts: dict[int, list[bytes]] = {}
        for (_, name), entries in row.items():
            for ts, _ in entries:
                by_ts.setdefault(ts, []).append(name)
        for ts, names in by_ts.items():
            yield ChangedRow(ts, key, tuple(sorted(names)))
