"""Running the command line as a user does, on a repository with a table of every sort.

`run` starts a process of its own; `call` is quicker, for what does not depend on one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    **more: str,
) -> Answer:
    """Run `percola` in a process of its own; `tracebacks`: it may print some on standard error."""
    done = subprocess.run(
        command(*arguments),
        cwd=cwd,
        input=stdin,
        env=environment(**more),
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    assert tracebacks or b"Traceback" not in done.stderr, done.stderr.decode()
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def answer_of(line: Sequence[str], *, seconds: float = SECONDS, **variables: str) -> Answer:
    """Run a program, with what it must have in its environment; it may print what it likes."""
    done = subprocess.run(
        line, env=environment(**variables), capture_output=True, timeout=seconds, check=False
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def call(*arguments: object, stdin: bytes = b"") -> Answer:
    """Run the same in this process: quicker, for what does not depend on a process."""
    runner = CliRunner(env={"PERCOLA_REPO": None, "COLUMNS": "80"})
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
