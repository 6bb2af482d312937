"""`df.write` and SQL: rows a second into LMDB, row by row, in chunks and as one transaction.

The rows are made and cached beforehand, so what is measured, on two cores, is from Spark's rows to
cells that are committed, including planning, opening, and ending the write. A small write, of one
row in two partitions, shows the cost of these alone.

Both durabilities: full waits for the disk with every commit, relaxed does not. Micro-batches of a
stream are measured by their own durations, as Spark reports them.

Statements of SQL go through the catalog. INSERT writes row by row. UPDATE and MERGE are one
transaction each, which reads the table, and checks that each row is as it was read.

The number of rows after each write and after the statements, and the sum of a column, are compared
with what they have to be.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks.measure import (
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from percola import PercolaError, Table
from percola.spark import configure, spark_session
from percola.spark.source import PercolaDataSource

AIMS: Final = {"row": 15_000, "chunk": 40_000}
PARTITIONS: Final = 4
STATEMENTS: Final = {
    "INSERT": "INSERT INTO {table} SELECT * FROM incoming WHERE size < {rows}",
    "UPDATE": "UPDATE {table} SET size = size + 1",
    "MERGE": "MERGE INTO {table} t USING incoming s ON t.row = s.row AND s.size >= {rows} / 2 "
    "WHEN MATCHED THEN UPDATE SET size = s.size "
    "WHEN NOT MATCHED AND s.size >= {rows} THEN INSERT *",
}
"""Each changes the same number of rows: MERGE updates half of them and inserts as many."""

_docs = Table("docs")
_docs.column("title", str)
_docs.column("size", int)


def run(console: Console, *, quick: bool) -> None:
    """Measure, print a table, keep the figures."""
    rows, repeats = (20_000, 1) if quick else (200_000, 3)
    figures: dict[str, Any] = {"conditions": conditions(), "rows": rows}
    grid = Grid("atomicity", "durability", "rows/s", "aim", "one row, ms")
    with temporary_folder() as folder, spark_session("local[2]", app="benchmark") as spark:
        spark.dataSource.register(PercolaDataSource)
        frame = _frame(spark, rows)
        _write(frame, _repository(folder, "warm", "relaxed"), "chunk")
        for durability in ("full", "relaxed"):
            for atomicity in ("row", "chunk", "job"):
                seconds, small = [], []
                for number in range(repeats):
                    name = f"{atomicity}-{durability}-{number}"
                    target = _repository(folder, name, durability)
                    small.append(
                        _write(spark.range(0, 1, 1, 2).transform(_rows), target, atomicity)
                    )
                    seconds.append(_write(frame, target, atomicity))
                    written = spark.read.format("percola").option("table", "docs").load(str(target))
                    _check(written, rows, sum(range(rows)))
                rate = rows / statistics.median(seconds)
                floor = 1000 * statistics.median(small)
                figures[f"{atomicity}, {durability}"] = {
                    "rows_per_second": rate,
                    "seconds": seconds,
                    "one_row_ms": floor,
                }
                aim = AIMS.get(atomicity)
                grid.add_row(
                    atomicity,
                    durability,
                    f"{rate:,.0f}",
                    f"{aim:,}" if aim else "",
                    f"{floor:,.0f}",
                )
        changes = Grid("statement", "durability", "rows/s")
        for durability in ("full", "relaxed"):
            for name, seconds in _statements(spark, folder, rows // 4, repeats, durability).items():
                rate = rows / 4 / statistics.median(seconds)
                figures[f"{name}, {durability}"] = {"rows_per_second": rate, "seconds": seconds}
                changes.add_row(name, durability, f"{rate:,.0f}")
        batches = _stream(spark, folder, 5 if quick else 20)
        figures["stream_batch_ms"] = batches
    console.print(grid)
    console.print(changes)
    console.print(
        f"writeStream: a batch of 500 rows in {statistics.median(batches):,.0f} ms "
        f"(the median of {len(batches)}; full durability)"
    )
    console.print(conditions_line(figures["conditions"]))
    write_json(output_name("spark_write", quick=quick), figures)


def _frame(spark: SparkSession, rows: int) -> DataFrame:
    frame = _rows(spark.range(0, rows, 1, PARTITIONS)).cache()
    frame.count()
    return frame


def _rows(numbers: DataFrame) -> DataFrame:
    """Rows of about a hundred bytes, in two columns."""
    return numbers.selectExpr(
        "concat('row/', lpad(id, 10, '0')) as row", "repeat('x', 80) as title", "id as size"
    )


def _repository(folder: Path, name: str, durability: str) -> Path:
    percola.open(folder / name, schema=[_docs], durability=durability).close()
    return folder / name


def _write(frame: DataFrame, target: Path, atomicity: str) -> float:
    """Write the frame; the seconds that it took."""
    begun = time.perf_counter()
    frame.write.format("percola").mode("append").option("table", "docs").option(
        "atomicity", atomicity
    ).save(str(target))
    return time.perf_counter() - begun


def _check(written: DataFrame, rows: int, sizes: int) -> None:
    """PercolaError unless there are so many rows, whose sizes come to that sum."""
    found = written.selectExpr("count(size)", "sum(size)").first()
    assert found is not None
    if tuple(found) != (rows, sizes):
        raise PercolaError(
            f"There should be {rows:,} rows whose sizes come to {sizes:,}, and there are "
            f"{found[0]:,} that come to {found[1] or 0:,}."
        )


def _statements(
    spark: SparkSession, folder: Path, rows: int, repeats: int, durability: str
) -> dict[str, list[float]]:
    """The seconds that each statement takes, one after the other on new repositories."""
    incoming = _frame(spark, rows + rows // 2)
    incoming.createOrReplaceTempView("incoming")
    found: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for number in range(repeats):
        catalog = f"{durability}{number}"
        target = _repository(folder, f"sql-{catalog}", durability)
        configure(spark, catalogs={catalog: str(target)})
        for name, text in STATEMENTS.items():
            begun = time.perf_counter()
            spark.sql(text.format(table=f"{catalog}.docs", rows=rows))
            found[name].append(time.perf_counter() - begun)
        # MERGE sets back all but the first half of what UPDATE has raised by one.
        left = rows + rows // 2
        _check(spark.table(f"{catalog}.docs"), left, sum(range(left)) + rows // 2)
    incoming.unpersist()
    return found


def _stream(spark: SparkSession, folder: Path, batches: int) -> list[float]:
    """How many milliseconds each micro-batch took, the first one apart."""
    source = folder / "in"
    _rows(spark.range(0, 500 * (batches + 1), 1, batches + 1)).write.parquet(str(source))
    query = (
        spark.readStream.schema("row string, title string, size bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
        .writeStream.format("percola")
        .option("table", "docs")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(_repository(folder, "stream", "full")))
    )
    query.awaitTermination()
    took = [
        float(one["durationMs"]["triggerExecution"])
        for one in query.recentProgress
        if one["numInputRows"]
    ]
    return took[1:]
