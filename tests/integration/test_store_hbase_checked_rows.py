"""HBase without coprocessors: rows with states keep the contract, whoever writes in between."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pytest
from borrowed import borrow, repo_of
from hbase import REGION_SERVERS, HBase, InHBase, check_upkeep, fixtures_in
from hbase_admin import Admin
from hbase_upkeep import Upkeep
from stores import DEADLINE, Ground

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import OutcomeUnknownError, StoreError
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.store.hbase.jvm import java_class, java_objects
from percola.store.hbase.store import HBaseStore
from percola.store.hbase.wire import STATE, Ask, get, rows_of
from percola.store.remote.shared_row import ROW, SHARED_TABLE
from percola.testing.conformance.fixtures import COLUMN, lock, numbers, written
from percola.testing.conformance.rows import RowClaims
from tests.anomalies import test_lost_update
from tests.paper import test_2_2_lost_replies, test_2_2_transactions

NAMESPACE: Final = f"checked_{os.getpid()}"


@pytest.fixture(scope="module")
def hbase(hbase: HBase) -> HBase:
    """The session's cluster; what is made here does without coprocessors."""
    return HBase(hbase.cluster, coprocessors=False, steady=True)


# --- The contract, the protocol ---------------------------------------------------------


def part(claims: type, *names: str) -> type:
    """Some claims of the contract on rows with states."""
    found = {f"test_{name}": vars(claims)[f"test_{name}"] for name in names}
    return type("Test", (InHBase,), {**found, "namespace": NAMESPACE})


Test_rows = part(
    RowClaims,
    "a_condition_looks_at_its_range_of_timestamps_both_ends_included",
    "a_condition_looks_at_its_own_row_column_and_kind_only",
    "a_mutation_applies_only_if_all_its_conditions_hold",
    "conditions_see_the_row_as_it_was_before_the_changes",
    "of_threads_that_race_for_a_row_exactly_one_wins",
    "no_increment_of_a_conditional_counter_is_lost",
    "nobody_sees_half_of_a_row_mutation",
    "the_rows_of_a_batch_are_independent_of_each_other",
    "putting_an_entry_again_replaces_it_and_deleting_it_again_is_fine",
    "a_row_is_changed_in_several_kinds_and_columns_at_once",
)


cleaner, upkeep, ground = fixtures_in(NAMESPACE)

Test_lost_replies = borrow(
    test_2_2_lost_replies,
    ["test_p6_p7_one_lost_reply_anywhere_does_not_change_the_outcome"],
)
Test_transactions = borrow(
    test_2_2_transactions,
    [
        "test_figure_3_of_two_concurrent_writers_of_a_cell_one_aborts",
        "test_figure_4_the_transfer_from_bob_to_joe_goes_through_the_papers_five_states",
        "test_p14_two_transactions_that_want_each_others_cells_do_not_wait_for_each_other",
    ],
    repo=repo_of(test_2_2_transactions),
)
Test_lost_update = borrow(test_lost_update, repo=repo_of(test_lost_update))


def test_the_tables_of_these_tests_are_flushed_and_compacted_meanwhile(
    ground: Ground, upkeep: Upkeep
) -> None:
    check_upkeep(ground, upkeep)


# --- Between the look and the write -----------------------------------------------------

Send: TypeAlias = Callable[[], Any]

CELL: Final = Cell("t", b"r", COLUMN)
UNLOCKED: Final = Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)
UNWRITTEN: Final = Condition(False, Kind.WRITE, COLUMN, 5, MAX_TS)
NOTIFIED: Final = Condition(True, Kind.NOTIFY, COLUMN, 1, 1)


@pytest.fixture(scope="module")
def store(hbase: HBase) -> Iterator[HBaseStore]:
    store = hbase.store(f"{NAMESPACE}_rows", cuts=[b"1", b"2"], patience_seconds=60.0)
    store.create_tables(["t"])
    yield store
    store.close()


@pytest.fixture
def other(hbase: HBase, store: HBaseStore) -> Iterator[HBaseStore]:
    """Another process's store."""
    other = hbase.store(store.place.namespace)
    yield other
    other.close()


@pytest.fixture
def row() -> bytes:
    """A row that no other test has used."""
    return b"%07d" % next(numbers)


def at_writes(store: HBaseStore, *acts: Callable[[Send], Any]) -> None:
    """Have functions make the store's next calls that write; each gets one that sends."""
    calls, waiting = store._calls, list(acts)
    usual = calls.batch

    def batch(table: str, requests: Any, count: int, name: str) -> Any:
        if name != "mutate":
            return usual(table, requests, count, name)
        act = waiting.pop(0)
        if not waiting:
            vars(calls).pop("batch")
        return act(lambda: usual(table, requests, count, name))

    vars(calls)["batch"] = batch


def failing(name: str, count: int = 1) -> Any:
    """Answers that are failures of HBase's client."""
    answers = java_objects(count)
    for i in range(count):
        answers[i] = java_class("org.apache.hadoop.hbase." + name)("for a test")
    return answers


