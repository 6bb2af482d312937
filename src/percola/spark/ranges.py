"""§2.4: long work on whole tables as Spark jobs: a task for each range of rows.

    with spark_context("local[4]") as spark:
        repo.collect_garbage(runner=OnSpark(spark, repo))

`percola.ranges` says what such work is, and why its tasks may be killed, retried and run twice.
What a task finds is returned once it has ended, so what a lost attempt counted does not count. The
driver alone decides what must be decided once: the timestamp, the safe point, and when all is done.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

import percola
from percola.connect.address import portable
from percola.ranges import PairWork, RangeWork, TableRange, judged
from percola.repository import Repository
from percola.schema import Table
from percola.spark.jobs import Progress, Show, context_of, started_job
from percola.spark.partitioning import row_ranges
from percola.store.base import Store
from percola.transactions.context import TransactionContext

K = TypeVar("K")
T = TypeVar("T")

_A_SLOT: Final = 4
"""Ranges for each task slot: a range that takes longer than the others delays less."""


class OnSpark:
    """Runs work on the ranges of a repository's tables as tasks of Spark; see `percola.ranges`.

    Args:
        spark: the session or context whose executors run the tasks.
        repository: the repository, or its address; every machine that runs tasks must reach it at
            this address. A folder is on one machine, so it takes a local master.
        show: called several times a second with how many ranges are done.
        ranges: into how many ranges to cut each table; by default four for each task slot, and
            fewer for small tables.

    Raises UsageError for a Spark Connect session, NotARepositoryError for a repository in memory.
    """

    def __init__(
        self,
        spark: SparkSession | SparkContext,
        repository: Repository | str | os.PathLike[str],
        *,
        show: Show = lambda progress: None,
        ranges: int | None = None,
    ) -> None:
        self._context = context_of(spark)
        self._schema: tuple[Table[Any], ...] = ()
        if isinstance(repository, Repository):
            self._schema = tuple(repository.schema)
            repository = repository.address
        self._address = portable(repository)
        self._show = show
        self._ranges = ranges
        self._paths = tuple(os.path.abspath(one) for one in sys.path)

    @property
    def at_once(self) -> int:
        """How many tasks Spark runs at the same time, as far as is known."""
        return max(1, self._context.defaultParallelism)

    @property
    def on_this_machine(self) -> bool:
        """Whether the master is a local one."""
        return str(self._context.master).startswith("local")

    def cut(self, store: Store, ranges: Sequence[TableRange]) -> list[TableRange]:
        """See `percola.ranges.Runner.cut`."""
        most = self._ranges or _A_SLOT * self.at_once
        return [
            TableRange(table, *bounds)
            for table, start, end in ranges
            for bounds in self._bounds(store, table, start, end, most)
        ]

    def _bounds(
        self, store: Store, table: str, start: bytes, end: bytes, most: int
    ) -> list[tuple[bytes, bytes]]:
        try:
            return row_ranges(store, table, start, end, self._ranges, most=most)
        except ValueError:  # A damaged key, which the work will meet.
            return [(start, end)]

    def run(
        self,
        context: TransactionContext,
        ranges: Sequence[TableRange],
        work: RangeWork[T],
        *,
        title: str,
        tick: Callable[[], object] = lambda: None,
    ) -> Generator[tuple[int, T]]:
        """See `percola.ranges.Runner.run`: only what the work yields last for each range.

        Raises SparkJobError if Spark gave up on a task; KeyboardInterrupt after Ctrl-C.
        """
        if ranges:
            yield from self._run(self._tasks(ranges, work), len(ranges), title, tick)

    def each(
        self,
        count: int,
        work: Callable[[int], Generator[T]],
        *,
        title: str,
        tick: Callable[[], object] = lambda: None,
    ) -> Generator[tuple[int, T]]:
        """See `percola.ranges.Runner.each`. Raises as `run` does."""
        if count:
            tasks = self._context.parallelize(range(count), count).mapPartitions(_Each(work))
            yield from self._run(tasks, count, title, tick)

    def _run(
        self,
        tasks: RDD[tuple[int, Generator[T]]],
        count: int,
        title: str,
        tick: Callable[[], object],
    ) -> Generator[tuple[int, T]]:
        last = tasks.mapPartitions(_last)
        with started_job(self._context, f"percola: {title}", self._show) as job:
            yield from job.run(Progress(title, 0, count), last.collect, tick)

    def grouped(
        self,
        context: TransactionContext,
        ranges: Sequence[TableRange],
        work: PairWork[K, T],
        combine: Callable[[T, T], T],
        judge: Callable[[K, T], Iterable[str]],
        *,
        title: str,
        most: int,
    ) -> tuple[int, list[str]]:
        """See `percola.ranges.Runner.grouped`: by a shuffle, which spills to disk.

        Raises as `run` does.
        """
        tasks = self._tasks(ranges, work).flatMap(_pairs)
        groups = tasks.combineByKey(_itself, combine, combine, len(ranges), _hash)
        found = groups.mapPartitions(_Judged(judge, most))
        with started_job(self._context, f"percola: {title}", self._show) as job:
            parts = job.run(Progress(title, 0, 2 * len(ranges)), found.collect)
        sentences = [one for _, kept in parts for one in kept]
        return sum(number for number, _ in parts), sentences[:most]

    def _tasks(
        self, ranges: Sequence[TableRange], work: RangeWork[T]
    ) -> RDD[tuple[int, Generator[T]]]:
        """A task for each range, with its number and what the work finds there."""
        numbered = list(enumerate(ranges))
        task = _Task(self._address, self._schema, work, self._paths)
        return self._context.parallelize(numbered, len(numbered)).mapPartitions(task)


def _last(found: Iterable[tuple[int, Iterable[T]]]) -> Iterator[tuple[int, T]]:
    for number, values in found:
        for last in deque(values, maxlen=1):
            yield number, last


def _pairs(found: tuple[int, Iterable[T]]) -> Iterable[T]:
    return found[1]


def _itself(value: T) -> T:
    return value


def _hash(key: object) -> int:
    # Python's own hash of a text differs between processes.
    return zlib.crc32(repr(key).encode())


@dataclass(frozen=True, slots=True)
class _Judged(Generic[K, T]):
    """Judges the keys of a partition."""

    judge: Callable[[K, T], Iterable[str]]
    most: int

    def __call__(self, groups: Iterable[tuple[K, T]]) -> Iterator[tuple[int, list[str]]]:
        yield judged(groups, self.judge, self.most)


@dataclass(frozen=True, slots=True)
class _Each(Generic[T]):
    """The function of a task that needs no repository."""

    work: Callable[[int], Generator[T]]

    def __call__(self, numbers: Iterable[int]) -> Iterator[tuple[int, Generator[T]]]:
        for number in numbers:
            with closing(self.work(number)) as found:
                yield number, found


@dataclass(frozen=True, slots=True)
class _Task(Generic[T]):
    """The function of a task; pickled with it."""

    address: str
    schema: tuple[Table[Any], ...]
    work: RangeWork[T]
    paths: tuple[str, ...]

    def __call__(
        self, ranges: Iterable[tuple[int, TableRange]]
    ) -> Iterator[tuple[int, Generator[T]]]:
        # Appended: only for modules that this machine would not find otherwise.
        sys.path.extend(one for one in self.paths if one not in sys.path and os.path.exists(one))
        # Opened per task: Spark's process outlives it, and may outlive the repository.
        with percola.open(self.address, self.schema, create=False) as repo:
            for number, one in ranges:
                with closing(self.work(repo.context, number, TableRange(*one))) as found:
                    yield number, found
