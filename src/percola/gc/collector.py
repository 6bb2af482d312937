"""§2.1: the garbage collector, which removes versions that no reader can see any more (P12).

The *safe point* is a timestamp below which the repository can no longer be read. A cycle of the
collector raises it, and then removes what no reader at or above it can see:

    choose     as new as the retention allows, but no newer than now, the oldest active snapshot
               and the oldest retention hold (`percola.gc.retention_holds`)
    resolve    every lock below it is rolled forward or back: if its primary's record were removed
               first, its transaction's outcome would be lost. A live transaction's lock is not
               waited for: the safe point stays below it
    raise      durably; from here on reads below the safe point fail with SnapshotTooOldError, and
               so does a transaction that began below it and has not yet locked all its cells
    forget     the entries of the feeds up to it (`percola.feed`); where a feed is stored in the
               changed rows, with the garbage of these
    walk       row by row: keep each cell's newest version at or below the safe point

The steps that read whole tables, resolve and walk, are work on ranges of rows (`percola.ranges`),
in this process or by tasks of Spark. The safe point is chosen and raised in between, by the driver
alone.

Why that is safe:

* A reader checks the safe point after it has taken its store snapshot, so it fails rather than
  miss removed versions; tracking active snapshots only makes that rare.
* A committing transaction checks it after its last prewrite, and draws its commit_ts after that
  (rule P2). If its locks came after the collector's scan for locks, then either the check fails,
  or every record it had to conflict with was still there when it locked, and its commit_ts is
  above the safe point: its records stay for as long as its locks may.
* `percola.gc.rules` defines what is removed. A delete that an observer has not handled yet stays,
  for it shows the observer that the cell has changed.
* A rollback record stops a late prewrite of its transaction. It is removed once the safe point
  has been above it for as long as a call may be in flight (`Store.latest_arrival`; 0 on an
  embedded store), by the clock of one machine (`percola.gc.arrivals`). For the retention clocks
  are compared, but one that is ahead makes nothing older (`percola.gc.time_log`).

Every step can be repeated, interrupted and run by several collectors at once. A cycle keeps its
positions in the system table, and the next one begins with what it has left, so a collector that is
killed again and again still reaches every row:

    @percola["gc/walk"]           the walk that is under way, or was given up: see `percola.ranges`
    @percola["gc/walk"].@done     1 → the safe point of the last walk that came to its end
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from percola.catalog import RUNS, columns_of, stored_schema
from percola.cells import MAX_TS, Cell, Kind
from percola.errors import ConflictingOptionsError, DamagedRecordError
from percola.gc.arrivals import Arrivals
from percola.gc.retention_holds import RETENTION, holds
from percola.gc.rules import Records, RowGarbage, forgotten_row, garbage_of_row
from percola.gc.time_log import TimeLog
from percola.ranges import (
    HERE,
    Counts,
    Cursor,
    Runner,
    TableRange,
    Unfinished,
    Walk,
    turned,
    whole,
)
from percola.store.base import (
    MOST_CHANGES,
    SYSTEM_TABLE,
    Condition,
    Delete,
    Put,
    RowMutation,
    Store,
)
from percola.store.walks import scan_writes, walk_kind
from percola.transactions.context import TransactionContext
from percola.transactions.settled import list_pending

_WALK: Final = b"gc/walk"
_DONE: Final = Cell(SYSTEM_TABLE, _WALK, b"@done")
_DONE_TS: Final = 1
_TURN: Final = Cell(SYSTEM_TABLE, b"gc", b"")
"""Its advisory lock is that of collecting."""
_RECORDS: Final = 1_000
_VERSIONS: Final = 1_000
"""The most records of a cell that are read at once: it may have millions."""
_LONGEST_REST: Final = 10.0
"""Seconds: the store may not have answered for long, or the process have been stopped."""


@dataclass(slots=True)
class Collected:
    """What a cycle of garbage collection did, or has done so far.

    Attributes:
        safe_point: the oldest timestamp that can be read now.
        held_back: why it is not newer, as a text; empty if it is as new as the retention allows.
        complete: whether the whole repository has been walked at this safe point.
        cells: how many cells were examined.
        versions: how many superseded values and deletes were removed.
        deleted: how many cells whose newest version was a delete were removed.
        records: how many rollback and lock-only records were removed.
        acknowledgments: how many acknowledgments of removed cells were removed.
        locks: how many locks of ended transactions were resolved.
        changes: how many feed entries were removed because no reader can request them any more.
        index: how many entries of the index of feeds were removed, or replaced as committed.
    """

    safe_point: int = 0
    held_back: str = ""
    complete: bool = False
    cells: int = 0
    versions: int = 0
    deleted: int = 0
    records: int = 0
    acknowledgments: int = 0
    locks: int = 0
    changes: int = 0
    index: int = 0

    @property
    def removed(self) -> dict[str, int]:
        """The numbers of removed entries, by name."""
        names = ("versions", "deleted", "records", "acknowledgments", "locks", "changes", "index")
        return {name: getattr(self, name) for name in names}


class GarbageCollector:
    """Collects the garbage of one repository.

    Args:
        context: the repository's.
        retention: how many seconds a version stays readable after it was superseded. It is
            computed from a log of times and timestamps that collections write, so the first cycle
            with a new retention may keep more.
        share: the fraction of the time in which it works, above 0 and up to 1.
        runner: who works on the tables: this process, or Spark (`percola.spark.OnSpark`).

    Raises ConflictingOptionsError for an invalid retention or share.
    """

    def __init__(
        self,
        context: TransactionContext,
        *,
        retention: float = RETENTION,
        share: float = 1.0,
        runner: Runner = HERE,
    ) -> None:
        if not isinstance(retention, int | float) or not retention >= 0:
            raise ConflictingOptionsError(
                f"A retention of {retention!r} is not a number of seconds from 0 up."
            )
        if not 0 < share <= 1:
            raise ConflictingOptionsError(f"A share of {share} is not above 0 and up to 1.")
        self._context = context
        self._store = context.store
        self._share = share
        self._runner = runner
        self._time_log = TimeLog(self._store, context.clock, retention) if retention else None
        self._arrivals = Arrivals(self._store, context.clock)

    def collect(
        self,
        *,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[Collected], None] = lambda collected: None,
    ) -> Collected:
        """Run one cycle; return at once if one has completed at the same safe point.

        `stopped` and `progress` are called after every batch. Raises StoreError.
        """
        collected = Collected()
        # Draw this timestamp before reading the active snapshots: later ones read above it. Also
        # before reading the tables: they contain all commits up to it, and their locks.
        latest = self._context.oracle.read_timestamp()
        schema = stored_schema(self._store)
        tables = sorted(table.name for table in schema)
        chosen, collected.held_back = self._choose(latest, tables, collected)
        if chosen > self._store.safe_point():
            # This announces floors of pending entries, and the one after it brings them into force:
            # the safe point takes longer than they need in between.
            self._list_pending(tables, collected, stopped, progress)
            # Once more, as this and the look for locks may have taken minutes.
            chosen, collected.held_back = self._unheld(chosen, collected.held_back)
            self._store.raise_safe_point(chosen)
        safe_point = collected.safe_point = self._store.safe_point()
        settled = self._arrivals.settled(safe_point)
        if self._done() >= safe_point:
            collected.complete = True
            return collected
        observed: dict[str, set[bytes]] = {table: set() for table in tables}
        for (name, column), is_observed in columns_of(schema).items():
            if is_observed:
                observed[name].add(column)
        self._forget(tables, collected, stopped, progress)
        work = _CollectRange(
            Walk(self._store, self._context.clock, _WALK),
            safe_point,
            observed,
            settled,
            self._share,
        )
        self._walk(work, tables, collected, stopped, progress)
        return collected

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Take the advisory lock for collecting, to avoid duplicate work; yields success."""
        coordination = self._context.coordination
        mine = coordination.try_lock(_TURN.table, _TURN.row)
        try:
            yield mine
        finally:
            if mine:
                coordination.unlock(_TURN.table, _TURN.row)

    # --- Which timestamp ----------------------------------------------------------------

    def _choose(self, latest: int, tables: list[str], collected: Collected) -> tuple[int, str]:
        """The new safe point, and the reason why it is not newer."""
        chosen, why = self._unheld(*self._retained(latest))
        if chosen <= self._store.safe_point():
            # It will not be raised, and the locks below it have been resolved. Each worker comes
            # here once a minute, and finding locks may take reading whole tables.
            return chosen, why
        ranges = self._runner.cut(self._store, whole(tables))
        found: dict[int, _Locks] = {}
        for number, locks in self._runner.run(
            self._context, ranges, _ResolveRange(chosen), title="Resolving locks"
        ):
            found[number] = locks
        collected.locks += sum(locks.resolved for locks in found.values())
        left = [locks.oldest for locks in found.values() if locks.oldest is not None]
        if left:
            chosen = min(left)
            why = f"the transaction that started at {chosen} is still committing"
        return chosen, why

    def _unheld(self, chosen: int, why: str) -> tuple[int, str]:
        """The same, unless an active snapshot or a retention hold is older now."""
        held = self._context.coordination.oldest_held()
        if held is not None and held < chosen:
            readers = self._context.coordination.named_readers(held)
            by = f" by {readers}" if readers else ""
            chosen, why = held, f"a snapshot at {held} is still being read{by}"
        for hold in holds(self._store, self._context.clock, remove_expired=True)[:1]:
            if hold.ts < chosen:
                chosen, why = hold.ts, f"{hold.name!r} holds {hold.ts} back"
        return chosen, why

    def _retained(self, latest: int) -> tuple[int, str]:
        """The newest timestamp older than the retention, and why it is not newer."""
        return self._time_log.newest_older(latest) if self._time_log else (latest, "")

    # --- The walk -----------------------------------------------------------------------

    def _forget(
        self,
        tables: list[str],
        collected: Collected,
        stopped: Callable[[], bool],
        progress: Callable[[Collected], None],
    ) -> None:
        if self._store.has_feed_in_rows:
            # Who collects a range forgets its changes; the index is no part of a range.
            index = self._store.feed_index
            if index is None:
                return
            self._list_pending(tables, collected, stopped, progress)
            for table in tables:
                for gone in index.forget(table, collected.safe_point):
                    collected.index += gone
                    progress(collected)
                    if stopped():
                        return
            return
        for table in tables:
            while gone := self._store.forget_changes(table, collected.safe_point):
                collected.changes += gone
                progress(collected)
                if stopped():
                    return

    def _list_pending(
        self,
        tables: list[str],
        collected: Collected,
        stopped: Callable[[], bool],
        progress: Callable[[Collected], None],
    ) -> None:
        """Keep the pending entries of the index of feeds few where nobody follows."""
        for table in tables:
            before = collected.index
            for gone in list_pending(self._context, table):
                collected.index = before + gone
                progress(collected)
                if stopped():
                    return

    def _walk(
        self,
        work: _CollectRange,
        tables: list[str],
        collected: Collected,
        stopped: Callable[[], bool],
        progress: Callable[[Collected], None],
    ) -> None:
        """Walk all tables once, beginning with what the last walk has left."""
        if stopped():
            return
        walk = work.walk
        try:
            left = walk.unfinished()
        except DamagedRecordError:
            left = None  # It only says where to begin, and is replaced.
        ranges = self._runner.cut(self._store, turned(left or Unfinished({}), tables))
        # Another collector may have begun at the same moment: then its positions are the ones that
        # are stored, and this one collects without any.
        walk.begin({}, ranges)
        parts: dict[int, Counts] = {}
        running = self._runner.run(self._context, ranges, work, title="Collecting garbage")
        with contextlib.closing(running):
            for number, counts in running:
                parts[number] = counts
                for name, count in sum(parts.values(), Counter()).items():
                    setattr(collected, name, count)
                progress(collected)
                if stopped():
                    return
        done = Put(Kind.DATA, _DONE.column, _DONE_TS, b"%d" % work.safe_point)
        if not walk.end(done):
            self._store.mutate([RowMutation(_DONE.table, _DONE.row, (), [done])])
        collected.complete = True

    def _done(self) -> int:
        """The safe point of the last walk that came to its end; 0 if there was none."""
        found = self._store.entries(_DONE, Kind.DATA, _DONE_TS, _DONE_TS)
        return int(found[0][1]) if found else 0


