"""The options of `format("percola")`: what they mean, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import percola
from percola import ConflictingOptionsError, NotARepositoryError, Table, UnknownTableError
from percola.spark.options import OPTIONS, READ, READ_STREAM, WRITE, WRITE_STREAM, Options

HERE = {"path": "./repo", "table": "docs"}


def test_names_are_case_insensitive_and_what_is_not_given_has_its_default() -> None:
    options = Options({"PATH": "./repo", "Table": "docs", "onlock": "FAIL", "PUSHFILTERS": "True"})
    assert (options["onLock"], options.flag("pushFilters")) == ("fail", True)
    assert (options["snapshot"], options.row_column, options.text("columns")) == (
        "latest", "row", None,
    )  # fmt: skip
    assert options.seconds("lockWaitSeconds") == 60
    assert options.seconds("holdSeconds", 5.0) == 5
    assert Options({**HERE, "holdSeconds": "0"}).seconds("holdSeconds", 5.0) == 0
    assert Options({**HERE, "snapshot": "17"})["snapshot"] == 17
    assert "onLock" in options and "snapshot" not in options


def test_a_folder_is_the_same_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = {Options({**HERE, "path": p}).address for p in ("repo", "./repo", "lmdb:repo")}
    assert addresses == {str(tmp_path / "repo")}
    kept = pickle.loads(pickle.dumps(Options(HERE)))
    monkeypatch.chdir("/")
    assert (kept.address, kept.table_name) == (str(tmp_path / "repo"), "docs")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "r"}, "No table is named"),
        ({"table": "t"}, "No repository is named"),
        ({"owner": "root"}, "would enter the table in Spark's own catalog. SQL finds"),
        ({**HERE, "option.table": "t"}, "would enter the table in Spark's own catalog. SQL"),
        ({**HERE, "path": ""}, "The option path is empty: ''."),
        ({**HERE, "path": "memory:"}, "A memory repository lives in one process"),
        ({**HERE, "atomicty": "row"}, "'atomicty' is not known. Did you mean atomicity?"),
        ({**HERE, "paths": '["./a", "./b"]'}, "reads one repository: load each path by itself"),
        ({**HERE, "zzz": "1"}, r"'zzz' is not known. Known are: path, table, rowColumn,"),
        ({**HERE, "versionAsOf": "3"}, "'versionAsOf' is not known. Did you mean snapshot?"),
        ({**HERE, "atomicity": "table"}, "atomicity is none of row, chunk, job: 'table'."),
        ({**HERE, "pushFilters": "yes"}, "is neither 'true' nor 'false': 'yes'."),
        ({**HERE, "chunkRows": "0"}, "is not a whole number from 1 up: '0'."),
        ({**HERE, "chunkRows": "many"}, "is not a whole number from 1 up: 'many'."),
        ({**HERE, "holdSeconds": "-1"}, "is not a number of seconds from 0 up: '-1'."),
        ({**HERE, "holdSeconds": "nan"}, "is not a number of seconds from 0 up: 'nan'."),
        ({**HERE, "snapshot": "-5"}, "neither a timestamp of Percola nor latest: '-5'."),
        ({**HERE, "timestampAsOf": "soon"}, "is not a time such as 2026-11-23T10:00: 'soon'."),
        ({**HERE, "startingTimestamp": "soon"}, "nor latest or earliest: 'soon'."),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConflictingOptionsError, match=message):
        Options(given)


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(NotARepositoryError, match="names no store"):
        Options({**HERE, "path": "s3://bucket/repo"})


@pytest.mark.parametrize("role", [READ, WRITE, READ_STREAM, WRITE_STREAM])
def test_an_option_for_something_else_is_refused(role: str) -> None:
    examples = {
        "path": "r", "table": "t", "snapshot": "1", "onLock": "wait", "partitions": "1",
        "pushFilters": "true", "holdSeconds": "1", "lockWaitSeconds": "1", "feedColumns": "true",
        "beforeImages": "true", "maxBytesPerTrigger": "1", "envelope": "debezium",
        "envelopeSchemas": "true", "envelopeDecimals": "string",
        "startingTimestamp": "1", "maxRowsPerTrigger": "1", "atomicity": "row", "chunkRows": "1",
        "chunkBytes": "1",
        "nulls": "ignore", "ttlSeconds": "1", "describe": "table", "allRows": "true",
        "notify": "false", "timestampAsOf": "2026-11-23T10:00", "changesAt": "1",
    }  # fmt: skip
    refused = 0
    for option in OPTIONS:
        options = Options({**HERE, option.name: examples.get(option.name, "x")})
        if role in option.roles:
            options.check_role(role)
        else:
            refused += 1
            with pytest.raises(ConflictingOptionsError, match=f"{option.name} is for "):
                options.check_role(role)
    assert refused


def test_what_spark_adds_is_left_alone() -> None:
    options = Options({**HERE, "checkpointLocation": "/c", "queryName": "q"})
    options.check_role(WRITE_STREAM)


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    options = Options({"path": str(tmp_path / "repo"), "table": "dogs"})
    with pytest.raises(NotARepositoryError, match="There is no repository"):
        options.open()
    percola.open(tmp_path / "repo", [Table("docs")]).close()
    with options.open() as repository, pytest.raises(UnknownTableError, match="It has: docs"):
        options.table(repository)
