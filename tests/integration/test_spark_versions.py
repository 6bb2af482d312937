"""Older versions of PySpark: what docs/spark.md shows runs, and what they lack is a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from older_pyspark import RELEASES, python_with
from spark_page import run_page
from spark_programs import check_pipeline, check_sessions, repository

pytestmark = [
    pytest.mark.long,  # Installs PySpark twice, the first time.
    pytest.mark.timeout(1800),  # An installation, and a session in which the whole page is run.
]

CLAIMS = """
import pyspark

print("PySpark", pyspark.__version__)
limited = spark.readStream.format("percola").options(table="docs", maxRowsPerTrigger="1")
try:
    limited.load("./docs")
    print("limited: yes")
except Exception as error:
    print("limited:", str(error).splitlines()[0])
"""


@pytest.mark.parametrize("version", RELEASES)
def test_the_page_runs_with_an_older_pyspark_and_what_that_lacks_is_told(
    tmp_path: Path, java_home: Path, version: str
) -> None:
    python = python_with(version)
    printed = run_page(tmp_path, java_home, python, version, CLAIMS)
    release = RELEASES[version][0]
    assert f"PySpark {release}\n" in printed
    refused = f"The option maxRowsPerTrigger needs PySpark 4.2 or newer, and this is {release}: "
    [limited] = re.findall("^limited: (.*)$", printed, re.MULTILINE)
    if version == "4.1":
        assert refused in limited
    else:
        assert limited == "yes"


@pytest.mark.parametrize("version", RELEASES)
def test_spark_connect_and_pipelines_of_an_older_pyspark_find_the_source(
    tmp_path: Path, java_home: Path, version: str
) -> None:
    python = python_with(version)
    for what in ("connect", "pipeline"):
        folder = tmp_path / what
        folder.mkdir()
        repository(folder)
        if what == "connect":
            check_sessions(folder, java_home, "remote", python)
        else:
            check_pipeline(folder, java_home, python)
