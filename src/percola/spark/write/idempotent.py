"""§2.4 Idempotent writes of a partition in small transactions, row by row or chunk by chunk.

Spark reruns a task that it has lost, and sometimes the lost attempt still runs. So each
partition has a claim, the cell `task:PARTITION` of the write's row in `percola-jobs`, which every
transaction reads and writes together with its rows:

    {"attempt": 7, "since": 120, "done": false}

A new attempt writes its own number there. From then on the next transaction of the old attempt
reads another number, or conflicts with the transaction that wrote it, and ends (figure 6 ensures
both). When the whole write has ended, its claims are deleted, which ends zombie attempts as well.

An attempt that finds a claim does not know which rows its predecessor has written. It reads before
it writes, and skips every cell with a commit above `since`, the timestamp at which the first
attempt began: either the predecessor wrote it, or another client did after the write began, and a
retry must not overwrite that. So each row is written once, and no observer is notified twice.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from percola import (
    CommitUnknownError,
    ConflictError,
    Repository,
    Table,
    Transaction,
    TransientError,
)
from percola.cells import Cell
from percola.clock import backoff
from percola.schema import Column, check_deletable
from percola.transactions.jobs import JOBS, JobOverError, RowLockedError, RowWrites, SupersededError
from percola.transactions.jobs.job_row import ABORTED, COMMITTED, RUNNING, STATE, TASKS

_FIRST_WAIT: Final = 0.001
_LONGEST_WAIT: Final = 0.25
_SURELY_SHORT: Final = 96
_BEGINNINGS: Final = 1_000
"""How often a partition tries to begin: all that begin at once conflict on the write's state."""

_CELLS: Final = 500_000
"""A commit takes no further row that would make it more cells: a transaction has a limit."""

_COLUMNS: Final = 10_000
"""How many columns are remembered: the rows of a task may have many millions in families."""


