"""Mutants of §2.2, prewrite and the locks that are met: P3, P4, P5, P6, P10, P14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from percola.cells import MAX_TS, Cell, Kind, LockRecord, Op, encode_write
from percola.errors import ConflictError
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.transactions.lock_resolver import Fate, LockResolver, commit_changes
from percola.transactions.snapshot import Snapshot
from percola.transactions.two_phase import TwoPhaseCommit
from tests.simulation.mutants.mutant import TWO_PHASE, WITH_LOCKS, Collection, Seams
from tests.simulation.mutants.workloads import LATE, HastyAppends, HastyBank
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.large import Large
from tests.simulation.workloads.register import Register
from tests.simulation.workloads.unique import Unique

LOCKING = Collection()


def secondaries_first(seams: Seams) -> None:
    """Lets the primary's prewrite be the last."""

    @seams.replaces(TwoPhaseCommit, "prewrite")
    def prewrite(original: Any, self: Any, groups: Any, primary: Cell) -> None:
        waiting = getattr(self, "waiting", None)
        if waiting is None:
            self.waiting = groups
            return
        original(self, groups, primary)
        original(self, waiting, primary)


def looking_decides(seams: Seams) -> None:
    """Lets a resolver that finds nothing on the primary write nothing there either."""

    @seams.replaces(LockResolver, "_roll_back_primary")
    def roll_back_primary(
        original: Any, self: Any, primary: Cell, start_ts: int, held: bool, newest: int
    ) -> bool:
        return True if not held else bool(original(self, primary, start_ts, held, newest))


@LOCKING.mutant("looking-alone-decides", "P4 P3", HastyBank, HastyAppends, Large, modes=TWO_PHASE)
def looking_alone(seams: Seams) -> None:
    """That a primary holds neither lock nor record is decided by looking: its prewrite lands
    later, and nothing stops it. As long as the primary is the first to be locked (P3), nobody
    can look before; so here the secondaries are."""
    looking_decides(seams)
    secondaries_first(seams)


@LOCKING.mutant("drops-rollback-record", "P4", HastyBank, HastyAppends, modes=TWO_PHASE, kinds=LATE)
def drops_rollback_record(seams: Seams) -> None:
    """Rolling back removes the primary's lock and leaves no record that a late prewrite of the
    same transaction would meet."""

    @seams.replaces(LockResolver, "_roll_back_primary")
    def roll_back_primary(
        original: Any, self: Any, primary: Cell, start_ts: int, held: bool, newest: int
    ) -> bool:
        column = primary.column
        conditions = [Condition(held, Kind.LOCK, column, start_ts, start_ts)]
        if not held:
            conditions.append(Condition(False, Kind.WRITE, column, newest + 1, MAX_TS))
        changes: list[Put | Delete] = [
            Delete(Kind.LOCK, column, start_ts),
            Delete(Kind.DATA, column, start_ts),
        ]
        mutation = RowMutation(primary.table, primary.row, conditions, changes)
        return bool(self._store.mutate([mutation])[0])


@LOCKING.mutant(
    "prewrite-passes-rollback-record", "P4", HastyBank, HastyAppends, modes=TWO_PHASE, kinds=LATE
)
def passes_rollback_record(seams: Seams) -> None:
    """A prewrite looks for records above its start_ts only, as in figure 6, and so passes the
    rollback record that stands at its start_ts."""

    @seams.replaces(TwoPhaseCommit, "_prewrite_row")
    def prewrite_row(original: Any, self: Any, cells: Any, primary: Cell) -> RowMutation:
        mutation: RowMutation = original(self, cells, primary)
        mutation.conditions = [
            one._replace(low=one.low + 1) if one.kind is Kind.WRITE else one
            for one in mutation.conditions
        ]
        return mutation


@LOCKING.mutant("rollback-overwrites-commit", "P4 P5", HastyBank, HastyAppends, modes=TWO_PHASE)
def rollback_overwrites_commit(seams: Seams) -> None:
    """The rollback record is written without a condition: the transaction may have committed
    since it was looked at."""

    @seams.replaces(LockResolver, "_roll_back_primary")
    def roll_back_primary(
        original: Any, self: Any, primary: Cell, start_ts: int, held: bool, newest: int
    ) -> bool:
        column = primary.column
        changes: list[Put | Delete] = [
            Put(Kind.WRITE, column, start_ts, encode_write(Op.ROLLBACK, start_ts)),
            Delete(Kind.LOCK, column, start_ts),
            Delete(Kind.DATA, column, start_ts),
        ]
        self._store.mutate([RowMutation(primary.table, primary.row, (), changes)])
        return True


