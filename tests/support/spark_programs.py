"""Programs that use the data source without importing Percola: a session's, and a pipeline's."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import percola
from percola import Table
from percola.spark import catalog_jar

docs = Table("docs", feed=True)
title = docs.column("title", str)
copies = Table("copies")
copied = copies.column("title", str)

EVERYTHING = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.{how}("local[2]").getOrCreate()
source = lambda table: dict(path="{repo}", table=table)
read = lambda table: spark.read.format("percola").options(**source(table)).load()
before = read("docs").orderBy("row").collect()
more = spark.createDataFrame([("c", "Three")], "row string, title string")
more.write.format("percola").mode("append").options(atomicity="job", **source("docs")).save()
stream = spark.readStream.format("percola").options(**source("docs")).load()
copy = stream.writeStream.format("percola").options(**source("copies"))
copy = copy.option("checkpointLocation", "{repo}-checkpoint").trigger(availableNow=True).start()
copy.awaitTermination()
after = [tuple(row) for row in read("copies").orderBy("row").collect()]
print(type(spark).__module__, [len(before), *after])
spark.stop()

# From here on by Percola's own function, which also allows filters to be pushed down.
from percola.spark import configure
builder = SparkSession.builder.{how}("local[1]")
assert configure(builder) is builder
spark = configure(builder.getOrCreate(), catalogs={{"web": "{repo}"}})
frame = spark.read.format("percola").options(table="docs", pushFilters="true").load("{repo}")
print(type(spark).__module__, frame.where("row = 'b'").collect())
print("SQL", spark.sql("SELECT * FROM web.default.docs WHERE row = 'b'").collect())
try:
    spark.sql("CREATE TABLE mine USING percola OPTIONS (path '{repo}', table 'docs')")
    spark.sql("SELECT * FROM mine").collect()
except Exception as error:
    print("refused", str(error).splitlines()[0])
spark.stop()
"""

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
spark = SparkSession.active()

@dp.materialized_view
def titles():
    return spark.read.format("percola").option("table", "docs").load(r"{repo}")

@dp.materialized_view
def shouted():
    return spark.read.table("titles").selectExpr("row", "upper(title) AS title")

@dp.table
def changes():
    return spark.readStream.format("percola").option("table", "docs").load(r"{repo}")

dp.create_sink("copies", "percola", {{"table": "copies", "path": r"{repo}"}})

@dp.append_flow(target="copies")
def copied():
    return spark.readStream.table("changes").selectExpr("row", "lower(title) AS title")
"""

SPEC = """
name: titles
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "1"
"""

COPIED = "[2, ('a', 'One'), ('b', 'Two'), ('c', 'Three')]"


def repository(folder: Path) -> None:
    """Make the repository that the programs use."""
    with percola.open(folder / "repo", [docs, copies]) as repository, repository.transaction() as t:
        t.set(title, "a", "One")
        t.set(title, "b", "Two")


def check_sessions(folder: Path, java_home: Path, how: str, python: Path) -> None:
    """A session reads, writes and follows; `how` is the method of the builder that makes it."""
    kind = {"master": "pyspark.sql.session", "remote": "pyspark.sql.connect.session"}[how]
    program = folder / "program.py"
    program.write_text(EVERYTHING.format(how=how, repo=folder / "repo"))
    printed = _run([python, program], folder, java_home, python)
    assert f"{kind} {COPIED}" in printed
    assert f"{kind} [Row(row='b', title='Two')]" in printed
    assert "SQL [Row(row='b', title='Two')]" in printed
    assert re.search("refused .*catalog", printed), printed


def check_spark_sql(folder: Path, java_home: Path, python: Path) -> None:
    """The command `spark-sql` queries the catalog that properties name."""
    words = {
        "spark.jars": catalog_jar(),
        "spark.sql.catalog.web": "io.percola.spark.PercolaCatalog",
        "spark.sql.catalog.web.path": folder / "repo",
    }
    properties = [word for name, value in words.items() for word in ("--conf", f"{name}={value}")]
    query = "SELECT * FROM web.default.docs WHERE row < 'b'; SHOW TABLES IN web"
    command = [python.with_name("spark-sql"), "--master", "local[1]", *properties, "-e", query]
    assert _run(command, folder, java_home, python).split() == ["a", "One", "docs", "copies"]


def check_pipeline(folder: Path, java_home: Path, python: Path) -> None:
    """A declarative pipeline reads, follows and writes tables."""
    (folder / "transformations").mkdir()
    text = PIPELINE.format(repo=folder / "repo")
    (folder / "transformations" / "titles.py").write_text(text)
    (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder))
    command = python.with_name("spark-pipelines")
    assert command.is_file(), f"the PySpark of {python} came without spark-pipelines"
    _run([command, "run"], folder, java_home, python)
    import pyarrow.parquet as pq

    found = pq.read_table(folder / "spark-warehouse" / "shouted")
    assert sorted(found.to_pylist(), key=lambda one: one["row"]) == [
        {"row": "a", "title": "ONE"},
        {"row": "b", "title": "TWO"},
    ]
    with percola.open(folder / "repo") as opened:
        rows = opened.snapshot().scan(copies)
        assert {row.key: row[copied] for row in rows} == {"a": "one", "b": "two"}


def _run(command: Sequence[str | Path], folder: Path, java_home: Path, python: Path) -> str:
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
    }
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
