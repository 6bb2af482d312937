"""What an import and a command line load, and Ctrl-C while they load it."""

from __future__ import annotations

import re
import signal
import textwrap

import click
import pytest
from commands import python

import percola
from percola.cli.root import cli

HEAVY = {
    *("prometheus_client", "rich", "grpc", "jpype", "kazoo", "pyspark", "py4j", "pandas"),
    *("pyarrow", "numpy", "pypdf", "http.server", "sortedcontainers"),
}
"""Modules that take longer to load than Percola, and that a program may not need."""


def loaded_by(program: str) -> set[str]:
    """Which of the heavy modules a program has loaded at its end."""
    told = f"import sys; print('loaded:', *(set(sys.modules) & {HEAVY!r}))"
    answer = python(f"{textwrap.dedent(program)}\n{told}")
    assert (answer.code, answer.err) == (0, "")
    return set(answer.out.splitlines()[-1].split()[1:])


def test_an_import_of_all_public_names_loads_nothing_heavy() -> None:
    assert loaded_by("from percola import *; import percola; percola.Worker") == set()


def test_a_folder_is_written_and_read_without_anything_heavy() -> None:
    program = """
        import tempfile
        import percola
        docs = percola.Table("docs")
        title = docs.column("title", str)
        with tempfile.TemporaryDirectory() as folder, percola.open(folder, [docs]) as repo:
            repo.run(lambda t: t.set(title, "a", "A"))
            assert repo.snapshot().get(title, "a") == "A"
    """
    assert loaded_by(program) == set()


def test_a_worker_loads_prometheus_and_what_it_needs() -> None:
    program = """
        import percola
        docs = percola.Table("docs")
        title = docs.column("title", str, observed=True)

        @percola.observer(title)
        def follow(t, row):
            pass

        with percola.open("memory:", [docs]) as repo:
            percola.Worker(repo, [follow])
    """
    assert (
        {"prometheus_client", "sortedcontainers"}
        <= loaded_by(program)
        <= {"prometheus_client", "sortedcontainers", "http.server"}
    )


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_and_version_load_nothing_heavy(words: list[str]) -> None:
    program = f"""
        import sys
        sys.argv = ["percola", *{words!r}]
        from percola.cli import main
        try:
            main()
        except SystemExit as error:
            assert error.code == 0
    """
    assert loaded_by(program) == set()


def test_every_public_name_is_found_and_an_unknown_one_is_not() -> None:
    for name in percola.__all__:
        found = getattr(percola, name)
        # A codec that is a value, such as percola.JSON, has no name of its own.
        assert getattr(found, "__name__", name) == name
    assert set(percola.__all__) <= set(dir(percola))
    with pytest.raises(AttributeError, match="'percola' has no attribute 'Repositry'"):
        percola.Repositry  # type: ignore[attr-defined]  # noqa: B018


def test_the_overview_of_commands_says_what_each_says_of_itself() -> None:
    context = click.Context(cli)
    overview = cli.get_help(context)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        said = re.escape(command.get_short_help_str(limit=100))
        assert re.search(rf"^  {name} +{said}$", overview, re.MULTILINE), (name, said)


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.stdout.write("interrupted\\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = [{program!r}, *{words!r}]
from {entry} import main
main()
"""
"""A command line that gets a SIGINT when it begins to import a module."""


@pytest.mark.parametrize(
    ("program", "module", "words"),
    [
        ("percola", "click", ["--help"]),
        ("percola", "percola.cli.session", ["--help"]),
        ("percola", "percola.repository", ["--help"]),
        ("percola", "percola.cli.repositories", ["status"]),
        ("percola", "rich.console", ["status"]),
        ("percola", "prometheus_client", ["worker", "--help"]),
        ("webindex", "click", ["--help"]),
        ("webindex", "webindex.cli.main", ["--help"]),
        ("webindex", "percola.repository", ["--help"]),
    ],
)
def test_ctrl_c_while_a_command_loads_prints_no_traceback(
    program: str, module: str, words: list[str]
) -> None:
    entry = {"percola": "percola.cli", "webindex": "webindex.__main__"}[program]
    source = INTERRUPTED.format(module=module, program=program, words=words, entry=entry)
    answer = python(source)
    # Click ends the line on which a terminal shows ^C.
    assert (answer.out, answer.err.strip()) == ("interrupted\n", "")
    # A shell reports both as 130.
    assert answer.code in (-signal.SIGINT, 130)


def test_a_command_that_ignores_ctrl_c_still_does_once_it_has_loaded() -> None:
    source = INTERRUPTED.format(
        module="click", program="percola", words=["--help"], entry="percola.cli"
    )
    answer = python("import signal; signal.signal(2, signal.SIG_IGN)\n" + source)
    assert answer.code == 0 and "Usage: percola" in answer.out


@pytest.mark.parametrize("entry", ["percola.cli", "webindex.__main__"])
def test_a_command_learns_how_its_processes_end_where_they_were_to_be_ignored(entry: str) -> None:
    answer = python(
        textwrap.dedent(
            f"""
            import signal, subprocess, sys
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            from {entry} import main
            sys.argv = ["command", "--version"]
            try:
                main()
            except SystemExit:
                print("false:", subprocess.run(["false"]).returncode)
            """
        )
    )
    assert "false: 1" in answer.out, answer
