"""§2.3, rule P1: ranges of timestamps reserved in the store, by oracles that take over."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from oracle_schedules import Event, Schedule, broken_promises

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import DamagedRecordError, OutcomeUnknownError, StoreError, UsageError
from percola.oracle import ranges
from percola.oracle.ranges import HIGHEST, Plan, Ranges, Refused
from percola.oracle.record import ORACLE_TABLE, newest, replacement
from percola.store.base import Delete, Put, RowMutation
from percola.store.memory import MemoryStore

SEEDS = 400


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    made.create_tables([ORACLE_TABLE])
    return made


@pytest.fixture
def hand() -> Hand:
    return Hand()


def leader(store: MemoryStore, hand: Hand, name: str = "a", **options: Any) -> Ranges:
    made = Ranges(store, name=name, **{"lease": 3.0, "size": 10, "clock": hand, **options})
    made.step()
    return made


def limit(store: MemoryStore) -> int:
    record = newest(store)
    assert record is not None
    return record.limit


# --- The paper's allocator --------------------------------------------------------------


def test_timestamps_start_at_1_and_never_pass_the_limit_in_the_store(
    store: MemoryStore, hand: Hand
) -> None:
    oracle = leader(store, hand)
    drawn = []
    for _ in range(50):
        ts = oracle.draw(1)
        if isinstance(ts, Refused):
            assert oracle.wake.is_set()
            oracle.step()
            ts = oracle.draw(1)
        assert isinstance(ts, int) and ts <= limit(store)
        drawn.append(ts)
        assert oracle.last() == ts
    assert drawn == list(range(1, 51))


def test_a_restart_jumps_to_the_limit_and_a_clean_stop_leaves_no_gap(
    store: MemoryStore, hand: Hand
) -> None:
    first = leader(store, hand)
    assert first.draw(3) == 1
    first.release()
    second = leader(store, hand)
    assert second.last() == 3
    assert second.draw(1) == 4, "a clean stop hands over at once, and what was not handed out"
    # Killed: nothing is released.
    third = leader(store, hand)
    refused = third.draw(1)
    assert isinstance(refused, Refused) and refused.elsewhere
    hand.now += 3.31
    third.step()
    found = third.last()
    assert isinstance(found, int) and found >= 13
    assert third.draw(1) == found + 1


def test_a_stopped_oracle_hands_out_nothing_and_takes_nothing_over(
    store: MemoryStore, hand: Hand
) -> None:
    oracle = leader(store, hand)
    oracle.release()
    oracle.release()
    oracle.step()
    assert isinstance(oracle.draw(1), Refused)
    assert isinstance(oracle.last(), Refused)
    record = newest(store)
    assert record is not None and record.holder == "" and record.version == 2


def test_an_idle_oracle_renews_its_lease_without_reserving_more(
    store: MemoryStore, hand: Hand
) -> None:
    oracle = leader(store, hand)
    for _ in range(20):
        hand.now += 1.1
        oracle.step()
        assert oracle.holds
    record = newest(store)
    assert record is not None and record.limit == 10 and record.version == 21
    entries = store.entries(Cell(ORACLE_TABLE, b"timestamps", b"@record"), Kind.DATA, 0, MAX_TS)
    assert len(entries) == 1, "old versions are removed by the write that replaces them"


def test_a_thread_waits_for_the_next_range_and_gets_it(store: MemoryStore, hand: Hand) -> None:
    oracle = leader(store, hand, size=4)
    assert oracle.draw(4) == 1
    got: list[int | Refused] = []
    thread = threading.Thread(target=lambda: got.append(oracle.draw(4, timeout=20)))
    oracle.wake.clear()
    thread.start()
    assert oracle.wake.wait(20)
    oracle.step()
    thread.join(20)
    assert got == [5]


# --- Taking over ------------------------------------------------------------------------


def test_a_standby_waits_out_the_whole_lease_from_when_it_saw_the_record(
    store: MemoryStore, hand: Hand
) -> None:
    old = leader(store, hand)
    hand.now += 2.9
    standby = leader(store, hand, "b")
    assert old.holds and not standby.holds
    hand.now += 0.2
    assert not old.holds, "its lease is counted from before it sent the record"
    hand.now += 3.05
    standby.step()
    assert not standby.holds, "a clock may run a tenth faster than another"
    hand.now += 0.1
    standby.step()
    assert standby.holds
    assert standby.draw(1) == 11
    old.step()
    assert not old.holds


def test_a_holder_whose_lease_ran_out_goes_on_if_nobody_took_over(
    store: MemoryStore, hand: Hand
) -> None:
    oracle = leader(store, hand)
    assert oracle.draw(1) == 1
    hand.now += 100
    assert isinstance(oracle.draw(1), Refused)
    oracle.step()
    assert oracle.draw(1) == 2


# --- Lost replies -----------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_a_write_without_an_answer_is_settled_by_reading(
    store: MemoryStore, hand: Hand, applied: bool
) -> None:
    oracle = leader(store, hand)
    real = store.mutate
    sent: list[RowMutation] = []

    def lose(batch: Sequence[RowMutation]) -> list[bool]:
        sent.extend(batch)
        if applied:
            assert real(batch) == [True]
        raise OutcomeUnknownError("no answer")

    store.mutate = lose  # type: ignore[method-assign]
    hand.now += 2.6
    with pytest.raises(OutcomeUnknownError):
        oracle.step()
    assert oracle.holds, "the lease of the version that is known still runs"
    hand.now += 0.5
    assert not oracle.holds, "a renewal that may not have been applied counts for nothing"

    def again(batch: Sequence[RowMutation]) -> list[bool]:
        sent.extend(batch)
        return real(batch)

    store.mutate = again
    oracle.step()
    assert oracle.holds
    assert len(sent) == (1 if applied else 2)
    assert all(one == sent[0] for one in sent), "the very same mutation is sent again"
    hand.now += 2.55
    assert not oracle.holds, "the lease counts from when the renewal was first sent"


def test_a_take_over_without_an_answer_that_arrives_late_is_harmless(
    store: MemoryStore, hand: Hand
) -> None:
    old = leader(store, hand)
    standby = leader(store, hand, "b")
    hand.now += 3.4
    late: list[RowMutation] = []

    def lose(batch: Sequence[RowMutation]) -> list[bool]:
        late.extend(batch)
        raise OutcomeUnknownError("no answer")

    standby._store = MemoryStore()
    standby._store.entries = store.entries  # type: ignore[method-assign]
    standby._store.mutate = lose  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknownError):
        standby.step()
    assert len(late) == 1
    old.step()
    assert old.draw(2) == 1
    assert store.mutate(late) == [False]
    standby.step()
    assert len(late) == 1, "it waits anew for the version that it sees now"
    hand.now += 3.4
    with pytest.raises(OutcomeUnknownError):
        standby.step()
    assert len(late) == 2


# --- Things that must not be ------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "set back"])
def test_an_oracle_whose_record_is_gone_or_set_back_stops_and_says_what_to_do(
    store: MemoryStore, hand: Hand, how: str
) -> None:
    oracle = leader(store, hand)
    cell = Cell(ORACLE_TABLE, b"timestamps", b"@record")
    [(version, raw)] = store.entries(cell, Kind.DATA, 0, MAX_TS)
    hand.now += 2
    oracle.step()
    changes: list[Put | Delete] = [Delete(Kind.DATA, cell.column, version + 1)]
    if how == "set back":
        changes.append(Put(Kind.DATA, cell.column, version, raw))
    store.mutate([RowMutation(ORACLE_TABLE, cell.row, (), changes)])
    hand.now += 2
    for _ in range(2):
        with pytest.raises(StoreError, match=r"gone or was set back.*--above"):
            oracle.step()
        assert not oracle.holds
    hand.now += 10
    again = leader(store, hand, "b", above=500)
    if how == "set back":
        hand.now += 4
        again.step()
    assert again.draw(1) == 501


def test_a_record_that_is_none_is_refused(store: MemoryStore, hand: Hand) -> None:
    put = Put(Kind.DATA, b"@record", 1, b'{"limit": "x"}')
    store.mutate([RowMutation(ORACLE_TABLE, b"timestamps", (), [put])])
    with pytest.raises(DamagedRecordError, match="not the oracle's record"):
        leader(store, hand)


def test_timestamps_end_where_bigtable_ends(store: MemoryStore, hand: Hand) -> None:
    oracle = leader(store, hand, above=HIGHEST - 12)
    assert oracle.draw(10) == HIGHEST - 11
    with pytest.raises(StoreError, match="used up"):
        oracle.step()


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease": 0.0},
        {"lease": 1e9},
        {"size": 0},
        {"size": 10**10},
        {"above": -1},
        {"above": 2**63},
    ],
)
def test_numbers_that_cannot_work_are_refused(store: MemoryStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Ranges(store, name="a", **wrong)


def test_too_many_at_once_or_none_are_refused(store: MemoryStore, hand: Hand) -> None:
    oracle = leader(store, hand)
    for count in (0, 11, -1):
        with pytest.raises(UsageError, match="From 1 to 10"):
            oracle.draw(count)


# --- Schedules --------------------------------------------------------------------------


def test_p1_holds_in_every_schedule_of_slow_oracles_lost_replies_and_late_writes() -> None:
    counts: Counter[str] = Counter()
    calls = 0
    for seed in range(SEEDS):
        done = Schedule(seed).run()
        problems = broken_promises(done.events)
        assert not problems, (seed, problems[:3])
        counts.update(done.counts)
        calls += len(done.events)
    assert calls > 20 * SEEDS, "hardly anything was handed out"
    assert all(counts[what] > SEEDS / 4 for what in counts), counts


class WithoutLease(Ranges):
    """Hands out for as long as it has not seen that another one took over."""

    def _refusal(self) -> Refused | None:
        return None if self._holds else Refused(True, "")


class LeaseFromTheAnswer(Ranges):
    """Counts its lease from when the renewal was answered."""

    def _adopt(self, plan: Plan) -> None:
        super()._adopt(plan._replace(noted=self._clock()))


class CountsFromTheQuestion(Ranges):
    """Waits out the lease from when it asked for the record."""

    def _look(self) -> None:
        asked, before = self._clock(), self._found
        super()._look()
        if self._found != before:
            self._since = asked


class NoMargin(Ranges):
    """Takes its clock for as fast as the holder's."""

    def _due(self) -> Plan | None:
        self._since -= 0.1 * (self._found.lease_ms / 1000 if self._found else 0)
        try:
            return super()._due()
        finally:
            self._since += 0.1 * (self._found.lease_ms / 1000 if self._found else 0)


