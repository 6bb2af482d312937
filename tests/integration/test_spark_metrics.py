"""§2.4 What Spark's SQL tab shows of the catalog's reads and writes, and its planner knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from catalogs import new_catalog
from pyspark.sql import SparkSession

import percola
from percola import INT64, Repository, Table
from percola.spark.catalog.statistics import estimate
from percola.transactions.jobs import JOBS
from percola.transactions.two_phase import TwoPhaseCommit

docs = Table("docs")
title = docs.column("title", str)
size = docs.column("size", INT64)
other = Table("other")
other.column("name", str)
wide = Table("wide", rows=INT64)
for number in range(63):
    wide.column(f"c{number:02}", INT64)

ROWS = 300
Shown = dict[str, list[str]]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", schema=[docs, other, wide, JOBS]) as repository:
        with repository.transaction() as t:
            for number in range(ROWS):
                t.set(title, f"d{number:04}", f"t{number:04}")
                t.set(size, f"d{number:04}", number)
        yield repository


@pytest.fixture
def catalog(spark: SparkSession, repo: Repository) -> str:
    return new_catalog(spark, repo.address)


Sql = Callable[[str | Callable[[], object]], Shown]


@pytest.fixture
def shown(spark: SparkSession, catalog: str) -> Sql:
    """Run a statement, or an action; what the SQL tab shows of it, by the metric's description."""

    def run(what: str | Callable[[], object]) -> Shown:
        jvm = spark._jsparkSession
        store = jvm.sharedState().statusStore()
        before = store.executionsCount()
        if isinstance(what, str):
            spark.sql(what.replace("$", catalog)).collect()
        else:
            what()
        jvm.sparkContext().listenerBus().waitUntilEmpty()
        found: dict[int, tuple[str, str]] = {}
        executions = store.executionsList()
        for at in range(before, executions.size()):
            execution = executions.apply(at)
            values = store.executionMetrics(execution.executionId())
            metrics = execution.metrics()
            for index in range(metrics.size()):
                metric = metrics.apply(index)
                value = values.get(metric.accumulatorId())
                if value.isDefined():
                    found[metric.accumulatorId()] = (metric.name(), value.get())
        by_name: Shown = {}
        for name, value in found.values():
            by_name.setdefault(name, []).append(value)
        return by_name

    return run


# --- Reads --------------------------------------------------------------------------------


def test_a_read_shows_its_rows_bytes_and_calls_and_that_no_lock_was_in_the_way(shown: Sql) -> None:
    found = shown("SELECT title FROM $.docs WHERE size < 10")
    assert found["rows read from the store"] == ["300"]
    assert found["calls to the store"] == ["1"]
    assert found["number of output rows"] == ["10", "10"]  # Once, of the scan and of the filter.
    # Keys and titles of 5 bytes, sizes of 8, and Arrow's offsets of 4 bytes.
    [read] = found["bytes read from the store"]
    assert read.endswith(" KiB") and 300 * 18 / 1024 < float(read.split()[0]) < 300 * 36 / 1024
    assert (found["locks in the way"], found["time waiting for locks"]) == (["0"], ["0 ms"])


@pytest.mark.long
def test_a_read_that_stops_early_shows_what_it_has_read(shown: Sql) -> None:
    assert shown("SELECT * FROM $.docs LIMIT 3")["rows read from the store"] == ["300"]
    assert shown("SELECT * FROM $.docs WHERE row = 'none'")["rows read from the store"] == ["0"]


def test_a_read_shows_the_locks_that_it_waited_for(shown: Sql, repo: Repository) -> None:
    with locked(repo, "d0007"):
        found = shown("SELECT sum(size) FROM $.docs")
    assert found["locks in the way"] == ["1"]
    assert found["time waiting for locks"][0].endswith(" s")


@contextmanager
def locked(repo: Repository, row: str) -> Iterator[None]:
    """A row that a transaction has locked, which goes no further and is taken for dead.

    Who meets the lock watches it for a second first.
    """
    with percola.open(repo.address, [docs], lock_ttl_seconds=1) as other:
        t = other.transaction(two_phase=True)
        t.set(size, row, -1)
        cells = list(t._writes)
        TwoPhaseCommit(t._context, t.start_ts, t._writes).prewrite([cells], cells[0])
        yield


def test_rows_are_the_same_beside_the_column_for_metrics(spark: SparkSession, catalog: str) -> None:
    """64 columns fill a word of the bitmap of nulls in Spark's rows; one more begins another."""
    columns = ", ".join(f"id + {number}" for number in range(63))
    spark.sql(f"INSERT INTO {catalog}.wide SELECT id, {columns} FROM range(20)")
    expected = [(key, *(key + number for number in range(63))) for key in range(20)]
    frame = spark.table(f"{catalog}.wide")
    assert sorted(map(tuple, frame.collect())) == expected
    assert [tuple(row) for row in frame.repartition(3, "c05").sort("row").collect()] == expected
    assert frame.distinct().count() == 20


