"""A mistake in the use of the data source is a sentence in the first line of Spark's error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import percola
from percola import Table
from webindex.spark.jobs import Progress, SparkJobError, started_job
from webindex.spark.tables import table_at

docs = Table("docs")
size = docs.column("size", int)
fed = Table("fed", feed=True)
number = fed.column("number", int)
NO_FEED = "percola.errors.NoFeedError: The table 'docs' keeps no feed of its changes."


@pytest.fixture
def repo(tmp_path: Path) -> str:
    with percola.open(tmp_path / "repo", schema=[docs, fed]) as repo:
        repo.run(lambda t: t.set(size, "a", 1))
        repo.run(lambda t: t.set(number, "a", 1))
    return str(tmp_path / "repo")


def first_line(error: PySparkException) -> str:
    """The first line of what Spark says, which has no traceback of the data source anywhere."""
    said = str(error)
    assert "Traceback" not in said and 'File "' not in said, said
    return said.splitlines()[0]


def read(spark: SparkSession, repo: str, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("percola").options(**{"table": "docs", **options})
    return (reader.schema(schema) if schema else reader).load(repo)


MISTAKES: dict[str, tuple[Callable[[SparkSession, str], Any], str]] = {
    "table": (
        lambda spark, repo: read(spark, repo, table="doc"),
        "percola.errors.UnknownTableError: The repository has no table 'doc'.",
    ),
    "option": (
        lambda spark, repo: read(spark, repo, clumns="size"),
        "The option 'clumns' is not known. Did you mean columns?",
    ),
    "column": (
        lambda spark, repo: read(spark, repo, columns="sise"),
        "The table 'docs' has no column 'sise'.",
    ),
    "schema": (
        lambda spark, repo: read(spark, repo, "row string, sise int").collect(),
        "The table 'docs' has no column 'sise'.",
    ),
    "written": (
        lambda spark, repo: (
            spark.createDataFrame([("a", 1)], "row string, sise bigint")
            .write.format("percola")
            .mode("append")
            .option("table", "docs")
            .save(repo)
        ),
        "The table 'docs' has no column 'sise'.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_in_the_first_line(spark: SparkSession, repo: str, mistake: str) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises(AnalysisException) as caught:
        make(spark, repo)
    assert sentence in first_line(caught.value)


@pytest.mark.parametrize("option", ["feedColumns=true", "maxRowsPerTrigger=9"])
def test_a_stream_of_a_table_without_a_feed_is_refused_when_it_is_loaded(
    spark: SparkSession, repo: str, option: str
) -> None:
    name, value = option.split("=")
    stream = spark.readStream.format("percola").option("table", "docs").option(name, value)
    with pytest.raises(AnalysisException) as caught:
        stream.load(repo)
    assert NO_FEED in first_line(caught.value)


def started(stream: DataFrame, folder: Path) -> None:
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_query_on_a_table_without_a_feed_ends_with_that_sentence(
    spark: SparkSession, repo: str, tmp_path: Path
) -> None:
    stream = spark.readStream.format("percola").option("table", "docs").load(repo)
    with pytest.raises(StreamingQueryException) as caught:
        started(stream, tmp_path / "checkpoint")
    assert NO_FEED in first_line(caught.value)


def test_so_does_one_that_goes_on_from_its_checkpoint(
    spark: SparkSession, repo: str, tmp_path: Path
) -> None:
    def stream(**options: str) -> DataFrame:
        return spark.readStream.format("percola").options(table="fed", **options).load(repo)

    started(stream(), tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException) as caught:
        started(stream(onLock="fail"), tmp_path / "checkpoint")
    assert "The option onLock is for spark.read; " in first_line(caught.value)


def test_a_job_of_the_web_index_repeats_the_sentence_only(spark: SparkSession, repo: str) -> None:
    wrong = Table("none", rows=str)
    with (
        started_job(spark.sparkContext, "a job", lambda progress: None) as job,
        pytest.raises(SparkJobError, match=r"^The repository has no table 'none'\. It has: "),
    ):
        job.run(Progress("Reading"), lambda: table_at(spark, repo, wrong, 1, 2, columns=["a"]))
