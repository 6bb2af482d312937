"""Mutants of §2.4, notifications and observers: N1 … N7.

What a jump away from another scanner saves (N7) and how soon a wake-up arrives (N6) are measured
where time is real: `tests/paper/test_2_4_worker.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from percola.cells import MAX_TS, Cell, Kind, ack_column, encode_ts
from percola.errors import StoreError, TransientError
from percola.observers.failures import DirtyCell, Failures
from percola.observers.observer import Observer
from percola.observers.runner import Found, Outcome, Runner
from percola.observers.scanner import Scanner
from percola.store.base import Delete, Put, RowMutation
from percola.store.walks import scan_writes
from percola.testing.simulation import FaultKind, SimulatedCoordination
from percola.transactions import lock_resolver as locks
from percola.transactions import two_phase
from percola.transactions.transaction import Transaction
from percola.transactions.two_phase import TwoPhaseCommit
from tests.simulation.mutants.mutant import WITH_LOCKS, Collection, Seams
from tests.simulation.mutants.workloads import APART, Archive, Diary, WakeUp
from tests.simulation.workloads.chain import Chain
from tests.simulation.workloads.collapsing import Collapsing
from tests.simulation.workloads.columns import Columns
from tests.simulation.workloads.counters import Counters
from tests.simulation.workloads.dead_letters import DeadLetters
from tests.simulation.workloads.paused import Paused
from tests.simulation.workloads.weak import Weak

NOTIFYING = Collection()

UNHURRIED = (FaultKind.SLOW, FaultKind.PAUSED)
"""What lets a run take so long that another one begins and ends."""


def without_notify(changes: list[Put | Delete]) -> list[Put | Delete]:
    """The changes of a commit, but for the notify entry."""
    return [one for one in changes if one.kind is not Kind.NOTIFY]


@NOTIFYING.mutant(
    "rolls-forward-without-notify", "N1", Counters, Collapsing, Chain, modes=WITH_LOCKS
)
def rolls_forward_without_notify(seams: Seams) -> None:
    """Whoever rolls a dead transaction's cell forward puts no notify entry with its write."""

    @seams.replaces(locks, "commit_changes")
    def commit_changes(original: Any, *args: Any) -> list[Put | Delete]:
        return without_notify(original(*args))


@NOTIFYING.mutant("notifies-later", "N1", Counters, Collapsing, Chain, modes=WITH_LOCKS)
def notifies_later(seams: Seams) -> None:
    """The notify entries are put in a mutation of their own after the commit: a crash in
    between loses them."""

    @seams.replaces(two_phase, "commit_changes")
    def commit_changes(original: Any, *args: Any) -> list[Put | Delete]:
        return without_notify(original(*args))

    @seams.replaces(TwoPhaseCommit, "commit_secondaries")
    def commit_secondaries(original: Any, self: Any, groups: Any, commit_ts: int) -> None:
        original(self, groups, commit_ts)
        for table, row, column in [cell for cell in self._writes if self._observed(cell)]:
            put = Put(Kind.NOTIFY, column, commit_ts, b"")
            try:
                self._context.store.mutate([RowMutation(table, row, (), [put])])
            except StoreError:
                return


def to_weak_ones_only(seams: Seams) -> None:
    """Lets what is put before the commit point be weak notifications alone."""

    @seams.replaces(TwoPhaseCommit, "_to_notify")
    def to_notify(original: Any, self: Any, notifications: Any) -> list[Cell]:
        return sorted(notifications)


def notify_observed(commit: Any, ts: int) -> None:
    """Put the notify entries of what a transaction writes to observed columns."""
    for table, row, column in [cell for cell in commit._writes if commit._observed(cell)]:
        put = Put(Kind.NOTIFY, column, ts, b"")
        commit._context.store.mutate([RowMutation(table, row, (), [put])])


@NOTIFYING.mutant("apart-before-the-locks", "N1", *APART, modes=WITH_LOCKS)
def apart_before_the_locks(seams: Seams) -> None:
    """Where notify entries stand apart, they are put before the locks: whoever looks in between
    finds nothing new and takes them away, and then the change comes."""
    to_weak_ones_only(seams)

    @seams.replaces(TwoPhaseCommit, "run")
    def run(original: Any, self: Any, *args: Any) -> int:
        notify_observed(self, self._context.oracle.timestamp())
        return int(original(self, *args))


