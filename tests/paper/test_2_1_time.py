"""Rule P12 and the time: how long ago something was superseded is told by clocks that may be wrong.

A version may stay for longer than the retention; it must not go sooner for one wrong clock.
"""

from __future__ import annotations

import logging

import pytest
from stores import Ground, ScriptedClock

from percola import Collected, Repository, SnapshotTooOldError, Table
from percola.cells import MAX_TS, Cell, Kind
from percola.gc import time_log
from percola.gc.collector import GarbageCollector
from percola.store.base import SYSTEM_TABLE, Put, RowMutation

bank = Table("bank")
bal = bank.column("bal", int)
TABLES = [bank]

DAY = 24 * 3600.0
TIME = Cell(SYSTEM_TABLE, b"gc", b"@time")


class Machine(ScriptedClock):
    """The clocks of a machine of its own, which was started at `began`.

    Its wall clock is `ahead` by so many seconds.
    """

    def __init__(
        self, name: str, world: ScriptedClock, ahead: float = 0.0, began: float = 0.0
    ) -> None:
        super().__init__()
        self.name, self.world, self.ahead, self.began = name, world, ahead, began

    @property
    def machine(self) -> str:
        return self.name

    def monotonic(self) -> float:
        return self.world.now - self.began

    def wall_ms(self) -> int:
        return int((self.world.now + self.ahead) * 1000)


