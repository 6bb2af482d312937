"""Percola's errors are sentences, whichever method of the data source Spark has called."""

from __future__ import annotations

import inspect

import pytest
from pyspark.sql import datasource

from percola.spark.read.filters import FilteringReader
from percola.spark.read.snapshot import TableReader
from percola.spark.source import PercolaDataSource
from percola.spark.stream.limited import LimitedFeedReader
from percola.spark.stream.sink import StreamWriter
from percola.spark.stream.unlimited import UnlimitedFeedReader
from percola.spark.write.atomic import JobWriter
from percola.spark.write.plan import MarkedWriter

RAISE_NOTHING = {"name", "getDefaultReadLimit", "stop", "streamReader"}
"""`streamReader` returns a reader that raises the error: see `FailedReader`."""


@pytest.mark.parametrize(
    "made",
    [
        *(PercolaDataSource, TableReader, FilteringReader, LimitedFeedReader, UnlimitedFeedReader),
        *(MarkedWriter, JobWriter, StreamWriter),
    ],
)
def test_each_method_that_spark_calls_raises_errors_without_a_traceback(made: type) -> None:
    theirs = [one for one in made.__mro__ if one.__module__.startswith("pyspark.")]
    assert any(one.__module__ == datasource.__name__ for one in theirs)
    called = {
        name
        for one in theirs
        for name, _ in inspect.getmembers(one, inspect.isfunction)
        if not name.startswith("_")
    }
    ours = {
        name
        for name in called - RAISE_NOTHING
        if not getattr(made, name).__module__.startswith("pyspark.")
    }
    assert ours, "none of the methods is ours"
    # `errors_are_sentences` wraps the function.
    assert {name for name in ours if not hasattr(getattr(made, name), "__wrapped__")} == set()
