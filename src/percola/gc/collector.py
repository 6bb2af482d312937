"""§2.1: the garbage collector, which removes versions that no reader can see any more (P12).

The *safe point* is a timestamp below which the repository can no longer be read. A cycle of the
collector raises it, and then removes what no reader at or above it can see:

    choose     as new as the retention allows, no newer than now, the oldest active reader and
               the oldest timestamp that is held back (`percola.gc.retention_holds`)
    resolve    every lock below it is rolled forward or back: were its primary's record removed
               first, nobody could tell any more what has become of its transaction. One that a
               live transaction holds is not waited for: the safe point stays below it
    raise      durably; from here on a reader below it gets SnapshotTooOldError, and so does a
               transaction that began below it and has not yet locked all that it writes
    forget     what the feeds list up to it (`percola.feed`)
    walk       row by row: of each cell the newest version at or below the safe point stays

Why that is safe:

* A reader checks the safe point after it has taken its store snapshot, so it fails rather than
  miss what was removed; the leases of active readers only make that rare.
* A committing transaction checks it after its last prewrite, and draws its commit_ts after that
  (rule P2). If its locks came after the collector's look for them, then either the check fails,
  or everything it was to conflict with was still there when it locked, and its commit_ts is
  above the safe point: its records stay for as long as its locks may.
* `percola.gc.rules` says what goes. A delete that an observer has yet to see stays, for the
  observer tells by it that the cell has changed.
* A rollback record is what a late prewrite of its transaction would meet. It goes once this very
  collector has watched the safe point stand above it for as long as a call may be under way
  (`Store.latest_arrival`; on an embedded store none is). No two clocks are compared for that. For
  the retention they are, but one clock that is ahead makes nothing older (`percola.gc.time_log`).

Everything can be repeated, stopped and run by several at once. A cycle keeps a cursor in the
system table and goes round the tables from there, so a collector that keeps being killed still
gets everywhere.
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
from percola.gc.retention_holds import holds
from percola.gc.rules import garbage_of_row
from percola.gc.time_log import TimeLog
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.transactions.snapshot import TransactionContext

RETENTION: Final = 24 * 3600.0
"""Seconds for which versions are kept unless somebody asks for something else."""

_CURSOR: Final = Cell(SYSTEM_TABLE, b"gc", b"@cursor")
_CURSOR_TS: Final = 1
_RECORDS: Final = 1_000
_CHANGES: Final = 10_000
"""How many changes of one row are made at once: stores bound that, Bigtable at 100,000."""

_SAVED_EVERY: Final = 1.0


@dataclass(slots=True)
class Collected:
    """What a cycle of garbage collection did, or has done so far.

    Attributes:
        safe_point: the oldest timestamp that can be read now.
        held_back: why it is not newer, in words; empty if it is as new as was asked for.
        complete: whether the whole repository has been walked at this safe point.
        cells: how many cells were looked at.
        versions: how many superseded values and deletes were removed.
        deleted: how many cells whose last word was a delete have vanished.
        records: how many rollback and lock-only records were removed.
        acknowledgments: how many acknowledgments of vanished cells were removed.
        locks: how many locks of ended transactions were resolved.
        changes: how many entries of feeds were removed: what no reader can ask for any more.
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
        """What was removed, by name."""
        names = ("versions", "deleted", "records", "acknowledgments", "locks", "changes")
        return {name: getattr(self, name) for name in names}


