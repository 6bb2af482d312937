"""`spark-submit` to two workers whose Python has no Percola: they get a packed environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import linked_crawl
import pytest
from commands import run as percola_command
from pyspark.find_spark_home import _find_spark_home
from spark_clusters import standalone_cluster
from spark_processes import QUICK_EXECUTORS

import percola
from percola import Table

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(2400),  # A JVM for each command and executor, on a machine that is busy.
]
SECONDS = 900
PYTHON = "./environment/bin/python"
"""Of the driver, in its folder, and of each executor, in its own."""

PROGRAM = """
import sys
from names import name_of
from percola.spark import spark_session

def found(n):
    import percola
    return percola.__file__

with spark_session("local[7]", app="ours") as spark:
    context = spark.sparkContext
    print("given:", context.master, context.getConf().get("spark.x"))
    print("found:", *sorted(set(context.parallelize(range(8), 8).map(found).collect())))
    frame = spark.createDataFrame(
        context.parallelize(range(20), 4).map(lambda n: (name_of(n), n)), "row string, n bigint"
    )
    frame.write.format("percola").mode("append").option("table", "numbers").save(sys.argv[1])
    read = spark.read.format("percola").option("table", "numbers").load(sys.argv[1])
    print("rows:", read.count(), read.agg({"n": "sum"}).first()[0])
"""

numbers = Table("numbers")
n = numbers.column("n", int)


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
            env=bare_environment(self.java_home) | {"PYSPARK_PYTHON": PYTHON, "SPARK_HOME": spark},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert not ok or done.returncode == 0, done.stdout + done.stderr
        return done

    def webindex(self, word: str, repo: Path, *arguments: object) -> Any:
        """The report of a command of `webindex`, submitted."""
        [main] = self.folder.glob("environment/lib/*/site-packages/webindex/__main__.py")
        done = self.submit(main, word, "--json", "--repo", repo, *arguments)
        return json.loads(done.stdout)


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


def test_a_program_with_further_files_runs_on_both_workers_in_the_packed_environment(
    cluster: Cluster, tmp_path: Path
) -> None:
    percola.open(tmp_path / "repo", schema=[numbers]).close()
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "names.py").write_text("def name_of(n):\n    return f'row {n:02}'\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = cluster.submit(
        *("--conf", "spark.x=theirs", "--py-files", tmp_path / "shipped" / "names.py"),
        *(tmp_path / "program.py", tmp_path / "repo"),
    )
    given, found, rows = done.stdout.splitlines()
    assert (given, rows) == (f"given: {cluster.master} theirs", "rows: 20 190")
    places = [Path(one).relative_to(cluster.workers).parts for one in found.split()[1:]]
    assert {one[0] for one in places} == {"worker-0", "worker-1"}
    assert {one[3] for one in places} == {"environment"}, places


def test_webindex_loads_works_ranks_verifies_and_rebuilds(cluster: Cluster, tmp_path: Path) -> None:
    crawl = tmp_path / "crawl.warc.gz"
    crawl.write_bytes(linked_crawl.crawl().data)
    index = tmp_path / "index"
    loaded = cluster.webindex("load", index, crawl)
    assert loaded["loaded"]["written"] == 42
    worked = cluster.webindex("work", index, "--until-idle", "--workers", 2)
    assert (worked["pages"], worked["dead_lettered"]) == (21, 0)
    assert cluster.webindex("rank", index)["written"] > 0
    cluster.webindex("work", index, "--until-idle", "--workers", 1)
    verdict = cluster.webindex("verify", index)
    assert all(one["checked"] and not one["differing"] for one in verdict["invariants"])
    assert verdict["live"] == 21
    rebuilt = cluster.webindex("rebuild", tmp_path / "rebuilt", crawl)
    assert (rebuilt["pages"], rebuilt["clusters"]) == (41, 13)


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
