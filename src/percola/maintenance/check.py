"""§2.1, §2.2, §2.4: `check` scans a repository and reports every violated invariant of its cells.

Crashes, dead writers and lost replies leave a repository in states that are unfinished but not
wrong: the next reader or worker resolves them. `percola.maintenance.row_rules` defines the states
that a row can never be in; this module finds the rows, and checks what spans two of them: a lock
and its primary.

Why there are no false alarms beside running writers and workers: a row is first read kind by kind,
while others change it, so an apparent error may combine two moments. The row is then read again,
completely, until two consecutive readings agree entry for entry. Timestamps are never used twice,
and nothing that the protocol has deleted is put back at the same timestamp; so entries in both
readings existed all the time between the end of the first and the beginning of the second. An entry
in neither may still have come and gone around that moment, so each reading follows the order in
which entries turn into one another: locks and notify entries first, then failures, then write
records, and data last. A reading that misses a lock because it was just removed finds the record or
the missing data that it left; one that misses a notify entry finds the failure or the
acknowledgment. Had that record come between the two readings, they would differ. So the row is
judged in the complete state of one moment. In between,

    a lock's primary    is read, its lock first. A primary is locked before any other cell (P3),
                        turns from lock to record in one mutation, and keeps the record for as
                        long as a lock of its transaction is left (P4, P12). The other lock is
                        there all the while, so a primary with neither has lost it; below
                        the safe point, where nothing commits any more, that is only a note,
                        and so it is where a server that dies may lose primaries' locks
                        (`Store.has_volatile_writes`).
    the last timestamp  is requested. It only goes up, and was handed out before it was used.
    the schema          is read, if it seems to lack a column, or not to have it as an observed
                        one. It only grows, and does so before the new column is written.

    a table's feed      agrees with the row's records (`percola.maintenance.feed_rules`).

A row that changes too often to be read twice alike is counted as unsettled, and not reported. A
wrong state that ends before it has been read twice may be missed; only a second mistake could end
it.

Memory use is a few hundred entries and the largest row. Each range of rows is checked by itself
(`percola.ranges`): what spans two rows is looked up, wherever the other one is.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
from percola.maintenance.feed_rules import FeedPart, FeedRules, feed_parts
from percola.maintenance.row_rules import (
    Columns,
    Entries,
    Finding,
    RowEntries,
    Severity,
    judge,
)
from percola.ranges import HERE, Runner, TableRange, whole
from percola.repository import Repository
from percola.schema import Column, Schema
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext
from percola.transactions.lock_resolver import JOBS_TABLE

__all__ = ["Counts", "Finding", "Severity", "check"]

_READINGS: Final = 64
_REMEMBERED: Final = 10_000
_PROGRESS: Final = 500
_KINDS: Final = (Kind.LOCK, Kind.NOTIFY, Kind.FAILED, Kind.WRITE, Kind.DATA)
"""In the order in which entries turn into one another: see above."""
_LIMITS: Final = {Kind.DATA: 16}
"""Entries per call, for kinds that differ from the default: data may be large."""

MOST_FINDINGS: Final = 10_000
"""How many findings a task of Spark returns of its range, unless it is told."""

_Item = tuple[bytes, Kind, bytes, int, bytes]
"""An entry of the scan: row, kind, column, timestamp, value."""


@dataclass(slots=True)
class Counts:
    """Progress of a check.

    Attributes:
        tables: tables whose scan has begun.
        rows: rows with an entry of any kind.
        cells: cells with an entry of any kind, including internal columns.
        writes: write records.
        data: separately stored values; small ones are in their write records.
        notifications: notify entries: changes that observers have yet to handle.
        failures: dead-lettered changes.
        pending: locks of live processes: transactions that are committing.
        left: locks of dead processes, which the next reader resolves.
        unsettled: rows that looked wrong, but changed too often to be judged.
        errors: findings of violated rules.
        notes: findings that are unusual but harmless.
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


_SUMMED: Final = tuple(
    one.name for one in dataclasses.fields(Counts) if one.name not in ("tables", "last_ts")
)


