"""§2.2: locks that others left behind: who may remove them, when, and what stays (P4, P5, P8)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from borrowed import only_near
from stores import (
    Gate,
    Ground,
    ScriptedClock,
    SeamStore,
    cell_of,
    heard,
    in_thread,
    phase,
    put,
    put_all,
    stop_at,
    stopped,
    telling,
)

from percola import ConflictError, Repository, RolledBackError, Table
from percola.cells import Kind, LockRecord, Op, decode_lock, decode_write, encode_lock
from percola.coordination.memory import MemoryCoordination
from percola.errors import OutcomeUnknownError
from percola.store.base import Put, RowMutation
from percola.store.memory import MemoryStore
from percola.transactions import read_cache
from percola.transactions.lock_resolver import ROLLED_BACK, LockResolver

bank = Table("bank")
bal = bank.column("bal", int)
note = bank.column("note", str)
TABLES = [bank]
TTL = 10.0


@dataclass
class Pair:
    """Two processes on one store: a writer that stops inside its commit, and another one."""

    ground: Ground
    gate: Gate
    seam: SeamStore
    writer: Repository
    writer_clock: ScriptedClock
    other: Repository
    clock: ScriptedClock
    start_ts: int = 0

    def commit_until(
        self, where: str, row: str, *, after: bool = False, rows: str = "abc"
    ) -> Future[int]:
        """Begin to write 1 to the rows, and return once the commit has come to that place."""
        self.seam.hook = stop_at(where, row, self.gate, after=after)
        t = self.writer.transaction(two_phase=True)
        self.start_ts = t.start_ts
        for name in rows:
            t.set(bal, name, 1)
        committing = in_thread(t.commit)
        self.gate.await_arrival()
        return committing

    @contextmanager
    def dead_writer(self, where: str, row: str, *, rows: str = "abc") -> Iterator[None]:
        """Within the block the writer, at that place, counts as dead; then it goes on in vain."""
        committing = self.commit_until(where, row, rows=rows)
        self.ground.alive.discard("writer")
        yield
        self.gate.open()
        with pytest.raises(RolledBackError, match="was rolled back"):
            committing.result(20)

    def read(self, rows: str = "abc") -> list[int | None]:
        """What the other process sees; it must not have to wait."""
        self.clock.slept.clear()
        values = self.other.snapshot().get_many([(bal, row) for row in rows])
        assert self.clock.slept == [], "the reader waited"
        return values


@pytest.fixture
def pair(ground: Ground) -> Pair:
    seam = SeamStore(ground.store)
    clock, writer_clock = ScriptedClock(), ScriptedClock()
    writer = ground.repo(
        TABLES, store=seam, process="writer", clock=writer_clock, lock_ttl_seconds=TTL
    )
    other = ground.repo(TABLES, process="other", clock=clock, lock_ttl_seconds=TTL)
    return Pair(ground, Gate(), seam, writer, writer_clock, other, clock)


def records(ground: Ground, row: str) -> list[tuple[int, Op, int]]:
    """The write records of a row's balance, newest first: (ts, what, start_ts)."""
    found = [(ts, decode_write(raw)) for ts, raw in ground.entries(bal, row, Kind.WRITE)]
    return [(ts, record.op, record.start_ts) for ts, record in found]


# --- P4: the rollback record ------------------------------------------------------------


def test_p4_rolling_back_leaves_a_record_on_the_primary_and_its_owner_cannot_commit(
    pair: Pair,
) -> None:
    with pair.dead_writer("commit", "a"):
        assert pair.read() == [None, None, None]
        assert records(pair.ground, "a") == [(pair.start_ts, Op.ROLLBACK, pair.start_ts)]
    assert pair.read() == [None, None, None]
    assert pair.ground.left_over(bank, Kind.LOCK) == []


def test_p4_a_late_prewrite_of_the_primary_meets_its_rollback_record_and_aborts(pair: Pair) -> None:
    """Scenario 1: the primary's prewrite is still under way when a resolver looks."""
    committing = pair.commit_until("prewrite", "a")
    primary = cell_of(bal, "a")
    fate = pair.other.context.resolver.fate(primary, pair.start_ts)
    assert fate == ROLLED_BACK, "no lock and no record: rolled back, under a condition"
    pair.gate.open()
    with pytest.raises(RolledBackError):
        committing.result(20)
    assert pair.ground.left_over(bank, Kind.LOCK) == []
    assert pair.read() == [None, None, None]


