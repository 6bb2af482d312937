"""`init`, `get`, `set`, `scan` and `history` of decimals, dates, times and nested values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from commands import call, is_error

import percola
from percola import DATE, INT64, JSON, Repository, Table, decimal_of, map_of
from percola.cells import Kind, Op, encode_write
from percola.store.base import Put, RowMutation

days = Table("days", rows=DATE)
sales = days.column("sales", decimal_of(12, 2))
hours = days.column("hours", map_of(DATE, decimal_of(4, 1)))


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", schema=[days]) as opened:
        yield opened


def test_columns_of_every_type_are_declared_by_name(tmp_path: Path) -> None:
    where = ("--repo", tmp_path / "r")
    specs = (
        *("price:decimal(12,2):observed", "tags:array<str>", "raw", "again:weak", "meta:json"),
        *("parts:struct<name:str,made:date>:family", "body:bytes:observed", "shown:bool"),
    )
    columns = [word for spec in specs for word in ("--column", f"shop.{spec}")]
    assert call(*where, "init", *columns, "--column", "other.n:int:family").code == 0
    found = [
        (table["name"], one["name"], one["type"], one["observed"])
        for table in call(*where, "status", "--json").json["tables"]
        for one in table["columns"]
    ]
    assert found == [
        ("shop", "price", "decimal(12,2)", True),
        ("shop", "tags", "array<str>", False),
        ("shop", "raw", "bytes", False),
        ("shop", "again", "weak", True),
        ("shop", "meta", "json", False),
        ("shop", "parts:…", "struct<name:str,made:date>", False),
        ("shop", "body", "bytes", True),
        ("shop", "shown", "bool", False),
        ("other", "n:…", "int", False),
    ]
    assert call(*where, "set", "a", "price", "1234567890.1").code == 0
    assert call(*where, "get", "a", "price").out == "1234567890.10\n"
    assert call(*where, "set", "a", "parts:x", '{"name": "p", "made": "2010-10-04"}').code == 0
    assert call(*where, "get", "a", "parts:x").out == '{"name": "p", "made": "2010-10-04"}\n'
    assert is_error(call(*where, "set", "a", "price", "1.234"), "shop.price", "2 digits after")
    assert is_error(call(*where, "set", "a", "tags", "x"), "JSON of the type array<str>")


def test_json_as_deep_as_a_column_takes_is_shown(tmp_path: Path) -> None:
    nested = Table("nested")
    deep = nested.column("deep", JSON)
    values: dict[str, object] = {"a": [], "b": {}}
    for _ in range(499):
        values = {"a": [values["a"]], "b": {"in": values["b"]}}
    with percola.open(tmp_path / "r", [nested]) as repo, repo.transaction() as t:
        for row, value in values.items():
            t.set(deep, row, value)
    where = ("--repo", tmp_path / "r")
    for row, value in values.items():
        assert call(*where, "get", row, "deep").json == value
        assert call(*where, "get", row, "deep", "--json").json["value"] == value
    assert [one["columns"]["deep"] for one in call(*where, "scan", "nested", "--json").lines] == [
        *values.values()
    ]
    assert "(1,000 bytes)" in call(*where, "history", "a", "deep").out


def test_a_row_that_is_a_date_is_written_and_shown_as_one(repo: Repository) -> None:
    where = ("--repo", repo.address)
    for day, value in (("2010-10-04", "12.5"), ("1969-12-31", "-1"), ("2010-10-05", "0.01")):
        done = call(*where, "set", day, "sales", value)
        assert done.code == 0 and f"Set days['{day}'].sales at" in done.out
    assert call(*where, "set", "2010-10-04", "hours", '[["2010-10-04", 7.5]]').code == 0
    assert call(*where, "get", "2010-10-04", "sales", "--json").json == {
        "table": "days",
        "row": "2010-10-04",
        "column": "sales",
        "value": "12.50",
        "commit_ts": 1,
        "snapshot_ts": 4,
    }
    assert call(*where, "scan", "days", "--json").lines == [
        {"row": "1969-12-31", "columns": {"sales": "-1.00"}},
        {"row": "2010-10-04", "columns": {"hours": [["2010-10-04", "7.5"]], "sales": "12.50"}},
        {"row": "2010-10-05", "columns": {"sales": "0.01"}},
    ]
    found = call(*where, "scan", "days", "--start", "2010-10-05", "--json").lines
    assert [one["row"] for one in found] == ["2010-10-05"]
    text = call(*where, "scan", "days", "--end", "1970-01-01").out
    assert text.splitlines()[0] == "1969-12-31" and "-1.00" in text
    assert "days['2010-10-04'].sales" in call(*where, "history", "2010-10-04", "sales").out
    assert "rows of date" in call(*where, "status").out


@pytest.mark.parametrize("words", ["get", "delete", "history", "why"])
def test_every_command_for_a_cell_takes_a_negative_row(tmp_path: Path, words: str) -> None:
    days = Table("days", rows=INT64)
    seen = days.column("seen", int)
    with percola.open(tmp_path / "r", [days]) as repo, repo.transaction() as t:
        t.set(seen, -5, 7)
    answer = call("--repo", tmp_path / "r", words, "-5", "seen", "--json")
    assert answer.code == 0 and (words == "get") == (answer.json.get("value") == 7), answer


def test_set_takes_negative_numbers_as_row_and_value(tmp_path: Path) -> None:
    """The row was taken for the value: "The table 'temps' has no column '7'"."""
    temps = Table("temps", rows=INT64)
    noted, least = temps.column("noted", int), temps.column("least", float)
    with percola.open(tmp_path / "repo", [temps]) as repo:
        where = ("--repo", repo.address)
        assert call(*where, "set", "-5", "noted", "7").code == 0
        assert call(*where, "set", "--json", "-6", "noted", "-7", "-t", "temps").code == 0
        (tmp_path / "8").write_text("8")
        assert call(*where, "set", "--file", tmp_path / "8", "-8", "noted").code == 0
        rows = [(row.key, row[noted]) for row in repo.snapshot().scan(temps)]
        assert rows == [(-8, 8), (-6, -7), (-5, 7)]
        assert call(*where, "set", "-5", "least", "-Infinity").code == 0
        assert repo.snapshot().get(least, -5) == -math.inf
        answer = call(*where, "set", "-5", "noted", "7", "-x")
        assert answer.code == 2 and "No such option" in answer.err


def test_a_row_that_is_no_date_is_refused_in_a_sentence(repo: Repository) -> None:
    where = ("--repo", repo.address)
    for words in (("get", "x", "sales"), ("set", "x", "sales", "1"), ("scan", "--start", "x")):
        assert is_error(call(*where, *words), "Rows of the table 'days' are date", "2010-10-04")
    for words in (("scan",), ("empty", "days")):  # Of which only one takes a start.
        answer = call(*where, *words, "--prefix", "2010-10-04")
        assert is_error(
            answer, "a scan chooses some by a start and an end, and nothing by a prefix"
        )
    gone = call(*where, "get", "2010-10-04", "sales")
    assert is_error(gone, "days['2010-10-04'].sales has no value")


def test_a_row_of_another_type_is_a_finding_of_the_check(repo: Repository) -> None:
    ts = repo.context.oracle.timestamp()
    record = encode_write(Op.PUT, ts - 1, sales.encode(Decimal(1)))
    put = Put(Kind.WRITE, sales.key, ts, record)
    repo.context.store.mutate([RowMutation("days", b"2010-10-04", (), (put,))])
    answer = call("--repo", repo.address, "check", "--json")
    assert answer.code == 1
    [finding] = answer.json["findings"]
    assert finding["rule"] == "undecodable-row" and "is not a key of date" in finding["message"]
