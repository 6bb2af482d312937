"""§2.2: transactions that are large or slow: they work in bounded memory, or are refused."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from children import Child, say
from stores import (
    Crashed,
    CrashingStore,
    Ground,
    ScriptedClock,
    SeamStore,
    die,
    heard,
    phase,
    put,
    put_all,
)

import percola
from percola import (
    ConflictError,
    LockTimeoutError,
    Repository,
    Table,
    Transaction,
    TransactionTooLargeError,
    TransactionUsedUpError,
    UsageError,
    ValueTooLargeError,
    feed,
)
from percola.cells import Cell, Kind
from percola.maintenance.copy import copy_store
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import Limits, RowMutation
from percola.store.memory import MemoryStore
from percola.store.walks import scan_writes
from percola.transactions.read_cache import BATCH_ROWS

bank = Table("bank")
bal = bank.column("bal", int)
note = bank.column("note", str)
tag = bank.family("tag", int)
due = bank.weak_column("due")
TABLES = [bank]
MANY = 100_000
MEGABYTES = 250
"""What 100,000 cells may cost a process, LMDB's pages of the file included; they took 100."""


def write_many(pipe: Connection, folder: Path, two_phase: bool) -> None:
    with percola.open(folder, TABLES, durability="relaxed") as repo:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with repo.transaction(two_phase=two_phase) as t:
            for i in range(MANY):
                t.set(note, f"{i:06}", f"the note of row {i}")
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        say(pipe, (after - before) // 1024)


@pytest.mark.parametrize("two_phase", [False, True], ids=["one-step", "two-phase"])
def test_a_hundred_thousand_cells_in_one_transaction_work_in_bounded_memory(
    tmp_path: Path, two_phase: bool
) -> None:
    with Child(write_many, tmp_path / "repo", two_phase) as writer:
        assert writer.hear() < MEGABYTES
    with percola.open(tmp_path / "repo", TABLES) as repo:
        snapshot = repo.snapshot()
        assert sum(1 for _ in snapshot.scan(bank)) == MANY
        assert snapshot.get(note, "099999") == "the note of row 99999"
        assert not repo.context.store.scan_kind(Kind.LOCK, "bank")[0]


WRITES: dict[str, Callable[[Transaction, int], object]] = {
    "set": lambda t, i: t.set(bal, f"{i}", i),
    "delete": lambda t, i: t.delete(bal, f"{i}"),
    "get_for_update": lambda t, i: t.get_for_update(bal, f"{i}"),
    "notify": lambda t, i: t.notify(due, f"{i}"),
    "long values": lambda t, i: t.set(note, f"{i % 49}", "x" * (3000 if i == 50 else 1000)),
    "encoded cells": lambda t, i: t._put(Cell("bank", b"%d" % i, b"bal"), b"1"),
    "long encoded values": lambda t, i: t._put(Cell("bank", b"%d" % (i % 49), b"note"), LONG[i]),
}
LONG = [b"x" * 1000] * 50 + [b"x" * 3000]
COUNTED = 10_005
"""Native code adds the first 10,000 cells without counting them."""


@pytest.mark.parametrize("how", WRITES)
def test_more_than_a_transaction_may_write_is_refused_before_anything_is_written(
    ground: Ground, repo: Repository, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = COUNTED if how in ("set", "delete") else 50
    monkeypatch.setattr("percola.transactions.transaction.MOST_CELLS", most)
    monkeypatch.setattr("percola.transactions.transaction.MOST_BYTES", 50_000)
    t = repo.transaction()
    for i in range(most):
        WRITES[how](t, i)
    with pytest.raises(TransactionTooLargeError, match=rf"up to {most:,} cells.*split it"):
        WRITES[how](t, most)
    assert scan_writes(ground.store, "bank")[0] == ground.left_over(bank, Kind.NOTIFY) == []
    assert list(repo.snapshot().scan(bank)) == []


def test_a_program_that_does_not_notice_the_refusal_is_told_when_the_transaction_ends(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percola.transactions.transaction.MOST_CELLS", COUNTED)

    def write(t: Transaction) -> None:
        for number in range(COUNTED + 5):
            with contextlib.suppress(UsageError):
                t.set(note, str(number), "x")

    with pytest.raises(TransactionUsedUpError, match="too large, and nothing of it was written"):
        repo.run(write)
    with pytest.raises(TransactionUsedUpError, match="too large"), repo.transaction() as t:
        write(t)
    assert list(repo.snapshot().scan(bank)) == []


def test_a_cell_that_is_written_again_counts_once_towards_the_bytes(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percola.transactions.transaction.MOST_BYTES", 5_000)
    long, longer, short = "x" * 1000, "x" * 2000, "x"
    cell = Cell("bank", b"put", b"note")
    with repo.transaction() as t:
        for _ in range(20):
            t.set(note, "again", long)
            t.set(note, "again", longer)
            t.set(note, "shortened", long)
            t.set(note, "shortened", short)
            t.set(note, "deleted", longer)
            t.delete(note, "deleted")
            t._put(cell, longer.encode())
            t._put(cell, short.encode())
            assert t.get_for_update(note, "again") == longer
        # 2,000 of "again", and exactly up to the limit.
        t.set(note, "a", longer)
        t.set(note, "b", long)
    assert repo.snapshot().get(note, "again") == longer
    t = repo.transaction()
    t.set(note, "a", longer)
    t.set(note, "b", longer)
    t.set(note, "b", "x" * 3000)
    with pytest.raises(TransactionTooLargeError, match="writes 2 cells and 5,001 bytes"):
        t.set(note, "a", "x" * 2001)


def test_a_value_that_the_store_does_not_take_leaves_the_count_of_bytes_as_it_was(
    ground: Ground, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(row_bytes=384, value_bytes=2_500)
    monkeypatch.setattr(type(ground.store), "limits", limits)
    monkeypatch.setattr("percola.transactions.transaction.MOST_BYTES", 2_000)
    with repo.transaction() as t:
        t.set(note, "a", "x" * 2000)
        for _ in range(3):
            with pytest.raises(ValueTooLargeError):
                t.set(note, "a", "x" * 2_501)
        t.set(note, "a", "y" * 2000)
    assert repo.snapshot().get(note, "a") == "y" * 2000


def test_p8_a_slow_commit_is_refreshed_batch_by_batch_and_no_reader_kills_it(
    ground: Ground,
) -> None:
    """Every store call takes half a time to live; a reader looks all the time."""
    clock = ScriptedClock()
    looked = refreshed = 0

    def slow(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        nonlocal looked, refreshed
        refreshed += phase(mutation) == "refresh"
        applied = apply()
        if phase(mutation) in ("prewrite", "refresh") and mutation.row in (b"0", b"2000", b"4000"):
            clock.now += 4
            with pytest.raises(LockTimeoutError, match="live transaction"):
                reader.snapshot().get(bal, "0")
            looked += 1
        return applied

    store = SeamStore(ground.store)
    writer = ground.repo(TABLES, store=store, clock=clock, process="writer")
    reader = ground.repo(TABLES, clock=clock, process="reader", lock_wait_seconds=0.5)
    store.hook = slow
    put_all(writer, bal, {f"{i}": i for i in range(3 * BATCH_ROWS)}, two_phase=True)
    assert looked >= 3
    assert refreshed >= 2
    store.hook = None
    assert reader.snapshot().get(bal, f"{3 * BATCH_ROWS - 1}") == 3 * BATCH_ROWS - 1


def test_a_large_transaction_that_fails_gives_back_its_locks_in_few_calls(ground: Ground) -> None:
    """On a folder each call waits for the disk."""
    calls: list[int] = []
    store = heard(ground.store, mutate=lambda found, batch: calls.append(len(batch)))
    writer = ground.repo(TABLES, store=store)
    number = 2 * BATCH_ROWS + 10
    t = writer.transaction(two_phase=True)
    for i in range(number):
        t.set(bal, f"{i:05}", i)
    put(ground.repo(TABLES), bal, f"{number - 1:05}", -1)
    calls.clear()
    with pytest.raises(ConflictError):
        t.commit()
    assert sum(calls) >= 2 * number - 20, "each row was locked, and given back"
    assert len(calls) < 20
    assert ground.left_over(bank, Kind.LOCK) == []
    assert writer.snapshot().get(bal, "00000") is None


def test_locks_that_a_dead_process_left_on_many_rows_are_removed_in_few_calls(
    ground: Ground,
) -> None:
    number = 500
    rows = {f"{i:05}": i for i in range(number)}
    die(ground, TABLES, number + 1, bal, rows)
    assert len(ground.left_over(bank, Kind.LOCK)) == number
    calls: list[int] = []
    store = heard(ground.store, mutate=lambda found, batch: calls.append(len(batch)))
    collected = ground.repo(TABLES, store=store, process="living").collect_garbage(retention=0)
    assert collected.locks == number
    assert ground.left_over(bank, Kind.LOCK) == []
    assert max(calls) >= number - 1
    assert len(calls) < 20


def test_the_locks_of_a_row_of_many_columns_are_removed_in_few_calls(ground: Ground) -> None:
    """Also of the primary's row: its own lock is gone when the others are removed."""
    number = 500

    def begin(repo: Repository) -> Transaction:
        t = repo.transaction(two_phase=True)
        for i in range(number):
            t.set(tag[f"{i}"], "wide", i)
        t.set(bal, "z", 1)
        return t

    calls: list[int] = []
    store = heard(ground.store, mutate=lambda found, batch: calls.append(len(batch)))
    losing = begin(ground.repo(TABLES, store=store))
    put(ground.repo(TABLES), bal, "z", 2)
    calls.clear()
    with pytest.raises(ConflictError):
        losing.commit()
    assert len(calls) < 10
    crashing = CrashingStore(ground.store, at=3)
    dying = begin(ground.repo(TABLES, store=crashing, process="dying"))
    crashing.armed = True
    with pytest.raises(Crashed):
        dying.commit()
    ground.alive.discard("dying")
    assert len(ground.left_over(bank, Kind.LOCK)) == number + 1
    calls.clear()
    ground.repo(TABLES, store=store, process="living").collect_garbage(retention=0)
    assert ground.left_over(bank, Kind.LOCK) == []
    assert len(calls) < 20


ROWS = [f"{i:05}" for i in range(300)]


def copy(repo: Repository) -> None:
    target = MemoryStore()
    copy_store(repo, target, EmbeddedOracle(target))


@pytest.mark.parametrize(
    "use",
    [
        lambda repo: list(repo.snapshot().scan(bank)),
        lambda repo: repo.snapshot().get_many([(bal, row) for row in ROWS]),
        lambda repo: repo.snapshot().get_rows(bank, ROWS),
        lambda repo: put_all(repo, bal, dict.fromkeys(ROWS, -1)),
        lambda repo: feed.settled(repo, bank),
        copy,
    ],
    ids=["scan", "get_many", "get_rows", "write", "settled", "copy"],
)
def test_who_reads_or_writes_what_a_dead_process_has_locked_removes_that_in_few_calls(
    ground: Ground, use: Callable[[Repository], object]
) -> None:
    die(ground, TABLES, len(ROWS) + 1, bal, dict.fromkeys(ROWS, 1))
    calls: list[int] = []
    store = heard(ground.store, mutate=lambda found, batch: calls.append(len(batch)))
    use(ground.repo(TABLES, store=store, process="living", one_step=True))
    assert ground.left_over(bank, Kind.LOCK) == []
    assert len(calls) < 10


def test_a_rows_locks_of_several_dead_transactions_are_not_settled_in_one_mutation(
    ground: Ground,
) -> None:
    """Together they may be more than Bigtable takes at once, where each of them was not."""
    for number, column in enumerate((bal, note)):
        value = number if column is bal else "x"
        die(ground, TABLES, 3, column, {f"primary {number}": value, "shared": value})
    settled: list[RowMutation] = []
    store = heard(ground.store, mutate=lambda found, batch: settled.extend(batch))
    collected = ground.repo(TABLES, store=store, process="living").collect_garbage(retention=0)
    assert collected.locks == 4
    assert ground.left_over(bank, Kind.LOCK) == []
    removals = [one for one in settled if one.row == b"shared" and phase(one) == "remove lock"]
    assert [len({locked.low for locked in one.conditions}) for one in removals] == [1, 1]
