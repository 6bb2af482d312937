"""`spark.readStream` on a real Spark: every change once, in order, from wherever it is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from feed_streams import (
    TABLES,
    Sink,
    Streams,
    docs,
    expected,
    links,
    odd_changed,
    odd_size,
    put,
    repo,
    size,
    stream,
    title,
)
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from stores import Gate, SeamStore, in_thread, put_all, stop_at

import percola
from percola import Repository, feed

__all__ = ["repo"]

Wait = Callable[..., object]


@pytest.fixture
def streams(spark: SparkSession, repo: Repository, folder: Path, tmp_path: Path) -> Streams:
    return Streams(spark, folder, tmp_path)


def rows_of(streams: Streams, schema: str = "", **options: str) -> list[Any]:
    """All that a stream reads that has these columns, or the table's."""
    got: list[Any] = []
    reader = streams.spark.readStream.format("percola").options(**{"table": "docs", **options})
    frame = (reader.schema(schema) if schema else reader).load(str(streams.folder))
    writer = frame.writeStream.foreachBatch(lambda batch, _: got.extend(batch.collect()))
    assert writer.trigger(availableNow=True).start().awaitTermination(100)
    return got


# --- What it reads ----------------------------------------------------------------------


def test_it_reads_the_table_as_it_is_and_then_every_change_and_goes_on_from_its_checkpoint(
    repo: Repository, streams: Streams
) -> None:
    for number in range(5):
        put(repo, f"r{number % 3}", number)
    first = feed.settled(repo, docs)
    assert streams.run() == expected(repo, 0, first)
    assert len(streams.sink.seen()) == 3
    with repo.transaction() as t:
        t.delete(title, "r0")
        t.delete(size, "r0")
        t.set(links["x"], "r1", "y")
    put(repo, "r2", 10)
    put(repo, "r2", 11, two_phase=True)
    assert streams.run() == expected(repo, 0, first)
    again = streams.sink.seen()[3:]
    assert [(row, changed) for row, _, changed, _ in again] == [
        ("r0", ("size", "title")),
        ("r1", ("link:x",)),
        ("r2", ("size", "title")),
        ("r2", ("size", "title")),
    ]
    assert again[0][3] == {"title": None, "size": None, "link": None}
    assert streams.run() == expected(repo, 0, first)


@pytest.mark.parametrize("beginning", ["latest", "earliest", "timestamp"])
def test_it_begins_where_it_is_told_to(repo: Repository, streams: Streams, beginning: str) -> None:
    put(repo, "a", 1)
    middle = put(repo, "a", 2)
    put(repo, "a", 3)
    after = {"latest": feed.settled(repo, docs), "earliest": 0, "timestamp": middle}[beginning]
    option = {"startingTimestamp": middle if beginning == "timestamp" else beginning}
    streams.run(**option)
    put(repo, "b", 4)
    streams.run(**option)
    found = streams.sink.seen()
    assert found == expected(repo, after)
    assert len(found) == {"latest": 1, "earliest": 4, "timestamp": 2}[beginning]


def test_batches_keep_to_the_limit_and_a_timestamps_changes_are_never_cut(
    repo: Repository, streams: Streams
) -> None:
    for number in range(7):
        put(repo, f"r{number}", number)
    first = feed.settled(repo, docs)
    streams.run(maxRowsPerTrigger=3)
    assert [len(batch) for batch in streams.sink.batches()] == [3, 3, 1]
    for number in range(4):
        put(repo, f"r{number}", number)
    put_all(repo, size, {f"s{number}": number for number in range(5)})
    put(repo, "r0", 9)
    streams.run(maxRowsPerTrigger=3)
    assert [len(batch) for batch in streams.sink.batches()[3:]] == [3, 1, 5, 1]
    assert streams.sink.seen() == expected(repo, 0, first)


def test_all_changes_of_a_row_are_in_one_partition_in_commit_order(
    repo: Repository, streams: Streams
) -> None:
    for number in range(300):
        put(repo, f"r{number % 40:02}", number)
    streams.run(startingTimestamp="earliest", partitions=3)
    rows = [row for batch in streams.sink.batches() for row in batch]
    assert len(rows) == 300
    places: dict[str, set[int]] = {}
    for row in rows:
        places.setdefault(row["row"], set()).add(row["part"])
    assert {len(parts) for parts in places.values()} == {1}
    assert len(set.union(*places.values())) == 3
    for name in places:
        order = [row["commit_ts"] for row in rows if row["row"] == name]
        assert order == sorted(order)


