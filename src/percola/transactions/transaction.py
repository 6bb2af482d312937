"""§2.2 Transactions: reads at one timestamp, atomic writes at another.

    start_ts    drawn when it begins: what Get() sees (`percola.transactions.snapshot`)
    set         buffered here, and seen by its own reads (figure 6, line 7)
    commit_ts   drawn when it commits: the timestamp of its writes

Commit runs in the paper's two phases (`percola.transactions.two_phase`). On a store that applies a
whole batch atomically and owns the timestamps, it takes one step (`OneStepStore.commit_one_step`,
rule P11).

Departures from the paper: a transaction reads its own writes; `get_for_update` locks a cell without
changing it, which prevents write skew where a program needs that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from percola.cells import INLINE_BYTES, NO_CHANGE, Cell, Kind, LastChange, Op, encode_write
from percola.codecs import V
from percola.errors import (
    ConflictError,
    DamagedRecordError,
    TransactionTooLargeError,
    UsageError,
    ValueTooLargeError,
)
from percola.schema import Column, R, Readable, WeakColumn
from percola.store.base import CellState, OneStepConflict, OneStepStore, OneStepWrite
from percola.store.counting import caller
from percola.transactions.calls import TOO_LARGE, TransactionBase, by_the_column
from percola.transactions.context import TransactionContext
from percola.transactions.own_writes import OwnWrites
from percola.transactions.snapshot import Snapshot
from percola.transactions.two_phase import TwoPhaseCommit

MOST_CELLS: Final = 1_000_000
"""The most cells that a transaction may write, and notify: about half a gigabyte of memory."""

MOST_BYTES: Final = 1 << 30
"""The most bytes that its values longer than `INLINE_BYTES` may have in total."""

_RESOLVE_ATTEMPTS: Final = 8
_PUT, _DELETE, _LOCK = int(Op.PUT), int(Op.DELETE), int(Op.LOCK)
_NOTHING: Final = (_LOCK, None)


class Transaction(Snapshot, TransactionBase):
    """Reads a snapshot at `start_ts`, with its own writes; commits atomically at `commit_ts`.

    As a context manager it commits on leaving the block, and rolls back if the block raises.
    Not thread-safe. It cannot be used again after a commit, successful or not, or a rollback.

    Attributes:
        start_ts: the timestamp of its snapshot.
        commit_ts: the timestamp of its writes, once it has committed; None if it wrote nothing.
        unfinished: the store's error, if the transaction has committed but locks or answered
            entries may not have been cleaned up; else None.
    """

    __slots__ = ()

    _span_name = ""

    if TYPE_CHECKING:  # In the base (`percola.transactions.calls`), and documented here.

        @by_the_column
        def set(self, column: Column[R, V], row: R, value: V) -> None:
            """Write a cell. Values that could never be committed are refused at once.

            Raises UnknownColumnError, WrongTypeError, RowTooLongError, ValueTooLargeError;
            TransactionTooLargeError beyond `MOST_CELLS` or `MOST_BYTES`.
            """
            self._set(column, row, value)

        def delete(self, column: Column[R, Any], row: R) -> None:
            """Delete a cell; deleting a cell that does not exist is a write like any other."""
            self._delete(column, row)

        def commit(self) -> int:
            """Commit all writes; return their timestamp (`start_ts` if there was nothing to write).

            Raises:
                ConflictError: another transaction wrote one of the cells since `start_ts`.
                RolledBackError: another client considered this process dead and rolled back the
                    transaction.
                CommitUnknownError: the store failed at the commit point.
                StoreError: the store failed before the commit point; nothing was committed.
                TransactionUsedUpError: it has ended, or began before this process was forked.
            """
            return self._commit()

    # --- Writing: buffered until commit (figure 6, line 7) ------------------------------

    def _set(self, column: Column[R, V], row: R, value: V, raw: bytes | None = None) -> None:
        """Buffer a value; `raw` is the same encoded, if it has been."""
        if self._used_up is not None:
            self._check_usable()
        cell = self._cell(column, row)
        if raw is None:
            raw = column.encode_value(value)
        if self._bytes or len(raw) > INLINE_BYTES:
            self._count_bytes(cell, raw)
        self._writes[cell] = (_PUT, raw)
        if len(self._writes) > MOST_CELLS:
            self._refuse_size()

    def _count_bytes(self, cell: Cell, raw: bytes) -> None:
        """Count a value's bytes, if it is long, in place of the cell's buffered value."""
        size = len(raw) if len(raw) > INLINE_BYTES else 0
        most = self._context.store.limits.value_bytes
        if size > most:
            raise ValueTooLargeError(
                f"A value of {size} bytes for {cell} does not fit: the store takes up to {most} "
                "bytes."
            )
        _, replaced = self._writes.get(cell, _NOTHING)
        if replaced is not None and len(replaced) > INLINE_BYTES:
            self._bytes -= len(replaced)
        self._bytes += size
        if self._bytes > MOST_BYTES:
            self._refuse_size()

    def _refuse_size(self) -> None:
        self._used_up = TOO_LARGE
        self._let_go()
        raise TransactionTooLargeError(
            f"The transaction that started at {self.start_ts} writes {len(self._writes):,} cells "
            f"and {self._bytes:,} bytes of long values, and notifies {len(self._notifications):,}; "
            f"it may write up to {MOST_CELLS:,} cells and {MOST_BYTES:,} bytes, and notify as many "
            "cells. Nothing of it has been written: split it into several."
        )

    def _delete(self, column: Column[R, Any], row: R) -> None:
        self._check_usable()
        cell = self._cell(column, row)
        if self._bytes:
            self._count_bytes(cell, b"")
        self._writes[cell] = (_DELETE, None)
        if len(self._writes) > MOST_CELLS:
            self._refuse_size()

    def get_for_update(self, column: Readable[R, V], row: R) -> V | None:
        """Read a cell and make sure that no other transaction writes it before this one commits.

        Prevents write skew on this cell: a concurrent transaction that writes it conflicts with
        this one.
        """
        value = self.get(column, row)
        cell = self._cell(column, row)
        if cell not in self._writes:
            if self._two_phase:
                self._last_changes[cell] = self._newest_change(cell)
            self._writes[cell] = (_LOCK, None)
            if len(self._writes) > MOST_CELLS:
                self._refuse_size()
        return value

    def _newest_change(self, cell: Cell) -> LastChange:
        """The newest put or delete that this transaction sees in a cell, for its lock record."""
        _, commit_ts, value = self._states((cell,))[0]
        if not commit_ts:
            return NO_CHANGE
        if value is None:
            return LastChange(commit_ts, encode_write(_DELETE, 0))
        if len(value) <= INLINE_BYTES:
            # The start_ts of a value stored inline in the record is never used.
            return LastChange(commit_ts, encode_write(_PUT, 0, value))
        records = self._context.store.entries(cell, Kind.WRITE, commit_ts, commit_ts)
        if records:
            return LastChange(*records[0])
        # Either garbage collection has removed it, as the safe point will show, or it is lost.
        self._context.store.check_safe_point(self.start_ts)
        raise DamagedRecordError(
            f"{cell} has a value committed at {commit_ts} whose write record is missing: the store "
            "is damaged. 'percola check' says where."
        )

    def notify(self, column: WeakColumn[R], row: R) -> None:
        """Notify a weak column: its observer will run for the row; never conflicts (§2.4).

        Raises UsageError, the errors of an unknown column and an unusable row, and
        TransactionTooLargeError beyond `MOST_CELLS`.
        """
        self._check_usable()
        if not isinstance(column, WeakColumn):
            raise UsageError(f"{column!r} is not a weak column: write it, and it notifies.")
        if self._silent:
            raise UsageError(
                f"{column!r} cannot be notified: this transaction was begun with notify=False."
            )
        if column.address not in self._context.columns:
            self._unknown_column(column)
        row_key = column.table.encode_row(row)
        self._context.store.check_row(column.table_name, row_key)
        self._notifications[Cell(column.table_name, row_key, column.key)] = None
        if len(self._notifications) > MOST_CELLS:
            self._refuse_size()

    def on_conflict(self, callback: Callable[[ConflictError], object]) -> None:
        """Have `callback` called with the error if the commit conflicts, before it is raised.

        For code that adapts to contention, as by spreading a hot cell over several. The callback
        must not raise, nor use this transaction. One that is given again is called once.
        """
        self._conflict_callbacks[callback] = None

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
        if not self._writes:
            return stored
        if self._own is None:
            self._own = OwnWrites(self._writes)
        return self._own.lay_over(stored, table, start, end, wanted)

    # --- The end ------------------------------------------------------------------------

    def rollback(self) -> None:
        """Abandon the transaction. Nothing of it has reached the store."""
        if self._used_up is None:
            self._used_up = "was rolled back"
        self._let_go()

    def _commit(self) -> int:
        context = self._context
        # Every call that a commit makes in Python costs it about a hundredth.
        if self._used_up is not None or self._readers is not context.readers.by_column:
            self._check_usable()
        if not (self._writes or self._notifications or self._answers):
            self._used_up = "has committed"
            self._unregister()
            if self._cache is not None:
                self._cache.end()
            return self.start_ts
        self._used_up = "has tried to commit and failed"
        marks: list[tuple[str, int]] | None = None if context.spans is None else []
        try:
            if context.one_step is not None and not self._two_phase:
                commit_ts = self._commit_one_step(context, context.one_step)
            else:
                commit_ts = self._commit_two_phase(context, marks)
        except BaseException as error:
            if marks is not None:
                self._make_span(None, marks, error)
            if isinstance(error, ConflictError):
                for callback in self._conflict_callbacks:
                    callback(error)
            raise
        finally:
            self._unregister()
            if self._cache is not None:
                self._cache.end()
        self.commit_ts = commit_ts
        self._used_up = "has committed"
        if marks is not None:
            self._make_span(commit_ts, marks, None)
        return commit_ts

    def _make_span(
        self, commit_ts: int | None, marks: Sequence[tuple[str, int]], error: BaseException | None
    ) -> None:
        spans = self._context.spans
        assert spans is not None
        answered = [ts for kind, _, ts in self._answers if kind is Kind.NOTIFY]
        spans.ended(
            self._span_name or caller() or "transaction",
            self._began,
            self.start_ts,
            commit_ts,
            cells=len(self._writes),
            causes=[*self._causes, *answered],
            marks=marks,
            observer=self._span_name,
            error=error,
        )

    def _commit_two_phase(
        self, context: TransactionContext, marks: list[tuple[str, int]] | None
    ) -> int:
        commit = TwoPhaseCommit(
            context,
            self.start_ts,
            self._writes,
            self._last_changes,
            silent=self._silent,
            marks=marks,
        )
        commit_ts = commit.run(self._notifications, self._answers)
        self.unfinished = commit.unfinished
        return commit_ts

    def _commit_one_step(self, context: TransactionContext, store: OneStepStore) -> int:
        columns = context.columns
        notified: set[str] = set()
        if self._notifications:
            notified.update(cell.table for cell in self._notifications)
        writes: list[OneStepWrite] = []
        if_observed = None if self._silent else True
        for cell, (op, value) in self._writes.items():
            is_observed = columns.get((cell[0], cell[2])) is True and op != _LOCK
            observed = if_observed if is_observed else False
            if observed:
                notified.add(cell[0])
            writes.append((cell, op, value, observed))
        for attempt in itertools.count(1):
            outcome = store.commit_one_step(
                self.start_ts, writes, tuple(self._notifications), self._answers
            )
            if not isinstance(outcome, OneStepConflict):
                if notified:
                    context.wake(notified)
                return outcome
            if outcome.lock is None:
                raise ConflictError(outcome.cell, self.start_ts, outcome.commit_ts, locked=False)
            if attempt >= _RESOLVE_ATTEMPTS:
                raise ConflictError(outcome.cell, self.start_ts, outcome.lock[0], locked=True)
            self._resolve_locks()
        raise AssertionError("unreachable")

    def _resolve_locks(self) -> None:
        """Settle the locks of two-phase transactions on this one's cells; then check again.

        All of them in one pass: a dead transaction may have locked many of the cells, and the store
        names only the first lock that it meets. Raises ConflictError for a live owner's lock.
        """
        resolver = self._context.resolver
        resolver.settle_or_conflict(resolver.locks_on(self._writes), self.start_ts)

    # --- For observers, and for writers of encoded cells; not for programs ---------------

    def _expect(self, rows: Collection[bytes]) -> None:
        """Declare the rows, encoded, that this will read; more may be added later (§2.5)."""
        if self._cache is not None and self._cache.ahead is not None:
            self._cache.ahead.expect(rows)

    def _put(self, cell: Cell, raw: bytes) -> None:
        """Write an encoded value to a cell: Percola's own, as an acknowledgment, or Spark's.

        Raises ValueTooLargeError and TransactionTooLargeError, as `set` does.
        """
        if self._bytes or len(raw) > INLINE_BYTES:
            self._count_bytes(cell, raw)
        self._writes[cell] = (_PUT, raw)
        if len(self._writes) > MOST_CELLS:
            self._refuse_size()

    def _mark_dirty(self, cell: Cell) -> None:
        """Put a notify entry of an observed or weak cell at the commit, without writing it."""
        self._notifications[cell] = None

    def _forget(self, cell: Cell) -> None:
        """Delete a cell of Percola's own, such as an acknowledgment."""
        self._writes[cell] = (_DELETE, None)

    def _answer(self, kind: Kind, cell: Cell, ts: int) -> None:
        """Delete a notify or failed entry once this transaction has committed."""
        self._answers.append((kind, cell, ts))
