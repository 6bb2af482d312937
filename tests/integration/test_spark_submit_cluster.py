"""`spark-submit` to two workers whose Python has no Percola: they get a packed environment.

The repositories are on HBase, as those of a cluster are. Long work on whole tables runs on the same
two workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import linked_crawl
import pytest
from children import Child
from commands import call
from commands import run as percola_command
from pyspark.find_spark_home import _find_spark_home
from servers import on_hbase
from spark_clusters import standalone_cluster
from spark_processes import QUICK_EXECUTORS

import percola
from percola.cells import Cell, Kind
from percola.spark import spark_session
from percola.store.walks import walk_kind

# A JVM for each command and executor, on a machine that is busy.
pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]
SECONDS = 900
PYTHON = "./environment/bin/python"
"""Of the driver, in its folder, and of each executor, in its own."""

PROGRAM = """
import sys
import percola
from names import name_of
from percola import Table
from percola.spark import spark_session

numbers = Table("numbers")
n = numbers.column("n", int)

def found(n):
    import percola
    return percola.__file__

with spark_session("local[7]", app="ours") as spark:
    context = spark.sparkContext
    percola.open(sys.argv[1], schema=[numbers]).close()
    print("given:", context.master, context.getConf().get("spark.x"))
    print("found:", *sorted(set(context.parallelize(range(8), 8).map(found).collect())))
    frame = spark.createDataFrame(
        context.parallelize(range(20), 4).map(lambda n: (name_of(n), n)), "row string, n bigint"
    )
    frame.write.format("percola").mode("append").option("table", "numbers").save(sys.argv[1])
    read = spark.read.format("percola").option("table", "numbers").load(sys.argv[1])
    print("rows:", read.count(), read.agg({"n": "sum"}).first()[0])
"""

COMMANDS = """
import json
import sys
from click.testing import CliRunner
from webindex.cli.main import cli
from webindex.spark.jobs import running_session

with running_session(None, "local[7]", "commands"):
    for line in json.loads(sys.argv[1]):
        result = CliRunner().invoke(cli, line)
        assert result.exit_code == 0, (line, result.stderr, result.exception)
        print(json.dumps(json.loads(result.stdout)))
"""
"""Commands of `webindex` in one session, each of which prints its report on a line."""


class Cluster:
    """A master and two workers, and the folder from which programs are submitted to them."""

    def __init__(self, master: str, folder: Path, workers: Path, java_home: Path) -> None:
        self.master, self.folder, self.workers = master, folder, workers
        self.java_home = java_home

    def submit(self, *arguments: object, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """`spark-submit` with the packed environment."""
        spark = _find_spark_home()
        properties = (
            "spark.executor.memory=512m",
            "spark.driver.host=127.0.0.1",
            *(f"{name}={value}" for name, value in QUICK_EXECUTORS.items()),
        )
        options = [one for each in properties for one in ("--conf", each)]
        done = subprocess.run(
            [
                *(Path(spark) / "bin" / "spark-submit", "--master", self.master, *options),
                *("--archives", "environment.tar.gz#environment", *map(str, arguments)),
            ],
            cwd=self.folder,
            env=bare_environment(self.java_home)
            | {
                "PYSPARK_PYTHON": PYTHON,
                "SPARK_HOME": spark,
                # Executors get it from the driver.
                "WEBINDEX_SEARCH": str(self.folder / "search"),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert not ok or done.returncode == 0, done.stdout + done.stderr
        return done

    def webindex(self, word: str, repo: str, *arguments: object) -> Any:
        """The report of a command of `webindex`, submitted."""
        [main] = self.folder.glob("environment/lib/*/site-packages/webindex/__main__.py")
        done = self.submit(main, word, "--json", "--repo", repo, *arguments)
        return json.loads(done.stdout)

    def commands(self, *lines: Sequence[object]) -> list[Any]:
        """The reports of commands of `webindex` that one submitted program runs."""
        program = self.folder / "commands.py"
        program.write_text(COMMANDS)
        each = [[str(word) for word in (one, "--json", *more)] for one, *more in lines]
        done = self.submit(program, json.dumps(each))
        return [json.loads(line) for line in done.stdout.splitlines() if line[0] == "{"]


def bare_environment(java_home: Path) -> dict[str, str]:
    """An environment in which the interpreter of this version is found that has no packages."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = f"{sys.base_prefix}/bin:/usr/bin:/bin"
    return kept | {"PATH": path, "JAVA_HOME": str(java_home)}


