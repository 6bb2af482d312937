"""The one Spark session that the tests of this folder share: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from percola.spark import spark_session


@pytest.fixture(scope="session")
def spark(java_home: Path) -> Iterator[SparkSession]:
    """A local session with two cores, whose JVM ends with the tests."""
    with spark_session("local[2]", app="tests") as session:
        yield session
