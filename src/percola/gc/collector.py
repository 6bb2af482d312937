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
    forget     the entries of the feeds up to it (`percola.feed`)
    walk       row by row: keep each cell's newest version at or below the safe point

Why that is safe:

* A reader checks the safe point after it has taken its store snapshot, so it fails rather than
  miss removed versions; tracking active snapshots only makes that rare.
* A committing transaction checks it after its last prewrite, and draws its commit_ts after that
  (rule P2). If its locks came after the collector's scan for locks, then either the check fails,
  or every record it had to conflict with was still there when it locked, and its commit_ts is
  above the safe point: its records stay for as long as its locks may.
* `percola.gc.rules` defines what is removed. A delete that an observer has not handled yet stays,
  for it shows the observer that the cell has changed.
* A rollback record stops a late prewrite of its transaction. It is removed once this collector
  has itself seen the safe point above it for as long as a call may be in flight
  (`Store.latest_arrival`; 0 on an embedded store). No two clocks are compared for that. For
  the retention they are, but one clock that is ahead makes nothing older (`percola.gc.time_log`).

Every step can be repeated, interrupted and run by several collectors at once. A cycle keeps a
cursor in the system table and walks the tables from there, so a collector that is killed again and
again still reaches every row.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from percola.catalog import SYSTEM_TABLE, columns_of, stored_schema
from percola.cells import MAX_TS, Cell, Kind, acknowledged_column
from percola.errors import ConflictingOptionsError
from percola.gc.retention_holds import RETENTION, holds
from percola.gc.rules import garbage_of_row
from percola.gc.time_log import TimeLog
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.store.walks import scan_writes, walk_kind
from percola.transactions.context import TransactionContext

_CURSOR: Final = Cell(SYSTEM_TABLE, b"gc", b"@cursor")
_CURSOR_TS: Final = 1
_RECORDS: Final = 1_000
_CHANGES: Final = 10_000
"""The most changes of one row in one mutation: stores limit that, Bigtable to 100,000."""

_SAVED_EVERY: Final = 1.0


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

    @property
    def removed(self) -> dict[str, int]:
        """The numbers of removed entries, by name."""
        names = ("versions", "deleted", "records", "acknowledgments", "locks", "changes")
        return {name: getattr(self, name) for name in names}