def test_p4_a_late_prewrite_of_a_secondary_cannot_bring_its_transaction_back(pair: Pair) -> None:
    with pair.dead_writer("prewrite", "b"):
        assert pair.read("a") == [None]
    assert pair.read() == [None, None, None]
    assert pair.ground.left_over(bank, Kind.LOCK) == []


def test_p4_absence_is_decided_by_writing_not_by_looking(ground: Ground) -> None:
    """A prewrite that lands between a resolver's look and its decision must not be lost."""
    gate, resolving = Gate(), Gate()
    seam = SeamStore(ground.store, stop_at("prewrite", "a", gate))
    slow = SeamStore(ground.store, stop_at("roll back", "a", resolving))
    writer = ground.repo(TABLES, store=seam, process="w")
    resolver = ground.repo(TABLES, store=slow, process="r")
    t = writer.transaction(two_phase=True)
    t.set(bal, "a", 1)
    t.set(bal, "b", 1)
    committing = in_thread(t.commit)
    gate.await_arrival()
    fate = in_thread(lambda: resolver.context.resolver.fate(cell_of(bal, "a"), t.start_ts))
    resolving.await_arrival()  # It has seen neither a lock nor a record.
    gate.open()
    commit_ts = committing.result(20)
    resolving.open()
    assert fate.result(20).commit_ts == commit_ts
    assert resolver.snapshot().get_many([(bal, "a"), (bal, "b")]) == [1, 1]


def test_p4_a_rollback_record_does_not_stop_other_transactions(pair: Pair) -> None:
    """It is no write: transactions that began before it may still take the cell (P14)."""
    early = pair.other.transaction(two_phase=True)
    with pair.dead_writer("commit", "a"):
        assert pair.read() == [None, None, None]
    early.set(bal, "a", 5)
    early.commit()
    for two_phase in (False, True):
        with pair.other.transaction(two_phase=two_phase) as t:
            t.set(bal, "a", (t.get(bal, "a") or 0) + 1)
    assert pair.read("a") == [7]
    assert (pair.start_ts, Op.ROLLBACK, pair.start_ts) in records(pair.ground, "a")


def test_p4_a_rollback_never_overwrites_a_commit(pair: Pair) -> None:
    """Scenarios 3 and 5: whoever is asked to roll back a committed transaction refuses."""
    committing = pair.commit_until("commit", "b")
    pair.ground.alive.discard("writer")
    fate = pair.other.context.resolver.fate(cell_of(bal, "a"), pair.start_ts, force=True)
    assert fate is not None and fate.commit_ts is not None
    assert records(pair.ground, "a") == [(fate.commit_ts, Op.PUT, pair.start_ts)]
    assert pair.read() == [1, 1, 1]
    pair.gate.open()
    assert committing.result(20) == fate.commit_ts


def test_p4_an_abort_by_the_owner_itself_leaves_the_record_and_no_locks(ground: Ground) -> None:
    repo = ground.repo(TABLES)
    loser = repo.transaction(two_phase=True)
    put(repo, bal, "b", 5)
    loser.set(bal, "a", 1)
    loser.set(bal, "b", 1)
    with pytest.raises(ConflictError):
        loser.commit()
    assert records(ground, "a") == [(loser.start_ts, Op.ROLLBACK, loser.start_ts)]
    assert ground.left_over(bank, Kind.LOCK) == []
    assert ground.entries(bal, "a", Kind.DATA) == []


def test_p4_a_live_transaction_is_not_rolled_back_by_those_who_meet_it(pair: Pair) -> None:
    committing = pair.commit_until("commit", "a")
    for row in "abc":
        raw = pair.ground.entries(bal, row, Kind.LOCK)[0][1]
        resolver = pair.other.context.resolver
        assert not resolver.try_resolve(cell_of(bal, row), pair.start_ts, raw)
    with pytest.raises(ConflictError), pair.other.transaction() as t:
        t.set(bal, "b", 2)
    pair.gate.open()
    committing.result(20)
    assert pair.read() == [1, 1, 1]


