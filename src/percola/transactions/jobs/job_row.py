"""§2.2: the row that decides about a joint transaction: its attempts, and what became of it.

A joint transaction (`percola.transactions.jobs.coordinator`) has one row in the table
`percola-jobs`, which is named after it:

    state                              {"run": 17, "is": "running"}, later "committed" or "aborted"
    marker:RUN/PARTITION/ATTEMPT/LEG   the primary of one leg of an attempt (`jobs.attempt`)
    seat:RUN/PARTITION                 held by the one attempt that has written the whole partition

Markers and seats are lock-only cells: they are locked, and committed without a value, so garbage
collection takes them away as it does all that `get_for_update` leaves, after the locks that lead
to them (P12). `state` is an ordinary cell, and its version tells when the run began.

Everything about these cells is a mutation of this one row, so of any two that contradict each
other (an attempt that begins and a commit, a commit and a rollback) one comes first and the other
is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from percola.cells import MAX_TS, Cell, Kind, LockRecord, decode_lock, encode_lock
from percola.codecs import JSON
from percola.errors import PercolaError
from percola.repository import Repository
from percola.schema import Table
from percola.store.base import Condition, Put, RowMutation
from percola.store.walks import walk_kind
from percola.transactions.lock_resolver import rollback_changes
from percola.transactions.snapshot import TransactionContext

JOBS: Final = Table("percola-jobs")
STATE: Final = JOBS.column("state", JSON)
_MARKERS: Final = JOBS.family("marker", str)
_SEATS: Final = JOBS.family("seat", JSON)
TASKS: Final = JOBS.family("task", JSON)
"""For writes that are no joint transaction, but have tasks too (`percola.spark`)."""

RUNNING: Final = "running"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"


class JointError(PercolaError):
    """A joint transaction, or an attempt of it, cannot go on; nothing of it becomes visible."""


class JobOverError(JointError):
    """The joint transaction has ended, or a later run of it has begun: no attempt can join."""


class SupersededError(JointError):
    """Another attempt has taken this one's place, or it was taken for dead and rolled back."""


class RowInTwoPartitionsError(JointError):
    """Two partitions of one joint transaction write the same cell."""


class RowLockedError(JointError):
    """A row stayed locked by somebody else for longer than a joint transaction waits."""


class State(NamedTuple):
    """The job's state: its run, what it is, and the commit_ts at which it has been that."""

    run: int
    what: str
    version: int


@dataclass(frozen=True, slots=True)
class Marker:
    """A leg's marker, as its column's name says it, and the lock on it.

    Attributes:
        start_ts: the leg's start timestamp.
    """

    run: int
    partition: int
    attempt: int
    leg: int
    start_ts: int
    cell: Cell
    lock: LockRecord


@dataclass(frozen=True, slots=True)
class Seat:
    """A partition's seat, and who holds it.

    Attributes:
        retry: the holder's, see `JointTransaction.attempt`.
        legs: how many legs the holder has.
        rows: how many rows it has written.
    """

    run: int
    partition: int
    attempt: int
    retry: int
    legs: int
    rows: int
    start_ts: int
    cell: Cell
    lock: LockRecord


def marker_numbers(cell: Cell) -> tuple[int, int, int, int]:
    """A marker's run, partition, attempt and leg, from its column's name."""
    run, partition, attempt, leg = map(int, cell.column.partition(b":")[2].split(b"/"))
    return run, partition, attempt, leg


