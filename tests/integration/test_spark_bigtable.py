"""Spark on a store of servers: what is claimed of a folder, on Bigtable's emulator.

Tasks know of the repository by its address, and of the emulator and the oracle by what their
process has in its environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import spark_writes
from borrowed import borrow
from emulator import Emulator, emulator_program
from pyspark.sql import SparkSession
from servers import Servers, on_bigtable

import percola
from percola import Repository
from percola.spark.source import PercolaDataSource
from tests.integration import (
    test_spark_read,
    test_spark_transactions,
    test_spark_write,
)

# Each process that Spark starts imports Google's client, or plans a frame, by itself.


@pytest.fixture(scope="module")
def servers(
    emulator_of_spark: Emulator | None, tmp_path_factory: pytest.TempPathFactory, java_home: Path
) -> Iterator[Servers]:
    if emulator_of_spark is None:
        emulator_program()
        pytest.fail("there is an emulator now, but Spark has begun without it")
    with (
        pytest.MonkeyPatch.context() as patch,
        on_bigtable(tmp_path_factory.mktemp("servers"), java_home, emulator_of_spark) as running,
    ):
        for name, value in running.variables.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def folder(servers: Servers, spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a repository that no other test has, in the place of a folder."""
    spark.dataSource.register(PercolaDataSource)
    name = "".join(filter(str.isalnum, request.node.nodeid))[-30:].lower()
    with ExitStack() as stack:
        yield servers.address(f"i{name}", stack)


def opened(tables: list[Any]) -> Callable[..., Any]:
    """A fixture `repo` with these tables."""

    @pytest.fixture
    def repo(self: object, folder: str) -> Iterator[Repository]:
        with percola.open(folder, tables) as one:
            yield one

    return repo


Test_read = borrow(
    test_spark_read,
    [
        "test_a_table_is_read_whole_with_types_and_nulls",
    ],
    folder=None,
    repo=opened(test_spark_read.SCHEMA),
    pushing=None,
)

Test_write = borrow(
    test_spark_write,
    [
        "test_values_of_every_type_are_written_and_observers_see_them",
        "test_a_row_in_two_partitions_of_a_job_is_told_and_in_one_the_later_counts",
    ],
    folder=None,
    repo=opened(spark_writes.SCHEMA),
)

Test_transactions = borrow(
    test_spark_transactions,
    ["test_a_loader_reads_before_it_writes_and_writes_several_tables"],
    repo=opened(test_spark_transactions.SCHEMA),
)
