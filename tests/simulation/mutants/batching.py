"""Mutants of §2.4, several rows in one transaction: N2, N5, N7."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from percola.cells import Cell, Kind, ack_column, encode_ts
from percola.observers.failures import Story
from percola.observers.observer import Notified, Observer
from percola.observers.runner import Row, Runner
from percola.observers.scanner import Scanner
from percola.store.base import Delete, RowMutation
from percola.testing.simulation import FaultKind
from percola.transactions.transaction import Transaction
from tests.simulation.mutants.mutant import Collection, Seams
from tests.simulation.workloads.batches import Batches

BATCHING = Collection()

Rows = Iterable[tuple[bytes, Notified]]
Take = Callable[[int], list[Cell]]

T = TypeVar("T")

HARMLESS = (FaultKind.SLOW, FaultKind.PAUSED, FaultKind.TOKEN_LOST, FaultKind.TABLET_SPLIT)
"""Faults that do not keep an observer from ending well."""


def noting(handed_out: Iterable[T], noted: list[T]) -> Iterator[T]:
    """The same, noted as they are asked for."""
    for one in handed_out:
        noted.append(one)
        yield one


def remove(context: Any, notified: Notified) -> None:
    """Remove notify entries."""
    for (table, row, column), timestamps in notified.items():
        changes = [Delete(Kind.NOTIFY, column, ts) for ts in timestamps]
        context.store.mutate([RowMutation(table, row, (), changes)])


@BATCHING.mutant("batch-answers-what-it-did-not-run", "N2", Batches)
def batch_answers_what_it_did_not_run(seams: Seams) -> None:
    """A batch runs its observer for the first two rows, and acknowledges all others with them."""

    @seams.replaces(Observer, "run_batch")
    def run_batch(original: Any, self: Any, context: Any, *args: Any) -> Any:
        runs: list[object] = []

        def function(t: Transaction, row: object) -> None:
            runs.append(row)
            if len(runs) <= 2:
                self.function(t, row)

        return original(replace(self, function=function), context, *args)


@BATCHING.mutant("batch-acknowledges-commit", "N2", Batches)
def batch_acknowledges_commit(seams: Seams) -> None:
    """A batch acknowledges changes up to a later timestamp than the one at which it reads: those in
    between are taken for seen."""

    @seams.replaces(Observer, "_acknowledge")
    def acknowledge(original: Any, self: Any, transaction: Transaction, cell: Cell) -> bool:
        runs: bool = original(self, transaction, cell)
        if runs and self.batch > 1:
            ack = Cell(cell.table, cell.row, ack_column(self.name, cell.column))
            transaction._put(ack, encode_ts(transaction.start_ts + 30))
        return runs


@BATCHING.mutant("batch-answers-newer", "N2", Batches)
def batch_answers_newer(seams: Seams) -> None:
    """A batch answers every notify entry that a row had when it joined, those above the batch's
    start_ts as well: it has not seen what they tell of."""

    @seams.replaces(Observer, "run_batch")
    def run_batch(original: Any, self: Any, context: Any, rows: Rows, *args: Any) -> Any:
        joined: list[tuple[bytes, Notified]] = []
        outcome = original(self, context, noting(rows, joined), *args)
        for _, notified in joined:
            remove(context, notified)
        return outcome


@BATCHING.mutant("batch-answers-before-commit", "N2", Batches)
def batch_answers_before_commit(seams: Seams) -> None:
    """Each row of a batch is answered when it has run: if the batch dies or conflicts later, none
    knows of the changes of those before."""

    @seams.replaces(Observer, "run_batch")
    def run_batch(original: Any, self: Any, context: Any, rows: Rows, *args: Any) -> Any:
        def answering() -> Iterator[tuple[bytes, Notified]]:
            for row, notified in rows:
                yield row, notified
                remove(context, notified)

        return original(self, context, answering(), *args)


@BATCHING.mutant("batch-fails-together", "N5", Batches, kinds=HARMLESS)
def batch_fails_together(seams: Seams) -> None:
    """If one row of a batch raises, all its rows are dead-lettered."""
    story: list[Story | None] = [None]

    @seams.replaces(Observer, "run_batch")
    def run_batch(original: Any, *args: Any) -> Any:
        story[0] = None
        try:
            return original(*args)
        except ValueError as error:
            story[0] = Story.of(error)
            raise

    @seams.replaces(Runner, "work_batch")
    def work_batch(original: Any, self: Any, take: Take, held: list[Row]) -> Any:
        joined: list[Cell] = []
        done = original(self, lambda most: [*noting(take(most), joined)], held)
        if failed := story[0]:  # Kept: other workers' batches run between the calls below.
            for cell in joined:
                [one] = self._observers.of(cell)
                dirty = self._look(cell)
                if dirty is not None:
                    self.failures.dead_letter(one, dirty, dirty.notified, failed, 1)
        return done


@BATCHING.mutant("batch-keeps-row-locks", "N7", Batches, kinds=HARMLESS)
def batch_keeps_row_locks(seams: Seams) -> None:
    """A scanner gives back the lock of the row that it came for, and keeps those of the rows that
    joined it: nobody visits them again for as long as it lives."""

    @seams.replaces(Scanner, "_joining")
    def joining(
        original: Any, self: Any, cell: Cell, others: Iterable[Cell], held: list[Row]
    ) -> Take:
        return original(self, cell, others, [])
