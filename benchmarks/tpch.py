"""TPC-H through the catalog for Spark SQL: 22 queries, Percola and Parquet in turn, equal answers.

The eight tables are made by `tpchgen-cli`, as Parquet, and loaded with `INSERT INTO` through the
catalog into LMDB. A table of Percola has one column as its key. Where TPC-H's key is one column,
that is the row's key; the keys of lineitem and partsupp are put together from their two columns,
which stay columns as well. Views give all columns the names of TPC-H, so that the texts of the
queries are the same on both sides.

The answers consist of whole numbers, decimals, dates and text, and are compared exactly, rows in
their order.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
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
from benchmarks.postgres import PeerError, environment
from benchmarks.tpch_queries import QUERIES, text_of
from percola import DATE, INT32, INT64, Table, decimal_of
from percola.spark import catalog_settings, spark_session

GENERATOR: Final = "tpchgen-cli==4.0.0"
CATALOG: Final = "tpch"
PARQUET, PERCOLA = "tpch_parquet", "tpch_percola"
"""The databases with TPC-H's names: tables of Parquet files, and views of Percola's tables."""

MONEY: Final = decimal_of(15, 2)


@dataclass(frozen=True, slots=True)
class Shape:
    """A table of TPC-H in Percola.

    Attributes:
        table: as it is declared.
        key: the SQL expression for the row's key.
        columns: the columns, in TPC-H's order, each with the column of Percola's table behind it.
    """

    table: Table[Any]
    key: str
    columns: Mapping[str, str]


def _shape(name: str, key: str | tuple[str, str], **types: Any) -> Shape:
    table: Table[Any] = Table(name, rows=types[key] if isinstance(key, str) else str)
    if isinstance(key, str):
        expression = key
    else:
        expression = f"concat(lpad({key[0]}, 10, '0'), '/', lpad({key[1]}, 10, '0'))"
    for column, kind in types.items():
        if column != key:
            table.column(column, kind)
    columns = {column: "row" if column == key else column for column in types}
    return Shape(table, expression, columns)


SHAPES: Final = (
    _shape("region", "r_regionkey", r_regionkey=INT64, r_name=str, r_comment=str),
    _shape(
        "nation", "n_nationkey", n_nationkey=INT64, n_name=str, n_regionkey=INT64, n_comment=str
    ),
    _shape(
        "supplier",
        "s_suppkey",
        s_suppkey=INT64,
        s_name=str,
        s_address=str,
        s_nationkey=INT64,
        s_phone=str,
        s_acctbal=MONEY,
        s_comment=str,
    ),
    _shape(
        "customer",
        "c_custkey",
        c_custkey=INT64,
        c_name=str,
        c_address=str,
        c_nationkey=INT64,
        c_phone=str,
        c_acctbal=MONEY,
        c_mktsegment=str,
        c_comment=str,
    ),
    _shape(
        "part",
        "p_partkey",
        p_partkey=INT64,
        p_name=str,
        p_mfgr=str,
        p_brand=str,
        p_type=str,
        p_size=INT32,
        p_container=str,
        p_retailprice=MONEY,
        p_comment=str,
    ),
    _shape(
        "partsupp",
        ("ps_partkey", "ps_suppkey"),
        ps_partkey=INT64,
        ps_suppkey=INT64,
        ps_availqty=INT32,
        ps_supplycost=MONEY,
        ps_comment=str,
    ),
    _shape(
        "orders",
        "o_orderkey",
        o_orderkey=INT64,
        o_custkey=INT64,
        o_orderstatus=str,
        o_totalprice=MONEY,
        o_orderdate=DATE,
        o_orderpriority=str,
        o_clerk=str,
        o_shippriority=INT32,
        o_comment=str,
    ),
    _shape(
        "lineitem",
        ("l_orderkey", "l_linenumber"),
        l_orderkey=INT64,
        l_partkey=INT64,
        l_suppkey=INT64,
        l_linenumber=INT32,
        l_quantity=MONEY,
        l_extendedprice=MONEY,
        l_discount=MONEY,
        l_tax=MONEY,
        l_returnflag=str,
        l_linestatus=str,
        l_shipdate=DATE,
        l_commitdate=DATE,
        l_receiptdate=DATE,
        l_shipinstruct=str,
        l_shipmode=str,
        l_comment=str,
    ),
)
"""The eight tables."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query returns.

    Attributes:
        columns: names and types.
        rows: in the order in which they came.
        seconds: from the text to the rows.
    """

    columns: str
    rows: list[tuple[Any, ...]]
    seconds: float


# --- The tables ---------------------------------------------------------------------------


def generate(folder: Path, scale: float) -> Path:
    """The folder with the eight tables as Parquet files.

    Raises:
        PeerError: the generator cannot be installed, or fails.
    """
    program = environment("tpch", [GENERATOR]).with_name("tpchgen-cli")
    command: list[str | Path] = [
        program,
        "parquet",
        "--scale-factor",
        str(scale),
        "--output-dir",
        folder,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"tpchgen-cli failed: {done.stderr.strip()}")
    return folder


def load(spark: SparkSession, catalog: str, data: Path, target: Path) -> dict[str, float]:
    """Make the databases, and fill a new repository, which is the catalog's; seconds by table."""
    percola.open(target, schema=[shape.table for shape in SHAPES]).close()
    drop(spark)
    for database in (PARQUET, PERCOLA):
        spark.sql(f"CREATE DATABASE spark_catalog.{database}")
    seconds = {}
    for shape in SHAPES:
        name = shape.table.name
        spark.sql(
            f"CREATE TABLE spark_catalog.{PARQUET}.{name} USING parquet "
            f"LOCATION '{data / name}.parquet'"
        )
        columns = [one for one in shape.columns.values() if one != "row"]
        began = time.perf_counter()
        spark.sql(
            f"INSERT INTO {catalog}.{name} (row, {', '.join(columns)}) "
            f"SELECT {shape.key}, {', '.join(columns)} FROM spark_catalog.{PARQUET}.{name}"
        )
        seconds[name] = time.perf_counter() - began
        named = ", ".join(f"{stored} AS {one}" for one, stored in shape.columns.items())
        spark.sql(
            f"CREATE VIEW spark_catalog.{PERCOLA}.{name} AS SELECT {named} FROM {catalog}.{name}"
        )
    return seconds