class MarkedPartition:
    """One attempt at a partition; the constructor takes over the partition claim.

    Args:
        job: the write's name.
        attempt: unique to the write, and higher than those of earlier attempts.
        retry: how many attempts at the same rows there were before (`JointTransaction.attempt`).
        row_by_row: whether rows are independent: a row in conflict delays no other, although
            several share a commit.
        timeout: how many seconds a row or chunk may be in conflict.
        notify: whether writes of observed columns notify (`Repository.transaction`).

    Raises JobOverError if the write has ended, SupersededError if a later attempt is under way.

    Attributes:
        done: whether an earlier attempt has written the whole partition.
        rows: how many rows have been written.
        conflicts: how many commits were refused on the way.
        waited: how many seconds rows were held up by that.
    """

    def __init__(
        self,
        repo: Repository,
        job: str,
        table: Table[Any],
        partition: int,
        attempt: int,
        retry: int,
        *,
        row_by_row: bool,
        timeout: float,
        notify: bool = True,
    ) -> None:
        self._repo = repo
        self._context = repo.context
        self._job = job
        self._table = table
        self._marker = TASKS[str(partition)]
        self._attempt = attempt
        self._retry = retry
        self._row_by_row = row_by_row
        self._timeout = timeout
        self._notify = notify
        self._rng = random.Random(f"{job}/{partition}/{attempt}")
        self._columns: dict[bytes, Column[Any, Any]] = {}
        self.rows = 0
        self.conflicts = 0
        self.waited = 0.0
        before = repo.run(self._begin, attempts=_BEGINNINGS)
        self._since: int = before["since"]
        self._again: bool = before["attempt"] != attempt
        self.done: bool = before["done"]

    def _begin(self, t: Transaction) -> dict[str, Any]:
        """Take over the partition claim; return its previous value."""
        state = t.get_for_update(STATE, self._job)
        if state is None:
            t.set(STATE, self._job, _said(self._repo, RUNNING))
        elif state["is"] != RUNNING:
            raise self._over()
        found = t.get(self._marker, self._job)
        if found is None:
            found = {"attempt": self._attempt, "since": t.start_ts, "done": False}
        elif found["attempt"] > self._attempt:
            raise self._superseded()
        elif found["done"] and found["retry"] >= self._retry:
            found["done"] = False  # The earlier attempt may have had other input rows.
        self._since = found["since"]
        t.set(self._marker, self._job, self._mine(done=found["done"]))
        return found

    def _mine(self, *, done: bool = False) -> dict[str, Any]:
        return {
            "attempt": self._attempt,
            "retry": self._retry,
            "since": self._since,
            "done": done,
        }

    # --- Writing ------------------------------------------------------------------------

    def write(self, rows: Sequence[RowWrites]) -> None:
        """Write rows: a chunk as one transaction, or the rows independently.

        A chunk of very many cells is several transactions.

        Raises SupersededError if another attempt has taken over, RowLockedError if conflicts last
        longer than the timeout, and StoreError.
        """
        for row in rows:
            if len(row.row) > _SURELY_SHORT:
                self._context.store.check_row(row.table, row.row)
        clock = self._context.clock
        deadline = clock.monotonic() + self._timeout
        waiting, tried, refused = list(rows), 0, 0.0
        while waiting:
            if tried == 1:
                refused = clock.monotonic()
            if tried > 1:
                wait = backoff(self._rng, tried, first=_FIRST_WAIT, most=_LONGEST_WAIT)
                clock.sleep(wait)
            tried += 1
            held_up: list[RowWrites] = []
            why = self._commit_most(waiting, held_up)
            waiting = held_up
            if waiting and clock.monotonic() > deadline:
                raise RowLockedError(
                    f"{len(waiting):,} rows could not be written in {self._timeout:.0f} s. {why}"
                ) from why
        if tried > 1:
            self.waited += clock.monotonic() - refused
        self.rows += len(rows)

    def _commit_most(
        self, rows: list[RowWrites], held_up: list[RowWrites]
    ) -> TransientError | None:
        """Commit rows without conflicts; add the others to `held_up`; return the last error."""
        why: TransientError | None = None
        while rows:
            try:
                with self._repo.transaction(notify=self._notify) as t:
                    put = self._put(t, rows)
            except ConflictError as conflict:
                why = conflict
                self.conflicts += 1
                at = conflict.cell[:2]
                if self._row_by_row and at[0] != JOBS.name:
                    held_up += [row for row in rows if (row.table, row.row) == at]
                    rows = [row for row in rows if (row.table, row.row) != at]
                    continue
                held_up += rows
                return why
            except TransientError as error:
                held_up += rows
                self.conflicts += 1
                return error
            except CommitUnknownError:
                # It may have committed: look before writing the same once more.
                self._again = True
                continue
            rows = rows[put:]
        return why

    def _put(self, t: Transaction, rows: Sequence[RowWrites]) -> int:
        """Write the first rows, as many as one transaction takes; return how many."""
        found = t.get(self._marker, self._job)
        if found is None:
            raise self._over()
        if found["attempt"] != self._attempt:
            raise self._superseded()
        t.set(self._marker, self._job, self._mine())
        put = t._put
        for at, one in enumerate(rows):
            cells = self._cleared(t, one) if one.clears else one.cells
            if at and len(t._writes) + len(cells) > _CELLS:
                return at
            for name, raw in cells.items():
                if self._again and t.version(*self._address(one.row, name)) > self._since:
                    continue
                if raw is None:
                    t.delete(*self._address(one.row, name))
                else:
                    put(Cell(one.table, one.row, name), raw)
        return len(rows)

    def _cleared(self, t: Transaction, one: RowWrites) -> Mapping[bytes, bytes | None]:
        """What is written to a row of which every other cell is deleted."""
        there = t.get_row(self._table, self._table.decode_row(one.row))
        cells = {column.key: None for column, _ in there._all_items()} | dict(one.cells)
        check_deletable((Cell(one.table, one.row, name) for name in cells), self._table.shown)
        return cells

    def _address(self, row: bytes, name: bytes) -> tuple[Column[Any, Any], Any]:
        """A cell as a transaction takes it: its column and row."""
        return self._column(name), self._table.decode_row(row)

    def _column(self, name: bytes) -> Column[Any, Any]:
        column = self._columns.get(name)
        if column is None:
            found = self._table.resolve(name.decode())
            assert isinstance(found, Column)
            if len(self._columns) >= _COLUMNS:
                self._columns.clear()
            column = self._columns[name] = found
        return column

    # --- The end ------------------------------------------------------------------------

    def finish(self) -> None:
        """Say that the whole partition has been written; SupersededError if that counts no more."""

        def finish(t: Transaction) -> None:
            found = t.get(self._marker, self._job)
            if found is None:
                raise self._over()
            if found["attempt"] != self._attempt:
                raise self._superseded()
            t.set(self._marker, self._job, self._mine(done=True))

        self._repo.run(finish)

    def _over(self) -> JobOverError:
        return JobOverError(
            f"The write {self._job!r} has ended: the attempt {self._attempt} comes too late."
        )

    def _superseded(self) -> SupersededError:
        return SupersededError(
            f"Another attempt has taken over from the attempt {self._attempt} of the write "
            f"{self._job!r}: it goes on from here."
        )


def end(repo: Repository, job: str, *, committed: bool) -> None:
    """End a write: no new attempt can begin, and no running one commits another row."""

    def end(t: Transaction) -> None:
        for column, _ in t.get_row(JOBS, job, [TASKS]).items():
            t.delete(column, job)
        t.set(STATE, job, _said(repo, COMMITTED if committed else ABORTED))

    repo.run(end)


def _said(repo: Repository, what: str) -> dict[str, Any]:
    return {"run": 0, "is": what, "rows": 0, "at": repo.context.clock.wall_ms()}