# --- Work on a range ----------------------------------------------------------------------


@dataclass(slots=True)
class _Locks:
    """How many locks of a range were resolved, and the oldest start_ts of those that were not."""

    resolved: int = 0
    oldest: int | None = None


@dataclass(frozen=True, slots=True)
class _ResolveRange:
    """Resolves the locks of transactions that began before a timestamp, if they have ended."""

    chosen: int

    def __call__(
        self, context: TransactionContext, number: int, one: TableRange
    ) -> Generator[_Locks]:
        older = (one for one in walk_kind(context.store, Kind.LOCK, *one) if one[1] < self.chosen)
        resolved, undecided = context.resolver.try_resolve_all(older)
        yield _Locks(resolved, min(undecided, default=None))


@dataclass(frozen=True, slots=True)
class _CollectRange:
    """Removes the garbage of a range, from the position that is stored of it.

    Of each batch of rows first the entries of the feed, where they are stored in the rows.
    """

    walk: Walk
    safe_point: int
    observed: Mapping[str, Set[bytes]]
    settled: int
    share: float

    def __call__(
        self, context: TransactionContext, number: int, one: TableRange
    ) -> Generator[Counts]:
        store, clock = context.store, context.clock
        cursor = Cursor(self.walk.on(store, clock), number, one)
        try:
            while (position := cursor.following) is not None:
                began = clock.monotonic()
                cells, row = scan_writes(
                    store, one.table, position, one.end, _RECORDS, versions=_VERSIONS
                )
                # Of these rows only: each call reads what earlier ones have removed in its rows,
                # until the store compacts them.
                while store.has_feed_in_rows and (
                    gone := store.forget_changes(
                        one.table, self.safe_point, start=position, end=row or one.end
                    )
                ):
                    cursor.counts["changes"] += gone
                    yield cursor.counts
                self._remove(store, cells, cursor.counts)
                cursor.move(row)
                if self.share < 1:
                    rest = (clock.monotonic() - began) * (1 - self.share) / self.share
                    clock.sleep(min(_LONGEST_REST, rest))
                yield cursor.counts
        except GeneratorExit:
            cursor.save()
            raise
        yield cursor.counts

    def _remove(
        self, store: Store, cells: list[tuple[Cell, list[tuple[int, bytes]]]], counts: Counts
    ) -> None:
        mutations, vanishing = [], dict[tuple[str, bytes], RowGarbage]()
        for (table, row), group in itertools.groupby(cells, key=lambda one: one[0][:2]):
            columns = [(cell.column, records) for cell, records in group]
            counts["cells"] += len(columns)
            if table == RUNS.name:
                garbage = forgotten_row(columns, self.safe_point, settled=self.settled)
            else:
                garbage = garbage_of_row(
                    columns,
                    self.safe_point,
                    self.observed[table],
                    settled=self.settled,
                    older=functools.partial(_older, store, table, row),
                )
            if changes := [*reversed(garbage.changes), *garbage.last]:
                *before, last = _parts(changes)
                for part in before:  # One call each: mutations of one call have no order.
                    store.mutate([RowMutation(table, row, (), part)])
                mutations.append(RowMutation(table, row, (), last))
            if garbage.vanishing:
                vanishing[table, row] = garbage
            counts["versions"] += garbage.versions
            counts["deleted"] += garbage.deleted
            counts["records"] += garbage.records
            counts["acknowledgments"] += garbage.acknowledgments
        for at in _answered(store, {at: one.vanishing for at, one in vanishing.items()}):
            garbage = vanishing[at]
            # A change since that check puts a notify entry, and then the delete stays.
            conditions = [
                Condition(False, Kind.NOTIFY, column, 0, MAX_TS) for column in garbage.vanishing
            ]
            mutations.append(RowMutation(*at, conditions, garbage.vanishing_changes))
            counts["deleted"] += len(garbage.vanishing)
            gone = {change.column for change in garbage.vanishing_changes}
            counts["acknowledgments"] += len(gone - set(garbage.vanishing))
        if mutations:
            store.mutate(mutations)


