"""§2.2 Transactions: figure 6's Commit() in two phases, made safe.

Row mutations of the store are the only synchronisation between the clients:

    prewrite             lock the primary's row, then all others in batches; each row checks
                         for newer writes and other locks in the same mutation that locks it
    list as pending      the changed rows of tables whose feed has an index, for its followers
    commit_ts            drawn after the last prewrite was acknowledged (P2)
    notify               weak notifications, and all others if there is a separate notify table
    commit_primary       primary's lock → write record: the commit point
    commit_secondaries   the same for all other cells; any client that meets a lock may do it too

    Bob.bal  7: lock (primary)   →  8: write → 7        Joe.bal  7: lock → Bob.bal  →  8: write → 7

Departures from the paper: the primary's row is locked before any other cell is (P3);
a write record above or *at* start_ts stops a prewrite, since a rollback leaves one there (P4),
but another transaction's rollback record does not; after lost replies the state is read (P6, P7);
locks are refreshed while a commit takes long (P8).

Where the store can (`Store.has_volatile_writes`), the locks of the primary's row are not written to
the server's log. Lost with the server, they can only abort the transaction: the commit point is
conditional on the primary's (P5), and a lost lock does not return. For that

* only locks are volatile: rollback records and the locks of other rows are durable (P4), and a long
  value of the primary's row is put by the commit point;
* the row's locks are lost together or not at all: a refresh is volatile as well, and cannot keep
  the primary's lock alone;
* only the first attempt of a prewrite is volatile. After a lost reply the locks are put again,
  durably. Else that attempt, arriving late, would lock a cell again whose lock was lost, and which
  has been read at timestamps above the commit_ts.

A store may send the mutations of the usual case by itself, each phase in one call
(`Store.prepare_commit`), in the same order: the first attempts of the prewrites, later those of the
commits. It says of each row whether it was changed. What follows is done here, from there on: for a
row that was certainly not changed as if nothing had been sent yet, for one whose reply was lost as
if `Store.mutate` had just raised OutcomeUnknownError.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, TypeAlias

from percola.cells import (
    INLINE_BYTES,
    MAX_TS,
    SYSTEM_MARK,
    Cell,
    Kind,
    LastChange,
    LockRecord,
    Op,
    decode_write,
    encode_lock,
)
from percola.errors import (
    CommitUnknownError,
    ConflictError,
    OutcomeUnknownError,
    PercolaError,
    RepositoryClosedError,
    RepositoryError,
    RolledBackError,
    SnapshotTooOldError,
    StoreError,
    UnknownTableError,
    UsageError,
)
from percola.store.base import (
    MOST_CHANGES,
    CommitRow,
    Condition,
    Delete,
    PreparedCommit,
    Put,
    RowMutation,
)
from percola.store.remote.feed_index import pending_put
from percola.transactions.context import TransactionContext
from percola.transactions.lock_resolver import Fate, commit_changes
from percola.transactions.own_writes import Writes
from percola.transactions.read_cache import batches

log = logging.getLogger("percola.store")

_ATTEMPTS: Final = 8
_PAUSES: Final = (0.05, 1.0)
"""Seconds before what was not answered is sent again: at first, and at most."""

_LOCK: Final = int(Op.LOCK)

_Row: TypeAlias = tuple[str, bytes]
"""A table's name and an encoded row."""


