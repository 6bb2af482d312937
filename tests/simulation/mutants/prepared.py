"""Mutants of commits that a store sends by itself: P2, P7."""

from __future__ import annotations

from collections.abc import Sequence

from percola.store.base import RowMutation
from tests.simulation.mutants.mutant import TWO_PHASE, Collection, Seams
from tests.simulation.prepared import PreparingStore, prepared
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank

PREPARED = Collection()


def hoping(seams: Seams, hopes: str) -> None:
    """Lets the store take what it has heard nothing of for applied, in one phase."""

    @seams.store
    class Hoping(PreparingStore):
        def attempt(self, phase: str, batch: Sequence[RowMutation]) -> Sequence[bool | None]:
            found = super().attempt(phase, batch)
            return [one is not False for one in found] if phase == hopes else found


@PREPARED.mutant("lost-prewrite-is-held", "P2", prepared(Bank), prepared(Appends), modes=TWO_PHASE)
def lost_prewrite_is_held(seams: Seams) -> None:
    """The store says of rows that they are locked though the reply was lost: the commit_ts is drawn
    before they are, if they ever are."""
    hoping(seams, "prewrite")


@PREPARED.mutant("lost-commit-is-done", "P7", prepared(Bank), prepared(Appends), modes=TWO_PHASE)
def lost_commit_is_done(seams: Seams) -> None:
    """The store says of rows that they are committed though the reply was lost."""
    hoping(seams, "commit")