@pytest.fixture(scope="module")
def cluster(
    java_home: Path, tmp_path_factory: pytest.TempPathFactory, wait_until: Callable[..., object]
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("submitted")
    packed = percola_command("--json", "pack-env", folder / "environment.tar.gz")
    assert packed.code == 0, packed.err
    assert "pyspark" not in packed.json["packages"] and "pyarrow" in packed.json["packages"]
    (folder / "environment").mkdir()
    subprocess.run(
        ["tar", "-xzf", "environment.tar.gz", "-C", "environment"], cwd=folder, check=True
    )
    bare = bare_environment(java_home)
    python = shutil.which(f"python3.{sys.version_info[1]}", path=bare["PATH"])
    assert python is not None
    without = subprocess.run([python, "-c", "import percola"], env=bare, capture_output=True)
    assert b"ModuleNotFoundError" in without.stderr, "it should have no Percola"
    workers = folder / "cluster"
    with standalone_cluster(workers, bare, wait_until) as master:
        yield Cluster(master, folder, workers, java_home)
    shutil.rmtree(folder)  # Each executor has unpacked it all.


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Makes the address of a repository on HBase, with an oracle of its own, from its name."""
    with on_hbase(tmp_path_factory.mktemp("hbase")) as running, contextlib.ExitStack() as stack:
        yield lambda name: running.address(name, stack)


@dataclass(frozen=True)
class Indexed:
    """A web index that submitted commands have made, and what they reported."""

    address: str
    load: Any
    work: Any
    rank: Any
    verify: Any
    rebuild: Any


@pytest.fixture(scope="module")
def index(
    cluster: Cluster, servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Indexed:
    folder = tmp_path_factory.mktemp("crawl")
    crawl = folder / "crawl.warc.gz"
    crawl.write_bytes(linked_crawl.crawl().data)
    address = servers("web")
    load = cluster.webindex("load", address, crawl)
    # In one application: the executors of each unpack the environment, which takes longer than
    # a command does.
    to = ("--repo", address)
    work, rank, _, verify, rebuild = cluster.commands(
        ("work", *to, "--until-idle", "--workers", 2),
        ("rank", *to),
        ("work", *to, "--until-idle", "--workers", 1),
        ("verify", *to),
        ("rebuild", "--repo", folder / "rebuilt", crawl),
    )
    return Indexed(address, load, work, rank, verify, rebuild)


def test_a_program_with_further_files_runs_on_both_workers_in_the_packed_environment(
    cluster: Cluster, servers: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "names.py").write_text("def name_of(n):\n    return f'row {n:02}'\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = cluster.submit(
        *("--conf", "spark.x=theirs", "--py-files", tmp_path / "shipped" / "names.py"),
        *(tmp_path / "program.py", servers("numbers")),
    )
    given, found, rows = done.stdout.splitlines()
    assert (given, rows) == (f"given: {cluster.master} theirs", "rows: 20 190")
    places = [Path(one).relative_to(cluster.workers).parts for one in found.split()[1:]]
    assert {one[0] for one in places} == {"worker-0", "worker-1"}
    assert {one[3] for one in places} == {"environment"}, places


def test_webindex_loads_works_ranks_verifies_and_rebuilds(index: Indexed) -> None:
    assert index.load["loaded"]["written"] == 42
    assert (index.work["pages"], index.work["dead_lettered"]) == (21, 0)
    assert index.rank["written"] > 0
    invariants = index.verify["invariants"]
    assert all(one["checked"] and not one["differing"] for one in invariants[:14])
    assert index.verify["live"] == 21
    assert (index.rebuild["pages"], index.rebuild["clusters"]) == (41, 13)


def maintain(
    pipe: Connection, master: str, index: str, copied: str, restored: str, folder: Path
) -> dict[str, tuple[int, Any, str]]:
    """In another process: commands one after the other in one session on the cluster."""
    config = QUICK_EXECUTORS | {
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    done = {}
    with spark_session(master, app="maintain", config=config) as spark:
        assert spark.sparkContext.master == master
        for word, *arguments in (
            ("check",),
            ("rerun", "webindex.observers.parse:parse", "--rate", "100000"),
            ("gc", "--retention", "0"),
            ("copy", copied),
            ("backup", str(folder / "monday.percola")),
            ("restore", str(folder / "monday.percola")),
        ):
            address = restored if word == "restore" else index
            answer = call("--repo", address, "--json", word, *arguments, "--master", master)
            done[word] = (answer.code, answer.out and answer.json, answer.err)
    return done


def everything(folder: Path) -> set[tuple[Cell, Kind, int, bytes]]:
    with percola.open(folder, create=False) as repo:
        return {
            (cell, kind, ts, raw)
            for table in repo.schema
            for kind in Kind
            for cell, ts, raw in walk_kind(repo.context.store, kind, table.name)
        }


def test_work_on_ranges_of_a_repository_on_hbase_runs_on_the_executors(
    cluster: Cluster,
    index: Indexed,
    servers: Callable[[str], str],
    java_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_HOME", str(java_home))
    copied, by_executors = servers("copied"), servers("restored")
    with Child(maintain, cluster.master, index.address, copied, by_executors, tmp_path) as child:
        assert child.speaks_within(SECONDS)
        done = child.hear()
    assert {word: one[0] for word, one in done.items()} == dict.fromkeys(done, 0), done
    assert done["check"][1]["sound"]
    assert done["rerun"][1]["rows"] > 0
    assert done["gc"][1]["complete"]
    assert done["copy"][1]["rows"] > 100
    assert "a folder of this machine" not in done["backup"][2]
    made = done["backup"][1]
    for arguments in (
        ("--repo", tmp_path / "restored", "restore", tmp_path / "monday.percola"),
        ("--repo", index.address, "copy", tmp_path / "alone", "--at", made["timestamp"]),
        ("--repo", copied, "copy", tmp_path / "from the copy", "--at", done["copy"][1]["ts"]),
        ("--repo", index.address, "copy", tmp_path / "as copied", "--at", done["copy"][1]["ts"]),
        ("--repo", by_executors, "copy", tmp_path / "as restored", "--at", made["timestamp"]),
    ):
        told = percola_command(*arguments)
        assert told.code == 0, told.err
    assert {one.name for one in tmp_path.iterdir()} == {
        "monday.percola",
        "restored",
        "alone",
        "from the copy",
        "as copied",
        "as restored",
    }
    restored = everything(tmp_path / "restored")
    assert restored == everything(tmp_path / "alone")
    assert len(restored) > 500
    assert "which Spark's executors then put into the store" in done["restore"][2]
    assert restored == everything(tmp_path / "as restored")
    assert everything(tmp_path / "from the copy") == everything(tmp_path / "as copied")


def test_spark_refuses_a_driver_in_the_cluster_for_a_python_program(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = cluster.submit("--deploy-mode", "cluster", tmp_path / "program.py", ok=False)
    assert done.returncode != 0
    assert "Cluster deploy mode is currently not supported for python applications" in done.stderr


def test_a_property_that_does_not_reach_the_data_source_is_noticed(
    cluster: Cluster, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("from percola.spark import spark_context\nwith spark_context(): pass\n")
    done = cluster.submit("--conf", f"spark.pyspark.python={PYTHON}", program)
    assert "PYSPARK_PYTHON" not in done.stdout
    absolute = cluster.folder / PYTHON
    done = cluster.submit("--conf", f"spark.pyspark.python={absolute}", program)
    assert "set the environment variable PYSPARK_PYTHON instead" in done.stdout
