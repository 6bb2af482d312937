"""§2.1: invariants between a table's feed and its write records, for `percola check`.

    write record @ c    is listed at c, if it puts or deletes, and c is above where the feed began
    listed at c         there is such a write record at c
    write record @ c    its row has an entry at c in the index of feeds, or a pending one, if c is
                        above where the feed and the index began

All only above the safe point: below it, garbage collection removes the two one after the other.
Entry and record are put in one mutation, and neither is removed before the safe point has been
raised. So beside running writers it suffices to read one, then the other, and then the safe point.
The pending entry of a record is put before it, and is deleted when the committed one has been put.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from percola.catalog import feed_since
from percola.cells import SYSTEM_MARK, Cell, Kind, Op, decode_write
from percola.errors import DamagedRecordError, NoFeedError, SnapshotTooOldError
from percola.maintenance.row_rules import Finding, RowEntries
from percola.ranges import TableRange
from percola.store.base import Store

_CHANGES = (Op.PUT, Op.DELETE)
_AT_ONCE: Final = 500
"""How many changes are looked up in the index by one call."""


class FeedPart(NamedTuple):
    """The entries of a feed with `after` < commit_ts ≤ `upto` of the rows in [start, end)."""

    after: int
    upto: int
    start: bytes = b""
    end: bytes = b""


def feed_parts(store: Store, upto: int, ranges: Sequence[TableRange]) -> list[FeedPart]:
    """A part of its table's feed for each range, together all up to `upto`.

    Where a feed is one list, a part is of all rows and of some time: nobody reads past the entries
    of the others.
    """
    if store.has_feed_in_rows:
        return [FeedPart(0, upto, start, end) for _, start, end in ranges]
    count = Counter(one.table for one in ranges)
    since = {table: max(feed_since(store, table) or 0, store.safe_point()) for table in count}
    seen: Counter[str] = Counter()
    parts = []
    for table, _, _ in ranges:
        low, span = since[table], max(0, upto - since[table])
        after = low + span * seen[table] // count[table] if seen[table] else 0
        seen[table] += 1
        last = seen[table] == count[table]
        parts.append(FeedPart(after, upto if last else low + span * seen[table] // count[table]))
    return parts


class FeedRules:
    """Judges the feed of one table; without one there is nothing to judge."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table
        self._since = feed_since(store, table)
        index = store.feed_index
        self._index = index if index is not None and index.of([table]) else None
        self._indexed = None if self._index is None else self._index.since()
        # (commit_ts, row) → start_ts of records that are still to be looked up in the index.
        self._waiting: dict[tuple[int, bytes], int] = {}
        self._pending_at: dict[int, int] = {}

    def judge_row(self, row: bytes, entries: RowEntries) -> Iterator[Finding]:
        """Findings for a row's write records that are missing in the feed."""
        if self._since is None:
            return
        for column, one in entries.items():
            if column.startswith(SYSTEM_MARK):
                continue
            for commit_ts, start_ts in _changing(one.write.items()):
                cell = Cell(self._table, row, column)
                if self._indexed is not None and commit_ts > max(self._since, self._indexed):
                    before = self._waiting.get((commit_ts, row), start_ts)
                    self._waiting[commit_ts, row] = min(start_ts, before)
                if commit_ts <= self._since or self._store.lists_change(cell, commit_ts):
                    continue
                if commit_ts > self._store.safe_point():
                    yield Finding(
                        "unlisted-change",
                        cell,
                        commit_ts,
                        f"{cell} was written at {commit_ts}, but the table's feed does not list "
                        "it: followers of the table have missed that.",
                    )

        if len(self._waiting) >= _AT_ONCE:
            yield from self.judge_index()

    def judge_index(self) -> Iterator[Finding]:
        """Findings for the rows judged last whose changes followers do not find by the index."""
        waiting, self._waiting = self._waiting, {}
        if self._index is None or not waiting:
            return
        records = [(*entry, start_ts) for entry, start_ts in waiting.items()]
        for commit_ts, row in self._index.missing(self._table, records, self._pending_at):
            if commit_ts > self._store.safe_point():
                yield Finding(
                    "unindexed-change",
                    Cell(self._table, row, b""),
                    commit_ts,
                    f"The row {row[:60]!r} of {self._table} was changed at {commit_ts}, but the "
                    "index of feeds has no entry for that: followers of the table miss it.",
                )

    def judge_entries(self, part: FeedPart) -> Iterator[Finding]:
        """Findings for feed entries of a part that have no write record."""
        if self._since is None:
            return
        after = max(self._since, self._store.safe_point(), part.after)
        judged = (0, b"")
        while True:
            try:
                for commit_ts, row, columns in self._store.changes(
                    self._table, after, part.upto, start=part.start, end=part.end
                ):
                    if (commit_ts, row) > judged:
                        yield from self._judge_entry(commit_ts, row, columns)
                        judged = commit_ts, row
                return
            except SnapshotTooOldError as error:
                # Garbage collection removes the oldest entries: go on where the feed will begin,
                # once that is in force.
                after = max(after, error.safe_point)
            except NoFeedError:
                yield Finding(
                    "feed-not-kept",
                    Cell(self._table, b"", b""),
                    self._since,
                    f"The table {self._table} has kept a feed since {self._since}, but the store "
                    "keeps none.",
                )
                return

    def _judge_entry(
        self, commit_ts: int, row: bytes, columns: Iterable[bytes]
    ) -> Iterator[Finding]:
        for column in columns:
            cell = Cell(self._table, row, column)
            found = self._store.entries(cell, Kind.WRITE, commit_ts, commit_ts)
            if not found and commit_ts > self._store.safe_point():
                yield Finding(
                    "change-without-write",
                    cell,
                    commit_ts,
                    f"The feed of {self._table} lists {cell} at {commit_ts}, where nothing was "
                    "written.",
                )


def _changing(records: Iterable[tuple[int, bytes]]) -> list[tuple[int, int]]:
    """commit_ts and start_ts of the records that put or delete.

    Damaged records are reported elsewhere.
    """
    found = []
    for ts, raw in records:
        with contextlib.suppress(DamagedRecordError):
            record = decode_write(raw)
            if record.op in _CHANGES:
                found.append((ts, record.start_ts))
    return found
