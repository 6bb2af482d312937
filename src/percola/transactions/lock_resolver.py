"""§2.2: what to do about another transaction's lock: roll forward, roll back, or wait.

A lock names its transaction's primary cell, and the primary alone decides:

    the primary holds                           the transaction is
    ------------------------------------------  ------------------------------------------
    a write record with this start_ts           committed: roll this lock forward
    a rollback record at this start_ts          rolled back: remove this lock
    the lock, and the owner seems alive         undecided: wait
    the lock, and the owner seems dead          rolled back here and now, on the primary
    neither                                     rolled back here and now, on the primary

Where the paper's reader waits for the owner, it need not if the transaction can only commit above
the reader's timestamp T. That is so for a joint transaction (`percola.transactions.jobs`), which
locks for as long as a Spark job runs, until it commits: it draws its commit_ts after it has locked
its `state` (rule P2). So who finds `state` unlocked, or locked by a transaction that began at or
above T, and after that the primary undecided, has nothing to wait for: at T the cell has the value
beneath the lock.

Departures from the paper, all for safety once calls may be late, repeated or lost:

* Rolling back writes a rollback record on the primary, under a condition, so that a prewrite
  which arrives later meets it (rule P4). A read alone never decides.
* Every removal of a lock is conditional on that very lock (rule P5) and may be repeated (P6).
* Whether the owner is alive decides only *when* (rule P8): its token is gone, or this process
  itself has watched the primary's lock go unrefreshed for its whole time to live. No two
  machines' clocks are compared. A lock without a token is nobody's: it lives by being refreshed.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from percola.cells import (
    MAX_TS,
    Cell,
    Kind,
    LastChange,
    LockRecord,
    Op,
    decode_lock,
    decode_write,
    encode_write,
    newest_change,
)
from percola.clock import Clock, backoff
from percola.coordination.base import Coordination
from percola.errors import ConflictError, LockTimeoutError
from percola.platform import fork_safety as forks
from percola.store.base import Condition, Delete, Put, RowMutation, Store
from percola.transactions.read_cache import batches

_CACHED: Final = 10_000
_WATCHED: Final = 100_000
"""Transactions that are watched. Of more none would be for its time to live, if all are looked at
in turn: those that a Spark job has begun, say."""
_TOGETHER: Final = 1_000
_FIRST_WAIT: Final = 0.0005
_LONGEST_WAIT: Final = 0.05
_READ_AGAIN: Final = 1.0


JOBS_TABLE: Final = "percola-jobs"
JOB_PRIMARY: Final = b"primary:"
"""The column family of the primaries of a joint transaction, in its row of `percola-jobs`."""
JOB_STATE: Final = b"state"
"""The column of that row which a joint transaction locks last."""


class Fate(NamedTuple):
    """The outcome of a transaction: `commit_ts` if committed, None if rolled back."""

    commit_ts: int | None


ROLLED_BACK: Final = Fate(None)


class LockResolver:
    """Rolls transactions forward or back when their locks are met; one per repository object.

    Args:
        wait_seconds: how long a reader waits for a live transaction's lock in total.
        shown: how messages name a cell.
    """

    def __init__(
        self,
        store: Store,
        coordination: Coordination,
        clock: Clock,
        random_: random.Random,
        *,
        wait_seconds: float = 60.0,
        shown: Callable[[Cell], str] = str,
    ) -> None:
        self._store = store
        self._shown = shown
        self._coordination = coordination
        self._clock = clock
        self._random = random_
        self._wait_seconds = wait_seconds
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        # Only decided transactions: an undecided one may be decided at any moment.
        self._decided: dict[int, Fate] = {}
        # (primary, start_ts) → a timestamp that the transaction can only commit above, and when its
        # primary was read for that. Timestamps stand still while nobody writes.
        self._above: dict[tuple[Cell, int], tuple[int, float]] = {}
        # (primary, start_ts) → the wall time last seen in its lock, and since when.
        self._watched: dict[tuple[Cell, int], tuple[int, float]] = {}

    def wait_out(self, cell: Cell, start_ts: int, raw: bytes) -> None:
        """Return once the lock that `start_ts` holds on `cell` is gone.

        Raises LockTimeoutError if its owner is alive and holds it for longer than `wait_seconds`.
        Everything that was read before must be read again (rule P10).
        """
        self._wait(cell, start_ts, raw, lambda: self.try_resolve(cell, start_ts, raw) or None)

    def wait_below(self, cell: Cell, start_ts: int, raw: bytes, ts: int) -> bool:
        """Return once the lock on `cell` is nothing to wait for at `ts` (figure 6, line 14).

        True if it is gone: everything that was read before must be read again (rule P10). False
        if its transaction can only commit above `ts`, which must have been drawn before this call:
        `state_beneath` reads the cell then. Raises LockTimeoutError as `wait_out` does.
        """

        def look() -> bool | None:
            below = self._only_above(cell, start_ts, raw, ts)
            if below is None:
                return True
            return False if below >= ts else None

        return self._wait(cell, start_ts, raw, look)

    def settled_below(self, cell: Cell, start_ts: int, raw: bytes, ts: int) -> int:
        """The newest timestamp up to `ts` at which this lock is nothing to wait for.

        It never waits; `ts` must have been drawn before this call.
        """
        below = self._only_above(cell, start_ts, raw, ts)
        return ts if below is None else below

    def _only_above(self, cell: Cell, start_ts: int, raw: bytes, ts: int) -> int | None:
        """The newest timestamp up to `ts` that the lock's transaction can only commit above.

        None if the lock was settled, its transaction being decided or its owner dead.
        """
        lock = decode_lock(raw)
        at = lock.primary, start_ts
        now = self._clock.monotonic()
        above, read_at = self._above.get(at, (0, now))
        if above >= ts and now - read_at < _READ_AGAIN:
            return ts
        # First `state`, then the primary: a commit in between is then seen.
        below = self._begun_commit(lock.primary, start_ts, ts)
        fate = self.fate(lock.primary, start_ts)
        if fate is not None:
            self.settle(cell, start_ts, lock, fate)
            return None
        if below > start_ts:
            with self._guard:
                if len(self._above) > _CACHED:
                    self._above.clear()
                self._above[at] = max(below, above), now
        return below

    def _begun_commit(self, primary: Cell, start_ts: int, ts: int) -> int:
        """The newest timestamp up to `ts` above which a transaction draws its commit_ts."""
        if primary.table != JOBS_TABLE or not primary.column.startswith(JOB_PRIMARY):
            return start_ts - 1
        state = Cell(JOBS_TABLE, primary.row, JOB_STATE)
        held = self._store.entries(state, Kind.LOCK, 0, MAX_TS)
        return min([ts, *(at for at, _ in held)])

    def _wait(self, cell: Cell, start_ts: int, raw: bytes, look: Callable[[], bool | None]) -> bool:
        """Repeat `look` until it has an answer; True once the lock is gone."""
        deadline = self._clock.monotonic() + self._wait_seconds
        attempt = 0
        while (answer := look()) is None:
            attempt += 1
            if self._clock.monotonic() > deadline:
                owner = decode_lock(raw).owner_name
                raise LockTimeoutError(
                    f"{self._shown(cell)} "
                    f"has been locked for {self._wait_seconds:.0f} s by the live "
                    f"transaction that started at {start_ts} (owner {owner}). "
                    "Try again, or end that process."
                )
            self._clock.sleep(backoff(self._random, attempt, first=_FIRST_WAIT, most=_LONGEST_WAIT))
            held = self._store.entries(cell, Kind.LOCK, start_ts, start_ts)
            if not held:
                return True
        return answer

    def try_resolve(self, cell: Cell, start_ts: int, raw: bytes) -> bool:
        """Remove the lock if its transaction is decided or its owner dead; else return False."""
        lock = decode_lock(raw)
        fate = self.fate(lock.primary, start_ts)
        if fate is None:
            return False
        self.settle(cell, start_ts, lock, fate)
        return True

    def try_resolve_all(
        self, locks: Iterable[tuple[Cell, int, bytes]]
    ) -> tuple[int, frozenset[int]]:
        """`try_resolve` for many locks; a transaction that is undecided is looked at once.

        Returns how many were removed, and each start_ts of those that were not.
        """
        resolved, undecided = 0, set[int]()

        def decided() -> Iterator[tuple[Cell, int, LockRecord, Fate]]:
            nonlocal resolved
            for cell, start_ts, raw in locks:
                if start_ts in undecided:
                    continue
                lock = decode_lock(raw)
                fate = self.fate(lock.primary, start_ts)
                if fate is None:
                    undecided.add(start_ts)
                else:
                    resolved += 1
                    yield cell, start_ts, lock, fate

        self.settle_all(decided())
        return resolved, frozenset(undecided)

    def undecided(
        self, locks: Iterable[tuple[Cell, int, bytes]]
    ) -> Iterator[tuple[Cell, int, bytes]]:
        """Remove the locks of ended transactions, many in one call; yields the others."""
        left = iter(locks)
        while some := list(itertools.islice(left, _TOGETHER)):
            _, undecided = self.try_resolve_all(some)
            yield from (one for one in some if one[1] in undecided)

    def settle_or_conflict(self, locks: Iterable[tuple[Cell, int, bytes]], start_ts: int) -> None:
        """Remove the locks of ended transactions, in the way of the one that began at `start_ts`.

        Raises ConflictError for that of a live one. It never waits: two transactions may want each
        other's cells (P14).
        """
        for cell, lock_ts, _ in self.undecided(locks):
            raise ConflictError(cell, start_ts, lock_ts, locked=True)

    def locks_on(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, int, bytes]]:
        """The locks on cells."""
        cells = iter(cells)
        while some := list(itertools.islice(cells, _TOGETHER)):
            for cell, found in zip(
                some, self._store.entries_of(some, Kind.LOCK, 0, MAX_TS), strict=True
            ):
                for start_ts, raw in found:
                    yield cell, start_ts, raw

    def settle(self, cell: Cell, start_ts: int, lock: LockRecord, fate: Fate) -> None:
        """Replace a decided transaction's lock by its write record, or remove it."""
        has_notify_table = self._store.has_notify_table
        changes = settling_changes(cell.column, start_ts, lock, fate, has_notify_table)
        held = Condition(True, Kind.LOCK, cell.column, start_ts, start_ts)
        # If the condition fails, another client has settled the lock already.
        self._store.mutate([RowMutation(cell.table, cell.row, [held], changes)])

    def settle_all(self, locks: Iterable[tuple[Cell, int, LockRecord, Fate]]) -> None:
        """`settle` for many locks: those of a transaction in a row in one mutation, many in a call.

        Not those of a row: its locks of several transactions may be more than a store takes at
        once, while each of these has locked its own at once. And a primary's apart from the others
        of its row: usually it went when the fate was decided, and then its mutation is refused.
        """
        for batch in batches(self._settling(locks)):
            applied = self._store.mutate(batch)
            for mutation in (one for one, done in zip(batch, applied, strict=True) if not done):
                # Another client has settled a lock of the row meanwhile: each by itself.
                for condition in mutation.conditions:
                    cell = Cell(mutation.table, mutation.row, condition.column)
                    held = self._store.entries(cell, Kind.LOCK, condition.low, condition.high)
                    for start_ts, raw in held:
                        self.try_resolve(cell, start_ts, raw)

    def _settling(
        self, locks: Iterable[tuple[Cell, int, LockRecord, Fate]]
    ) -> Iterator[RowMutation]:
        has_notify_table = self._store.has_notify_table
        for (table, row), group in itertools.groupby(locks, key=lambda one: one[0][:2]):
            found: dict[tuple[bool, int], tuple[list[Condition], list[Put | Delete]]] = {}
            for cell, start_ts, lock, fate in group:
                key = cell == lock.primary, start_ts
                conditions, changes = found.setdefault(key, ([], []))
                conditions.append(Condition(True, Kind.LOCK, cell.column, start_ts, start_ts))
                changes += settling_changes(cell.column, start_ts, lock, fate, has_notify_table)
            for key in sorted(found):
                yield RowMutation(table, row, *found[key])

    def fate(self, primary: Cell, start_ts: int, *, force: bool = False) -> Fate | None:
        """Decide about the transaction that began at `start_ts`; None while it may yet commit.

        With `force`, a live owner is not waited for either: its transaction is rolled
        back unless it has committed.
        """
        known = self._decided.get(start_ts)
        if known is not None:
            return known
        while True:
            # The lock first, the records after it: a commit in between is then seen.
            held = self._store.entries(primary, Kind.LOCK, start_ts, start_ts)
            records = self._store.entries(primary, Kind.WRITE, start_ts, MAX_TS)
            for commit_ts, raw in records:
                record = decode_write(raw)
                if record.op is Op.ROLLBACK:
                    if commit_ts == start_ts:
                        return self._decide(start_ts, ROLLED_BACK)
                elif record.start_ts == start_ts:
                    return self._decide(start_ts, Fate(commit_ts))
            if held and not force:
                lock = decode_lock(held[0][1])
                if lock.primary == primary and not self._seems_dead(primary, start_ts, lock):
                    return None
            newest = max((commit_ts for commit_ts, _ in records), default=start_ts - 1)
            if self._roll_back_primary(primary, start_ts, bool(held), newest):
                return self._decide(start_ts, ROLLED_BACK)
            # The primary has changed in the meantime: read again (rule P10).

    def _roll_back_primary(self, primary: Cell, start_ts: int, held: bool, newest: int) -> bool:
        """Write the rollback record if the primary is unchanged since it was read."""
        column = primary.column
        conditions = [Condition(held, Kind.LOCK, column, start_ts, start_ts)]
        last_change = None
        if held:
            # While the cell has this lock, nothing else commits in it: the newest stays newest.
            below = self._store.entries(primary, Kind.WRITE, 0, start_ts - 1, 1)
            last_change = newest_change(below, complete=not below)
        else:
            # No prewrite and no commit of this transaction may have come in between.
            conditions.append(Condition(False, Kind.WRITE, column, newest + 1, MAX_TS))
        changes = rollback_changes(column, start_ts, last_change)
        mutation = RowMutation(primary.table, primary.row, conditions, changes)
        return self._store.mutate([mutation])[0]

    def _seems_dead(self, primary: Cell, start_ts: int, lock: LockRecord) -> bool:
        if lock.owner and not self._coordination.is_alive(lock.owner):
            return True
        now = self._clock.monotonic()
        with self._guard:
            wall_ms, since = self._watched.get((primary, start_ts), (-1, now))
            if wall_ms != lock.wall_ms:
                if len(self._watched) > _WATCHED:
                    self._watched.clear()
                self._watched[primary, start_ts] = (lock.wall_ms, now)
                return False
        return now - since >= lock.ttl_ms / 1000

    def _decide(self, start_ts: int, fate: Fate) -> Fate:
        with self._guard:
            if len(self._decided) > _CACHED:
                self._decided.clear()
            self._decided[start_ts] = fate
        return fate


