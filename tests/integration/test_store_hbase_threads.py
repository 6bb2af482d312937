"""HBase under threads and processes that come, go and fork, and what calls it costs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import network_claims
import pytest
from commands import answer_of
from hbase import HBase, repository
from row_locks import CELL, COLUMN, LOCK_IT, lock_all
from stores import DEADLINE, in_thread, put

from percola import ConflictError, Table
from percola.cells import Cell, Kind
from percola.errors import OutcomeUnknownError
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.store.hbase.jvm import java_class
from percola.store.walks import scan_writes
from percola.testing.conformance.fixtures import written

WaitUntil = Callable[..., object]

accounts = Table("accounts")
balance = accounts.column("balance", int)
fed = Table("fed", feed=True)
number = fed.column("number", int)


# --- Threads, processes -----------------------------------------------------------------


@pytest.mark.long
def test_threads_that_come_and_go_leave_nothing_behind_in_java(hbase: HBase) -> None:
    store = hbase.store(tables=["t"])
    beans = java_class("java.lang.management.ManagementFactory").getThreadMXBean()
    for _ in range(64):
        # The client has threads of its own, a bounded number.
        store.read([CELL], 9)
    before = int(beans.getThreadCount())
    for _ in range(100):
        thread = threading.Thread(target=lambda: store.read([CELL], 9))
        thread.start()
        thread.join(DEADLINE)
    assert int(beans.getThreadCount()) < before + 20


def test_many_threads_use_one_store_at_once(hbase: HBase) -> None:
    store = hbase.store()
    repo = repository(store, [accounts])
    put(repo, balance, "a", 0)

    def add() -> None:
        for _ in range(5):
            repo.run(lambda t: t.set(balance, "a", (t.get(balance, "a") or 0) + 1), attempts=200)

    workers = [in_thread(add) for _ in range(4)]
    for one in workers:
        one.result(60)
    with repo.snapshot() as s:
        assert s.get(balance, "a") == 20


_FORKING = """
import gc, os, sys, traceback
from percola.errors import StoreError
from percola.store.hbase.store import open_hbase

store = open_hbase(sys.argv[1])
def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # Not by way of JPype, which might be what is wrong here.
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def use():
    store.create_tables(["t"])
    assert store.scan_kind(1, "t") == ([], None)

def fail():
    # JPype would have Java do so as well, now or another time, and wait for ever.
    assert not gc.callbacks
    for generation in range(3):
        gc.collect(generation)
    for other in (store, open_hbase(sys.argv[1])):
        try:
            other.scan_kind(1, "t")
        except StoreError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("used after a fork")
    store.close()

print(in_child(use), flush=True)
use()
print(in_child(fail))
use()
store.close()
"""


def test_a_fork_before_the_first_use_is_fine_and_one_after_it_is_an_error_at_once(
    hbase: HBase,
) -> None:
    place = hbase.place()
    line = [sys.executable, "-c", _FORKING, f"hbase://{place.quorum}/{place.namespace}"]
    done = answer_of(line, seconds=270, PYTHONWARNINGS="ignore")
    assert (done.code, done.out.split()) == (0, ["0", "0"]), done.err


_READING = """
import sys
from percola.cells import Cell
from percola.store.hbase.store import open_hbase

store = open_hbase(sys.argv[1])
found, position = [], b""
while position is not None:
    cells, position = store.scan("t", position, b"", 9, limit=512)
    found += cells
