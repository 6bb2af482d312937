"""§2.2: a joint transaction: many processes write it, and it commits in one row mutation.

A Spark job's tasks each write a partition, on any machine, several times over if need be; and what
they write is to become visible at once, or not at all. Here each attempt at a partition is a
transaction of figure 6 that stops after Prewrite(). What makes them one is where their primaries
stand: all of them are cells of *one row* (`percola.transactions.jobs.job_row`), and a row mutation
is atomic.

    attempt 7, start_ts 30   primary 30: lock             docs: lock → primary 30   other rows …
    attempt 9, start_ts 33   primary 33: lock             docs: lock → primary 33
    attempt 8, which failed  primary 31: rolled back      docs: lock → primary 31: the next client
                                                          that meets it removes it
    commit                   state    40: lock
                             commit_ts = 41
                             ONE MUTATION: 30, 33 and 40: lock → write record at 41
    roll forward             docs: lock → write record at 41, by us or by a client that meets it

The rules are the protocol's own, and hold for each subtransaction of an attempt:

P1-P2   Its start_ts comes from the oracle, before its primary is locked; commit_ts is drawn after
        `state` is locked, and a partition is reported after its last prewrite was acknowledged.
        Once `state` is locked, no attempt begins and none claims a partition.
P3      Its primary is locked before any cell that names it.
P4      It is undone by a rollback record on its primary; a primary that has one, or whose job has
        changed its state, is not locked. So a zombie begins nothing after the end.
P5-P6   All that removes or replaces a lock names it; all of it can be repeated.
P7      The commit point is `TwoPhaseCommit.commit_primary` on `state`, with more in the mutation.
P8      The locks carry no owner's token, for the processes of a job come and go: they live by being
        refreshed, by any task of the job. A client that sees one stale for its time to live rolls
        the subtransaction back; the commit is conditional on all of their locks, so then the job
        aborts.
P9-P10  A reader waits for locks below its start_ts, and then reads again, but only for as long as
        `state` is locked by a transaction that began below its start_ts: before, the job can only
        commit above it (`percola.transactions.lock_resolver`). So nobody waits for a long job.
P11     One-step commits respect locks; nothing is committed in one step here but `state`'s
        "running", which is an ordinary transaction.
P12     A job's locks keep the safe point below its start timestamps. It is checked, for the oldest
        one, after everything is locked.
P13     What is retried is the attempt, with a new start_ts, from Spark's rows. If the job has not
        read what it writes, nothing in them can be out of date. If it has, at `read_at`, no cell
        may have been written since then, rather than since the attempt's start_ts.
P14     A primary is a cell of its own, whatever is written, so it is chosen before the write set is
        final; `percola.transactions.jobs.attempt` says who waits for whom.

A job has *runs*: a streaming batch that failed is written again after a restart, under the same
name. Each run is a timestamp of the oracle, and a later one puts an end to earlier ones: their
attempts are rolled back and cannot begin again. Once a run has committed, the job has, for good.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Any, Final

from percola.cells import Cell, Kind, LockRecord, Op, decode_lock
from percola.errors import RolledBackError, StoreError, TransactionTooLargeError
from percola.repository import Repository
from percola.store.base import Condition, RowMutation
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext
from percola.transactions.jobs.attempt import Attempt, Part
from percola.transactions.jobs.job_row import (
    ABORTED,
    COMMITTED,
    JOBS,
    RUNNING,
    STATE,
    Claim,
    JobOverError,
    JobRow,
    JointError,
    State,
    Subtransaction,
)
from percola.transactions.lock_resolver import Fate, commit_changes
from percola.transactions.read_cache import BATCH_ROWS
from percola.transactions.transaction import Transaction
from percola.transactions.two_phase import TwoPhaseCommit

TTL_SECONDS: Final = 120.0
"""How long a job may go without a sign of life before others may roll it back."""

LOCK_TIMEOUT: Final = 60.0
"""Seconds that an attempt waits for another job's lock."""


