"""The driver's side of `spark.readStream` on PySpark 4.1, call by call as Spark makes them.

Spark asks for the end of a batch without its beginning. Any PySpark can run this reader's code.
"""

from __future__ import annotations

import pyspark
import pytest

from percola import Repository
from percola.spark import versions
from percola.spark.options import Options
from percola.spark.stream import source
from percola.spark.stream.unlimited import UnlimitedFeedReader
from percola.spark.versions import SparkTooOldError
from tests.unit.feed_queries import (
    FeedQuery,
    Offset,
    other_size,
    put,
    repo,
    rows_of,
    through_json,
)

__all__ = ["repo"]

BEGINNINGS = [None, "latest", "earliest", "1"]


@pytest.fixture(autouse=True)
def as_of_4_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark as it was before it had read limits."""
    monkeypatch.setattr(versions, "READ_LIMITS", False)
    monkeypatch.setattr(source, "READ_LIMITS", False)
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")


class Query(FeedQuery):
    """On Spark 4.1; `offsets` is the checkpoint."""

    def __init__(self, repo: Repository, beginning: str | None = None) -> None:
        super().__init__(repo, **({} if beginning is None else {"startingTimestamp": beginning}))
        self.offsets: list[Offset] = []
        self.restart(told=False)

    def restart(self, *, told: bool) -> None:
        """Begin a run; Spark tells a reader its position, but not always before it asks."""
        self.reader = self.new_reader()
        assert isinstance(self.reader, UnlimitedFeedReader)
        if told and self.offsets:
            last = self.offsets[-1]
            assert list(self.reader.partitions(last, last)) == []

    def end(self) -> Offset:
        """Ask for the end of the next batch, and store it."""
        offset = through_json(self.reader.latestOffset())
        if not self.offsets or self.offsets[-1] != offset:
            self.offsets.append(offset)
        return offset

    def read(self) -> list[tuple[str, int]]:
        """Read the batch that was stored last."""
        end = self.offsets[-1]
        if len(self.offsets) > 1:
            return rows_of(self.reader, self.offsets[-2], end)
        return rows_of(self.reader, through_json(self.reader.initialOffset()), end)

    def batch(self) -> list[tuple[str, int]]:
        self.end()
        return self.read()


def first_of(beginning: str | None) -> list[tuple[str, int]]:
    return {None: [("a", 2)], "latest": [], "earliest": [("a", 1), ("a", 2)], "1": [("a", 2)]}[
        beginning
    ]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_every_change_is_read_once_by_runs_that_go_on_from_the_checkpoint(
    repo: Repository, beginning: str | None, told: bool
) -> None:
    put(repo, "a", 1)
    put(repo, "a", 2)
    query = Query(repo, beginning)
    assert query.batch() == first_of(beginning)
    put(repo, "b", 3)
    assert query.batch() == [("b", 3)]
    put(repo, "b", 4)
    query.restart(told=told)
    assert query.batch() == [("b", 4)]
    put(repo, "a", 5)
    assert query.batch() == [("a", 5)]


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_repeated_first_batch_is_the_same(repo: Repository, beginning: str | None) -> None:
    put(repo, "a", 1)
    put(repo, "a", 2)
    query = Query(repo, beginning)
    assert query.batch() == first_of(beginning)
    put(repo, "a", 3)
    [first] = query.offsets
    needed = {None: first["ts"], "latest": first["ts"], "earliest": first.get("since"), "1": 1}
    for _ in range(2):
        repo.release(first["stream"])
        query.restart(told=True)
        assert query.read() == first_of(beginning)
        assert [(one.ts, one.name) for one in repo.holds()] == [
            (needed[beginning], first["stream"])
        ]
    assert query.batch() == [("a", 3)]
    # The one name that is left, and what it keeps has not been read.
    [held] = repo.holds()
    assert held.name == query.offsets[-1]["stream"]
    assert held.ts <= query.offsets[-2]["ts"]


def test_a_restart_leaves_one_hold_on_what_may_be_read_again(repo: Repository) -> None:
    put(repo, "a", 1)
    query = Query(repo)
    query.batch()
    for number in range(3):
        before = query.offsets[-1]["ts"]
        put(repo, "a", number)
        query.restart(told=False)
        query.batch()
        [held] = repo.holds()
        assert (held.ts, held.name) == (before, query.offsets[-1]["stream"])
    repo.collect_garbage(retention=0)
    query.restart(told=True)
    assert query.read() == [("a", 2)]


def test_what_a_restarted_run_may_have_to_read_again_stays_held_until_spark_asks_once_more(
    repo: Repository,
) -> None:
    put(repo, "a", 1)
    query = Query(repo)
    query.batch()
    put(repo, "a", 2)
    query.batch()
    [before] = repo.holds()
    assert before.ts == query.offsets[0]["ts"]
    # Spark asks once, before it repeats a batch that was not committed.
    query.restart(told=True)
    query.end()
    assert [one.ts for one in repo.holds()] == [before.ts]
    query.end()
    assert [one.ts for one in repo.holds()] == [query.offsets[1]["ts"]]


def test_a_new_query_begins_where_its_first_answer_says(repo: Repository) -> None:
    put(repo, "a", 1)
    query = Query(repo)
    end = query.end()
    put(repo, "a", 2)
    start = query.reader.initialOffset()
    assert (start["snapshot"], start["stream"]) == (end["ts"], end["stream"])


def test_the_hold_of_a_running_query_follows_it(repo: Repository) -> None:
    put(repo, "a", 1)
    query = Query(repo)
    query.batch()
    put(repo, "a", 2)
    query.batch()
    query.reader._held = None  # A second later.
    query.end()
    assert [one.ts for one in repo.holds()] == [query.offsets[-1]["ts"]]


def test_a_query_without_changes_has_no_further_batch(repo: Repository) -> None:
    put(repo, "a", 1)
    query = Query(repo, "earliest")
    query.batch()
    assert query.end() == query.end() == query.offsets[0]
    query.restart(told=True)
    assert query.end() == query.offsets[0]


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_checkpoint_goes_on_with_a_newer_version_and_then_with_this_one_again(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, beginning: str | None
) -> None:
    from percola.spark.stream.limited import LimitedFeedReader

    put(repo, "a", 1)
    put(repo, "a", 2)
    query = Query(repo, beginning)
    query.batch()
    put(repo, "b", 3)
    with monkeypatch.context() as newer:
        newer.setattr(source, "READ_LIMITS", True)
        reader = query.new_reader()
    assert isinstance(reader, LimitedFeedReader)
    # The first batch might have to be repeated.
    [first] = query.offsets
    assert rows_of(reader, reader.initialOffset(), first) == first_of(beginning)
    end = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert rows_of(reader, first, end) == [("b", 3)]
    query.offsets.append(end)
    put(repo, "b", 4)
    query.restart(told=False)
    assert query.batch() == [("b", 4)]


def test_a_run_that_asks_once_moves_on_so_that_it_holds_nothing_back(repo: Repository) -> None:
    put(repo, "a", 1)
    query = Query(repo)
    query.batch()
    commit_ts = put(repo, "x", 1, other_size)
    assert query.end() == query.offsets[0]
    query.restart(told=True)
    assert query.end()["ts"] == commit_ts
    assert query.read() == []


def test_a_first_reading_in_parts_is_not_continued_without_limits(repo: Repository) -> None:
    put(repo, "a", 1)
    query = Query(repo)
    offset = {"snapshot": 1, "after": b"a".hex(), "stream": "s"}
    with pytest.raises(SparkTooOldError, match=r"PySpark 4\.2 or newer, and this is 4\.1\.4: go"):
        query.reader.partitions(offset, offset)


def test_a_limit_is_refused(repo: Repository) -> None:
    with pytest.raises(SparkTooOldError) as caught:
        Options({"path": repo.address, "table": "docs", "maxRowsPerTrigger": "5"})
    assert str(caught.value) == (
        "The option maxRowsPerTrigger needs PySpark 4.2 or newer, and this is 4.1.4: leave it out, "
        "and each micro-batch takes all changes that there are; with a shorter "
        "trigger(processingTime=…) these are fewer."
    )
