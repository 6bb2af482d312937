"""§2.1, §2.2, §2.4: `check` walks a repository and reports every broken invariant of its cells.

Crashes, dead writers and lost replies leave a repository in states that look unfinished and are not
wrong: the next who meets them goes on from there. `percola.maintenance.row_rules` says which states
a row can never be in; this module finds the rows, and looks at what spans two of them: a lock and
its primary.

Why it raises no false alarm beside running writers and workers. A row is first read kind by
kind, while others change it: what looks wrong then may have come from two moments. So it is
read again, whole, twice in a row, until two readings agree entry for entry. Timestamps are never
used twice, and nothing that the protocol has deleted is put back at the same timestamp; so what
two readings have in common stood there all the time between the end of the first and the
beginning of the second. What neither has seen may still have come and gone around that moment,
so each reading goes by the order in which entries turn into one another: locks and notify
entries first, then failures, then write records, and data last. Who misses a lock because it has
just gone finds the record or the data's absence that it left; who misses a notify entry, the
failure or the acknowledgment. Had that record come between the two readings, they would differ.
So the row is judged as it stood, whole, at one moment. In between,

    a lock's primary    is read, its lock first. A primary is locked before any other cell (P3),
                        turns from lock to record in one mutation, and keeps the record for as
                        long as a lock of its transaction is left (P4, P12). The other lock is
                        there all the while, so a primary with neither has lost it; below
                        the safe point, where nothing commits any more, that is only a note.
    the last timestamp  is asked for. It only goes up, and was given out before it was used.
    the schema          is read, if it seems to lack a column. It only grows, and does so before
                        anybody writes the new column.

    a table's feed      lists what the row's records say (`percola.maintenance.feed_rules`).

A row that never holds still for that long is counted as unsettled, and not reported. A broken
state which is over before it has been read twice may be missed: nothing is ever wrong only for
a moment but by the luck of another mistake.

Memory is that of a few hundred entries, and of the largest row.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from percola.catalog import stored_schema
from percola.cells import (
    MAX_TS,
    Cell,
    Kind,
    LockRecord,
    Op,
    acknowledged_column,
    decode_lock,
    decode_write,
)
from percola.errors import DamagedRecordError, UnknownTableError
from percola.maintenance.feed_rules import FeedRules
from percola.maintenance.row_rules import (
    Columns,
    Entries,
    Finding,
    RowEntries,
    Severity,
    judge,
)
from percola.repository import Repository

__all__ = ["Counts", "Finding", "Severity", "check"]

_READINGS: Final = 64
_REMEMBERED: Final = 10_000
_PROGRESS: Final = 500
_KINDS: Final = (Kind.LOCK, Kind.NOTIFY, Kind.FAILED, Kind.WRITE, Kind.DATA)
"""In the order in which one turns into the other: see above."""
_LIMITS: Final = {Kind.DATA: 16}
"""Entries a call, where it is not the usual number: data may be large."""

_Item = tuple[bytes, Kind, bytes, int, bytes]
"""An entry on the walk: row, kind, column, timestamp, value."""


@dataclass(slots=True)
class Counts:
    """What a check has walked through so far.

    Attributes:
        tables: how many tables it has begun.
        rows: rows with an entry of any kind.
        cells: cells with an entry of any kind, those of Percola's own columns included.
        writes: write records.
        data: values that stand on their own; small ones stand in write records.
        notifications: notify entries: observers have yet to look.
        failures: observers that were set aside.
        pending: locks of live processes: transactions that are committing.
        left: locks that ended processes have left; whoever meets them next finishes or undoes.
        unsettled: rows that looked odd, but changed too fast to be judged.
        errors: findings that say that a rule is broken.
        notes: findings that say that something is unusual, and harmless.
        last_ts: the last timestamp handed out when the check began.
    """

    tables: int = 0
    rows: int = 0
    cells: int = 0
    writes: int = 0
    data: int = 0
    notifications: int = 0
    failures: int = 0
    pending: int = 0
    left: int = 0
    unsettled: int = 0
    errors: int = 0
    notes: int = 0
    last_ts: int = 0


def check(
    repo: Repository,
    *,
    counts: Counts | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
) -> Iterator[Finding]:
    """Walk the whole repository, and report what the protocol never leaves behind.

    It reads only: nothing is resolved, mended or held up, and others may go on. What they
    change meanwhile is judged as it is when the walk comes by.

    Args:
        counts: filled with what has been walked through, as it goes.
        progress: called with the counts every few hundred rows.

    Raises StoreError if the store cannot be read.
    """
    walk = _Walk(repo, Counts() if counts is None else counts)
    walked = walk.counts
    for table in sorted(table.name for table in repo.schema):
        walked.tables += 1
        feed = FeedRules(repo.context.store, table)
        for row, entries in walk.rows(table):
            for finding in walk.take_damaged():
                yield walk.counted(finding)
            walk.count(table, row, entries)
            if walked.rows % _PROGRESS == 0:
                progress(walked)
            if next(walk.examine(table, row, entries), None) is not None:
                for finding in walk.confirm(table, row):
                    yield walk.counted(finding)
            for finding in feed.judge_row(row, entries):
                yield walk.counted(finding)
        for finding in itertools.chain(walk.take_damaged(), feed.judge_entries(walked.last_ts)):
            yield walk.counted(finding)
    progress(walked)


class _Walk:
    """One check: what it has read, counted, and seen of primaries."""

    def __init__(self, repo: Repository, counts: Counts) -> None:
        self._repo = repo
        self._context = repo.context
        self._store = repo.context.store
        self._last_ts = counts.last_ts = self._context.oracle.read_timestamp()
        self._columns = Columns(repo.schema)
        self._missing: set[tuple[str, bytes]] = set()
        self._primaries: set[tuple[Cell, int]] = set()
        self._alive: dict[str, bool] = {}
        self._damaged: list[Finding] = []
        self.counts = counts

    # --- Reading ------------------------------------------------------------------------

    def rows(self, table: str) -> Iterator[tuple[bytes, RowEntries]]:
        """Every row with all its entries, read kind by kind."""
        streams = [self._tolerantly(table, self._entries(table, kind)) for kind in _KINDS]
        merged = heapq.merge(*streams, key=lambda item: item[0])
        for row, items in itertools.groupby(merged, key=lambda item: item[0]):
            yield row, _gathered(items)

    def _writes(self, table: str, start: bytes = b"", end: bytes = b"") -> Iterator[_Item]:
        position: bytes | None = start
        while position is not None:
            cells, position = self._store.versions(table, position, end)
            for cell, records in cells:
                for ts, raw in records:
                    yield cell.row, Kind.WRITE, cell.column, ts, raw

    def _entries(
        self, table: str, kind: Kind, start: bytes = b"", end: bytes = b""
    ) -> Iterator[_Item]:
        if kind is Kind.WRITE:
            yield from self._writes(table, start, end)
            return
        limit = _LIMITS.get(kind, 256)
        for cell, ts, raw in self._store.walk_kind(
            kind, table, start, end, first=limit, limit=limit
        ):
            yield cell.row, kind, cell.column, ts, raw
            if kind is Kind.LOCK:
                # The list of locks has one a cell; there must not be more of them, but look.
                for other, record in self._store.entries(cell, Kind.LOCK, 0, MAX_TS):
                    if other != ts:
                        yield cell.row, kind, cell.column, other, record

    def _tolerantly(self, table: str, stream: Iterator[_Item]) -> Iterator[_Item]:
        """The stream up to where a key is damaged, which is a finding: the rest is not seen."""
        row = b""
        try:
            for item in stream:
                row = item[0]
                yield item
        except ValueError as error:
            cell = Cell(table, row, b"")
            self._damaged.append(
                Finding(
                    "undecodable-key",
                    cell,
                    0,
                    f"After the row {row[:60]!r} of {table} a key of the store cannot be read, and "
                    f"what follows it was not checked ({error}).",
                )
            )

    def take_damaged(self) -> list[Finding]:
        """The findings about keys that could not be read since the last call."""
        found, self._damaged = self._damaged, []
        return found

    def _read(self, table: str, row: bytes) -> RowEntries:
        """The whole row anew."""
        items = [item for kind in _KINDS for item in self._entries(table, kind, row, row + b"\0")]
        return _gathered(items)

    def last_ts(self, seen: int) -> int:
        """The last timestamp handed out: at least `seen`, or as of a moment after the call."""
        if seen > self._last_ts:
            self._last_ts = self._context.oracle.read_timestamp()
        return self._last_ts

    # --- Judging ------------------------------------------------------------------------

    def examine(self, table: str, row: bytes, entries: RowEntries) -> Iterator[Finding]:
        """What is wrong with a row, if what was read of it stood there at one moment."""
        self._learn_columns(table, entries)
        yield from judge(table, row, entries, self._columns, self.last_ts)
        for column, one in entries.items():
            for start_ts, raw in one.lock.items():
                try:
                    lock = decode_lock(raw)
                except DamagedRecordError:
                    continue  # Judged already.
                yield from self._judge_primary(Cell(table, row, column), start_ts, lock)

    def confirm(self, table: str, row: bytes) -> Iterator[Finding]:
        """What is wrong with a row that has been read twice, and was the same."""
        for _ in range(_READINGS):
            self._missing.clear()
            try:
                before = self._read(table, row)
                if not before:
                    return
                found = list(self.examine(table, row, before))
                if not found:
                    return
                if self._read(table, row) == before:
                    yield from found
                    return
            except ValueError:
                return  # A damaged key: the walk has come across it as well.
        self.counts.unsettled += 1

    def _judge_primary(self, cell: Cell, start_ts: int, lock: LockRecord) -> Iterator[Finding]:
        primary = lock.primary
        if primary == cell or (primary, start_ts) in self._primaries:
            return
        try:
            held = self._store.entries(primary, Kind.LOCK, start_ts, start_ts)
            records = self._store.entries(primary, Kind.WRITE, start_ts, MAX_TS)
        except UnknownTableError:
            held, records = [], []
        if held:
            try:
                other = decode_lock(held[0][1]).primary
            except DamagedRecordError:
                return  # Reported where it stands.
            if other != primary:
                yield Finding(
                    "lock-without-primary",
                    cell,
                    start_ts,
                    f"{cell} has a lock at {start_ts} whose primary is {primary}, but the lock "
                    f"there says that {other} is: nothing decides about the transaction.",
                )
                return
        elif not any(_is_of(start_ts, ts, raw) for ts, raw in records):
            message = (
                f"{cell} has a lock at {start_ts}, but its primary, {primary}, has neither that "
                "transaction's lock nor a record of how it ended"
            )
            if start_ts < self._store.safe_point():
                # A process that was taken for dead may lock once more after garbage collection
                # has removed what said so; it then finds out, and commits nothing.
                message += ": below the safe point such a transaction commits no more."
                yield Finding("late-lock", cell, start_ts, message, Severity.NOTE)
            else:
                yield Finding("lock-without-primary", cell, start_ts, message + ".")
            return
        if len(self._primaries) >= _REMEMBERED:
            self._primaries.clear()
        self._primaries.add((primary, start_ts))

    def _learn_columns(self, table: str, entries: RowEntries) -> None:
        """Read the schema again if a column is not in it: another program may have added it."""
        for name in entries:
            column = acknowledged_column(name) or name
            if self._columns.of(table, column) is None and (table, column) not in self._missing:
                stored = stored_schema(self._store)
                self._columns = Columns(stored.with_codecs_of(self._repo.schema))
                if len(self._missing) < _REMEMBERED:
                    self._missing.add((table, column))

    # --- Counting -----------------------------------------------------------------------

    def count(self, table: str, row: bytes, entries: RowEntries) -> None:
        """Count what a row holds."""
        counts = self.counts
        counts.rows += 1
        counts.cells += len(entries)
        for one in entries.values():
            counts.writes += len(one.write)
            counts.data += len(one.data)
            counts.notifications += len(one.notify)
            counts.failures += len(one.failed)
            for raw in one.lock.values():
                if self._is_alive(raw):
                    counts.pending += 1
                else:
                    counts.left += 1

    def counted(self, finding: Finding) -> Finding:
        """The finding, once it has been counted."""
        if finding.severity is Severity.ERROR:
            self.counts.errors += 1
        else:
            self.counts.notes += 1
        return finding

    def _is_alive(self, raw: bytes) -> bool:
        try:
            owner = decode_lock(raw).owner
        except DamagedRecordError:
            return False
        if owner not in self._alive:
            if len(self._alive) >= _REMEMBERED:
                self._alive.clear()
            self._alive[owner] = self._context.coordination.is_alive(owner)
        return self._alive[owner]


def _gathered(items: Iterable[_Item]) -> RowEntries:
    entries: RowEntries = {}
    for _, kind, column, ts, raw in items:
        one = entries.get(column)
        if one is None:
            one = entries[column] = Entries()
        one.of(kind)[ts] = raw
    return entries


def _is_of(start_ts: int, ts: int, raw: bytes) -> bool:
    """Whether a write record says how the transaction that began at `start_ts` has ended."""
    try:
        record = decode_write(raw)
    except DamagedRecordError:
        return True  # Reported where it stands; it may be this one.
    return record.start_ts == start_ts and (record.op is not Op.ROLLBACK or ts == start_ts)
