"""`webindex rebuild`: a whole index, or none at all.

That it is the index of the observers, who carry on from it, is shown by
`test_scenarios.py::test_after_rebuild_then_incremental`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from linked_crawl import crawl, load
from pyspark.sql import SparkSession
from stores import at_work

import percola
from percola import Observer, Worker
from webindex import tables
from webindex.batch.rebuild import rebuild
from webindex.cli.main import cli
from webindex.cli.site import serve
from webindex.cli.verify import rebuild_command
from webindex.crawl.warc import NotAWarcError
from webindex.incomplete import REBUILD_ROW, RebuildError, refuse_half_built
from webindex.ranking.job import rank
from webindex.sample import sample_path
from webindex.spark.jobs import SparkJobError
from webindex.workers.processes import open_index, open_repository

REBUILD = [sys.executable, "-m", "webindex.cli.main", "rebuild"]

# A dozen Spark jobs; on a busy machine each of them waits for its turn.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The crawl as a file."""
    path = tmp_path_factory.mktemp("crawl") / "linked.warc.gz"
    path.write_bytes(crawl().data)
    return path


def test_only_an_empty_repository_is_rebuilt(
    spark: SparkSession, tmp_path: Path, crawled: Path
) -> None:
    folder = tmp_path / "repo"
    with open_repository(str(folder), create=True) as repo:
        load(repo, crawled)
        ts = repo.snapshot().start_ts
        with pytest.raises(RebuildError, match="has pages already"):
            rebuild(folder, [crawled], spark=spark, quiet=True)
        assert repo.snapshot().start_ts == ts
        refuse_half_built(repo)
    with pytest.raises(NotAWarcError, match=r"nothing\.warc"):
        rebuild(tmp_path / "none", [tmp_path / "nothing.warc"], spark=spark, quiet=True)
    assert not (tmp_path / "none").exists()
    with pytest.raises(SparkJobError, match="memory:"):
        rebuild("memory:", [crawled], spark=spark, quiet=True)


def test_no_worker_runs_while_an_index_is_rebuilt(
    spark: SparkSession, tmp_path: Path, crawled: Path
) -> None:
    with open_repository(str(tmp_path / "repo"), create=True) as repo:
        worker = Worker(repo, [Observer(tables.capture, lambda t, row: None, "parse")], threads=1)
        with at_work(worker), pytest.raises(RebuildError, match="stop them"):
            rebuild(repo.address, [crawled], spark=spark, quiet=True)
        refuse_half_built(repo)


@pytest.mark.long
def test_a_rebuild_that_ended_early_leaves_what_nobody_uses(
    spark: SparkSession, tmp_path: Path, crawled: Path
) -> None:
    folder = tmp_path / "repo"
    with percola.open(folder, schema=tables.SCHEMA):
        pass
    # Where the search index should be: the export cannot begin.
    (folder / "serving").mkdir()
    (folder / "serving" / "something-else").write_text("x")
    result = CliRunner().invoke(
        rebuild_command, ["--repo", str(folder), str(crawled)], standalone_mode=False
    )
    assert isinstance(result.exception, RebuildError)
    assert "half built: delete it and run 'webindex rebuild' again." in str(result.exception)
    with open_repository(str(folder)) as repo:
        state = repo.snapshot().get(tables.report, REBUILD_ROW)
        assert state is not None and state["state"] == "failed"
        with pytest.raises(RebuildError, match="half built, because a rebuild was ended early"):
            refuse_half_built(repo)
        with pytest.raises(RebuildError, match="half built"):
            rebuild(folder, [crawled], spark=spark, quiet=True)
        with pytest.raises(RebuildError, match="half built"):
            rank(folder, spark=spark, quiet=True)
        with pytest.raises(RebuildError, match="half built"):
            serve(str(folder), "127.0.0.1", 0, say=print)
        # Were it running, whichever machine it is on, the process that is at it would be alive.
        token = repo.context.coordination.token
        running = {"state": "running", "host": "far", "pid": 2**30, "token": token}
        repo.run(lambda t: t.set(tables.report, REBUILD_ROW, {**state, **running}))
        with pytest.raises(RebuildError, match=f"by process {2**30} on far: wait"):
            refuse_half_built(repo)
        # One of the same number is another process.
        gone = {**running, "pid": os.getpid(), "token": token + "x"}
        repo.run(lambda t: t.set(tables.report, REBUILD_ROW, {**state, **gone}))
        with pytest.raises(RebuildError, match="half built, because a rebuild was ended early"):
            refuse_half_built(repo)


@pytest.mark.long
def test_a_rebuild_that_is_killed_in_the_middle_leaves_what_nobody_uses_and_no_process(
    tmp_path: Path, crawled: Path, java_home: Path, wait_until: Callable[..., object]
) -> None:
    folder = tmp_path / "repo"
    with percola.open(folder, schema=tables.SCHEMA) as repo:
        victim = subprocess.Popen(
            [*REBUILD, "--repo", folder, sample_path(), crawled],
            env={**os.environ, "JAVA_HOME": str(java_home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(
                lambda: victim.poll() is not None or list(repo.snapshot().scan(tables.pages)),
                seconds=300,
                what="the first pages",
            )
        finally:
            victim.kill()
            victim.wait()
        state = repo.snapshot().get(tables.report, REBUILD_ROW)
        assert state is not None and state["state"] == "running", "it was killed too late"
        # Its JVM ends with it, and the tasks with that.
        wait_until(lambda: not of_session(victim.pid), seconds=60, what="Spark's end")
    for command in ("load", "rebuild"):
        result = CliRunner().invoke(cli, [command, "--repo", str(folder), str(crawled)])
        assert result.exit_code == 1
        assert "half built, because a rebuild was ended early" in result.stderr
    shutil.rmtree(folder)
    assert rebuild(folder, [crawled], quiet=True).clusters > 10


def of_session(leader: int) -> list[str]:
    """The processes that were started in the session of one."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,stat=", "--sid", str(leader)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in listed.stdout.splitlines() if " Z" not in line]


def test_the_command_says_what_was_done(spark: SparkSession, tmp_path: Path, crawled: Path) -> None:
    arguments = ["--repo", str(tmp_path / "repo"), "--json", str(crawled)]
    result = CliRunner().invoke(rebuild_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["pages"] > 40 and report["cells"] > 300 and report["clusters"] > 10
    with open_repository(str(tmp_path / "repo")) as repo, open_index(repo) as index:
        refuse_half_built(repo)
        now = repo.snapshot()
        documents = sum(1 for _ in now.scan(tables.clusters, columns=[tables.document]))
        # Everything has been seen, and is in the search index.
        assert repo.pending() == {}
        assert index.count() == report["clusters"] == documents
        done = now.get(tables.report, REBUILD_ROW)
        assert done is not None and done["state"] == "done" and done["pages"] == report["pages"]
        # Nothing that is written is written again: loading agrees with what is there.
        load(repo, crawled)
        assert repo.is_idle()