def drop(spark: SparkSession) -> None:
    """Remove the databases, but not the Parquet files."""
    spark.sql("USE spark_catalog.default")
    for database in (PARQUET, PERCOLA):
        spark.sql(f"DROP DATABASE IF EXISTS spark_catalog.{database} CASCADE")


# --- The queries --------------------------------------------------------------------------


def answer(spark: SparkSession, database: str, number: int, scale: float) -> Answer:
    """Run a query in one of the databases."""
    spark.sql(f"USE spark_catalog.{database}")
    began = time.perf_counter()
    frame = spark.sql(text_of(number, scale))
    rows = [tuple(row) for row in frame.collect()]
    return Answer(frame.schema.simpleString(), rows, time.perf_counter() - began)


def difference(number: int, parquet: Answer, percola_: Answer) -> str | None:
    """What is different in Percola's answer; None if the two are equal."""
    if parquet.columns != percola_.columns:
        return f"Q{number}: columns {percola_.columns}, but in Parquet {parquet.columns}"
    for at, (theirs, ours) in enumerate(zip(parquet.rows, percola_.rows, strict=False), start=1):
        if theirs != ours:
            return f"Q{number}: row {at} is {ours}, but in Parquet {theirs}"
    if len(parquet.rows) != len(percola_.rows):
        return f"Q{number}: {len(percola_.rows)} rows, but in Parquet {len(parquet.rows)}"
    return None


def pairs(
    spark: SparkSession, number: int, scale: float, repeats: int
) -> list[tuple[Answer, Answer]]:
    """Parquet's and Percola's answers, in turn, after one of each that is not counted.

    Raises:
        PeerError: two answers are different.
    """
    found = []
    for turn in range(repeats + 1):
        order = (PARQUET, PERCOLA) if turn % 2 == 0 else (PERCOLA, PARQUET)
        both = {database: answer(spark, database, number, scale) for database in order}
        wrong = difference(number, both[PARQUET], both[PERCOLA])
        if wrong is not None:
            raise PeerError(wrong)
        if turn:
            found.append((both[PARQUET], both[PERCOLA]))
    return found


# --- The benchmark ------------------------------------------------------------------------


def run(console: Console, *, quick: bool) -> None:
    """Load, run all queries on both, print a table, keep the figures."""
    scale, repeats = (0.01, 1) if quick else (0.1, 3)
    figures: dict[str, Any] = {"conditions": conditions(), "scale": scale, "repeats": repeats}
    grid = Grid("query", "rows", "Parquet, s", "Percola, s", "ratio")
    for column in grid.columns[1:]:
        column.justify = "right"
    with temporary_folder() as folder:
        target = folder / "repo"
        settings = catalog_settings({CATALOG: str(target)}) | {
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        data = generate(folder / "data", scale)
        with spark_session("local[2]", app="benchmark", config=settings) as spark:
            console.print(f"Loading TPC-H's tables at SF {scale:g} …")
            figures["load_seconds"] = load(spark, CATALOG, data, target)
            figures["load_rows"] = spark.table(f"{CATALOG}.lineitem").count()
            figures["bytes"] = {
                "parquet": _bytes(data),
                "percola": _bytes(target),
            }
            figures["queries"] = {}
            for number in QUERIES:
                measured = pairs(spark, number, scale, repeats)
                one = _figures(measured)
                figures["queries"][f"Q{number}"] = one
                grid.add_row(
                    f"Q{number}",
                    f"{one['rows']:,}",
                    f"{one['parquet_seconds']:.2f}",
                    f"{one['percola_seconds']:.2f}",
                    f"{one['ratio']:.1f}",
                )
                console.print(f"Q{number}: {one['rows']:,} rows, equal")
    sums = [
        sum(one[f"{side}_seconds"] for one in figures["queries"].values())
        for side in ("parquet", "percola")
    ]
    grid.add_row("all", "", f"{sums[0]:.2f}", f"{sums[1]:.2f}", f"{sums[1] / sums[0]:.1f}")
    console.print(grid)
    loaded = figures["load_seconds"]
    console.print(
        f"INSERT INTO: {sum(loaded.values()):,.0f} s for all tables; lineitem's "
        f"{figures['load_rows']:,} rows of 16 columns in {loaded['lineitem']:,.1f} s"
    )
    console.print(conditions_line(figures["conditions"]))
    write_json(output_name("tpch", quick=quick), figures)


def _figures(measured: Sequence[tuple[Answer, Answer]]) -> dict[str, Any]:
    return {
        "rows": len(measured[0][0].rows),
        "parquet_seconds": statistics.median(one.seconds for one, _ in measured),
        "percola_seconds": statistics.median(one.seconds for _, one in measured),
        "ratio": statistics.median(ours.seconds / theirs.seconds for theirs, ours in measured),
        "pairs": [[theirs.seconds, ours.seconds] for theirs, ours in measured],
    }


def _bytes(folder: Path) -> int:
    """The space that a folder's files take on the disk: a file of LMDB has holes."""
    return sum(512 * one.stat().st_blocks for one in folder.rglob("*") if one.is_file())
