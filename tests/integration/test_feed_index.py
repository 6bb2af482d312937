"""The index of feeds: what a look and a commit cost, its floor, its beginning (§2.1, P2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from emulator import Emulator
from network_claims import a_look_at_a_feed_costs_what_has_changed
from stores import Gate, SeamStore, in_thread, put_all, stop_at

from percola import Repository, Table, catalog, feed
from percola.coordination.memory import MemoryCoordination
from percola.gc.collector import GarbageCollector
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle
from percola.schema import Schema
from percola.store.base import SYSTEM_TABLE, Store
from percola.store.bigtable.store import BigtableStore
from percola.store.memory import MemoryStore
from percola.store.remote import feed as remote_feed
from percola.store.remote import shared_row
from percola.store.remote.feed_index import COMMITTED, PENDING
from percola.transactions import settled
from percola.transactions.jobs.attempt import RowWrites
from percola.transactions.jobs.coordinator import JointTransaction, new_run
from percola.transactions.jobs.job_row import JOBS

bank = Table("bank", feed=True)
bal = bank.column("bal", int)


@dataclass
class Ground:
    """A repository in the emulator, and how others open it."""

    store: BigtableStore
    oracle: Oracle
    coordination: MemoryCoordination

    def repo(
        self, store: Store | None = None, tables: Sequence[Table[Any]] = (bank,)
    ) -> Repository:
        return Repository(
            "bigtable",
            store or self.store,
            self.oracle,
            self.coordination,
            tables,
            one_step=False,
            lock_wait_seconds=20,
        )

    def entries(self, which: bytes) -> list[tuple[int, bytes]]:
        """All entries of the index, those below the floor included."""
        found = remote_feed.entries_between(self.store._reading, which, "bank", 0, 2**50)
        return [(ts, row) for ts, row, _ in found]


@pytest.fixture
def ground(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    # All processes must agree on it; here there is one.
    monkeypatch.setattr(shared_row, "LEASE", 0.0)
    store = emulator.store()
    store.latest_arrival = 0.0
    yield Ground(store, EmbeddedOracle(MemoryStore()), MemoryCoordination())
    store.close()


def put(repo: Repository, *rows: str, value: int = 1) -> int:
    return put_all(repo, bal, dict.fromkeys(rows, value))


def listed(repo: Repository, after: int, upto: int | None = None) -> list[tuple[str, int]]:
    return [(one.row, one.commit_ts) for one in feed.changes(repo, bank, after, upto)]


# --- What it costs ----------------------------------------------------------------------


def test_a_look_reads_what_has_changed_and_no_range_of_the_table(ground: Ground) -> None:
    a_look_at_a_feed_costs_what_has_changed(ground.repo(), bank, bal)


def test_a_commit_to_a_table_with_a_feed_makes_one_call_more(ground: Ground) -> None:
    repo = ground.repo()
    put(repo, "a", "b")
    before = ground.store.statistics()
    put(repo, "a", "b")
    after = ground.store.statistics()
    # The primary and the other row are each locked and committed.
    assert after["CheckAndMutateRow"] == before["CheckAndMutateRow"] + 4
    assert after["MutateRows"] == before["MutateRows"] + 1


# --- The floor --------------------------------------------------------------------------


def test_looks_begin_at_a_floor_and_miss_nobody_who_began_below_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_feed, "_WORTH_A_FLOOR", 5)
    repo = ground.repo()
    start = feed.settled(repo, bank)
    late, held = (Writer(ground, name) for name in ("late", "held"))
    late.commit_until("prewrite")
    for number in range(5):
        put(repo, f"r{number}")
    announced = feed.settled(repo, bank)
    assert ground.store._shared.look().floors_announced == {"bank": announced}
    put(repo, "above")
    feed.settled(repo, bank)
    assert ground.store._shared.look().floors == {"bank": announced}
    # One has begun below the floor and puts its entry now; a lock keeps the next floor below it.
    held.commit_until("commit")
    [(ts, _)] = ground.entries(PENDING)
    late_ts = late.committed()
    put(repo, *(f"r{number}" for number in range(5)))
    for _ in range(2):
        assert feed.settled(repo, bank) < ts
    assert announced < ground.store._shared.look().floors["bank"] < ts
    held_ts = held.committed()
    rows = [*(f"r{number}" for number in range(5)), "above"]
    found = listed(repo, start)
    assert [row for row, _ in found if row not in ("late", "held")] == [*rows, *sorted(rows[:5])]
    assert {("late", late_ts), ("held", held_ts)} < set(found)
    assert ground.entries(PENDING) == []
    assert [ts for _, ts in found] == [ts for ts, _ in ground.entries(COMMITTED)]


class Writer:
    """Writes the row of its name, and stops in its commit."""

    def __init__(self, ground: Ground, row: str) -> None:
        self._row, self._gate = row, Gate()
        self._seam = SeamStore(ground.store)  # type: ignore[arg-type]
        self._repo = ground.repo(self._seam)

    def commit_until(self, where: str) -> None:
        self._seam.hook = stop_at(where, self._row, self._gate)
        self._committing = in_thread(lambda: put(self._repo, self._row))
        self._gate.await_arrival()

    def committed(self) -> int:
        self._gate.open()
        return int(self._committing.result(20))


# --- Jobs, garbage collection, the beginning --------------------------------------------


def test_a_job_lists_all_its_rows_before_it_commits(ground: Ground) -> None:
    repo = ground.repo(tables=(bank, JOBS))
    start = feed.settled(repo, bank)
    job = JointTransaction(repo, "job", new_run(repo), ["bank"])
    parts = []
    for partition in range(2):
        attempt = job.attempt(partition, partition)
        assert attempt is not None
        with attempt.kept_alive():
            cells = {bal.key: bal.encode_value(1)}
            attempt.write([RowWrites("bank", b"p%d" % partition, cells)])
            parts.append(attempt.finish())
    before = put(repo, "meanwhile")
    assert listed(repo, start) == [("meanwhile", before)]
    commit_ts = job.commit(parts)
    assert listed(repo, before) == [("p0", commit_ts), ("p1", commit_ts)]


def test_garbage_collection_lists_what_is_pending_and_forgets_what_is_old_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = ground.repo()
    rows = [f"r{number}" for number in range(9)]
    commits = [put(repo, row) for row in rows]
    shown: list[int] = []
    collector = GarbageCollector(repo.context, retention=0)
    collected = collector.collect(progress=lambda so_far: shown.append(so_far.index))
    assert ground.entries(PENDING) == ground.entries(COMMITTED) == []
    # Nine were replaced and then removed.
    assert {9, 18} <= set(shown) and shown == sorted(shown) and collected.index == 18
    safe_point = ground.store.safe_point()
    assert safe_point >= commits[-1]
    # Nobody reads past what was deleted: the floor is above it, and so is where the next cycle
    # begins.
    view = ground.store._shared.look()
    assert view.floors["bank"] >= commits[-1]
    between = remote_feed.entries_between
    lows: dict[bytes, set[int]] = {PENDING: set(), COMMITTED: set()}

    def spied(reading: Any, which: bytes, table: str, low: int, upto: int) -> Any:
        lows[which].add(low)
        return between(reading, which, table, low, upto)

    monkeypatch.setattr(remote_feed, "entries_between", spied)
    third = put(repo, "c")
    assert listed(repo, safe_point) == [("c", third)]
    collector.collect()
    assert min(lows[PENDING]) > view.floors["bank"] - 1 and min(lows[COMMITTED]) == safe_point + 1
    monkeypatch.undo()
    assert ground.entries(COMMITTED) == []


def test_parts_of_a_backlog_are_read_together_and_come_in_order(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = ground.repo()
    start = feed.settled(repo, bank)
    commits = [(row, put(repo, row)) for row in ("a", "b", "c", "b", "a", "d", "e")]
    monkeypatch.setattr(settled, "_ROWS", 2)
    monkeypatch.setattr(remote_feed, "KEYS", 2)
    rows, barrier = ground.store._reading.rows, threading.Barrier(2)
    first: list[str] = []

    def meet(table: str, *arguments: Any) -> Any:
        # The first two requests of a step wait for one another.
        first.append(table)
        if len(first) <= 2:
            barrier.wait(20)
        return rows(table, *arguments)

    monkeypatch.setattr(ground.store._reading, "rows", meet)
    upto = feed.settled(repo, bank)
    assert len(first) == 4, "for locks and records of four parts"
    first.clear()
    assert listed(repo, start, upto) == commits
    assert len(first) >= 4


def test_a_repository_of_an_earlier_release_is_followed_before_and_after_its_index_begins(
    ground: Ground,
) -> None:
    ground.store.create_tables([SYSTEM_TABLE])
    assert catalog._replace(ground.store, 0, Schema(()).to_json())
    repo = ground.repo()
    start = feed.settled(repo, bank)
    first = put(repo, "a")
    # In flight when the index begins: its lock has no pending entry.
    held = Writer(ground, "held")
    held.commit_until("commit")
    assert listed(repo, start, feed.settled(repo, bank)) == [("a", first)]
    assert catalog.index_feeds(ground.store, ground.oracle)
    assert not catalog.index_feeds(ground.store, ground.oracle)
    assert ground.entries(PENDING) == ground.entries(COMMITTED) == []
    second = put(repo, "b")
    assert feed.settled(repo, bank) < second
    held_ts = held.committed()
    upto = feed.settled(repo, bank)
    assert upto > second > held_ts
    assert listed(repo, start, upto) == [("a", first), ("held", held_ts), ("b", second)]
    since = ground.store._shared.look().indexed_since
    assert since is not None and held_ts < since < second
    assert listed(repo, since) == [("b", second)]
    assert ground.store._shared.look().walked == {"bank"}
    assert {table.name for table in catalog.stored_schema(ground.store)} == {"bank"}
