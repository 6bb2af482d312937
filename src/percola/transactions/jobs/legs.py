"""§2.2: what an attempt of a joint transaction has in the job's row: its legs and its seat.

An attempt at a partition (`percola.transactions.jobs.attempt`) begins a leg by locking a marker, as
often as it needs another start_ts, and finishes by taking the partition's seat:

    no other attempt is there       it begins
    one is under way                the newer one of the two rolls the other back
    one has the seat                nothing is left to do: its work counts, unless it may have come
                                    from other rows (`JointTransaction.attempt` says when)

Each of these is one mutation of the job's row (`percola.transactions.jobs.job_row`), conditional on
what it was decided upon. So however many attempts there are (retries, speculation, zombies of
executors that were given up), one of them has the seat in the end; the markers of the others are
rolled back, which makes whatever they have locked, or lock later, a dead transaction's locks.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from typing import Final, NamedTuple

from percola.cells import MAX_TS, Cell, Kind, LockRecord, Op, encode_lock
from percola.errors import OutcomeUnknownError, StoreError
from percola.store.base import Condition, Put, RowMutation
from percola.transactions.jobs.job_row import (
    JOBS,
    JobOverError,
    JobRow,
    Marker,
    Seat,
    State,
    SupersededError,
)

_ATTEMPTS: Final = 8


class Part(NamedTuple):
    """A partition that has been written: what its attempt reports, and what is committed.

    Attributes:
        partition: its number.
        attempt: the attempt that has written it.
        legs: how many legs that has.
        rows: how many rows it has written.
    """

    partition: int
    attempt: int
    legs: int
    rows: int


class Legs:
    """An attempt as the job's row knows it; it has begun once this has been made.

    Attributes:
        done: set if another attempt has written the partition already: nothing is left to do.
    """

    def __init__(
        self,
        job: JobRow,
        state: State,
        partition: int,
        attempt: int,
        retry: int,
        ttl_ms: int,
    ) -> None:
        self._job = job
        self._context = job.context
        self._state = state
        self._partition = partition
        self._attempt = attempt
        self._retry = retry
        self._seat = (state.run, partition)
        self._ttl_ms = ttl_ms
        self._rng = random.Random(f"{job.job}/{partition}/{attempt}")
        # Each leg's start_ts and marker; new rows go to the newest one.
        self._legs: dict[int, Cell] = {}
        self._newest = 0
        self.done: Part | None = None
        while True:
            self.done = self._make_room()
            if self.done is not None or self._begin_leg():
                return

    # --- Beginning ----------------------------------------------------------------------

    def _make_room(self) -> Part | None:
        """Roll back what others have left of this partition; what one of them has finished."""
        run = self._state.run
        markers, seats = self._job.held()
        for marker in markers:
            if marker.run < run:
                self._job.roll_back(marker)
        for seat in seats.values():
            if seat.run < run:
                self._job.clear_seat(seat)
        seat_held = seats.get(self._seat)
        if seat_held is not None and seat_held.attempt != self._attempt:
            done = self._seated(seat_held, markers)
            if done is not None:
                return done
        for marker in markers:
            mine = (marker.run, marker.partition) == self._seat
            if mine and marker.attempt != self._attempt:
                self._overtake(marker)
        return None

    def _seated(self, seat: Seat, markers: Iterable[Marker]) -> Part | None:
        """What the holder of this partition's seat has finished; None once it has lost the seat.

        The scheduler may not have heard of it: its process may have died in between. What came
        from other rows, or has lost a leg, is rolled back.
        """
        holder = (seat.run, seat.partition, seat.attempt)
        legs = [one for one in markers if (one.run, one.partition, one.attempt) == holder]
        same_rows = seat.attempt > self._attempt or seat.retry < self._retry
        if len(legs) == seat.legs and same_rows:
            return Part(seat.partition, seat.attempt, seat.legs, seat.rows)
        for marker in legs:
            self._job.roll_back(marker)
        self._job.clear_seat(seat)
        return None

    def _overtake(self, marker: Marker) -> None:
        """Roll back another attempt at this partition that is under way, unless it is newer."""
        if marker.attempt > self._attempt:
            self.abandon()
            raise self._superseded()
        # Not if it has finished meanwhile: then the next look finds its seat.
        self._job.roll_back(marker, unless_seated=self._job.seat_cell(*self._seat))

    def _begin_leg(self) -> bool:
        """Draw a start_ts and lock its marker; False if everything has to be looked at again."""
        context, job = self._context, self._job
        start_ts = context.oracle.timestamp()
        cell = job.marker_cell(*self._seat, self._attempt, len(self._legs))
        lock = self._lock_of(Op.LOCK, None, cell, context.clock.wall_ms(), observed=False)
        mutation = RowMutation(
            JOBS.name,
            job.key,
            [
                # No attempt begins once the job is being committed, or another run has begun.
                *job.still(self._state),
                Condition(False, Kind.LOCK, job.seat_cell(*self._seat).column, 0, MAX_TS),
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
        self._legs[start_ts] = cell
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
        return LockRecord(op, primary, "", wall_ms, self._ttl_ms, observed, value)

    # --- Whether it still counts --------------------------------------------------------

    def _check_alive(self) -> None:
        """Raise SupersededError if this attempt has been rolled back."""
        if not self._holds(self._legs[self._newest], self._newest):
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
            for start_ts, cell in self._legs.items():
                self._context.resolver.fate(cell, start_ts, impatient=True)