# --- Writes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("INSERT INTO $.docs SELECT concat('n', id), 'new', id FROM range(40)", 40),
        ("UPDATE $.docs SET title = 'x' WHERE size < 7", 7),
        ("DELETE FROM $.docs WHERE size >= 290", 10),
        (
            """MERGE INTO $.docs t USING (SELECT concat('d000', id) k, id FROM range(12)) s
            ON t.row = s.k WHEN MATCHED THEN DELETE
            WHEN NOT MATCHED THEN INSERT (row, size) VALUES (s.k, s.id)""",
            12,
        ),
    ],
)
def test_a_write_shows_its_rows(shown: Sql, statement: str, rows: int) -> None:
    found = shown(statement)
    assert found["rows written"] == [str(rows)]
    assert found["conflicts"] == ["0"]
    assert found["time waiting for conflicts"] == ["0 ms"]
    assert int(found["calls to the store"][-1]) >= 1


def test_a_write_shows_its_bytes(shown: Sql) -> None:
    found = shown("INSERT INTO $.docs VALUES ('abc', 'four', 1), ('d', NULL, 2)")
    assert found["bytes written"] == [f"{3 + 4 + 8 + 1 + 8}.0 B"]


@pytest.mark.parametrize("atomicity", ["row", "job"])
def test_a_write_shows_the_conflicts_that_it_waited_for(
    spark: SparkSession, repo: Repository, catalog: str, shown: Sql, atomicity: str
) -> None:
    rows = spark.sql("SELECT 'd0007' AS row, 'new' AS title, 1L AS size")
    with locked(repo, "d0007"):
        found = shown(rows.writeTo(f"{catalog}.docs").option("atomicity", atomicity).append)
    assert found["rows written"] == ["1"]
    assert int(found["conflicts"][0]) >= 1
    assert found["time waiting for conflicts"][0].endswith(" s")


# --- Statistics ---------------------------------------------------------------------------


def test_the_planner_knows_the_size_of_small_tables_and_a_bound_for_others(
    spark: SparkSession, repo: Repository, catalog: str
) -> None:
    ts = repo.snapshot().start_ts
    store = repo.context.store
    whole = ROWS * (5 + len(title.key) + 5 + 5 + len(size.key) + 8)
    assert estimate(store, "docs", ts) == (ROWS, whole)
    assert estimate(store, "other", ts) == (0, 0)
    with repo.transaction() as t:
        for number in range(ROWS, 5 * ROWS):
            t.set(title, f"d{number:04}", f"t{number:04}")
            t.set(size, f"d{number:04}", number)
    rows, size_ = estimate(store, "docs", repo.snapshot().start_ts)
    assert rows is None
    assert size_ is not None and 5 * whole <= size_ < 10 * whole


def test_the_planner_does_not_look_through_all_that_is_deleted(repo: Repository) -> None:
    """Few of a table may be there still, behind millions."""
    store = repo.context.store
    known = estimate(store, "docs", repo.snapshot().start_ts)
    for count, expected in ((2000, known), (12_000, (None, None))):
        rows = [f"a{number:05}" for number in range(count)]
        repo.run(lambda t, rows=rows: [t.set(title, row, "gone") for row in rows])  # type: ignore[misc]
        repo.run(lambda t, rows=rows: [t.delete(title, row) for row in rows])  # type: ignore[misc]
        assert estimate(store, "docs", repo.snapshot().start_ts) == expected


def test_a_table_that_is_known_to_be_small_is_broadcast(spark: SparkSession, catalog: str) -> None:
    """Without adaptive execution, which would see its size when it has been read."""
    join = f"SELECT count(*) FROM {catalog}.docs a JOIN {catalog}.docs b ON a.size = b.size + 1"
    before = spark.conf.get("spark.sql.adaptive.enabled", "true")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        frame = spark.sql(join)
        assert "BroadcastHashJoin" in frame._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before or "true")
    assert frame.collect() == [(ROWS - 1,)]
    sizes = [
        int(str(plan.stats().sizeInBytes()))
        for columns in ("size", "row, title, size")
        for plan in [optimized(spark, f"SELECT {columns} FROM {catalog}.docs")]
    ]
    assert 0 < sizes[0] < sizes[1] / 2


def optimized(spark: SparkSession, text: str) -> Any:
    """Spark's optimized plan of a query."""
    return spark.sql(text)._jdf.queryExecution().optimizedPlan()
