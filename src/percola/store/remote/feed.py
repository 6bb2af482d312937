"""§2.1: the feed of a table's changes, on stores that change one row at a time.

A list of changes in separate rows could not be written by the mutation that makes the changes. So
it is stored in the changed row: each write record of a table that keeps a feed comes with an entry
without a value in the family of changes, at the same column and timestamp, in the same mutation.
The feed can neither miss a change nor list one too many.

The cost is a small entry per change, until the collector removes it. A reader of the feed reads
that family, which is not ordered by time, so `changes` costs as much as all entries of the feed in
the rows that it is asked for (in Bigtable, as a scan of these rows).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TypeAlias

from percola.cells import SYSTEM_MARK, Cell
from percola.clock import elapsed
from percola.errors import NoFeedError
from percola.store.base import ChangedRow, Put
from percola.store.remote.reads import Reading, StoredRow
from percola.store.remote.shared_row import SharedRow

RemoveChanges: TypeAlias = Callable[[str, Mapping[bytes, Sequence[tuple[bytes, int]]]], object]
"""Deletes entries of a table's feed: row → (column, timestamp) of each."""


class Feed:
    """The feeds of one store."""

    def __init__(self, shared: SharedRow, reading: Reading, remove: RemoveChanges) -> None:
        self._shared = shared
        self._reading = reading
        self._remove = remove

    def changes(
        self, table: str, after: int, upto: int, start: bytes, end: bytes
    ) -> Iterator[ChangedRow]:
        """See `Store.changes`: the entries of the range are read and sorted in one go."""
        listed = self._listed(table, after + 1, upto, start, end)
        found = sorted(listed, key=lambda one: one[:2])
        self._check(table, after + 1)
        yield from found

    def _listed(
        self, table: str, low: int, upto: int, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        for key, row in self._rows(table, low, upto, start, end):
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
        if table not in self._shared.view(elapsed()).feeds:
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
        if table not in self._shared.view(elapsed()).feeds:
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


def is_listed(record: Put) -> bool:
    """Whether a feed lists a write record: a put or delete outside Percola's own columns."""
    return record.value[:1] in (b"P", b"D") and not record.column.startswith(SYSTEM_MARK)
