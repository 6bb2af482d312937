"""Running `webindex` as a user does: in this process, or in one of its own."""

from __future__ import annotations

import sys

from click.testing import CliRunner
from commands import Answer, answer_of

from webindex.cli.main import cli


def call(*arguments: object) -> Answer:
    """Run a command in this process: quicker than one of its own. It never prints a traceback."""
    runner = CliRunner(env={"WEBINDEX_REPO": None, "COLUMNS": "100"})
    result = runner.invoke(cli, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return Answer(result.exit_code, result.stdout, result.stderr)


def command(*arguments: object) -> list[str]:
    """`webindex` with arguments, as a process is started."""
    return [sys.executable, "-m", "webindex.cli.main", *map(str, arguments)]


def run(*arguments: object, tracebacks: bool = False, **variables: str) -> Answer:
    """Run a command in a process of its own; `tracebacks`: it may print some."""
    answer = answer_of(command(*arguments), seconds=270, COLUMNS="100", **variables)
    assert tracebacks or "Traceback" not in answer.err, answer.err
    return answer


def is_error(answer: Answer, *words: str) -> bool:
    """Whether it is one sentence on standard error that has these words, and exit code 1."""
    assert answer.err.startswith("Error: ") and answer.err.count("\n") == 1, answer
    assert all(word in answer.err for word in words), answer
    return (answer.code, answer.out) == (1, "")
