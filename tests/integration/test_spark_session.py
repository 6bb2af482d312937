"""The session that Percola starts: whose it is, and what is said when there cannot be one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from percola.spark import JavaMissingError, spark_session
from percola.spark.session import add_to_jvm, find_java


def started_elsewhere(master: str, **config: str) -> list[str]:
    """What a process of its own says that starts a session, and where Ctrl-C leads to then."""
    program = f"""
import os, signal
from percola.spark import SparkStartError, spark_session
environment = dict(os.environ)
try:
    with spark_session({master!r}, config={config!r}):
        print("started")
except SparkStartError as error:
    print(error)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert {{k: v for k, v in os.environ.items() if k in environment}} == environment
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True
    )
    assert run.stderr == ""
    return run.stdout.splitlines()


def test_a_session_that_is_there_is_used_and_goes_on(spark: SparkSession) -> None:
    with spark_session("local[1]", app="another") as session:
        assert session.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("jar", ["/no/1 b.jar", "file:///no/2%20b.jar", "file:/no/3%20b.jar"])
def test_the_driver_finds_jars_by_path_or_url(spark: SparkSession, jar: str) -> None:
    add_to_jvm(jar)
    thread = spark._jvm.java.lang.Thread  # type: ignore[union-attr]
    added = thread.currentThread().getContextClassLoader().getURLs()[-1]
    assert added.getPath() == f"/no/{jar[jar.index('no/') + 3]}%20b.jar"


def test_tasks_of_a_local_session_are_retried(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.sparkContext.master == "local[2,3]"
    seen = tmp_path / "seen"

    def fail_once(numbers: object) -> list[int]:
        if not seen.exists():
            seen.touch()
            os._exit(1)
        return [1]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(fail_once).collect() == [1]


def test_a_master_that_is_none_is_refused_before_anything_starts() -> None:
    [said] = started_elsewhere("local[x]")
    assert said == "'local[x]' is no Spark master: use local[*], local[4], or a cluster's URL."


def test_why_a_jvm_does_not_start_is_said_in_one_line(java_home: Path) -> None:
    [said] = started_elsewhere("local[1]", **{"spark.driver.memory": "plenty"})
    assert said.startswith("Spark did not start with the master 'local[1]': Invalid maximum heap")


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019' >&2", "is Java 11"),
        ("echo 'java version \"1.8.0_402\"' >&2", "is Java 8"),
        ("exit 1", "does not run"),
    ],
)
def test_a_java_that_will_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, complaint: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{program}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(JavaMissingError, match=f"{java} {complaint}"):
        find_java()


def test_the_java_on_the_path_is_taken_if_that_of_java_home_will_not_do(
    java_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{java_home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert find_java() == java_home / "bin" / "java"