@NOTIFYING.mutant("apart-after-the-commit-point", "N1", *APART, modes=WITH_LOCKS)
def apart_after_the_commit_point(seams: Seams) -> None:
    """Where notify entries stand apart, they are put after the commit point: a crash in between
    loses them."""
    to_weak_ones_only(seams)

    @seams.replaces(TwoPhaseCommit, "commit_secondaries")
    def commit_secondaries(original: Any, self: Any, groups: Any, commit_ts: int) -> None:
        with contextlib.suppress(StoreError):
            notify_observed(self, commit_ts)
        original(self, groups, commit_ts)


def notify_at_start_ts(
    original: Any, column: bytes, start_ts: int, *args: Any
) -> list[Put | Delete]:
    """The changes of a commit, with the notify entry at the writer's start_ts."""
    changes: list[Put | Delete] = original(column, start_ts, *args)
    return [one._replace(ts=start_ts) if one.kind is Kind.NOTIFY else one for one in changes]


@NOTIFYING.mutant("notifies-at-start-ts", "N1 N2", Collapsing, Counters, Chain, modes=WITH_LOCKS)
def notifies_at_start_ts(seams: Seams) -> None:
    """The notify entry is put at the writer's start_ts, and the observer removes the entries at
    or below its own: one that began between prewrite and commit has seen nothing new, and
    removes it. (Ours removes only the entries that it had found before it began.)"""
    seams.replaces(locks, "commit_changes")(notify_at_start_ts)
    seams.replaces(two_phase, "commit_changes")(notify_at_start_ts)

    @seams.replaces(Transaction, "_commit")
    def commit(original: Any, self: Any) -> int:
        commit_ts: int = original(self)
        remove_entries(self, self.start_ts)
        return commit_ts


def remove_entries(transaction: Any, upto: int) -> None:
    """Remove the notify entries up to a timestamp of the cells that a run answers."""
    store = transaction._context.store
    for cell in dict.fromkeys(
        cell for kind, cell, _ in transaction._answers if kind is Kind.NOTIFY
    ):
        found = store.entries(cell, Kind.NOTIFY, 0, upto)
        changes = [Delete(Kind.NOTIFY, cell.column, ts) for ts, _ in found]
        store.mutate([RowMutation(cell.table, cell.row, (), changes)])


@NOTIFYING.mutant("removes-every-notification", "N2", Collapsing, Weak, Chain)
def removes_every_notification(seams: Seams) -> None:
    """An observer that has committed removes every notify entry of its cell, those of changes
    above its start_ts as well."""

    @seams.replaces(Transaction, "_commit")
    def commit(original: Any, self: Any) -> int:
        commit_ts: int = original(self)
        remove_entries(self, MAX_TS)
        return commit_ts


@NOTIFYING.mutant("removes-before-commit", "N2", Collapsing, Weak, Chain)
def removes_before_commit(seams: Seams) -> None:
    """An observer removes the notify entries before it commits: if it dies or conflicts, nobody
    knows of the change."""

    @seams.replaces(Transaction, "_commit")
    def commit(original: Any, self: Any) -> int:
        remove_entries(self, self.start_ts)
        return int(original(self))


@NOTIFYING.mutant("answers-for-others", "N2 N5", Collapsing, DeadLetters)
def answers_for_others(seams: Seams) -> None:
    """Each of a column's observers removes the notify entries, also while another has yet to
    run."""

    @seams.replaces(Runner, "_run_observer")
    def run_observer(
        original: Any, self: Any, one: Any, dirty: DirtyCell, answered: Any, held: Any
    ) -> Any:
        return original(self, one, dirty, dirty.notified, held)


@NOTIFYING.mutant("answers-for-paused", "N2", Paused)
def answers_for_paused(seams: Seams) -> None:
    """While an observer is paused, the others of its columns remove the notify entries."""

    @seams.replaces(Runner, "_run_observer")
    def run_observer(
        original: Any, self: Any, one: Any, dirty: DirtyCell, answered: Any, held: Any
    ) -> Any:
        return original(self, one, dirty, dirty.notified if self.paused.names() else answered, held)


@NOTIFYING.mutant("answers-other-columns-for-others", "N2", Columns)
def answers_other_columns_for_others(seams: Seams) -> None:
    """A run of an observer of several columns removes the notify entries of all of them, also of
    those that another observer has yet to see."""

    @seams.replaces(Runner, "_row_of")
    def row_of(
        original: Any, self: Any, one: Any, dirty: DirtyCell, answered: list[int]
    ) -> tuple[list[DirtyCell], dict[Cell, list[int]]]:
        changes, answers = original(self, one, dirty, answered)
        for cell in answers.keys() - {dirty.cell}:
            if (other := self._look(cell)) is not None:
                answers[cell] = other.notified
        return changes, answers


