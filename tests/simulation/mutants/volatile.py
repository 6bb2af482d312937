"""Mutants of what may be lost with a server of the store: P3, P4, P5, P7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from percola import Repository, Table
from percola.cells import Cell, Kind, Op, decode_write
from percola.store.base import Delete, Put, RowMutation
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, FaultKind, SimulatedStore, Sizes
from percola.transactions.two_phase import TwoPhaseCommit
from tests.simulation.mutants.mutant import TWO_PHASE, Collection, Seams
from tests.simulation.mutants.workloads import Hasty, HastyBank
from tests.simulation.workloads.large import Large

VOLATILE = Collection()

DEADLY = (FaultKind.SERVER_DIED, FaultKind.TABLET_SPLIT, FaultKind.SLOW)

purses = Table("purses")
coins = purses.column("coins", str)
notes = purses.column("notes", str)


class LosingBank(HastyBank):
    """The hasty bank on a store whose servers die."""

    name = "losing bank"
    has_volatile_writes = True


class Purses(Hasty):
    """Some put coins and notes into one purse and coins into others, some put notes there alone."""

    name = "purses"
    tables = (purses,)
    sizes: ClassVar[Sizes] = {"others": (2, 6), "clients": (2, 4), "turns": (4, 10)}
    has_volatile_writes = True

    def turn(self, client: Client, number: int) -> None:
        rows = ["first", *(f"other {one}" for one in range(self.size("others")))]
        whole = client.rng.random() < 0.6
        cells = [(coins, row) for row in rows if whole] + [(notes, "first")]

        def put(t: RecordedTransaction) -> None:
            for column, row in cells:
                t.get(column, row)
                t.set(column, row, f"{client.process.name}/{number}")

        client.transact(put)

    def at_rest(self, repo: Repository) -> None:
        return  # What is lost is seen in the history.


def durable_where(seams: Seams, durable: Callable[[RowMutation], bool]) -> None:
    """Lets the store lose all other mutations, whatever the protocol says."""

    @seams.store
    class Losing(SimulatedStore):
        def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
            return super().mutate([replace(one, durable=durable(one)) for one in batch])


def _only_locks(mutation: RowMutation) -> bool:
    return all(isinstance(one, Put) and one.kind is Kind.LOCK for one in mutation.changes)


@VOLATILE.mutant("secondaries-are-volatile", "P3", LosingBank, Large, modes=TWO_PHASE, kinds=DEADLY)
def secondaries_are_volatile(seams: Seams) -> None:
    """All locks are volatile: with a secondary's, a write is lost whose transaction has
    committed."""
    durable_where(seams, lambda one: one.durable and not _only_locks(one))


@VOLATILE.mutant("rollback-record-is-volatile", "P4", LosingBank, modes=TWO_PHASE, kinds=DEADLY)
def rollback_record_is_volatile(seams: Seams) -> None:
    """A rollback record is lost, and the lock that it replaced returns: the transaction commits
    what others have rolled back."""

    def rolls_back(one: Put | Delete) -> bool:
        if not isinstance(one, Put) or one.kind is not Kind.WRITE:
            return False
        return decode_write(one.value).op is Op.ROLLBACK

    durable_where(seams, lambda one: one.durable and not any(map(rolls_back, one.changes)))


@VOLATILE.mutant("refresh-is-durable", "P5", Purses, modes=TWO_PHASE, kinds=DEADLY)
def refresh_is_durable(seams: Seams) -> None:
    """A refresh makes the primary's lock durable, and not those of the other cells of its row:
    they are lost alone, and the commit point does not ask for them."""

    def refreshes(one: RowMutation) -> bool:
        return _only_locks(one) and any(each.present for each in one.conditions)

    durable_where(seams, lambda one: one.durable or refreshes(one))


@VOLATILE.mutant("value-is-volatile", "P7", Large, modes=TWO_PHASE, kinds=DEADLY)
def value_is_volatile(seams: Seams) -> None:
    """A long value of the primary's row is put with its lock: it is lost after the commit."""

    @seams.replaces(TwoPhaseCommit, "_prewrite_row")
    def prewrite_row(original: Any, self: Any, cells: Any, primary: Cell) -> RowMutation:
        mutation: RowMutation = original(self, cells, primary)
        if not mutation.durable:
            values = [one for one in self._commit_row(cells, 0) if one.kind is Kind.DATA]
            mutation.changes = [*mutation.changes, *values]
        return mutation

    @seams.replaces(TwoPhaseCommit, "_commit_point")
    def commit_point(original: Any, self: Any, *args: Any) -> RowMutation:
        mutation: RowMutation = original(self, *args)
        mutation.changes = [one for one in mutation.changes if one.kind is not Kind.DATA]
        return mutation