class GarbageCollector:
    """Collects the garbage of one repository.

    Args:
        services: the repository's.
        retention: how many seconds a version stays readable after it was superseded. The
            repository notes now and then which timestamp it is at; it reaches back as far as
            those notes, so the first cycle with a new retention may keep more.
        share: the share of the time in which it works rather than rests, above 0 and up to 1.

    Raises ConflictingOptionsError for a retention or share that cannot be.
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
        # Safe points, and since when this collector has seen them stand.
        self._watched: list[tuple[int, float]] = []

    def collect(
        self,
        *,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[Collected], None] = lambda collected: None,
    ) -> Collected:
        """Run one cycle; returns at once if there has been one at the same safe point.

        `stopped` is asked and `progress` called after every batch. Raises StoreError.
        """
        collected = Collected()
        # The timestamp before the leases: who begins to read after this reads above it. Before the
        # tables as well: what was committed by then is in one of them, and so are its locks.
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
        """The newest safe point that has stood for longer than any call may be under way."""
        now = self._context.clock.monotonic()
        self._watched.append((safe_point, now))
        stood = [at for at, since in self._watched if now - since >= self._store.latest_arrival]
        settled = max(stood, default=0)
        self._watched = [(at, since) for at, since in self._watched if at >= settled]
        return settled

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether this collector may work: several at once would do the same work twice."""
        coordination = self._context.coordination
        mine = coordination.try_lock(_CURSOR.table, _CURSOR.row)
        try:
            yield mine
        finally:
            if mine:
                coordination.unlock(_CURSOR.table, _CURSOR.row)

    # --- Which timestamp ----------------------------------------------------------------

    def _choose(self, latest: int, tables: list[str], collected: Collected) -> tuple[int, str]:
        """The new safe point, and what keeps it from being newer."""
        chosen, why = self._retained(latest)
        held = self._context.coordination.oldest_held()
        if held is not None and held < chosen:
            chosen, why = held, f"a snapshot at {held} is still being read"
        for hold in holds(self._store, self._context.clock)[:1]:
            if hold.ts < chosen:
                chosen, why = hold.ts, f"{hold.name!r} holds {hold.ts} back"
        for table in tables:
            for cell, start_ts, raw in self._store.walk_kind(Kind.LOCK, table):
                if start_ts < chosen and not self._resolved(cell, start_ts, raw, collected):
                    why = f"the transaction that started at {start_ts} is still committing"
                    chosen = start_ts
        return chosen, why

    def _resolved(self, cell: Cell, start_ts: int, raw: bytes, collected: Collected) -> bool:
        resolved = self._context.resolver.try_resolve(cell, start_ts, raw)
        collected.locks += resolved
        return resolved

    def _retained(self, latest: int) -> tuple[int, str]:
        """The newest timestamp that the retention does not keep, and why it is not newer."""
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
        """Go once round all tables from `position`, and remember how far it got."""
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
                cells, row = self._store.versions(table, row, end, _RECORDS)
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
                for part in before:  # One call each: the rows of one are changed in any order.
                    self._store.mutate([RowMutation(table, row, (), part)])
                mutations.append(RowMutation(table, row, (), last))
            if garbage.vanishing and self._is_answered(table, row, garbage.vanishing):
                # A change since that look puts a notify entry, and then the delete stays.
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
        """Whether no observer waits for a change of these columns, nor was set aside there."""
        # The notify entries first: setting aside replaces one by a failure in one mutation.
        store = self._store
        for column in columns:
            if store.entries(Cell(table, row, column), Kind.NOTIFY, 0, MAX_TS):
                return False
        return not store.scan_kind(Kind.FAILED, table, row, row + b"\0", 1)[0]

    # --- The cursor ---------------------------------------------------------------------

    def _load_cursor(self) -> tuple[int, tuple[str, bytes]]:
        """The safe point of the last complete cycle (0: one is under way), and where to go on."""
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
    """Cut the deletions from one row where there are more than a store takes at once.

    A reader, or a collector that goes on where this one was killed, may see the row in between:
    older versions go before newer ones, so that no delete goes before what it hides; a long value
    goes before its record, by which it is found; and acknowledgments go last.
    """
    if len(changes) <= _CHANGES:
        yield changes
        return
    # They come newest first, and each record before its value.
    ordered = changes[::-1]
    ordered.sort(key=lambda one: acknowledged_column(one.column) is not None)
    yield from (ordered[at : at + _CHANGES] for at in range(0, len(ordered), _CHANGES))


def _round(tables: list[str], table: str, row: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """All tables as (table, start, end), beginning at a row of one and ending just before it."""
    if not row or table not in tables:
        yield from ((one, b"", b"") for one in tables)
        return
    at = tables.index(table)
    yield table, row, b""
    yield from ((one, b"", b"") for one in tables[at + 1 :] + tables[:at])
    yield table, b"", row