# --- P5: that very lock -----------------------------------------------------------------


def test_p5_a_slow_resolver_does_not_remove_a_newer_transactions_lock(pair: Pair) -> None:
    pair.gate.open()
    committing = pair.commit_until("prewrite", "c", after=True)
    committing.result(20)
    # A second writer dies holding b; a resolver reads its lock, and falls asleep.
    gate = Gate()
    pair.seam.hook = stop_at("commit", "a", gate)
    dead = pair.writer.transaction(two_phase=True)
    dead.set(bal, "a", 2)
    dead.set(bal, "b", 2)
    dying = in_thread(dead.commit)
    gate.await_arrival()
    raw = pair.ground.entries(bal, "b", Kind.LOCK)[0][1]
    pair.ground.alive.discard("writer")
    assert pair.read("ab") == [1, 1]
    # Another transaction takes the lock on b, as a live process.
    seam = SeamStore(pair.ground.store)
    third = pair.ground.repo(TABLES, store=seam, process="third")
    newer = third.transaction(two_phase=True)
    newer.set(bal, "b", 3)
    with stopped(seam, newer.commit, "commit", "b") as committing:
        assert pair.ground.lock_holders(bal, "b") == [newer.start_ts]
        # The sleeper wakes, and acts on what it saw.
        resolver = pair.other.context.resolver
        resolver.settle(cell_of(bal, "b"), dead.start_ts, decode_lock(raw), ROLLED_BACK)
        assert pair.ground.lock_holders(bal, "b") == [newer.start_ts]
    committing.result(20)
    assert pair.read("b") == [3]
    gate.open()
    assert isinstance(dying.exception(20), RolledBackError)
    assert pair.read("ab") == [1, 3]


def test_p5_every_mutation_that_removes_a_lock_names_its_start_ts(pair: Pair) -> None:
    seen: list[RowMutation] = []
    committing = pair.commit_until("commit", "b")
    pair.ground.alive.discard("writer")
    reading = SeamStore(pair.ground.store)
    reader = pair.ground.repo(TABLES, store=reading)
    reading.hook = telling(seen.append)
    assert reader.snapshot().get_many([(bal, row) for row in "abc"]) == [1, 1, 1]
    pair.gate.open()
    committing.result(20)
    loser = reader.transaction(two_phase=True)
    pair.other.run(lambda t: t.set(bal, "b", 9))
    loser.set(bal, "a", 2)
    loser.set(bal, "b", 2)
    with pytest.raises(ConflictError):
        loser.commit()
    removals = [m for m in seen if phase(m) in ("commit", "roll back", "remove lock")]
    assert {phase(m) for m in removals} == {"commit", "roll back", "remove lock"}
    for mutation in removals:
        for change in mutation.changes:
            if change.kind is not Kind.LOCK:
                continue
            assert any(
                c.present and c.kind is Kind.LOCK and c.low == c.high == change.ts
                for c in mutation.conditions
            ), mutation


# --- P8: when ---------------------------------------------------------------------------


def test_p8_a_lock_whose_owners_token_is_gone_is_cleaned_up_at_once(pair: Pair) -> None:
    with pair.dead_writer("commit", "a"):
        assert pair.read() == [None, None, None]
        put(pair.other, bal, "b", 7)
    assert pair.read() == [None, 7, None]


def test_p8_an_unrefreshed_lock_is_cleaned_up_once_this_reader_has_watched_a_whole_ttl(
    pair: Pair,
) -> None:
    committing = pair.commit_until("commit", "a")
    # The owner's clock is far behind: that it looks old must not matter.
    pair.clock.now += 100_000
    raw = pair.ground.entries(bal, "b", Kind.LOCK)[0][1]
    resolver, cell = pair.other.context.resolver, cell_of(bal, "b")
    for watched in (0, 0.5, TTL - 0.1):
        pair.clock.now += watched - (pair.clock.now - 101_000)
        assert not resolver.try_resolve(cell, pair.start_ts, raw), f"after {watched} s"
    pair.clock.now = 101_000 + TTL
    assert resolver.try_resolve(cell, pair.start_ts, raw)
    assert pair.read() == [None, None, None]
    pair.gate.open()
    assert isinstance(committing.exception(20), RolledBackError)


