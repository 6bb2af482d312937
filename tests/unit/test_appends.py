"""The cycle check of append histories: it finds each anomaly without looking at timestamps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percola.testing.histories import violations as names
from percola.testing.histories.appends import check_appends
from percola.testing.histories.recorder import Outcome, Recorded
from percola.testing.histories.violations import explain
from tests.unit.si_model import Model, Story, seeded

X, Y = "t.v/x", "t.v/y"
Reads = dict[str, list[int]]


class Appended(Story):
    """Transactions that read lists and append to them; all timestamps are 0."""

    def tx(
        self,
        reads: Reads | None = None,
        writes: Reads | None = None,
        *,
        at: tuple[int, int] = (0, 1_000),
        outcome: Outcome = Outcome.COMMITTED,
        **rest: str,
    ) -> None:
        """All of them are under way at the same time unless `at` says when."""
        cells = {"reads": [*(reads or {}).items()], "writes": [*(writes or {}).items()]}
        ended = None if outcome is Outcome.UNKNOWN else at[1]
        stamps = {"start_ts": 0, "commit_ts": 0, "began": at[0], "ended": ended}
        self.add(**stamps, **cells, outcome=outcome, **rest)

    def anomalies(self, *, real_time: bool = True) -> list[str]:
        return [one.anomaly for one in check_appends(self.history, real_time=real_time)]


@pytest.fixture
def story() -> Appended:
    return Appended()


def test_an_ordinary_history_has_no_anomaly(story: Appended) -> None:
    story.tx({X: []}, {X: [1]})
    story.tx({X: [1], Y: []}, {X: [1, 2], Y: [5]})
    story.tx({X: [1, 2], Y: [5]})
    story.tx({X: [1], Y: []})
    assert story.anomalies() == []


def test_write_skew_is_permitted(story: Appended) -> None:
    story.tx({X: [], Y: []}, {X: [1]})
    story.tx({X: [], Y: []}, {Y: [1]})
    story.tx({X: [1], Y: [1]})
    assert story.anomalies() == []


def test_feketes_read_only_anomaly_is_permitted(story: Appended) -> None:
    story.tx({X: [], Y: []}, {X: [1]})
    story.tx({Y: []}, {Y: [1]})
    story.tx({X: [], Y: [1]})
    story.tx({X: [1], Y: [1]})
    assert story.anomalies() == []


def test_g0_two_transactions_wrote_over_each_other(story: Appended) -> None:
    story.tx(None, {X: [1], Y: [2, 1]})
    story.tx(None, {X: [1, 2], Y: [2]})
    story.tx({X: [1, 2]})
    story.tx({Y: [2, 1]})
    assert story.anomalies() == [names.DIRTY_WRITE]


def test_g1a_aborted_read(story: Appended) -> None:
    story.tx({X: []}, {X: [1]}, outcome=Outcome.ABORTED)
    story.tx({X: [1]})
    assert story.anomalies() == [names.DIRTY_READ]


def test_g1b_intermediate_read(story: Appended) -> None:
    story.tx({X: []}, {X: [1, 2]})
    story.tx({X: [1]})
    story.tx({X: [1, 2]})
    assert names.INTERMEDIATE_READ in story.anomalies()


def test_g1c_two_transactions_saw_each_other(story: Appended) -> None:
    story.tx({X: [], Y: [2]}, {X: [1]})
    story.tx({Y: [], X: [1]}, {Y: [2]})
    assert story.anomalies() == [names.CIRCULAR_FLOW]


def test_g_single_half_of_a_transaction_was_seen(story: Appended) -> None:
    story.tx({X: [], Y: []}, {X: [1], Y: [1]})
    story.tx({X: [1], Y: []})
    story.tx({X: [1], Y: [1]})
    assert story.anomalies() == [names.READ_SKEW]


def test_lost_update_that_nobody_ever_read(story: Appended) -> None:
    story.tx({X: []}, {X: [1]})
    story.tx({X: []}, {X: [2]})
    story.tx({X: [2]})
    assert names.LOST_UPDATE in story.anomalies()


def test_long_fork(story: Appended) -> None:
    story.tx({X: []}, {X: [1]})
    story.tx({Y: []}, {Y: [1]})
    story.tx({X: [1], Y: []})
    story.tx({X: [], Y: [1]})
    story.tx({X: [1], Y: [1]})
    assert story.anomalies() == [names.LONG_FORK]


def test_incompatible_orders(story: Appended) -> None:
    story.tx({X: []}, {X: [1]})
    story.tx(None, {X: [1, 2]})
    story.tx({X: [1, 2]})
    story.tx({X: [2, 1]})
    assert names.INCOMPATIBLE_ORDERS in story.anomalies()


def test_an_element_that_stands_twice_was_applied_twice(story: Appended) -> None:
    story.tx({X: []}, {X: [1]})
    story.tx({X: [1, 1]})
    story.tx({X: [1, 1, 1]})
    found = check_appends(story.history)
    assert names.INCOMPATIBLE_ORDERS in {one.anomaly for one in found}
    assert "1 stands in t.v/x twice" in explain(found)


def test_a_value_from_nowhere(story: Appended) -> None:
    story.tx({X: [7]})
    assert story.anomalies() == [names.FROM_NOWHERE]


def test_a_write_that_is_no_append_of_what_was_read(story: Appended) -> None:
    story.tx({X: []}, {X: [1]})
    story.tx({X: [1]}, {X: [2]})
    assert names.OWN_WRITE_UNSEEN in story.anomalies()


def test_stale_read_of_what_was_over_in_real_time(story: Appended) -> None:
    story.tx({X: []}, {X: [1]}, at=(10, 20))
    story.tx({X: []}, at=(30, 40))
    story.tx({X: [1]}, at=(30, 40))
    assert story.anomalies() == [names.STALE_READ]
    assert story.anomalies(real_time=False) == []


def test_stale_read_within_a_process_counts_without_a_shared_clock(story: Appended) -> None:
    story.tx({X: []}, {X: [1]}, at=(10, 20), process="p")
    story.tx({X: []}, at=(30, 40), process="p")
    story.tx({X: [1]}, at=(30, 40))
    assert story.anomalies(real_time=False) == [names.STALE_READ]


def test_seen_before_it_began(story: Appended) -> None:
    story.tx({X: [1]}, at=(10, 20))
    story.tx({X: []}, {X: [1]}, at=(30, 40))
    assert story.anomalies() == [names.CIRCULAR_FLOW]


def test_unknown_outcomes_count_from_what_was_seen_of_them(story: Appended) -> None:
    story.tx({X: [], Y: []}, {X: [1], Y: [1]}, outcome=Outcome.UNKNOWN)
    story.tx({X: [], Y: []})
    assert story.anomalies() == []
    story.tx({X: [1], Y: [1]})
    assert story.anomalies() == []
    story.tx({X: [1], Y: []})
    assert story.anomalies() == [names.READ_SKEW]


def test_a_story_tells_the_cycle(story: Appended) -> None:
    story.tx({X: [], Y: []}, {X: [1], Y: [2]})
    story.tx({X: [1], Y: []})
    story.tx({Y: [2]})
    (found,) = check_appends(story.history)
    assert "T1 (p1, 0) had appended" in found.story
    assert "T2 (p2, 0) read t.v/y without 2, which T1 (p1, 0) appended" in found.story
    assert set(found.transactions) == {1, 2}


def test_elements_must_tell_writers_apart(story: Appended) -> None:
    story.tx({X: []}, {X: [1]})
    story.tx({X: [1]}, {X: [1, 1]})
    with pytest.raises(ValueError, match=r"1 was appended to t\.v/x by both T1 .* and T2"):
        story.anomalies()


def test_values_must_be_lists(story: Appended) -> None:
    story.history.append(Recorded(1, "p", 0, None, Outcome.COMMITTED, [(X, 3)], [], 0, 1))
    with pytest.raises(ValueError, match="3 is not a list"):
        story.anomalies()


def test_a_long_chain_needs_no_recursion(story: Appended) -> None:
    base: list[int] = []
    for number in range(3_000):
        story.tx({X: base}, {X: [*base, number]}, at=(2 * number, 2 * number + 1))
        base = [*base, number]
    assert story.anomalies() == []


@settings(max_examples=150)
@given(rng=st.randoms(use_true_random=True), steps=st.integers(1, 250))
def test_a_correct_history_has_no_cycle_by_any_timestamps(rng: random.Random, steps: int) -> None:
    history = Model(rng, appends=True, clients=rng.randint(1, 6)).run(steps)
    for one in history:
        one.start_ts, one.commit_ts = rng.randrange(100), rng.randrange(100)
    found = check_appends(history)
    assert not found, explain(found)


def committed(history: list[Recorded]) -> list[Recorded]:
    return [one for one in history if one.outcome is Outcome.COMMITTED]


def read_a_shorter_list(rng: random.Random, history: list[Recorded]) -> bool:
    """One that somebody's append, over before the reader began, is missing from."""
    over: list[tuple[int, str, int]] = [
        (one.ended, key, len(value))
        for one in committed(history)
        if one.ended is not None
        for key, value in one.writes
        if isinstance(value, list)
    ]
    places = [
        (one, at, length)
        for one in committed(history)
        for at, (key, value) in enumerate(one.reads)
        if isinstance(value, list)
        for ended, name, length in over
        if name == key and ended < one.began and length <= len(value)
    ]
    if not places:
        return False
    one, at, length = rng.choice(places)
    key, value = one.reads[at]
    assert isinstance(value, list)
    one.reads[at] = (key, value[: length - 1] or None)
    one.writes = [(name, [*value[: length - 1], got[-1]]) if name == key and isinstance(got, list)
                  else (name, got) for name, got in one.writes]  # fmt: skip
    return True


