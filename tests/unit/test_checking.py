"""The checker of snapshot isolation: each anomaly in the smallest history that has it."""

from __future__ import annotations

import re

import pytest

from percola.testing.histories import violations as names
from percola.testing.histories.recorder import Outcome
from percola.testing.histories.timestamps import check, explain
from tests.unit.si_model import Story

X, Y, Z = "t.v/x", "t.v/y", "t.v/z"
Pairs = list[tuple[str, object]]


class Timed(Story):
    """Transactions with their timestamps."""

    def tx(
        self,
        start_ts: int,
        commit_ts: int | None = None,
        reads: Pairs | None = None,
        writes: Pairs | None = None,
        **rest: object,
    ) -> None:
        stamps = {"start_ts": start_ts, "commit_ts": commit_ts}
        self.add(**stamps, reads=reads or [], writes=writes or [], **rest)

    def anomalies(self) -> list[str]:
        return [one.anomaly for one in check(self.history)]


@pytest.fixture
def story() -> Timed:
    """x and y are 1, since timestamp 1."""
    begun = Timed()
    begun.tx(0, 1, writes=[(X, 1), (Y, 1)])
    return begun


def test_an_ordinary_history_has_no_anomaly(story: Timed) -> None:
    story.tx(1, 2, reads=[(X, 1), (Z, None)], writes=[(X, 2)])
    story.tx(2, 3, reads=[(X, 2), (Y, 1)], writes=[(Y, None)])
    story.tx(2, reads=[(X, 2), (Y, 1)], began=21)
    story.tx(3, reads=[(X, 2), (Y, None)], ranges=[(X, Z, [X])])
    assert check(story.history) == []
    assert explain(check(story.history), 4) == "No anomaly in 4 transactions."


def test_write_skew_is_permitted(story: Timed) -> None:
    story.tx(1, 2, reads=[(X, 1), (Y, 1)], writes=[(X, 2)])
    story.tx(1, 3, reads=[(X, 1), (Y, 1)], writes=[(Y, 2)], began=20)
    story.tx(3, reads=[(X, 2), (Y, 2)])
    assert check(story.history) == []


def test_a_reader_sees_a_commit_at_its_own_start_ts_as_one_step_commits_do(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 2)])
    story.tx(2, reads=[(X, 2)])
    story.tx(2, reads=[(X, 1)])
    assert story.anomalies() == [names.STALE_READ]


def test_aborted_read(story: Timed) -> None:
    story.tx(1, writes=[(X, 66)], outcome=Outcome.ABORTED)
    story.tx(1, reads=[(X, 66)])
    assert story.anomalies() == [names.DIRTY_READ]


def test_intermediate_read(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 3)], overwritten=[(X, 2)])
    story.tx(2, reads=[(X, 2)])
    assert story.anomalies() == [names.INTERMEDIATE_READ]


def test_circular_information_flow(story: Timed) -> None:
    story.tx(1, 2, reads=[(Y, 2)], writes=[(X, 2)])
    story.tx(1, 3, reads=[(X, 2)], writes=[(Y, 2)], began=20)
    assert story.anomalies() == [names.CIRCULAR_FLOW] * 2


def test_lost_update_by_overlapping_timestamps(story: Timed) -> None:
    story.tx(1, 2, reads=[(X, 1)], writes=[(X, 2)])
    story.tx(1, 3, reads=[(X, 1)], writes=[(X, 3)], began=20)
    assert story.anomalies() == [names.LOST_UPDATE]


def test_lost_update_behind_timestamps_that_look_right(story: Timed) -> None:
    story.tx(1, 2, reads=[(X, 1)], writes=[(X, 2)])
    story.tx(2, 3, reads=[(X, 1)], writes=[(X, 3)])
    assert story.anomalies() == [names.LOST_UPDATE]


def test_overlapping_writers_that_read_nothing(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 2)])
    story.tx(1, 3, writes=[(X, 3)], began=20)
    assert story.anomalies() == [names.OVERLAPPING_WRITERS]


@pytest.mark.parametrize(("first", "second"), [("lock", "write"), ("write", "lock"), ("lock",) * 2])
def test_a_cell_read_for_update_overlaps_a_writer(story: Timed, first: str, second: str) -> None:
    for number, how in enumerate((first, second), start=2):
        story.tx(
            1,
            number,
            writes=[(X, number)] if how == "write" else [(Z, number)] if number == 2 else [(Y, 9)],
            locked=[X] if how == "lock" else [],
            began=20,
        )
    assert story.anomalies() == [names.OVERLAPPING_WRITERS]


