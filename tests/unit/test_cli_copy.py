"""`percola copy`: real processes, one of which is killed, and what it refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SECONDS, call, contents, environment, folder, is_error, repo, run

import percola
from percola import Repository
from percola.maintenance.check import check

__all__ = ["folder", "repo"]

KILLED = """
import os, signal, sys
import percola
from percola.maintenance import copy

copy._RECORDS, copy._SAVED_EVERY = 64, 0.0
ranges = 0

def die(copied):
    global ranges
    ranges += 1
    if ranges == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

with percola.open(sys.argv[1]) as source:
    copy.copy_repository(source, sys.argv[2], progress=die)
"""
ROWS = 1_000


@pytest.fixture
def filled(repo: Repository) -> Repository:
    for begin in range(0, ROWS, 100):
        with repo.transaction() as t:
            for number in range(begin, begin + 100):
                t.set(contents, f"row {number:04}", b"x" * number)
    return repo


def rows(address: Path) -> dict[str, bytes]:
    with percola.open(address, create=False) as opened, opened.snapshot() as now:
        docs = opened.table("docs")
        return {row.key: row[docs.resolve("contents")] for row in now.scan(docs)}


def test_a_repository_is_copied_with_its_work_and_said_so(
    folder: Path, filled: Repository, tmp_path: Path
) -> None:
    answer = run("--repo", folder, "copy", tmp_path / "copy")
    assert answer.code == 0, answer.err
    assert f"Copied {folder} to {tmp_path / 'copy'} as of timestamp " in answer.out
    assert "a second." in answer.out
    assert rows(tmp_path / "copy") == rows(folder)
    with percola.open(tmp_path / "copy", create=False) as copied:
        assert copied.pending() == filled.pending() != {}
        assert list(check(copied)) == []


def test_a_copy_that_was_killed_cannot_be_opened_and_is_resumed(
    folder: Path, filled: Repository, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    for ranges in (2, 3):
        arguments = [sys.executable, "-c", KILLED, str(folder), str(target), str(ranges)]
        killed = subprocess.run(arguments, env=environment(), timeout=SECONDS, check=False)
        assert killed.returncode == -signal.SIGKILL
        answer = call("--repo", target, "status")
        assert is_error(answer)
        assert "There is an unfinished copy of a repository" in answer.err
    filled.run(lambda t: t.set(contents, "row 0999", b"written since"))
    done = run("--repo", folder, "--json", "copy", target).json
    assert 0 < done["resumed"] < done["rows"]
    copied = rows(target)
    assert len(copied) == len(rows(folder))
    assert copied["row 0999"] == b"x" * 999, "as it was when the first one began"
    assert filled.holds() == []


def test_what_cannot_be_copied_is_told_in_a_sentence(
    folder: Path, filled: Repository, tmp_path: Path
) -> None:
    for arguments, words in (
        (["memory:"], "A repository in memory ends with its process"),
        ([folder], "name an empty or a new place for the copy"),
        ([tmp_path / "copy", "--at", "999999999"], "There is no snapshot at 999999999 yet"),
        (["hbase://nowhere/shop"], "does not say where its oracle is"),
    ):
        answer = call("--repo", folder, "copy", *arguments)
        assert is_error(answer), arguments
        assert words in answer.err
    assert not (tmp_path / "copy").exists(), "an empty repository looks like a copy"