def test_columns_may_be_chosen_by_an_option_or_a_schema(repo: Repository, streams: Streams) -> None:
    with repo.transaction() as t:
        t.set(title, "a", "A")
        t.set(links["x"], "a", "y")
        t.set(odd_changed, b"\xff", "table's own")
        t.set(odd_size, b"\xff", 0.5)

    def run(table: str, schema: str = "", **options: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in rows_of(streams, schema, table=table, **options)]

    assert run("docs") == [{"row": "a", "title": "A", "size": None, "link": {"x": "y"}}]
    chosen = run("docs", columns="title,link:x", feedColumns="true")
    assert [list(row) for row in chosen] == [["row", "commit_ts", "changed", "title", "link:x"]]
    short = run("docs", "changed array<string>, row string, commit_ts bigint")
    assert short == [{"changed": ["link:x", "title"], "row": "a", "commit_ts": t.commit_ts}]
    # Where the table has a column of that name, it is the table's; unless it is left out.
    [row] = run("odd")
    assert row == {"row": b"\xff", "changed": "table's own", "size": 0.5}
    [row] = run("odd", columns="size", feedColumns="true")
    assert row["changed"] == ["size"]


def test_rows_come_with_what_they_were_before(repo: Repository, streams: Streams) -> None:
    def run(schema: str = "", **options: str) -> list[Any]:
        options |= {"startingTimestamp": "earliest", "beforeImages": "true"}
        return sorted(rows_of(streams, schema, **options), key=lambda row: row["commit_ts"])

    with repo.transaction() as t:
        t.set(title, "a", "A")
        t.set(links["x"], "a", "y")
    put(repo, "a", 7)
    with repo.transaction() as t:
        for column in (title, size, links["x"]):
            t.delete(column, "a")
    first, second, third = run()
    assert (first["title"], first["before"]) == ("A", None)
    assert second["before"].asDict() == {"title": "A", "size": None, "link": {"x": "y"}}
    assert third["before"].asDict() == {"title": "title 7", "size": 7, "link": {"x": "y"}}
    assert (third["title"], third["size"]) == (None, None)
    _, second, third = run(
        "row string, commit_ts bigint, before struct<row: string, size: bigint NOT NULL>"
    )
    assert second["before"] is None, "the row had no size"
    assert third["before"]["size"] == 7
    assert run(columns="size")[2]["before"].asDict() == {"size": 7}
    with pytest.raises(PySparkException, match="'before' is a struct of the table's columns"):
        run("row string, before string")


# --- What is in flight ------------------------------------------------------------------


def test_a_commit_that_is_in_flight_while_a_batch_is_read_comes_with_a_later_one(
    repo: Repository, streams: Streams
) -> None:
    context = repo.context
    assert context.one_step is not None
    seam, gate = SeamStore(context.one_step), Gate()
    writer = Repository("seam", seam, context.oracle, context.coordination, TABLES)
    first = put(repo, "a", 1)
    streams.run()
    seam.hook = stop_at("commit", "b", gate)
    committing = in_thread(lambda: put(writer, "b", 2, two_phase=True))
    gate.await_arrival()
    put(repo, "c", 3)
    # Its commit timestamp is below that of "c", which therefore has to wait.
    assert [row for row, *_ in streams.run()] == ["a"]
    gate.open()
    assert committing.result(20)
    assert [row for row, *_ in streams.run()] == ["a", "b", "c"]
    assert streams.sink.seen() == expected(repo, 0, first)


def _two_rows(thread: int, number: int, t: percola.Transaction) -> None:
    t.set(size, f"r{(thread + number) % 5}", number)
    t.set(title, f"own{thread}", str(number))


def test_a_stream_beside_busy_writers_gives_every_change_once_and_each_row_in_order(
    repo: Repository, streams: Streams, wait_until: Wait
) -> None:
    put(repo, "begun", 0)
    query = streams.start(now=False, maxRowsPerTrigger=50)
    try:
        wait_until(lambda: query.exception() or streams.sink.batches(), seconds=60)

        def write(thread: int) -> None:
            for number in range(50):
                repo.run(partial(_two_rows, thread, number))
                put(repo, f"two{thread}", number, two_phase=True)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        latest = feed.settled(repo, docs)
        wait_until(lambda: query.exception() or latest <= streams.offset()["ts"], seconds=60)
        query.processAllAvailable()
    finally:
        query.stop()
    found = streams.sink.seen()
    assert sorted(found, key=lambda one: one[:2]) == sorted(
        expected(repo, 0, streams.offset(number=0)["ts"]), key=lambda one: one[:2]
    )
    assert len(streams.sink.batches()) > 2


