"""The driver's side of `spark.readStream`, call by call as Spark makes them: no Spark needed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType
from stores import put_all

from percola import ConflictingOptionsError, Repository, SchemaError, Table, UsageError, feed
from percola.spark.options import Options
from percola.spark.partitioning import row_ranges
from percola.spark.source import PercolaDataSource
from percola.spark.stream import limited
from percola.spark.stream import ranges as feed_ranges
from percola.spark.stream import source as stream_reading
from percola.spark.stream.source import FeedReader
from percola.store.lmdb.store import LmdbStore
from tests.unit.feed_queries import (
    FeedQuery,
    Offset,
    docs,
    other_size,
    put,
    repo,
    rows_of,
    size,
    through_json,
    title,
)

__all__ = ["repo"]

ALL = ReadAllAvailable()


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stream_reading, "time", clock)
    monkeypatch.setattr(limited, "time", clock)
    return clock


class Query(FeedQuery):
    """On versions with read limits."""

    def __init__(self, repo: Repository, **options: str) -> None:
        super().__init__(repo, **options)
        self.restart()

    def restart(self) -> None:
        self.reader = self.new_reader()
        assert isinstance(self.reader, FeedReader)

    def initial(self) -> Offset:
        return through_json(self.reader.initialOffset())

    def latest(self, start: Offset, limit: Any = ALL) -> Offset:
        return through_json(self.reader.latestOffset(start, limit))

    def read(self, start: Offset, end: Offset) -> Iterator[Any]:
        for partition in self.reader.partitions(start, end):
            yield from self.reader.read(partition)

    def batch(self, start: Offset, end: Offset) -> list[tuple[str, int]]:
        return rows_of(self.reader, start, end)


@pytest.mark.parametrize("beginning", ["latest", "earliest"])
def test_where_it_begins_stands_in_the_checkpoint_before_anything_is_read(
    repo: Repository, beginning: str
) -> None:
    """A first batch may have to be read again by a query that would begin elsewhere by now."""
    put(repo, "a", 1)
    query = Query(repo, startingTimestamp=beginning)
    start = query.initial()
    put(repo, "a", 2)
    end = query.latest(start)
    assert query.batch(start, end) == []
    query.restart()
    again = query.initial()
    assert query.batch(again, end) == []
    following = query.latest(end)
    expected = [("a", 2)] if beginning == "latest" else [("a", 1), ("a", 2)]
    assert query.batch(end, following) == expected


def test_a_first_reading_that_is_repeated_reads_what_its_end_says(repo: Repository) -> None:
    for number in range(4):
        put(repo, f"r{number}", number)
    query = Query(repo)
    start = query.initial()
    end = query.latest(start, ReadMaxRows(2))
    assert query.batch(start, end) == [("r0", 0), ("r1", 1)]
    put(repo, "r1", 10)
    query.restart()
    assert query.batch(query.initial(), end) == [("r0", 0), ("r1", 1)]
    following = query.latest(end, ReadMaxRows(2))
    assert query.batch(end, following) == [("r2", 2), ("r3", 3)]
    assert "snapshot" not in following
    last = query.latest(following, ReadMaxRows(2))
    assert query.batch(following, last) == [("r1", 10)]
    assert query.latest(last) == last


def test_what_is_available_now_is_not_what_comes_later(repo: Repository) -> None:
    query = Query(repo, startingTimestamp="0")
    put(repo, "a", 1)
    query.reader.prepareForTriggerAvailableNow()
    put(repo, "a", 2)
    start = query.initial()
    end = query.latest(start)
    assert query.batch(start, end) == [("a", 1)]
    assert query.latest(end) == end


@pytest.mark.parametrize("hold", ["86400", "0"])
def test_an_offset_moves_on_without_changes_now_and_then_and_not_with_every_commit_elsewhere(
    repo: Repository, clock: Clock, hold: str
) -> None:
    start = {"ts": put(repo, "a", 1), "stream": "s"}
    query = Query(repo, holdSeconds=hold)
    commit_ts = put(repo, "x", 1, other_size)
    for _ in range(5):
        assert query.latest(start) == start
        clock.now += 11
    clock.now += 11
    moved = query.latest(start)
    assert moved == {"ts": commit_ts, "stream": "s"}
    assert query.batch(start, moved) == []
    assert query.latest(moved) == moved


def test_the_hold_follows_the_stream_about_once_a_second_and_is_renewed(
    repo: Repository, clock: Clock
) -> None:
    query = Query(repo, startingTimestamp="0", holdSeconds="3600")

    def held() -> list[int]:
        return [one.ts for one in repo.holds()]

    offset = query.initial()
    assert held() == [0]
    for number in range(3):
        put(repo, "a", number)
        following = query.latest(offset)
        query.reader.commit(offset)
        offset = following
        clock.now += 0.3
    assert held() == [0]
    clock.now += 1
    query.latest(offset)
    assert held() == [offset["ts"]]
    until = repo.holds()[0].until_ms
    repo.hold(offset["ts"], 1, name=offset["stream"])
    clock.now += 61
    query.latest(offset)
    assert repo.holds()[0].until_ms >= until - 1000
    put(repo, "a", 9)
    offset = query.latest(offset)
    clock.now += 0.1
    query.reader.commit(offset)
    query.reader.stop()
    # The last word, for the next run.
    assert held() == [offset["ts"]]


def test_a_stream_holds_its_own_position_alone(repo: Repository) -> None:
    """Spark asks for a schema before it says that this is a stream."""
    put(repo, "a", 1)
    given = {"path": repo.address, "table": "docs", "holdSeconds": "864000"}
    source = PercolaDataSource(given)
    schema = source.schema()
    reader = pickle.loads(pickle.dumps(source)).streamReader(schema)
    offset = reader.initialOffset()
    assert [one.name for one in repo.holds()] == [offset["stream"]]
    reader.stop()


def test_looking_for_many_locks_is_not_done_all_the_time(
    repo: Repository, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def slow(*_: object) -> int:
        looks.append(clock.now)
        clock.now += 2
        return feed.settled(repo, docs)

    monkeypatch.setattr(stream_reading, "settled", slow)
    start = {"ts": put(repo, "a", 1), "stream": "s"}
    query = Query(repo)
    for _ in range(20):
        query.latest(start)
        clock.now += 1
    assert 2 <= len(looks) <= 3


def test_where_no_change_was_found_none_is_looked_for_again_and_what_comes_is_found(
    repo: Repository, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store of servers a look at the feed may read the whole table."""
    looks = []
    walk = LmdbStore.changes

    def slow(self: LmdbStore, *args: Any, **kwargs: Any) -> Any:
        looks.append(clock.now)
        clock.now += 2
        return walk(self, *args, **kwargs)

    monkeypatch.setattr(LmdbStore, "changes", slow)
    start = {"ts": put(repo, "a", 1), "stream": "s"}
    query = Query(repo)
    for _ in range(40):
        repo.run(lambda t: t.set(other_size, "x", 1))
        assert query.latest(start) == start
        clock.now += 0.5
    assert 2 <= len(looks) <= 4
    ts = put(repo, "a", 2)
    clock.now += 10
    assert query.latest(start)["ts"] >= ts


