"""§2.2, §2.4: waiting until observers have answered what a transaction wrote.

A change is answered when none of its notify entries is left: they have the transaction's commit_ts,
and go with the commit of the run that saw the change, or after it (rule N2), or with the mutation
that dead-letters it (rule N5).

    1. finish the transaction's commit, so that all its notify entries are there (rule N1)
    2. go over the notify entries once; at one with this commit_ts, or in place of a dead letter of
       the change (`percola failed retry`), wait until it is gone
    3. look for a dead letter of the change

After step 1 no entry with this commit_ts is added, so none can be missed behind the walk. The runs
that answered the change have committed by the end of step 2. What they wrote is waited for in the
same way, with the range of timestamps from commit_ts to the newest one: which transactions in it
were these runs is not recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

from percola.catalog import stored_schema
from percola.cells import (
    MAX_TS,
    Cell,
    Kind,
    Op,
    ack_column,
    decode_attempts,
    decode_dead_letter,
    decode_lock,
    decode_ts,
    decode_write,
    retried_letters,
)
from percola.errors import NotAnsweredError
from percola.paused import paused_observers
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.1


def wait_answered(
    context: TransactionContext, commit_ts: int, *, timeout: float, depth: int
) -> None:
    """Return once the changes of a committed transaction are answered: `Repository.wait_answered`.

    Raises NotAnsweredError.
    """
    wait = _Wait(context, timeout)
    low = high = commit_ts
    for _ in range(depth):
        wait.finish_commits(high)
        wait.until_answered(low, high)
        wait.check_dead_letters(low, high)
        low, high = commit_ts + 1, context.oracle.read_timestamp()


class _Wait:
    def __init__(self, context: TransactionContext, timeout: float) -> None:
        self._context = context
        self._timeout = timeout
        self._began = context.clock.monotonic()
        # A run may write to a table that was made since the repository was opened here.
        self._tables = sorted(table.name for table in stored_schema(context.store))
        self._waited: set[Cell] = set()

    def finish_commits(self, high: int) -> None:
        """Roll forward the locks on observed cells of transactions that have committed.

        Their notify entries come with that. A lock of a live transaction that has not committed is
        left alone: it belongs to none that is waited for. With a separate notify table, notify
        entries were put before the commit point.
        """
        context = self._context
        if context.store.has_notify_table:
            return
        settled = set()
        for table in self._tables:
            found = (
                one
                for one in walk_kind(context.store, Kind.LOCK, table)
                if one[1] < high and decode_lock(one[2]).observed
            )
            if context.resolver.try_resolve_all(found)[0]:
                settled.add(table)
        if settled:
            context.wake(settled)

    def until_answered(self, low: int, high: int) -> None:
        """Return once no notify entry from `low` to `high` is left."""
        store = self._context.store
        for table in self._tables:
            entries = walk_kind(store, Kind.NOTIFY, table)
            for cell, group in itertools.groupby(entries, key=lambda entry: entry[0]):
                found = [(ts, raw) for _, ts, raw in group]
                while (ts := self._awaited(cell, found, low, high)) is not None:
                    self._waited.add(cell)
                    while store.entries(cell, Kind.NOTIFY, ts, ts, 1):
                        self._pause(cell, ts)
                    found = store.entries(cell, Kind.NOTIFY, low, MAX_TS)

    def _awaited(
        self, cell: Cell, found: Iterable[tuple[int, bytes]], low: int, high: int
    ) -> int | None:
        """The timestamp of a notify entry, of these of a cell, for a change from `low` to `high`.

        One above that is so as well if it stands in place of the dead letter of such a change.
        """
        for ts, raw in found:
            if low <= ts <= high:
                return ts
            if ts > high and any(
                self._is_about(cell, observer, letter, low, high)
                for observer, letter in retried_letters(decode_attempts(raw)).items()
            ):
                return ts
        return None

    def _pause(self, cell: Cell, ts: int) -> None:
        """Sleep for a part of the time waited so far, so that short waits are noticed soon."""
        clock = self._context.clock
        elapsed = clock.monotonic() - self._began
        if elapsed >= self._timeout:
            column = f"{cell.table}.{cell.column.decode()}"
            paused = [
                one
                for one in paused_observers(self._context.store).values()
                if column in one.columns
            ]
            why = (
                f"{'It is paused' if len(paused) == 1 else 'They are paused'}: "
                f"{', '.join(map(str, paused))}. 'percola observers resume NAME' resumes an "
                "observer."
                if paused
                else "Is a worker with its observer running? 'percola status' counts dirty cells "
                "and lists the processes."
            )
            raise NotAnsweredError(
                f"No observer has answered the change of {cell} at {ts} within "
                f"{self._timeout:g} s. {why}"
            )
        pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, elapsed / 4))
        clock.sleep(min(pause, self._timeout - elapsed))

    def check_dead_letters(self, low: int, high: int) -> None:
        """Raise NotAnsweredError if a change from `low` to `high` was dead-lettered."""
        for table in self._tables:
            for failed, ts, raw in walk_kind(self._context.store, Kind.FAILED, table):
                if ts < low:
                    continue
                letter = decode_dead_letter(raw)
                cell = Cell(table, failed.row, letter.column.encode())
                if self._is_about(cell, letter.observer, ts, low, high):
                    raise NotAnsweredError(
                        f"The change of {cell} was dead-lettered for the observer "
                        f"{letter.observer}: {letter.error}. 'percola failed' shows its "
                        f"traceback, 'percola failed retry --observer {letter.observer}' runs the "
                        "observer again."
                    )

    def _is_about(self, cell: Cell, observer: str, ts: int, low: int, high: int) -> bool:
        """Whether a cell's dead letter at `ts` is for a change from `low` to `high`.

        It has the timestamp of the newest change that its run had to handle, so one above `high`
        may be for an older change of the cell, too, unless an earlier run has acknowledged that.
        """
        if ts <= high:
            return ts >= low
        if self._is_acknowledged(cell, observer, high):
            return False  # A later change was dead-lettered.
        return cell in self._waited or self._was_written(cell, low, high)

    def _is_acknowledged(self, cell: Cell, observer: str, high: int) -> bool:
        """Whether a committed run of the observer has seen all changes of the cell up to `high`."""
        ack = Cell(cell.table, cell.row, ack_column(observer, cell.column))
        for _, raw in self._context.store.entries(ack, Kind.WRITE, high, MAX_TS):
            record = decode_write(raw)
            if record.op is Op.PUT and record.value and decode_ts(record.value) >= high:
                return True
        return False

    def _was_written(self, cell: Cell, low: int, high: int) -> bool:
        records = self._context.store.entries(cell, Kind.WRITE, low, high)
        return any(decode_write(raw).op in (Op.PUT, Op.DELETE) for _, raw in records)
