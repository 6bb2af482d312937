"""A table whose feed is followed by Spark: streams of it, a sink that checks, what must come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

import percola
from percola import Repository, Table, feed

docs = Table("docs", feed=True)
title = docs.column("title", str)
size = docs.column("size", int)
links = docs.family("link", str)
plain = Table("plain")
plain.column("title", str)
odd = Table("odd", rows=bytes, feed=True)
odd_changed = odd.column("changed", str)
odd_size = odd.column("size", float)
TABLES: list[Table[Any]] = [docs, plain, odd]

Seen = list[tuple[str, int, tuple[str, ...], dict[str, Any]]]


# --- A checked sink ---------------------------------------------------------------------


class Sink:
    """Keeps each batch in a file of its own. One that comes again must be the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.fails_at: int | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        rows = [row.asDict() for row in batch.withColumn("part", spark_partition_id()).collect()]
        text = json.dumps(rows)
        path = self.folder / f"{number:06}.json"
        if path.exists():
            before = json.loads(path.read_text())
            assert _without_part(before) == _without_part(rows), f"batch {number} is another one"
        part = path.with_suffix(".part")
        part.write_text(text)
        part.rename(path)
        if number == self.fails_at:
            raise RuntimeError("the sink fails after it has written")

    def batches(self) -> list[list[dict[str, Any]]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def seen(self) -> Seen:
        return [
            (
                row["row"],
                row["commit_ts"],
                tuple(row["changed"]),
                {"title": row["title"], "size": row["size"], "link": row["link"]},
            )
            for batch in self.batches()
            for row in sorted(batch, key=lambda row: (row["commit_ts"], row["row"]))
        ]


def _without_part(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted((row["commit_ts"], row["row"], row["changed"], row["size"]) for row in rows)


def expected(repo: Repository, after: int, first: int | None = None) -> Seen:
    """What a stream has to give: the rows at `first`, if it begins there, and every change."""
    found: Seen = []
    if first is not None:
        rows = feed.read_rows(repo.context.store, "docs", first, wanted=None)
        for one in rows:
            row = percola.Row(docs, one.row.decode(), one.values)
            names = tuple(name.decode() for name in one.changed)
            found.append((row.key, one.commit_ts, names, _image(row)))
        found.sort(key=lambda one: (one[1], one[0]))
    for change in feed.changes(repo, docs, after if first is None else first):
        found.append((change.row, change.commit_ts, change.changed, _image(change.image)))
    return found


def _image(row: percola.Row[str]) -> dict[str, Any]:
    return {"title": row.get(title), "size": row.get(size), "link": row.family(links) or None}


def put(repo: Repository, row: str, number: int, *, two_phase: bool = False) -> int:
    with repo.transaction(two_phase=two_phase) as t:
        t.set(size, row, number)
        t.set(title, row, f"title {number}")
    assert t.commit_ts is not None
    return t.commit_ts


def stream(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    options = {"table": "docs", "feedColumns": "true", **options}
    return spark.readStream.format("percola").options(**options).load(str(folder))


class Streams:
    """Runs streams of one repository into sinks, until all that is there has been read."""

    def __init__(self, spark: SparkSession, folder: Path, tmp_path: Path) -> None:
        self.spark, self.folder, self.tmp_path = spark, folder, tmp_path
        self.sink = Sink(tmp_path / "sink")

    def start(self, *, name: str = "checkpoint", now: bool = True, **options: Any) -> Any:
        frame = stream(self.spark, self.folder, **options)
        writer = frame.writeStream.foreachBatch(self.sink)
        writer = writer.option("checkpointLocation", str(self.tmp_path / name))
        return (writer.trigger(availableNow=True) if now else writer).start()

    def run(self, **options: Any) -> Seen:
        query = self.start(**options)
        assert query.awaitTermination(100), "the stream does not come to an end"
        return self.sink.seen()

    def offset(self, number: int = -1) -> dict[str, Any]:
        """The offset of one of the batches in the stream's checkpoint, of the last one."""
        folder = self.tmp_path / "checkpoint" / "offsets"
        logs = sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name))
        offset: dict[str, Any] = json.loads(logs[number].read_text().splitlines()[-1])
        return offset


# --- Fixtures ---------------------------------------------------------------------------


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    """The repository, open."""
    with percola.open(folder, TABLES, durability="relaxed") as opened:
        yield opened
