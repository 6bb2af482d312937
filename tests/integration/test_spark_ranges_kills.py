"""Processes of Spark are killed in the middle of a copy and of garbage collection: nothing is lost,
doubled or left over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import wait_in_child
from pyspark.sql import SparkSession
from spark_processes import cmdline, kill_all, python_workers
from stores import in_thread

import percola
from percola import Repository, Table
from percola.cells import Cell, Kind
from percola.connect.local import LocalConnection
from percola.gc.collector import GarbageCollector
from percola.maintenance.check import check
from percola.maintenance.copy import copy_repository
from percola.ranges import Walk
from percola.spark import OnSpark
from percola.store.base import SYSTEM_TABLE, Store
from percola.store.walks import walk_kind

docs = Table("docs", feed=True)
text = docs.column("text", str, observed=True)
size = docs.column("size", int)
ROWS = 30_000
RANGES = 4

Victims = Callable[[SparkSession], list[int]]


def filled(tmp_path: Path) -> Path:
    """A repository of which each cell has two versions."""
    with percola.open(tmp_path / "repo", [docs], durability="relaxed") as repo:
        for value in range(2):
            for first in range(0, ROWS, 5000):
                with repo.transaction(notify=bool(value)) as t:
                    for at in range(first, first + 5000):
                        t.set(text, f"{at:06}", f"{value} {at}" * (1 + 40 * (at % 5 == 0)))
                        t.set(size, f"{at:06}", value)
    return tmp_path / "repo"


def everything(store: Store) -> set[tuple[Cell, Kind, int, bytes]]:
    return {
        (cell, kind, ts, raw)
        for kind in Kind
        for cell, ts, raw in walk_kind(store, kind, docs.name)
    }


def in_the_middle(store: Store, repo: Repository, row: bytes, counted: str) -> bool:
    """Whether some of the ranges have come some way, and not all are done."""
    walk = Walk(store, repo.context.clock, row).unfinished()
    return walk is not None and walk.counts[counted] > 0 and bool(walk.left)


def kill_when(
    condition: Callable[[], bool], work: Callable[[], Any], victims: Callable[[], list[int]]
) -> Any:
    """What the work returns although its processes are killed once the condition holds."""
    working = in_thread(work)
    wait_in_child(lambda: condition() or working.done())
    assert not working.done(), working.result()
    killed = kill_all(victims())
    assert killed
    wait_in_child(lambda: not any(cmdline(pid) for pid in killed))
    assert not working.done(), "it was in the middle"
    return working.result(240)


def collect_and_copy(spark: SparkSession, folder: Path, victims: Victims) -> None:
    """Both beside kills; what is left is what one process leaves."""
    shutil.copytree(folder, folder.with_name("alone"))
    target = folder.with_name("copied by spark")
    with (
        percola.open(folder, [docs], durability="relaxed") as repo,
        percola.open(folder.with_name("alone"), [docs], durability="relaxed") as alone,
    ):
        runner = OnSpark(spark, repo, ranges=RANGES)
        store = repo.context.store
        # So slowly that it is surely met in the middle.
        collector = GarbageCollector(repo.context, retention=0, share=0.1, runner=runner)
        collected = kill_when(
            lambda: in_the_middle(store, repo, b"gc/walk", "versions"),
            collector.collect,
            lambda: victims(spark),
        )
        expected = alone.collect_garbage(retention=0)
        assert (collected.complete, collected.cells) == (True, expected.cells)
        assert 0 < collected.versions <= expected.versions
        assert everything(store) == everything(alone.context.store)

        opened = LocalConnection.open(target, "relaxed", create=True)
        opened.store.create_tables([SYSTEM_TABLE])
        try:
            copied = kill_when(
                lambda: in_the_middle(opened.store, repo, b"copy", "rows"),
                lambda: copy_repository(repo, str(target), durability="relaxed", runner=runner),
                lambda: victims(spark),
            )
        finally:
            opened.release()
        copy_repository(alone, str(folder.with_name("copied alone")), at=copied.ts)
    assert copied.rows == ROWS
    with (
        percola.open(target, [docs]) as found,
        percola.open(folder.with_name("copied alone"), [docs]) as wanted,
    ):
        assert everything(found.context.store) == everything(wanted.context.store)
        assert found.pending() == wanted.pending() == {"docs.text": ROWS}
        assert list(check(found)) == []


@pytest.mark.long
def test_python_workers_are_killed(tmp_path: Path, spark: SparkSession) -> None:
    collect_and_copy(spark, filled(tmp_path), python_workers)