def commit_changes(
    column: bytes,
    start_ts: int,
    commit_ts: int,
    lock: LockRecord,
    has_notify_table: bool = False,
    decides: bool = False,
) -> list[Put | Delete]:
    """The changes that commit one locked cell, by its owner or the client that rolls it forward.

    One row mutation: the write record, the notify entry of an observed column (rule N1) and the
    removal of the lock. With a separate notify table, the notify entry was put before the
    commit point (`percola.store.remote.notify_table`). `decides`: the cell is locked only
    (`Op.LOCK`) and is its transaction's primary.
    """
    record = encode_write(
        lock.op, start_ts, lock.value, lock.last_change, decides=decides, silent=lock.silent
    )
    changes: list[Put | Delete] = [Put(Kind.WRITE, column, commit_ts, record)]
    if lock.observed and not has_notify_table:
        changes.append(Put(Kind.NOTIFY, column, commit_ts, b""))
    changes.append(Delete(Kind.LOCK, column, start_ts))
    return changes


def settling_changes(
    column: bytes, start_ts: int, lock: LockRecord, fate: Fate, has_notify_table: bool = False
) -> list[Put | Delete]:
    """The changes that settle a lock other than the primary's of a decided transaction."""
    if fate.commit_ts is not None:
        return commit_changes(column, start_ts, fate.commit_ts, lock, has_notify_table)
    return [Delete(Kind.LOCK, column, start_ts), Delete(Kind.DATA, column, start_ts)]


def rollback_changes(
    column: bytes, start_ts: int, last_change: LastChange | None = None
) -> list[Put | Delete]:
    """The changes that roll a transaction back, on its primary: its lock becomes a record (P4).

    `last_change` is the newest change below `start_ts`, which is known only if the lock is held:
    otherwise another transaction may still commit in between.
    """
    return [
        Put(
            Kind.WRITE,
            column,
            start_ts,
            encode_write(Op.ROLLBACK, start_ts, last_change=last_change),
        ),
        Delete(Kind.LOCK, column, start_ts),
        Delete(Kind.DATA, column, start_ts),
    ]
