"""`spark.read`: rows a second of a snapshot through an aggregate, on two cores.

Compared, in turn and in the same session, with the same query on prebuilt batches of the same
shape, the upper bound for a Python source in Spark. The difference is the cost of the store, the
protocol and the conversion from cells to Arrow.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks.measure import (
    Comparison,
    compare,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from percola import JSON, Table
from percola.spark import spark_session

BATCH: Final = 8192
PARTITIONS: Final = 8

_narrow = Table("narrow")
_body = _narrow.column("body", str)
_wide = Table("wide")
_title = _wide.column("title", str)
_size = _wide.column("size", int)
_rank = _wide.column("rank", float)
_live = _wide.column("live", bool)
_tags = _wide.column("tags", JSON)
_linked = Table("linked")
_links = _linked.family("links", int)

_PADDING: Final = "x" * 61


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table: what is read, and the query."""

    name: str
    table: str
    share: float  # of the rows of the first one
    options: dict[str, str]
    query: Callable[[DataFrame], DataFrame]
    aim: float | None = None  # for the ratio


def _count(*columns: str) -> Callable[[DataFrame], DataFrame]:
    def query(frame: DataFrame) -> DataFrame:
        used = [F.count("*"), *(F.max(F.hash(column)) for column in columns)]
        return frame.agg(*used)

    return query


def _lengths(frame: DataFrame) -> DataFrame:
    return frame.agg(F.count("*"), F.sum(F.length("body")), F.max("row"))


CASES: Final = (
    Case("a row of 100 bytes, one column", "narrow", 1.0, {}, _lengths, aim=0.8),
    Case(
        "five columns of five types",
        "wide",
        0.25,
        {},
        _count("title", "size", "rank", "live", "tags"),
        aim=0.6,
    ),
    Case("two of the five", "wide", 0.25, {"columns": "size,title"}, _count("title", "size")),
    Case(
        "a family of four as a map",
        "linked",
        0.25,
        {},
        lambda f: f.agg(F.sum(F.size("links"))),
        aim=0.3,
    ),
    Case(
        "the same as long rows",
        "linked",
        0.25,
        {"family": "links"},
        lambda f: f.agg(F.count("*"), F.sum("value")),
    ),
)


def _row(number: int) -> str:
    return f"https://example.org/{number:09d}"


def fill(folder: Path, rows: int) -> None:
    """Put the rows of all cases into a new repository."""
    with percola.open(folder, [_narrow, _wide, _linked], durability="relaxed") as repository:
        for first in range(0, rows, 2000):
            with repository.transaction() as t:
                for number in range(first, min(rows, first + 2000)):
                    t.set(_body, _row(number), f"{number:010d}{_PADDING}")
        for first in range(0, rows // 4, 1000):
            with repository.transaction() as t:
                for number in range(first, min(rows // 4, first + 1000)):
                    row = _row(number)
                    t.set(_title, row, f"Page number {number}")
                    t.set(_size, row, number * 17)
                    t.set(_rank, row, number / 7)
                    t.set(_live, row, number % 3 > 0)
                    t.set(_tags, row, ["a", number])
                    for link in range(4):
                        t.set(_links[f"target-{link}"], row, number + link)


# --- What Spark takes at most -------------------------------------------------------------


class PrebuiltSource(DataSource):
    """Prebuilt batches: the option `file` has one, `rows` is the number of rows."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "prebuilt"

    def schema(self) -> StructType:
        """Not told by the source, which PySpark takes this for: it comes with the query."""
        raise NotImplementedError

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch again and again, until there are as many rows."""
        return PrebuiltReader(self.options["file"], int(self.options["rows"]))


class PrebuiltReader(DataSourceReader):
    """Yields one batch repeatedly, up to the wanted number of rows."""

    def __init__(self, file: str, rows: int) -> None:
        self._file, self._rows = file, rows

    def partitions(self) -> list[InputPartition]:
        """As many as Percola's."""
        return [InputPartition(at) for at in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """This partition's share of the rows."""
        with pa.ipc.open_file(self._file) as file:
            batch = file.get_batch(0)
        left = self._rows // PARTITIONS
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


# --- The measurement ----------------------------------------------------------------------


def measure(spark: SparkSession, folder: Path, case: Case, rows: int, pairs: int) -> Comparison:
    """Compare the two, after one run of each that does not count."""
    ours = (
        spark.read.format("percola")
        .options(table=case.table, partitions=str(PARTITIONS), **case.options)
        .load(str(folder / "repository"))
    )
    count = ours.count()
    expected = int(rows * case.share) * (4 if "family" in case.options else 1)
    if count != expected:
        raise percola.PercolaError(f"{case.name}: {count} rows were read, not {expected}.")
    file = folder / f"{case.table}.arrow"
    # The first rows as Spark hands them to Python: the same types and lengths.
    sample = ours.limit(BATCH).toArrow().combine_chunks().to_batches()[0]
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, sample.schema) as writer:
        writer.write_batch(sample)
    prebuilt = (
        spark.read.format("prebuilt").schema(ours.schema).options(file=str(file), rows=str(count))
    ).load()

    def rate(frame: DataFrame) -> float:
        begun = time.perf_counter()
        case.query(frame).collect()
        return count / (time.perf_counter() - begun)

    for frame in (prebuilt, ours):
        rate(frame)
    found = Comparison()
    compare(pairs, lambda: rate(prebuilt), lambda: rate(ours), found)
    return found


def run(console: Console, *, quick: bool) -> None:
    """Read each table, and print and keep the figures."""
    rows, pairs = (80_000, 2) if quick else (2_000_000, 5)
    found = conditions()
    grid = Grid("spark.read, 2 cores", "rows", "rows/s", "prebuilt rows/s", "ratio", "aim")
    figures: dict[str, Any] = {}
    with temporary_folder() as folder:
        fill(folder / "repository", rows)
        with spark_session("local[2]", app="spark_read") as spark:
            spark.dataSource.register(PrebuiltSource)
            for case in CASES:
                one = measure(spark, folder, case, rows, pairs)
                figures[case.name] = one.to_json()
                low, high = one.middle
                grid.add_row(
                    case.name,
                    f"{int(rows * case.share):,}",
                    f"{statistics.median(one.percola):,.0f}",
                    f"{statistics.median(one.raw):,.0f}",
                    f"{one.ratio:.2f} ({low:.2f} to {high:.2f})",
                    "" if case.aim is None else f"{case.aim:.2f}",
                )
    console.print(grid)
    console.print(f"On {conditions_line(found)}.")
    write_json(
        output_name("spark_read", quick=quick),
        {"conditions": found, "rows": rows, "figures": figures},
    )
