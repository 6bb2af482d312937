"""§2.2 Transactions: figure 6, made safe.

Writes are buffered and committed in two phases, coordinated by this client; row mutations of
the store are the only synchronisation:

    prewrite             lock the primary's row, then all others in batches; each row checks
                         for newer writes and other locks in the same mutation that locks it
    commit_ts            drawn after the last prewrite was acknowledged (P2)
    commit_primary       primary's lock → write record: the commit point
    commit_secondaries   the same everywhere else; anyone who meets a lock may do it too

    Bob.bal  7: lock (primary)   →  8: write → 7        Joe.bal  7: lock → Bob.bal  →  8: write → 7

On a store that applies a whole batch atomically and owns the timestamps, the two phases
shrink to one step (`OneStepStore.commit_one_step`, rule P11).

Departures from the paper: the primary's row is in place before any other cell is locked (P3);
a write record above or *at* start_ts stops a prewrite, since a rollback leaves one there (P4);
lost replies are settled by reading (P6, P7); locks are refreshed while a commit takes long (P8).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

from percola.batching import batches
from percola.cells import (
    INLINE_BYTES,
    MAX_TS,
    Cell,
    Kind,
    LockRecord,
    Op,
    decode_write,
    encode_lock,
)
from percola.errors import (
    CommitUnknownError,
    ConflictError,
    OutcomeUnknownError,
    RolledBackError,
    StoreError,
    UsageError,
    ValueTooLargeError,
)
from percola.locks import Fate, commit_changes
from percola.schema import Column, R, V, WeakColumn
from percola.snapshot import Services, Snapshot, Writes
from percola.store.base import (
    CellState,
    Condition,
    Delete,
    OneStepConflict,
    OneStepWrite,
    Put,
    RowMutation,
    is_wanted,
)

_RESOLVE_ATTEMPTS: Final = 8
_PUT, _DELETE, _LOCK = int(Op.PUT), int(Op.DELETE), int(Op.LOCK)


class Transaction(Snapshot):
    """Reads at `start_ts`, own writes included; writes all or nothing at `commit_ts`.

    As a context manager it commits on leaving the block, and rolls back if the block raises.
    For one thread at a time. After the end, however it came, it is used up.

    Attributes:
        start_ts: the timestamp of its snapshot.
        commit_ts: the timestamp of its writes, once it has committed.
    """

    __slots__ = ("_answers", "_notifications", "_two_phase", "commit_ts")

    def __init__(self, services: Services, *, two_phase: bool = False) -> None:
        self._two_phase = two_phase or services.one_step is None
        oracle = services.oracle
        start_ts = oracle.timestamp() if self._two_phase else oracle.read_timestamp()
        Snapshot.__init__(self, services, start_ts)
        self._notifications: dict[Cell, None] = {}
        self._answers: list[tuple[Kind, Cell, int]] = []
        self.commit_ts: int | None = None

    def __enter__(self) -> Self:
        if self._used_up is not None:
            self._check_usable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.rollback()
        elif self._used_up is None:
            self.commit()

    # --- Writing: buffered until commit (figure 6, line 7) ------------------------------

    def set(self, column: Column[R, V], row: R, value: V) -> None:
        """Write a cell. Raises at once for what could never be committed.

        Raises UnknownColumnError, WrongTypeError, RowTooLongError, ValueTooLargeError.
        """
        if self._used_up is not None:
            self._check_usable()
        cell = self._cell(column, row)
        raw = column.encode_value(value)
        if len(raw) > INLINE_BYTES:
            most = self._services.store.limits.value_bytes
            if len(raw) > most:
                raise ValueTooLargeError(
                    f"A value of {len(raw)} bytes for {cell} does not fit: the store takes up to "
                    f"{most} bytes."
                )
        self._writes[cell] = (_PUT, raw)

    def delete(self, column: Column[R, Any], row: R) -> None:
        """Delete a cell; deleting one that does not exist is a write as any other."""
        self._check_usable()
        self._writes[self._cell(column, row)] = (_DELETE, None)

    def get_for_update(self, column: Column[R, V], row: R) -> V | None:
        """Read a cell and make sure that nobody writes it before this transaction commits.

        Closes write skew for the cells it names: another transaction that writes one of them
        at the same time conflicts with this one.
        """
        value = self.get(column, row)
        self._writes.setdefault(self._cell(column, row), (_LOCK, None))
        return value

    def notify(self, column: WeakColumn[R], row: R) -> None:
        """Notify a weak column: its observer will look at the row; never conflicts (§2.4)."""
        self._check_usable()
        if not isinstance(column, WeakColumn):
            raise UsageError(f"{column!r} is not a weak column: write it, and it notifies.")
        if column.address not in self._services.columns:
            self._unknown_column(column)
        row_key = column.table.encode_row(row)
        self._services.store.check_row(column.table_name, row_key)
        self._notifications[Cell(column.table_name, row_key, column.key)] = None

    # --- Own writes are read ------------------------------------------------------------

    def _chunk(
        self,
        table: str,
        start: bytes,
        end: bytes,
        cells: list[tuple[Cell, CellState]],
        wanted: list[tuple[bytes, bool]] | None,
    ) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        stored = super()._chunk(table, start, end, cells, wanted)
        own: dict[bytes, dict[bytes, bytes | None]] = {}
        for cell, (op, value) in self._writes.items():
            if (
                op != _LOCK
                and cell.table == table
                and start <= cell.row
                and (not end or cell.row < end)
                and is_wanted(cell.column, wanted)
            ):
                own.setdefault(cell.row, {})[cell.column] = value
        if not own:
            return stored
        rows = dict(stored)
        for key, values in own.items():
            merged = {**rows.get(key, {}), **values}
            rows[key] = {name: merged[name] for name in sorted(merged) if merged[name] is not None}  # type: ignore[misc]
        return iter(sorted((key, values) for key, values in rows.items() if values))

    # --- The end ------------------------------------------------------------------------

    def rollback(self) -> None:
        """Give the transaction up. Nothing of it has reached the store."""
        if self._used_up is None:
            self._used_up = "was rolled back"

    # --- What §2.4 needs beyond columns of the schema -----------------------------------

    def observe(self, cell: Cell, ack: Cell) -> tuple[int, bytes | None]:
        """When an observed cell last changed (its newest commit_ts, or 0), and its c:ack_O."""
        states = self._read((cell, ack))
        return states[0][1], states[1][2]

    def put(self, cell: Cell, raw: bytes) -> None:
        """Write a cell of Percola's own, such as an acknowledgment."""
        self._writes[cell] = (_PUT, raw)

    def answer(self, kind: Kind, cell: Cell, ts: int) -> None:
        """Delete a notify or failed entry once this transaction has committed (rule N2)."""
        self._answers.append((kind, cell, ts))

    def commit(self) -> int:
        """Commit all writes; return their timestamp (`start_ts` if there was nothing to write).

        Raises:
            ConflictError: another transaction wrote one of the cells since `start_ts`.
            RolledBackError: others took this process for dead and undid the transaction.
            CommitUnknownError: the store went away at the commit point.
            StoreError: the store failed before; nothing was committed.
        """
        if self._used_up is not None:
            self._check_usable()
        self._used_up = "has tried to commit and failed"
        services = self._services
        if not self._writes and not self._notifications and not self._answers:
            self._used_up = "has committed"
            return self.start_ts
        if services.one_step is not None and not self._two_phase:
            commit_ts = self._commit_one_step()
        else:
            commit_ts = _TwoPhaseCommit(services, self.start_ts, self._writes).run(
                self._notifications, self._answers
            )
        self.commit_ts = commit_ts
        self._used_up = "has committed"
        return commit_ts

    def _commit_one_step(self) -> int:
        services = self._services
        store = services.one_step
        assert store is not None
        columns = self._columns
        notifies = bool(self._notifications)
        writes: list[OneStepWrite] = []
        for cell, (op, value) in self._writes.items():
            observed = columns.get((cell[0], cell[2])) is True and op != _LOCK
            notifies = notifies or observed
            writes.append((cell, op, value, observed))
        attempt = 0
        while True:
            attempt += 1
            outcome = store.commit_one_step(
                self.start_ts, writes, tuple(self._notifications), self._answers
            )
            if not isinstance(outcome, OneStepConflict):
                if notifies:
                    services.changed()
                return outcome
            if outcome.lock is None:
                raise ConflictError(outcome.cell, self.start_ts, outcome.commit_ts, locked=False)
            # A two-phase transaction's lock, perhaps a dead one's: then check again (P10).
            resolved = services.resolver.try_resolve(outcome.cell, *outcome.lock)
            if not resolved or attempt >= _RESOLVE_ATTEMPTS + len(writes):
                raise ConflictError(outcome.cell, self.start_ts, outcome.lock[0], locked=True)


