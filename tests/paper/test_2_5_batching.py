"""§2.5: fewer, larger store calls."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from stores import Ground, heard, in_thread, phase, put_all

import percola
from percola import Repository, Table
from percola.cells import Cell, Kind
from percola.store.base import Put, RowMutation
from percola.store.lmdb.store import LmdbStore
from percola.transactions.read_cache import (
    BATCH_BYTES,
    BATCH_ROWS,
    READ_CACHE_BYTES,
    READ_CACHE_CELLS,
    ReadCache,
    batches,
)

docs = Table("docs")
title = docs.column("title", str)
body = docs.column("body", bytes)
TABLES = [docs]


@dataclass
class Calls:
    """The calls of a store: how many rows or cells each carries."""

    mutations: list[tuple[str, int]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)


def counted(ground: Ground) -> tuple[Calls, Repository]:
    calls = Calls()
    store = heard(
        ground.store,
        mutate=lambda _, batch: calls.mutations.append((phase(batch[0]), len(batch))),
        read=lambda _, cells, ts: calls.reads.append(len(cells)),
    )
    repo = ground.repo(TABLES, store=store)
    calls.mutations.clear()
    return calls, repo


def test_locking_and_checking_a_row_is_one_conditional_mutation(ground: Ground) -> None:
    """Not a read for conflicting locks and writes, and then another call to lock."""
    calls, repo = counted(ground)
    with repo.transaction(two_phase=True) as t:
        t.set(title, "a", "x")
        t.set(body, "a", b"y")
    assert calls.mutations == [("prewrite", 1), ("commit", 1)]
    assert calls.reads == []


def test_all_secondaries_go_in_one_call_a_phase(ground: Ground) -> None:
    calls, repo = counted(ground)
    put_all(repo, title, {f"{number}": "x" for number in range(100)}, two_phase=True)
    assert calls.mutations == [("prewrite", 1), ("prewrite", 99), ("commit", 1), ("commit", 99)]


def test_batches_are_bounded_in_rows_and_in_bytes_and_keep_their_order() -> None:
    def mutation(number: int, size: int) -> RowMutation:
        return RowMutation("t", b"%d" % number, (), [Put(Kind.DATA, b"c", 1, b"x" * size)])

    small = [mutation(number, 1) for number in range(2 * BATCH_ROWS + 1)]
    assert [len(batch) for batch in batches(small)] == [BATCH_ROWS, BATCH_ROWS, 1]
    large = [mutation(number, BATCH_BYTES // 3 + 1) for number in range(5)]
    assert [len(batch) for batch in batches(large)] == [2, 2, 1]
    assert [one for batch in batches(large) for one in batch] == large
    huge = [mutation(number, BATCH_BYTES + 1) for number in range(2)]
    assert [len(batch) for batch in batches(huge)] == [1, 1]
    assert list(batches([])) == []


def test_many_cells_of_many_rows_are_read_in_one_call(ground: Ground) -> None:
    put_all(ground.repo(TABLES), title, {f"{number}": f"title {number}" for number in range(50)})
    calls, repo = counted(ground)
    cells = [(title, f"{number}") for number in range(60)]
    values = repo.snapshot().get_many([*cells, *cells[:5]])
    assert values[:50] == [f"title {number}" for number in range(50)]
    assert values[50:60] == [None] * 10
    assert calls.reads == [60], "each cell is asked for once"
    assert repo.snapshot().get(title, "none") is None
    assert calls.reads == [60, 1], "as is a single one"


def test_own_writes_are_not_asked_for(ground: Ground) -> None:
    calls, repo = counted(ground)
    t = repo.transaction()
    t.set(title, "a", "mine")
    assert t.get(title, "a") == "mine"
    assert t.get_many([(title, "a")]) == ["mine"]
    assert calls.reads == []


def test_the_read_cache_is_bounded_in_cells_and_in_bytes() -> None:
    cache = ReadCache()
    for number in range(READ_CACHE_CELLS + 10):
        cache.keep(Cell("t", b"%d" % number, b"c"), (None, 1, b"x"))
        assert len(cache) <= READ_CACHE_CELLS
    cache = ReadCache()
    quarter = b"x" * (READ_CACHE_BYTES // 4)
    for number in range(10):
        cache.keep(Cell("t", b"%d" % number, b"c"), (None, 1, quarter))
        assert sum(len(state[2] or b"") for state in cache.values()) <= READ_CACHE_BYTES
        assert Cell("t", b"%d" % number, b"c") in cache


def test_commits_of_many_threads_share_one_lmdb_transaction(tmp_path: Path) -> None:
    """Group commit: what queues up while one commit is written is written with the next."""
    with percola.open(tmp_path / "repo", schema=TABLES, durability="relaxed") as repo:
        store = repo.context.store
        assert isinstance(store, LmdbStore)
        environment = store._environment
        transactions = [repo.transaction() for _ in range(8)]
        for number, t in enumerate(transactions):
            t.set(title, f"{number}", "x")
        inside, go_on = threading.Event(), threading.Event()

        def occupy(txn: object) -> None:
            inside.set()
            assert go_on.wait(20)

        occupying = in_thread(lambda: environment.write(occupy))
        assert inside.wait(20)
        committing = [in_thread(t.commit) for t in transactions]
        waited = threading.Event()
        while len(environment._queue) < 8:
            assert not waited.wait(0.001)
        written = last_written(store)
        go_on.set()
        occupying.result(20)
        timestamps = [one.result(20) for one in committing]
        assert len(set(timestamps)) == 8, "each has a commit_ts of its own"
        assert last_written(store) - written <= 2


def last_written(store: LmdbStore) -> int:
    """The number of LMDB's last write transaction."""
    env = store._environment._env
    assert env is not None
    return int(env.info()["last_txnid"])