@NOTIFYING.mutant("looks-at-one-column", "N2", Columns)
def looks_at_one_column(seams: Seams) -> None:
    """A run of an observer of several columns acknowledges the first that has changed, and removes
    the notify entries of all."""

    @seams.replaces(Observer, "_has_to_run")
    def has_to_run(original: Any, self: Any, transaction: Any, row: bytes, notified: Any) -> bool:
        first = self.cells(row)[0]
        return bool(self._acknowledge(transaction, first))


@NOTIFYING.mutant("acknowledges-unchanged-columns", "N3", Columns)
def acknowledges_unchanged_columns(seams: Seams) -> None:
    """A run of an observer of several columns acknowledges all of them, changed or not: it
    conflicts with runs for changes that it has not seen, and its acknowledgment answers none."""

    @seams.replaces(Observer, "_has_to_run")
    def has_to_run(original: Any, self: Any, transaction: Any, row: bytes, *args: Any) -> bool:
        runs = bool(original(self, transaction, row, *args))
        for table, _, column in self.cells(row) if runs else ():
            ack = Cell(table, row, ack_column(self.name, column))
            transaction._put(ack, encode_ts(transaction.start_ts))
        return runs


@NOTIFYING.mutant("ack-not-written", "N3", Diary)
def ack_not_written(seams: Seams) -> None:
    """An observer does not write its acknowledgment in its transaction, but once that has
    committed: two runs for one change do not meet."""

    @seams.replaces(Observer, "_acknowledge")
    def acknowledge(original: Any, self: Any, transaction: Any, cell: Cell) -> bool:
        runs = bool(original(self, transaction, cell))
        ack = Cell(cell.table, cell.row, ack_column(self.name, cell.column))
        transaction._writes.pop(ack, None)
        return runs

    @seams.replaces(Observer, "run")
    def run(original: Any, self: Any, context: Any, row: bytes, *args: Any) -> bool:
        if not original(self, context, row, *args):
            return False
        later = Transaction(context)
        for table, _, column in self.cells(row):
            later.put(Cell(table, row, ack_column(self.name, column)), encode_ts(later.start_ts))
        with contextlib.suppress(StoreError, TransientError):
            later.commit()
        return True


@NOTIFYING.mutant("ack-not-read", "N3", Counters, Collapsing)
def ack_not_read(seams: Seams) -> None:
    """An observer does not read its acknowledgment: a notify entry that was left over, or found
    twice, has it run again for the same change."""

    @seams.replaces(Observer, "_acknowledge")
    def acknowledge(original: Any, self: Any, transaction: Any, cell: Cell) -> bool:
        ack = Cell(cell.table, cell.row, ack_column(self.name, cell.column))
        changed, _ = transaction._observe(cell, ack)
        transaction._put(ack, encode_ts(transaction.start_ts))
        return bool(changed)


@NOTIFYING.mutant("weak-after-commit-point", "N4", Weak, modes=WITH_LOCKS)
def weak_after_commit_point(seams: Seams) -> None:
    """Weak notifications are put after the commit point: a crash in between loses them."""

    @seams.replaces(TwoPhaseCommit, "_notify")
    def notify(original: Any, self: Any, notifications: Any, commit_ts: int) -> bool:
        self.weak = list(notifications)
        if not self._writes:
            return bool(original(self, notifications, commit_ts))
        return bool(self.weak)

    @seams.replaces(TwoPhaseCommit, "commit_secondaries")
    def commit_secondaries(original: Any, self: Any, groups: Any, commit_ts: int) -> None:
        for table, row, column in self.weak:
            put = Put(Kind.NOTIFY, column, commit_ts, b"")
            try:
                self._context.store.mutate([RowMutation(table, row, (), [put])])
            except StoreError:
                return
        original(self, groups, commit_ts)


def let_weak_runs_overlap(seams: Seams) -> None:
    """Runs for weak notifications acknowledge nothing. (Without row locks, which mostly keep runs
    apart.)"""

    @seams.coordination
    class Granting(SimulatedCoordination):
        def try_lock(self, table: str, row: bytes) -> bool:
            super().try_lock(table, row)
            return True

    @seams.replaces(Observer, "_set_acknowledgment")
    def set_acknowledgment(*args: Any) -> None:
        pass