class Scene:
    """A repository that is written once a minute, and the machines that collect its garbage."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.world = ScriptedClock()
        self.world.now = 30 * DAY
        self.repo = ground.repo(TABLES)
        # What was the newest timestamp when.
        self.history: list[tuple[float, int]] = []

    def on(self, name: str, ahead: float = 0.0, began: float = 0.0) -> Repository:
        return self.ground.repo(TABLES, clock=Machine(name, self.world, ahead, began))

    def write(self) -> int:
        with self.repo.transaction() as t:
            t.set(bal, "Bob", len(self.history))
        assert t.commit_ts is not None
        self.history.append((self.world.now, t.commit_ts))
        return t.commit_ts

    def live(self, seconds: float, *collectors: Repository, every: float = 3600.0) -> None:
        """Time goes by: a write and a collection by each now and then."""
        until = self.world.now + seconds
        while self.world.now < until:
            self.world.now += every
            for one in collectors:
                self.write()
                self.check(one.collect_garbage(retention=DAY))

    def check(self, collected: Collected) -> None:
        """Nothing is gone that was superseded less than a day ago."""
        young = [ts for at, ts in self.history if at > self.world.now - DAY]
        assert collected.safe_point < young[0], "the retention was not kept"


@pytest.fixture
def scene(ground: Ground) -> Scene:
    return Scene(ground)


def test_one_machine_whose_clock_is_two_days_ahead_discards_nothing_that_is_retained(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    right = scene.on("right")
    ahead = scene.on("ahead", 2 * DAY, began=-100 * DAY)
    scene.live(2 * DAY, right)
    before = right.collect_garbage(retention=DAY).safe_point
    assert before > 0
    with caplog.at_level(logging.WARNING, "percola.gc"):
        first = ahead.collect_garbage(retention=DAY)
    scene.check(first)
    assert first.held_back == (
        "the clock went 172800 s ahead at once, which no other clock confirms, so that this time "
        "does not count"
    )
    assert "Check the clocks of the machines" in caplog.records[0].getMessage()
    # Nor does it when it collects again, for as long as it does, with others or alone.
    scene.live(DAY / 4, ahead)
    scene.live(3 * DAY, right, ahead)
    scene.live(3 * DAY, ahead)


def test_a_machine_that_is_ahead_does_not_keep_the_others_from_collecting(scene: Scene) -> None:
    right, ahead = scene.on("right"), scene.on("ahead", 1000 * DAY, began=DAY)
    scene.live(2 * DAY, right)
    scene.live(3600, ahead)
    for _ in range(6):
        before = scene.repo.context.store.safe_point()
        scene.live(3600, right)
        assert scene.repo.context.store.safe_point() > before
    # Nor do they keep each other from it.
    for _ in range(6):
        before = scene.repo.context.store.safe_point()
        scene.live(3600, right, ahead)
        assert scene.repo.context.store.safe_point() > before


def test_a_clock_that_is_set_forward_and_back_again_and_again_discards_nothing(
    scene: Scene,
) -> None:
    clock = Machine("one", scene.world)
    repo = scene.ground.repo(TABLES, clock=clock)
    scene.live(DAY / 2, repo)
    for _ in range(4):
        clock.ahead = 2 * DAY
        scene.live(1200, repo, every=600)
        clock.ahead = 0
        scene.live(1200, repo, every=600)


def test_where_collections_are_days_apart_the_steady_clock_of_the_machine_confirms_them(
    scene: Scene,
) -> None:
    """`percola gc` once in two days, each time by another process of one machine."""
    for _ in range(2):
        scene.live(2 * DAY, scene.on("cron"), every=2 * DAY)
    assert scene.repo.context.store.safe_point() >= scene.history[0][1]


def test_after_a_restart_a_pause_does_not_count_and_the_next_collection_goes_on(
    scene: Scene,
) -> None:
    scene.live(2 * DAY, scene.on("before"))
    before = scene.repo.context.store.safe_point()
    restarted = scene.on("after the restart", began=scene.world.now)
    scene.live(3 * DAY, restarted, every=3 * DAY)
    after = scene.repo.context.store.safe_point()
    assert before <= after < scene.history[-1][1]
    scene.live(1.1 * DAY, restarted)
    assert scene.repo.context.store.safe_point() >= scene.history[-27][1]


def test_p12_a_reader_below_a_safe_point_is_refused_also_with_a_wrong_clock(scene: Scene) -> None:
    first = scene.write()
    scene.live(3 * DAY, scene.on("right"), scene.on("ahead", DAY / 2))
    with pytest.raises(SnapshotTooOldError):
        scene.repo.snapshot(first)


# --- The log itself ---------------------------------------------------------------------


def entries(scene: Scene) -> list[tuple[int, bytes]]:
    return scene.ground.store.entries(TIME, Kind.DATA, 0, MAX_TS)


def test_the_log_stays_short_however_long_the_retention_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_log, "_ENTRIES", 50)
    year = 365 * DAY
    collector = GarbageCollector(scene.on("one").context, retention=year)
    for _ in range(75):
        scene.world.now += year / 50
        scene.write()
        for _ in range(3):  # A worker collects once a minute, and not once in nine hours.
            scene.world.now += 60
            scene.write()
            collector.collect()
    assert 45 <= len(entries(scene)) <= 52


def test_too_many_entries_become_fewer_until_the_log_is_short(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a retention of a minute leaves them behind, which is a day from now on."""
    monkeypatch.setattr(time_log, "_ENTRIES", 50)
    base = scene.write()
    scene.write()
    now = int(scene.world.now * 1000)
    puts = [Put(Kind.DATA, TIME.column, base + i, b"%d" % (now - 500 + i)) for i in range(500)]
    scene.ground.store.mutate([RowMutation(TIME.table, TIME.row, (), puts)])
    collector = GarbageCollector(scene.on("one").context, retention=DAY)
    for _ in range(4):
        collector.collect()
    assert 50 <= len(entries(scene)) <= 101


def test_entries_of_an_older_version_count_as_far_as_the_wall_clock_is_steady(scene: Scene) -> None:
    stamps = []
    for _ in range(30):
        scene.world.now += 3600
        stamps.append(scene.write())
        put = Put(Kind.DATA, TIME.column, stamps[-1], b"%d" % (scene.world.now * 1000))
        scene.ground.store.mutate([RowMutation(TIME.table, TIME.row, (), [put])])
    scene.world.now += 3600
    collected = scene.on("one").collect_garbage(retention=DAY)
    scene.check(collected)
    assert collected.safe_point == stamps[30 - 24 - 1]
