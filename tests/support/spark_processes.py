"""The processes of a Spark session: what their Java is told, and which they are, to kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from percola.spark import spark_session

QUICK_EXECUTORS: Final = {
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", "")
}
"""The same Java options as drivers have (`tests/conftest.py`)."""

EXACT_STATUS: Final = {"spark.ui.liveUpdate.period": "0"}
"""The status tracker's counts are of now: otherwise an event within 100 ms of another waits in
memory for the next event, and the last of a stage may have none."""


@contextmanager
def cluster_to_kill(**config: str) -> Iterator[SparkSession]:
    """A session with two executors of their own; for a process that has no other session."""
    # A cluster's executors take these from here.
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    settings = QUICK_EXECUTORS | EXACT_STATUS | config
    with spark_session("local-cluster[2,1,1024]", app="kills", config=settings) as spark:
        yield spark


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


def python_workers(spark: SparkSession) -> list[int]:
    """The processes that run tasks: children of the daemon that is the JVM's child."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    daemons = children(gateway.proc.pid)
    return [worker for daemon in daemons for worker in children(daemon)]


def executors(spark: SparkSession) -> list[int]:
    """The executors of a local cluster: children of the driver's JVM."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    return [pid for pid in children(gateway.proc.pid) if "ExecutorBackend" in cmdline(pid)]


@contextmanager
def terminal(
    *arguments: object, through: Sequence[str] = (), **more: str
) -> Iterator[subprocess.Popen[str]]:
    """Python in a session of its own, as a terminal starts it; it and its children end for certain.

    Args:
        arguments: those of Python.
        through: a command that runs it.
        more: variables of its environment besides.
    """
    process = subprocess.Popen(
        [*through, sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "100"} | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            left = children(process.pid)
            process.kill()
            kill_all(left)


def cmdline(pid: int) -> str:
    """What a process runs; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def kill_all(pids: Iterable[int]) -> list[int]:
    """End processes without asking; those of them that were still there."""
    killed = []
    for pid in pids:
        with suppress(ProcessLookupError):  # Spark may have ended it just now.
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed
