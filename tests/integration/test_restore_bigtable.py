"""A backup is restored to Bigtable by Spark on other machines, although its driver is killed."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import Answer, answer_of, command
from servers import on_bigtable

import percola
from percola import Table

SECONDS = 600
# Its tasks do not have the driver's folder: as on a cluster, they are given files.
KILLED = """
import contextlib, os, signal, sys
from percola.maintenance.backup import restore_network
from percola.spark import OnSpark, spark_context

class Elsewhere(OnSpark):
    on_this_machine = False

killed = len(sys.argv) > 3

def show(progress):
    if killed and progress.step == "Loading" and progress.done >= 2:
        os.kill(os.getpid(), signal.SIGKILL)

rows = []
with spark_context("local[2]") as spark:
    restore_network(
        sys.argv[1],
        sys.argv[2],
        runner=lambda repo: contextlib.nullcontext(Elsewhere(spark, repo, show=show, ranges=8)),
        copying=rows.append,
    )
print(rows[-1].resumed, rows[-1].rows)
"""
ROWS = 4_000

docs = Table("docs", feed=True)
text = docs.column("text", str, observed=True)


@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)  # Servers start, and two processes with Spark.
def test_a_restore_by_files_goes_on_where_its_killed_driver_was(
    tmp_path: Path, java_home: Path
) -> None:
    folder, file = tmp_path / "repo", tmp_path / "monday.percola"
    with percola.open(folder, [docs], durability="relaxed") as repo:
        for first in range(0, ROWS, 1000):
            with repo.transaction(notify=not first) as t:
                for at in range(first, first + 1000):
                    t.set(text, f"{at % 7}/{at:06}", f"text {at} " * (1 + 40 * (at % 5 == 0)))
    with on_bigtable(tmp_path, java_home) as servers, ExitStack() as stack:
        target = servers.address("restored", stack)

        def run(line: list[str]) -> Answer:
            return answer_of(line, seconds=SECONDS, **servers.variables)

        def on(address: object, *arguments: object) -> Answer:
            return run(command("--repo", address, *arguments))

        assert on(folder, "backup", file).code == 0
        restoring = [sys.executable, "-c", KILLED, str(file), target]
        killed = run([*restoring, "killed"])
        assert killed.code == -signal.SIGKILL, killed.err
        assert "There is an unfinished copy of a repository" in on(target, "status").err
        restored = run(restoring)
        assert restored.code == 0, restored.err
        resumed, rows = map(int, restored.out.split())
        assert 0 < resumed < rows == ROWS
        found = [on(one, "--json", "scan", "docs").lines for one in (target, folder)]
        assert found[0] == found[1] and len(found[0]) == ROWS
        assert on(target, "--json", "status").json["notifications"] == {"docs.text": 1000}
        assert {one.name for one in tmp_path.glob("monday.percola*")} == {file.name}
