"""`get`, `set`, `delete` and `scan`: which cell is meant, and which value."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import (
    NOT_TEXT,
    SECONDS,
    bal,
    blob,
    call,
    command,
    contents,
    docs,
    environment,
    folder,
    is_error,
    member,
    meta,
    on_a_terminal,
    put,
    repo,
    run,
    score,
    shown,
    size,
    title,
)
from rich.console import Console

import percola
from percola import Repository, Table
from percola.catalog import RUNS
from percola.cells import DeadLetter, Kind, encode_dead_letter, failed_column
from percola.cli import display
from percola.coordination.local.coordination import LocalCoordination
from percola.store.base import Put, RowMutation

__all__ = ["folder", "repo"]


# --- Addresses --------------------------------------------------------------------------


def test_the_table_follows_from_the_column_where_one_table_has_it(repo: Repository) -> None:
    put(repo, bal, "Bob", 10)
    put(repo, member["x"], "a", 3)
    where = ("--repo", repo.address)
    for words in (("bal",), ("bank.bal",), ("bal", "-t", "bank"), ("bank.bal", "-t", "bank")):
        assert call(*where, "get", "Bob", *words).out == "10\n"
    for name in ("member:x", "docs.member:x"):
        assert call(*where, "get", "a", name).out == "3\n"


def test_an_address_that_could_mean_several_or_none_is_refused(repo: Repository) -> None:
    where = ("--repo", repo.address)
    assert is_error(call(*where, "get", "a", "title"), "docs.title", "bank.title")
    assert is_error(call(*where, "get", "a", "nonsense"), "nonsense", "bank has bal, title")
    assert is_error(call(*where, "get", "a", "nonsense", "-t", "docs"), "contents, title")
    assert is_error(call(*where, "get", "a", "bal", "-t", "docs"), "docs", "bal")
    assert is_error(call(*where, "get", "a", "bal", "-t", "nowhere"), "nowhere", "bank, docs, raw")
    assert is_error(call(*where, "get", "a"), "several tables", "--table")
    assert is_error(call(*where, "get", "", "bal"), "not empty")
    assert is_error(call(*where, "get", "x" * 1000, "bal"), "1000 bytes")
    assert is_error(call(*where, "get", "a", "recluster"), "weak")
    assert is_error(call(*where, "set", "a", "recluster", "x"), "weak")


def test_the_records_of_runs_are_not_taken_for_a_table_of_the_users(tmp_path: Path) -> None:
    jobs = Table("jobs")
    state = jobs.column("run", str)
    with percola.open(tmp_path / "r", [jobs, RUNS]) as repo:
        put(repo, state, "a", "done")
        where = ("--repo", repo.address)
        assert call(*where, "get", "a", "run").out == "done\n"
        assert is_error(call(*where, "get", "a", "other"), "'jobs' has no column", "It has: run.")
        assert is_error(call(*where, "get", "a", "percola_runs.run"), "percola_runs['a'].run has")


def test_a_name_with_dots_that_is_of_two_tables_is_refused(tmp_path: Path) -> None:
    """Or a write would go to one of them in silence."""
    one, two = Table("a"), Table("a.b")
    one.column("b.c", str)
    two.column("c", str)
    with percola.open(tmp_path / "r", [one, two]) as repo:
        where = ("--repo", repo.address)
        said = call(*where, "set", "row", "a.b.c", "x")
        assert is_error(said, "b.c --table a or c --table a.b")
        assert call(*where, "set", "row", "c", "x", "--table", "a.b").code == 0
        assert [row.key for row in repo.snapshot().scan(two)] == ["row"]


def test_a_repository_without_tables_says_how_to_get_some(tmp_path: Path) -> None:
    percola.create(tmp_path / "r")
    for words in (("scan",), ("get", "a"), ("set", "a", "b", "c")):
        assert is_error(call("--repo", tmp_path / "r", *words), "no tables yet", "--column")
    assert "no tables yet" in call("--repo", tmp_path / "r", "status").out


# --- get, set, delete -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        (title, "two words", "two words"),
        (title, "", ""),
        (title, "-", None),
        (size, "12", 12),
        (size, "-12", -12),
        (score, "-.5", -0.5),
        (score, "1e3", 1000.0),
        (shown, "true", True),
        (shown, "False", False),
        (meta, '{"a": [1, null]}', {"a": [1, None]}),
        (meta, "null", None),
        (member["x:y"], "7", 7),
        (contents, "bytes as text: ü", "bytes as text: ü".encode()),
        (contents, "base64:/wAB", NOT_TEXT),
    ],
)
def test_set_reads_a_value_by_its_columns_type(
    repo: Repository, column: Any, text: str, value: Any
) -> None:
    if text == "-":
        value = "from standard input\n"
    where = ("--repo", repo.address)
    answer = call(*where, "set", "a", repr(column), text, "--json", stdin=b"from standard input\n")
    assert answer.code == 0, answer
    snapshot = repo.snapshot()
    assert snapshot.get_row(docs, "a")[column] == value
    assert answer.json["commit_ts"] == snapshot.version(column, "a")
    shown_value = value
    if isinstance(value, bytes):
        shown_value = {"base64": "/wAB"} if value == NOT_TEXT else value.decode()
    assert call(*where, "get", "a", repr(column), "--json").json["value"] == shown_value


@pytest.mark.parametrize(
    ("column", "text"),
    [("size", "twelve"), ("size", "1.5"), ("score", "x"), ("shown", "yes"), ("meta", "{"),
     ("contents", "base64:%"), ("member:x", "")],
)  # fmt: skip
def test_set_refuses_a_value_of_another_type(repo: Repository, column: str, text: str) -> None:
    answer = call("--repo", repo.address, "set", "a", column, text)
    assert is_error(answer, text)
    assert not repo.snapshot().get_row(docs, "a")


def test_set_takes_a_file_or_standard_input_byte_for_byte(repo: Repository, tmp_path: Path) -> None:
    body = NOT_TEXT * 10_000 + b"\n"
    (tmp_path / "body").write_bytes(body)
    where = ("--repo", repo.address)
    assert run(*where, "set", "a", "contents", "--file", tmp_path / "body").code == 0
    assert run(*where, "set", "b", "contents", "-", stdin=body).code == 0
    for row in ("a", "b"):
        assert repo.snapshot().get(contents, row) == body
        got = subprocess.run(
            command(*where, "get", row, "contents"), env=environment(), capture_output=True,
            timeout=SECONDS, check=True,
        )  # fmt: skip
        assert got.stdout == body
    assert is_error(run(*where, "set", "a", "docs.title", "-", stdin=NOT_TEXT), "UTF-8")
    assert call(*where, "set", "a", "contents").code == 2
    assert call(*where, "set", "a", "contents", "x", "--file", tmp_path / "body").code == 2
    assert call(*where, "set", "a", "contents", "--file", tmp_path / "none").code == 2


def test_rows_that_are_bytes_or_begin_with_a_dash_can_be_named(repo: Repository) -> None:
    where = ("--repo", repo.address)
    assert call(*where, "set", "base64:/wAB", "blob", "x").code == 0
    assert repo.snapshot().get(blob, NOT_TEXT) == b"x"
    answer = call(*where, "get", "base64:/wAB", "blob", "--json").json
    assert answer["row"] == {"base64": "/wAB"} and answer["value"] == "x"
    assert call(*where, "set", "--", "-row", "bal", "-3").code == 0
    assert repo.snapshot().get(bal, "-row") == -3
    assert is_error(call(*where, "get", "base64:%", "blob"), "base64")


def test_get_reads_the_past_and_refuses_the_future(repo: Repository) -> None:
    first = put(repo, size, "a", 1)
    second = put(repo, size, "a", 2)
    where = ("--repo", repo.address)
    assert call(*where, "get", "a", "size", "--at", first).out == "1\n"
    assert call(*where, "get", "a", "size", "--at", second).out == "2\n"
    assert call(*where, "get", "a", "-t", "docs", "--at", first, "--json").json == {
        "table": "docs",
        "snapshot_ts": first,
        "row": "a",
        "columns": {"size": 1},
    }
    for at in (second + 1000, -1):
        assert is_error(call(*where, "get", "a", "size", "--at", at), str(at))


def test_get_of_nothing_says_what_is_missing(repo: Repository) -> None:
    put(repo, title, "a", "T")
    where = ("--repo", repo.address)
    assert is_error(call(*where, "get", "b", "docs.title"), "docs['b'].title", "no value")
    assert is_error(call(*where, "get", "b", "meta"), "no value")
    assert is_error(call(*where, "get", "b", "-t", "docs"), "no row 'b'")
    answer = call(*where, "delete", "a", "docs.title", "--json").json
    assert answer["existed"] is True
    assert is_error(call(*where, "get", "a", "docs.title"), f"was deleted at {answer['commit_ts']}")
    assert "had no value" in call(*where, "delete", "a", "docs.title").out


def test_get_of_a_row_shows_each_column_on_a_line_that_fits(repo: Repository) -> None:
    with repo.transaction() as t:
        t.set(title, "a", "with [bold]markup[/bold]\nand \x1b[31mcolour")
        t.set(contents, "a", b"long " * 1000)
        t.set(member["x"], "a", 3)
    answer = run("--repo", repo.address, "get", "a", "-t", "docs")
    assert answer.out.splitlines()[0] == "a"
    assert "[bold]markup[/bold]\\nand \\x1b[31mcolour" in answer.out
    assert "(5,000 bytes)" in answer.out and "\x1b" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


# --- scan -------------------------------------------------------------------------------


def test_json_has_no_control_characters_of_values_and_the_same_values(repo: Repository) -> None:
    """Also none of those above 127, by which some terminals are controlled."""
    hostile = "\x9b2J\x7f\u202e\u2028 é 語 \U0001f600"
    repo.run(lambda t: t.set(title, "a", hostile))
    for words in (["get", "a", "docs.title"], ["scan", "docs"], ["history", "a", "docs.title"]):
        answer = run("--repo", repo.address, *words, "--json", PYTHONIOENCODING="utf-8")
        assert answer.out.rstrip("\n").isprintable() and "é 語 \U0001f600" in answer.out
        assert hostile in json.dumps(answer.json, ensure_ascii=False)


def test_scan_prints_a_json_document_a_row(repo: Repository) -> None:
    with repo.transaction() as t:
        for row in ("a", "b/1", "b/2", "c"):
            t.set(title, row, row.upper())
        t.set(contents, "c", NOT_TEXT)
        t.set(member["x"], "c", 3)
    then = repo.snapshot().start_ts
    put(repo, title, "d", "later")

    def rows(*words: object) -> list[str]:
        answer = call("--repo", repo.address, "scan", *words, "--json")
        return [line["row"] for line in answer.lines]

    assert rows("docs") == rows("-t", "docs") == ["a", "b/1", "b/2", "c", "d"]
    assert rows("docs", "--at", then) == ["a", "b/1", "b/2", "c"]
    assert rows("docs", "--prefix", "b/") == ["b/1", "b/2"]
    assert rows("docs", "--start", "b/2", "--end", "d") == ["b/2", "c"]
    assert rows("docs", "--start", "z") == rows("docs", "--start", "c", "--end", "a") == []
    assert rows("docs", "--limit", 2) == ["a", "b/1"]
    for column in ("member", "member:", "docs.member", "member:x", "contents"):
        assert rows("docs", "--column", column) == ["c"]
    assert call("--repo", repo.address, "scan", "docs", "--start", "c", "--json").lines[0] == {
        "row": "c",
        "columns": {"contents": {"base64": "/wAB"}, "member:x": 3, "title": "C"},
    }


def test_scan_tells_people_when_there_is_more(repo: Repository) -> None:
    with repo.transaction() as t:
        for number in range(120):
            t.set(bal, f"{number:03}", number)
    where = ("--repo", repo.address)
    out = call(*where, "scan", "bank").out
    assert "099" in out and "first 100 rows" in out and "100\n" not in out
    assert "119" in call(*where, "scan", "bank", "--limit", 0).out
    assert "first 1 row;" in call(*where, "scan", "bank", "--limit", 1).out
    assert "first" not in call(*where, "scan", "bank", "--limit", 120).out
    assert len(call(*where, "scan", "bank", "--json").lines) == 120
    assert "no such rows" in call(*where, "scan", "docs").out


def test_scan_takes_any_number_of_rows(repo: Repository) -> None:
    put(repo, title, "a", "A")
    for limit in (0, 1, 10**30):
        answer = call("--repo", repo.address, "scan", "docs", "--limit", limit)
        assert (answer.code, answer.out.splitlines()[0]) == (0, "a")


@pytest.mark.parametrize(
    ("verb", "line"), [("scan docs", "  size   1"), ("failed", "  ValueError: unfit")]
)
def test_what_may_be_millions_of_lines_is_formatted_for_a_terminal_alone(
    folder: Path, repo: Repository, monkeypatch: pytest.MonkeyPatch, verb: str, line: str
) -> None:
    """A million rows into a file would take ten minutes of rich's, dead letters hours."""
    put(repo, title, "a", "x" * 100)
    put(repo, size, "a", 1)
    letter = DeadLetter(
        "index", "contents", 5, 0, "ValueError: unfit", "Traceback\nValueError: unfit"
    )
    failed = Put(Kind.FAILED, failed_column("index", b"contents"), 1, encode_dead_letter(letter))
    repo.context.store.mutate([RowMutation("docs", b"a", (), [failed])])
    words = ("--repo", folder, *verb.split())
    shown = on_a_terminal(*words, TERM="dumb")
    printed: list[object] = []
    monkeypatch.setattr(display, "say", printed.append)
    monkeypatch.setattr(Console, "print", lambda console, *what, **how: printed.append(what))
    lines = call(*words).out.splitlines()
    assert line in lines and lines == shown.splitlines()[: len(lines)]
    assert all(isinstance(one, str) for one in printed), "but for the sentence at the end"


