"""§2.2: one attempt at one partition of a joint transaction: it locks what it writes, and waits.

An attempt is a transaction that has been through Prewrite() of figure 6 and no further;
`percola.transactions.jobs.coordinator` says what commits it. It writes without reading, and goes on
for as long as there are rows, so it differs from `percola.transactions.two_phase` in three things.

**Subtransactions.** A prewrite is refused where a cell has a write at or above start_ts (figure 6,
line 32), and a long attempt's start_ts is soon older than many a write. Since the attempt has read
nothing, nothing ties the rest of its rows to that start_ts: it draws another one and goes on there.
Each start_ts is a *subtransaction* with a primary of its own, and rows that were refused go to the
newest one. So no check of the protocol is left out, and a cell that is locked stays so until the
job ends; the subtransactions share only the moment at which they commit.

**Rows that come twice.** Of two writes of a cell in one attempt the later one counts: it replaces
the value under the attempt's own lock (P5: under the condition that it still is that lock).

**Locks in the way.** An ordinary transaction's lock is waited for: it holds locks only while it
commits, and aborts at once where it meets ours, so the two never wait for each other (P14). For
the same reason an attempt may wait for another job only if that one began earlier. What an earlier
attempt at the same partition has left is rolled back. A lock of another partition of the same job
means that both write this cell, and which of them should win is undefined: an error.

**Attempts at one partition.** An attempt begins a subtransaction by locking its primary in the
job's row, and finishes by claiming the partition. On beginning it finds:

    no other attempt          it begins
    another one running       the newer of the two rolls the other back
    one with the claim        nothing is left to do: its work counts, unless it may have come from
                              other rows (see `JointTransaction.attempt`)

Each of these is one mutation of the job's row (`percola.transactions.jobs.job_row`), conditional on
the state it was decided on. So of any number of attempts (retries, speculation, executors that were
given up but still run) exactly one has the claim in the end. The primaries of the others are rolled
back, which makes every lock they have placed, or place later, a dead transaction's lock.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from percola.cells import (
    INLINE_BYTES,
    MAX_TS,
    Cell,
    Kind,
    LockRecord,
    Op,
    decode_lock,
    decode_write,
    encode_lock,
)
from percola.clock import backoff
from percola.errors import OutcomeUnknownError, StoreError
from percola.schema import check_deletable
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.transactions.jobs.job_row import (
    JOBS,
    Claim,
    JobOverError,
    JobRow,
    RowChangedError,
    RowInTwoPartitionsError,
    RowLockedError,
    RowWrittenTwiceError,
    State,
    Subtransaction,
    SupersededError,
    primary_numbers,
)
from percola.transactions.read_cache import batches

_ATTEMPTS: Final = 8
_MOST_TRIES: Final = 1000
_FIRST_WAIT: Final = 0.001
_LONGEST_WAIT: Final = 0.25


class Part(NamedTuple):
    """A partition that has been written: what its attempt reports, and what is committed.

    Attributes:
        partition: its number.
        attempt: the attempt that has written it.
        subtransactions: how many that has.
        rows: how many rows it has written.
    """

    partition: int
    attempt: int
    subtransactions: int
    rows: int


class RowWrites(NamedTuple):
    """What is written to one row, all or nothing.

    Attributes:
        table: the table's name.
        row: the encoded row.
        cells: encoded values by column; None deletes.
        clears: whether every other cell that the row has by then is deleted as well.
        locks: columns that are locked until the commit, and not changed.
    """

    table: str
    row: bytes
    cells: Mapping[bytes, bytes | None]
    clears: bool = False
    locks: Collection[bytes] = ()


def _merged(rows: Iterable[RowWrites]) -> Collection[RowWrites]:
    """Rows of which those of one key are one: what comes later counts.

    One by one, a later row could be locked before an earlier one that others hold up, which would
    then be written over it; and a row that is cleared would not find what is not locked yet.
    """
    found: dict[tuple[str, bytes], RowWrites] = {}
    for one in rows:
        key = one.table, one.row
        if (before := found.get(key)) is not None:
            cells = dict.fromkeys(before.cells) if one.clears else before.cells
            clears = one.clears or before.clears
            one = one._replace(cells={**cells, **one.cells}, clears=clears)
        found[key] = one
    return found.values()


@dataclass(slots=True)
class _Pending:
    """A row on its way to being locked.

    Attributes:
        cells: its columns to lock, with the new values.
        held: those that this attempt has locked.
        unsure: whether the reply to its prewrite was lost.
        rolled_back: if the job has read the row, the rollback records written since, by column.
    """

    writes: RowWrites
    cells: Mapping[bytes, bytes | None]
    held: dict[bytes, int] = field(default_factory=dict)
    unsure: bool = False
    rolled_back: dict[bytes, list[int]] = field(default_factory=dict)


class Attempt:
    """An attempt that has begun; `JointTransaction.attempt` makes one. For one thread.

    Attributes:
        done: set if another attempt has written the partition already: nothing is left to do.
        conflicts: how many rows were not locked at once, because others had locked or written them.
        waited: how many seconds that took.
    """

    def __init__(
        self,
        job: JobRow,
        state: State,
        partition: int,
        attempt: int,
        retry: int,
        ttl_ms: int,
        timeout: float,
        *,
        silent: bool = False,
        read_at: int | None = None,
    ) -> None:
        self._job = job
        self._context = job.context
        self._state = state
        self._partition = partition
        self._attempt = attempt
        self._retry = retry
        self._partition_of_run = (state.run, partition)
        self._ttl_ms = ttl_ms
        self._rng = random.Random(f"{job.job}/{partition}/{attempt}")
        # The start_ts and primary of each; new rows go to the newest one.
        self._subtransactions: dict[int, Cell] = {}
        self._newest = 0
        self._timeout = timeout
        self._silent = silent
        self._read_at = read_at
        self._rows = 0
        self.conflicts = 0
        self.waited = 0.0
        self.done: Part | None = None
        while True:
            self.done = self._make_room()
            if self.done is not None or self._begin_subtransaction():
                return

    # --- Beginning ----------------------------------------------------------------------

    def _make_room(self) -> Part | None:
        """Roll back what others have left of this partition; what one of them has finished."""
        run = self._state.run
        started, claims = self._job.held()
        for one in started:
            if one.run < run:
                self._job.roll_back(one)
        for claim in claims.values():
            if claim.run < run:
                self._job.clear_claim(claim)
        held = claims.get(self._partition_of_run)
        if held is not None and held.attempt != self._attempt:
            done = self._claimed(held, started)
            if done is not None:
                return done
        for one in started:
            mine = (one.run, one.partition) == self._partition_of_run
            if mine and one.attempt != self._attempt:
                self._overtake(one)
        return None

    def _claimed(self, claim: Claim, started: Iterable[Subtransaction]) -> Part | None:
        """What the holder of this partition's claim has finished; None once the claim is removed.

        The scheduler may not know of it: the holder's process may have died in between. What came
        from other rows, or has lost a subtransaction, is rolled back.
        """
        holder = (claim.run, claim.partition, claim.attempt)
        its = [one for one in started if (one.run, one.partition, one.attempt) == holder]
        same_rows = claim.attempt > self._attempt or claim.retry < self._retry
        if len(its) == claim.subtransactions and same_rows:
            return Part(claim.partition, claim.attempt, claim.subtransactions, claim.rows)
        for one in its:
            self._job.roll_back(one)
        self._job.clear_claim(claim)
        return None

    def _overtake(self, one: Subtransaction) -> None:
        """Roll back another attempt at this partition that is under way, unless it is newer."""
        if one.attempt > self._attempt:
            self.abandon()
            raise self._superseded()
        # Not if it has finished meanwhile: then the next look finds its claim.
        self._job.roll_back(one, unless_claimed=self._job.claim_cell(*self._partition_of_run))

    def _begin_subtransaction(self) -> bool:
        """Draw a start_ts and lock its primary; False if everything has to be read again."""
        context, job = self._context, self._job
        start_ts = context.oracle.timestamp()
        cell = job.primary_cell(*self._partition_of_run, self._attempt, len(self._subtransactions))
        lock = self._lock_of(Op.LOCK, None, cell, context.clock.wall_ms(), observed=False)
        mutation = RowMutation(
            JOBS.name,
            job.key,
            [
                # No attempt begins once the job is being committed, or another run has begun.
                *job.still(self._state),
                Condition(
                    False, Kind.LOCK, job.claim_cell(*self._partition_of_run).column, 0, MAX_TS
                ),
                Condition(False, Kind.LOCK, cell.column, 0, MAX_TS),
                # Its own rollback record, if it was taken for dead before it arrived (P4).
                Condition(False, Kind.WRITE, cell.column, 0, MAX_TS),
            ],
            [Put(Kind.LOCK, cell.column, start_ts, encode_lock(lock))],
        )
        if not self._surely(mutation, cell, start_ts):
            self._check_job()
            if context.store.entries(cell, Kind.WRITE, 0, MAX_TS):
                self.abandon()
                raise self._superseded()
            return False
        self._subtransactions[start_ts] = cell
        self._newest = start_ts
        return True

    def _surely(self, mutation: RowMutation, cell: Cell, start_ts: int) -> bool:
        """Apply a mutation that locks `cell`; a lost reply is settled by reading (P6)."""
        store = self._context.store
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(OutcomeUnknownError):
                return store.mutate([mutation])[0] or self._holds(cell, start_ts)
        return self._holds(cell, start_ts)

    def _holds(self, cell: Cell, start_ts: int) -> bool:
        return bool(self._context.store.entries(cell, Kind.LOCK, start_ts, start_ts))

    def _lock_of(
        self, op: Op, value: bytes | None, primary: Cell, wall_ms: int, *, observed: bool
    ) -> LockRecord:
        # Nobody's: the process that runs the task may end long before the job does (P8).
        loud, silent = observed and not self._silent, observed and self._silent
        return LockRecord(op, primary, "", wall_ms, self._ttl_ms, loud, value, silent=silent)

    # --- Writing ------------------------------------------------------------------------

    def write(self, rows: Iterable[RowWrites]) -> None:
        """Lock the rows and put what is written to them: figure 6's Prewrite(), row by row.

        Raises SupersededError or JobOverError once this attempt counts no more,
        RowInTwoPartitionsError, RowLockedError or LockTimeoutError for a row that others keep
        locked, RowChangedError and RowWrittenTwiceError if the job has read the rows,
        ValueTooLargeError and RowTooLongError, and StoreError.
        """
        if self.done is not None:
            return
        rows = list(rows)
        self._rows += len(rows)
        waiting = []
        # Of a row that the job has read, two changes are an error.
        for writes in _merged(rows) if self._read_at is None else rows:
            cells = self._cells_of(writes)
            if cells:
                waiting.append(_Pending(writes, cells))
        tried = 0
        while waiting:
            waiting = self._prewrite(waiting)
            self._check_alive()
            if waiting:
                tried += 1
                self.conflicts += len(waiting) if tried == 1 else 0
                begun = self._context.clock.monotonic()
                self._clear_the_way(waiting, tried)
                self.waited += self._context.clock.monotonic() - begun

    def _prewrite(self, rows: Sequence[_Pending]) -> list[_Pending]:
        """Send the prewrites of rows; those that were refused, or whose reply was lost."""
        wall_ms = self._context.clock.wall_ms()
        refused: list[_Pending] = []
        sent = iter(rows)
        for batch in batches(self._prewrite_row(one, wall_ms) for one in rows):
            try:
                applied = self._context.store.mutate(batch)
                unsure = False
            except OutcomeUnknownError:
                applied = [False] * len(batch)
                unsure = True
            for done, one in zip(applied, sent, strict=False):
                if not done:
                    one.unsure = unsure
                    refused.append(one)
        return refused

    def _prewrite_row(self, one: _Pending, wall_ms: int) -> RowMutation:
        conditions: list[Condition] = []
        changes: list[Put | Delete] = []
        columns, table = self._context.columns, one.writes.table
        for column, value in one.cells.items():
            held = one.held.get(column)
            if held is None:
                start_ts = self._newest
                conditions += self._unwritten(one, column)
                conditions.append(Condition(False, Kind.LOCK, column, 0, MAX_TS))
            else:
                start_ts = held
                conditions.append(Condition(True, Kind.LOCK, column, held, held))
            op = Op.DELETE if value is None else Op.PUT
            if column in one.writes.locks:
                op = Op.LOCK
            inline = value if value is not None and len(value) <= INLINE_BYTES else None
            primary, observed = (
                self._subtransactions[start_ts],
                op is not Op.LOCK and columns.get((table, column)) is True,
            )
            lock = self._lock_of(op, inline, primary, wall_ms, observed=observed)
            changes.append(Put(Kind.LOCK, column, start_ts, encode_lock(lock)))
            if value is not None and inline is None:
                changes.append(Put(Kind.DATA, column, start_ts, value))
            elif held is not None:
                changes.append(Delete(Kind.DATA, column, start_ts))
        return RowMutation(table, one.writes.row, conditions, changes)

    def _unwritten(self, one: _Pending, column: bytes) -> Iterator[Condition]:
        """That nothing has been written to a column since our start_ts, or since it was read.

        Rollback records of others are no writes. One of ours is on the primary (P4), which has
        conditions of its own.
        """
        low = self._newest if self._read_at is None else self._read_at + 1
        for ts in one.rolled_back.get(column, ()):
            if low < ts:
                yield Condition(False, Kind.WRITE, column, low, ts - 1)
            low = ts + 1
        yield Condition(False, Kind.WRITE, column, low, MAX_TS)

    def _cells_of(self, writes: RowWrites) -> Mapping[bytes, bytes | None]:
        """What is written to a row, with the cells that are deleted because they are there."""
        if writes.locks:
            return {**dict.fromkeys(writes.locks), **writes.cells}
        if not writes.clears:
            return writes.cells
        table, row = writes.table, writes.row
        now = self._context.oracle.read_timestamp()
        there, _ = self._context.store.scan(table, row, row + b"\0", now)
        check_deletable((cell for cell, _ in there), self._context.shown)
        cells: dict[bytes, bytes | None] = {cell.column: None for cell, _ in there}
        return cells | dict(writes.cells)

    # --- What is in the way -------------------------------------------------------------

    def _clear_the_way(self, waiting: Sequence[_Pending], tried: int) -> None:
        """Look at each cell of rows that were refused; afterwards they are worth another try."""
        store, has_newer = self._context.store, False
        for one in waiting:
            table, row = one.writes.table, one.writes.row
            one.cells = self._cells_of(one.writes)
            one.held.clear()
            for column in one.cells:
                cell = Cell(table, row, column)
                for lock_ts, raw in store.entries(cell, Kind.LOCK, 0, MAX_TS):
                    if lock_ts in self._subtransactions:
                        if self._read_at is not None and not one.unsure:
                            raise RowWrittenTwiceError(
                                f"Two rows to write have the key of {self._context.shown(cell)}, "
                                "and which of the two "
                                f"should win is not defined. Nothing of the joint transaction "
                                f"{self._job.job!r} is written: keep one of the two rows."
                            )
                        one.held[column] = lock_ts
                    else:
                        self._meet(cell, lock_ts, raw)
                if column in one.held:
                    continue
                if self._read_at is not None:
                    one.rolled_back[column] = self._check_unchanged(cell, self._read_at)
                elif not has_newer:
                    has_newer = bool(store.entries(cell, Kind.WRITE, self._newest, MAX_TS))
        if tried > _MOST_TRIES:
            cell = Cell(
                waiting[0].writes.table, waiting[0].writes.row, next(iter(waiting[0].cells))
            )
            raise RowLockedError(
                f"{self._context.shown(cell)} "
                "is written by others all the time: the joint transaction "
                f"{self._job.job!r} could not lock it in {_MOST_TRIES} attempts."
            )
        if tried > 1:
            self._wait(tried)
        if has_newer and not self._begin_subtransaction():
            self.abandon()
            raise self._superseded()

    def _check_unchanged(self, cell: Cell, read_at: int) -> list[int]:
        """Raise RowChangedError if a cell has been written since; its rollback records, in order.

        A record of a lock counts as a write, as in `TwoPhaseCommit`: its transaction has read the
        cell and relies on it.
        """
        rolled_back = []
        entries = self._context.store.entries(cell, Kind.WRITE, read_at + 1, MAX_TS)
        for commit_ts, raw in reversed(entries):
            if decode_write(raw).op is not Op.ROLLBACK:
                raise RowChangedError(
                    f"{self._context.shown(cell)} "
                    f"was changed at {commit_ts}, after it had been read at {read_at}. "
                    f"Nothing of the joint transaction {self._job.job!r} is written: run it again."
                )
            rolled_back.append(commit_ts)
        return rolled_back

    def _meet(self, cell: Cell, lock_ts: int, raw: bytes) -> None:
        """Somebody else's lock is in the way: finish it, undo it, or wait until it is gone."""
        resolver, lock = self._context.resolver, decode_lock(raw)
        if self._job.owns(lock.primary):
            self._meet_sibling(cell, lock_ts, lock)
        elif lock.primary.table == JOBS.name:
            self._wait_for_job(cell, lock_ts, raw, lock)
        else:
            resolver.wait_out(cell, lock_ts, raw)

    def _meet_sibling(self, cell: Cell, lock_ts: int, lock: LockRecord) -> None:
        resolver = self._context.resolver
        fate = resolver.fate(lock.primary, lock_ts)
        if fate is None:
            run, partition, attempt, number = primary_numbers(lock.primary)
            one = Subtransaction(run, partition, attempt, number, lock_ts, lock.primary, lock)
            if run > self._state.run:
                raise self._over()
            if run < self._state.run:
                self._job.roll_back(one)
            elif partition == self._partition:
                self._overtake(one)
            else:
                raise RowInTwoPartitionsError(
                    f"{self._context.shown(cell)} "
                    f"is written by the partitions {min(partition, self._partition)} and "
                    f"{max(partition, self._partition)} of the joint transaction "
                    f"{self._job.job!r}, and which of the two should win is not defined. Keep one "
                    "of the two rows, as the newest: a repartition by the key lets either win."
                )
            fate = resolver.fate(lock.primary, lock_ts)
            if fate is None:  # It has finished, and has the claim.
                self.abandon()
                raise self._superseded()
        resolver.settle(cell, lock_ts, lock, fate)

    def _wait_for_job(self, cell: Cell, lock_ts: int, raw: bytes, lock: LockRecord) -> None:
        clock, resolver = self._context.clock, self._context.resolver
        # Of two that want each other's rows the older one gives up first. The younger one waits
        # for so long that it sees a dead job's locks run out.
        timeout = self._timeout
        if primary_numbers(lock.primary)[0] < self._state.run:
            timeout += 1.25 * lock.ttl_ms / 1000
        deadline = clock.monotonic() + timeout
        tried = 0
        while not resolver.try_resolve(cell, lock_ts, raw):
            tried += 1
            if clock.monotonic() > deadline:
                raise RowLockedError(
                    f"{self._context.shown(cell)} "
                    f"has been locked for {timeout:.0f} s by the joint transaction "
                    f"{lock.primary.row.decode(errors='replace')!r}, which is under way. Run this "
                    "one again when that one has ended."
                )
            self._wait(tried)
            self._check_alive()
            if not self._context.store.entries(cell, Kind.LOCK, lock_ts, lock_ts):
                return

    def _wait(self, tried: int) -> None:
        wait = backoff(self._rng, tried, first=_FIRST_WAIT, most=_LONGEST_WAIT)
        self._context.clock.sleep(wait)

    # --- Whether it still counts --------------------------------------------------------

    def _check_alive(self) -> None:
        """Raise SupersededError if this attempt has been rolled back."""
        if not self._holds(self._subtransactions[self._newest], self._newest):
            self._check_job()
            self.abandon()
            raise self._superseded()

    def _check_job(self) -> None:
        """Raise JobOverError if this run can do nothing more."""
        job, since = self._job, self._state.version + 1
        # A rollback record is above it as well, once a commit or a later run has failed to begin.
        changed = self._context.store.entries(job.state_cell, Kind.WRITE, since, MAX_TS, 1)
        if changed or job.changing() is not None or job.state() != self._state:
            raise self._over()

    def _over(self) -> JobOverError:
        return JobOverError(
            f"The run {self._state.run} of the joint transaction {self._job.job!r} has ended: the "
            f"attempt {self._attempt} at the partition {self._partition} comes too late."
        )

    def _superseded(self) -> SupersededError:
        return SupersededError(
            f"The attempt {self._attempt} at the partition {self._partition} of the joint "
            f"transaction {self._job.job!r} was rolled back: another attempt has taken its place, "
            "or it gave no sign of life for too long. What it wrote is not lost work: the "
            "partition is written again."
        )

    def abandon(self) -> None:
        """Roll this attempt back; whoever meets its locks removes them. Best effort."""
        with contextlib.suppress(StoreError):
            for start_ts, cell in self._subtransactions.items():
                self._context.resolver.fate(cell, start_ts, force=True)

    # --- The end ------------------------------------------------------------------------

    def finish(self) -> Part:
        """Claim the partition: from now on this attempt waits for the job's commit.

        Returns what to report, which may be another attempt's work if that one was first. Raises
        SupersededError and JobOverError.
        """
        if self.done is not None:
            return self.done
        job, newest = self._job, self._newest
        claim = job.claim_cell(*self._partition_of_run)
        said = {
            "attempt": self._attempt,
            "retry": self._retry,
            "subtransactions": len(self._subtransactions),
            "rows": self._rows,
        }
        lock = self._lock_of(
            Op.LOCK,
            json.dumps(said).encode(),
            self._subtransactions[newest],
            self._context.clock.wall_ms(),
            observed=False,
        )
        conditions = job.still(self._state)
        # All of its primaries are locked now; a client that removes one later aborts the job.
        conditions += [
            Condition(True, Kind.LOCK, cell.column, ts, ts)
            for ts, cell in self._subtransactions.items()
        ]
        conditions.append(Condition(False, Kind.LOCK, claim.column, 0, MAX_TS))
        mutation = RowMutation(
            JOBS.name,
            job.key,
            conditions,
            [Put(Kind.LOCK, claim.column, newest, encode_lock(lock))],
        )
        if self._surely(mutation, claim, newest):
            self.done = Part(self._partition, self._attempt, len(self._subtransactions), self._rows)
            return self.done
        self._check_job()
        started, claims = job.held()
        taken = claims.get(self._partition_of_run)
        self.abandon()
        if taken is not None and taken.attempt != self._attempt:
            self.done = self._claimed(taken, started)
            if self.done is not None:
                return self.done
        raise self._superseded()

    # --- Signs of life ------------------------------------------------------------------

    @contextlib.contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Refresh the job's primaries from a thread, for the length of a `with` block (P8).

        Not only this attempt's: those of partitions that are done have nobody else.
        """
        ended = threading.Event()
        seen: dict[Cell, int] = {}

        def beat() -> None:
            while not ended.wait(self._ttl_ms / 5000):
                # A store that is away for a moment; the next beat is soon enough.
                with contextlib.suppress(StoreError):
                    self._job.refresh(self._state.run, seen)

        thread = threading.Thread(target=beat, name="percola-joint", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
