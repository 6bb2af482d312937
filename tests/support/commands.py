"""Running the command line as a user does, on a repository with a table of every sort.

`run` starts a process of its own; `call` is quicker, for what does not depend on one.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import percola
from percola import JSON, Repository, Table
from percola.cli.root import cli

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180


@dataclass
class Answer:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its only JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Its JSON documents, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(**more: str) -> dict[str, str]:
    """The environment of a child that finds the same percola, and no repository by chance."""
    source = str(Path(percola.__file__).parents[1])
    dropped = ("PERCOLA_REPO", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"PYTHONPATH": source, "COLUMNS": "80"} | more


def make(
    *words: object, seconds: float = 500, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run make in the root of the source, but for its set-up: the tests run in what that made.

    Without what is meant for the tests' own make and pytest in the environment.
    """
    dropped = ("MAKE", "MFLAGS", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return subprocess.run(
        ["make", "-o", "setup", "-o", "venv", *map(str, words)],
        cwd=ROOT,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def command(*arguments: object) -> list[str]:
    """`percola` with arguments, as a process is started."""
    return [sys.executable, "-m", "percola.cli", *map(str, arguments)]


def run(
    *arguments: object,
    cwd: Path | None = None,
    stdin: bytes = b"",
    seconds: float = SECONDS,
    tracebacks: bool = False,
    stdout: Any = subprocess.PIPE,
    **more: str,
) -> Answer:
    """Run `percola` in a process of its own; `tracebacks`: it may print some on standard error."""
    answer = answer_of(
        command(*arguments), cwd=cwd, stdin=stdin, seconds=seconds, stdout=stdout, **more
    )
    assert tracebacks or "Traceback" not in answer.err, answer.err
    return answer


def answer_of(
    line: Sequence[object],
    *,
    cwd: Path | None = None,
    stdin: bytes = b"",
    seconds: float = SECONDS,
    stdout: Any = subprocess.PIPE,
    **variables: str,
) -> Answer:
    """Run a program, with what it must have in its environment; it may print what it likes."""
    done = subprocess.run(
        [*map(str, line)],
        cwd=cwd,
        input=stdin,
        env=environment(**variables),
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=seconds,
        check=False,
    )
    return Answer(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


def python(program: str, **variables: str) -> Answer:
    """Run a program of Python, given as text."""
    return answer_of([sys.executable, "-c", program], **variables)


class Running:
    """`percola` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None and process.stderr is not None
        self.process, self.out, self.err = process, process.stdout, process.stderr

    def expect(self, word: str) -> str:
        """The next line that it prints; fails if it ends before, or prints another."""
        line = self.out.readline()
        assert word in line, (line, self.process.poll())
        return line

    def rest(self) -> tuple[int, str, str]:
        """Its exit code, once it has ended, and what else it printed."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err

    def end(self, number: int) -> tuple[int, str, str]:
        """Send it a signal; the same."""
        self.process.send_signal(number)
        return self.rest()


@contextmanager
def running(*arguments: object, cwd: Path | None = None) -> Iterator[Running]:
    """`percola` in a process of its own, which is killed if it outlives the block."""
    process = subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def on_a_terminal(*arguments: object, stream: str = "stdout", **more: str) -> str:
    """What `percola` writes to a terminal, which is its `stdout` or its `stderr`."""
    primary, secondary = pty.openpty()
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": None, stream: secondary}
    process = subprocess.Popen(command(*arguments), env=environment(**more), **streams)
    os.close(secondary)
    shown = b""
    with contextlib.suppress(OSError):  # How Linux says that the other end has been closed.
        while chunk := os.read(primary, 4096):
            shown += chunk
    os.close(primary)
    assert process.wait(SECONDS) == 0
    return shown.decode()


def call(*arguments: object, stdin: bytes = b"", **more: str) -> Answer:
    """Run the same in this process: quicker, for what does not depend on a process."""
    runner = CliRunner(env={"PERCOLA_REPO": None, "COLUMNS": "80", **more})
    result = runner.invoke(cli, [str(one) for one in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


# --- A repository -----------------------------------------------------------------------

docs = Table("docs")
contents = docs.column("contents", observed=True)
title = docs.column("title", str)
size = docs.column("size", int)
score = docs.column("score", float)
shown = docs.column("shown", bool)
meta = docs.column("meta", JSON)
member = docs.family("member", int)
recluster = docs.weak_column("recluster")
bank = Table("bank")
bal = bank.column("bal", int)
bank_title = bank.column("title", str)
raw = Table("raw", rows=bytes)
blob = raw.column("blob")
TABLES: list[Table[Any]] = [docs, bank, raw]
NOT_TEXT = b"\xff\x00\x01"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with tables and no rows."""
    path = tmp_path / "repo"
    percola.open(path, schema=TABLES, durability="relaxed").close()
    return path


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    with percola.open(folder, schema=TABLES) as opened:
        yield opened


def put(repo: Repository, column: Any, row: Any, value: Any, *, two_phase: bool = False) -> int:
    with repo.transaction(two_phase=two_phase) as t:
        t.set(column, row, value)
    assert t.commit_ts is not None
    return t.commit_ts


def is_error(answer: Answer, *words: str) -> bool:
    """Whether it is one line on stderr that has these words, and exit code 1."""
    lines = answer.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), answer
    assert all(word in lines[0] for word in words), answer
    return answer.code == 1
