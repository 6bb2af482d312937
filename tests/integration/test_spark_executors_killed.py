"""Executors are killed in the middle of all that they do: a cluster that survives each of these.

What holds afterwards is told where Python workers are killed in the same way, in the modules of
reading, ranges, row changes and streams.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from children import Child, hear, say, wait_in_child
from pyspark.sql import SparkSession
from spark_processes import children, cluster_to_kill, cmdline, executors
from spark_writes import (
    ROWS,
    assert_written_once,
    frame_of,
    half_way,
    open_table,
    save,
    under_way,
    visible,
)

from percola.spark import catalog_settings
from percola.spark.source import PercolaDataSource
from tests.integration import (
    test_spark_ranges_kills,
    test_spark_read_kills,
    test_spark_row_changes,
    test_spark_stream_write,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),  # A cluster of three JVMs starts, and each test restarts two of them.
]

Wait = Callable[..., object]


def on_a_cluster(pipe: Connection) -> None:
    """In another process, which has a Spark of its own: what is asked for, one after the other."""
    with cluster_to_kill(**catalog_settings({})) as spark:
        spark.dataSource.register(PercolaDataSource)
        say(pipe, "ready")
        while pipe.poll(None) and (order := hear(pipe)) is not None:
            function, *arguments = order
            try:
                say(pipe, function(spark, *arguments))
            except BaseException:
                pipe.send(("failed", traceback.format_exc()))


@pytest.fixture(scope="module")
def cluster(java_home: Path) -> Iterator[Child]:
    with Child(on_a_cluster) as child:
        assert answer(child) == "ready"
        yield child
        child.tell(None)
        assert answer(child) is None


def answer(child: Child) -> Any:
    assert child.speaks_within(600)
    return child.hear()


def read(spark: SparkSession, folder: Path) -> Any:
    return test_spark_read_kills.kill_while_it_is_read(spark, folder, lambda: executors(spark))


def test_a_frame_that_is_read_is_whole(cluster: Child, tmp_path: Path) -> None:
    folder = test_spark_read_kills.filled(tmp_path)
    cluster.tell((read, folder))
    test_spark_read_kills.check(folder, *answer(cluster))


def test_garbage_collection_and_a_copy_are_whole(cluster: Child, tmp_path: Path) -> None:
    folder = test_spark_ranges_kills.filled(tmp_path)
    cluster.tell((test_spark_ranges_kills.collect_and_copy, folder, executors))
    assert answer(cluster) is None


def merge(spark: SparkSession, folder: Path) -> None:
    test_spark_row_changes.merge_and_kill(
        spark, str(folder / "repo"), folder, lambda: executors(spark), wait_in_child
    )


def test_a_merge_is_there_once(cluster: Child, tmp_path: Path) -> None:
    cluster.tell((merge, tmp_path))
    assert answer(cluster) is None


def write(spark: SparkSession, atomicity: str, folder: Path) -> None:
    if atomicity == "stream":
        test_spark_stream_write.drain(spark, folder, folder.parent)
    else:
        save(frame_of(spark), folder, atomicity)


def executors_of(driver: int) -> list[int]:
    """Those of the cluster whose driver has this process id."""
    [jvm] = [pid for pid in children(driver) if "java" in cmdline(pid)]
    return [pid for pid in children(jvm) if "ExecutorBackend" in cmdline(pid)]


@pytest.mark.parametrize("atomicity", ["row", "chunk", "job", "stream"])
def test_what_is_written_is_there_once(
    cluster: Child, tmp_path: Path, wait_until: Wait, atomicity: str
) -> None:
    folder = tmp_path / "repo"
    (tmp_path / "in").mkdir()
    test_spark_stream_write.put_file(tmp_path, "a", 0, ROWS)
    with open_table(folder) as repo:
        with half_way(repo):
            cluster.tell((write, atomicity, folder))
            wait_until(lambda: under_way(repo), seconds=90, what="half of it")
            victim = executors_of(cluster.pid)[0]
            os.kill(victim, signal.SIGKILL)
            if atomicity in ("job", "stream"):
                assert visible(repo) == {}
            wait_until(lambda: victim not in executors_of(cluster.pid), what="its end")
        assert answer(cluster) is None
        assert_written_once(repo)