def read_an_aborted_append(rng: random.Random, history: list[Recorded]) -> bool:
    places = [
        (reader, at, got)
        for one in history
        if one.outcome is Outcome.ABORTED
        for key, got in one.writes
        for reader in committed(history)
        if not reader.writes
        for at, (name, _) in enumerate(reader.reads)
        if name == key
    ]
    if not places:
        return False
    reader, at, got = rng.choice(places)
    reader.reads[at] = (reader.reads[at][0], got)
    return True


def commit_what_conflicted(rng: random.Random, history: list[Recorded]) -> bool:
    """An aborted transaction whose append somebody else's took the place of."""
    places = [
        one
        for one in history
        if one.outcome is Outcome.ABORTED and not one.overwritten
        for key, mine in one.writes
        for other in committed(history)
        if not other.overwritten
        for name, theirs in other.writes
        if name == key
        and isinstance(mine, list)
        and isinstance(theirs, list)
        and mine[:-1] == theirs[:-1]
    ]
    if not places:
        return False
    rng.choice(places).outcome = Outcome.COMMITTED
    return True


SEEDS: dict[str, tuple[Callable[[random.Random, list[Recorded]], bool], str | None]] = {
    "an acknowledged append is not read": (read_a_shorter_list, None),
    "an aborted append is read": (read_an_aborted_append, names.DIRTY_READ),
    "both of two conflicting appends commit": (commit_what_conflicted, names.LOST_UPDATE),
}


@pytest.mark.parametrize("what", SEEDS)
def test_a_seeded_anomaly_is_found_without_timestamps(what: str) -> None:
    seed, expected = SEEDS[what]

    def judge(history: list[Recorded]) -> None:
        for one in history:
            one.start_ts, one.commit_ts = 0, None
        found = {one.anomaly for one in check_appends(history)}
        assert found if expected is None else expected in found

    assert seeded(seed, judge, appends=True) >= 40
