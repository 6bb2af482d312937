"""`in_transactions` on a real Spark: a loader's own transactions, repeated, killed and refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.core.rdd import RDD
from pyspark.sql import Row, SparkSession

import percola
from percola import (
    JSON,
    ConflictingOptionsError,
    NotARepositoryError,
    Repository,
    Table,
    Transaction,
    UsageError,
)
from percola.spark import in_transactions

stock = Table("stock")
newest = stock.column("newest", JSON)
log = Table("log")
entry = log.column("entry", JSON)
SCHEMA = [stock, log]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", schema=SCHEMA) as opened:
        yield opened


def keep_newest(t: Transaction, rows: list[Row]) -> int:
    """Looks before it writes, and writes to two tables: how many rows were newer."""
    newer = 0
    for row in rows:
        before = t.get(newest, row.item)
        if before is None or before < row.date:
            t.set(newest, row.item, row.date)
            t.set(entry, f"{row.item}/{row.date:03}", "seen")
            newer += 1
    return newer


def deliveries(spark: SparkSession, dates: Iterable[int], parts: int) -> RDD[Row]:
    rows = [(f"item-{date % 7}", date) for date in dates]
    return spark.createDataFrame(rows, "item string, date int").repartition(parts).rdd


def assert_newest(repo: Repository, dates: int) -> None:
    """Of every item the newest is kept, in both tables, as if each row had come once."""
    with repo.snapshot() as now:
        kept = {row.key: row[newest] for row in now.scan(stock)}
        assert kept == {f"item-{n}": max(d for d in range(dates) if d % 7 == n) for n in range(7)}
        for item, date in kept.items():
            assert now.get(entry, f"{item}/{date:03}") == "seen"


def test_a_loader_reads_before_it_writes_and_writes_several_tables(
    spark: SparkSession, repo: Repository
) -> None:
    rows = deliveries(spark, range(200), 4)
    load = in_transactions(keep_newest, repo.address, schema=SCHEMA, chunk_rows=16)
    newer = rows.mapPartitions(load).collect()
    assert_newest(repo, 200)
    # One result for each transaction: partitions of 50 rows are four chunks.
    assert len(newer) == 16
    with repo.snapshot() as now:
        assert sum(newer) == sum(1 for _ in now.scan(log))
    # Once more: nothing is newer, nothing is written.
    again = rows.mapPartitions(load).sum()
    assert again == 0


def die_once(mark: str, t: Transaction, rows: list[Row]) -> int:
    """The third transaction of the first attempt kills its process when it is about to commit."""
    with open(mark, "ab") as file:
        file.write(b".")
    if os.path.getsize(mark) == 3:
        keep_newest(t, rows)
        os.kill(os.getpid(), signal.SIGKILL)
    return keep_newest(t, rows)


def test_a_task_that_is_killed_is_run_again_and_comes_to_the_same(
    spark: SparkSession, repo: Repository, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    load = in_transactions(partial(die_once, str(mark)), repo.address, schema=SCHEMA, chunk_rows=10)
    deliveries(spark, range(100), 1).mapPartitions(load).count()
    # Two transactions and one that died, and then all ten of them.
    assert mark.stat().st_size == 13
    assert_newest(repo, 100)


def meet(mark: str, address: str, t: Transaction, rows: list[Row]) -> int:
    """Somebody else writes a row after this transaction has begun, the first time."""
    newer = keep_newest(t, rows)
    if not os.path.exists(mark):
        Path(mark).touch()
        with percola.open(address, schema=SCHEMA) as other:
            other.run(lambda it: it.set(newest, rows[0].item, 10_000))
    return newer


def test_a_transaction_in_conflict_is_run_again(
    spark: SparkSession, repo: Repository, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    load = in_transactions(partial(meet, str(mark), repo.address), repo.address, schema=SCHEMA)
    rows = deliveries(spark, [3], 1)
    assert rows.mapPartitions(load).collect() == [0]
    assert mark.exists()
    assert repo.snapshot().get(newest, "item-3") == 10_000


def test_a_transaction_that_is_run_again_has_all_its_rows_whatever_became_of_the_list(
    repo: Repository,
) -> None:
    lists: list[int] = []

    def load(t: Transaction, rows: list[str]) -> None:
        lists.append(len(rows))
        while rows:
            t.set(newest, rows.pop(), 1)
        if len(lists) == 1:
            repo.run(lambda other: other.set(newest, "a", 0))

    assert list(in_transactions(load, repo.address)(["a", "b", "c"])) == [None]
    assert lists == [3, 3]
    assert [row.key for row in repo.snapshot().scan(stock) if row[newest] == 1] == ["a", "b", "c"]


def write_too_long_a_row(t: Transaction, rows: list[Row]) -> None:
    keep_newest(t, rows)
    t.set(newest, "x" * 1000, 1)


def test_what_a_transaction_raises_ends_the_job_with_its_words_and_nothing_is_written(
    spark: SparkSession, repo: Repository
) -> None:
    load = in_transactions(write_too_long_a_row, repo.address, schema=SCHEMA)
    with pytest.raises(Exception, match="A row of 1000 bytes in the table 'stock' does not fit"):
        deliveries(spark, [1], 1).mapPartitions(load).count()
    assert not list(repo.snapshot().scan(stock))


def test_a_function_that_would_do_its_work_after_the_commit_is_refused(repo: Repository) -> None:
    def load(t: Transaction, rows: list[str]) -> Iterator[str]:
        for row in rows:
            t.set(newest, row, 1)
            yield row

    class Loader:
        def __call__(self, t: Transaction, rows: list[str]) -> Iterator[str]:
            yield from load(t, rows)

    with pytest.raises(UsageError, match="load cannot run in transactions: a coroutine or a gene"):
        in_transactions(load, repo.address)
    with pytest.raises(UsageError, match=r"Loader object at .* cannot run in transactions"):
        in_transactions(Loader(), repo.address)
    given = in_transactions(lambda t, rows: (row.upper() for row in rows), repo.address)
    assert [list(one) for one in given(["a"])] == [["A"]]


def test_bytes_bound_a_transaction_as_well(spark: SparkSession, repo: Repository) -> None:
    load = in_transactions(keep_newest, repo.address, schema=SCHEMA, chunk_bytes=5_000)
    rows = [("x" * 300 + str(n), n) for n in range(133)]
    frame = spark.createDataFrame(rows, "item string, date int").coalesce(1)
    newer = frame.rdd.mapPartitions(load).collect()
    assert sum(newer) == 133 and 6 <= len(newer) <= 12, newer


def test_wrong_arguments_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(NotARepositoryError, match="one process only"):
        in_transactions(keep_newest, "memory:")
    with pytest.raises(NotARepositoryError, match="no store that this version has"):
        in_transactions(keep_newest, "ftp://somewhere/repo")
    with pytest.raises(ConflictingOptionsError, match="chunk_rows must be at least 1, not 0"):
        in_transactions(keep_newest, tmp_path, chunk_rows=0)
    with pytest.raises(ConflictingOptionsError, match="chunk_bytes must be at least 1, not -1"):
        in_transactions(keep_newest, tmp_path, chunk_bytes=-1)
