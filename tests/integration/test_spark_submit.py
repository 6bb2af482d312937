"""Programs, and the command `webindex`, under `spark-submit`: its JVM, master and properties."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

import percola
import webindex
from percola import Table

BIN = Path(sys.executable).parent
WEBINDEX = Path(webindex.__file__).with_name("__main__.py")
SAMPLE = Path(webindex.__file__).with_name("sample") / "sample.warc.gz"
SECONDS = 300

PROGRAM = """
import sys
from names import name_of
from percola.spark import spark_session

with spark_session("local[7]", app="ours", config={"spark.x": "ours", "spark.y": "ours"}) as spark:
    context = spark.sparkContext
    conf = context.getConf()
    print("given:", context.master, context.appName, conf.get("spark.x"), conf.get("spark.y"))
    frame = spark.createDataFrame(
        context.parallelize(range(20), 4).map(lambda n: (name_of(n), n)), "row string, n bigint"
    )
    frame.write.format("percola").mode("append").option("table", "numbers").save(sys.argv[1])
    read = spark.read.format("percola").option("table", "numbers").load(sys.argv[1])
    print("rows:", read.count(), read.agg({"n": "sum"}).first()[0])
"""

numbers = Table("numbers")
n = numbers.column("n", int)

Submit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def submit(java_home: Path, tmp_path: Path) -> Submit:
    """`spark-submit` with these arguments, in a folder of its own."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "JAVA_HOME": str(java_home), "PYSPARK_PYTHON": sys.executable}
        return subprocess.run(
            [BIN / "spark-submit", "--conf", "spark.ui.enabled=false", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    return run


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program above, and beside it the module that it imports, for `--py-files`."""
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "names.py").write_text("def name_of(n):\n    return f'row {n:02}'\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    percola.open(tmp_path / "repo", schema=[numbers]).close()
    return tmp_path / "repo"


def test_a_program_runs_with_the_master_and_the_properties_of_spark_submit(
    submit: Submit, program: Path, repo: Path
) -> None:
    done = submit(
        *("--master", "local[2]", "--name", "theirs", "--conf", "spark.x=theirs"),
        *("--py-files", program.parent / "shipped" / "names.py", program, repo),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["given: local[2] theirs theirs ours", "rows: 20 190"]


def test_webindex_loads_prints_its_report_and_refuses_a_mistake_in_a_sentence(
    submit: Submit, tmp_path: Path
) -> None:
    options = ("--master", "local[2]", WEBINDEX, "load", "--repo", tmp_path / "index")
    done = submit(*options, SAMPLE)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Loaded +206 of 206 captures", done.stdout)
    with percola.open(tmp_path / "index") as index:
        assert any(index.pending().values())
    wrong = submit(*options, tmp_path / "none.warc.gz")
    assert wrong.returncode != 0
    # spark-submit prints what the program writes to standard error on standard output.
    assert "none.warc.gz" in wrong.stdout
    assert "Traceback" not in wrong.stderr + wrong.stdout


@pytest.mark.long
@pytest.mark.timeout(900)  # Three JVMs start, and an executor for each worker.
def test_a_program_runs_on_a_standalone_cluster_of_two_workers(
    submit: Submit,
    java_home: Path,
    program: Path,
    repo: Path,
    tmp_path: Path,
    wait_until: Callable[..., object],
) -> None:
    with standalone_cluster(tmp_path / "cluster", java_home, wait_until) as master:
        done = submit(
            *("--master", master, "--conf", "spark.executor.memory=512m"),
            *("--conf", "spark.executor.cores=1", "--conf", "spark.driver.host=127.0.0.1"),
            *("--py-files", program.parent / "shipped" / "names.py", program, repo),
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"given: {master} program.py ours ours", "rows: 20 190"]
        executors = [*(tmp_path / "cluster").glob("worker-*/app-*/*")]
        assert {one.parent.parent.name for one in executors} == {"worker-0", "worker-1"}


@contextlib.contextmanager
def standalone_cluster(
    folder: Path, java_home: Path, wait_until: Callable[..., object]
) -> Iterator[str]:
    """Spark's own cluster manager and two workers, each in its own folder; the master's URL."""
    spark_class = Path(_find_spark_home()) / "bin" / "spark-class"
    environment = {**os.environ, "JAVA_HOME": str(java_home), "SPARK_DAEMON_MEMORY": "256m"}
    with contextlib.ExitStack() as stack:

        def start(name: str, kind: str, *options: object, ready: str) -> None:
            (folder / name).mkdir(parents=True)
            log = folder / f"{name}.log"
            with log.open("w") as output:
                process = subprocess.Popen(
                    [spark_class, f"org.apache.spark.deploy.{kind}", *map(str, options)],
                    cwd=folder / name,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            wait_until(
                lambda: ready in log.read_text() or process.poll() is not None,
                seconds=60,
                what=f"{name} to start",
            )
            assert process.poll() is None, log.read_text()

        host, port = "127.0.0.1", free_port()
        start(
            *("master", "master.Master", "--host", host, "--port", port, "--webui-port", 0),
            ready="I have been elected leader",
        )
        for number in range(2):
            name = f"worker-{number}"
            start(
                *(name, "worker.Worker", "--host", host, "--cores", 1, "--memory", "1g"),
                *("--webui-port", 0, "--work-dir", folder / name, f"spark://{host}:{port}"),
                ready="Successfully registered with master",
            )
        yield f"spark://{host}:{port}"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
