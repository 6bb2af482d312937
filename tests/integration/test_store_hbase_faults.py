"""HBase with servers that hang or die, and regions that split and move."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hbase import LATE, HBase, failing, mortal, region_servers, repository, send_through
from hbase_admin import Admin
from row_locks import ABSENT, CELL, COLUMN, LOCK_IT, lock_all
from stores import DEADLINE, in_thread

from percola import Table, Transaction
from percola.cells import MAX_TS, Cell, Kind
from percola.errors import (
    CommitUnknownError,
    OutcomeUnknownError,
    RetriesExhaustedError,
    RolledBackError,
    StoreError,
)
from percola.store.base import Condition, RowMutation, Store
from percola.store.hbase.jvm import java_class
from percola.store.hbase.mutations import Plan
from percola.store.hbase.store import HBaseStore
from percola.store.hbase.wire import LOCK, LOCK_AT, Change
from percola.store.hbase.writes import Writing
from percola.store.walks import walk_kind
from percola.testing.conformance.fixtures import lock
from percola.testing.histories.recorder import RecordedTransaction, Recorder
from percola.testing.histories.timestamps import check
from percola.testing.histories.violations import explain

__all__ = ["mortal"]

WaitUntil = Callable[..., object]

accounts = Table("accounts")
balance = accounts.column("balance", str)
note = accounts.column("note", str)


def locks(store: Store) -> list[int]:
    return [ts for ts, _ in store.entries(CELL, Kind.LOCK, 0, MAX_TS)]


# --- Regions that split and move --------------------------------------------------------


def test_a_region_that_splits_amid_batches_costs_no_row_and_no_unknown_outcome(
    hbase: HBase, wait_until: WaitUntil
) -> None:
    store = hbase.store(tables=["t"])
    assert all(lock_all(store, b"0/", 500))
    admin, stop = Admin(store), threading.Event()
    rounds: list[bool] = []

    def work() -> None:
        while not stop.is_set():
            rounds.append(all(lock_all(store, b"%d/" % (1 + len(rounds)), 300)))

    working = in_thread(work)
    wait_until(lambda: len(rounds) >= 2)
    # What has files only can be split.
    admin.flush("t")
    admin.split("t", b"0/00250")
    wait_until(lambda: len(admin.regions("t")) == 2, seconds=60)
    before = len(rounds)
    wait_until(lambda: len(rounds) > before + 2)
    stop.set()
    working.result(DEADLINE)
    assert all(rounds)
    assert [one.start for one in store.tablets("t")] == [b"", b"0/00250"]
    rows = [cell.row for cell, _ in _scan(store)]
    assert len(rows) == len(set(rows)) == 500 + 300 * len(rounds)
    assert list(walk_kind(store, Kind.LOCK, "t")) == []


class _Failing:
    """A table whose scanners fail once each, when they are asked for the second time."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.starts: list[bytes] = []

    def getScanner(self, scan: Any) -> Any:  # noqa: N802
        self.starts.append(bytes(scan.getStartRow()))
        scanner, asked = self._table.getScanner(scan), itertools.count(1)

        def following(count: int) -> Any:
            if next(asked) == 2 and len(self.starts) < 3:
                raise java_class(LATE)("for a test")
            return scanner.next(count)

        return SimpleNamespace(next=following, close=scanner.close)