@NOTIFYING.mutant("weak-runs-overlap", "N4", Weak, kinds=UNHURRIED)
def weak_runs_overlap(seams: Seams) -> None:
    """A run that finds nothing to write does not conflict with an older one for the same row, which
    commits later what it computed from an older snapshot."""
    let_weak_runs_overlap(seams)


@NOTIFYING.mutant("failure-blocks-others", "N5", DeadLetters)
def failure_blocks_others(seams: Seams) -> None:
    """An observer that fails is tried again for ever, and the cell's others wait for it."""

    @seams.replaces(Failures, "failed")
    def failed(original: Any, self: Any, *args: Any) -> bool:
        return False


@NOTIFYING.mutant("dropped-without-record", "N5", DeadLetters)
def dropped_without_record(seams: Seams) -> None:
    """An observer that keeps failing is dropped, and no operator can see it."""

    @seams.replaces(Failures, "_change")
    def change(original: Any, self: Any, dirty: DirtyCell, changes: Any) -> Any:
        return original(self, dirty, [one for one in changes if one.kind is not Kind.FAILED])


@NOTIFYING.mutant("dead-lettered-for-good", "N5", DeadLetters)
def dead_lettered_for_good(seams: Seams) -> None:
    """An observer that a change was dead-lettered for does not see the cell's later changes."""

    gone: set[tuple[str, Cell]] = set()

    @seams.replaces(Failures, "dead_letter")
    def dead_letter(original: Any, self: Any, one: Any, dirty: DirtyCell, *args: Any) -> Any:
        gone.add((one.name, dirty.cell))
        return original(self, one, dirty, *args)

    @seams.replaces(Failures, "is_dead_lettered")
    def is_dead_lettered(original: Any, self: Any, one: Any, dirty: DirtyCell) -> bool:
        return (one.name, dirty.cell) in gone


@NOTIFYING.mutant("queued-for-ever", "N6", DeadLetters, Collapsing)
def queued_for_ever(seams: Seams) -> None:
    """A worker remembers in its memory which cells it works on, and forgets that only after a
    success: where an observer has failed, it does not look again."""
    queued: set[tuple[Runner, Cell]] = set()

    @seams.replaces(Runner, "work_cell")
    def work_cell(original: Any, self: Any, cell: Cell, held: Any) -> Found:
        if (self, cell) in queued:
            return Found.NOTHING
        queued.add((self, cell))
        found: Found = original(self, cell, held)
        if Found.LATER not in found:
            queued.discard((self, cell))
        return found


@NOTIFYING.mutant("scans-everything", "N6", Archive)
def scans_everything(seams: Seams) -> None:
    """Work is found by looking at every row of the table."""

    @seams.replaces(Scanner, "_scan_range")
    def scan_range(
        original: Any, self: Any, table: str, start: bytes, end: bytes, *args: Any
    ) -> Found:
        store = self._context.store
        position: bytes | None = start
        while position is not None:
            cells, position = scan_writes(store, table, position, end)
            for cell, _ in cells:
                store.entries(cell, Kind.NOTIFY, 0, MAX_TS, 1)
        found: Found = original(self, table, start, end, *args)
        return found


@NOTIFYING.mutant("no-wake-up", "N6", WakeUp, kinds=(FaultKind.SLOW, FaultKind.PAUSED))
def no_wake_up(seams: Seams) -> None:
    """A commit wakes no worker: its change waits for the next scan."""

    @seams.coordination
    class Silent(SimulatedCoordination):
        def wake(self, tables: Iterable[str] | None = None) -> None:
            return


@NOTIFYING.mutant("keeps-row-lock", "N7", DeadLetters, Collapsing)
def keeps_row_lock(seams: Seams) -> None:
    """A scanner whose observer failed keeps the row's advisory lock: nobody visits the row
    again for as long as it lives."""
    failed: set[tuple[str, bytes]] = set()

    @seams.replaces(Runner, "_run_observer")
    def run_observer(original: Any, self: Any, one: Any, dirty: DirtyCell, *args: Any) -> Any:
        outcome = original(self, one, dirty, *args)
        if outcome in (Outcome.LATER, Outcome.SOON):
            failed.add(dirty.cell[:2])
        return outcome

    @seams.coordination
    class Keeping(SimulatedCoordination):
        def unlock(self, table: str, row: bytes) -> None:
            if (table, row) not in failed:
                super().unlock(table, row)
