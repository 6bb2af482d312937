"""`df.writeStream.format("percola")` on a real Spark."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from children import Child, wait_in_child
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import StreamingQuery
from spark_processes import children, cmdline, kill_all, python_workers
from spark_writes import (
    ROWS,
    assert_nothing_left,
    assert_written_once,
    docs,
    half_way,
    in_session,
    open_table,
    size,
    under_way,
    visible,
)
from stores import in_thread

import percola
from percola import Repository, Table
from percola.cells import Cell, Kind, decode_lock
from percola.spark import spark_session
from percola.spark.source import PercolaDataSource
from percola.store.walks import walk_kind
from percola.transactions.jobs import JOBS
from percola.transactions.jobs.job_row import STATE

Wait = Callable[..., object]
COLUMNS = "row string, title string, size bigint"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Where the stream's files and its checkpoint are, wherever the repository is."""
    (tmp_path / "in").mkdir()
    return tmp_path


@pytest.fixture
def folder(work: Path) -> Path:
    return work / "repo"


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    with open_table(folder) as opened:
        yield opened


def put_file(work: Path, name: str, start: int, rows: int) -> None:
    """A file of the stream, which appears whole."""
    lines = [
        json.dumps({"row": f"row/{n:06}", "title": f"title {n}", "size": n})
        for n in range(start, start + rows)
    ]
    (work / name).write_text("\n".join(lines))
    (work / name).rename(work / "in" / f"{name}.json")


def written(
    rows: DataFrame, folder: Path, work: Path, table: str = "docs", **options: str
) -> StreamingQuery:
    """A query that writes a stream's rows into the table until there are none."""
    writer = rows.writeStream.format("percola").options(table=table, **options)
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    return writer.trigger(availableNow=True).start(str(folder))


def drain(spark: Any, folder: Path, work: Path, partitions: int = 2, table: str = "docs") -> None:
    """Write all files that have not been written, a batch for each."""
    in_session(spark)
    spark.dataSource.register(PercolaDataSource)
    files = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    query = written(files.json(str(work / "in")).repartition(partitions), folder, work, table)
    try:
        query.awaitTermination()
    finally:
        query.stop()


def outcomes(folder: Path) -> dict[str, str]:
    """What became of each batch."""
    with percola.open(folder, schema=[JOBS]) as repo, repo.snapshot() as now:
        return {row.key.rpartition("/")[2]: row[STATE]["is"] for row in now.scan(JOBS)}


def commit_times(repo: Repository, start: int, rows: int) -> set[int]:
    with repo.snapshot() as now:
        return {now.version(size, f"row/{n:06}") for n in range(start, start + rows)}


def test_each_batch_is_one_commit_and_one_that_is_repeated_is_passed_over(
    spark: SparkSession, repo: Repository, folder: Path, work: Path
) -> None:
    put_file(work, "a", 0, 300)
    put_file(work, "b", 300, 300)
    drain(spark, folder, work)
    assert_written_once(repo, 600)
    assert len(commit_times(repo, 0, 600)) == 2
    assert outcomes(folder) == {"0": "committed", "1": "committed"}
    # Spark dies after the commit and before it has noted it; the rows are spread otherwise.
    commits = work / "checkpoint" / "commits"
    for path in (commits / "1", commits / ".1.crc"):
        path.unlink()
    put_file(work, "c", 600, 300)
    drain(spark, folder, work, partitions=5)
    assert (commits / "1").exists(), "Spark did not repeat the batch"
    assert_written_once(repo, 900)
    assert len(commit_times(repo, 0, 900)) == 3


def test_a_copied_checkpoint_goes_on_into_another_table(
    spark: SparkSession, repo: Repository, folder: Path, work: Path
) -> None:
    others = Table("others")
    others.column("title", str)
    others_size = others.column("size", int)
    percola.open(folder, schema=[others]).close()
    put_file(work, "a", 0, 10)
    drain(spark, folder, work)
    shutil.copytree(work / "checkpoint", work / "copied")
    put_file(work, "b", 10, 10)
    drain(spark, folder, work)
    shutil.rmtree(work / "checkpoint")
    (work / "copied").rename(work / "checkpoint")
    drain(spark, folder, work, table="others")
    with percola.open(folder, schema=[others]) as opened, opened.snapshot() as now:
        assert [row[others_size] for row in now.scan(others)] == list(range(10, 20))
    assert_written_once(repo, 20)


def test_a_batch_that_fails_leaves_nothing_and_is_written_after_a_restart(
    spark: SparkSession, repo: Repository, folder: Path, work: Path
) -> None:
    put_file(work, "a", 0, 300)
    drain(spark, folder, work)
    put_file(work, "b", 300, 300)
    # A live transaction holds a row for longer than the batch waits.
    with half_way(repo, 1400):
        with pytest.raises(StreamingQueryException, match="has been locked for 1 s"):
            force(spark, folder, work)
        assert set(visible(repo)) == {f"row/{n:06}" for n in range(300)}
    drain(spark, folder, work, partitions=3)
    assert_written_once(repo, 600)
    assert outcomes(folder) == {"0": "committed", "1": "committed"}


