"""Spark finds the source by itself: in a session of the user's own, through Spark Connect, and in a
declarative pipeline, all without importing Percola; and in one that `percola.spark` configures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import percola
from percola import Table

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
spark = configure(builder.getOrCreate())
frame = spark.read.format("percola").options(table="docs", pushFilters="true").load("{repo}")
print(type(spark).__module__, frame.where("row = 'b'").collect())
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with (
        percola.open(tmp_path / "repo", [docs, copies]) as repository,
        repository.transaction() as t,
    ):
        t.set(title, "a", "One")
        t.set(title, "b", "Two")
    return tmp_path


def run(command: list[str], folder: Path, java_home: Path) -> str:
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("how", "kind"), [("master", "pyspark.sql.session"), ("remote", "pyspark.sql.connect.session")]
)
def test_a_session_of_the_users_own_reads_writes_and_follows_classic_and_through_connect(
    folder: Path, java_home: Path, how: str, kind: str
) -> None:
    program = folder / "program.py"
    program.write_text(EVERYTHING.format(how=how, repo=folder / "repo"))
    printed = run([sys.executable, str(program)], folder, java_home)
    assert f"{kind} {COPIED}" in printed
    assert f"{kind} [Row(row='b', title='Two')]" in printed


def test_a_declarative_pipeline_reads_follows_and_writes_tables(
    folder: Path, java_home: Path
) -> None:
    (folder / "transformations").mkdir()
    text = PIPELINE.format(repo=folder / "repo")
    (folder / "transformations" / "titles.py").write_text(text)
    (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder))
    command = Path(sys.executable).parent / "spark-pipelines"
    assert command.is_file(), f"pyspark {pyspark.__version__} came without spark-pipelines"
    run([str(command), "run"], folder, java_home)
    import pyarrow.parquet as pq

    found = pq.read_table(folder / "spark-warehouse" / "shouted")
    assert sorted(found.to_pylist(), key=lambda one: one["row"]) == [
        {"row": "a", "title": "ONE"},
        {"row": "b", "title": "TWO"},
    ]
    with percola.open(folder / "repo") as repository:
        rows = repository.snapshot().scan(copies)
        assert {row.key: row[copied] for row in rows} == {"a": "one", "b": "two"}
