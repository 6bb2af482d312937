"""Rule P12: garbage collection removes only what nobody can read, and never makes a reader wrong.

The paper leaves old versions to Bigtable (§2.1); these are the claims that make doing so safe.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from stores import (
    Ground,
    PassingStore,
    ScriptedClock,
    ScriptedCoordination,
    SeamStore,
    cell_of,
    die,
    heard,
    phase,
    put,
    put_all,
    stopped,
)

from percola import (
    CommitUnknownError,
    OutcomeUnknownError,
    Repository,
    SnapshotTooOldError,
    Table,
    Transaction,
)
from percola.cells import MAX_TS, Cell, Kind
from percola.gc import collector
from percola.gc.collector import Collected, GarbageCollector
from percola.store.base import Put, RowMutation
from percola.store.walks import scan_writes

bank = Table("bank")
bal = bank.column("bal", int)
note = bank.column("note", str)
TABLES = [bank]
LONG = "long enough not to stand in its write record: " + "x" * 300


def write(repo: Repository, **values: int | None) -> int:
    with repo.transaction() as t:
        for row, value in values.items():
            if value is None:
                t.delete(bal, row)
            else:
                t.set(bal, row, value)
    assert t.commit_ts is not None
    return t.commit_ts


def collect(repo: Repository, retention: float = 0) -> Collected:
    return repo.collect_garbage(retention=retention)


def everything(repo: Repository, at: int) -> list[tuple[str, list[tuple[str, Any]]]]:
    with repo.snapshot(at) as snapshot:
        return [
            (row.key, [(column.name, value) for column, value in row.items()])
            for row in snapshot.scan(bank)
        ]


def records(ground: Ground) -> list[tuple[Cell, int]]:
    """Every write record and every value of the tables."""
    found = []
    for table in TABLES:
        for cell, versions in scan_writes(ground.store, table.name, limit=10_000)[0]:
            found += [(cell, ts) for ts, _ in versions]
            found += [(cell, ts) for ts, _ in ground.store.entries(cell, Kind.DATA, 0, MAX_TS)]
    return found


# --- What goes, and what stays ----------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_p12_whatever_is_read_from_the_safe_point_on_is_what_was_read_before(
    ground: Ground, repo: Repository, seed: int
) -> None:
    rng = random.Random(seed)
    middle = 0
    for i in range(60):
        with repo.transaction(two_phase=rng.random() < 0.3) as t:
            for row in rng.sample("abcdef", 2):
                column: Any = rng.choice([bal, note])
                if rng.random() < 0.3:
                    t.delete(column, row)
                elif rng.random() < 0.2:
                    t.get_for_update(column, row)
                else:
                    t.set(column, row, rng.choice([i, -i]) if column is bal else f"{i}{LONG}")
        if i == 40:
            middle = repo.snapshot().start_ts
    last = repo.snapshot().start_ts
    before = {ts: everything(repo, ts) for ts in range(middle, last + 1)}
    size = len(records(ground))
    with repo.snapshot(middle):
        collected = collect(repo)
    assert collected.complete
    assert collected.safe_point == middle
    assert "still being read" in collected.held_back
    assert len(records(ground)) < size
    assert {ts: everything(repo, ts) for ts in range(middle, last + 1)} == before
    with pytest.raises(SnapshotTooOldError, match=str(middle)):
        repo.snapshot(middle - 1)


def test_only_the_newest_version_of_a_cell_is_left_with_its_value(
    ground: Ground, repo: Repository
) -> None:
    for i in range(10):
        put(repo, note, "a", f"{i}{LONG}")
    collected = collect(repo)
    assert collected.versions == 9
    assert [len(ground.entries(note, "a", kind)) for kind in (Kind.WRITE, Kind.DATA)] == [1, 1]
    assert repo.snapshot().get(note, "a") == f"9{LONG}"
    assert [value for _, value in repo.versions(note, "a")] == [f"9{LONG}"]


def test_a_deleted_row_vanishes(ground: Ground, repo: Repository) -> None:
    write(repo, a=1, b=2)
    write(repo, a=None)
    assert collect(repo).deleted == 1
    assert {cell.row for cell, _ in records(ground)} == {b"b"}


def test_of_deleted_rows_that_were_observed_those_that_are_answered_go_after_one_look(
    ground: Ground,
) -> None:
    looks: list[Kind] = []
    store = heard(ground.store, scan_kind=lambda _, kind, *more: looks.append(kind))
    watched = Table("watched")
    seen = watched.column("seen", int, observed=True)
    repo = ground.repo([watched], store=store)
    rows = [f"r{number:02}" for number in range(20)]
    for value in (1, None):
        with repo.transaction(notify=False) as t:
            for row in rows[1:]:
                t.set(seen, row, 1) if value else t.delete(seen, row)
    put(repo, seen, rows[0], 1)
    with repo.transaction() as t:
        t.delete(seen, rows[0])
    letter = Put(Kind.FAILED, seen.key, 1, b"")
    assert ground.store.mutate([RowMutation("watched", rows[5].encode(), (), [letter])]) == [True]
    looks.clear()
    assert collect(repo).deleted == 18
    left = {cell.row.decode() for cell, _ in scan_writes(ground.store, "watched")[0]}
    assert left == {rows[0], rows[5]}
    # Where all of a row is read in any case, each is looked at by itself.
    assert looks.count(Kind.FAILED) == (19 if store.has_notify_table else 1)


def test_lock_only_records_and_rollback_records_go_once_they_are_below_the_safe_point(
    ground: Ground, repo: Repository
) -> None:
    die(ground, TABLES, 3, bal, {"a": 1, "b": 1})
    with repo.transaction() as t:
        t.get_for_update(bal, "c")
        t.set(bal, "d", 1)
    assert ground.lock_holders(bal, "a")
    collected = collect(repo)
    assert collected.locks == 2
    assert ground.lock_holders(bal, "a") == ground.lock_holders(bal, "b") == []
    assert [cell.row for cell, _ in records(ground)] == [b"d"]


def test_a_collector_that_is_stopped_is_followed_by_one_that_goes_on_where_it_was(
    ground: Ground, repo: Repository
) -> None:
    for value in (1, 2, 3):
        put_all(repo, bal, {f"{row:05}": value for row in range(3000)})
    walked: list[bytes] = []

    def note(_: object, kind: Kind, table: str, start: bytes, *more: object) -> None:
        """Where in the table each look at its write records begins."""
        if kind is Kind.WRITE and table == "bank":
            walked.append(start)

    noting = ground.repo(TABLES, store=heard(ground.store, scan_kind=note))
    looked = 0

    def stopped() -> bool:
        nonlocal looked
        looked += 1
        return looked > 3

    first = GarbageCollector(noting.context, retention=0).collect(stopped=stopped)
    assert not first.complete
    assert 0 < first.versions < 6000
    before, walked[:] = [*walked], []
    second = collect(noting)
    assert second.complete
    assert first.versions + second.versions == 6000
    # The second one begins behind what the first has walked, and comes to that at last.
    assert before[0] == b""
    assert walked[0] > before[-1]
    assert walked.index(b"") > 0
    assert walked[-1] <= walked[0]
    assert len(records(ground)) == 3000
    assert collect(repo).cells == 0, "there is nothing new, so nothing is walked through"


def test_collectors_that_are_all_stopped_after_one_look_get_everywhere_together(
    ground: Ground, repo: Repository
) -> None:
    for value in (1, 2):
        put_all(repo, bal, {f"{row:05}": value for row in range(2500)})
    removed = []
    for _ in range(5):
        asked = iter((False, False))  # Before what the feeds list, and before the first look.
        collector = GarbageCollector(repo.context, retention=0)
        removed.append(collector.collect(stopped=lambda asked=asked: next(asked, True)).versions)
    assert sum(removed) == 2500
    assert max(removed) < 2500


class FeedInRows(PassingStore):
    """Keeps its feeds in the rows; counts the rows that are passed in search of their entries."""

    def __init__(self, inner: Any, keys: list[bytes]) -> None:
        super().__init__(inner)
        self.has_feed_in_rows = True
        self.passed = 0
        self._keys = keys

    def forget_changes(
        self, table: str, upto: int, limit: int = 4096, *, start: bytes = b"", end: bytes = b""
    ) -> int:
        self.passed += sum(start <= key and not (end and key >= end) for key in self._keys)
        return self.inner.forget_changes(table, upto, 32, start=start, end=end)


def test_entries_of_a_feed_are_not_searched_for_again_in_rows_that_had_them(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a store compacts late, what was removed from a row is read by each look at it."""
    monkeypatch.setattr(collector, "_RECORDS", 48)
    followed = Table("followed", feed=True)
    number = followed.column("number", int)
    rows = [f"row {place:03}" for place in range(300)]
    store = FeedInRows(ground.store, [row.encode() for row in rows])
    repo = ground.repo([followed], store=store)
    for value in range(3):
        put_all(repo, number, dict.fromkeys(rows, value))
    collected = collect(repo)
    assert collected.changes == 900
    assert collected.versions == 600
    assert store.passed <= 5 * len(rows)
    assert store.inner.forget_changes(followed.name, collected.safe_point) == 0