def test_read_skew_of_an_old_part(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 2), (Y, 2)])
    story.tx(2, reads=[(X, 2), (Y, 1)])
    assert story.anomalies() == [names.READ_SKEW]


def test_read_skew_of_a_new_part(story: Timed) -> None:
    story.tx(1, reads=[(X, 1), (Y, 2)], began=20, ended=60)
    story.tx(1, 2, writes=[(X, 2), (Y, 2)])
    assert story.anomalies() == [names.READ_SKEW]


def test_long_fork(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 2)], began=20)
    story.tx(1, 3, writes=[(Y, 2)], began=20)
    story.tx(2, reads=[(X, 2), (Y, 1)], began=20)
    story.tx(3, reads=[(X, 1), (Y, 2)], began=20)
    assert story.anomalies() == [names.LONG_FORK]


def test_non_repeatable_read(story: Timed) -> None:
    story.tx(1, reads=[(X, 1), (X, 2)], began=20, ended=60)
    story.tx(1, 2, writes=[(X, 2)])
    assert story.anomalies() == [names.NON_REPEATABLE_READ]


def test_stale_read_of_what_was_acknowledged(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 2)])
    story.tx(2, reads=[(X, 1)])
    assert story.anomalies() == [names.STALE_READ]


def test_a_snapshot_below_what_was_acknowledged_is_stale_whatever_it_reads(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 2)])
    story.tx(1, reads=[(X, 1)])
    assert story.anomalies() == [names.STALE_READ]


def test_a_snapshot_below_one_that_was_finished_is_stale(story: Timed) -> None:
    story.tx(5)
    story.tx(4)
    assert story.anomalies() == [names.STALE_READ]


def test_future_read(story: Timed) -> None:
    story.tx(1, reads=[(X, 2)], began=20, ended=60)
    story.tx(1, 2, writes=[(X, 2)])
    assert story.anomalies() == [names.FUTURE_READ]


def test_torn_transaction(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 2), (Y, 2)])
    story.tx(2, reads=[(X, 2)])
    story.tx(2, reads=[(Y, 1)])
    assert story.anomalies() == [names.TORN]


def test_phantom_that_a_range_left_out_and_one_that_it_kept(story: Timed) -> None:
    story.tx(1, ranges=[(X, Z, [X])], reads=[(X, 1)])
    assert story.anomalies() == [names.PHANTOM]
    story.history[-1].ranges = [(X, Y, [X])]
    assert story.anomalies() == []
    story.tx(1, 2, writes=[(Y, None)])
    story.tx(2, ranges=[(X, Z, [X, Y])], reads=[(X, 1), (Y, 1)])
    assert story.anomalies() == [names.STALE_READ]


def test_value_from_nowhere(story: Timed) -> None:
    story.tx(1, reads=[(X, 77)])
    story.tx(1, reads=[(Z, 77)])
    assert story.anomalies() == [names.FROM_NOWHERE] * 2


def test_a_value_that_was_written_to_another_key_comes_from_nowhere(story: Timed) -> None:
    story.tx(1, 2, writes=[(Y, 5)])
    story.tx(2, reads=[(X, 5)])
    assert story.anomalies() == [names.FROM_NOWHERE]


def test_what_was_there_is_gone_without_a_delete(story: Timed) -> None:
    story.tx(1, reads=[(X, None)])
    assert story.anomalies() == [names.STALE_READ]


def test_own_write_not_seen(story: Timed) -> None:
    story.tx(1, 2, writes=[(X, 5)], own_reads=[(X, 1, 5)])
    assert story.anomalies() == [names.OWN_WRITE_UNSEEN]


def test_timestamps_out_of_order(story: Timed) -> None:
    story.tx(3, 3, writes=[(Z, 1)])
    story.tx(4, None, writes=[(Z, 2)])
    assert story.anomalies() == [names.TIMESTAMPS_DISORDERED] * 2


def test_timestamp_used_twice(story: Timed) -> None:
    story.tx(1, 5, writes=[(X, 2)], began=20)
    story.tx(1, 5, writes=[(Z, 2)], began=20)
    assert story.anomalies() == [names.TIMESTAMP_TWICE]


def test_a_two_phase_start_ts_is_nobody_elses(story: Timed) -> None:
    story.tx(2)
    story.tx(2, two_phase=True)
    assert story.anomalies() == [names.TIMESTAMP_TWICE]
    story.history[1:] = []
    story.tx(1, two_phase=True)
    assert story.anomalies() == [names.TIMESTAMP_TWICE]