def state(store: HBaseStore, table: str, row: bytes) -> bytes:
    """A row's state, which has to be there, once."""
    block = store._calls.get(table, [get(row, [Ask(STATE, None)], 100)])
    [(_, [entry])] = rows_of(block)
    return entry.value


@pytest.mark.parametrize(
    ("conditions", "change", "holds"),
    [
        ((), lock(COLUMN, 7), False),
        ([UNLOCKED], lock(COLUMN, 7), False),
        ((), Put(Kind.WRITE, COLUMN, 6, b"R1"), False),
        ((), Delete(Kind.NOTIFY, COLUMN, 1), False),
        ([NOTIFIED], Delete(Kind.NOTIFY, COLUMN, 1), False),
        ((), Put(Kind.NOTIFY, b"another", 1, b""), True),
    ],
)
def test_what_another_changes_after_a_mutation_has_looked_decides_about_it(
    store: HBaseStore, other: HBaseStore, row: bytes,
    conditions: list[Condition], change: Put | Delete, holds: bool,
) -> None:  # fmt: skip
    assert store.mutate([RowMutation("t", row, (), [Put(Kind.NOTIFY, COLUMN, 1, b"")])]) == [True]

    def late(send: Send) -> Any:
        assert other.mutate([RowMutation("t", row, conditions, [change])]) == [True]
        return send()

    at_writes(store, late)
    mine = RowMutation("t", row, [UNLOCKED, UNWRITTEN, NOTIFIED], [lock(COLUMN, 5)])
    assert store.mutate([mine]) == [holds]
    held = [ts for ts, _ in store.entries(CELL._replace(row=row), Kind.LOCK, 0, MAX_TS)]
    assert held == ([5] if holds else [7] if change.kind is Kind.LOCK else [])


def test_every_way_to_change_a_row_changes_its_state(store: HBaseStore, row: bytes) -> None:
    store.keep_feed("t")
    mutations: list[tuple[list[Condition], list[Put | Delete]]] = [
        ([], [lock(COLUMN, 5)]),
        ([Condition(True, Kind.LOCK, COLUMN, 5, 5)], [lock(COLUMN, 5)]),
        ([], [Delete(Kind.LOCK, COLUMN, 5)]),
        ([UNLOCKED], written(COLUMN, 5, b"v")),
        ([], [Put(Kind.FAILED, COLUMN, 5, b"")]),
        ([], [Delete(Kind.FAILED, COLUMN, 5)]),
        ([], [Delete(Kind.WRITE, COLUMN, 5)]),
    ]
    states = []
    for conditions, changes in mutations:
        assert store.mutate([RowMutation("t", row, conditions, changes)]) == [True]
        states.append(state(store, "t", row))
    assert store.forget_changes("t", 5) >= 1
    states.append(state(store, "t", row))
    for ts in (3, 4):
        store.raise_safe_point(ts)
        states.append(state(store, SHARED_TABLE, ROW))
    assert len(set(states)) == len(states)


def test_a_mutation_that_changes_nothing_writes_nothing(store: HBaseStore, row: bytes) -> None:
    store.mutate([RowMutation("t", row, (), [lock(COLUMN, 5)])])
    before, sent = state(store, "t", row), store.statistics()["mutate"]
    changes = [lock(COLUMN, 6)]
    assert store.mutate([RowMutation("t", row, [UNLOCKED], changes)]) == [False]
    assert store.mutate([RowMutation("t", row, [UNWRITTEN], ())]) == [True]
    assert store.mutate([RowMutation("t", row, (), [Delete(Kind.LOCK, COLUMN, 9)])]) == [True]
    assert (state(store, "t", row), store.statistics()["mutate"]) == (before, sent)


# --- Many rows ------------------------------------------------------------------------------


