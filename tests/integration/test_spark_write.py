"""`df.write.format("percola")` on a real Spark: what is written, refused, repeated and killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest
from effort import mostly_long
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_processes import kill_all, python_workers
from spark_writes import (
    assert_nothing_left,
    assert_written_once,
    body,
    docs,
    frame_of,
    good,
    half_way,
    links,
    meta,
    open_table,
    save,
    score,
    size,
    title,
    under_way,
    visible,
)
from stores import in_thread

import percola
from percola import Repository, Worker, observer
from percola.maintenance.check import check
from percola.spark.source import PercolaDataSource
from percola.transactions.jobs import JOBS
from percola.transactions.jobs.job_row import STATE

Wait = Callable[..., object]
ATOMICITIES = ["row", "chunk", "job"]


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Path:
    spark.dataSource.register(PercolaDataSource)
    return tmp_path / "repo"


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    with open_table(folder) as opened:
        yield opened


# --- What is written --------------------------------------------------------------------


@pytest.mark.parametrize("atomicity", ATOMICITIES)
def test_a_write_without_notifications_runs_no_observer(
    spark: SparkSession, repo: Repository, folder: Path, atomicity: str
) -> None:
    save(spark.createDataFrame([("a", "A")], "row string, title string"), folder, atomicity)
    assert repo.pending() == {"docs.title": 1}
    more = spark.createDataFrame([("b", "B"), ("c", "C")], "row string, title string")
    save(more, folder, atomicity, notify="false")
    assert repo.pending() == {"docs.title": 1}
    assert repo.snapshot().get(title, "c") == "C"
    assert list(check(repo)) == []


@pytest.mark.parametrize("atomicity", ATOMICITIES)
def test_values_of_every_type_are_written_and_observers_see_them(
    spark: SparkSession, repo: Repository, folder: Path, atomicity: str
) -> None:
    frame = spark.createDataFrame(
        [
            ("a", "Ä", 2**60, 0.1, True, b"\0\xff", '{"k": [1, null]}', {"x": "1", "y": "2"}),
            ("b", None, None, None, None, None, None, None),
            ("c", "", -1, float("inf"), False, b"", "null", {}),
        ],
        "row string, title string, size bigint, score double, good boolean, body binary, "
        "meta string, links map<string,string>",
    )
    save(frame, folder, atomicity)
    seen: list[str] = []

    watch = observer(title, name="watch")(lambda t, row: seen.append(row))

    Worker(repo, [watch], threads=1).run_until_idle()
    assert sorted(seen) == ["a", "c"]
    with repo.snapshot() as now:
        row = now.get_row(docs, "a")
        assert (row[title], row[size], row[score], row[good]) == ("Ä", 2**60, 0.1, True)
        assert (row[body], row[meta]) == (b"\0\xff", {"k": [1, None]})
        assert row.family(links) == {"x": "1", "y": "2"}
        assert not now.get_row(docs, "b")
        row = now.get_row(docs, "c")
        assert (row[title], row[size], row[score], row[good]) == ("", -1, float("inf"), False)
        assert (row[body], row[meta], row.family(links)) == (b"", None, {})
    assert_nothing_left(repo)


@pytest.mark.parametrize(
    ("options", "chunks"),
    [({"chunkRows": "10"}, 4), ({"chunkBytes": "5000"}, 8), ({}, 1)],
    ids=["rows", "bytes", "neither"],
)
def test_a_chunk_is_one_commit_within_its_bounds_of_rows_and_bytes(
    spark: SparkSession, repo: Repository, folder: Path, options: dict[str, str], chunks: int
) -> None:
    # Rows of a little over a thousand bytes: the fifth fills a chunk of 5,000.
    rows = [(f"row-{n:02}", b"x" * 1000) for n in range(40)]
    save(
        spark.createDataFrame(rows, "row string, body binary").coalesce(1),
        folder,
        "chunk",
        **options,
    )
    commits = [repo.versions(body, row)[0][0] for row, _ in rows]
    assert len(set(commits)) == chunks
    assert commits == sorted(commits), "chunks are written in the order of the rows"


def test_json_columns_take_structs_maps_and_dates_and_a_family_one_column(
    spark: SparkSession, repo: Repository, folder: Path
) -> None:
    frame = spark.createDataFrame(
        [("a", ({"p": [1, None]}, date(2010, 10, 4)), "one", 7)],
        "row string, meta struct<m: map<string, array<int>>, d: date>, `links:x` string, size int",
    )
    save(frame, folder, "row")
    with repo.snapshot() as now:
        row = now.get_row(docs, "a")
        assert row[meta] == {"m": {"p": [1, None]}, "d": "2010-10-04"}
        assert (row.family(links), row[size]) == ({"x": "one"}, 7)


@pytest.mark.parametrize("atomicity", ATOMICITIES)
def test_nulls_leave_a_cell_alone_or_delete_it_and_a_column_says_which_rows_go(
    spark: SparkSession, repo: Repository, folder: Path, atomicity: str
) -> None:
    with repo.transaction() as t:
        for key in "abcd":
            t.set(title, key, "old")
            t.set(size, key, 1)
            t.set(links["x"], key, "y")
    kinds = "row string, title string, size int, gone boolean"
    one = spark.createDataFrame([("a", None, 2, False), ("b", "new", None, True)], kinds)
    save(one, folder, atomicity, deleteColumn="gone")
    other = spark.createDataFrame([("c", None, 2, None), ("e", None, None, True)], kinds)
    save(other, folder, atomicity, deleteColumn="gone", nulls="delete")
    with repo.snapshot() as now:
        found = {
            row.key: {column.name: value for column, value in row.items()} for row in now.scan(docs)
        }
    assert found == {
        "a": {"links:x": "y", "title": "old", "size": 2},
        "c": {"links:x": "y", "size": 2},
        "d": {"links:x": "y", "title": "old", "size": 1},
    }
    assert_nothing_left(repo)


def test_a_job_commits_at_one_timestamp_and_leaves_its_outcome(
    spark: SparkSession, repo: Repository, folder: Path
) -> None:
    frame = spark.range(0, 5000, numPartitions=4).selectExpr(
        "cast(id as string) as row", "id as size"
    )
    save(frame, folder, "job")
    with repo.snapshot() as now:
        assert len({now.version(size, row.key) for row in now.scan(docs)}) == 1
    with percola.open(folder, schema=[JOBS]) as both, both.snapshot() as now:
        [job] = now.scan(JOBS)
        assert job[STATE]["is"] == "committed" and job[STATE]["rows"] == 5000
    assert_nothing_left(repo)


# --- What is refused --------------------------------------------------------------------


def test_what_cannot_be_written_is_refused_before_anything_runs(
    spark: SparkSession, repo: Repository, folder: Path
) -> None:
    rows = spark.range(1).selectExpr("'a' as row", "1L as size")
    with pytest.raises(PySparkException, match=r"has no mode\('overwrite'\)"):
        rows.write.format("percola").mode("overwrite").option("table", "docs").save(str(folder))
    with pytest.raises(PySparkException, match="is none of row, chunk, job"):
        save(rows, folder, "batch")
    assert visible(repo) == {}


def test_a_job_that_fails_in_one_partition_leaves_nothing_of_the_others(
    spark: SparkSession, repo: Repository, folder: Path
) -> None:
    rows = spark.range(0, 4000, numPartitions=4).selectExpr(
        "if(id = 3999, '', cast(id as string)) as row", "id as size"
    )
    with pytest.raises(PySparkException, match="is empty"):
        save(rows, folder, "job")
    with repo.snapshot() as now:
        assert list(now.scan(docs)) == []
    assert_nothing_left(repo)


def test_a_row_in_two_partitions_of_a_job_is_told_and_in_one_the_later_counts(
    spark: SparkSession, repo: Repository, folder: Path
) -> None:
    rows = spark.range(0, 100, numPartitions=2).selectExpr("'same' as row", "id as size")
    told = "is written by the partitions 0 and 1 .* a repartition by the key lets either win"
    with pytest.raises(PySparkException, match=told):
        save(rows, folder, "job")
    save(rows.coalesce(1), folder, "job")
    with repo.snapshot() as now:
        assert now.get(size, "same") == 99
    assert_nothing_left(repo)


# --- Who is killed ----------------------------------------------------------------------


@pytest.mark.parametrize("atomicity", mostly_long(reversed(ATOMICITIES), 2))
def test_python_workers_that_are_killed_while_they_write_lose_and_double_nothing(
    spark: SparkSession, repo: Repository, folder: Path, atomicity: str, wait_until: Wait
) -> None:
    with half_way(repo):
        writing = in_thread(lambda: save(frame_of(spark), folder, atomicity))
        wait_until(lambda: under_way(repo) or writing.done(), seconds=90, what="half of it")
        assert not writing.done(), str(writing.exception())
        assert kill_all(python_workers(spark))
        if atomicity == "job":
            assert visible(repo) == {}, "something was visible before the commit"
    writing.result(90)
    assert_written_once(repo)