def test_p8_a_writer_that_is_run_again_waits_for_an_unrefreshed_lock_as_a_reader_does(
    pair: Pair,
) -> None:
    """It reads nothing, and twenty attempts would be over before the time to live is."""
    committing = pair.commit_until("commit", "a")
    pair.other.run(lambda t: t.set(bal, "b", 7))
    assert pair.read() == [None, 7, None]
    pair.gate.open()
    assert isinstance(committing.exception(20), RolledBackError)


def test_p8_each_reader_watches_for_itself(pair: Pair) -> None:
    committing = pair.commit_until("commit", "a")
    raw = pair.ground.entries(bal, "a", Kind.LOCK)[0][1]
    cell = cell_of(bal, "a")
    assert not pair.other.context.resolver.try_resolve(cell, pair.start_ts, raw)
    pair.clock.now += TTL
    third = pair.ground.repo(TABLES, process="third", clock=pair.clock)
    assert not third.context.resolver.try_resolve(cell, pair.start_ts, raw), "it has only come"
    assert pair.other.context.resolver.try_resolve(cell, pair.start_ts, raw)
    pair.gate.open()
    assert isinstance(committing.exception(20), RolledBackError)


def test_p8_what_a_dead_job_has_locked_is_cleaned_up_however_many_transactions_it_began() -> None:
    store, clock = MemoryStore(), ScriptedClock()
    store.create_tables(["bank"])
    locks = []
    for start_ts in range(1, 12_001):
        primary = cell_of(bal, str(start_ts))
        lock = encode_lock(LockRecord(Op.PUT, primary, "", 0, int(1000 * TTL), False, b"1"))
        locks.append((primary, start_ts, lock))
        put_lock = Put(Kind.LOCK, b"bal", start_ts, lock)
        store.mutate([RowMutation("bank", primary.row, (), [put_lock])])
    resolver = LockResolver(store, MemoryCoordination(), clock, random.Random(0))
    assert resolver.try_resolve_all(locks)[0] == 0
    clock.now += TTL
    assert resolver.try_resolve_all(locks)[0] == len(locks)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit locks few rows in one call, so that one of 65 rows takes many."""
    monkeypatch.setattr(read_cache, "BATCH_ROWS", 20)


def long_commit(pair: Pair, rows: int) -> Future[int]:
    """A commit of many batches that stops between them, as its clock says, every 4 seconds."""
    t = pair.writer.transaction(two_phase=True)
    pair.start_ts = t.start_ts
    for number in range(rows):
        t.set(bal, f"{number:05}", 1)
    return in_thread(t.commit)


def test_p8_a_long_commit_refreshes_its_lock_and_is_left_alone(
    pair: Pair, small_batches: None
) -> None:
    """Each batch takes longer than a third of the time to live; a reader watches all along."""
    resolver, primary = pair.other.context.resolver, cell_of(bal, "00000")
    phases: list[str] = []
    judged: list[bool] = []

    def slow(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        phases.append(phase(mutation))
        if mutation.row in (b"00001", b"00021", b"00041", b"00061") and phases[-1] == "prewrite":
            pair.writer_clock.now += TTL * 0.6
            pair.clock.now += TTL * 0.6
            raw = pair.ground.entries(bal, "00000", Kind.LOCK)[0][1]
            judged.append(resolver.try_resolve(primary, pair.start_ts, raw))
        return apply()

    pair.seam.hook = slow
    long_commit(pair, 65).result(100)
    assert phases.count("refresh") >= 3
    assert judged == [False] * 4
    assert pair.other.snapshot().get(bal, "00064") == 1


def test_p8_a_commit_refreshes_its_lock_while_it_finds_out_why_rows_were_refused(
    pair: Pair, small_batches: None
) -> None:
    """After a lost reply, row by row; each look takes a fifth of the time to live."""
    resolver, primary = pair.other.context.resolver, cell_of(bal, "00000")
    judged: list[bool] = []
    lost: list[bytes] = []
    entries_of = pair.seam.entries_of

    def slow(*where: Any) -> list[list[tuple[int, bytes]]]:
        pair.writer_clock.now += TTL / 5
        pair.clock.now += TTL / 5
        [(_, raw)] = pair.ground.entries(bal, "00000", Kind.LOCK)
        judged.append(resolver.try_resolve(primary, pair.start_ts, raw))
        return entries_of(*where)

    def lose(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        applied = apply()
        if phase(mutation) == "prewrite" and mutation.row == b"00020" and not lost:
            lost.append(mutation.row)
            pair.seam.entries_of = slow  # type: ignore[method-assign]
            raise OutcomeUnknownError("The reply was lost.")
        if lost and phase(mutation) == "prewrite" and mutation.row == b"00021":
            del pair.seam.entries_of
        return applied

    pair.seam.hook = lose
    long_commit(pair, 41).result(100)
    assert len(judged) >= 40 and not any(judged)
    assert pair.other.snapshot().get(bal, "00040") == 1


def test_p8_a_heartbeat_does_not_create_a_lock_that_is_gone(
    pair: Pair, small_batches: None
) -> None:
    """Scenario 7: rolled back meanwhile, the long commit must notice and not revive itself."""
    phases: list[str] = []

    def undo(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        phases.append(phase(mutation))
        if mutation.row == b"00021" and phases[-1] == "prewrite":
            pair.writer_clock.now += TTL
            pair.ground.alive.discard("writer")
            assert pair.other.snapshot().get(bal, "00000") is None
            pair.ground.alive.add("writer")
        return apply()

    pair.seam.hook = undo
    committing = long_commit(pair, 50)
    assert isinstance(committing.exception(100), RolledBackError)
    assert "refresh" in phases
    assert pair.ground.lock_holders(bal, "00000") == []
    assert list(pair.other.snapshot().scan(bank)) == []


# --- Whole dead transactions ------------------------------------------------------------


@pytest.mark.parametrize("two_phase", [False, True])
def test_a_writer_takes_over_many_locks_of_a_dead_process_in_one_attempt(
    pair: Pair, two_phase: bool
) -> None:
    rows = "abcdefghijklmnopqrstuvwxyz"
    with pair.dead_writer("commit", "a", rows=rows):
        put_all(pair.other, bal, dict.fromkeys(rows, 2), two_phase=two_phase)
    assert pair.read(rows) == [2] * len(rows)


@only_near("no store on a server commits in one step")
def test_a_commit_that_meets_many_dead_locks_tries_again_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "abcdefghijklmnopqrstuvwxyz"
    tried: list[object] = []
    store = heard(pair.ground.store, commit_one_step=lambda *call: tried.append(call))
    with pair.dead_writer("commit", "a", rows=rows):
        monkeypatch.setattr(pair.ground.store, "commit_one_step", store.commit_one_step)
        put_all(pair.other, bal, dict.fromkeys(rows, 2))
        # In two phases, all rows are prewritten again together.
        assert len(tried) == (2 if pair.ground.one_step else 0)
    assert pair.read(rows) == [2] * len(rows)


def test_a_commit_in_two_phases_settles_many_dead_locks_in_a_few_calls(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "abcdefghijklmnopqrstuvwxyz"
    mutated: list[object] = []
    store = heard(pair.ground.store, mutate=lambda *call: mutated.append(call))
    with pair.dead_writer("commit", "a", rows=rows):
        monkeypatch.setattr(pair.ground.store, "mutate", store.mutate)
        with pair.other.transaction(two_phase=True) as t:
            for row in rows:
                t.set(bal, row, 2)
        # Each row's lock by itself would be 26.
        assert len(mutated) < 15
    assert pair.read(rows) == [2] * len(rows)


def test_a_commit_that_meets_a_dead_lock_and_then_a_live_one_leaves_the_live_one_alone(
    pair: Pair,
) -> None:
    seam = SeamStore(pair.ground.store)
    living = pair.ground.repo(TABLES, store=seam, process="living").transaction(two_phase=True)
    for row in "yz":
        living.set(bal, row, 3)
    with pair.dead_writer("commit", "a", rows="ab"):
        with stopped(seam, living.commit, "commit", "y") as finishing:
            with pytest.raises(ConflictError) as conflict:
                put_all(pair.other, bal, dict.fromkeys("abyz", 2))
            assert conflict.value.cell.row == b"y"
        finishing.result(20)
        assert pair.read("abyz") == [None, None, 3, 3]
