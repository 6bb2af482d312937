"""§2.2 Transactions: reads at one timestamp, writes at another, all of them or none.

    start_ts    drawn when it begins: what Get() sees (`percola.snapshot`)
    set         buffered here, and seen by its own reads (figure 6, line 7)
    commit_ts   drawn when it commits: where its writes stand

Commit goes through the paper's two phases (`percola.two_phase`). On a store that applies a
whole batch atomically and owns the timestamps, they shrink to one step
(`OneStepStore.commit_one_step`, rule P11).

Departures from the paper: own writes are read; `get_for_update` locks a cell without changing
it, which closes write skew where a program needs that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Any, Final

from percola.cells import INLINE_BYTES, Cell, Kind, Op
from percola.codecs import V
from percola.errors import (
    ConflictError,
    TransactionTooLargeError,
    UsageError,
    ValueTooLargeError,
)
from percola.schema import Column, R, WeakColumn
from percola.snapshot import Services, Snapshot
from percola.store.base import CellState, OneStepConflict, OneStepWrite, is_wanted
from percola.two_phase import TwoPhaseCommit

MOST_CELLS: Final = 1_000_000
"""How many cells a transaction may write: about half a gigabyte of its process's memory."""

MOST_BYTES: Final = 1 << 30
"""How many bytes its long values, those of more than `INLINE_BYTES`, may have together."""

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

    __slots__ = ("_answers", "_bytes", "_notifications", "_two_phase", "commit_ts")

    def __init__(self, services: Services, *, two_phase: bool = False) -> None:
        self._two_phase = two_phase or services.one_step is None
        oracle = services.oracle
        start_ts = oracle.timestamp() if self._two_phase else oracle.read_timestamp()
        Snapshot.__init__(self, services, start_ts)
        self._notifications: dict[Cell, None] = {}
        self._answers: list[tuple[Kind, Cell, int]] = []
        self._bytes = 0
        self.commit_ts: int | None = None

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

        Raises UnknownColumnError, WrongTypeError, RowTooLongError, ValueTooLargeError;
        TransactionTooLargeError beyond `MOST_CELLS` or `MOST_BYTES`.
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
            self._bytes += len(raw)
        self._writes[cell] = (_PUT, raw)
        if len(self._writes) > MOST_CELLS or self._bytes > MOST_BYTES:
            self._refuse_size()

    def _refuse_size(self) -> None:
        self.rollback()
        raise TransactionTooLargeError(
            f"The transaction that started at {self.start_ts} writes {len(self._writes):,} cells "
            f"and {self._bytes:,} bytes of long values; it may write up to {MOST_CELLS:,} cells "
            f"and {MOST_BYTES:,} bytes. Nothing of it has been written: split it into several."
        )

    def delete(self, column: Column[R, Any], row: R) -> None:
        """Delete a cell; deleting one that does not exist is a write as any other."""
        self._check_usable()
        self._writes[self._cell(column, row)] = (_DELETE, None)
        if len(self._writes) > MOST_CELLS:
            self._refuse_size()

    def get_for_update(self, column: Column[R, V], row: R) -> V | None:
        """Read a cell and make sure that nobody writes it before this transaction commits.

        Closes write skew for the cells it names: another transaction that writes one of them
        at the same time conflicts with this one.
        """
        value = self.get(column, row)
        self._writes.setdefault(self._cell(column, row), (_LOCK, None))
        if len(self._writes) > MOST_CELLS:
            self._refuse_size()
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
        self._let_go()

    # --- What §2.4 needs beyond columns of the schema -----------------------------------

    def expect(self, rows: Collection[bytes]) -> None:
        """Say of which rows, encoded, this will read; more may be added to them (§2.5)."""
        if self._cache is not None and self._cache.ahead is not None:
            self._cache.ahead.expect(rows)

    def observe(self, cell: Cell, ack: Cell) -> tuple[int, bytes | None]:
        """When an observed cell last changed (its newest commit_ts, or 0), and its c:ack_O."""
        states = self._states((cell, ack))
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
        services = self._services
        if not (self._writes or self._notifications or self._answers):
            self._used_up = "has committed"
            services.leases.drop(id(self))
            if self._cache is not None:
                self._cache.end()
            return self.start_ts
        self._used_up = "has tried to commit and failed"
        try:
            commit_ts = self._commit(services)
        finally:
            self._let_go()
        self._used_up = "has committed"
        return commit_ts

    def _commit(self, services: Services) -> int:
        if services.one_step is not None and not self._two_phase:
            self.commit_ts = self._commit_one_step()
        else:
            commit = TwoPhaseCommit(services, self.start_ts, self._writes)
            self.commit_ts = commit.run(self._notifications, self._answers)
        return self.commit_ts

    def _commit_one_step(self) -> int:
        services = self._services
        store = services.one_step
        assert store is not None
        columns = self._columns
        notified = {cell.table for cell in self._notifications}
        writes: list[OneStepWrite] = []
        for cell, (op, value) in self._writes.items():
            observed = columns.get((cell[0], cell[2])) is True and op != _LOCK
            if observed:
                notified.add(cell[0])
            writes.append((cell, op, value, observed))
        attempt = 0
        while True:
            attempt += 1
            outcome = store.commit_one_step(
                self.start_ts, writes, tuple(self._notifications), self._answers
            )
            if not isinstance(outcome, OneStepConflict):
                if notified:
                    services.changed(notified)
                return outcome
            if outcome.lock is None:
                raise ConflictError(outcome.cell, self.start_ts, outcome.commit_ts, locked=False)
            # A two-phase transaction's lock, perhaps a dead one's: then check again (P10).
            resolved = services.resolver.try_resolve(outcome.cell, *outcome.lock)
            if not resolved or attempt >= _RESOLVE_ATTEMPTS + len(writes):
                raise ConflictError(outcome.cell, self.start_ts, outcome.lock[0], locked=True)