class GarbageCollector:
    """Collects the garbage of one repository.

    Args:
        context: the repository's.
        retention: how many seconds a version stays readable after it was superseded. It is
            computed from a log of times and timestamps that collections write, so the first cycle
            with a new retention may keep more.
        share: the fraction of the time in which it works, above 0 and up to 1.

    Raises ConflictingOptionsError for an invalid retention or share.
    """

    def __init__(
        self, context: TransactionContext, *, retention: float = RETENTION, share: float = 1.0
    ) -> None:
        if not retention >= 0:
            raise ConflictingOptionsError(
                f"A retention of {retention} is not a number of seconds from 0 up."
            )
        if not 0 < share <= 1:
            raise ConflictingOptionsError(f"A share of {share} is not above 0 and up to 1.")
        self._context = context
        self._store = context.store
        self._share = share
        self._time_log = TimeLog(self._store, context.clock, retention) if retention else None
        # Safe points, and the times at which this collector first saw them.
        self._watched: list[tuple[int, float]] = []

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
            self._store.raise_safe_point(chosen)
        safe_point = collected.safe_point = self._store.safe_point()
        settled = self._settled(safe_point)
        done, position = self._load_cursor()
        if done >= safe_point:
            collected.complete = True
            return collected
        observed: dict[str, set[bytes]] = {table: set() for table in tables}
        for (name, column), is_observed in columns_of(schema).items():
            if is_observed:
                observed[name].add(column)
        self._walk(observed, position, settled, collected, stopped, progress)
        return collected

    def _settled(self, safe_point: int) -> int:
        """The newest safe point that is older than any call that may still be in flight."""
        now = self._context.clock.monotonic()
        self._watched.append((safe_point, now))
        stood = [at for at, since in self._watched if now - since >= self._store.latest_arrival]
        settled = max(stood, default=0)
        self._watched = [(at, since) for at, since in self._watched if at >= settled]
        return settled

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Take the advisory lock for collecting, to avoid duplicate work; yields success."""
        coordination = self._context.coordination
        mine = coordination.try_lock(_CURSOR.table, _CURSOR.row)
        try:
            yield mine
        finally:
            if mine:
                coordination.unlock(_CURSOR.table, _CURSOR.row)

    # --- Which timestamp ----------------------------------------------------------------

    def _choose(self, latest: int, tables: list[str], collected: Collected) -> tuple[int, str]:
        """The new safe point, and the reason why it is not newer."""
        chosen, why = self._retained(latest)
        held = self._context.coordination.oldest_held()
        if held is not None and held < chosen:
            chosen, why = held, f"a snapshot at {held} is still being read"
        for hold in holds(self._store, self._context.clock)[:1]:
            if hold.ts < chosen:
                chosen, why = hold.ts, f"{hold.name!r} holds {hold.ts} back"
        for table in tables:
            for cell, start_ts, raw in walk_kind(self._store, Kind.LOCK, table):
                if start_ts < chosen and not self._resolved(cell, start_ts, raw, collected):
                    why = f"the transaction that started at {start_ts} is still committing"
                    chosen = start_ts
        return chosen, why

    def _resolved(self, cell: Cell, start_ts: int, raw: bytes, collected: Collected) -> bool:
        resolved = self._context.resolver.try_resolve(cell, start_ts, raw)
        collected.locks += resolved
        return resolved

    def _retained(self, latest: int) -> tuple[int, str]:
        """The newest timestamp older than the retention, and why it is not newer."""
        return self._time_log.newest_older(latest) if self._time_log else (latest, "")

    # --- The walk -----------------------------------------------------------------------

    def _walk(
        self,
        observed: dict[str, set[bytes]],
        position: tuple[str, bytes],
        settled: int,
        collected: Collected,
        stopped: Callable[[], bool],
        progress: Callable[[Collected], None],
    ) -> None:
        """Walk all tables once, from `position`, saving the cursor on the way."""
        clock = self._context.clock
        for table in observed:
            while gone := self._store.forget_changes(table, collected.safe_point):
                collected.changes += gone
                progress(collected)
                if stopped():
                    return
        saved = began = clock.monotonic()
        for table, start, end in _round(list(observed), *position):
            row: bytes | None = start
            while row is not None:
                if stopped():
                    self._save_cursor(0, table, row)
                    return
                cells, row = scan_writes(self._store, table, row, end, _RECORDS)
                self._remove(cells, observed[table], settled, collected)
                progress(collected)
                now = clock.monotonic()
                if row is not None and now - saved >= _SAVED_EVERY:
                    self._save_cursor(0, table, row)
                    saved = now
                if self._share < 1:
                    clock.sleep((now - began) * (1 - self._share) / self._share)
                began = clock.monotonic()
        self._save_cursor(collected.safe_point, "", b"")
        collected.complete = True

    def _remove(
        self,
        cells: list[tuple[Cell, list[tuple[int, bytes]]]],
        observed: set[bytes],
        settled: int,
        collected: Collected,
    ) -> None:
        mutations = []
        for (table, row), group in itertools.groupby(cells, key=lambda one: one[0][:2]):
            columns = [(cell.column, records) for cell, records in group]
            collected.cells += len(columns)
            garbage = garbage_of_row(columns, collected.safe_point, observed, settled=settled)
            if garbage.changes:
                *before, last = _parts(garbage.changes)
                for part in before:  # One call each: mutations of one call have no order.
                    self._store.mutate([RowMutation(table, row, (), part)])
                mutations.append(RowMutation(table, row, (), last))
            if garbage.vanishing and self._is_answered(table, row, garbage.vanishing):
                # A change since that check puts a notify entry, and then the delete stays.
                conditions = [
                    Condition(False, Kind.NOTIFY, column, 0, MAX_TS) for column in garbage.vanishing
                ]
                mutations.append(RowMutation(table, row, conditions, garbage.vanishing_changes))
                collected.deleted += len(garbage.vanishing)
                gone = {change.column for change in garbage.vanishing_changes}
                collected.acknowledgments += len(gone - set(garbage.vanishing))
            collected.versions += garbage.versions
            collected.deleted += garbage.deleted
            collected.records += garbage.records
            collected.acknowledgments += garbage.acknowledgments
        if mutations:
            self._store.mutate(mutations)

    def _is_answered(self, table: str, row: bytes, columns: list[bytes]) -> bool:
        """Whether no change of these columns is unanswered, and none in the row dead-lettered."""
        # The notify entries first: dead-lettering replaces one by a `failed` entry in one mutation.
        store = self._store
        for column in columns:
            if store.entries(Cell(table, row, column), Kind.NOTIFY, 0, MAX_TS):
                return False
        return not store.scan_kind(Kind.FAILED, table, row, row + b"\0", 1)[0]

    # --- The cursor ---------------------------------------------------------------------

    def _load_cursor(self) -> tuple[int, tuple[str, bytes]]:
        """The safe point of the last cycle (0 if it is incomplete), and where to resume."""
        found = self._store.entries(_CURSOR, Kind.DATA, _CURSOR_TS, _CURSOR_TS)
        if not found:
            return 0, ("", b"")
        cursor = json.loads(found[0][1])
        return cursor["done"], (cursor["table"], bytes.fromhex(cursor["row"]))

    def _save_cursor(self, done: int, table: str, row: bytes) -> None:
        text = json.dumps({"done": done, "table": table, "row": row.hex()}).encode()
        put = Put(Kind.DATA, _CURSOR.column, _CURSOR_TS, text)
        self._store.mutate([RowMutation(_CURSOR.table, _CURSOR.row, (), [put])])


def _parts(changes: list[Put | Delete]) -> Iterator[list[Put | Delete]]:
    """Split the changes of one row if there are more than a store accepts at once.

    A reader, or a collector that resumes after this one was killed, may see the row in between, so
    older versions are removed before newer ones, as a delete must outlive what it hides; a long
    value before its record, which is needed to find it; and acknowledgments last.
    """
    if len(changes) <= _CHANGES:
        yield changes
        return
    # The input has newest first, and each record before its value.
    ordered = changes[::-1]
    ordered.sort(key=lambda one: acknowledged_column(one.column) is not None)
    yield from (ordered[at : at + _CHANGES] for at in range(0, len(ordered), _CHANGES))


def _round(tables: list[str], table: str, row: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """All tables as (table, start, end), from a row of one table round to just before it."""
    if not row or table not in tables:
        yield from ((one, b"", b"") for one in tables)
        return
    at = tables.index(table)
    yield table, row, b""
    yield from ((one, b"", b"") for one in tables[at + 1 :] + tables[:at])
    yield table, b"", row