class JointTransaction:
    """One run of a joint transaction, as one of its processes sees it.

    Args:
        repo: the repository, opened with the table `JOBS`.
        job: its name: what is committed under it is committed once.
        run: `new_run` of the repository, the same in all processes of this run.
        tables: the tables that it writes.
        ttl_seconds: how long it may go without a sign of life (`Attempt.kept_alive`).
        timeout: how many seconds an attempt waits for a lock of another job.
        notify: whether its writes of observed columns notify (`Repository.transaction`).
        read_at: the timestamp at which it has read the rows that it writes, if it has: each may be
            written once, and only if none of the cells written or locked has been written since.
    """

    def __init__(
        self,
        repo: Repository,
        job: str,
        run: int,
        tables: Iterable[str],
        *,
        ttl_seconds: float = TTL_SECONDS,
        timeout: float = LOCK_TIMEOUT,
        notify: bool = True,
        read_at: int | None = None,
    ) -> None:
        self._repo = repo
        self._run = run
        self._tables = list(tables)
        self._ttl_ms = int(ttl_seconds * 1000)
        self._timeout = timeout
        self._silent = not notify
        self._read_at = read_at
        self._row = JobRow(repo, job)
        self._context = repo.context

    # --- Attempts -----------------------------------------------------------------------

    def committed(self) -> int | None:
        """The commit_ts of the job, if this or another run of it has committed; else None."""
        state = self._row.state()
        return state.version if state is not None and state.what == COMMITTED else None

    def attempt(self, partition: int, attempt: int, retry: int = 0) -> Attempt | None:
        """Begin to write a partition; None if the job has committed: nothing is left to do.

        Args:
            partition: its number in this run.
            attempt: unique to the run, and higher than those of earlier attempts.
            retry: how many attempts at the same rows there were before, as the scheduler counts.
                It begins at 0 again if the rows had to be computed anew and may be others; then
                what an earlier attempt has finished does not count.

        Raises JobOverError if this run has ended, SupersededError if a later attempt is under way.
        """
        state = self._begin()
        if state is None:
            return None
        return Attempt(
            self._row,
            state,
            partition,
            attempt,
            retry,
            self._ttl_ms,
            self._timeout,
            silent=self._silent,
            read_at=self._read_at,
        )

    def _begin(self) -> State | None:
        """The state in which this run writes; None if the job has committed."""
        self._end_older_change()

        def begin(t: Transaction) -> dict[str, Any]:
            found = t.get(STATE, self._row.job)
            if found is None or (found["is"] != COMMITTED and found["run"] < self._run):
                found = self._said(RUNNING)
                t.set(STATE, self._row.job, found)
            return found

        found = self._repo.run(begin)
        if found["is"] == COMMITTED:
            return None
        state = self._row.state()
        if state is None or state[:2] != (self._run, RUNNING):
            raise self._over(found)
        return state

    def _end_older_change(self) -> None:
        """What an earlier run was about to make of the state is decided here and now."""
        changing = self._row.changing()
        if changing is not None and changing[2]["run"] < self._run:
            start_ts, lock, _ = changing
            resolver = self._context.resolver
            fate = resolver.fate(self._row.state_cell, start_ts, force=True)
            if fate is not None:
                resolver.settle(self._row.state_cell, start_ts, lock, fate)

    def _said(self, what: str, rows: int = 0) -> dict[str, Any]:
        at = self._context.clock.wall_ms()
        return {"run": self._run, "is": what, "rows": rows, "at": at}

    def _over(self, found: dict[str, Any]) -> JobOverError:
        what = f"it is {found['is']}"
        if found["run"] != self._run:
            what += f" by a later run, {found['run']}"
        return JobOverError(
            f"The run {self._run} of the joint transaction {self._row.job!r} cannot go on: {what}."
        )

    # --- Commit -------------------------------------------------------------------------

    def commit(self, parts: Sequence[Part]) -> int:
        """Commit what the partitions' attempts have written: all of it, at the returned commit_ts.

        `parts` are what `Attempt.finish` returned, one for each partition. If the job has committed
        before, nothing is committed, and what may be left to roll forward is.

        Raises JointError if an attempt was rolled back meanwhile, JobOverError if this run has
        ended, CommitUnknownError if the store went away at the commit point, and StoreError.
        Afterwards call `abort`, in any case: it does nothing if the job has committed.
        """
        commit_ts = self._commit(parts)
        # What cannot be rolled forward now is by whoever meets it.
        with contextlib.suppress(StoreError):
            self.settle()
        return commit_ts

    def _commit(self, parts: Sequence[Part]) -> int:
        self._begin()
        # Begun like any transaction that reads and writes the state, committed with more in it.
        with self._repo.transaction(two_phase=True) as t:
            found = t.get(STATE, self._row.job)
            assert found is not None
            if found["is"] == COMMITTED:
                return t.version(STATE, self._row.job)
            if (found["run"], found["is"]) != (self._run, RUNNING):
                raise self._over(found)
            subtransactions, claims = self._winners(parts)
            said = STATE.encode_value(self._said(COMMITTED, sum(part.rows for part in parts)))
            commit = _JointCommit(
                self._context,
                t.start_ts,
                self._row,
                said,
                subtransactions,
                claims,
                self._tables,
                self._read_at,
            )
            try:
                commit_ts = commit.run((), ())
            except RolledBackError:
                commit.undo(self._row.state_cell)
                self._winners(parts)
                raise
            except TransactionTooLargeError as error:
                commit.undo(self._row.state_cell)
                raise JointError(
                    f"The {len(parts)} partitions of the joint transaction {self._row.job!r} "
                    "commit by one mutation of its row, and it has to find a lock of each: "
                    f"{len(subtransactions)} locks are too many for this store. Nothing of it has "
                    "been committed: write fewer partitions, as by coalesce(100), or with a lower "
                    "spark.sql.shuffle.partitions."
                ) from error
            t.rollback()
        return commit_ts

    def _winners(self, parts: Sequence[Part]) -> tuple[list[Subtransaction], list[Claim]]:
        """What the attempts that are to commit have locked; JointError if something is gone."""
        started, claims = self._row.held()
        by_attempt: dict[tuple[int, int], list[Subtransaction]] = {}
        for one in started:
            if one.run == self._run:
                key = one.partition, one.attempt
                by_attempt.setdefault(key, []).append(one)
        subtransactions: list[Subtransaction] = []
        taken: list[Claim] = []
        for partition, found in itertools.groupby(sorted(parts), key=lambda part: part.partition):
            part, *others = found
            if others:
                raise JointError(
                    f"The partition {partition} of the joint transaction {self._row.job!r} was "
                    "reported twice. Nothing of it has been committed."
                )
            claim = claims.get((self._run, partition))
            its = by_attempt.get((partition, part.attempt), [])
            if claim is None or claim.attempt != part.attempt or len(its) != claim.subtransactions:
                raise JointError(
                    f"The attempt {part.attempt} at the partition {partition} of the joint "
                    f"transaction {self._row.job!r} was rolled back before the job could commit: "
                    "it gave no sign of life for its time to live, or another one has taken its "
                    "place. Nothing of the job has been committed: run it again, with a longer "
                    "time to live if its processes may stand still for so long."
                )
            subtransactions += its
            taken.append(claim)
        return subtransactions, taken

    # --- Abort --------------------------------------------------------------------------

    def abort(self) -> bool:
        """End this run without committing; False if the job has committed. Raises StoreError.

        Nothing of the run becomes visible any more; what it has locked is free again.
        """
        self._end_older_change()

        def end(t: Transaction) -> dict[str, Any]:
            found = t.get(STATE, self._row.job)
            if found is None or (found["is"] != COMMITTED and found["run"] <= self._run):
                if found is None or found["is"] != ABORTED or found["run"] < self._run:
                    t.set(STATE, self._row.job, self._said(ABORTED))
                found = self._said(ABORTED)
            return found

        found = self._repo.run(end)
        self.settle(self._run if found["is"] == ABORTED and found["run"] == self._run else 0)
        return bool(found["is"] != COMMITTED)

    # --- What is left -------------------------------------------------------------------

    def settle(self, run: int | None = None) -> None:
        """Roll forward or back whatever an ended run has locked.

        With `run`, that run and earlier ones have ended; without, all of the job has. Whoever
        meets a lock does the same; here it is done for all of them.
        """
        row = self._row
        started, claims = row.held()
        for one in started:
            if run is None or one.run <= run:
                row.roll_back(one)
        for claim in claims.values():
            row.clear_claim(claim)
        self._context.resolver.settle_all(self._decided())
        self._context.wake(self._tables)

    def _decided(self) -> Iterator[tuple[Cell, int, LockRecord, Fate]]:
        """The job's locks in the tables that it writes, whose outcome is known."""
        store, resolver = self._context.store, self._context.resolver
        fates: dict[int, Fate | None] = {}
        for table in self._tables:
            locks = walk_kind(store, Kind.LOCK, table, first=BATCH_ROWS, limit=BATCH_ROWS)
            for cell, start_ts, raw in locks:
                lock = decode_lock(raw)
                if not self._row.owns(lock.primary):
                    continue
                if start_ts not in fates:
                    fates[start_ts] = resolver.fate(lock.primary, start_ts)
                fate = fates[start_ts]
                if fate is not None:
                    yield cell, start_ts, lock, fate