def check(
    repo: Repository,
    *,
    counts: Counts | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
    runner: Runner = HERE,
    most: int = MOST_FINDINGS,
) -> Iterator[Finding]:
    """Scan the whole repository, and report states that the protocol never leaves behind.

    It only reads: it resolves, repairs and blocks nothing, and others may read and write. Their
    changes are judged in the state that the scan finds.

    Args:
        counts: updated during the scan.
        progress: called with the counts every few hundred rows.
        runner: who scans: this process by default, or Spark (`percola.spark.OnSpark`), which
            finds the same, and returns it once all is scanned.
        most: how many findings tasks of Spark return of a range's rows, and as many of its feed;
            all are counted.

    Raises StoreError if the store cannot be read.
    """
    context = repo.context
    counts = Counts() if counts is None else counts
    counts.last_ts = context.oracle.read_timestamp()
    ranges = runner.cut(context.store, whole(sorted(table.name for table in repo.schema)))
    feeds = feed_parts(context.store, counts.last_ts, ranges)
    work = _CheckRange(repo.schema, counts.last_ts, feeds, most)
    cut = Counter(one.table for one in ranges)
    parts: dict[int, _Part] = {}
    later: dict[str, list[list[Finding]]] = {}
    told = 0
    for number, part in runner.run(context, ranges, work, title="Checking"):
        table = ranges[number].table
        # The feed of a table is one, and its findings come after those of all the table's rows.
        for before in [name for name in later if name != table]:
            yield from _in_order(later.pop(before))
        _count(counts, parts, number, part, ranges)
        yield from part.of_rows
        if part.of_feed:
            if cut[table] == 1:
                yield from part.of_feed
            else:
                later.setdefault(table, []).append(part.of_feed)
        part.of_rows, part.of_feed = [], []
        if counts.rows - told >= _PROGRESS:
            told = counts.rows
            progress(counts)
    for lists in later.values():
        yield from _in_order(lists)
    progress(counts)


@dataclass(slots=True)
class _Part:
    """What a range's scan has found so far; the reader takes the findings that it has seen."""

    counts: Counts = field(default_factory=Counts)
    of_rows: list[Finding] = field(default_factory=list)
    of_feed: list[Finding] = field(default_factory=list)


def _count(
    counts: Counts,
    parts: dict[int, _Part],
    number: int,
    part: _Part,
    ranges: Sequence[TableRange],
) -> None:
    """Update the sum over all ranges, one of which is new or has gone on."""
    parts[number] = part
    counts.tables = len({ranges[one].table for one in parts})
    for name in _SUMMED:
        setattr(counts, name, sum(getattr(one.counts, name) for one in parts.values()))


def _in_order(lists: Sequence[list[Finding]]) -> Iterator[Finding]:
    """The findings of a feed from several ranges, as one reader of it meets them."""
    return heapq.merge(*lists, key=lambda one: (one.ts, one.cell.row))


@dataclass(frozen=True, slots=True)
class _CheckRange:
    """Scans one range."""

    schema: Schema
    last_ts: int
    feeds: Sequence[FeedPart]
    most: int

    def __call__(
        self, context: TransactionContext, number: int, one: TableRange
    ) -> Generator[_Part]:
        part = _Part()
        walk = _Walk(context, self.schema, part.counts, self.last_ts)
        table, start, end = one
        feed = FeedRules(context.store, table)
        for row, entries in walk.rows(table, start, end):
            found = walk.take_damaged()
            walk.count(table, row, entries)
            if next(walk.examine(table, row, entries), None) is not None:
                found += walk.confirm(table, row)
            found += feed.judge_row(row, entries)
            if found:
                part.of_rows += walk.counted(found)[: self.most - len(part.of_rows)]
            if found or part.counts.rows % _PROGRESS == 0:
                yield part
        found = [*walk.take_damaged(), *feed.judge_index()]
        part.of_rows += walk.counted(found)[: self.most - len(part.of_rows)]
        for finding in feed.judge_entries(self.feeds[number]):
            part.of_feed += walk.counted([finding])[: self.most - len(part.of_feed)]
            if len(part.of_feed) >= _PROGRESS:
                yield part
        yield part


