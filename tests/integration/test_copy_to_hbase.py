"""From a folder to HBase by Spark, whose driver is killed; and what is kept up there by Spark."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import Answer, answer_of, command
from servers import on_hbase

import percola
from percola import Table

SECONDS = 600
KILLED = """
import os, signal, sys
import percola
from percola.maintenance.copy import copy_repository
from percola.spark import OnSpark, spark_context

def die(progress):
    if progress.step == "Copying" and progress.done >= 2:
        os.kill(os.getpid(), signal.SIGKILL)

with percola.open(sys.argv[1]) as source, spark_context("local[2]") as spark:
    copy_repository(source, sys.argv[2], runner=OnSpark(spark, source, show=die, ranges=8))
"""
ROWS = 6_000

docs = Table("docs", feed=True)
text = docs.column("text", str, observed=True)
size = docs.column("size", int)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with percola.open(tmp_path / "repo", [docs], durability="relaxed") as repo:
        for first in range(0, ROWS, 1000):
            with repo.transaction(notify=first >= ROWS // 2) as t:
                for at in range(first, first + 1000):
                    t.set(text, f"{at % 7}/{at:06}", f"text {at} " * (1 + 40 * (at % 5 == 0)))
                    t.set(size, f"{at % 7}/{at:06}", at)
    return tmp_path / "repo"


@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)  # A cluster starts, and six processes, each with Spark and Java.
def test_a_folder_is_copied_to_hbase_by_spark_although_its_driver_is_killed(
    tmp_path: Path, folder: Path, java_home: Path
) -> None:
    with on_hbase(tmp_path) as servers, ExitStack() as stack:
        target = servers.address("moved", stack)

        def run(line: list[str]) -> Answer:
            return answer_of(line, seconds=SECONDS, **servers.variables)

        def on(address: object, *arguments: object) -> Answer:
            return run(command("--repo", address, *arguments))

        killed = run([sys.executable, "-c", KILLED, str(folder), target])
        assert killed.code == -signal.SIGKILL, killed.err
        assert "There is an unfinished copy of a repository" in on(target, "status").err
        copied = on(folder, "--json", "copy", target, "--master", "local[2]")
        assert copied.code == 0, copied.err
        assert 0 < copied.json["resumed"] < copied.json["rows"] == ROWS
        assert (
            on(target, "--json", "scan", "docs").lines == on(folder, "--json", "scan", "docs").lines
        )
        waiting = [on(one, "--json", "status").json["notifications"] for one in (target, folder)]
        assert waiting[0] == waiting[1] == {"docs.text": ROWS // 2}
        checked = on(target, "--json", "check", "--master", "local[2]").json
        assert checked["findings"] == []
        assert checked["counts"]["rows"] == ROWS

        assert on(target, "set", "3/000003", "docs.size", "7").code == 0
        arguments = ("--json", "gc", "--retention", "0")
        collected = on(target, *arguments, "--master", "local[2]").json
        assert (collected["complete"], collected["versions"]) == (True, 1)
        assert on(target, *arguments).json["cells"] == 0

        file = tmp_path / "moved.percola"
        made = on(target, "--json", "backup", file, "--master", "local[2]")
        assert made.code == 0, made.err
        restored = servers.address("restored", stack)
        answer = on(restored, "restore", file, "--master", "local[2]")
        assert answer.code == 0, answer.err
        assert f"as it was at timestamp {made.json['timestamp']}" in answer.out
        rows = [on(one, "--json", "scan", "docs").lines for one in (target, restored)]
        assert len(rows[0]) == ROWS
        assert rows[0] == rows[1]
        assert on(restored, "--json", "status").json["notifications"] == waiting[0]
        assert [one.name for one in tmp_path.glob("moved.percola*")] == [file.name]