# --- Unknown outcomes -------------------------------------------------------------------


def lost(**rest: object) -> dict[str, object]:
    return {"outcome": Outcome.UNKNOWN, "ended": None, **rest}


def test_an_unknown_outcome_that_nobody_saw_claims_nothing(story: Timed) -> None:
    story.tx(1, writes=[(X, 2), (Y, 2)], **lost())
    story.tx(1, reads=[(X, 1), (Y, 1)])
    story.tx(1, 5, reads=[(X, 1)], writes=[(X, 3)])
    assert story.anomalies() == []


def test_an_unknown_outcome_that_somebody_saw_has_committed_from_then_on(story: Timed) -> None:
    story.tx(1, writes=[(X, 2), (Y, 2)], **lost())
    story.tx(4, reads=[(X, 1), (Y, 1)])
    story.tx(7, reads=[(X, 2), (Y, 2)])
    assert story.anomalies() == []
    story.tx(9, reads=[(X, 1)])
    assert story.anomalies() == [names.STALE_READ]


def test_an_unknown_outcome_is_seen_whole_or_it_is_torn(story: Timed) -> None:
    story.tx(1, writes=[(X, 2), (Y, 2)], **lost())
    story.tx(7, reads=[(X, 2)])
    story.tx(8, reads=[(Y, 1)])
    assert story.anomalies() == [names.TORN]


def test_an_unknown_outcome_is_placed_before_those_who_wrote_over_it(story: Timed) -> None:
    """It committed by 3, though it was first seen at 7, and then only in what nobody changed."""
    story.tx(1, writes=[(X, 2), (Y, 2)], **lost())
    story.tx(3, 4, writes=[(X, 3)])
    story.tx(7, reads=[(X, 3), (Y, 2)])
    assert story.anomalies() == []
    story.history[2].start_ts = 1
    story.history[2].began = 15
    assert names.OVERLAPPING_WRITERS in story.anomalies()


def test_two_unknown_outcomes_in_a_row_are_both_placed(story: Timed) -> None:
    story.tx(1, writes=[(X, 2), (Y, 2)], **lost())
    story.tx(3, reads=[(X, 2)], writes=[(X, 3), (Z, 3)], **lost())
    story.tx(7, reads=[(X, 3), (Z, 3), (Y, 2)])
    assert story.anomalies() == []


def test_a_known_commit_ts_of_an_unknown_outcome_is_kept_to(story: Timed) -> None:
    story.tx(1, 3, writes=[(X, 2)], **lost())
    story.tx(2, reads=[(X, 1)])
    assert story.anomalies() == []
    story.tx(7, reads=[(X, 2)])
    assert story.anomalies() == []
    story.tx(2, reads=[(X, 2)], began=25)
    assert story.anomalies() == [names.FUTURE_READ]


def test_a_delete_of_unknown_outcome_is_recognised(story: Timed) -> None:
    story.tx(1, writes=[(X, None), (Y, 2)], **lost())
    story.tx(7, reads=[(X, None), (Y, 2)])
    assert story.anomalies() == []


# --- What is reported -------------------------------------------------------------------


def test_a_story_names_transactions_keys_values_and_timestamps(story: Timed) -> None:
    story.tx(1, 2, reads=[(X, 1)], writes=[(X, 2)])
    story.tx(1, 3, reads=[(X, 1)], writes=[(X, 3)], began=20)
    (found,) = check(story.history)
    assert found.story == (
        "T3 (p3, 1→3) started at 1, before T2 (p2, 1→2) committed at 2, and committed at 3; "
        "it read t.v/x as 1 and wrote over 2, which it never saw."
    )
    assert found.transactions == (2, 3)
    assert found.key == X
    text = explain([found], 3)
    assert text.startswith("Found in 3 transactions: 1 × lost update (P4).\n  1. lost update (P4)")


def test_a_mistake_with_a_thousand_consequences_is_reported_so_often_as_asked(story: Timed) -> None:
    for number in range(3000):
        story.tx(2 + number, reads=[(X, 99)])
    assert len(check(story.history)) == 20
    assert len(check(story.history, limit=3)) == 3


def test_a_long_value_is_shortened_in_a_story(story: Timed) -> None:
    story.tx(1, reads=[(X, list(range(1000)))])
    (found,) = check(story.history)
    assert len(found.story) < 300
    assert re.search(r"\[0, 1, 2, .*….*998, 999\]", found.story)