def test_scan_refuses_what_contradicts_itself(repo: Repository) -> None:
    where = ("--repo", repo.address)
    assert is_error(call(*where, "scan", "docs", "--prefix", "a", "--start", "b"), "prefix")
    assert is_error(call(*where, "scan", "docs", "-t", "bank"), "docs", "bank")
    assert is_error(call(*where, "scan"), "several tables")
    assert is_error(call(*where, "scan", "nowhere"), "nowhere")
    assert is_error(call(*where, "scan", "docs", "--column", "bal"), "bal")
    assert is_error(call(*where, "scan", "docs", "--column", "recluster"), "weak")
    assert call(*where, "scan", "docs", "--limit", -1).code == 2


# --- empty ------------------------------------------------------------------------------


def test_empty_says_whether_a_worker_observes_what_it_deletes(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--repo", repo.address, "empty", "docs", "--yes", "--column", "contents")
    for column, told in (
        ("docs.contents", "a worker will look"),
        ("bank.bal", "no worker observes it now, so start one"),
    ):
        put(repo, contents, "a", b"x")
        live = [{"token": "1-x", "pid": 1, "observers": {column: ["measure"]}}]
        monkeypatch.setattr(LocalCoordination, "processes", lambda coordination, live=live: live)
        assert call(*words).out.endswith(f"Observers are to see that: {told}.\n")


def test_empty_asks_before_it_deletes(folder: Path, repo: Repository) -> None:
    put(repo, size, "a", 1)
    put(repo, contents, "b", b"x")
    words = ("--repo", folder, "empty", "docs")
    refused = run(*words)
    assert refused.code == 2 and refused.out == "", "there is no terminal to ask"
    assert "Delete 2 cells in 2 rows of docs" in refused.err and "--yes" in refused.err
    answer = call(*words, "--dry-run", "--json")
    assert answer.json == {"table": "docs", "rows": 2, "cells": 2, "dry_run": True}
    for said, code in ((b"n\n", 1), (b"\n", 1), (b"y\n", 0)):
        assert len(list(repo.snapshot().scan(docs))) == 2
        primary, terminal = pty.openpty()
        os.write(primary, said)
        line = command(*words, "--json")
        asked = subprocess.run(line, stdin=terminal, capture_output=True, timeout=SECONDS)
        os.close(terminal)
        os.close(primary)
        assert asked.returncode == code and b"Delete 2 cells in 2 rows of docs in" in asked.stderr
        assert json.loads(asked.stdout), "nothing but a document"
    assert list(repo.snapshot().scan(docs)) == []
    put(repo, size, "a", 1)
    put(repo, contents, "b", b"x")
    told = "Observers are to see that: no worker is running, so start one."
    assert call(*words, "--yes").out == f"Deleted 2 cells in 2 rows of docs. {told}\n"
    assert list(repo.snapshot().scan(docs)) == []


def test_empty_deletes_no_more_than_it_is_told(folder: Path, repo: Repository) -> None:
    for row in ("a1", "a2", "b1"):
        put(repo, size, row, 1)
        put(repo, member["x"], row, 2)
    words = ("--repo", folder, "empty", "docs", "--yes")
    # As of variables that are not set: not all rows, not all columns.
    assert is_error(call(*words, "--prefix", ""), "A prefix is empty", "for all rows")
    assert is_error(call(*words, "--column", ""), "has no column")
    assert is_error(call("--repo", folder, "empty", "", "--yes"), "no table")
    assert call("--repo", folder, "empty", "--yes").code == 2
    answer = call(*words, "--column", "member", "--prefix", "a", "--no-notify")
    assert answer.out == "Deleted 2 cells in 2 rows of docs.\n"
    with repo.snapshot() as now:
        assert {row.key: len(list(row.items())) for row in now.scan(docs)} == {
            "a1": 1,
            "a2": 1,
            "b1": 2,
        }
