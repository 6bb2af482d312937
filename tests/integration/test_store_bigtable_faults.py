"""Bigtable with lost replies, broken streams and servers that hang or die: nothing is torn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import network_claims
import pytest
from emulator import Emulator, Relay, repository
from row_locks import CELL, COLUMN, LOCK_IT
from stores import DEADLINE, all_at_once, in_thread, put, put_all

from percola import Table
from percola.cells import MAX_TS, Cell, Kind
from percola.errors import OutcomeUnknownError, StoreError
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import Condition, RowMutation, Store
from percola.store.bigtable import client
from percola.store.bigtable.store import BigtableStore
from percola.store.memory import MemoryStore
from percola.store.walks import walk_kind
from percola.testing.conformance.fixtures import lock, written

WaitUntil = Callable[..., object]

accounts = Table("accounts")
balance = accounts.column("balance", int)


@pytest.fixture
def relay(emulator: Emulator) -> Iterator[Relay]:
    with Relay(emulator.address) as running:
        yield running


@pytest.fixture
def relayed(emulator: Emulator, relay: Relay) -> BigtableStore:
    """A store with a table `t`, whose answers the relay may cut."""
    return emulator.store(address=relay.address, tables=["t"])


@pytest.fixture
def mortal() -> Iterator[Emulator]:
    """An emulator of the test's own, to be killed."""
    with Emulator() as running:
        yield running


def locks(store: Store) -> list[int]:
    return [ts for ts, _ in store.entries(CELL, Kind.LOCK, 0, MAX_TS)]


# --- Lost replies -----------------------------------------------------------------------


def test_a_lost_reply_is_an_unknown_outcome_and_reading_settles_it(
    relayed: BigtableStore, relay: Relay
) -> None:
    assert locks(relayed) == []
    relay.cut_answer()
    with pytest.raises(OutcomeUnknownError, match="may or may not"):
        relayed.mutate([LOCK_IT])
    assert relay.cut == 1
    assert relayed.statistics()["CheckAndMutateRow"] == 1, "it is sent once"
    assert locks(relayed) == [5]
    assert relayed.mutate([LOCK_IT]) == [False]


def test_a_lost_reply_for_one_row_of_a_batch_leaves_every_row_whole(
    relayed: BigtableStore, relay: Relay
) -> None:
    both = [lock(b"a", 5), lock(b"b", 5)]
    absent = [Condition(False, Kind.LOCK, b"a", 0, MAX_TS)]
    batch = [RowMutation("t", b"%04d" % i, absent, both) for i in range(300)]
    relay.cut_answer(3)
    with pytest.raises(OutcomeUnknownError):
        relayed.mutate(batch)
    assert relay.cut == 1
    found = list(walk_kind(relayed, Kind.LOCK, "t"))
    rows = {cell.row for cell, _, _ in found}
    assert len(found) == 2 * len(rows) > 0


def test_a_lost_reply_of_rows_without_conditions_is_an_unknown_outcome(
    relayed: BigtableStore, relay: Relay
) -> None:
    batch = [RowMutation("t", b"%04d" % i, (), [lock(COLUMN, 5)]) for i in range(50)]
    relay.cut_answer()
    with pytest.raises(OutcomeUnknownError):
        relayed.mutate(batch)
    assert relay.cut == 1


@pytest.mark.parametrize("after", [0, 1, 2, 5, 9])
def test_a_scan_whose_stream_breaks_finds_every_row_once(
    relayed: BigtableStore, relay: Relay, after: int
) -> None:
    rows = [b"%04d" % i for i in range(400)]
    value = bytes(3000)
    relayed.mutate([RowMutation("t", row, (), written(COLUMN, 5, value)) for row in rows])
    relayed.read([CELL], 9)
    relay.cut_answer(after)
    cells, following = relayed.scan("t", b"", b"", 9, limit=10_000)
    assert relay.cut == 1
    assert [cell.row for cell, _ in cells] == rows
    assert {state for _, state in cells} == {(None, 5, value)}
    assert following is None


@pytest.mark.parametrize("after", [0, 1, 3])
def test_many_cells_are_read_whole_though_the_stream_breaks(
    relayed: BigtableStore, relay: Relay, after: int
) -> None:
    rows = [b"%04d" % i for i in range(600)]
    # Long enough for an answer in many pieces.
    relayed.mutate([RowMutation("t", row, (), written(COLUMN, 5, row * 500)) for row in rows])
    relayed.read([CELL], 9)
    relay.cut_answer(after)
    states = relayed.read([Cell("t", row, COLUMN) for row in rows], 9)
    assert relay.cut == 1
    assert [state[2] for state in states] == [row * 500 for row in rows]