# --- Readers ----------------------------------------------------------------------------


READS: list[Callable[[Any], object]] = [
    lambda s: s.get(bal, "a"),
    lambda s: s.get_many([(bal, "a"), (bal, "b")]),
    lambda s: bool(s.get_row(bank, "a")),
    lambda s: list(s.scan(bank)),
    lambda s: s.version(bal, "a"),
]


@pytest.mark.parametrize("read", READS, ids=["get", "get_many", "get_row", "scan", "version"])
def test_p12_a_reader_below_the_safe_point_gets_an_error_never_a_wrong_answer(
    ground: Ground, repo: Repository, read: Callable[[Any], object]
) -> None:
    """Its lease has been lost: nothing has held the collector back."""
    write(repo, a=1, b=2)
    deaf = ground.repo(TABLES, coordination=ScriptedCoordination("far away", set()))
    snapshot = deaf.snapshot()
    transaction = deaf.transaction()
    write(repo, a=3, b=None)
    assert read(snapshot) is not None
    collect(repo)
    for reader in (snapshot, transaction):
        with pytest.raises(SnapshotTooOldError, match="garbage collection"):
            read(reader)


def test_p12_what_is_being_read_holds_the_safe_point_back_until_it_ends(repo: Repository) -> None:
    write(repo, a=1)
    snapshot = repo.snapshot()
    write(repo, a=2)
    transaction = repo.transaction()
    transaction.get(bal, "a")
    write(repo, a=3)
    assert collect(repo).safe_point == snapshot.start_ts
    assert snapshot.get(bal, "a") == 1
    snapshot.close()
    assert collect(repo).safe_point == transaction.start_ts
    assert transaction.get(bal, "a") == 2
    transaction.rollback()
    held_back = collect(repo)
    assert held_back.held_back == ""
    assert held_back.safe_point > transaction.start_ts


