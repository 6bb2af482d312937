"""How old a timestamp is, by what a worker has noted: never too much, and hardly too little."""

from __future__ import annotations

import random

from stores import ScriptedClock

from percola.gc.time_log import Entry
from percola.observers.draw_times import DrawTimes


def test_an_age_counts_from_the_first_note_that_is_not_below() -> None:
    clock = ScriptedClock()
    times = DrawTimes(clock)
    assert times.age(5) == 0, "nothing was noted"
    times.note(10)
    clock.now += 1
    times.note(20)
    clock.now += 1
    times.note(20)
    clock.now += 1
    assert [times.age(ts) for ts in (9, 10, 11, 20, 21)] == [3, 3, 2, 2, 0]


def test_before_the_first_note_ages_are_those_of_the_log() -> None:
    clock = ScriptedClock()
    wall = clock.wall_ms()
    log = [Entry(ts, wall - ago * 1000, 0, "") for ts, ago in ((40, 60), (30, 150), (20, 120))]
    times = DrawTimes(clock)
    times.note(35)
    times.learn(log)
    ages = [times.age(ts) for ts in (20, 30, 31, 35, 36)]
    assert ages == [120, 120, 0, 0, 0], "a clock that was ahead makes nothing older"


def test_old_notes_are_thinned_out_and_ages_stay_right_to_half_a_percent() -> None:
    clock, rng = ScriptedClock(), random.Random(1)
    times = DrawTimes(clock)
    drawn: dict[int, float] = {}
    for ts in range(1, 60_000):
        clock.now += rng.choice((0.001, 0.02, 0.5))
        drawn[ts] = clock.now
        times.note(ts)
    assert len(times._noted[0]) <= 8192
    for ts in rng.sample(sorted(drawn), 2000):
        age = clock.now - drawn[ts]
        assert age * 0.995 - 0.6 <= times.age(ts) <= age, ts