def test_rows_of_a_batch_are_written_by_calls_that_are_under_way_at_the_same_time(
    store: HBaseStore, row: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [b"%d|%b|%03d" % (i % 3, row, i) for i in range(64)]
    assert len({Admin(store).server("t", one) for one in rows[:3]}) == REGION_SERVERS
    refused = {3, 21, 40}
    for i in refused:
        assert store.mutate([RowMutation("t", rows[i], (), [lock(COLUMN, 2)])]) == [True]
    usual, meeting = store._calls.batch, threading.Barrier(4)

    def batch(table: str, requests: Any, count: int, name: str) -> Any:
        if name == "mutate":
            meeting.wait(DEADLINE)
        return usual(table, requests, count, name)

    monkeypatch.setattr(store._calls, "batch", batch)
    mutations = [RowMutation("t", one, [UNLOCKED], [lock(COLUMN, 5)]) for one in rows]
    assert store.mutate(mutations) == [i not in refused for i in range(64)]
    for i, one in enumerate(rows):
        held = [ts for ts, _ in store.entries(CELL._replace(row=one), Kind.LOCK, 0, MAX_TS)]
        assert held == [2 if i in refused else 5]


def test_who_is_told_that_a_call_has_failed_is_told_after_all_others_and_before_any_more(
    store: HBaseStore, row: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [b"%d|%b|%03d" % (i % 3, row, i) for i in range(300)]
    usual, caller, told = store._calls.batch, threading.get_ident(), threading.Event()
    failed: list[int] = []
    ended: list[tuple[int, bool]] = []

    def batch(table: str, requests: Any, count: int, name: str) -> Any:
        if name != "mutate":
            return usual(table, requests, count, name)
        if threading.get_ident() == caller:
            failed.append(count)
            return failing(TIMED_OUT, count)
        answers = usual(table, requests, count, name)
        # Long enough for the caller to be told, if he is not to wait for this one.
        ended.append((count, told.wait(0.5)))
        return answers

    monkeypatch.setattr(store._calls, "batch", batch)
    with pytest.raises(OutcomeUnknownError, match="may or may not"):
        store.mutate([RowMutation("t", one, [UNLOCKED], [lock(COLUMN, 5)]) for one in rows])
    told.set()
    assert len(failed) == 1 and ended
    assert not any(too_late for _, too_late in ended)
    written = sum(count for count, _ in ended)
    assert written + sum(failed) < len(rows)
    locked = {cell.row for cell, _, _ in store.walk_kind(Kind.LOCK, "t")} & {*rows}
    assert len(locked) == written


# --- Lost replies -----------------------------------------------------------------------

TIMED_OUT: Final = "ipc.CallTimeoutException"
MOVED: Final = "NotServingRegionException"


def lose_reply(send: Send) -> Any:
    [answer] = send()
    assert answer.isSuccess()
    return failing(TIMED_OUT)


def test_a_write_whose_reply_is_lost_is_unknown_and_not_sent_again(
    store: HBaseStore, row: bytes
) -> None:
    mutation = RowMutation("t", row, [UNLOCKED], [lock(COLUMN, 5)])
    sent = store.statistics().get("mutate", 0)
    at_writes(store, lose_reply)
    with pytest.raises(OutcomeUnknownError, match="may or may not"):
        store.mutate([mutation])
    assert store.statistics()["mutate"] == sent + 1
    # It was applied; the same mutation again tells, as the protocol does.
    assert store.mutate([mutation]) == [False]
    assert [ts for ts, _ in store.entries(CELL._replace(row=row), Kind.LOCK, 0, MAX_TS)] == [5]


def test_a_write_that_arrives_after_another_has_changed_the_row_has_no_effect(
    store: HBaseStore, other: HBaseStore, row: bytes
) -> None:
    under_way: list[Send] = []

    def delay(send: Send) -> Any:
        under_way.append(send)
        return failing(TIMED_OUT)

    at_writes(store, delay)
    with pytest.raises(OutcomeUnknownError):
        store.mutate([RowMutation("t", row, [UNLOCKED], [lock(COLUMN, 5)])])
    # It ends as it was found.
    for changes in ([lock(COLUMN, 6)], [Delete(Kind.LOCK, COLUMN, 6)]):
        assert other.mutate([RowMutation("t", row, (), changes)]) == [True]
    [answer] = under_way[0]()
    assert not answer.isSuccess()
    assert store.entries(CELL._replace(row=row), Kind.LOCK, 0, MAX_TS) == []


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("conditions", [[UNLOCKED], []])
def test_a_write_that_is_said_to_have_had_no_effect_is_made_once(
    store: HBaseStore, row: bytes, conditions: list[Condition], applied: bool
) -> None:
    def say_moved(send: Send) -> Any:
        if applied:
            send()
        return failing(MOVED)

    at_writes(store, say_moved)
    assert store.mutate([RowMutation("t", row, conditions, [lock(COLUMN, 5)])]) == [True]
    assert [ts for ts, _ in store.entries(CELL._replace(row=row), Kind.LOCK, 0, MAX_TS)] == [5]


def test_a_row_that_others_change_all_the_time_is_given_up_with_nothing_written(
    hbase: HBase, store: HBaseStore, row: bytes
) -> None:
    hasty = hbase.store(store.place.namespace, patience_seconds=0.2)
    mutation = RowMutation("t", row, [UNLOCKED], [lock(COLUMN, 5)])
    beside = RowMutation("t", row + b"'", [UNLOCKED], [lock(COLUMN, 5)])

    def late(send: Send) -> Any:
        store.mutate([RowMutation("t", row, (), [Put(Kind.NOTIFY, b"d", 1, b"")])])
        return send()

    for batch, error in ([mutation], StoreError), ([mutation, beside], OutcomeUnknownError):
        at_writes(hasty, *[late] * 1000)
        with pytest.raises(StoreError, match="changed by others all the time") as caught:
            hasty.mutate(batch)
        vars(hasty._calls).pop("batch")
        assert type(caught.value) is error
    assert store.entries(CELL._replace(row=row), Kind.LOCK, 0, MAX_TS) == []
    hasty.close()