class _Walk:
    """The scan of one range: its reads, its counts, and the primaries that it has seen."""

    def __init__(
        self, context: TransactionContext, schema: Schema, counts: Counts, last_ts: int
    ) -> None:
        self._context = context
        self._store = context.store
        self._schema = schema
        self._last_ts = last_ts
        self._columns = Columns(schema)
        self._missing: set[tuple[str, bytes]] = set()
        self._primaries: set[tuple[Cell, int]] = set()
        self._alive: dict[str, bool] = {}
        self._damaged: list[Finding] = []
        self.counts = counts

    # --- Reading ------------------------------------------------------------------------

    def rows(self, table: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, RowEntries]]:
        """Every row of a range with all its entries, read kind by kind."""
        streams = [
            self._tolerantly(table, self._entries(table, kind, start, end)) for kind in _KINDS
        ]
        merged = heapq.merge(*streams, key=lambda item: item[0])
        for row, items in itertools.groupby(merged, key=lambda item: item[0]):
            yield row, _gathered(items)

    def _entries(
        self, table: str, kind: Kind, start: bytes = b"", end: bytes = b""
    ) -> Iterator[_Item]:
        limit = _LIMITS.get(kind, 256)
        for cell, ts, raw in walk_kind(
            self._store, kind, table, start, end, first=limit, limit=limit
        ):
            yield cell.row, kind, cell.column, ts, raw
            if kind is Kind.LOCK:
                # The list of locks has one per cell; there must not be more, but check.
                for other, record in self._store.entries(cell, Kind.LOCK, 0, MAX_TS):
                    if other != ts:
                        yield cell.row, kind, cell.column, other, record

    def _tolerantly(self, table: str, stream: Iterator[_Item]) -> Iterator[_Item]:
        """The stream up to the first damaged key, which is a finding; the rest is not read."""
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
        """Read the whole row again."""
        items = [item for kind in _KINDS for item in self._entries(table, kind, row, row + b"\0")]
        return _gathered(items)

    def last_ts(self, seen: int) -> int:
        """The last timestamp handed out: at least `seen`, or read after the call began."""
        if seen > self._last_ts:
            self._last_ts = self._context.oracle.read_timestamp()
        return self._last_ts

    # --- Judging ------------------------------------------------------------------------

    def examine(self, table: str, row: bytes, entries: RowEntries) -> Iterator[Finding]:
        """The findings of a row, assuming that its entries were read at one moment."""
        self._learn_columns(table, entries)
        volatile = self._store.has_volatile_writes
        yield from judge(table, row, entries, self._columns, self.last_ts, volatile=volatile)
        for column, one in entries.items():
            for start_ts, raw in one.lock.items():
                try:
                    lock = decode_lock(raw)
                except DamagedRecordError:
                    continue  # Judged already.
                yield from self._judge_primary(Cell(table, row, column), start_ts, lock)

    def confirm(self, table: str, row: bytes) -> Iterator[Finding]:
        """The findings of a row that was the same in two readings."""
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
                return  # A damaged key, which the scan reports as well.
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
                return  # Reported with its own cell.
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
                # A process that was considered dead may lock once more after garbage collection
                # has removed its rollback; it then notices, and commits nothing.
                message += ": below the safe point such a transaction commits no more."
                yield Finding("late-lock", cell, start_ts, message, Severity.NOTE)
            elif self._store.has_volatile_writes and primary.table != JOBS_TABLE:
                message += (
                    ": a server of the store has ended before it had stored the primary's lock, so "
                    "the transaction will not commit. Who meets this lock rolls it back."
                )
                yield Finding("lost-primary-lock", cell, start_ts, message, Severity.NOTE)
            else:
                yield Finding("lock-without-primary", cell, start_ts, message + ".")
            return
        if len(self._primaries) >= _REMEMBERED:
            self._primaries.clear()
        self._primaries.add((primary, start_ts))

    def _learn_columns(self, table: str, entries: RowEntries) -> None:
        """Read the schema again if a column is not in it, or not as an observed one.

        Another program may have added it, or declared it as observed, since.
        """
        for name, one in entries.items():
            column = acknowledged_column(name) or name
            found = self._columns.of(table, column)
            is_notified = name != column or bool(one.notify or one.lock)
            if isinstance(found, Column) and is_notified and not found.observed:
                found = None
            if found is None and (table, column) not in self._missing:
                stored = stored_schema(self._store)
                self._columns = Columns(stored.with_codecs_of(self._schema))
                if len(self._missing) < _REMEMBERED:
                    self._missing.add((table, column))

    # --- Counting -----------------------------------------------------------------------

    def count(self, table: str, row: bytes, entries: RowEntries) -> None:
        """Count a row's entries."""
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

    def counted(self, findings: list[Finding]) -> list[Finding]:
        """The findings, once they have been counted."""
        errors = sum(one.severity is Severity.ERROR for one in findings)
        self.counts.errors += errors
        self.counts.notes += len(findings) - errors
        return findings

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
    """Whether a write record is the outcome of the transaction that began at `start_ts`."""
    try:
        record = decode_write(raw)
    except DamagedRecordError:
        return True  # Reported with its own cell; it may be this one.
    return record.start_ts == start_ts and (record.op is not Op.ROLLBACK or ts == start_ts)