def force(spark: Any, folder: Path, work: Path) -> None:
    rows = spark.readStream.schema(COLUMNS).json(str(work / "in"))
    # Of a batch that fails Spark may end the other tasks' processes before these clean up.
    written(rows, folder, work, lockWaitSeconds="1", ttlSeconds="10").awaitTermination()


def test_python_workers_that_are_killed_in_a_batch_lose_and_double_nothing(
    spark: SparkSession, repo: Repository, folder: Path, work: Path, wait_until: Wait
) -> None:
    put_file(work, "a", 0, ROWS)
    with half_way(repo):
        writing = in_thread(lambda: drain(spark, folder, work))
        wait_until(lambda: under_way(repo) or writing.done(), seconds=90, what="half of it")
        assert not writing.done(), str(writing.exception())
        assert kill_all(python_workers(spark))
        assert visible(repo) == {}
    writing.result(90)
    assert_written_once(repo)


def stream_here(pipe: Connection, folder: Path, work: Path) -> None:
    with spark_session("local[2]", app="stream") as spark:
        drain(spark, folder, work)


@pytest.mark.long
def test_a_driver_killed_in_a_batch_is_succeeded_at_once_by_the_next_exactly_once(
    spark: SparkSession,
    repo: Repository,
    folder: Path,
    work: Path,
    wait_until: Wait,
    java_home: Path,
) -> None:
    put_file(work, "a", 0, ROWS)
    with half_way(repo), Child(stream_here, folder, work) as child:
        wait_until(lambda: under_way(repo), seconds=110, what="half of a batch")
        [jvm] = [pid for pid in children(child.pid) if "java" in cmdline(pid)]
        workers = [one for daemon in children(jvm) for one in children(daemon)]
        child.kill()
        os.kill(jvm, signal.SIGKILL)
        assert visible(repo) == {} and workers
    drain(spark, folder, work, partitions=3)
    assert_written_once(repo)
    assert outcomes(folder) == {"0": "committed"}


def test_what_cannot_be_written_ends_the_query_and_leaves_nothing(
    spark: SparkSession, repo: Repository, folder: Path, work: Path, wait_until: Wait
) -> None:
    put_file(work, "a", 0, 100)
    (work / "in" / "b.json").write_text('{"row": "", "title": "x", "size": 1}')
    with pytest.raises(StreamingQueryException, match="every row needs a key"):
        force(spark, folder, work)

    def settle() -> None:
        # A task that was given up may lock for a moment still, or be killed in the middle of it;
        # readers settle that.
        assert list(repo.snapshot().scan(docs)) == []
        with percola.open(str(folder), [JOBS], create=False) as other:
            list(other.snapshot().scan(JOBS))

    def is_settled() -> bool:
        settle()
        with contextlib.suppress(AssertionError):
            assert_nothing_left(repo)
            return True
        return False

    with contextlib.suppress(pytest.fail.Exception):
        wait_until(is_settled, seconds=60)
    settle()
    assert_nothing_left(repo)


@pytest.mark.long
def test_a_batch_that_cannot_be_committed_is_told_in_a_sentence(
    spark: SparkSession, repo: Repository, folder: Path, work: Path, wait_until: Wait
) -> None:
    """One partition is rolled back when it is done, while the other is still to be written."""
    go = work / "go"

    def gate(row: str) -> str:
        if row == "row/000001":
            wait_in_child(go.exists)
        return "title"

    put_file(work, "a", 0, 2)
    percola.open(str(folder), [JOBS]).close()
    in_session(spark)
    spark.dataSource.register(PercolaDataSource)
    rows = spark.readStream.schema("row string, size bigint").json(str(work / "in"))
    rows = rows.repartition(2).withColumn("title", udf(gate, "string")("row"))
    query = written(rows, folder, work)

    def claims() -> list[tuple[int, Cell]]:
        """The start_ts and the primary of partitions that are done."""
        return [
            (start_ts, decode_lock(raw).primary)
            for cell, start_ts, raw in walk_kind(repo.context.store, Kind.LOCK, JOBS.name)
            if cell.column.startswith(b"claim:")
        ]

    try:
        wait_until(lambda: claims() or query.exception(), seconds=60, what="a partition")
        [(start_ts, primary)] = claims()
        repo.context.resolver.fate(primary, start_ts, force=True)
        go.touch()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination()
    finally:
        go.touch()
        query.stop()
    assert "Nothing of the job has been committed" in str(caught.value).splitlines()[0]
    assert "Traceback" not in str(caught.value) and 'File "' not in str(caught.value)
    assert visible(repo) == {}