@pytest.mark.parametrize(
    "offset", [{}, {"ts": 5}, {"ts": "x", "stream": "s"}, {"snapshot": 1, "stream": "s"}]
)
def test_an_offset_of_another_source_is_refused(repo: Repository, offset: Offset) -> None:
    with pytest.raises(UsageError, match="Use another checkpoint location"):
        Query(repo).latest(offset)


def test_a_checkpoint_of_another_tables_stream_is_refused(repo: Repository) -> None:
    """Else the rows that the table had before that timestamp would be missed, without a word."""
    put(repo, "a", 1)
    with repo.transaction() as t:
        t.set(title, "b", "before")
    query = Query(repo)
    end = query.latest(query.initial())
    assert query.latest(end) == end
    another = Query(repo, table="texts")
    sentence = "is of a stream of the table 'docs', and this one is of 'texts'"
    with pytest.raises(UsageError, match=sentence):
        another.latest(end)
    with pytest.raises(UsageError, match=sentence):
        another.batch(end, {**end, "ts": end["ts"] + 1})


def test_an_offset_that_has_not_come_yet_is_of_another_repository(repo: Repository) -> None:
    with pytest.raises(UsageError, match="restored from a"):
        Query(repo).latest({"ts": 10**6, "stream": "s"})


def test_a_large_batch_is_cut_into_ranges_with_about_equally_many_changes(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_ranges, "_WORTH_A_TASK", 50)
    for first in range(0, 400, 100):
        with repo.transaction() as t:
            for number in range(first, first + 100):
                # Half of all changes are of one row in twenty.
                t.set(size, f"{number % 20 if number % 2 else number:04}", number)
    store, upto = repo.context.store, feed.settled(repo, docs)
    for ranges in (
        feed_ranges.change_ranges(store, "docs", 0, upto, 4),
        row_ranges(store, "docs", b"", b"", 4),
    ):
        assert 2 <= len(ranges) <= 4
        assert ranges[0][0] == ranges[-1][1] == b""
        assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]
    counts = [
        sum(1 for _ in feed.read_changes(store, "docs", 0, upto, start=start, end=end))
        for start, end in feed_ranges.change_ranges(store, "docs", 0, upto, 4)
    ]
    assert sum(counts) == sum(1 for _ in store.changes("docs", 0, upto))
    assert max(counts) < 2 * min(counts)
    assert len(feed_ranges.change_ranges(store, "docs", upto - 1, upto)) == 1
    assert feed_ranges.change_ranges(store, "docs", upto, upto) == []