class TwoPhaseCommit:
    """One run of figure 6's Commit(): prewrite, commit_primary, commit_secondaries.

    With `silent`, its writes of observed columns notify nobody. `marks` takes down when each stage
    ended, in nanoseconds since the epoch.

    Attributes:
        unfinished: the store's error if it failed after the commit point: locks and answered
            entries may be left.
    """

    def __init__(
        self,
        context: TransactionContext,
        start_ts: int,
        writes: Writes,
        last_change: Mapping[Cell, LastChange] = MappingProxyType({}),
        *,
        silent: bool = False,
        marks: list[tuple[str, int]] | None = None,
    ) -> None:
        self._context = context
        self._marks = marks
        self._start_ts = start_ts
        self._writes = writes
        # The newest change at start_ts of each cell that is only locked. The prewrite checks that
        # nothing has been written since, so it is still the newest when this commits.
        self._last_changes = last_change
        self._silent = silent
        self._refreshed = context.clock.monotonic()
        # The write set is final now (P14): the first cell that changes is the primary.
        changing = (cell for cell, (op, _) in writes.items() if op != _LOCK)
        self._primary = next(changing, next(iter(writes), None))
        self._locked: list[Cell] = []
        self._uncertain = False
        # Whether the next mutation was sent already, and its reply lost.
        self._reply_is_lost = False
        self.unfinished: StoreError | None = None
        # Notify and failed entries to remove once this has committed.
        self._answered: dict[_Row, list[Put | Delete]] = {}
        # With a separate notify table, no mutation covers both a row and its notify entries
        # (`percola.store.remote.notify_table`).
        self._has_notify_table = context.store.has_notify_table
        # Whether the locks of the primary's row may be lost with a server.
        self._is_volatile = context.store.has_volatile_writes
        # The oldest timestamp of the locks that this commits.
        self._oldest_ts = start_ts

    def run(self, notifications: Iterable[Cell], answers: Sequence[tuple[Kind, Cell, int]]) -> int:
        context, primary = self._context, self._primary
        weak = list(notifications)
        notified = {(cell.table, cell.row) for cell in weak}
        notified.update((cell.table, cell.row) for cell in self._writes if self._observed(cell))
        groups: list[list[Cell]] = []
        for kind, (table, row, column), ts in answers:
            self._answered.setdefault((table, row), []).append(Delete(kind, column, ts))
        if primary is None:
            commit_ts = context.oracle.timestamp()
            self._notify(weak, commit_ts)
        else:
            rows: dict[_Row, list[Cell]] = {(primary.table, primary.row): []}
            for cell in self._writes:
                rows.setdefault((cell.table, cell.row), []).append(cell)
            groups = list(rows.values())
            try:
                prepared = self._prepare(groups, primary)
                if prepared is None:
                    self.prewrite(groups[:1], primary)
                    self.prewrite(groups[1:], primary)
                else:
                    self._prewrite_prepared(prepared, groups, primary)
                # After the last lock is in place: either this sees a new safe point, or every
                # record that the locks could conflict with was still there (P12,
                # `percola.gc.collector`).
                context.store.check_safe_point(self._oldest_ts)
                self._mark("prewritten")
                commit_ts = self._draw()
                self._mark("commit_ts drawn")
                # Before the commit point: a crash cannot lose them, and an entry of a transaction
                # that does not commit only costs a check (N4).
                self._notify(weak, commit_ts)
            except CommitUnknownError:
                raise
            except BaseException:
                self.undo(primary)
                raise
            sent = None if prepared is None else prepared.commit(commit_ts)
            if sent is not None and sent[0]:
                self._answered.pop((primary.table, primary.row), None)
            else:
                self._reply_is_lost = sent is not None and sent[0] is None
                if (
                    self.commit_primary(groups[0], primary, commit_ts)
                    and not self._has_notify_table
                ):
                    del self._answered.get((primary.table, primary.row), [])[:MOST_CHANGES]
            self._mark("primary committed")
            groups = groups[1:] if sent is None else self._left(groups[1:], sent[1:])
        self.commit_secondaries(groups, commit_ts)
        if notified:
            context.wake(notified)
        return commit_ts

    def _mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        if self._reply_is_lost:
            self._reply_is_lost = False
            raise OutcomeUnknownError("No reply came to what the store has sent by itself.")
        return self._context.store.mutate(batch)

    def _pause(self, attempt: int) -> None:
        """Wait before something is sent again that was not answered: a store may be away."""
        first, most = _PAUSES
        self._context.clock.sleep(min(most, first * 2 ** (attempt - 1)))

    def _mark(self, stage: str) -> None:
        if self._marks is not None:
            self._marks.append((stage, time.time_ns()))

    # --- What the store sends by itself ---------------------------------------------------

    def _prepare(self, groups: Sequence[Sequence[Cell]], primary: Cell) -> PreparedCommit | None:
        """Have the store send the first attempts by itself, if nothing about them is unusual."""
        store = self._context.store
        if (
            len(self._writes) > store.prepared_cells
            # The time of each step is asked for, or record and locks have more in them.
            or self._marks is not None
            or self._silent
            or self._has_notify_table
            or not self._is_volatile
        ):
            return None
        rows: list[CommitRow] = []
        for cells in groups:
            written = []
            for cell in cells:
                op, value = self._writes[cell]
                if op == _LOCK or (value is not None and len(value) > INLINE_BYTES):
                    return None
                written.append((cell.column, op, value, self._is_observed(cell)))
            table, row = cells[0].table, cells[0].row
            rows.append(CommitRow(table, row, written, self._answered.get((table, row), ())))
        return store.prepare_commit(self._start_ts, self._lock(primary, primary), rows)

    def _prewrite_prepared(
        self, prepared: PreparedCommit, groups: Sequence[Sequence[Cell]], primary: Cell
    ) -> None:
        """Have the store lock the rows, and do as `prewrite` where it could not."""
        self._uncertain = True  # Also if the call is interrupted.
        applied = prepared.prewrite(self._context.ttl_ms / 3000)
        self._uncertain = False
        for cells, done in zip(groups, applied, strict=True):
            if done:
                self._locked += cells
        if applied[0]:
            self._refresh_if_due(primary)
        if all(applied):
            return
        for part in (slice(0, 1), slice(1, None)):
            # First those of which it is unknown, so that `undo` knows of them.
            for outcome in (None, False):
                left = [
                    cells
                    for cells, done in zip(groups[part], applied[part], strict=True)
                    if done is outcome
                ]
                if left:
                    self._reply_is_lost = outcome is None
                    self.prewrite(left, primary)

    def _left(
        self, groups: Sequence[list[Cell]], committed: Sequence[bool | None]
    ) -> list[list[Cell]]:
        """The rows that are still to be committed: those that the store has not committed.

        If that is unknown, a row is left to its readers, as after a lost reply to `mutate`.
        """
        left = []
        for cells, done in zip(groups, committed, strict=True):
            if done is False:
                left.append(cells)
            else:
                # Its answered entries went with it.
                self._answered.pop((cells[0].table, cells[0].row), None)
        return left

    # --- Phase one ----------------------------------------------------------------------

    def prewrite(self, groups: Sequence[Sequence[Cell]], primary: Cell) -> None:
        """Lock whole rows, figure 6's Prewrite(); raises ConflictError at the first refusal."""
        if not groups:
            return
        for batch in batches(self._prewrite_row(cells, primary) for cells in groups):
            waiting = batch
            unanswered: OutcomeUnknownError | None = None
            for attempt in range(_ATTEMPTS):
                if unanswered is not None:
                    self._pause(attempt)
                try:
                    applied = self._mutate(waiting)
                    unanswered = None
                except OutcomeUnknownError as error:
                    self._uncertain = True
                    unanswered = error
                    applied = [False] * len(waiting)
                except PercolaError:
                    raise
                except BaseException:
                    # An interrupt: the rows may be locked, and `undo` is to know of them.
                    self._uncertain = True
                    for mutation in waiting:
                        self._note_locked(mutation)
                    raise
                refused = []
                for mutation, done in zip(waiting, applied, strict=True):
                    if done:
                        self._note_locked(mutation)
                    else:
                        refused.append(mutation)
                if len(refused) > 1:
                    self._settle_locks(self._refreshing(refused, primary))
                explained = self._refreshing(refused, primary)
                waiting = [m for m in explained if not self._explain_refusal(m)]
                if not waiting:
                    break
            else:
                table, row = waiting[0].table, waiting[0].row
                cell = Cell(table, row, _locked_by(waiting[0])[0])
                if unanswered is not None:
                    raise StoreError(
                        f"The transaction that started at {self._start_ts} has not committed: in "
                        f"{_ATTEMPTS} attempts the store did not say that {cell} is locked for "
                        f"it. The last time: {unanswered}"
                    ) from unanswered
                raise ConflictError(cell, self._start_ts, 0, locked=True)
            self._refresh_if_due(primary)

    def _note_locked(self, prewrite: RowMutation) -> None:
        table, row = prewrite.table, prewrite.row
        self._locked += [Cell(table, row, column) for column in _locked_by(prewrite)]

    def _is_volatile_row(self, row: _Row, primary: Cell | None) -> bool:
        """Whether the locks of this row may be lost, and its values are put later."""
        return self._is_volatile and primary is not None and row == primary[:2]

    def _prewrite_row(self, cells: Sequence[Cell], primary: Cell) -> RowMutation:
        start_ts = self._start_ts
        volatile = self._is_volatile_row(cells[0][:2], primary)
        conditions: list[Condition] = []
        changes: list[Put | Delete] = []
        for cell in cells:
            column = cell.column
            # Abort on writes at or after our start timestamp, line 32 …
            conditions.append(Condition(False, Kind.WRITE, column, start_ts, MAX_TS))
            # … or locks at any timestamp, line 34.
            conditions.append(Condition(False, Kind.LOCK, column, 0, MAX_TS))
            lock = self._lock(cell, primary)
            changes.append(Put(Kind.LOCK, column, start_ts, encode_lock(lock)))
            value = self._writes[cell][1]
            if value is not None and lock.value is None and not volatile:
                changes.append(Put(Kind.DATA, column, start_ts, value))
        return RowMutation(cells[0].table, cells[0].row, conditions, changes, not volatile)

    def _lock(self, cell: Cell, primary: Cell) -> LockRecord:
        context = self._context
        op, value = self._writes[cell]
        inline = value if value is not None and len(value) <= INLINE_BYTES else None
        last_change = self._last_changes.get(cell) if op == _LOCK else None
        return LockRecord(
            Op(op),
            primary,
            context.coordination.token,
            context.clock.wall_ms(),
            context.ttl_ms,
            self._observed(cell),
            inline,
            last_change,
            self._silent and self._is_observed(cell),
        )

    def _observed(self, cell: Cell) -> bool:
        return not self._silent and self._is_observed(cell)

    def _is_observed(self, cell: Cell) -> bool:
        observed = self._context.columns.get((cell.table, cell.column)) is True
        return observed and self._writes[cell][0] != _LOCK

    def _refreshing(self, refused: Iterable[RowMutation], primary: Cell) -> Iterator[RowMutation]:
        """The same, while the primary's lock is refreshed: to look at each may take long."""
        for mutation in refused:
            yield mutation
            if (mutation.table, mutation.row) != primary[:2]:
                self._refresh_if_due(primary)

    def _settle_locks(self, refused: Iterable[RowMutation]) -> None:
        """Settle the locks that dead transactions have left in refused rows, many in one call.

        Raises ConflictError for a live owner's lock.
        """
        resolver, start_ts = self._context.resolver, self._start_ts
        cells = (Cell(one.table, one.row, column) for one in refused for column in _locked_by(one))
        others = (lock for lock in resolver.locks_on(cells) if lock[1] != start_ts)
        resolver.settle_or_conflict(others, start_ts)

    def _explain_refusal(self, mutation: RowMutation) -> bool:
        """Why a row's prewrite was refused: True if it had been applied after all (P6).

        False if it is worth another try; raises ConflictError or RolledBackError if not.
        """
        store, start_ts = self._context.store, self._start_ts
        own = 0
        columns = _locked_by(mutation)
        cells = [Cell(mutation.table, mutation.row, column) for column in columns]
        conditions: list[Condition] = []
        for cell, lock_ts, raw in self._context.resolver.locks_on(cells):
            if lock_ts == start_ts:
                own += 1
            elif not self._context.resolver.try_resolve(cell, lock_ts, raw):
                # Never wait here: two transactions may want each other's cells (P14).
                raise ConflictError(cell, start_ts, lock_ts, locked=True)
        # Only now: a lock that was resolved may have left a record (P10).
        written = store.entries_of(cells, Kind.WRITE, start_ts, MAX_TS)
        for cell, records in zip(cells, written, strict=True):
            low, column = start_ts, cell.column
            for commit_ts, raw in reversed(records):
                record = decode_write(raw)
                if record.op is not Op.ROLLBACK:
                    raise ConflictError(cell, start_ts, commit_ts, locked=False)
                if record.start_ts == start_ts:
                    raise self._rolled_back()
                # Another transaction's rollback record is no write: require no writes below and
                # above it. Else of two that conflict both might abort (P14).
                if low < commit_ts:
                    conditions.append(Condition(False, Kind.WRITE, column, low, commit_ts - 1))
                low = commit_ts + 1
            conditions.append(Condition(False, Kind.WRITE, column, low, MAX_TS))
            conditions.append(Condition(False, Kind.LOCK, column, 0, MAX_TS))
        mutation.durable = True
        if own == len(columns):
            if not self._is_volatile_row((mutation.table, mutation.row), self._primary):
                self._note_locked(mutation)
                return True
            # The locks hold, but may be lost, and put once more by an attempt that is still on its
            # way: put them again, durably, under the condition that they hold.
            conditions = [Condition(True, Kind.LOCK, one, start_ts, start_ts) for one in columns]
        mutation.conditions = conditions
        return False

    def _rolled_back(self) -> RolledBackError:
        return RolledBackError(
            f"The transaction that started at {self._start_ts} was rolled back by another one, "
            "which took this process for dead. Run it again in a new transaction."
        )

    def _refresh_if_due(self, primary: Cell) -> None:
        """Refresh the primary's lock during a long commit, to show it alive (§2.2, rule P8)."""
        context, start_ts = self._context, self._start_ts
        now = context.clock.monotonic()
        if now - self._refreshed < context.ttl_ms / 3000:
            return
        self._refreshed = now
        column = primary.column
        held = Condition(True, Kind.LOCK, column, start_ts, start_ts)
        lock = encode_lock(self._lock(primary, primary))
        changes = [Put(Kind.LOCK, column, start_ts, lock)]
        refresh = RowMutation(primary.table, primary.row, [held], changes, not self._is_volatile)
        try:
            alive = context.store.mutate([refresh])[0]
        except OutcomeUnknownError:
            return
        if not alive:
            raise self._rolled_back()

    def _draw(self) -> int:
        """The commit_ts, above which no follower of a feed comes without seeing this (P2)."""
        oracle, index = self._context.oracle, self._context.store.feed_index
        if index is None:
            return oracle.timestamp()
        tables, listed = self._tables(), frozenset[str]()
        ts = 0
        while True:
            fed = index.of(tables)
            if fed - listed or ts <= index.floor(fed):
                ts = self._start_ts if self._start_ts > index.floor(fed) else oracle.timestamp()
                self._put_all(
                    pending_put(table, ts, row, started)
                    for table, row, started in self._changed_rows(fed)
                )
                listed = fed
            commit_ts = oracle.timestamp()
            # Who still misses a feed or a floor has drawn its commit_ts before it comes into force.
            fed = index.of(tables)
            if fed <= listed and (not fed or ts > index.floor(fed)):
                return commit_ts

    def _tables(self) -> Collection[str]:
        """The tables that this writes."""
        return {cell.table for cell in self._writes}

    def _changed_rows(self, tables: Collection[str]) -> Iterable[tuple[str, bytes, Set[int]]]:
        """The rows of tables that this puts or deletes in, each with the start_ts of its locks."""
        rows = {
            (cell.table, cell.row)
            for cell, (op, _) in self._writes.items()
            if cell.table in tables and op != _LOCK and not cell.column.startswith(SYSTEM_MARK)
        }
        return ((table, row, {self._start_ts}) for table, row in sorted(rows))

    def _to_notify(self, notifications: Iterable[Cell]) -> Iterable[Cell]:
        """The cells whose notify entries are put before the commit point, row by row."""
        observed = [
            cell for cell in self._writes if self._has_notify_table and self._observed(cell)
        ]
        return sorted([*notifications, *observed])

    def _notify(self, notifications: Iterable[Cell], commit_ts: int) -> None:
        """Put notify entries (N4)."""
        mutations = (
            RowMutation(
                table, row, (), [Put(Kind.NOTIFY, cell.column, commit_ts, b"") for cell in group]
            )
            for (table, row), group in itertools.groupby(
                self._to_notify(notifications), key=lambda cell: (cell.table, cell.row)
            )
        )
        self._put_all(mutations)

    def _put_all(self, mutations: Iterable[RowMutation]) -> None:
        """Put entries of which a spare one only costs a check; retry unknown outcomes."""
        for batch in batches(mutations):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._context.store.mutate(batch)
                    break
                except OutcomeUnknownError:
                    if attempt == _ATTEMPTS:
                        raise
                    self._pause(attempt)
            if self._primary is not None:
                self._refresh_if_due(self._primary)

    def undo(self, primary: Cell) -> None:
        """Roll back: put a rollback record on the primary, then remove the locks (P4).

        Best effort: a client that meets a remaining lock does the same.
        """
        resolver = self._context.resolver
        if not self._locked and not self._uncertain:
            return  # The primary itself was refused: nothing is stored or in flight.
        try:
            fate = resolver.fate(primary, self._start_ts, force=True)
            if fate is not None:
                resolver.settle_all(
                    (cell, self._start_ts, self._lock(cell, primary), fate) for cell in self._locked
                )
        except (RepositoryError, UnknownTableError):
            return

    # --- Phase two ----------------------------------------------------------------------

    def commit_primary(self, cells: Sequence[Cell], primary: Cell, commit_ts: int) -> bool:
        """The commit point: the primary's whole row, under the condition that its lock holds.

        The same mutation removes answered entries of this row, unless they are in a separate
        notify table. Returns False if another client may have committed it: then these entries may
        still be there.
        """
        context, start_ts = self._context, self._start_ts
        mutation = self._commit_point(cells, primary, commit_ts)
        unknown = False
        for attempt in range(_ATTEMPTS + 1):
            try:
                if unknown:
                    # A read is tried again for as long as the store is away (P7).
                    if self._has_committed(primary, commit_ts):
                        return False
                    if attempt == _ATTEMPTS:
                        break
                    self._pause(attempt)
                if self._mutate([mutation])[0]:
                    return True
                if self._has_committed(primary, commit_ts):
                    return False
                if unknown:
                    context.store.check_safe_point(start_ts)
                raise self._rolled_back()
            except SnapshotTooOldError as error:
                # Garbage collection may have removed the record: the outcome is lost.
                raise CommitUnknownError(primary, start_ts, commit_ts) from error
            except OutcomeUnknownError:
                # Committed or not? The same mutation again is safe either way (P6, P7).
                unknown = True
            except RepositoryClosedError as error:
                # Closed by another thread, perhaps while the call was under way.
                raise CommitUnknownError(primary, start_ts, commit_ts) from error
            except (StoreError, UsageError) as error:
                if not unknown:
                    # The store refused (it is full, the row too large): nothing was written.
                    self.undo(primary)
                    raise
                raise CommitUnknownError(primary, start_ts, commit_ts) from error
        raise CommitUnknownError(primary, start_ts, commit_ts)

    def _commit_point(self, cells: Sequence[Cell], primary: Cell, commit_ts: int) -> RowMutation:
        """The one mutation that commits; a job's coordinator adds more to it."""
        held = Condition(True, Kind.LOCK, primary.column, self._start_ts, self._start_ts)
        changes = self._commit_row(cells, commit_ts)
        if not self._has_notify_table:
            changes += self._answered.get((primary.table, primary.row), [])[:MOST_CHANGES]
        return RowMutation(primary.table, primary.row, [held], changes)

    def _has_committed(self, primary: Cell, commit_ts: int) -> bool:
        records = self._context.store.entries(primary, Kind.WRITE, commit_ts, commit_ts)
        return any(decode_write(raw).start_ts == self._start_ts for _, raw in records)

    def commit_secondaries(self, groups: Sequence[Sequence[Cell]], commit_ts: int) -> None:
        """Commit all other rows and remove the answered entries.

        The transaction has committed, so a failure here does not fail it.
        """
        start_ts, removed = self._start_ts, self._answered
        standing = dict(removed)

        def commit_of(cells: Sequence[Cell]) -> RowMutation:
            row = cells[0].table, cells[0].row
            held = [Condition(True, Kind.LOCK, c.column, start_ts, start_ts) for c in cells]
            changes = self._commit_row(cells, commit_ts)
            if not self._has_notify_table:
                # One mutation per row: two mutations of a row would run one after the other.
                answered = standing.pop(row, [])
                changes += answered[:MOST_CHANGES]
                standing[row] = answered[MOST_CHANGES:]
            return RowMutation(*row, held, changes)

        def mutations() -> Iterator[RowMutation]:
            yield from map(commit_of, groups)
            for row, changes in standing.items():
                yield from _removals(row, changes)

        refused = {(m.table, m.row) for m in self._tolerantly(mutations())}
        if not refused:
            return
        assert self._primary is not None
        with self._tolerating():
            for cells in groups:
                at = cells[0].table, cells[0].row
                if at not in refused:
                    continue
                # Another client rolled a cell of the row forward meanwhile: settle the others.
                for cell in cells:
                    lock = self._lock(cell, self._primary)
                    self._context.resolver.settle(cell, start_ts, lock, Fate(commit_ts))
                if at in removed:
                    self._context.store.mutate(list(_removals(at, removed[at])))

    def _commit_row(self, cells: Sequence[Cell], commit_ts: int) -> list[Put | Delete]:
        assert self._primary is not None
        changes: list[Put | Delete] = []
        for cell in cells:
            lock = self._lock(cell, self._primary)
            decides = lock.op is Op.LOCK and cell == self._primary
            changes += commit_changes(
                cell.column, self._start_ts, commit_ts, lock, self._has_notify_table, decides
            )
            value = self._writes[cell][1]
            if (
                value is not None
                and lock.value is None
                and self._is_volatile_row(cell[:2], self._primary)
            ):
                changes.append(Put(Kind.DATA, cell.column, self._start_ts, value))
        return changes

    def _tolerantly(self, mutations: Iterable[RowMutation]) -> list[RowMutation]:
        """Apply mutations that the commit no longer depends on; return those refused.

        If the store fails, this leaves locks that any reader rolls forward, and notify entries that
        are answered already: nothing is lost.
        """
        refused: list[RowMutation] = []
        with self._tolerating():
            for batch in batches(mutations):
                applied = self._context.store.mutate(batch)
                refused += [m for m, done in zip(batch, applied, strict=True) if not done]
        return refused

    @contextlib.contextmanager
    def _tolerating(self) -> Iterator[None]:
        try:
            yield
        except OutcomeUnknownError:
            return  # Perhaps it is done.
        except (RepositoryError, UnknownTableError) as error:
            self.unfinished = error if isinstance(error, StoreError) else StoreError(str(error))
            log.warning(
                "the transaction that started at %d has committed, but the store refused to remove "
                "what it has left: %s",
                self._start_ts,
                error,
            )


def _removals(row: _Row, changes: Sequence[Put | Delete]) -> Iterator[RowMutation]:
    """The mutations that remove answered entries from a row."""
    for at in range(0, len(changes), MOST_CHANGES):
        yield RowMutation(*row, (), changes[at : at + MOST_CHANGES])


def _locked_by(prewrite: RowMutation) -> list[bytes]:
    """The columns that a prewrite locks."""
    return [one.column for one in prewrite.changes if one.kind is Kind.LOCK]
