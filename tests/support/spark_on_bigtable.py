"""Spark on a store of servers: its tasks know Bigtable's emulator, and repositories there.

Tasks know of a repository by its address, and of the emulator and the oracle by what their process
has in its environment. The session is that of `tests/integration/conftest.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from emulator import Emulator, emulator_program
from pyspark.sql import SparkSession
from servers import Servers, on_bigtable

import percola
from percola import Repository
from percola.spark.source import PercolaDataSource

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