def test_a_transfer_is_made_once_whichever_answer_is_lost(emulator: Emulator, relay: Relay) -> None:
    store = emulator.store(address=relay.address)
    oracle = EmbeddedOracle(MemoryStore())
    repo = repository(store, [accounts], oracle)
    witness = repository(emulator.store(store.place.instance), [accounts], oracle)
    put_all(repo, balance, {"a": 1_000, "b": 0})

    lost = 0
    for after in range(200):
        relay.cut_answer(after)
        with repo.transaction() as t:
            t.set(balance, "a", (t.get(balance, "a") or 0) - 1)
            t.set(balance, "b", (t.get(balance, "b") or 0) + 1)
        with witness.snapshot() as s:
            assert (s.get(balance, "a"), s.get(balance, "b")) == (999 - after, after + 1)
        if relay.cut == lost:
            break
        lost = relay.cut
    relay.disarm()
    # Every answer of a transfer has been lost once: two reads, two prewrites, two commits, …
    assert lost >= 6
    assert list(walk_kind(store, Kind.LOCK, "accounts")) == []


# --- Servers that hang or are gone ------------------------------------------------------


def test_a_server_that_hangs_costs_a_write_its_deadline_and_no_more(mortal: Emulator) -> None:
    store = mortal.store(request_seconds=1.0, timeout_seconds=1.0, tables=["t"])
    began = time.monotonic()
    mortal.pause()
    try:
        with pytest.raises(OutcomeUnknownError, match="may or may not"):
            store.mutate([LOCK_IT])
        with pytest.raises(StoreError, match="does not answer"):
            store.read([CELL], 9)
    finally:
        mortal.resume()
    assert time.monotonic() - began < DEADLINE
    # It may have been applied or not; the same mutation again tells, as the protocol does.
    applied = store.mutate([LOCK_IT]) == [True]
    assert locks(store) == [5]
    assert store.statistics()["CheckAndMutateRow"] == 2
    assert applied in (True, False)


def test_a_read_outlives_a_server_that_hangs_for_a_while(
    mortal: Emulator, wait_until: WaitUntil
) -> None:
    store = mortal.store(request_seconds=0.5, tables=["t"])
    store.mutate([RowMutation("t", b"r", (), written(COLUMN, 5, b"v"))])
    mortal.pause()
    reading = in_thread(lambda: store.read([CELL], 9))
    before = store.statistics()["ReadRows"]
    wait_until(lambda: store.statistics()["ReadRows"] >= before + 2)
    assert not reading.done()
    mortal.resume()
    assert reading.result(DEADLINE) == [(None, 5, b"v")]


def test_a_server_killed_in_the_middle_of_a_batch_is_an_error_soon(
    mortal: Emulator, wait_until: WaitUntil
) -> None:
    store = mortal.store(request_seconds=2.0, timeout_seconds=1.0)
    witness = mortal.store(store.place.instance, timeout_seconds=1.0)
    store.create_tables(["t"])
    absent = [Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)]
    batch = [RowMutation("t", b"%06d" % i, absent, [lock(COLUMN, 5)]) for i in range(50_000)]
    writing = in_thread(lambda: store.mutate(batch))
    wait_until(lambda: witness.scan_kind(Kind.LOCK, "t", limit=1)[0] != [])
    mortal.kill()
    error = writing.exception(DEADLINE)
    assert isinstance(error, OutcomeUnknownError), error
    with pytest.raises(StoreError, match="does not answer"):
        store.read([CELL], 9)
    with pytest.raises(StoreError, match="does not answer"):
        store.tablets("t")
    with pytest.raises(StoreError, match="does not answer"):
        mortal.store(timeout_seconds=0.5).create_tables(["t"])
    # A server is back in its place, empty: the same store object finds it.
    mortal.start()
    fresh = mortal.store(store.place.instance, tables=["t"])
    assert store.mutate([LOCK_IT]) == [True]
    assert locks(fresh) == [5]


def test_a_write_waits_for_a_server_that_is_about_to_come_back(
    mortal: Emulator, wait_until: WaitUntil
) -> None:
    store = mortal.store(tables=["t"])
    mortal.kill()
    wait_until(lambda: not _answers(mortal, store))
    writing = in_thread(lambda: store.mutate([LOCK_IT]))
    mortal.start()
    # Its table is gone with the old server, so the new one refuses it: a known outcome.
    error = writing.exception(DEADLINE)
    assert error is not None
    assert not isinstance(error, OutcomeUnknownError), error


def _answers(emulator: Emulator, store: BigtableStore) -> bool:
    try:
        emulator.store(store.place.instance, timeout_seconds=0.1).tablets("t")
    except StoreError:
        return False
    return True


def test_whoever_is_at_work_when_the_store_is_closed_gets_an_error_of_ours(
    emulator: Emulator, wait_until: WaitUntil
) -> None:
    network_claims.whoever_is_at_work_when_it_is_closed_gets_an_error_of_ours(
        lambda: emulator.store(timeout_seconds=1.0), wait_until
    )


# --- Several processes ------------------------------------------------------------------


