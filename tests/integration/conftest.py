"""What the tests of this folder share: one Spark session and one HBase, which take long to start.

Spark's tasks have the environment that the session begins with, so Bigtable's emulator, where there
is one, begins before it.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulator import ROOT, Emulator
from hbase import hbase
from pyspark.sql import SparkSession
from spark_processes import EXACT_STATUS

from percola.spark import spark_session
from percola.spark.catalog import CatalogJarMissingError, catalog_settings

# A fixture that modules import is one for each of them: here it is one for all.
__all__ = ["hbase"]


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    """Bigtable's emulator, one for a module."""
    with Emulator() as running:
        yield running


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """What is entered into it ends with the test."""
    with contextlib.ExitStack() as held:
        yield held


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The place of a repository that the test makes."""
    return tmp_path / "repo"


@pytest.fixture(scope="session")
def emulator_of_spark() -> Iterator[Emulator | None]:
    """The emulator that the session's tasks know; None where there is none."""
    script = ROOT / "scripts" / "bigtable_emulator.sh"
    if subprocess.run([script, "find"], capture_output=True, check=False).returncode:
        yield None
        return
    with Emulator() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def spark(
    java_home: Path, emulator_of_spark: Emulator | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A local session with two cores, whose JVM ends with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        if emulator_of_spark is not None:
            patch.setenv("BIGTABLE_EMULATOR_HOST", emulator_of_spark.address)
        # PySpark's own daemon is what the sessions have that tests start for themselves.
        config = EXACT_STATUS | {"spark.python.daemon.module": "webindex.workers.daemon"}
        # SQL creates the folder of its default database, otherwise in the working directory.
        config["spark.sql.warehouse.dir"] = str(tmp_path_factory.mktemp("warehouse"))
        with contextlib.suppress(CatalogJarMissingError):  # The catalog's tests report it.
            config |= catalog_settings({})
        with spark_session("local[2]", app="tests", config=config) as session:
            patch.undo()
            yield session