def test_a_scan_that_has_found_nothing_yet_goes_on_from_where_a_server_has_failed(
    hbase: HBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hbase.store(tables=["t"])
    # Of a file a server of these tests answers with what it has found in a megabyte.
    released = Change(LOCK, b"c" * 8000, LOCK_AT, b"")
    plans = [Plan("t", b"%04d" % number, [released]) for number in range(1500)]
    Writing(store._calls).apply(plans)
    Admin(store).flush("t")
    assert store.mutate([RowMutation("t", b"last", [ABSENT], [lock(COLUMN, 5)])]) == [True]
    table = _Failing(store._calls.table("t"))
    monkeypatch.setattr(store._calls, "table", lambda name: table)
    assert [cell.row for cell, _, _ in walk_kind(store, Kind.LOCK, "t")] == [b"last"]
    assert table.starts[0] == b"" < table.starts[1] < table.starts[2] < b"last"


def _scan(store: Store) -> list[tuple[Cell, object]]:
    found: list[tuple[Cell, object]] = []
    position: bytes | None = b""
    while position is not None:
        cells, position = store.scan("t", position, b"", 9, limit=1000)
        found += cells
    return found


@pytest.mark.long
def test_regions_that_move_between_servers_cost_no_row_and_no_unknown_outcome(
    mortal: HBase, wait_until: WaitUntil
) -> None:
    store = mortal.store(tables=["t"])
    admin, stop = Admin(store), threading.Event()
    rounds: list[bool] = []

    def work() -> None:
        while not stop.is_set():
            rounds.append(all(lock_all(store, b"%d/" % len(rounds), 100)))

    working = in_thread(work)
    moves = 0
    for _ in range(3):
        before = len(rounds)
        wait_until(lambda before=before: len(rounds) > before or working.done())
        [(region, server)] = admin.regions("t")
        other = move_away(admin, region, server)
        moves += admin.regions("t") == [(region, other)]
    before = len(rounds)
    wait_until(lambda: len(rounds) > before or working.done())
    stop.set()
    working.result(DEADLINE)
    assert moves == 3
    assert all(rounds)
    assert len(_scan(store)) == 100 * len(rounds)


def move_away(admin: Admin, region: bytes, server: str) -> str:
    """Move a region to another server than that which has it: to which."""
    other, *_ = [one for one in admin.servers() if one != server]
    admin.move(region, other)
    return other


def before_the_next_write(store: HBaseStore, act: Callable[[], None]) -> None:
    """Have something done when a store has looked at what it has to and sends a write."""
    calls = store._calls

    def before(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == "change" or arguments[-1] == "mutate":
                with guard:
                    if hooked:
                        act()
                        hooked.clear()
                        del vars(calls)["change"], vars(calls)["batch"]
            return usual(*arguments)

        return call

    guard, hooked = threading.Lock(), [True]
    vars(calls).update({one: before(one, getattr(calls, one)) for one in ("change", "batch")})


def test_a_region_that_has_moved_costs_a_single_row_no_unknown_outcome(mortal: HBase) -> None:
    store = mortal.store(tables=["t"])
    # With a connection of its own: that of the store goes on to believe what it knew.
    admin = Admin(mortal.store(store.place.namespace))

    def move() -> None:
        [(region, server)] = admin.regions("t")
        other = move_away(admin, region, server)
        assert admin.regions("t") == [(region, other)]

    sent = store.statistics().get("mutate", 0)
    before_the_next_write(store, move)
    assert store.mutate([LOCK_IT]) == [True]
    # The first went to the server that had the region, and the second to the one that has it.
    assert store.statistics()["mutate"] == sent + 2
    move()
    assert store.mutate([LOCK_IT]) == [False]
    move()
    assert store.read([CELL], 9)[0][0] is not None


@pytest.mark.long
def test_regions_that_split_and_move_just_before_a_batch_is_written_cost_no_row(
    mortal: HBase, wait_until: WaitUntil
) -> None:
    store = mortal.store(cuts=[b"1"], tables=["t"])
    admin = Admin(mortal.store(store.place.namespace))
    rows = [b"%d|%03d" % (i % 2, i) for i in range(200)]
    assert all(store.mutate([RowMutation("t", row, [ABSENT], [lock(b"d", 5)]) for row in rows]))

    def disturb() -> None:
        # What has files only can be split.
        admin.flush("t")
        admin.split("t", b"0|100")
        wait_until(lambda: len(admin.regions("t")) == 3, seconds=60)
        *_, (region, server) = admin.regions("t")
        other = move_away(admin, region, server)
        assert admin.regions("t")[-1] == (region, other)

    sent = store.statistics()["mutate"]
    before_the_next_write(store, disturb)
    batch = [RowMutation("t", row, [ABSENT], [lock(COLUMN, 5)]) for row in rows]
    assert store.mutate(batch) == [True] * len(rows)
    assert store.statistics()["mutate"] > sent + 1
    assert store.mutate(batch) == [False] * len(rows)
    found = [cell.row for cell, _, _ in walk_kind(store, Kind.LOCK, "t") if cell.column == COLUMN]
    assert found == sorted(rows)


# --- Servers that hang or are gone ------------------------------------------------------


def server_of(mortal: HBase, store: HBaseStore, table: str = "t") -> str:
    """The name of the process that serves the first row of a table."""
    server = Admin(store).server(table, b"")
    port = int(server.split(",")[1])
    names = region_servers(mortal.cluster)
    [name] = [one for one in names if mortal.cluster.process(one).port == port]
    return name


def test_a_server_that_hangs_costs_a_write_its_deadline_and_no_more(mortal: HBase) -> None:
    store = mortal.store(request_seconds=1.0, timeout_seconds=2.0, tables=["t"])
    # So that it knows where the row is: one who has to ask for that first has sent nothing.
    assert store.mutate([RowMutation("t", b"q", [ABSENT], [lock(COLUMN, 5)])]) == [True]
    server = mortal.cluster.process(server_of(mortal, store))
    began = time.monotonic()
    sent = store.statistics()["mutate"]
    before_the_next_write(store, server.stop)
    try:
        with pytest.raises(OutcomeUnknownError, match="may or may not"):
            store.mutate([LOCK_IT])
        assert store.statistics()["mutate"] == sent + 1
        with pytest.raises(StoreError, match="does not answer"):
            store.read([CELL], 9)
        assert time.monotonic() - began < DEADLINE
    finally:
        server.resume()
    mortal.cluster.await_ready()
    patient = mortal.store(store.place.namespace)
    # It may have been applied or not; the same mutation again tells, as the protocol does.
    patient.mutate([LOCK_IT])
    assert locks(patient) == [5]


@pytest.mark.long
def test_a_server_killed_amid_batches_leaves_every_row_whole_and_its_regions_come_back(
    mortal: HBase, wait_until: WaitUntil
) -> None:
    store = mortal.store(timeout_seconds=200, tables=["t"])
    both = [lock(b"a", 5), lock(b"b", 5)]
    absent = [Condition(False, Kind.LOCK, b"a", 0, MAX_TS)]
    applied: list[bytes] = []
    failures: list[StoreError] = []
    stop = threading.Event()

    def work() -> None:
        while not failures and not stop.is_set():
            rows = [b"%07d" % (len(applied) + i) for i in range(100)]
            try:
                done = store.mutate([RowMutation("t", row, absent, both) for row in rows])
            except OutcomeUnknownError as error:
                failures.append(error)
            else:
                assert all(done)
                applied.extend(rows)

    name = server_of(mortal, store)
    working = in_thread(work)
    wait_until(lambda: len(applied) > 500)
    mortal.cluster.process(name).kill()
    # What was under way is unknown. If nothing was, no call has failed, and it goes on.
    before = len(applied)
    wait_until(lambda: working.done() or len(applied) > before + 200, seconds=100)
    stop.set()
    working.result(DEADLINE)
    found = list(walk_kind(store, Kind.LOCK, "t"))
    rows = {cell.row for cell, _, _ in found}
    assert len(found) == 2 * len(rows)
    assert set(applied) <= rows
    # And what was written before is written on.
    assert store.mutate([LOCK_IT]) == [True]
    mortal.cluster.process(name).start()
    mortal.cluster.await_ready()


@pytest.mark.long
def test_a_server_killed_before_the_commit_point_loses_the_primarys_locks_and_nothing_else(
    mortal: HBase, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mortal.store(cuts=[b"b"], timeout_seconds=200)
    repo = repository(store, [accounts])
    old, new = "old" * 200, "new" * 200

    def write(value: str) -> Transaction:
        t = repo.transaction()
        t.set(balance, "a", value)
        t.set(note, "a", value[:3])
        t.set(balance, "c", value)
        return t

    write(old).commit()
    admin = Admin(mortal.store(store.place.namespace, timeout_seconds=200))
    assert len({server for _, server in admin.regions("accounts")}) == 2
    cells = [Cell("accounts", row, column) for row, column in ((b"a", b"balance"), (b"a", b"note"))]
    name = server_of(mortal, store, "accounts")
    t, timestamp = write(new), repo.context.oracle.timestamp
    seen: list[list[int]] = []

    def commit_ts_after_the_kill() -> int:
        monkeypatch.setattr(repo.context.oracle, "timestamp", timestamp)
        seen.append([ts for one in cells for ts, _ in store.entries(one, Kind.LOCK, 0, MAX_TS)])
        mortal.cluster.process(name).kill()
        wait_until(lambda: name not in mortal.cluster.region_servers(), seconds=60)
        # Waits until the row is served again, by another server.
        seen.append([ts for one in cells for ts, _ in store.entries(one, Kind.LOCK, 0, MAX_TS)])
        return timestamp()

    monkeypatch.setattr(repo.context.oracle, "timestamp", commit_ts_after_the_kill)
    with pytest.raises(RolledBackError):
        t.commit()
    assert seen == [[t.start_ts, t.start_ts], []]
    cells_read = [(balance, "a"), (note, "a"), (balance, "c")]
    assert repo.snapshot().get_many(cells_read) == [old, "old", old]
    assert list(walk_kind(store, Kind.LOCK, "accounts")) == []
    write(new).commit()
    assert repo.snapshot().get_many(cells_read) == [new, "new", new]
    mortal.cluster.process(name).start()
    mortal.cluster.await_ready()


# --- A bank -----------------------------------------------------------------------------

ACCOUNTS, EACH, TELLERS, TAKERS = 24, 100, 3, 4


def row_of(number: int) -> str:
    return f"a{number:02}"


def amount_of(value: str | None) -> int:
    return int((value or "0").partition(" ")[0])


def transfer(rng: random.Random, mark: str) -> Callable[[RecordedTransaction], None]:
    """One account gives something to some others; no two transfers write the same balance."""

    def transfer(t: RecordedTransaction) -> None:
        chosen = [row_of(one) for one in rng.sample(range(ACCOUNTS), 1 + TAKERS)]
        had = t.get_many([(balance, one) for one in chosen])
        for one, value, gets in zip(chosen, had, (-TAKERS, *[1] * TAKERS), strict=True):
            t.set(balance, one, f"{amount_of(value) + gets} {mark}")

    return transfer


def add_up(t: RecordedTransaction) -> int:
    return sum(amount_of(row[balance]) for row in t.scan(accounts, columns=[balance]))


class Losses:
    """Some of the replies to a store's writes are lost, and some writes before they arrive."""

    def __init__(self, store: HBaseStore, every: int = 40) -> None:
        self.applied = self.unsent = 0
        self._every, self._rng = every, random.Random(1)
        calls = store._calls
        self._change, self._batch, self._kept = calls.change, calls.batch, vars(calls)
        self._kept.update(change=self._one, batch=self._many)
        self._client, self._sender = calls.client(), calls.client().sender
        send_through(store, self._from_java)

    def end(self) -> None:
        """Lose nothing any more."""
        del self._kept["change"], self._kept["batch"]
        self._client.sender = self._sender

    def _from_java(self, send: Callable[[], Any], count: int) -> Any:
        answers = self._lose(send)
        return failing(count) if answers is None else answers

    def _one(self, table: str, row: bytes, request: bytes) -> bytes:
        answer = self._lose(lambda: self._change(table, row, request))
        if answer is None:
            raise java_class(LATE)("for a test")
        return bytes(answer)

    def _many(self, table: str, requests: Any, count: int, name: str) -> Any:
        def send() -> Any:
            return self._batch(table, requests, count, name)

        answers = self._lose(send) if name == "mutate" else send()
        return failing(count) if answers is None else answers

    def _lose(self, send: Callable[[], Any]) -> Any:
        """What a call comes to; None: nothing was heard of it."""
        match self._rng.randrange(self._every):
            case 0:
                self.unsent += 1
                return None
            case 1:
                send()
                self.applied += 1
                return None
        return send()


@pytest.mark.long
@pytest.mark.timeout(
    900
)  # It waits for locks whose owner is alive, and as long as a session lasts.
def test_a_bank_is_whole_while_regions_move_and_split_a_server_is_killed_and_replies_are_lost(
    mortal: HBase, wait_until: WaitUntil
) -> None:
    store = mortal.store(cuts=[b"a08", b"a16"], timeout_seconds=200)
    repo, recorder = repository(store, [accounts]), Recorder("bank")
    with recorder.transaction(repo) as t:
        for number in range(ACCOUNTS):
            t.set(balance, row_of(number), f"{EACH} at first")
    admin = Admin(mortal.store(store.place.namespace, timeout_seconds=200))
    losses, stop = Losses(store), threading.Event()
    done: list[str] = []

    def work(name: str) -> None:
        rng = random.Random(name)
        for number in itertools.count(1):
            if stop.is_set():
                return
            try:
                if number % 10:
                    recorder.run(repo, transfer(rng, f"{name}-{number}"), attempts=100)
                else:
                    assert recorder.run(repo, add_up, attempts=100) == ACCOUNTS * EACH
            except (StoreError, CommitUnknownError, RetriesExhaustedError):
                continue
            done.append(name)

    working = [in_thread(lambda name=f"t{one}": work(name)) for one in range(TELLERS)]

    def await_more() -> None:
        before = len(done)
        wait_until(
            lambda: len(done) >= before + 15 or any(one.done() for one in working),
            seconds=100,
            what="more transfers",
        )

    await_more()
    for region, server in admin.regions("accounts"):
        move_away(admin, region, server)
        await_more()
    admin.flush("accounts")
    admin.split("accounts", b"a12")
    wait_until(lambda: len(admin.regions("accounts")) == 4, seconds=60)
    await_more()
    name = server_of(mortal, store, "accounts")
    mortal.cluster.process(name).kill()
    wait_until(lambda: name not in mortal.cluster.region_servers(), seconds=60)
    await_more()
    mortal.cluster.process(name).start()
    mortal.cluster.await_ready()
    await_more()
    stop.set()
    for one in working:
        one.result(2 * DEADLINE)
    losses.end()
    # Reading everything settles what is still in doubt.
    assert recorder.run(repo, add_up) == ACCOUNTS * EACH
    violations = check(recorder.history)
    assert not violations, explain(violations, len(recorder.history))
    assert list(walk_kind(store, Kind.LOCK, "accounts")) == []
    assert losses.applied and losses.unsent