class JobRow:
    """The row of one joint transaction. It must be of the repository that the writes go to."""

    def __init__(self, repo: Repository, job: str) -> None:
        self.job = job
        self.repo = repo
        self.key = JOBS.encode_row(job)
        self.context: TransactionContext = repo.context
        self.context.store.check_row(JOBS.name, self.key)
        self.state_cell = Cell(JOBS.name, self.key, STATE.key)

    def marker_cell(self, run: int, partition: int, attempt: int, leg: int) -> Cell:
        """Where a leg's marker stands."""
        return Cell(JOBS.name, self.key, b"marker:%d/%d/%d/%d" % (run, partition, attempt, leg))

    def seat_cell(self, run: int, partition: int) -> Cell:
        """Where a partition's seat stands."""
        return Cell(JOBS.name, self.key, b"seat:%d/%d" % (run, partition))

    def owns(self, primary: Cell) -> bool:
        """Whether a lock with this primary is one of the job's."""
        return primary.table == JOBS.name and primary.row == self.key

    # --- What stands there --------------------------------------------------------------

    def state(self) -> State | None:
        """The state as it is now; a transaction that is changing it is waited for."""
        with self.repo.snapshot() as snapshot:
            value = snapshot.get(STATE, self.job)
            if value is None:
                return None
            return State(value["run"], value["is"], snapshot.version(STATE, self.job))

    def changing(self) -> tuple[int, LockRecord, dict[str, Any]] | None:
        """The lock on the state, if there is one: (start_ts, lock, the state it would bring)."""
        for start_ts, raw in self.context.store.entries(self.state_cell, Kind.LOCK, 0, MAX_TS):
            lock = decode_lock(raw)
            if lock.value is not None:
                return start_ts, lock, json.loads(lock.value)
        return None

    def held(self) -> tuple[list[Marker], dict[tuple[int, int], Seat]]:
        """The markers that are locked, and the seats by run and partition."""
        markers: list[Marker] = []
        seats: dict[tuple[int, int], Seat] = {}
        for cell, start_ts, raw in self._locks():
            family, _, name = cell.column.partition(b":")
            if family == b"marker":
                markers.append(Marker(*marker_numbers(cell), start_ts, cell, decode_lock(raw)))
            elif family == b"seat":
                run, partition = map(int, name.split(b"/"))
                lock = decode_lock(raw)
                said = json.loads(lock.value or b"{}")
                seats[run, partition] = Seat(
                    run,
                    partition,
                    said["attempt"],
                    said["retry"],
                    said["legs"],
                    said["rows"],
                    start_ts,
                    cell,
                    lock,
                )
        return markers, seats

    def _locks(self) -> Iterator[tuple[Cell, int, bytes]]:
        store = self.context.store
        return walk_kind(store, Kind.LOCK, JOBS.name, self.key, self.key + b"\0")

    # --- Conditions ---------------------------------------------------------------------

    def still(self, state: State) -> list[Condition]:
        """That the state is this one, and that nobody is about to change it."""
        column, version = STATE.key, state.version
        return [
            Condition(True, Kind.WRITE, column, version, version),
            Condition(False, Kind.WRITE, column, version + 1, MAX_TS),
            Condition(False, Kind.LOCK, column, 0, MAX_TS),
        ]

    # --- Rolling attempts back ----------------------------------------------------------

    def roll_back(self, marker: Marker, *, unless_seated: Cell | None = None) -> bool:
        """Roll a leg back for good, its owner alive or not; False if it has ended otherwise.

        With `unless_seated`, only if nobody holds that seat.
        """
        if unless_seated is None:
            fate = self.context.resolver.fate(marker.cell, marker.start_ts, impatient=True)
            return fate is not None and fate.commit_ts is None
        column, start_ts = marker.cell.column, marker.start_ts
        conditions = [
            Condition(True, Kind.LOCK, column, start_ts, start_ts),
            Condition(False, Kind.LOCK, unless_seated.column, 0, MAX_TS),
        ]
        mutation = RowMutation(JOBS.name, self.key, conditions, rollback_changes(column, start_ts))
        return self.context.store.mutate([mutation])[0]

    def clear_seat(self, seat: Seat) -> bool:
        """Take a seat away from an attempt that was rolled back; False if it was not."""
        fate = self.context.resolver.fate(seat.lock.primary, seat.start_ts)
        if fate is None:
            return False
        self.context.resolver.settle(seat.cell, seat.start_ts, seat.lock, fate)
        return fate.commit_ts is None

    # --- Signs of life ------------------------------------------------------------------

    def refresh(self, run: int, seen: dict[Cell, int]) -> None:
        """Show the markers of a run to be alive, unless somebody else has done it (P8).

        `seen` is what the caller found in them the last time; empty at first. A marker that is gone
        is not made again. Raises StoreError.
        """
        mutations = []
        now = self.context.clock.wall_ms()
        markers, _ = self.held()
        for marker in markers:
            cell, lock, start_ts = marker.cell, marker.lock, marker.start_ts
            unchanged = seen.get(cell, lock.wall_ms) == lock.wall_ms
            seen[cell] = lock.wall_ms
            if marker.run != run or not unchanged:
                continue
            # Compared with itself alone: it has to change, wherever the clock stands.
            seen[cell] = now if now != lock.wall_ms else now + 1
            fresh = encode_lock(lock._replace(wall_ms=seen[cell]))
            held = Condition(True, Kind.LOCK, cell.column, start_ts, start_ts)
            put = Put(Kind.LOCK, cell.column, start_ts, fresh)
            mutations.append(RowMutation(JOBS.name, self.key, [held], [put]))
        for mutation in mutations:
            self.context.store.mutate([mutation])
