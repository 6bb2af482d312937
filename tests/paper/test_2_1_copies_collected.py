"""A copy of a repository beside a collector, which removes what is still to be copied."""

from __future__ import annotations

from typing import Any

import pytest
from stores import Ground, ScriptedClock, delete, heard, notify, put

from percola import Repository, Table, Transaction, Worker, observer
from percola.catalog import RUNS
from percola.cells import Kind
from percola.coordination.memory import MemoryCoordination
from percola.maintenance.check import Severity, check
from percola.maintenance.copy import copy_store
from percola.oracle.embedded import EmbeddedOracle
from percola.store.memory import MemoryStore
from percola.store.walks import walk_kind

docs = Table("docs")
text = docs.column("text", str, observed=True)
size = docs.column("size", int)
letters = docs.column("letters", str)
again = docs.weak_column("again")
TABLES = [docs]


@observer(text)
def measure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(text, row) or ""))


@observer(text)
def spell(t: Transaction, row: str) -> None:
    t.set(letters, row, "".join(sorted(set(t.get(text, row) or ""))))


@observer(again)
def look(t: Transaction, row: str) -> None:
    """Finds everything as it should be."""


def work(repo: Repository) -> None:
    Worker(repo, [measure, spell, look], threads=2).run_until_idle()


def values(repo: Repository) -> dict[tuple[str, str, str], Any]:
    """Every value, by table, row and column."""
    with repo.snapshot() as now:
        return {
            (table.name, row.key, column.name): value
            for table in repo.schema
            for row in now.scan(table)
            for column, value in row.items()
        }


def copy_of(source: Repository) -> Repository:
    """A copy in memory, which is sound."""
    store = MemoryStore()
    oracle = EmbeddedOracle(store)
    copy_store(source, store, oracle)
    copied = Repository("target", store, oracle, MemoryCoordination(), TABLES)
    assert [one for one in check(copied) if one.severity is not Severity.NOTE] == []
    return copied


@pytest.mark.parametrize("meanwhile", ["written anew", "answered"])
def test_a_delete_that_is_collected_while_it_is_copied_is_left_to_the_copys_observers(
    ground: Ground, meanwhile: str
) -> None:
    source = ground.repo(TABLES)
    put(source, text, "a", "text")
    work(source)
    if meanwhile == "written anew":
        source.pause_observer(measure)  # Else the delete is answered before it is collected.
    delete(source, text, "a")
    # A collector has begun, and comes to the row once it is being copied.
    source.context.store.raise_safe_point(source.snapshot().start_ts)
    collected: list[int] = []

    def collect(found: object, kind: Kind, *_: object) -> None:
        if kind is Kind.LOCK and not collected:
            collected.append(0)
            if meanwhile == "written anew":
                put(source, text, "a", "newer text")
            else:
                work(source)
            collected.append(source.collect_garbage(retention=0).deleted)

    copied = copy_of(ground.repo(TABLES, store=heard(ground.store, scan_kind=collect)))
    assert collected == [0, 1]
    assert copied.pending() == {"docs.text": 1}
    if meanwhile == "written anew":
        copied.resume_observer(measure)
    work(copied)
    assert values(copied) == {("docs", "a", "size"): 0, ("docs", "a", "letters"): ""}


def test_a_record_of_a_run_that_is_forgotten_while_it_is_copied_is_left_out(
    ground: Ground,
) -> None:
    source = ground.repo(TABLES, clock=ScriptedClock())
    source.record_runs()
    notify(source, again, *(f"doc {number:02}" for number in range(24)))
    Worker(source, [look], threads=1).run_until_idle()
    [*recorded] = walk_kind(source.context.store, Kind.DATA, RUNS.name)
    assert recorded, "of runs of which not all fits into a write record"
    # A collector has begun, and comes to the records once they are being copied.
    source.context.store.raise_safe_point(source.snapshot().start_ts)

    def forget(found: object, kind: Kind, table: str, *_: object) -> None:
        if (kind, table) == (Kind.WRITE, RUNS.name):
            source.collect_garbage(retention=0)

    copied = copy_of(ground.repo(TABLES, store=heard(ground.store, scan_kind=forget)))
    assert [*walk_kind(source.context.store, Kind.DATA, RUNS.name)] == []
    assert values(copied) == {}


def test_a_copy_goes_on_beside_a_collector_that_raises_the_safe_point_just_then(
    ground: Ground,
) -> None:
    collecting, raised = ground.repo(TABLES), []
    for number in range(9):
        put(collecting, text, "a", f"version {number}")

    def raise_it(found: int, *_: object) -> None:
        if found < 3:  # Each time after the copy has asked for it.
            raised.append(found + 1)
            collecting.context.store.raise_safe_point(found + 1)

    source = ground.repo(TABLES, store=heard(ground.store, safe_point=raise_it))
    assert values(copy_of(source)) == values(collecting)
    assert raised == [1, 2, 3]
    assert source.holds() == []