class _TwoPhaseCommit:
    """One run of figure 6's Commit(): prewrite, commit_primary, commit_secondaries."""

    def __init__(self, services: Services, start_ts: int, writes: Writes) -> None:
        self._services = services
        self._start_ts = start_ts
        self._writes = writes
        self._refreshed = services.clock.monotonic()
        # The write set is final now (P14): the first cell that changes is the primary.
        changing = (cell for cell, (op, _) in writes.items() if op != _LOCK)
        self._primary = next(changing, next(iter(writes), None))
        self._locked: list[Cell] = []
        self._uncertain = False

    def run(self, notifications: Iterable[Cell], answers: Sequence[tuple[Kind, Cell, int]]) -> int:
        services, primary = self._services, self._primary
        notifies = False
        if primary is None:
            commit_ts = services.oracle.timestamp()
            notifies = self._notify(notifications, commit_ts)
        else:
            rows: dict[tuple[str, bytes], list[Cell]] = {(primary.table, primary.row): []}
            for cell in self._writes:
                rows.setdefault((cell.table, cell.row), []).append(cell)
            groups = list(rows.values())
            try:
                self.prewrite(groups[:1], primary)
                self.prewrite(groups[1:], primary)
                commit_ts = services.oracle.timestamp()
                # Before the commit point: a crash cannot lose them, and one for a transaction
                # that does not commit only costs a look (N4).
                notifies = self._notify(notifications, commit_ts)
            except CommitUnknownError:
                raise
            except BaseException:
                self.undo(primary)
                raise
            self.commit_primary(groups[0], primary, commit_ts)
            notifies |= any(self._observed(cell) for cell in self._writes)
            self.commit_secondaries(groups[1:], commit_ts)
        if answers:
            by_row: dict[tuple[str, bytes], list[Put | Delete]] = {}
            for kind, (table, row, column), ts in answers:
                by_row.setdefault((table, row), []).append(Delete(kind, column, ts))
            self._tolerantly([RowMutation(*row, (), changes) for row, changes in by_row.items()])
        if notifies:
            services.changed()
        return commit_ts

    # --- Phase one ----------------------------------------------------------------------

    def prewrite(self, groups: Sequence[Sequence[Cell]], primary: Cell) -> None:
        """Lock whole rows, figure 6's Prewrite(); raises ConflictError at the first refusal."""
        if not groups:
            return
        services = self._services
        for batch in batches([self._prewrite_row(cells, primary) for cells in groups]):
            waiting = batch
            for _ in range(_RESOLVE_ATTEMPTS):
                try:
                    applied = services.store.mutate(waiting)
                except OutcomeUnknownError:
                    self._uncertain = True
                    applied = [False] * len(waiting)
                refused = []
                for mutation, done in zip(waiting, applied, strict=True):
                    if done:
                        self._note_locked(mutation)
                    else:
                        refused.append(mutation)
                waiting = [m for m in refused if not self._explain_refusal(m)]
                if not waiting:
                    break
            else:
                table, row = waiting[0].table, waiting[0].row
                cell = Cell(table, row, _locked_by(waiting[0])[0])
                raise ConflictError(cell, self._start_ts, 0, locked=True)
            self._refresh_if_due(primary)

    def _note_locked(self, prewrite: RowMutation) -> None:
        table, row = prewrite.table, prewrite.row
        self._locked += [Cell(table, row, column) for column in _locked_by(prewrite)]

    def _prewrite_row(self, cells: Sequence[Cell], primary: Cell) -> RowMutation:
        start_ts = self._start_ts
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
            if value is not None and lock.value is None:
                changes.append(Put(Kind.DATA, column, start_ts, value))
        return RowMutation(cells[0].table, cells[0].row, conditions, changes)

    def _lock(self, cell: Cell, primary: Cell) -> LockRecord:
        services = self._services
        op, value = self._writes[cell]
        inline = value if value is not None and len(value) <= INLINE_BYTES else None
        return LockRecord(
            Op(op),
            primary,
            services.coordination.token,
            services.clock.wall_ms(),
            services.ttl_ms,
            self._observed(cell),
            inline,
        )

    def _observed(self, cell: Cell) -> bool:
        observed = self._services.columns.get((cell.table, cell.column)) is True
        return observed and self._writes[cell][0] != _LOCK

    def _explain_refusal(self, mutation: RowMutation) -> bool:
        """Why a row's prewrite was refused: True if it had been applied after all (P6).

        False if it is worth another try; raises ConflictError or RolledBackError if not.
        """
        store, start_ts = self._services.store, self._start_ts
        own = 0
        columns = _locked_by(mutation)
        conditions: list[Condition] = []
        for column in columns:
            cell = Cell(mutation.table, mutation.row, column)
            for lock_ts, raw in store.entries(cell, Kind.LOCK, 0, MAX_TS):
                if lock_ts == start_ts:
                    own += 1
                elif not self._services.resolver.try_resolve(cell, lock_ts, raw):
                    # Two that want each other's cells do not wait for each other (P14).
                    raise ConflictError(cell, start_ts, lock_ts, locked=True)
            low = start_ts
            for commit_ts, raw in reversed(store.entries(cell, Kind.WRITE, start_ts, MAX_TS)):
                record = decode_write(raw)
                if record.op is not Op.ROLLBACK:
                    raise ConflictError(cell, start_ts, commit_ts, locked=False)
                if record.start_ts == start_ts:
                    raise self._rolled_back()
                # Another one's rollback record wrote nothing: ask for no write around it, or
                # two that met, of which one gave up, would both give up (P14).
                if low < commit_ts:
                    conditions.append(Condition(False, Kind.WRITE, column, low, commit_ts - 1))
                low = commit_ts + 1
            conditions.append(Condition(False, Kind.WRITE, column, low, MAX_TS))
            conditions.append(Condition(False, Kind.LOCK, column, 0, MAX_TS))
        mutation.conditions = conditions
        if own < len(columns):
            return False
        self._note_locked(mutation)
        return True

    def _rolled_back(self) -> RolledBackError:
        return RolledBackError(
            f"The transaction that started at {self._start_ts} was rolled back by another one, "
            "which took this process for dead. Run it again in a new transaction."
        )

    def _refresh_if_due(self, primary: Cell) -> None:
        """Show the primary's lock to be alive while a commit takes long (§2.2, rule P8)."""
        services, start_ts = self._services, self._start_ts
        now = services.clock.monotonic()
        if now - self._refreshed < services.ttl_ms / 3000:
            return
        self._refreshed = now
        column = primary.column
        held = Condition(True, Kind.LOCK, column, start_ts, start_ts)
        lock = encode_lock(self._lock(primary, primary))
        refresh = RowMutation(
            primary.table, primary.row, [held], [Put(Kind.LOCK, column, start_ts, lock)]
        )
        try:
            alive = services.store.mutate([refresh])[0]
        except OutcomeUnknownError:
            return
        if not alive:
            raise self._rolled_back()

    def _notify(self, notifications: Iterable[Cell], commit_ts: int) -> bool:
        mutations = [
            RowMutation(table, row, (), [Put(Kind.NOTIFY, column, commit_ts, b"")])
            for table, row, column in notifications
        ]
        for batch in batches(mutations):
            self._services.store.mutate(batch)
        return bool(mutations)

    def undo(self, primary: Cell) -> None:
        """Give the transaction up: a rollback record on the primary, then the locks (P4).

        Best effort: whoever meets what is left does the same.
        """
        resolver = self._services.resolver
        if not self._locked and not self._uncertain:
            return  # The primary itself was refused: nothing is there, nothing is under way.
        try:
            fate = resolver.fate(primary, self._start_ts, impatient=True)
            for cell in self._locked:
                if fate is None:
                    return
                resolver.settle(cell, self._start_ts, self._lock(cell, primary), fate)
        except StoreError:
            return

    # --- Phase two ----------------------------------------------------------------------

    def commit_primary(self, cells: Sequence[Cell], primary: Cell, commit_ts: int) -> None:
        """The commit point: the primary's whole row, under the condition that its lock holds."""
        services, start_ts = self._services, self._start_ts
        held = Condition(True, Kind.LOCK, primary.column, start_ts, start_ts)
        mutation = RowMutation(
            primary.table, primary.row, [held], self._commit_row(cells, commit_ts)
        )
        for _ in range(_RESOLVE_ATTEMPTS):
            try:
                if services.store.mutate([mutation])[0]:
                    return
                if self._has_committed(primary, commit_ts):
                    return
                raise self._rolled_back()
            except OutcomeUnknownError:
                # Committed or not? The same mutation again is safe either way (P6, P7).
                services.clock.sleep(0.05)
            except StoreError as error:
                raise CommitUnknownError(primary, start_ts, commit_ts) from error
        raise CommitUnknownError(primary, start_ts, commit_ts)

    def _has_committed(self, primary: Cell, commit_ts: int) -> bool:
        records = self._services.store.entries(primary, Kind.WRITE, commit_ts, commit_ts)
        return any(decode_write(raw).start_ts == self._start_ts for _, raw in records)

    def commit_secondaries(self, groups: Sequence[Sequence[Cell]], commit_ts: int) -> None:
        """Everything else; the transaction has committed, so a failure here is not its."""
        start_ts = self._start_ts
        mutations = []
        for cells in groups:
            held = [Condition(True, Kind.LOCK, c.column, start_ts, start_ts) for c in cells]
            changes = self._commit_row(cells, commit_ts)
            mutations.append(RowMutation(cells[0].table, cells[0].row, held, changes))
        refused = {(m.table, m.row) for m in self._tolerantly(mutations)}
        assert self._primary is not None
        with contextlib.suppress(StoreError):
            for cells in groups:
                if (cells[0].table, cells[0].row) not in refused:
                    continue
                # Somebody rolled a cell of the row forward meanwhile: finish the others.
                for cell in cells:
                    lock = self._lock(cell, self._primary)
                    self._services.resolver.settle(cell, start_ts, lock, Fate(commit_ts))

    def _commit_row(self, cells: Sequence[Cell], commit_ts: int) -> list[Put | Delete]:
        assert self._primary is not None
        changes: list[Put | Delete] = []
        for cell in cells:
            lock = self._lock(cell, self._primary)
            changes += commit_changes(cell.column, self._start_ts, commit_ts, lock)
        return changes

    def _tolerantly(self, mutations: Sequence[RowMutation]) -> list[RowMutation]:
        """Apply what the commit no longer depends on; return what was refused.

        If the store fails, what is left are locks that any reader rolls forward, and notify
        entries that are answered already: nothing is lost.
        """
        refused: list[RowMutation] = []
        with contextlib.suppress(StoreError):
            for batch in batches(mutations):
                applied = self._services.store.mutate(batch)
                refused += [m for m, done in zip(batch, applied, strict=True) if not done]
        return refused


def _locked_by(prewrite: RowMutation) -> list[bytes]:
    """The columns that a prewrite locks."""
    return [one.column for one in prewrite.changes if one.kind is Kind.LOCK]