@pytest.mark.parametrize("commits", [1, 20])
def test_more_changes_than_are_sampled_are_cut_into_ranges_of_them_all(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """Of rows that were loaded in their order, the first changes are all in the first rows."""
    monkeypatch.setattr(feed_ranges, "_LOOKED_AT", 200)
    each = 2000 // commits
    for first in range(0, 2000, each):
        put_all(repo, size, {f"{number:04}": 1 for number in range(first, first + each)})
    store, upto = repo.context.store, feed.settled(repo, docs)
    counts = [
        sum(1 for _ in store.changes("docs", 0, upto, start=start, end=end))
        for start, end in feed_ranges.change_ranges(store, "docs", 0, upto, 4)
    ]
    assert len(counts) == 4 and sum(counts) == 2000
    assert max(counts) < 1000


def test_the_columns_of_a_feed_have_different_names_and_the_rows_key_comes_first(
    repo: Repository,
) -> None:
    for name, options in (
        ("changed", {}),
        ("Commit_TS", {}),
        ("before", {"beforeImages": "true"}),
    ):
        with pytest.raises(SchemaError, match=f"The row's key cannot be called '{name}' in a feed"):
            Query(repo, rowColumn=name, **options)
    schema = Query(repo, columns="size,row", beforeImages="true").schema
    assert schema.names == ["row", "commit_ts", "changed", "size", "before"]
    assert schema["before"].dataType.fieldNames() == ["size"]  # type: ignore[attr-defined]


def test_the_schema_is_as_the_reader_gives_it(repo: Repository) -> None:
    put(repo, "a", 1)
    query = Query(repo)
    assert [field.name for field in query.schema] == ["row", "commit_ts", "changed", "size"]
    start = query.initial()
    [partition] = query.reader.partitions(start, query.latest(start))
    [batch] = query.reader.read(partition)
    assert batch.to_pylist() == [{"row": "a", "commit_ts": 1, "changed": ["size"], "size": 1}]
    assert isinstance(query.schema, StructType)


def test_a_limit_in_bytes_takes_changes_of_that_size(repo: Repository, clock: Clock) -> None:
    for number in range(10):
        with repo.transaction() as t:
            t.set(title, f"r{number}", "x" * 998)
    query = Query(repo, startingTimestamp="earliest", table="texts", maxBytesPerTrigger="3500")
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(3500)
    at = query.latest(query.initial(), limit)
    counts = []
    while (following := query.latest(at, limit)) != at:
        counts.append(sum(batch.num_rows for batch in query.read(at, following)))
        at = following
    assert counts == [3, 3, 3, 1]
    # Smaller changes make larger batches, once they have been looked at.
    for number in range(100):
        with repo.transaction() as t:
            t.set(title, f"r{number}", "")
    assert sum(batch.num_rows for batch in query.read(at, query.latest(at, limit))) == 3
    clock.now += 61
    assert sum(batch.num_rows for batch in query.read(at, query.latest(at, limit))) == 100


def test_a_first_reading_keeps_to_a_limit_in_bytes_but_reads_a_row(repo: Repository) -> None:
    with repo.transaction() as t:
        for number in range(4):
            t.set(title, f"r{number}", "x" * 998)
    query = Query(repo, table="texts", maxBytesPerTrigger="10")
    limit = query.reader.getDefaultReadLimit()
    at = query.initial()
    rows = []
    for _ in range(4):
        following = query.latest(at, limit)
        rows += [row for batch in query.read(at, following) for row in batch["row"].to_pylist()]
        at = following
    assert rows == ["r0", "r1", "r2", "r3"]


@pytest.mark.parametrize("option", ["feedColumns", "beforeImages"])
def test_an_option_for_columns_that_a_given_schema_lacks_is_refused(
    repo: Repository, option: str
) -> None:
    """As that of a catalog's table does: `readStream.option(…).table("web.docs")`."""
    options = Options({"path": repo.address, "table": "docs", option: "true"})
    schema = StructType().add("row", "string").add("size", "long")
    with pytest.raises(ConflictingOptionsError, match=f"{option} asks for columns that this str"):
        stream_reading.stream_reader(options, schema)


@pytest.mark.parametrize("names", [None, "cents", "applied.total", "tag:red"])
def test_events_leave_out_what_recipes_record_and_nothing_that_is_named(names: str | None) -> None:
    table = Table("orders", feed=True)
    for name in ("cents", "applied.total"):
        table.column(name, int)
    if names == "tag:red":
        table.family("tag", int)
    given = {"path": "./repo", "table": "orders", "envelope": "debezium"}
    options = Options(given if names is None else {**given, "columns": names})
    shown = [one.name for one in stream_reading._enveloped(table, options)]
    assert shown == [names or "cents"]


def test_rows_and_bytes_are_not_both_limits(repo: Repository) -> None:
    with pytest.raises(ConflictingOptionsError, match="both limit a micro-batch"):
        Query(repo, maxRowsPerTrigger="1", maxBytesPerTrigger="1")
