"""Anomalies seeded into correct histories of a model: the checker finds each, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percola.testing.histories import violations as names
from percola.testing.histories.recorder import Outcome, Recorded
from percola.testing.histories.timestamps import check, explain
from tests.unit.si_model import KEYS, Model, pick, seeded

Seed = Callable[[random.Random, list[Recorded]], bool]
"""Puts one mistake into a history; False if there is no place for it."""

TOO_OLD = {
    names.LOST_UPDATE,
    names.TORN,
    names.READ_SKEW,
    names.LONG_FORK,
    names.STALE_READ,
    names.NON_REPEATABLE_READ,
}
TOO_NEW = {names.FUTURE_READ, names.READ_SKEW, names.CIRCULAR_FLOW, names.NON_REPEATABLE_READ}


@settings(max_examples=150)
@given(rng=st.randoms(use_true_random=True), steps=st.integers(1, 250), appends=st.booleans())
def test_a_correct_history_has_no_anomaly(rng: random.Random, steps: int, appends: bool) -> None:
    history = Model(rng, appends=appends, clients=rng.randint(1, 6)).run(steps)
    found = check(history)
    assert not found, explain(found)


def _wrote(record: Recorded, key: str) -> bool:
    return any(key == one for one, _ in record.writes)


def _own(record: Recorded, key: str, value: object) -> bool:
    """Whether the record itself explains such a read."""
    return value is not None and (key, value) in [*record.writes, *record.overwritten]


def _outside(record: Recorded) -> list[tuple[int, str, object]]:
    """Reads of a transaction that has a start to be wrong about: position, key, value."""
    return [(at, key, value) for at, (key, value) in enumerate(record.reads)]


def _versions(history: list[Recorded], key: str) -> list[tuple[int, object]]:
    versions: list[tuple[int, object]] = [(0, None)]
    for one in history:
        if one.outcome is Outcome.COMMITTED and one.commit_ts is not None:
            versions += [(one.commit_ts, value) for name, value in one.writes if name == key]
    return sorted(versions, key=lambda version: version[0])


def read_something_else(
    choose: Callable[[Recorded, str, object, list[Recorded]], list[object]],
) -> Seed:
    def seed(rng: random.Random, history: list[Recorded]) -> bool:
        places = [
            (one, at, other)
            for one in history
            for at, key, value in _outside(one)
            for other in choose(one, key, value, history)
            if other != value
        ]
        if not places:
            return False
        record, at, other = rng.choice(places)
        record.reads[at] = (record.reads[at][0], other)
        return True

    return seed


def aborted(one: Recorded, key: str, value: object, history: list[Recorded]) -> list[object]:
    return [
        got
        for other in history
        if other.outcome is Outcome.ABORTED and other is not one
        for name, got in other.writes
        if name == key and got is not None
    ]


def intermediate(one: Recorded, key: str, value: object, history: list[Recorded]) -> list[object]:
    return [
        got
        for other in history
        if other is not one
        for name, got in other.overwritten
        if name == key and got is not None
    ]


def older(one: Recorded, key: str, value: object, history: list[Recorded]) -> list[object]:
    versions = _versions(history, key)
    if all(value != got for _, got in versions):
        return []  # Nobody else need have seen that one: of unknown outcome, it may not be there.
    return [got for ts, got in versions[:-1] if ts < one.start_ts and not _own(one, key, got)]


def newer(one: Recorded, key: str, value: object, history: list[Recorded]) -> list[object]:
    return [
        got
        for ts, got in _versions(history, key)
        if ts > one.start_ts and got is not None and not _own(one, key, got)
    ]


def invented(one: Recorded, key: str, value: object, history: list[Recorded]) -> list[object]:
    return [-1]


def forget_an_own_write(rng: random.Random, history: list[Recorded]) -> bool:
    record = pick(rng, history, lambda one: bool(one.own_reads))
    if record is None:
        return False
    key, _, written = record.own_reads[0]
    record.own_reads[0] = (key, -1, written)
    return True


def leave_a_key_out_of_a_range(rng: random.Random, history: list[Recorded]) -> bool:
    """A key that surely was there: one of unknown outcome need not have been."""
    places = [
        (one, there, key)
        for one in history
        for _, _, there in one.ranges
        for key in there
        if not _wrote(one, key)
        and any(got == dict(one.reads)[key] for _, got in _versions(history, key))
    ]
    if not places:
        return False
    record, there, gone = rng.choice(places)
    there.remove(gone)
    record.reads = [(key, value) for key, value in record.reads if key != gone]
    return True


def begin_before_the_previous_writer_committed(rng: random.Random, history: list[Recorded]) -> bool:
    """A blind writer: nothing that it read tells on it."""
    committed = [one for one in history if one.outcome is Outcome.COMMITTED and one.commit_ts]
    pairs = [
        (before, one)
        for one in committed
        for before in committed
        if before.commit_ts
        and before.start_ts < before.commit_ts - 1 < one.start_ts
        and any(_wrote(one, key) and _wrote(before, key) for key in KEYS)
    ]
    if not pairs:
        return False
    before, one = rng.choice(pairs)
    assert before.commit_ts
    one.start_ts, one.reads, one.ranges, one.two_phase = before.commit_ts - 1, [], [], False
    one.began = 0
    return True


def commit_at_its_start(rng: random.Random, history: list[Recorded]) -> bool:
    record = pick(rng, history, lambda one: one.commit_ts is not None)
    if record is None:
        return False
    record.commit_ts = record.start_ts
    return True


def commit_at_anothers(rng: random.Random, history: list[Recorded]) -> bool:
    committed = [one for one in history if one.commit_ts is not None]
    if len(committed) < 2:
        return False
    one, other = rng.sample(committed, 2)
    one.commit_ts = other.commit_ts
    return True


def start_below_what_was_acknowledged(rng: random.Random, history: list[Recorded]) -> bool:
    places = [
        (one, other)
        for one in history
        for other in history
        if other.commit_ts
        and other.ended is not None
        and other.outcome is Outcome.COMMITTED
        and other.ended < one.began
    ]
    if not places:
        return False
    one, other = rng.choice(places)
    assert other.commit_ts
    one.start_ts, one.reads, one.ranges = other.commit_ts - 1, [], []
    return True


SEEDS: dict[str, tuple[Seed, set[str], bool]] = {
    "an aborted value is read": (
        read_something_else(aborted), {names.DIRTY_READ, names.NON_REPEATABLE_READ}, False
    ),
    "an intermediate value is read": (
        read_something_else(intermediate),
        {names.INTERMEDIATE_READ, names.NON_REPEATABLE_READ},
        False,
    ),
    "an older value is read": (read_something_else(older), TOO_OLD, False),
    "a newer value is read": (read_something_else(newer), TOO_NEW, False),
    "a value that nobody wrote is read": (
        read_something_else(invented), {names.FROM_NOWHERE, names.NON_REPEATABLE_READ}, False
    ),
    "an older list is read": (read_something_else(older), TOO_OLD, True),
    "a newer list is read": (read_something_else(newer), TOO_NEW, True),
    "an own write is not seen": (forget_an_own_write, {names.OWN_WRITE_UNSEEN}, False),
    "a range leaves a key out": (leave_a_key_out_of_a_range, {names.PHANTOM}, False),
    "two writers overlap": (
        begin_before_the_previous_writer_committed, {names.OVERLAPPING_WRITERS}, False
    ),
    "a commit is not above its start": (commit_at_its_start, {names.TIMESTAMPS_DISORDERED}, False),
    "a commit timestamp is drawn twice": (commit_at_anothers, {names.TIMESTAMP_TWICE}, False),
    "a snapshot is stale": (start_below_what_was_acknowledged, {names.STALE_READ}, False),
}  # fmt: skip


@pytest.mark.parametrize("what", SEEDS)
@pytest.mark.parametrize("deaths", [0, 0.1])
def test_a_seeded_anomaly_is_found_and_under_its_name_if_all_outcomes_are_known(
    what: str, deaths: float
) -> None:
    """An unknown outcome may explain a wrong read in another way, which others then contradict."""
    seed, expected, appends = SEEDS[what]

    def judge(history: list[Recorded]) -> None:
        found = {one.anomaly for one in check(history)}
        assert found & expected or (deaths and found), f"found {found}"

    # A delete of unknown outcome would explain that nothing is there, and be no anomaly.
    deletes = 0 if deaths else 0.15
    assert seeded(seed, judge, appends=appends, deaths=deaths, deletes=deletes) >= 40
