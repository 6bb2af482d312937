"""The demonstration shows what it says, checks it, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from effort import mostly_long
from spark_processes import terminal

from webindex.cli.demo import Checks, Demo, main
from webindex.sample import CHANGED_URL, CHANGED_WORDS
from webindex.workers.processes import open_index, open_repository

SECONDS = 300


IGNORING_CTRL_C = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""Runs a command as a shell that is not interactive does in the background."""


def demo(
    temporary: Path, *arguments: object, **options: Any
) -> AbstractContextManager[subprocess.Popen[str]]:
    """The demonstration in a session of its own, with a folder for temporary files."""
    module = ("-u", "-m", "webindex.cli.demo")
    return terminal(*module, *arguments, **{"TMPDIR": str(temporary), **options})


def processes_of(session: int) -> list[str]:
    """The commands of the processes that live in a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(command)
    return found


def test_the_demonstration_holds_and_keeps_only_what_it_is_told_to(
    tmp_path: Path, java_home: Path
) -> None:
    kept = tmp_path / "kept"
    # Not in pytest's folder, which a browser that renders for root, as another user, cannot enter.
    temporary = Path(tempfile.mkdtemp(prefix="percola-demo-"))
    temporary.chmod(0o755)
    with demo(temporary, "--keep", kept) as process:
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, err) == (0, ""), out
        assert processes_of(process.pid) == []
    assert re.search(r"\n✓ All \d+ checks held, in \d+ s\.\n", out)
    assert "✗" not in out and "\x1b" not in out, "it is calm when piped"
    assert re.findall(r"^(\d)\. ", out, re.MULTILINE) == list("1234567")
    rendered = "✓ exactly the 3 pages that use the stylesheet were rendered again"
    assert rendered in out or "Left out: There is no browser" in out
    told = re.search(r"(\d+) ms by the exporter's report, (\d+) ms as seen by the search", out)
    assert told is not None
    assert 0 < int(told[1]) < 60_000 and abs(int(told[1]) - int(told[2])) < 5_000
    temporary.rmdir()
    assert f"--repo {kept}" in out
    with open_repository(str(kept)) as repo, open_index(repo) as index:
        assert [hit.url for hit in index.search(CHANGED_WORDS).hits] == [CHANGED_URL]


@pytest.mark.parametrize("moment", mostly_long(["Work it off", "Load a crawl"]))
def test_ctrl_c_ends_the_demonstration_without_a_trace(
    tmp_path: Path, java_home: Path, moment: str
) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        assert any(moment in line for line in process.stdout)
        assert len(os.listdir(tmp_path)) > 0
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, err) == (130, "Stopped.\n")
        assert processes_of(process.pid) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_sigterm_ends_a_demonstration_in_the_background_of_a_script(
    tmp_path: Path, java_home: Path
) -> None:
    with demo(tmp_path, through=IGNORING_CTRL_C) as process:
        assert process.stdout is not None
        assert any("Load a crawl" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, err) == (130, "Stopped.\n")
        assert processes_of(process.pid) == []
    assert os.listdir(tmp_path) == []


def test_without_java_one_sentence_says_how_to_get_it(tmp_path: Path) -> None:
    with demo(tmp_path, PATH="/nowhere", JAVA_HOME="") as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert err.count("\n") == 1 and err.startswith("Error: ")
    assert "Java" in err and "Install" in err
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with demo(tmp_path, "--keep", tmp_path) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "is there already: name a new folder" in err
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_a_check_that_fails_says_what_was_expected_and_what_was_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checks = Checks()
    checks.equal("two and two are four", 2 + 2, 4)
    checks.equal("it is red", "green", "red")
    checks.holds("it is there", False, "expected it, found nothing")
    assert (checks.made, checks.failed) == (3, 2)
    assert capsys.readouterr().out.splitlines() == [
        "✓ two and two are four",
        "✗ it is red: expected 'red', found 'green'",
        "✗ it is there: expected it, found nothing",
    ]


def test_one_check_that_fails_is_enough_for_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(demo: Demo, spark: object) -> None:
        demo.checks.equal("this holds", 1, 1)
        demo.checks.equal("this does not", 1, 2)

    monkeypatch.setattr(Demo, "run", run)
    monkeypatch.setattr("webindex.cli.demo.spark_context", lambda **options: nullcontext())
    answer = CliRunner().invoke(main)
    assert answer.exit_code == 1
    assert "✗ 1 of 2 checks failed" in answer.output
