"""The command line as a whole: its repository, its errors, its endings."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from commands import (
    SECONDS,
    Answer,
    answer_of,
    bal,
    call,
    command,
    contents,
    folder,
    is_error,
    on_a_terminal,
    put,
    repo,
    run,
    running,
)

import percola
from percola import Repository, Table
from percola.cli.root import cli

__all__ = ["folder", "repo"]


# --- init -------------------------------------------------------------------------------


def test_init_creates_what_other_commands_and_programs_then_use(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "repo"
    answer = run("--repo", folder, "init", "--column", "docs.title:str")
    assert answer.code == 0 and "Created" in answer.out and "durability full" in answer.out
    assert run("--repo", folder, "set", "a", "title", "Über").code == 0
    assert run("--repo", folder, "get", "a", "title").out == "Über\n"
    table = Table("docs")
    column = table.column("title", str)
    with percola.open(folder, schema=[table], create=False) as repo:
        assert repo.snapshot().get(column, "a") == "Über"


def test_init_says_what_relaxed_durability_risks(tmp_path: Path) -> None:
    answer = call("--repo", tmp_path / "r", "init", "--durability", "relaxed")
    assert answer.code == 0 and "power cut" in answer.out and "damage" in answer.out
    assert call("--repo", tmp_path / "r", "status", "--json").json["durability"] == "relaxed"
    assert "power cut" not in call("--repo", tmp_path / "s", "init").out


def test_init_of_an_existing_repository_says_so_and_changes_nothing(folder: Path) -> None:
    before = call("--repo", folder, "status", "--json").json
    answer = call("--repo", folder, "init")
    assert answer.code == 0 and "already" in answer.out and "Nothing was changed" in answer.out
    # A folder's feeds need no index.
    indexed = call("--repo", folder, "--json", "init", "--index-feeds")
    assert indexed.code == 0 and indexed.json["feeds_indexed"] is False
    assert call("--repo", folder, "status", "--json").json == before
    assert is_error(call("--repo", folder, "init", "--durability", "full"), "relaxed", "full")
    answer = call("--repo", "hbase://nowhere/shop", "init", "--durability", "relaxed")
    assert is_error(answer, "is the store's own"), "before anything is opened there"


def test_init_stores_the_schema_of_a_module_and_adds_to_it_later(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from percola import Table\n"
        "items = Table('items'); items.column('price', float)\n"
        "ORDERS = Table('orders'); ORDERS.column('total', int)\n"
        "TABLES = [items]\n"
    )
    answer = run("--repo", "r", "--json", "init", "--schema", "shop:TABLES", cwd=tmp_path)
    assert answer.json == {
        "repository": "r",
        "created": True,
        "durability": "full",
        "tables": ["items"],
    }
    answer = run("--repo", "r", "init", "--schema", "shop:ORDERS", cwd=tmp_path)
    assert answer.code == 0 and "Added the table orders" in answer.out


@pytest.mark.parametrize(
    "spec",
    [
        *("shop", "title:str", "docs.title:text", "docs.t:str:hidden", "docs.t:weak:family"),
        *("a.b:c:d:e", "shop.p:decimal(99,2)", "shop.p:array<", "shop.p:a"),
    ],
)
def test_init_refuses_an_unreadable_column_and_creates_nothing(tmp_path: Path, spec: str) -> None:
    answer = call("--repo", tmp_path / "r", "init", "--column", spec)
    assert is_error(answer, spec, "declares no column: ", "TABLE.COLUMN:TYPE", "decimal(p,s)")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("decimal(39,2)", "its precision is a whole number from 1 to 38. Write TABLE.COLUMN:TYPE"),
        ("decimal(5,7)", "its scale is a whole number from 0 to 5. Write TABLE.COLUMN:TYPE"),
        ("map<json,str>", "The keys of a map cannot be json: use a scalar type. Write"),
    ],
)
def test_init_says_why_a_type_cannot_be(tmp_path: Path, kind: str, reason: str) -> None:
    answer = call("--repo", tmp_path / "r", "init", "--column", f"shop.p:{kind}")
    assert is_error(answer, kind, reason)


def test_init_refuses_what_is_no_place_for_a_repository(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert is_error(call("--repo", tmp_path / "file", "init"), "is a file")
    assert is_error(call("--repo", tmp_path / "full", "init"), "thesis.tex")
    assert is_error(call("--repo", "memory:", "init"), "memory")
    assert is_error(call("--repo", "hbase://host/x", "init"), "does not say where its oracle is")
    conflicting = ("init", "--schema", "a:B", "--column", "a.b")
    assert is_error(call("--repo", tmp_path / "r", *conflicting), "--schema", "--column")
    assert call("--repo", tmp_path / "r", "init", "--durability", "some").code == 2
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


# --- Which repository -------------------------------------------------------------------


def test_the_repository_is_named_before_or_after_the_command_or_in_the_environment(
    folder: Path, tmp_path: Path
) -> None:
    for answer in (
        run("status", "--json", PERCOLA_REPO=str(folder)),
        call("--repo", folder, "--json", "status"),
        call("status", "--repo", folder, "--json"),
        call("--repo", f"lmdb:{folder}", "status", "--json", PERCOLA_REPO=str(tmp_path / "other")),
        call("status", "--json", "--repo", folder, PERCOLA_REPO=str(tmp_path / "other")),
    ):
        assert answer.json["address"] == str(folder), answer
    answer = call("status")
    assert answer.code == 2 and "PERCOLA_REPO" in answer.err and answer.out == ""


def test_an_empty_name_is_not_taken_for_none(folder: Path) -> None:
    """As of --repo "$REPO" in a script: the command took the repository of PERCOLA_REPO."""
    for words in (("--repo", "", "status"), ("status", "--repo", "")):
        answer = call(*words, PERCOLA_REPO=str(folder))
        assert answer.code == 2 and "Say which repository" in answer.err and answer.out == ""


@pytest.mark.parametrize(
    "words",
    [
        *("status", "get a", "set a b c", "delete a b", "scan", "history a b", "locks", "check"),
        *("notifications", "failed", "failed retry --all", "worker m:n"),
    ],
)
def test_no_command_but_init_creates_a_repository(tmp_path: Path, words: str) -> None:
    assert is_error(call("--repo", tmp_path / "r", *words.split()), "no repository", "init")
    assert not (tmp_path / "r").exists()


def test_a_repository_of_another_version_is_one_clear_error(folder: Path) -> None:
    path = folder / "percola.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    for words in (("status",), ("init",), ("get", "a")):
        assert is_error(call("--repo", folder, *words), "format 99")


def test_an_error_in_json_is_a_document_too(folder: Path) -> None:
    answer = run("--repo", folder, "get", "a", "nonsense", "--json")
    assert is_error(answer, "nonsense")
    error = answer.json["error"]
    assert error["kind"] == "UnknownColumnError" and "nonsense" in error["message"]


def test_what_does_not_read_as_a_command_line_ends_with_2() -> None:
    for words in (("frobnicate",), ("get",), ("scan", "--limit", "many"), ("history", "row"), ()):
        answer = call("--repo", "r", *words)
        assert answer.code == 2 and "Usage" in answer.err + answer.out, words


@pytest.mark.parametrize(
    "words",
    [
        ("get", "--json"),
        ("scan", "--limit", "many", "--json"),
        ("--json", "failed", "retry"),
        ("frobnicate", "--json"),
    ],
)
def test_so_is_what_does_not_read_as_a_command_line(folder: Path, words: tuple[str, ...]) -> None:
    answer = call("--repo", folder, *words)
    assert answer.code == 2 and "Usage" in answer.err
    error = answer.json["error"]
    assert error["message"] and error["message"] in answer.err


def test_an_error_that_nobody_can_be_told_is_no_traceback(folder: Path) -> None:
    words = ("--repo", folder, "get", "a", "nonsense", "--json")
    with open("/dev/full", "wb") as full:
        answer = answer_of(command(*words), stdout=full)
    assert answer.code == 1 and "Traceback" not in answer.err
    reader, writer = os.pipe()
    os.close(reader)
    assert is_error(answer_of(command(*words), stdout=writer), "nonsense")
    os.close(writer)


# --- Endings ----------------------------------------------------------------------------


def fill(repo: Repository) -> None:
    """Store more than a pipe holds."""
    with repo.transaction() as t:
        for number in range(5000):
            t.set(contents, f"{number:05}", b"x" * 100)


def test_a_reader_that_goes_away_is_no_error(repo: Repository) -> None:
    fill(repo)
    for words in (("--json", "--limit", "0"), ("--limit", "0")):
        with running("--repo", repo.address, "scan", "docs", *words) as scan:
            assert scan.out.readline()
            scan.out.close()
            assert scan.process.wait(SECONDS) == 1
            assert scan.err.read() == ""


@pytest.mark.parametrize(
    "words", [("get", "a", "contents"), ("get", "a", "-t", "docs"), ("locks",)]
)
def test_a_reader_that_had_gone_is_no_error(repo: Repository, words: tuple[str, ...]) -> None:
    put(repo, contents, "a", b"short")
    reader, writer = os.pipe()
    os.close(reader)
    assert run("--repo", repo.address, *words, stdout=writer) == Answer(1, "", "")
    os.close(writer)


def test_ctrl_c_ends_with_130_and_no_traceback(repo: Repository) -> None:
    fill(repo)
    with running("--repo", repo.address, "scan", "docs", "--json") as scan:
        assert scan.out.readline(), "it is in the middle of writing more than a pipe holds"
        code, _, err = scan.end(signal.SIGINT)
    assert (code, err.strip()) == (130, "")


def test_colour_is_for_terminals_only(repo: Repository) -> None:
    put(repo, bal, "Bob", 10)
    words = ("--repo", repo.address, "history", "Bob", "bal")
    assert "\x1b" not in run(*words).out
    for more, coloured in (({"TERM": "xterm-256color"}, True), ({"NO_COLOR": "1"}, False)):
        shown = on_a_terminal(*words, **more)
        assert "Bob" in shown
        assert ("\x1b[3" in shown) is coloured


def test_help_names_every_command() -> None:
    answer = run("--help")
    for name in (
        "init", "get", "set", "delete", "scan", "history", "locks", "notifications", "failed",
        "status", "worker", "oracle", "gc", "check", "backup", "restore",
        "dev-cluster", "hbase-jars", "holds",
    ):  # fmt: skip
        assert f"\n  {name} " in answer.out
    assert "..." not in answer.out.split("Commands:")[1], "a sentence was cut"


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("fai", ["failed"]),
        ("failed re", ["retry"]),
        ("failed --repo R re", ["retry"]),
        ("observers pa", ["pause"]),
        ("holds re", ["release"]),
        ("failed --obs", ["--observer"]),  # Of its command `list`.
        ("failed --observer index --trace", ["--traceback"]),
        ("--repo R failed retry --al", ["--all"]),
        ("init --durability re", ["relaxed"]),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, completed: list[str]) -> None:
    *before, incomplete = words.split()
    shell = ShellComplete(cli, {}, "percola", "_PERCOLA_COMPLETE")
    assert [one.value for one in shell.get_completions(before, incomplete)] == completed


def test_a_shell_completes_folders_and_files_by_what_it_finds(tmp_path: Path) -> None:
    told = {"--repo": "dir,sh", "backup": "file,sh", "restore": "file,sh", "copy": "dir,sh"}
    for word, found in told.items():
        variables = {"COMP_WORDS": f"percola {word} sh", "COMP_CWORD": "2"}
        answer = answer_of(command(), _PERCOLA_COMPLETE="bash_complete", **variables)
        assert (answer.code, answer.out, answer.err) == (0, f"{found}\n", "")
