"""Mutants of how a commit ends, and of trying again: P7, P13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import CommitUnknownError, ConflictError, OutcomeUnknownError
from percola.store.base import Condition, RowMutation
from percola.transactions import retry
from percola.transactions.jobs import Attempt
from percola.transactions.lock_resolver import ROLLED_BACK
from percola.transactions.transaction import Transaction
from percola.transactions.two_phase import TwoPhaseCommit
from tests.simulation.mutants.mutant import TWO_PHASE, Collection, Seams
from tests.simulation.mutants.workloads import Tallies
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.joint import Joint
from tests.simulation.workloads.register import Register

OUTCOMES = Collection()


def commit_once(commit: Any, cells: Sequence[Cell], primary: Cell, commit_ts: int) -> bool:
    """Send the commit of the primary's row once; whether it was applied."""
    held = Condition(True, Kind.LOCK, primary.column, commit._start_ts, commit._start_ts)
    changes = commit._commit_row(cells, commit_ts)
    mutation = RowMutation(primary.table, primary.row, [held], changes)
    return bool(commit._context.store.mutate([mutation])[0])


def when_lost(seams: Seams, answer: Callable[[Any, Cell, int, OutcomeUnknownError], None]) -> None:
    """Lets the commit of the primary's row be sent once; `answer` is what a lost reply comes to."""

    @seams.replaces(TwoPhaseCommit, "commit_primary")
    def commit_primary(
        original: Any, self: Any, cells: Sequence[Cell], primary: Cell, commit_ts: int
    ) -> None:
        try:
            applied = commit_once(self, cells, primary, commit_ts)
        except OutcomeUnknownError as error:
            answer(self, primary, commit_ts, error)
            return
        if not applied:
            raise self._rolled_back()


@OUTCOMES.mutant("lost-commit-is-an-abort", "P7", Bank, Appends, Register, modes=TWO_PHASE)
def lost_commit_is_an_abort(seams: Seams) -> None:
    """A lost reply at the commit point is reported as an abort, though it may have committed."""

    def abort(commit: Any, primary: Cell, commit_ts: int, error: OutcomeUnknownError) -> None:
        raise ConflictError(primary, commit._start_ts, 0, locked=False) from None

    when_lost(seams, abort)


@OUTCOMES.mutant("lost-commit-is-cleaned-up", "P7", Bank, Appends, modes=TWO_PHASE)
def lost_commit_is_cleaned_up(seams: Seams) -> None:
    """After a lost reply at the commit point the secondaries' locks are removed on a guess, and
    the caller is told that the outcome is unknown: if it has committed, they are lost."""

    def clean_up(commit: Any, primary: Cell, commit_ts: int, error: OutcomeUnknownError) -> None:
        for cell in commit._locked:
            lock = commit._lock(cell, primary)
            commit._context.resolver.settle(cell, commit._start_ts, lock, ROLLED_BACK)
        raise CommitUnknownError(primary, commit._start_ts, commit_ts) from error

    when_lost(seams, clean_up)


@OUTCOMES.mutant("lost-commit-is-a-success", "P7", Bank, Appends, modes=TWO_PHASE)
def lost_commit_is_a_success(seams: Seams) -> None:
    """After a lost reply at the commit point the caller is told that it has committed: nobody
    has read the primary."""
    when_lost(seams, lambda *_: None)


@OUTCOMES.mutant("retry-replays-writes", "P13", Tallies)
def retry_replays_writes(seams: Seams) -> None:
    """After a conflict the buffered writes are committed at a new start_ts, and the user's
    function does not run again: what it had read is no longer true."""

    @seams.replaces(retry, "run")
    def run(
        original: Any,
        function: Callable[[Transaction], Any],
        begin: Callable[[], Transaction],
        clock: Any,
        random_: Any,
        *rest: Any,
    ) -> Any:
        kept: list[Any] = []

        def replay(transaction: Transaction) -> Any:
            if kept:
                transaction._writes.update(kept[0])
                return kept[1]
            value = function(transaction)
            kept.extend((dict(transaction._writes), value))
            return value

        return original(replay, begin, clock, random_, *rest)


@OUTCOMES.mutant("joint-write-from-its-own-start", "P13", Joint)
def joint_write_from_its_own_start(seams: Seams) -> None:
    """A job that has read the rows it writes checks them from its attempt's start_ts on: what was
    written between its reading and that is lost."""

    @seams.replaces(Attempt, "_unwritten")
    def unwritten(original: Any, self: Any, one: Any, column: bytes) -> Any:
        yield Condition(False, Kind.WRITE, column, self._newest, MAX_TS)
