"""§2.2: the row that decides about a joint transaction: its attempts, and what became of it.

A joint transaction (`percola.transactions.jobs.coordinator`) has one row in the table
`percola-jobs`, which is named after it:

    state                              {"run": 17, "is": "running"}, later "committed" or "aborted"
    primary:RUN/PARTITION/ATTEMPT/N    that of subtransaction N of an attempt (`jobs.attempt`)
    claim:RUN/PARTITION                held by the one attempt that has written the whole partition

Primaries and claims are lock-only cells: they are locked, and committed without a value, so garbage
collection removes them as it does all that `get_for_update` leaves, after the locks that lead to
them (P12). `state` is an ordinary cell, and its version is the time at which the run began.

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
from percola.transactions.context import TransactionContext
from percola.transactions.lock_resolver import JOB_PRIMARY, JOB_STATE, JOBS_TABLE, rollback_changes

JOBS: Final = Table(JOBS_TABLE)
STATE: Final = JOBS.column(JOB_STATE.decode(), JSON)
_PRIMARIES: Final = JOBS.family(JOB_PRIMARY[:-1].decode(), str)
_CLAIMS: Final = JOBS.family("claim", JSON)
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


class RowWrittenTwiceError(JointError):
    """One partition of a joint transaction writes a row twice, of which it has read one state."""


class RowChangedError(JointError):
    """A cell that a joint transaction has read and locks was written by another one meanwhile."""


class RowLockedError(JointError):
    """A row stayed locked by somebody else for longer than a joint transaction waits."""


class State(NamedTuple):
    """The job's state: its run, what it is, and the commit_ts at which it has been that."""

    run: int
    what: str
    version: int


@dataclass(frozen=True, slots=True)
class Subtransaction:
    """A subtransaction that is running: the name of its primary, and the lock on it.

    Attributes:
        number: of the attempt's subtransactions, from 0.
        start_ts: its start timestamp.
        cell: its primary.
    """

    run: int
    partition: int
    attempt: int
    number: int
    start_ts: int
    cell: Cell
    lock: LockRecord


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim on a partition, and the attempt that holds it.

    Attributes:
        retry: the holder's, see `JointTransaction.attempt`.
        subtransactions: how many the holder has.
        rows: how many rows it has written.
    """

    run: int
    partition: int
    attempt: int
    retry: int
    subtransactions: int
    rows: int
    start_ts: int
    cell: Cell
    lock: LockRecord


def primary_numbers(cell: Cell) -> tuple[int, int, int, int]:
    """The run, partition, attempt and number that the column name of a primary consists of."""
    run, partition, attempt, number = map(int, cell.column.partition(b":")[2].split(b"/"))
    return run, partition, attempt, number


class JobRow:
    """The row of one joint transaction. It must be of the repository that the writes go to."""

    def __init__(self, repo: Repository, job: str) -> None:
        self.job = job
        self.repo = repo
        self.key = JOBS.encode_row(job)
        self.context: TransactionContext = repo.context
        self.context.store.check_row(JOBS.name, self.key)
        self.state_cell = Cell(JOBS.name, self.key, STATE.key)

    def primary_cell(self, run: int, partition: int, attempt: int, number: int) -> Cell:
        """The primary of a subtransaction."""
        column = b"%b%d/%d/%d/%d" % (JOB_PRIMARY, run, partition, attempt, number)
        return Cell(JOBS.name, self.key, column)

    def claim_cell(self, run: int, partition: int) -> Cell:
        """The cell of the claim on a partition."""
        return Cell(JOBS.name, self.key, b"claim:%d/%d" % (run, partition))

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

    def held(self) -> tuple[list[Subtransaction], dict[tuple[int, int], Claim]]:
        """The subtransactions whose primaries are locked, and the claims by run and partition."""
        started: list[Subtransaction] = []
        claims: dict[tuple[int, int], Claim] = {}
        for cell, start_ts, raw in self._locks():
            family, _, name = cell.column.partition(b":")
            if family == b"primary":
                started.append(
                    Subtransaction(*primary_numbers(cell), start_ts, cell, decode_lock(raw))
                )
            elif family == b"claim":
                run, partition = map(int, name.split(b"/"))
                lock = decode_lock(raw)
                said = json.loads(lock.value or b"{}")
                claims[run, partition] = Claim(
                    run,
                    partition,
                    said["attempt"],
                    said["retry"],
                    said["subtransactions"],
                    said["rows"],
                    start_ts,
                    cell,
                    lock,
                )
        return started, claims

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

    def roll_back(self, one: Subtransaction, *, unless_claimed: Cell | None = None) -> bool:
        """Roll a subtransaction back, its owner alive or not; False if it has ended otherwise.

        With `unless_claimed`, only if no attempt holds that claim.
        """
        if unless_claimed is None:
            fate = self.context.resolver.fate(one.cell, one.start_ts, force=True)
            return fate is not None and fate.commit_ts is None
        column, start_ts = one.cell.column, one.start_ts
        conditions = [
            Condition(True, Kind.LOCK, column, start_ts, start_ts),
            Condition(False, Kind.LOCK, unless_claimed.column, 0, MAX_TS),
        ]
        mutation = RowMutation(JOBS.name, self.key, conditions, rollback_changes(column, start_ts))
        return self.context.store.mutate([mutation])[0]

    def clear_claim(self, claim: Claim) -> bool:
        """Remove the claim of an attempt that was rolled back; False if it was not."""
        fate = self.context.resolver.fate(claim.lock.primary, claim.start_ts)
        if fate is None:
            return False
        self.context.resolver.settle(claim.cell, claim.start_ts, claim.lock, fate)
        return fate.commit_ts is None

    # --- Signs of life ------------------------------------------------------------------

    def refresh(self, run: int, seen: dict[Cell, int]) -> None:
        """Refresh the primaries of a run, unless another process has done so (P8).

        `seen` is what the caller found in them the last time; empty at first. A primary that is
        gone is not locked again. Raises StoreError.
        """
        mutations = []
        now = self.context.clock.wall_ms()
        started, _ = self.held()
        for one in started:
            cell, lock, start_ts = one.cell, one.lock, one.start_ts
            unchanged = seen.get(cell, lock.wall_ms) == lock.wall_ms
            seen[cell] = lock.wall_ms
            if one.run != run or not unchanged:
                continue
            # Compared with itself alone: it has to change, wherever the clock stands.
            seen[cell] = now if now != lock.wall_ms else now + 1
            fresh = encode_lock(lock._replace(wall_ms=seen[cell]))
            held = Condition(True, Kind.LOCK, cell.column, start_ts, start_ts)
            put = Put(Kind.LOCK, cell.column, start_ts, fresh)
            mutations.append(RowMutation(JOBS.name, self.key, [held], [put]))
        for mutation in mutations:
            self.context.store.mutate([mutation])