def test_a_forgotten_snapshot_holds_nothing_back(repo: Repository) -> None:
    write(repo, a=1)
    repo.snapshot().get(bal, "a")
    last = write(repo, a=2)
    assert collect(repo).safe_point >= last


# --- Transactions -----------------------------------------------------------------------


def test_p12_a_transaction_that_began_below_the_safe_point_cannot_commit(
    ground: Ground, repo: Repository
) -> None:
    """What it conflicts with, a delete say, may have been removed."""
    write(repo, a=1)
    deaf = ground.repo(TABLES, coordination=ScriptedCoordination("far away", set()))
    late = deaf.transaction()
    assert late.get(bal, "a") == 1
    write(repo, a=None)
    collect(repo)
    assert ground.entries(bal, "a", Kind.WRITE) == []
    late.set(bal, "a", 2)
    with pytest.raises(SnapshotTooOldError):
        late.commit()
    assert ground.left_over(bank, Kind.LOCK) == []
    assert repo.snapshot().get(bal, "a") is None


def test_p12_it_is_run_again_like_one_that_conflicted(ground: Ground, repo: Repository) -> None:
    write(repo, a=1)
    deaf = ground.repo(TABLES, coordination=ScriptedCoordination("far away", set()))
    attempts = []

    def add(t: Transaction) -> None:
        attempts.append(t.start_ts)
        value = t.get(bal, "a") or 0
        if len(attempts) == 1:
            write(repo, a=10)
            collect(repo)
        t.set(bal, "a", value + 1)

    deaf.run(add)
    assert len(attempts) == 2
    assert repo.snapshot().get(bal, "a") == 11


