"""A frame is complete and of one timestamp, whoever is killed while it is read.

A lock stops the reader in the middle of the table, so that what is killed is surely at work; it is
committed afterwards, above the frame's timestamp. Meanwhile others write all the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from children import Child, hear, say, wait_in_child
from pyspark.sql import DataFrame, SparkSession
from spark_processes import cmdline, kill_all, python_workers
from stores import in_thread, put_all

import percola
from percola import Repository, Table
from percola.cells import Kind
from percola.store.base import RowMutation

bank = Table("bank")
bal = bank.column("bal", int)
ROWS = 4000
EACH = 100
MIDDLE = "row-002000"


def row(number: int) -> str:
    return f"row-{number:06d}"


def keep_moving(pipe: Connection, address: str) -> None:
    """In another process: move money from row to row, until it is killed."""
    rng = random.Random(1)
    with percola.open(address, [bank]) as repository:
        for moved in range(10**9):
            a, b = (row(number) for number in rng.sample(range(ROWS), 2))

            def move(t: percola.Transaction, a: str = a, b: str = b) -> None:
                if MIDDLE not in (a, b):
                    t.set(bal, a, (t.get(bal, a) or 0) - 1)
                    t.set(bal, b, (t.get(bal, b) or 0) + 1)

            repository.run(move)
            if moved == 100:
                say(pipe, "moving")


def commit_slowly(pipe: Connection, address: str) -> None:
    """In another process: lock a row, and commit it when told to."""
    with percola.open(address, [bank]) as repository:
        store = repository.context.store
        mutate = store.mutate

        def stopping(batch: Sequence[RowMutation]) -> list[bool]:
            applied = mutate(batch)
            if any(one.kind is Kind.LOCK for mutation in batch for one in mutation.changes):
                store.mutate = mutate  # type: ignore[method-assign]
                say(pipe, "locked")
                hear(pipe)
            return applied

        with repository.transaction(two_phase=True) as t:
            t.set(bal, MIDDLE, 10**6)
            store.mutate = stopping  # type: ignore[method-assign]
    say(pipe, "committed")


def filled(tmp_path: Path) -> Path:
    with percola.open(tmp_path / "repo", [bank], durability="relaxed") as repository:
        for first in range(0, ROWS, 500):
            put_all(repository, bal, {row(number): EACH for number in range(first, first + 500)})
    return tmp_path / "repo"


def frame_of(spark: SparkSession, folder: Path, ts: int) -> DataFrame:
    options = {"table": "bank", "snapshot": str(ts), "partitions": "4"}
    return spark.read.format("percola").options(**options).load(str(folder))


def waits_for_the_lock(spark: SparkSession) -> bool:
    """Whether all tasks are done but the one that cannot be."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return any(one and one.numActiveTasks == 1 and one.numCompletedTasks == 3 for one in infos)


def kill_while_it_is_read(
    spark: SparkSession, folder: Path, victims: Callable[[], list[int]]
) -> tuple[int, list[tuple[str, int]]]:
    """Read a frame, kill the victims in the middle of it; its timestamp and its rows."""
    with Child(keep_moving, str(folder)) as mover, Child(commit_slowly, str(folder)) as slow:
        assert slow.hear() == "locked"
        assert mover.hear() == "moving"
        with percola.open(folder) as repository, repository.snapshot() as now:
            ts = now.start_ts
        frame = frame_of(spark, folder, ts)
        reading = in_thread(frame.collect)
        wait_in_child(lambda: waits_for_the_lock(spark) or reading.done())
        assert not reading.done(), reading.result()
        killed = kill_all(victims())
        assert killed
        wait_in_child(lambda: not any(cmdline(pid) for pid in killed))
        assert not reading.done()
        slow.tell()
        assert slow.hear() == "committed"
        return ts, [(one.row, one.bal) for one in reading.result(240)]


def check(folder: Path, ts: int, rows: list[tuple[str, int]]) -> None:
    found = dict(rows)
    assert len(rows) == len(found) == ROWS
    assert sum(found.values()) == ROWS * EACH
    with percola.open(folder) as repository:
        assert _at(repository, ts) == found
        assert repository.snapshot().get(bal, MIDDLE) == 10**6


def _at(repository: Repository, ts: int) -> dict[str, int]:
    with repository.snapshot(ts) as snapshot:
        return {one.key: one[bal] for one in snapshot.scan(bank)}


def test_a_python_worker_is_killed(tmp_path: Path, spark: SparkSession) -> None:
    folder = filled(tmp_path)
    ts, rows = kill_while_it_is_read(spark, folder, lambda: python_workers(spark))
    check(folder, ts, rows)