# --- Restarts ---------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("beginning", [None, "latest", "earliest"])
def test_a_first_batch_that_fails_is_read_again_as_it_was_although_others_have_written(
    repo: Repository, streams: Streams, beginning: str | None
) -> None:
    put(repo, "a", 1)
    options = {} if beginning is None else {"startingTimestamp": beginning}
    for batch in (0, 1, 2):
        streams.sink.fails_at = batch
        put(repo, "b", batch)
        with pytest.raises(PySparkException, match="the sink fails"):
            streams.run(**options)
        put(repo, "c", batch)
    streams.sink.fails_at = None
    found = streams.run(**options)
    if beginning is None:
        assert found == expected(repo, 0, streams.offset(number=0)["ts"])
    else:
        assert found == expected(repo, streams.offset(number=0)["ts"])
    assert len(found) >= 3


def test_what_a_stopped_stream_has_yet_to_read_is_held_back_from_collection(
    repo: Repository, streams: Streams
) -> None:
    first = put(repo, "a", 1)
    streams.run()
    for number in range(3):
        put(repo, "a", number)
    collected = repo.collect_garbage(retention=0)
    assert collected.safe_point == first
    assert "stream/docs/" in collected.held_back
    assert [one[0] for one in streams.run()] == ["a"] * 4
    # It has moved on, and what it needs with it.
    assert repo.collect_garbage(retention=0).safe_point == streams.offset()["ts"]
    assert [one.name for one in repo.holds()] == [streams.offset()["stream"]]


def test_a_stream_that_comes_too_late_says_what_to_do_and_misses_nothing_in_silence(
    repo: Repository, streams: Streams
) -> None:
    put(repo, "a", 1)
    streams.run(holdSeconds=0)
    assert repo.holds() == []
    put(repo, "a", 2)
    repo.collect_garbage(retention=0)
    with pytest.raises(PySparkException) as caught:
        streams.run(holdSeconds=0)
    assert "it cannot go on without missing changes. Begin again with" in str(caught.value)
    assert len(streams.sink.seen()) == 1
    streams.sink = Sink(streams.tmp_path / "another")
    assert [one[3]["size"] for one in streams.run(name="another", holdSeconds=0)] == [2]


def test_a_stream_of_a_table_that_does_not_change_goes_on_with_its_repository(
    repo: Repository, streams: Streams
) -> None:
    """Else a quiet table's stream would hold everything back, or be left behind."""
    put(repo, "a", 1)
    streams.run()
    with repo.transaction() as t:
        t.set(odd_size, b"x", 1.0)
    streams.run()
    assert streams.offset()["ts"] == t.commit_ts
    assert len(streams.sink.seen()) == 1


# --- Refusals ---------------------------------------------------------------------------


def test_a_table_without_a_feed_is_refused_where_the_frame_is_made(
    repo: Repository, spark: SparkSession, folder: Path
) -> None:
    for table, said in (
        ("plain", "The table 'plain' keeps no feed of its changes. Declare it as"),
        ("odd", "Leave it out with the option columns."),
    ):
        with pytest.raises(PySparkException) as caught:
            stream(spark, folder, table=table)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"startingTimestamp": 10**9}, "", "There is no timestamp 1000000000 yet"),
        ({"table": "plain"}, "row string", "The table 'plain' keeps no feed"),
        ({}, "row string, commit_ts string", "'commit_ts' is bigint in a feed, not string."),
        ({}, "row string, changed string", "'changed' is array<string> in a feed, not string."),
        ({}, "row string, nothing string", "has no column 'nothing'"),
        ({"snapshot": "latest"}, "row string", "The option snapshot is for spark.read"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(
    repo: Repository, streams: Streams, options: dict[str, Any], schema: str, message: str
) -> None:
    put(repo, "a", 1)
    with pytest.raises(PySparkException) as caught:
        rows_of(streams, schema, **options)
    assert message in str(caught.value)
