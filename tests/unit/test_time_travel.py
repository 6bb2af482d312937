"""Snapshots at a time: `snapshot(at=datetime)`, by the log of times, with clocks that jump."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from commands import call, is_error, run
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Ground, ScriptedClock, at_work, in_memory

import percola
from percola import Repository, SnapshotTooOldError, Table, UsageError, Worker, feed, observer
from percola.gc import time_log
from percola.gc.time_log import TimeLog, read_log

bank = Table("bank", feed=True)
bal = bank.column("bal", int)
seen = bank.column("seen", int, observed=True)
TABLES = [bank]
START = datetime(2024, 11, 23, 10, 0, tzinfo=UTC)


class Wall(ScriptedClock):
    """A clock whose wall time the test sets; the steady clock goes on by itself."""

    def __init__(self, when: datetime = START) -> None:
        super().__init__()
        self.when = when

    def wall_ms(self) -> int:
        return round(self.when.timestamp() * 1000)

    def go(self, seconds: float) -> None:
        self.when += timedelta(seconds=seconds)


class Scene:
    """A repository that is written and whose times are logged, and the model of both."""

    def __init__(self, open_: Callable[[Wall], Repository]) -> None:
        self.clock = Wall()
        self.repo = open_(self.clock)
        self.log = TimeLog(self.repo.context.store, self.clock, None)
        self.commits: list[tuple[int, datetime]] = []
        # Every entry that was ever written: its timestamp, and the latest time up to it.
        self.logged: list[tuple[int, datetime]] = []

    def write(self) -> int:
        with self.repo.transaction() as t:
            t.set(bal, "Bob", len(self.commits))
        assert t.commit_ts is not None
        self.commits.append((t.commit_ts, self.clock.when))
        return t.commit_ts

    def note(self) -> None:
        self.log.newest_older(self.repo.context.oracle.read_timestamp())
        newest = read_log(self.repo.context.store)[0]
        if not self.logged or newest.ts > self.logged[-1][0]:
            latest = max(self.clock.when, self.logged[-1][1] if self.logged else START)
            self.logged.append((newest.ts, latest))

    def counts_from(self, commit_ts: int) -> datetime | None:
        """The log's own time of a commit, by all entries that there ever were."""
        return next((time for ts, time in self.logged if ts >= commit_ts), None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    percola.open(tmp_path / "repo", schema=TABLES).close()
    return tmp_path / "repo"


@pytest.fixture
def scene(ground: Ground) -> Scene:
    return Scene(lambda clock: ground.repo(TABLES, clock=clock))


# A minute of life: a jump of the clock, perhaps, a write before and one after the log is written.
minutes = st.tuples(
    st.sampled_from([0.0, 0.0, 0.0, 90.0, -90.0, 7200.0, -7200.0]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(life=st.lists(minutes, min_size=1, max_size=30))
@settings(max_examples=200)
def test_a_snapshot_at_a_time_never_contains_what_committed_later_by_the_logs_clock(
    life: list[tuple[float, bool, bool, bool]],
) -> None:
    entries, time_log._ENTRIES = time_log._ENTRIES, 4  # type: ignore[misc]
    try:
        scene = Scene(lambda clock: in_memory(TABLES, clock=clock))
        scene.note()
        for jump, before, noted, after in life:
            scene.clock.go(61 + jump)
            if before:
                scene.write()
            if noted:
                scene.note()
            if after:
                scene.write()
        assert len(read_log(scene.repo.context.store)) <= 2 * 4 + 3
    finally:
        time_log._ENTRIES = entries  # type: ignore[misc]
    back = any(jump < -61 for jump, *_ in life)
    readings = {time for _, time in (*scene.commits, *scene.logged)}
    scene.clock.when = max(readings) + timedelta(days=1)
    found: list[tuple[datetime, int]] = []
    for when in sorted(one + timedelta(seconds=more) for one in readings for more in (0, 1)):
        try:
            moment = scene.repo.timestamp_at(when)
        except UsageError:
            assert when < scene.clock.when - timedelta(days=1)
            continue
        assert moment.time <= when
        found.append((when, moment.ts))
        for commit_ts, read in scene.commits:
            counts_from = scene.counts_from(commit_ts)
            if commit_ts <= moment.ts:
                assert counts_from is not None and counts_from <= when
                assert back or read <= when, "with a clock that never goes back, by any clock"
            elif counts_from is not None:
                assert counts_from >= moment.time, "the snapshot is as new as it says"
        with scene.repo.snapshot(at=when) as s:
            visible = [n for n, (ts, _) in enumerate(scene.commits) if ts <= moment.ts]
            assert s.get(bal, "Bob") == (visible[-1] if visible else None)
    assert all(earlier <= later for (_, earlier), (_, later) in pairwise(found))


def test_a_clock_that_was_ahead_hides_nothing_but_makes_snapshots_older(scene: Scene) -> None:
    scene.note()
    first = scene.write()
    scene.clock.go(60)
    scene.note()
    second = scene.write()
    scene.clock.go(7200)  # two hours ahead
    scene.note()
    scene.clock.go(60 - 7200)
    scene.write()
    scene.note()
    asked = START + timedelta(seconds=3600)
    scene.clock.go(9000)
    moment = scene.repo.timestamp_at(asked)
    assert first <= moment.ts < second
    assert moment.time == START + timedelta(seconds=60)


# --- What is said -----------------------------------------------------------------------


def test_times_that_cannot_be_read_are_refused_in_a_sentence(scene: Scene) -> None:
    at = scene.repo.snapshot
    scene.write()
    scene.repo.collect_garbage(retention=0)
    with pytest.raises(UsageError, match=r"has no log of times yet.*; with a retention of 0 nei"):
        at(START)
    scene.write()
    scene.note()
    with pytest.raises(UsageError, match="The log of times begins at 2024-11-"):
        at(START - timedelta(seconds=1))
    with pytest.raises(UsageError, match=r"There is no snapshot at 2024-.* yet: it is 2024-"):
        at(START + timedelta(seconds=1))
    scene.clock.go(3600)
    scene.write()
    scene.note()
    scene.repo.collect_garbage(retention=0)
    with pytest.raises(SnapshotTooOldError):
        at(START + timedelta(seconds=60))


def test_a_time_without_a_zone_is_local(scene: Scene) -> None:
    scene.write()
    scene.note()
    local = START.astimezone().replace(tzinfo=None)
    assert scene.repo.timestamp_at(local) == scene.repo.timestamp_at(START)


def test_commit_times_are_bounded_by_the_entries_around_them(scene: Scene) -> None:
    scene.note()
    ts = scene.write()
    assert scene.repo.commit_times().of(ts) == (START, None)
    scene.clock.go(90)
    scene.note()
    assert scene.repo.commit_times().of(ts) == (START, START + timedelta(seconds=90))


def test_a_feed_tells_when_its_changes_were_committed(scene: Scene) -> None:
    before = feed.settled(scene.repo, bank)
    scene.write()
    scene.note()
    scene.write()
    found = list(feed.changes(scene.repo, bank, before))
    assert [change.committed_by for change in found] == [START, None]


@pytest.mark.parametrize("retention", [None, 24 * 3600.0])
def test_workers_write_the_log_whether_they_collect_garbage_or_not(
    ground: Ground, retention: float | None, wait_until: Callable[..., object]
) -> None:
    @observer(seen)
    def look(t: object, row: str) -> None:
        pass

    repo = ground.repo(TABLES)
    with repo.transaction() as t:
        t.set(bal, "Bob", 1)
    with at_work(Worker(repo, [look], threads=1, retention=retention, collect=0.01)):
        wait_until(lambda: read_log(repo.context.store), what="the time is logged")
    moment = repo.timestamp_at(datetime.now(UTC))
    assert t.commit_ts is not None and moment.ts >= t.commit_ts
    assert abs((datetime.now(UTC) - moment.time).total_seconds()) < 60


# --- On the command line ------------------------------------------------------------------


def test_commands_read_at_a_time_and_say_how_exact_that_is(folder: Path) -> None:
    clock = Wall()
    with percola.open(folder, schema=TABLES) as repo:
        times = TimeLog(repo.context.store, clock, None)
        repo.run(lambda t: t.set(bal, "Bob", 1))
        times.newest_older(repo.context.oracle.read_timestamp())
        ts = repo.context.oracle.read_timestamp()
        repo.run(lambda t: t.set(bal, "Bob", 2))
    where = ("--repo", folder)
    at = (START + timedelta(seconds=30)).isoformat()
    answer = call(*where, "get", "Bob", "bal", "--at", at)
    assert answer.out == "1\n"
    logged = START.astimezone().isoformat()
    assert answer.err == (
        f"Read at timestamp {ts}, which was logged at {logged}: commits of the 30.0 s until then "
        "are missing.\n"
    )
    rows = call(*where, "--json", "scan", "bank", "--at", at).lines
    assert [row["columns"] for row in rows] == [{"bal": 1}]
    versions = call(*where, "--json", "history", "Bob", "bal").json["versions"]
    newer, older = [version for version in versions if version["write"]]
    assert (older["committed_after"], older["committed_by"]) == (None, START.isoformat())
    assert (newer["committed_after"], newer["committed_by"]) == (START.isoformat(), None)
    printed = run(*where, "history", "Bob", "bal", COLUMNS="120").out
    assert f"{START.astimezone():%Y-%m-%d %H:%M:%S}" in printed and "committed" in printed
    assert f"> {START.astimezone():%Y-%m-%d %H:%M:%S}" in printed


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("2200-01-01", "There is no snapshot at 2200-01-01T00:00:00 yet"),
        ("2020-01-01T10:00+02:00", "has no log of times yet"),
        ("0001-01-01T00:00+14:00", "has no log of times yet"),
        ("9999-12-31T23:59-14:00", "There is no snapshot at 9999-12-31T23:59:00-14:00 yet"),
        ("0001-01-01", "No snapshot can be found at 0001-01-01T00:00:00 in local time"),
    ],
)
def test_a_time_that_cannot_be_read_is_one_sentence(folder: Path, at: str, words: str) -> None:
    assert is_error(call("--repo", folder, "scan", "bank", "--at", at), words)


def test_what_is_no_time_is_refused(folder: Path) -> None:
    answer = call("--repo", folder, "scan", "bank", "--at", "noon")
    assert answer.code == 2 and "neither a timestamp nor a time such as 2026-" in answer.err