class _JointCommit(TwoPhaseCommit):
    """Commits the job's state, and in the same mutation every winning primary and claim."""

    def __init__(
        self,
        context: TransactionContext,
        start_ts: int,
        row: JobRow,
        said: bytes,
        subtransactions: Sequence[Subtransaction],
        claims: Sequence[Claim],
        tables: Iterable[str],
        read_at: int | None,
    ) -> None:
        super().__init__(context, start_ts, {row.state_cell: (int(Op.PUT), said)})
        self._is_volatile = False
        self._row, self._written = row, list(tables)
        self._joined: list[Subtransaction | Claim] = [*subtransactions, *claims]
        oldest_ts = min((one.start_ts for one in self._joined), default=start_ts)
        self._oldest_ts = oldest_ts if read_at is None else min(oldest_ts, read_at)
        self._seen: dict[Cell, int] = {}

    def _tables(self) -> Collection[str]:
        return self._written

    def _changed_rows(self, tables: Collection[str]) -> Iterator[tuple[str, bytes, Set[int]]]:
        """All that was written, with each start_ts of the subtransactions that did."""
        changing = (one for one in self._held(tables) if one[2].op is not Op.LOCK)
        for (table, row), group in itertools.groupby(changing, key=lambda one: one[0][:2]):
            yield table, row, {start_ts for _, start_ts, _ in group}

    def _to_notify(self, notifications: Iterable[Cell]) -> Iterator[Cell]:
        """With a separate notify table: all that was written to observed columns."""
        yield from super()._to_notify(notifications)
        if not self._has_notify_table:
            return
        observed = {table for (table, _), is_so in self._context.columns.items() if is_so}
        yield from (
            cell
            for cell, _, lock in self._held(observed.intersection(self._written))
            if lock.observed
        )

    def _held(self, tables: Iterable[str]) -> Iterator[tuple[Cell, int, LockRecord]]:
        """The locks in tables of the subtransactions that this commits, in the order of cells."""
        store, committing = self._context.store, {one.start_ts for one in self._joined}
        for table in sorted(tables):
            locks = walk_kind(store, Kind.LOCK, table, first=BATCH_ROWS, limit=BATCH_ROWS)
            for cell, start_ts, raw in locks:
                if start_ts in committing:
                    yield cell, start_ts, decode_lock(raw)

    def _refresh_if_due(self, primary: Cell) -> None:
        """Refresh the primaries with the state: no task refreshes them any more."""
        before = self._refreshed
        super()._refresh_if_due(primary)
        if self._refreshed != before:
            for run in {one.run for one in self._joined if isinstance(one, Subtransaction)}:
                with contextlib.suppress(StoreError):
                    self._row.refresh(run, self._seen)

    def _prepare(self, groups: Sequence[Sequence[Cell]], primary: Cell) -> None:
        """None: its commit point is another."""

    def _commit_point(self, cells: Sequence[Cell], primary: Cell, commit_ts: int) -> RowMutation:
        mutation = super()._commit_point(cells, primary, commit_ts)
        conditions, changes = list(mutation.conditions), list(mutation.changes)
        for one in self._joined:
            column, start_ts = one.cell.column, one.start_ts
            conditions.append(Condition(True, Kind.LOCK, column, start_ts, start_ts))
            changes += commit_changes(column, start_ts, commit_ts, one.lock)
        return RowMutation(mutation.table, mutation.row, conditions, changes)


def new_run(repo: Repository) -> int:
    """A number for a run: above those of all runs before. Raises StoreError."""
    return repo.context.oracle.timestamp()


def forget(repo: Repository, jobs: Iterable[str]) -> None:
    """Delete what is kept of jobs that ended long ago: nobody will ask for it, or join them."""

    def delete(t: Transaction, job: str) -> None:
        for column, _ in t.get_row(JOBS, job).items():
            t.delete(column, job)

    for job in jobs:
        repo.run(partial(delete, job=job))


def jobs_before(repo: Repository, prefix: str, wall_ms: int, most: int) -> list[str]:
    """Up to `most` jobs with a prefix whose state was written before a wall clock's time, in ms.

    Their names have to be in the order in which they began: those that began after the first whose
    state is newer are not read, however many there are.
    """
    with repo.snapshot() as snapshot:
        rows = snapshot.scan(JOBS, prefix=prefix, columns=[STATE])
        old = itertools.takewhile(lambda row: row[STATE]["at"] < wall_ms, rows)
        return [row.key for row in itertools.islice(old, most)]