print(len(found), sum(len(state[2]) for _, state in found))
cells = [cell for cell, _ in found]
print(store.read(cells, 9) == [state for _, state in found])
store.close()
"""


@pytest.mark.long
def test_more_is_read_at_once_than_fits_into_javas_heap(hbase: HBase) -> None:
    store = hbase.store(tables=["t"])
    value = written(COLUMN, 5, bytes(1024 * 1024))
    for i in range(40):
        store.mutate([RowMutation("t", b"%02d" % i, (), value)])
    place = store.place
    line = [sys.executable, "-c", _READING, f"hbase://{place.quorum}/{place.namespace}"]
    done = answer_of(line, seconds=270, PERCOLA_HBASE_JVM_OPTIONS="-Xmx48m")
    assert done.out.splitlines() == ["40 41943040", "True"], done.err


def test_a_batch_that_does_not_fit_into_javas_heap_is_an_error_of_ours(
    hbase: HBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hbase.store(tables=["t"])
    value = written(COLUMN, 5, bytes(700_000))
    batch = [RowMutation("t", row, (), value) for row in (b"a", b"b")]
    client = store._calls.client()
    parse = client.rows_request.parseFrom

    class Request:
        """The second one does not fit."""

        made = 0

        @classmethod
        def parseFrom(cls, request: bytes) -> Any:  # noqa: N802
            cls.made += 1
            if cls.made == 2:
                raise java_class("java.lang.OutOfMemoryError")("Java heap space")
            return parse(request)

    monkeypatch.setattr(client, "rows_request", Request)
    with pytest.raises(OutcomeUnknownError, match=r"heap .* is too small: set PERCOLA_HBASE_JVM"):
        store.mutate(batch)
    assert store.mutate(batch) == [True, True]


@pytest.mark.long
def test_whoever_is_at_work_when_the_store_is_closed_gets_an_error_of_ours(
    hbase: HBase, wait_until: WaitUntil
) -> None:
    network_claims.whoever_is_at_work_when_it_is_closed_gets_an_error_of_ours(
        lambda: hbase.store(timeout_seconds=2.0), wait_until
    )


def test_nobody_reads_below_a_safe_point_that_another_has_raised(
    hbase: HBase, wait_until: WaitUntil
) -> None:
    raiser = hbase.store()
    network_claims.nobody_reads_below_a_safe_point_that_another_has_raised(
        raiser, hbase.store(raiser.place.namespace), wait_until
    )


# --- What it costs ----------------------------------------------------------------------


@pytest.mark.long
def test_a_scan_of_long_values_comes_in_parts(hbase: HBase) -> None:
    network_claims.a_scan_of_long_values_comes_in_parts(hbase.store())


def test_a_transaction_of_one_row_makes_one_call_each_to_read_lock_and_commit(hbase: HBase) -> None:
    store = hbase.store()
    repo = repository(store, [accounts])
    put(repo, balance, "a", 1)
    before = store.statistics()
    with repo.transaction() as t:
        t.set(balance, "a", (t.get(balance, "a") or 0) + 1)
    after = store.statistics()
    made = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    # One read may be for the safe point, if what the process knew of it is a second old.
    assert made.pop("get") in (1, 2, 3)
    assert made == {"mutate": 2}


def test_who_is_in_the_way_of_a_row_of_many_columns_is_found_in_a_few_calls(hbase: HBase) -> None:
    store = hbase.store()
    wide = Table("wide")
    value = wide.family("value", int)
    repo = repository(store, [wide])
    late = repo.transaction()
    for number in range(50):
        late.set(value[str(number)], "a", 1)
    put(repo, value["49"], "a", 2)
    before = store.statistics()["get"]
    with pytest.raises(ConflictError, match="49"):
        late.commit()
    assert store.statistics()["get"] < before + 15


def test_a_part_of_a_family_comes_without_the_rest_of_its_row(
    hbase: HBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hbase.store()
    wide = Table("wide")
    value = wide.family("value", int)
    repo = repository(store, [wide])
    repo.run(lambda t: [t.set(value[str(number)], "a", number) for number in range(1000)])
    sizes: list[int] = []

    def measured(read: Callable[..., bytes]) -> Callable[..., bytes]:
        def block_of(*arguments: Any) -> bytes:
            block = read(*arguments)
            sizes.append(len(block))
            return block

        return block_of

    chains = store._calls.client().chains
    for name in ("read", "block_of"):
        monkeypatch.setattr(chains, name, measured(getattr(chains, name)))
    expected = {str(number): number for number in (42, *range(420, 430))}
    with repo.snapshot() as s:
        for part in ([value.starting("42")], [value.starting("42"), value["42"]]):
            row = s.get_row(wide, "a", part)
            [same] = s.get_rows(wide, ["a"], part)
            [scanned] = s.scan(wide, columns=part)
            assert row.family(value) == same.family(value) == scanned.family(value) == expected
    assert max(sizes) < 2_000, "of some 100,000 bytes"


@pytest.mark.long
def test_a_look_at_a_feed_reads_what_has_changed_and_no_range_of_the_table(hbase: HBase) -> None:
    store = hbase.store()
    repo = repository(store, [fed])
    network_claims.a_look_at_a_feed_costs_what_has_changed(repo, fed, number)
    before = store.statistics()["mutate"]
    put(repo, number, "a", 1)
    assert store.statistics()["mutate"] == before + 3, "to lock, to list as pending, to commit"


def test_rows_of_a_region_are_one_request_if_all_of_them_hold(hbase: HBase) -> None:
    store = hbase.store(tables=["t"])
    lock_all(store, b"a", 1)
    before = store.statistics()["mutate"]
    assert all(lock_all(store, b"b", 200))
    assert store.statistics()["mutate"] == before + 2


@pytest.mark.long
def test_a_lock_is_found_as_soon_after_thousands_of_cycles_as_at_first(hbase: HBase) -> None:
    store = hbase.store(tables=["t"])
    held = Condition(True, Kind.LOCK, COLUMN, 5, 5)
    unlock = RowMutation("t", b"r", [held], [Delete(Kind.LOCK, COLUMN, 5)])

    def cycles(count: int) -> float:
        """Seconds for a cycle: the median of a few measurements, for the machine is shared."""
        taken = []
        for _ in range(9):
            began = time.perf_counter()
            for _ in range(count // 9):
                assert store.mutate([LOCK_IT, unlock]) == [True, True]
            taken.append((time.perf_counter() - began) / (count // 9))
        return sorted(taken)[4]

    cycles(200)
    first = cycles(200)
    cycles(2_000)
    assert cycles(200) < 3 * first
    assert store.scan_kind(Kind.LOCK, "t") == ([], None)
    assert store.read([CELL], 9) == [(None, 0, None)]


def test_notifications_are_found_without_reading_the_table(hbase: HBase) -> None:
    store = hbase.store(tables=["t"])
    value = bytes(200)
    rows = [b"%05d" % i for i in range(3000)]
    store.mutate([RowMutation("t", row, (), written(COLUMN, 5, value)) for row in rows])
    store.mutate([RowMutation("t", rows[1500], (), [Put(Kind.NOTIFY, COLUMN, 5, b"")])])

    def shortest(look: Callable[[], object]) -> float:
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            look()
            taken.append(time.perf_counter() - began)
        return min(taken)

    found = store.scan_kind(Kind.NOTIFY, "t")
    assert found == ([(Cell("t", rows[1500], COLUMN), 5, b"")], None)
    finding = shortest(lambda: store.scan_kind(Kind.NOTIFY, "t"))
    assert finding < shortest(lambda: scan_writes(store, "t", limit=10_000)) / 3