def test_of_sixteen_that_race_for_a_row_one_wins(emulator: Emulator) -> None:
    stores = [emulator.store("race") for _ in range(16)]
    stores[0].create_tables(["t"])
    absent = Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)
    for row in (b"%d" % i for i in range(10)):
        tries = [RowMutation("t", row, [absent], [lock(COLUMN, 10 + i)]) for i in range(16)]
        results = all_at_once(
            [lambda s=s, one=one: s.mutate([one])[0] for s, one in zip(stores, tries, strict=True)]
        )
        assert sorted(results) == [False] * 15 + [True]
        held = stores[0].entries(Cell("t", row, COLUMN), Kind.LOCK, 0, MAX_TS)
        assert [ts for ts, _ in held] == [10 + results.index(True)]


def test_nobody_reads_below_a_safe_point_that_another_process_has_raised(
    emulator: Emulator, wait_until: WaitUntil
) -> None:
    network_claims.nobody_reads_below_a_safe_point_that_another_has_raised(
        emulator.store("safe"), emulator.store("safe"), wait_until
    )


def test_a_process_asks_for_the_safe_point_about_once_a_second(emulator: Emulator) -> None:
    store = emulator.store(tables=["t"])
    store.read([CELL], 9)
    before, began = store.statistics()["ReadRows"], time.monotonic()
    for _ in range(200):
        store.read([CELL], 9)
    extra = store.statistics()["ReadRows"] - before - 200
    assert extra <= time.monotonic() - began + 1


def test_a_process_that_knew_of_no_feed_lists_its_changes_once_another_keeps_it(
    emulator: Emulator,
) -> None:
    keeper, writer = emulator.store("feed"), emulator.store("feed")
    keeper.create_tables(["t"])
    writer.mutate([RowMutation("t", b"r", (), written(COLUMN, 5, b"v"))])
    keeper.keep_feed("t")
    writer.mutate([RowMutation("t", b"r", (), written(COLUMN, 7, b"v"))])
    assert [one.commit_ts for one in keeper.changes("t", 0, 99)] == [7]


# --- What a transaction costs -----------------------------------------------------------


def test_a_transaction_of_one_row_makes_one_call_each_to_read_lock_and_commit(
    emulator: Emulator,
) -> None:
    store = emulator.store()
    repo = repository(store, [accounts])
    put(repo, balance, "a", 1)
    before = store.statistics()
    with repo.transaction() as t:
        t.set(balance, "a", (t.get(balance, "a") or 0) + 1)
    after = store.statistics()
    made = {
        name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)
    }
    # One read may be for the safe point, if what the process knew of it is a second old.
    assert made["CheckAndMutateRow"] == 2
    assert made.pop("ReadRows") in (1, 2)
    assert made.keys() == {"CheckAndMutateRow"}


def test_a_scan_of_long_values_comes_in_parts(emulator: Emulator) -> None:
    network_claims.a_scan_of_long_values_comes_in_parts(emulator.store())


def test_no_request_for_rows_is_longer_than_google_takes(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator takes them all; the service refuses those of more than 512 KiB."""
    store = emulator.store(tables=["t"])
    rows = [b"%04d" % number + bytes(3_996) for number in range(600)]
    changes = written(COLUMN, 5, b"v")
    store.mutate([RowMutation("t", row, (), changes) for row in rows])
    sizes: list[int] = []
    send = store._calls.read_rows

    def read_rows(request: Any, table: str, seconds: float) -> Any:
        sizes.append(request.ByteSize())
        return send(request, table, seconds)

    monkeypatch.setattr(store._calls, "read_rows", read_rows)
    state = (None, 5, b"v")
    assert store.read([Cell("t", row, COLUMN) for row in rows], 9) == [state] * 600
    found = store.scan_rows("t", rows, 9, limit=1000)
    assert found == {row: [(Cell("t", row, COLUMN), state)] for row in rows}
    assert max(sizes) < 512 * 1024


# --- Interrupts -------------------------------------------------------------------------


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_channel_whose_answers_nobody_receives_is_replaced(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """After Ctrl-C, gRPC may take the thread that receives a channel's answers for started."""
    monkeypatch.setattr(client, "_GRACE_SECONDS", 0.2)
    store = emulator.store(tables=["t"], request_seconds=0.5)
    start = grpc._channel._run_channel_spin_thread

    def start_none(state: object) -> None:
        monkeypatch.setattr(grpc._channel, "_run_channel_spin_thread", start)
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(grpc._channel, "_run_channel_spin_thread", start_none)
    absent = [Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)]
    first, second = (
        [RowMutation("t", b"%d" % row, absent, [lock(COLUMN, 5)]) for row in rows]
        for rows in ((1, 2), (3, 4))
    )
    with pytest.raises(KeyboardInterrupt if interrupted else OutcomeUnknownError):
        in_thread(lambda: store.mutate(first)).result(DEADLINE / 6)
    assert grpc._channel._run_channel_spin_thread is start, "it was called"
    assert in_thread(lambda: store.mutate(second)).result(DEADLINE / 6) == [True, True]
