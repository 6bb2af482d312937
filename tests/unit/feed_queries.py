"""What the tests of the driver's side of `spark.readStream` share: tables, and a query's parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import percola
from percola import Repository, Table
from percola.spark.options import Options
from percola.spark.stream.source import FeedReader, feed_schema, stream_reader

docs = Table("docs", feed=True)
size = docs.column("size", int)
texts = Table("texts", feed=True)
title = texts.column("title", str)
other = Table("other")
other_size = other.column("size", int)
Offset = dict[str, Any]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path, [docs, texts, other], durability="relaxed") as opened:
        yield opened


def put(repo: Repository, row: str, number: int, column: Any = size) -> int:
    with repo.transaction() as t:
        t.set(column, row, number)
    assert t.commit_ts is not None
    return t.commit_ts


def through_json(offset: Offset) -> Offset:
    """An offset as Spark stores it."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def rows_of(reader: FeedReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    return [
        (row["row"], row["size"])
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


class FeedQuery:
    """What Spark does with a reader: each run has a new one."""

    def __init__(self, repo: Repository, **options: str) -> None:
        given = {"path": repo.address, "table": "docs", "feedColumns": "true", **options}
        self.options = Options(given)
        self.schema = feed_schema(self.options)

    def new_reader(self) -> Any:
        return stream_reader(self.options, self.schema)
