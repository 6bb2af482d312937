"""`spark.readStream`: how long a change takes into a sink, over what Spark's micro-batch takes.

Two streams run in one session at the same time: one follows a table, the other reads a number from
a file, which is the least that a source written in Python can do. In turn a change is committed and
a number is written, and it is measured how long each takes to be in its sink, and how long Spark
says that the batch took. What is left of the difference is the feed's. Spark's own `rate` source,
which needs no Python, is there to compare with.

Besides: how fast a backlog of changes is read, and what a feed costs those who write.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructType
from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks.measure import (
    Comparison,
    Distribution,
    compare,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from percola import PercolaError, Repository, Table
from percola.spark import spark_session

AIM_ADDED_MS: Final = 300.0

_docs = Table("docs", feed=True)
_number = _docs.column("number", int)
_body = _docs.column("body", str)
_plain = Table("plain")
_plain_number = _plain.column("number", int)
_plain_body = _plain.column("body", str)
_PADDING: Final = "x" * 60
_TIMEOUT: Final = 120.0


# --- The least that a source in Python does ---------------------------------------------


class NumberSource(DataSource):
    """A stream of the numbers that the file in the option `path` has held."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "number"

    def schema(self) -> StructType:
        """One column, as in the other stream."""
        return StructType().add("number", LongType())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The one reader there is."""
        return NumberReader(self.options["path"])


class NumberPartition(InputPartition):
    """One number."""


class NumberReader(DataSourceStreamReader):
    """The newest number in the file is the offset, and the batch."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Before the first number."""
        return {"number": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The number in the file."""
        return {"number": int(Path(self._path).read_text())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """No limit."""
        return ReadAllAvailable()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One partition of one row."""
        return [NumberPartition(end["number"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The row."""
        yield pa.RecordBatch.from_pydict({"number": pa.array([partition.value], pa.int64())})


# --- Latency ----------------------------------------------------------------------------


class Watched:
    """A stream whose sink records when a number has arrived.

    Args:
        publish: makes a number come.
    """

    def __init__(self, frame: DataFrame, folder: Path, publish: Callable[[int], object]) -> None:
        self._publish = publish
        self._newest = 0
        self._came = threading.Condition()
        writer = frame.select("number").writeStream.foreachBatch(self._sink)
        self.query: StreamingQuery = writer.option("checkpointLocation", str(folder)).start()

    def _sink(self, batch: DataFrame, _: int) -> None:
        found = [row.number for row in batch.collect()]
        with self._came:
            self._newest = max([self._newest, *found])
            self._came.notify_all()

    def time(self, number: int) -> float:
        """Milliseconds from publishing a number until it is in the sink."""
        began = time.perf_counter()
        self._publish(number)
        with self._came:
            if not self._came.wait_for(lambda: self._newest >= number, _TIMEOUT):
                raise PercolaError(f"The number {number} has not come: {self.query.exception()}.")
        return (time.perf_counter() - began) * 1000


def batch_times(query: StreamingQuery, skipped: int) -> dict[str, list[float]]:
    """Spark's own timings of the batches that had rows: milliseconds by step."""
    steps: dict[str, list[float]] = {}
    full = [one for one in query.recentProgress if one["numInputRows"]]
    for progress in full[skipped:]:
        for name, duration in progress["durationMs"].items():
            steps.setdefault(name, []).append(float(duration))
    return steps


def latency(spark: SparkSession, folder: Path, events: int) -> dict[str, Any]:
    """Measure both streams in turn; milliseconds."""
    rng = random.Random(1)
    file = folder / "number"
    file.write_text("0")
    with ExitStack() as stack:
        repository = stack.enter_context(
            percola.open(folder / "repository", [_docs, _plain], durability="relaxed")
        )

        def commit(number: int) -> None:
            repository.run(lambda t: t.set(_number, f"r{number % 10}", number))

        def write(number: int) -> None:
            part = file.with_suffix(".part")
            part.write_text(str(number))
            part.rename(file)

        commit(1)
        ours = Watched(_stream(spark, folder), folder / "ours", commit)
        stack.callback(ours.query.stop)
        source = spark.readStream.format("number").load(str(file))
        floor = Watched(source, folder / "floor", write)
        stack.callback(floor.query.stop)
        warm = max(2, events // 8)
        times: dict[str, list[float]] = {"feed": [], "floor": []}
        pause = threading.Event()
        for number in range(2, 2 + warm + events):
            both = [("feed", ours), ("floor", floor)]
            for name, one in both if number % 2 else both[::-1]:
                # At any moment of Spark's cycle of looking whether there is anything.
                pause.wait(rng.random() * 0.02)
                took = one.time(number)
                if number >= 2 + warm:
                    times[name].append(took)
        figures: dict[str, Any] = {"end_to_end": times}
        figures["added_ms"] = statistics.median(
            a - b for a, b in zip(times["feed"], times["floor"], strict=True)
        )
        figures["steps"] = {
            "feed": batch_times(ours.query, warm),
            "floor": batch_times(floor.query, warm),
        }
    figures["steps"]["rate"] = _rate(spark, folder, events)
    return figures


def _rate(spark: SparkSession, folder: Path, events: int) -> dict[str, list[float]]:
    """The batches of Spark's own source of numbers, into the same sink."""
    frame = spark.readStream.format("rate").option("rowsPerSecond", "20").load()

    def sink(batch: DataFrame, _: int) -> None:
        batch.collect()

    writer = frame.writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(folder / "rate")).start()
    try:
        deadline = time.monotonic() + _TIMEOUT
        pause = threading.Event()
        wanted = min(events, 20) + 3
        while sum(1 for one in query.recentProgress if one["numInputRows"]) < wanted:
            if time.monotonic() > deadline or query.exception():
                raise PercolaError(f"The rate source does not go on: {query.exception()}.")
            pause.wait(0.1)
        return batch_times(query, 3)
    finally:
        query.stop()


def _stream(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    reader = spark.readStream.format("percola").options(table="docs", **options)
    return reader.load(str(folder / "repository"))


# --- Throughput -------------------------------------------------------------------------


def backlog(spark: SparkSession, folder: Path, rows: int) -> dict[str, float]:
    """How many changes a second a stream reads that has fallen behind, and rows at first."""
    with percola.open(folder / "repository", [_docs, _plain], durability="relaxed") as repository:
        for first in range(0, rows, 1000):
            with repository.transaction() as t:
                for number in range(first, min(rows, first + 1000)):
                    t.set(_number, f"page-{number:09}", number)
                    t.set(_body, f"page-{number:09}", _PADDING)
    found = {}
    cases = (
        ("changes", {"startingTimestamp": "earliest", "feedColumns": "true"}),
        ("rows, read first", {"feedColumns": "true"}),
    )
    # Each twice: the first time Spark and its Python processes are still cold.
    for turn, (name, options) in enumerate((*cases, *cases)):
        frame = _stream(spark, folder, **options)
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(folder / f"backlog-{turn}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        most = max(query.recentProgress, key=lambda one: one["numInputRows"])
        found[name] = most["numInputRows"] / (most["durationMs"]["triggerExecution"] / 1000)
    return found


def writing(folder: Path, pairs: int, commits: int) -> dict[str, Comparison]:
    """Commits a second into a table without a feed and with one, in turn, by cells a commit."""
    found = {}
    with percola.open(folder / "writing", [_docs, _plain], durability="relaxed") as repository:
        for cells in (1, 10, 100):
            comparison = Comparison()
            count = max(20, commits // cells)
            compare(
                pairs,
                lambda cells=cells, count=count: _write(repository, _plain_number, cells, count),  # type: ignore[misc]
                lambda cells=cells, count=count: _write(repository, _number, cells, count),  # type: ignore[misc]
                comparison,
            )
            found[f"{cells} cells a commit"] = comparison
    return found


def _write(
    repository: Repository, column: percola.Column[str, int], cells: int, count: int
) -> float:
    began = time.perf_counter()
    for number in range(count):
        with repository.transaction() as t:
            for cell in range(cells):
                t.set(column, f"r{(number * 31 + cell) % 5000}", number)
    return count / (time.perf_counter() - began)


# --- The run ----------------------------------------------------------------------------


def run(console: Console, *, quick: bool) -> None:
    """Measure, and print and keep the figures."""
    events, rows, pairs, commits = (12, 20_000, 3, 1000) if quick else (80, 200_000, 9, 4000)
    found = conditions()
    with temporary_folder() as folder:
        costs = writing(folder, pairs, commits)
        with spark_session("local[2]", app="spark_feed") as spark:
            spark.dataSource.register(NumberSource)
            figures = latency(spark, folder, events)
            figures["backlog"] = backlog(spark, folder, rows)
    figures["writing"] = {name: one.to_json() for name, one in costs.items()}
    console.print(_latency_grid(figures))
    console.print(
        f"The feed adds {figures['added_ms']:.0f} ms to a change's way into the sink (median of "
        f"{events} pairs; at most {AIM_ADDED_MS:.0f} aimed at)."
    )
    rates = Grid("Throughput, 2 cores", "a second")
    for name, rate in figures["backlog"].items():
        rates.add_row(f"A stream that is behind: {name}", f"{rate:,.0f}")
    for name, one in costs.items():
        low, high = one.middle
        rates.add_row(
            f"Commits with a feed, {name}",
            f"{statistics.median(one.percola):,.0f} ({one.ratio:.2f} of without, "
            f"{low:.2f} to {high:.2f})",
        )
    console.print(rates)
    console.print(f"On {conditions_line(found)}.")
    write_json(output_name("spark_feed", quick=quick), {"conditions": found, **figures})


def _latency_grid(figures: dict[str, Any]) -> Grid:
    grid = Grid("Milliseconds", "into the sink p50", "p95", "a batch p50", "planning", "offsets")
    names = {
        "feed": "Percola's feed",
        "floor": "a number from a file (Python)",
        "rate": "rate (Spark's own)",
    }
    for key, name in names.items():
        steps = figures["steps"][key]
        times = Distribution.of(figures["end_to_end"].get(key, []))
        middle = {step: statistics.median(values) for step, values in steps.items() if values}
        if times is not None:
            figures.setdefault("distribution", {})[key] = asdict(times)
        grid.add_row(
            name,
            "" if times is None else f"{times.p50:.0f}",
            "" if times is None else f"{times.p95:.0f}",
            f"{middle.get('triggerExecution', 0):.0f}",
            f"{middle.get('queryPlanning', 0):.0f}",
            f"{middle.get('latestOffset', 0):.0f}",
        )
    return grid