def _answered(
    store: Store, vanishing: Mapping[tuple[str, bytes], Sequence[bytes]]
) -> list[tuple[str, bytes]]:
    """The rows in which no change of these columns is unanswered, and none is dead-lettered."""
    # The notify entries first: dead-lettering replaces one by a `failed` entry in one mutation.
    cells = [Cell(*at, column) for at, columns in vanishing.items() for column in columns]
    notified = store.entries_of(cells, Kind.NOTIFY, 0, MAX_TS) if cells else []
    dirty = {cell[:2] for cell, found in zip(cells, notified, strict=True) if found}
    rows = [at for at in vanishing if at not in dirty]
    # Of the rows of one range; each by itself where that would read all else of those in between.
    spans = [(at, at) for at in (rows if store.has_notify_table else ())]
    if rows and not spans:
        spans = [(rows[0], rows[-1])]
    dead = {
        cell[:2]
        for (table, first), (_, last) in spans
        for cell, _, _ in walk_kind(store, Kind.FAILED, table, first, last + b"\0")
    }
    return [at for at in rows if at not in dead]


def _older(
    store: Store, table: str, row: bytes, column: bytes, records: Records, garbage: RowGarbage
) -> Iterable[Records]:
    """The records of a cell that the scan has left out; see `percola.gc.rules.Older`."""
    if len(records) < _VERSIONS:
        return ()
    return _pages(store, Cell(table, row, column), records, garbage)


def _pages(store: Store, cell: Cell, records: Records, garbage: RowGarbage) -> Iterator[Records]:
    while len(records) >= _VERSIONS:
        if len(garbage.changes) >= MOST_CHANGES:
            for part in _parts(garbage.changes[::-1]):
                store.mutate([RowMutation(cell.table, cell.row, (), part)])
            garbage.changes.clear()
        records = store.entries(cell, Kind.WRITE, 0, records[-1][0] - 1, _VERSIONS)
        yield records


def _parts(changes: list[Put | Delete]) -> Iterator[list[Put | Delete]]:
    """Split the changes of one row, in their order, if they are more than a store accepts at once.

    A reader, or a collector that resumes after this one was killed, may see the row in between. So
    a long value goes with its record, which comes right after it; a delete after all that it hides;
    and acknowledgments last.
    """
    at = 0
    while at < len(changes):
        end = at + MOST_CHANGES
        if end < len(changes) and changes[end - 1].kind is Kind.DATA:
            end -= 1
        yield changes[at:end]
        at = end
