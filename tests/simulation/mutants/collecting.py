"""Mutants of garbage collection: P12."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from percola.cells import Kind, Op, decode_write
from percola.gc import collector as gc
from percola.gc.collector import Collected, GarbageCollector
from percola.gc.rules import RowGarbage
from percola.store.base import Delete, RowMutation
from percola.store.walks import scan_writes
from percola.testing.simulation import SimulatedStore
from percola.transactions.two_phase import TwoPhaseCommit
from tests.simulation.mutants.mutant import TWO_PHASE, Collection, Seams
from tests.simulation.mutants.workloads import (
    LATE,
    OF_PRUNING,
    HastyPruned,
    PrunedBank,
    PrunedRegisters,
    PrunedSkew,
)
from tests.simulation.workloads.collecting import Collecting

COLLECTING = Collection()


@COLLECTING.mutant(
    "collects-without-resolving", "P12", PrunedBank, modes=TWO_PHASE, kinds=OF_PRUNING
)
def collects_without_resolving(seams: Seams) -> None:
    """The safe point passes the locks of the dead: with the primary's record gone, nobody can
    tell that a lock left on a secondary belongs to a transaction that has committed."""

    @seams.replaces(GarbageCollector, "_choose")
    def choose(
        original: Any, self: Any, latest: int, tables: Any, collected: Collected
    ) -> tuple[int, str]:
        kept: tuple[int, str] = self._retained(latest)
        return kept


@COLLECTING.mutant(
    "reader-ignores-safe-point",
    "P12",
    PrunedBank,
    PrunedRegisters,
    modes=TWO_PHASE,
    kinds=OF_PRUNING,
)
def reader_ignores_safe_point(seams: Seams) -> None:
    """A reader below the safe point is answered from what is left there."""

    @seams.store
    class Careless(SimulatedStore):
        def _check_ts(self, ts: int) -> None:
            return


@COLLECTING.mutant(
    "collects-the-newest-version", "P12", Collecting, PrunedBank, modes=TWO_PHASE, kinds=OF_PRUNING
)
def collects_the_newest(seams: Seams) -> None:
    """The newest version at or below the safe point is taken for superseded."""

    @seams.replaces(gc, "garbage_of_row")
    def garbage_of_row(
        original: Any, cells: Any, safe_point: int, observed: Any, **more: int
    ) -> RowGarbage:
        cells = list(cells)
        garbage: RowGarbage = original(cells, safe_point, observed, **more)
        for column, records in cells:
            for ts, raw in records:
                if ts <= safe_point and decode_write(raw).op is Op.PUT:
                    garbage.changes.append(Delete(Kind.WRITE, column, ts))
        return garbage


@COLLECTING.mutant(
    "commit-ignores-safe-point", "P12", PrunedRegisters, modes=TWO_PHASE, kinds=OF_PRUNING
)
def commit_ignores_safe_point(seams: Seams) -> None:
    """A transaction below the safe point commits: what it conflicts with may have been removed."""

    @seams.replaces(TwoPhaseCommit, "run")
    def run(original: Any, self: Any, *args: Any) -> Any:
        store = copy.copy(self._context.store)
        store.safe_point = lambda: 0
        self._context = dataclasses.replace(self._context, store=store)
        return original(self, *args)


@COLLECTING.mutant("rollback-records-go-early", "P4 P12", HastyPruned, modes=TWO_PHASE, kinds=LATE)
def rollback_records_go_early(seams: Seams) -> None:
    """The collector removes rollback records above the safe point, too: a prewrite that is
    still on its way does not meet its own any more."""

    @seams.replaces(GarbageCollector, "collect")
    def collect(original: Any, self: Any) -> Collected:
        # Only this part of a cycle, over and over.
        for table in HastyPruned.tables:
            cells, _ = scan_writes(self._store, table.name)
            for cell, records in cells:
                gone = [
                    Delete(Kind.WRITE, cell.column, ts)
                    for ts, raw in records
                    if decode_write(raw).op is Op.ROLLBACK
                ]
                if gone:
                    self._store.mutate([RowMutation(cell.table, cell.row, (), gone)])
        return Collected()


@COLLECTING.mutant("rollback-repeats-what-went", "P12", PrunedRegisters, kinds=OF_PRUNING)
def rollback_repeats_what_went(seams: Seams) -> None:
    """A rollback record that stays below the safe point goes on repeating a change, which the
    collector removes together with the delete that hid it."""

    @seams.replaces(gc, "garbage_of_row")
    def garbage_of_row(original: Any, *args: Any, **named: Any) -> RowGarbage:
        garbage: RowGarbage = original(*args, **named)
        garbage.changes = [one for one in garbage.changes if isinstance(one, Delete)]
        return garbage


@COLLECTING.mutant("locks-go-early", "P12", PrunedSkew, kinds=OF_PRUNING)
def locks_go_early(seams: Seams) -> None:
    """The collector removes every lock-only record, also the newest record of a cell: a
    transaction that began before it writes what was locked."""

    @seams.replaces(gc, "garbage_of_row")
    def garbage_of_row(original: Any, cells: Any, *args: Any, **named: Any) -> RowGarbage:
        cells = list(cells)
        garbage: RowGarbage = original(cells, *args, **named)
        garbage.changes += [
            Delete(Kind.WRITE, column, ts)
            for column, records in cells
            for ts, raw in records
            if decode_write(raw).op is Op.LOCK
        ]
        return garbage