def test_p12_a_transaction_that_is_committing_holds_the_safe_point_back(ground: Ground) -> None:
    store = SeamStore(ground.store)
    writer = ground.repo(TABLES, store=store, process="writer")
    repo = ground.repo(TABLES, process="collector")
    write(repo, a=1, b=1)
    t = writer.transaction(two_phase=True)
    t.set(bal, "a", 2)
    t.set(bal, "b", 2)
    with stopped(store, t.commit, "commit", "a") as commit:
        write(repo, c=1)
        collected = collect(repo)
        assert collected.safe_point == t.start_ts
        assert "still committing" in collected.held_back
    commit.result(20)
    assert repo.snapshot().get(bal, "b") == 2
    assert collect(repo).safe_point > t.start_ts


def test_p12_a_transaction_that_locks_after_the_collectors_look_sees_the_new_safe_point(
    ground: Ground,
) -> None:
    """The safe point is raised after the collector's first look for locks, before its second."""
    writer = ground.repo(TABLES, process="writer")
    t = writer.transaction(two_phase=True)
    t.set(bal, "a", 2)
    late: list[BaseException] = []

    def commit_late(_: None, ts: int) -> None:
        if not late:
            with pytest.raises(SnapshotTooOldError) as caught:
                t.commit()
            late.append(caught.value)

    store = heard(ground.store, raise_safe_point=commit_late)
    repo = ground.repo(TABLES, store=store, process="collector")
    write(repo, b=1)
    assert collect(repo).complete
    assert late, "the transaction should have come while the collector worked"
    assert ground.left_over(bank, Kind.LOCK) == []
    assert repo.snapshot().get(bal, "a") is None


def test_p12_a_lock_is_resolved_before_the_record_that_decides_about_it_goes(
    ground: Ground, repo: Repository
) -> None:
    """Without that, the secondary of a committed transaction would be taken for rolled back."""
    die(ground, TABLES, 4, bal, {"a": 1, "z": 1})
    assert ground.lock_holders(bal, "a") == []
    assert ground.lock_holders(bal, "z")
    write(repo, a=None)
    collect(repo)
    assert ground.entries(bal, "a", Kind.WRITE) == []
    assert repo.snapshot().get(bal, "z") == 1


def test_p7_a_commit_whose_record_is_gone_is_not_said_to_have_failed(
    ground: Ground, repo: Repository
) -> None:
    with repo.transaction(two_phase=True) as t:
        t.set(bal, "a", 1)
    assert t.commit_ts is not None
    unknown = CommitUnknownError(cell_of(bal, "a"), t.start_ts, t.commit_ts)
    assert repo.resolve(unknown)
    fresh = ground.repo(TABLES)
    write(repo, a=None)
    collect(repo)
    with pytest.raises(SnapshotTooOldError):
        fresh.resolve(unknown)