class TakesLossForSuccess(Ranges):
    """Takes a write that was not answered for applied."""

    def _carry_out(self, plan: Plan) -> None:
        try:
            super()._carry_out(plan)
        except OutcomeUnknownError:
            self._adopt(plan)


class BeginsWhereTheRangeBegan(Ranges):
    """Begins below the limit that it found."""

    def _due(self) -> Plan | None:
        plan = super()._due()
        if plan is None or plan.first is None or plan.replaces is None:
            return plan
        return plan._replace(first=max(1, plan.first - 2))


class HandsOutBeforeItIsWritten(Ranges):
    """Goes on above the limit while the write that raises it is under way."""

    def _carry_out(self, plan: Plan) -> None:
        self._end = max(self._end, plan.record.limit + 1)
        super()._carry_out(plan)


class StepsDownTooLate(Ranges):
    """Goes on handing out while the record is released."""

    def release(self, timeout: float = 5.0) -> None:
        found = self._found
        if found is not None and self._plan is None and self._holds:
            record = found._replace(version=found.version + 1, limit=self._next - 1, holder="")
            self._store.mutate([replacement(found, record)])
        self._stopped = True


class LastOfItsOwn(Ranges):
    """Answers what was handed out last without asking whether it still holds."""

    def last(self) -> int | Refused:
        return self._next - 1


@pytest.mark.parametrize(
    "broken",
    [
        WithoutLease,
        LeaseFromTheAnswer,
        CountsFromTheQuestion,
        NoMargin,
        TakesLossForSuccess,
        BeginsWhereTheRangeBegan,
        HandsOutBeforeItIsWritten,
        StepsDownTooLate,
        LastOfItsOwn,
    ],
)
def test_the_schedules_find(broken: type[Ranges]) -> None:
    for seed in range(20 * SEEDS):
        if broken_promises(Schedule(seed, broken).run().events):
            return
    pytest.fail(f"no schedule shows what is wrong with {broken.__name__}")


def test_the_check_sees_each_kind_of_broken_promise() -> None:
    fine = [Event(1, 2, 1, 3, True, 0), Event(3, 6, 5, 5, True, 1), Event(4, 5, 4, 4, True, 0)]
    assert broken_promises(fine) == []
    for wrong in (
        Event(7, 8, 5, 5, True, 0),
        Event(7, 8, 2, 2, False, 0),
        Event(7, 8, 4, 6, True, 0),
        Event(4, 9, 3, 3, True, 0),
    ):
        assert broken_promises([*fine, wrong])
    assert ranges.RATE > 1
