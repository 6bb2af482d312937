"""What differs between versions of PySpark, with the parts that one lacks taken away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession, datasource
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType, TimestampType

from percola.spark import configure, versions
from percola.spark.source import PercolaDataSource
from percola.spark.versions import SparkTooOldError, arrow_schema, check_version

TOO_OLD = (
    "Percola needs PySpark 4.1 or newer, and this is 4.0.5: install a newer one, or choose a newer "
    "runtime of the platform."
)


@pytest.fixture(autouse=True)
def asked_again() -> Iterator[None]:
    """What is known of `to_arrow_schema` is asked for anew before and after each test."""
    versions._in_utc.cache_clear()
    yield
    versions._in_utc.cache_clear()


def test_the_installed_version_is_not_too_old() -> None:
    check_version()


@pytest.mark.parametrize(
    "lacks", ["Filter", "DataSourceArrowWriter", "DataSourceStreamArrowWriter"]
)
def test_a_version_that_percola_cannot_use_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    monkeypatch.delattr(datasource, lacks)
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    for use in (
        check_version,
        lambda: configure(SparkSession.builder),
        lambda: PercolaDataSource({"path": "r", "table": "t"}),
    ):
        with pytest.raises(SparkTooOldError) as caught:
            use()
        assert str(caught.value) == TOO_OLD


@pytest.mark.parametrize(
    ("master", "variables", "expected"),
    [
        ("local[2]", {}, sys.executable),
        ("local[2]", {"PYSPARK_PYTHON": "other"}, "other"),
        ("local[2]", {"PYSPARK_GATEWAY_PORT": "1"}, None),  # Of the JVM of spark-submit.
        ("spark://host:7077", {}, None),
        (None, {}, None),
    ],
)
def test_a_local_spark_looks_for_percola_with_the_python_that_configures_it(
    master: str | None,
    variables: dict[str, str],
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr(os, "environ", variables)
    builder = SparkSession.Builder()
    configure(builder if master is None else builder.master(master))
    assert variables.get("PYSPARK_PYTHON") == expected


def test_timestamps_are_in_utc_where_a_time_zone_is_asked_for_and_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = StructType().add("at", TimestampType())
    wanted = pa.schema([("at", pa.timestamp("us", "UTC"))])
    assert arrow_schema(schema) == wanted

    def of_4_1(schema: StructType, timestamp_utc: bool = True) -> pa.Schema:
        assert timestamp_utc
        return wanted

    monkeypatch.setattr(types, "to_arrow_schema", of_4_1)
    versions._in_utc.cache_clear()
    assert arrow_schema(schema) == wanted
