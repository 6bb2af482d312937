"""Mutants of who is taken for dead, and what that may decide: P8, and P3, P14, P6 where they cost
only waiting."""

from __future__ import annotations

from typing import Any

from percola.cells import MAX_TS, Cell, Kind, LockRecord, Op, decode_lock, encode_lock, encode_write
from percola.errors import ConflictError, OutcomeUnknownError
from percola.store.base import Delete, Put, RowMutation
from percola.transactions.lock_resolver import ROLLED_BACK, Fate, LockResolver
from percola.transactions.two_phase import TwoPhaseCommit
from tests.simulation.mutants.locking import secondaries_first
from tests.simulation.mutants.mutant import TWO_PHASE, Collection, Seams
from tests.simulation.mutants.workloads import (
    MILD,
    Alone,
    HastyAppends,
    HastyBank,
    Patient,
    PatientLarge,
)
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.large import Large

LIVENESS = Collection()


@LIVENESS.mutant("token-decides", "P8", Bank, Appends, HastyBank, modes=TWO_PHASE)
def token_decides(seams: Seams) -> None:
    """A reader that finds the owner's token gone takes its transaction for rolled back and
    writes that down unconditionally: a live owner that lost its token may just have committed."""

    @seams.replaces(LockResolver, "fate")
    def fate(
        original: Any, self: Any, primary: Cell, start_ts: int, *, force: bool = False
    ) -> Fate | None:
        if not force:
            held = self._store.entries(primary, Kind.LOCK, start_ts, start_ts)
            if held and not self._coordination.is_alive(decode_lock(held[0][1]).owner):
                record = encode_write(Op.ROLLBACK, start_ts)
                changes: list[Put | Delete] = [
                    Put(Kind.WRITE, primary.column, start_ts, record),
                    Delete(Kind.LOCK, primary.column, start_ts),
                ]
                self._store.mutate([RowMutation(primary.table, primary.row, (), changes)])
                return ROLLED_BACK
        found: Fate | None = original(self, primary, start_ts, force=force)
        return found


@LIVENESS.mutant("heartbeat-recreates-lock", "P8", HastyBank, HastyAppends, Large, modes=TWO_PHASE)
def heartbeat_recreates_lock(seams: Seams) -> None:
    """The owner refreshes its primary's lock without asking whether it still is there: it puts
    one that a resolver has removed in place again, and commits."""

    @seams.replaces(TwoPhaseCommit, "_refresh_if_due")
    def refresh_if_due(original: Any, self: Any, primary: Cell) -> None:
        context = self._context
        now = context.clock.monotonic()
        if now - self._refreshed < context.ttl_ms / 3000:
            return
        self._refreshed = now
        lock = encode_lock(self._lock(primary, primary))
        put = Put(Kind.LOCK, primary.column, self._start_ts, lock)
        try:
            context.store.mutate([RowMutation(primary.table, primary.row, (), [put])])
        except OutcomeUnknownError:
            return


@LIVENESS.mutant("compares-wall-clocks", "P8", Patient, modes=TWO_PHASE, kinds=MILD)
def compares_wall_clocks(seams: Seams) -> None:
    """A reader compares the wall time in a lock with its own clock: if that is ahead, it takes
    the living for dead."""

    @seams.replaces(LockResolver, "_seems_dead")
    def seems_dead(
        original: Any, self: Any, primary: Cell, start_ts: int, lock: LockRecord
    ) -> bool:
        if not self._coordination.is_alive(lock.owner):
            return True
        return bool(self._clock.wall_ms() - lock.wall_ms > lock.ttl_ms)


@LIVENESS.mutant("no-heartbeat", "P8", PatientLarge, modes=TWO_PHASE, kinds=())
def no_heartbeat(seams: Seams) -> None:
    """The owner does not refresh its lock while its commit takes long, and readers that watch
    it take it for dead."""

    @seams.replaces(TwoPhaseCommit, "_refresh_if_due")
    def refresh_if_due(original: Any, self: Any, primary: Cell) -> None:
        return


@LIVENESS.mutant("first-look-decides", "P8", Patient, modes=TWO_PHASE, kinds=MILD)
def first_look_decides(seams: Seams) -> None:
    """A reader takes an owner for dead the first time that it meets its lock, without having
    watched it for the lock's time to live."""

    @seams.replaces(LockResolver, "_seems_dead")
    def seems_dead(
        original: Any, self: Any, primary: Cell, start_ts: int, lock: LockRecord
    ) -> bool:
        return True


@LIVENESS.mutant("secondaries-first", "P3", Patient, modes=TWO_PHASE, kinds=MILD)
def secondaries_before_the_primary(seams: Seams) -> None:
    """Secondaries are prewritten before the primary: whoever meets one finds nothing on the
    primary, and rolls back a transaction that lives. (That it does no worse is due to P4.)"""
    secondaries_first(seams)


@LIVENESS.mutant("own-lock-is-a-conflict", "P6", Alone, modes=TWO_PHASE, kinds=MILD)
def own_lock_is_a_conflict(seams: Seams) -> None:
    """A prewrite that is sent again after a lost reply takes its own lock for another's."""

    @seams.replaces(TwoPhaseCommit, "_explain_refusal")
    def explain_refusal(original: Any, self: Any, mutation: RowMutation) -> bool:
        for one in mutation.conditions:
            cell = Cell(mutation.table, mutation.row, one.column)
            for lock_ts, _ in self._context.store.entries(cell, Kind.LOCK, 0, MAX_TS):
                raise ConflictError(cell, self._start_ts, lock_ts, locked=True)
        return bool(original(self, mutation))


@LIVENESS.mutant("waits-for-each-other", "P14", Patient, modes=TWO_PHASE, kinds=MILD)
def waits_for_each_other(seams: Seams) -> None:
    """A prewrite that meets the lock of a live transaction waits until it is gone: two that want
    each other's cells wait in vain."""

    @seams.replaces(TwoPhaseCommit, "_explain_refusal")
    def explain_refusal(original: Any, self: Any, mutation: RowMutation) -> bool:
        for column in dict.fromkeys(one.column for one in mutation.conditions):
            cell = Cell(mutation.table, mutation.row, column)
            for lock_ts, raw in self._context.store.entries(cell, Kind.LOCK, 0, MAX_TS):
                if lock_ts != self._start_ts:
                    self._context.resolver.wait_out(cell, lock_ts, raw)
        return bool(original(self, mutation))
