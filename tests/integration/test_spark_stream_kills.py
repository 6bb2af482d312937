"""`spark.readStream` on a cluster whose parts are killed: every change exactly once."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from children import Child, hear, say
from feed_streams import Sink, expected, repo, size, stream, title
from spark_processes import QUICK_EXECUTORS, children, kill_all

from percola import Repository
from percola.spark import spark_session

__all__ = ["repo"]

Wait = Callable[..., object]


# --- Kills ------------------------------------------------------------------------------


def follow(pipe: Connection, folder: Path, work: Path) -> None:
    """In another process: a stream on a cluster of two executors, until it is told to stop."""

    def hold_up(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Let the test in while a task runs; Spark repeats what it kills."""
        (work / "running" / str(os.getpid())).touch()
        pause = threading.Event()
        while not (work / "go").exists():
            pause.wait(0.01)
        yield from batches

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    config = QUICK_EXECUTORS | {"spark.ui.enabled": "false", "spark.task.maxFailures": "8"}
    with spark_session("local-cluster[2,1,1024]", app="follow", config=config) as spark:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        from percola.spark.source import PercolaDataSource

        spark.dataSource.register(PercolaDataSource)
        frame = stream(spark, folder, partitions=2, startingTimestamp="earliest")
        frame = frame.mapInPandas(hold_up, frame.schema)
        writer = frame.writeStream.foreachBatch(Sink(work / "sink"))
        writer = writer.option("checkpointLocation", str(work / "checkpoint"))
        query = writer.start()
        say(pipe, gateway.proc.pid)
        while (word := hear(pipe)) != "stop":
            if word == "finish":
                query.processAllAvailable()
            say(pipe, None if query.exception() is None else str(query.exception()))
        query.stop()


def processes_below(pid: int) -> dict[int, str]:
    """All processes that a process has started, and those that they have, with their names."""
    found: dict[int, str] = {}
    for child in children(pid):
        name = Path(f"/proc/{child}/comm").read_text().strip()
        found |= {child: name, **processes_below(child)}
    return found


def executors(jvm: int) -> list[int]:
    return [pid for pid in children(jvm) if Path(f"/proc/{pid}/comm").read_text() == "java\n"]


def heard(child: Child) -> Any:
    """What the child says; starting a cluster takes its time where others are at work."""
    assert child.speaks_within(200), "the child says nothing"
    return child.hear()


@pytest.mark.long
@pytest.mark.timeout(900)  # A cluster that starts, loses its parts, and starts again.
def test_killed_python_workers_executors_and_drivers_lose_and_double_no_change(
    repo: Repository, folder: Path, tmp_path: Path, java_home: Path, wait_until: Wait
) -> None:
    work = tmp_path
    (work / "running").mkdir()
    numbers = itertools.count()
    running = work / "running"

    def write() -> None:
        """So much that readers cannot have handed on all of it."""
        for _ in range(40):
            with repo.transaction() as t:
                for row in range(100):
                    t.set(title, f"r{row:03}", "x" * 500)
                    t.set(size, f"r{row:03}", next(numbers))

    def wait_for_tasks() -> None:
        for file in list(running.iterdir()):
            file.unlink()
        (work / "go").unlink(missing_ok=True)
        write()
        wait_until(lambda: len(list(running.iterdir())) >= 2, seconds=150, what="two tasks")

    write()
    with Child(follow, folder, work) as child:
        jvm = heard(child)
        wait_until(lambda: len(list(running.iterdir())) >= 2, seconds=150, what="two tasks")
        # The processes of the tasks, those that read as well as those that hold them up.
        killed = [
            pid
            for executor in executors(jvm)
            for pid, name in processes_below(executor).items()
            if name.startswith("python")
        ]
        assert {int(file.name) for file in running.iterdir()} <= set(killed)
        kill_all(killed)
        before = {int(file.name) for file in running.iterdir()}
        wait_until(
            lambda: len({int(file.name) for file in running.iterdir()} - before) >= 2,
            seconds=150,
            what="the tasks to be repeated",
        )
        (work / "go").touch()
        child.tell("finish")
        assert heard(child) is None

        wait_for_tasks()
        before = {int(file.name) for file in running.iterdir()}
        victim = executors(jvm)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda: {int(file.name) for file in running.iterdir()} - before,
            seconds=150,
            what="the executor's task to be repeated",
        )
        (work / "go").touch()
        child.tell("finish")
        assert heard(child) is None

        wait_for_tasks()
        below = list(processes_below(jvm))
        os.kill(child.pid, signal.SIGKILL)
        kill_all([jvm, *below])
    write()
    (work / "go").touch()
    with Child(follow, folder, work) as child:
        heard(child)
        child.tell("finish")
        assert heard(child) is None
        child.tell("stop")
        heard(child)
    sink = Sink(work / "sink")
    found = sorted(sink.seen(), key=lambda one: one[1::-1])
    assert len(found) == next(numbers)
    assert found == sorted(expected(repo, 0), key=lambda one: one[1::-1])
    assert len(sink.batches()) >= 4
