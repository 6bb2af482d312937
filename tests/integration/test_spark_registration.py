"""Spark finds the source by itself: in a session of the user's own, through Spark Connect, and in a
declarative pipeline, all without importing Percola; and in one that `percola.spark` configures.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from spark_programs import check_pipeline, check_sessions, check_spark_sql, repository

HERE = Path(sys.executable)


@pytest.mark.long
@pytest.mark.parametrize("how", ["master", "remote"])
def test_a_session_of_the_users_own_reads_writes_and_follows_classic_and_through_connect(
    tmp_path: Path, java_home: Path, how: str
) -> None:
    repository(tmp_path)
    check_sessions(tmp_path, java_home, how, HERE)


@pytest.mark.long
def test_the_catalog_is_queried_by_the_command_spark_sql(tmp_path: Path, java_home: Path) -> None:
    repository(tmp_path)
    check_spark_sql(tmp_path, java_home, HERE)


@pytest.mark.long
def test_a_declarative_pipeline_reads_follows_and_writes_tables(
    tmp_path: Path, java_home: Path
) -> None:
    repository(tmp_path)
    check_pipeline(tmp_path, java_home, HERE)