@LOCKING.mutant(
    "unconditional-lock-removal", "P5", HastyBank, HastyAppends, Large, modes=WITH_LOCKS
)
def unconditional_lock_removal(seams: Seams) -> None:
    """A resolver removes whatever lock stands in the cell, not that of the transaction whose
    fate it knows: a slow one removes a newer transaction's."""

    @seams.replaces(LockResolver, "settle")
    def settle(
        original: Any, self: Any, cell: Cell, start_ts: int, lock: LockRecord, fate: Fate
    ) -> None:
        changes: list[Put | Delete] = []
        if fate.commit_ts is not None:
            changes += commit_changes(cell.column, start_ts, fate.commit_ts, lock)
        for lock_ts, _ in self._store.entries(cell, Kind.LOCK, 0, MAX_TS):
            changes.append(Delete(Kind.LOCK, cell.column, lock_ts))
        self._store.mutate([RowMutation(cell.table, cell.row, (), changes)])


@LOCKING.mutant("unconditional-commit", "P5", HastyBank, HastyAppends, modes=TWO_PHASE)
def unconditional_commit(seams: Seams) -> None:
    """The commit point does not ask whether the primary's lock still stands: a transaction that
    others have rolled back commits all the same."""

    @seams.replaces(TwoPhaseCommit, "commit_primary")
    def commit_primary(
        original: Any, self: Any, cells: Sequence[Cell], primary: Cell, commit_ts: int
    ) -> None:
        changes = self._commit_row(cells, commit_ts)
        self._context.store.mutate([RowMutation(primary.table, primary.row, (), changes)])


@LOCKING.mutant("own-commit-not-recognised", "P6", Bank, Appends, Register, modes=TWO_PHASE)
def own_commit_not_recognised(seams: Seams) -> None:
    """A commit that is sent again after a lost reply takes its own earlier success for a
    rollback, and reports an abort."""

    @seams.replaces(TwoPhaseCommit, "_has_committed")
    def has_committed(original: Any, self: Any, primary: Cell, commit_ts: int) -> bool:
        return False


@LOCKING.mutant("commit-applied-twice", "P6", Bank, Appends, Register, modes=TWO_PHASE)
def commit_applied_twice(seams: Seams) -> None:
    """A commit whose reply was lost is sent again as a new one, with a commit_ts of its own and
    without asking for the lock: it may be applied twice."""

    @seams.replaces(TwoPhaseCommit, "_has_committed")
    def has_committed(original: Any, self: Any, primary: Cell, commit_ts: int) -> bool:
        again = self._context.oracle.timestamp()
        changes = self._commit_row([primary], again)
        self._context.store.mutate([RowMutation(primary.table, primary.row, (), changes)])
        return True


@LOCKING.mutant("reads-before-resolving", "P10", Bank, Appends, Register, modes=WITH_LOCKS)
def reads_before_resolving(seams: Seams) -> None:
    """A reader that meets a lock keeps what it had read beside it: it does not read again once
    the lock is resolved, and misses what was rolled forward."""

    @seams.replaces(Snapshot, "_read")
    def read(original: Any, self: Any, cells: Sequence[Cell]) -> Any:
        store = self._context.store
        states = store.read(cells, self.start_ts)
        for i, cell in enumerate(cells):
            if (lock := states[i][0]) is not None:
                states[i] = store._written(cell, self.start_ts)
                self._context.resolver.wait_out(cell, *lock)
        return states


@LOCKING.mutant("locks-after-resolving", "P10", Bank, Appends, Register, modes=TWO_PHASE)
def locks_after_resolving(seams: Seams) -> None:
    """A prewrite that has resolved a lock in its way asks for no lock, but no longer for newer
    writes: the one that it has just rolled forward is lost."""

    @seams.replaces(TwoPhaseCommit, "_explain_refusal")
    def explain_refusal(original: Any, self: Any, mutation: RowMutation) -> bool:
        resolver, start_ts = self._context.resolver, self._start_ts
        met = resolved = False
        for column in {one.column for one in mutation.conditions}:
            cell = Cell(mutation.table, mutation.row, column)
            for lock_ts, raw in self._context.store.entries(cell, Kind.LOCK, 0, MAX_TS):
                if lock_ts != start_ts:
                    met = True
                    if not resolver.try_resolve(cell, lock_ts, raw):
                        raise ConflictError(cell, start_ts, lock_ts, locked=True)
                    resolved = True
        if not met or not resolved:
            return bool(original(self, mutation))
        mutation.conditions = [
            Condition(False, Kind.LOCK, one.column, 0, MAX_TS)
            for one in mutation.conditions
            if one.kind is Kind.LOCK
        ]
        return False


@LOCKING.mutant("primary-chosen-early", "P14", Bank, Unique, Large, modes=TWO_PHASE)
def primary_chosen_early(seams: Seams) -> None:
    """The primary is chosen while the write set still grows: a lock names the cell that was the
    first of its row then, which is not the one that decides."""

    @seams.replaces(TwoPhaseCommit, "_lock")
    def lock(original: Any, self: Any, cell: Cell, primary: Cell) -> LockRecord:
        first = next(one for one in self._writes if one.row == cell.row)
        return original(self, cell, primary)._replace(primary=first)  # type: ignore[no-any-return]