def test_p7_a_lost_reply_that_garbage_collection_overtakes_is_an_unknown_outcome(
    ground: Ground,
) -> None:
    """Its lease was lost as well; the record that would tell has been superseded and removed."""
    store = SeamStore(ground.store)
    writer = ground.repo(
        TABLES, store=store, coordination=ScriptedCoordination("writer", {"writer"})
    )
    repo = ground.repo(TABLES)
    replies = iter(["lost"])

    def lose(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        applied = apply()
        if phase(mutation) == "commit" and next(replies, None):
            write(repo, a=2)
            assert collect(repo).versions
            raise OutcomeUnknownError("the reply was lost")
        return applied

    store.hook = lose
    t = writer.transaction(two_phase=True)
    t.set(bal, "a", 1)
    with pytest.raises(CommitUnknownError) as caught:
        t.commit()
    with pytest.raises(SnapshotTooOldError):
        repo.resolve(caught.value)
    assert repo.snapshot().get(bal, "a") == 2


def test_a_cycle_that_cannot_raise_the_safe_point_looks_for_no_locks(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers run a cycle a minute, and finding locks may take reading whole tables."""
    store, looked = repo.context.store, list[Kind]()
    scan = store.scan_kind

    def count(kind: Kind, *where: Any, **more: Any) -> Any:
        looked.append(kind)
        return scan(kind, *where, **more)

    monkeypatch.setattr(store, "scan_kind", count)
    for value in range(2):
        write(repo, a=value)
        looked.clear()
        assert collect(repo).cells and Kind.LOCK in looked
        looked.clear()
        again = collect(repo)
        assert again.complete and again.cells == 0 and looked.count(Kind.LOCK) == 0


def test_p4_a_rollback_record_stays_while_a_late_call_may_still_meet_it(ground: Ground) -> None:
    clock = ScriptedClock()
    store = SeamStore(ground.store)
    store.latest_arrival = 5.0
    repo = ground.repo(TABLES, store=store, clock=clock)
    write(repo, a=1)
    t = repo.transaction(two_phase=True)
    t.set(bal, "b", 1)
    primary = cell_of(bal, "b")
    repo.context.resolver.fate(primary, t.start_ts, force=True)
    t.rollback()
    write(repo, a=2)
    collector = GarbageCollector(repo.context, retention=0)
    assert collector.collect().safe_point > t.start_ts
    clock.now += 4.9
    write(repo, a=3)
    assert collector.collect().records == 0
    assert ground.entries(bal, "b", Kind.WRITE)
    clock.now += 0.2
    write(repo, a=4)
    assert collector.collect().records == 1
    assert ground.entries(bal, "b", Kind.WRITE) == []


def test_p4_rollback_records_go_although_no_collector_lives_long_and_by_one_clock(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `percola gc` from cron, where no worker runs for long."""
    clock, machine = ScriptedClock(), "one"
    monkeypatch.setattr(ScriptedClock, "machine", property(lambda _: machine))
    store = SeamStore(ground.store)
    store.latest_arrival = 1500.0
    repo = ground.repo(TABLES, store=store, clock=clock)
    left: list[str] = []

    def roll_back(row: str) -> None:
        t = repo.transaction(two_phase=True)
        t.set(bal, row, 1)
        repo.context.resolver.fate(cell_of(bal, row), t.start_ts, force=True)
        t.rollback()
        left.append(row)

    def collected_after(seconds: float) -> int:
        clock.now += seconds
        write(repo, a=int(clock.now))
        return collect(repo).records

    roll_back("b")
    assert [collected_after(600) for _ in range(4)] == [0, 0, 0, 1]
    roll_back("c")
    assert collected_after(1600) == 0, "a safe point above it is noted"
    clock.now += 1e6  # Its steady clock is far from that of the first.
    machine = "another"
    assert collected_after(600) == 0, "clocks of two machines are not compared"
    assert [collected_after(1000) for _ in range(2)] == [0, 1]
    assert [ground.entries(bal, row, Kind.WRITE) for row in left] == [[], []]


def test_a_collector_that_stood_still_does_not_rest_for_nine_times_as_long(
    ground: Ground,
) -> None:
    """The process was stopped, or the store did not answer: it holds the turn of all workers."""
    clock = ScriptedClock()
    hours = [10_000.0]

    def stand_still(found: object, kind: Kind, *_: object) -> None:
        if kind is Kind.WRITE and hours:
            clock.now += hours.pop()

    store = heard(ground.store, scan_kind=stand_still)
    repo = ground.repo(TABLES, store=store, clock=clock)
    for value in range(3):
        put(repo, bal, "Bob", value)
    collected = GarbageCollector(repo.context, retention=0, share=0.1).collect()
    assert collected.complete and not hours
    assert clock.slept and max(clock.slept) <= 60
