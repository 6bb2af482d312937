"""The change feed of a table: every commit in order, none in flight missed (P2, P12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from feeds import PLACES, TABLES, bal, bank, note, other_bal, put, sound, tags, values
from stores import (
    Crashed,
    CrashingStore,
    Gate,
    Ground,
    PassingStore,
    ScriptedClock,
    SeamStore,
    heard,
    in_thread,
    put_all,
    stop_at,
    stopped,
)

from percola import LockTimeoutError, Repository, UsageError, feed, observer
from percola.cells import INLINE_BYTES, Cell, Kind
from percola.debezium import Events
from percola.observers.worker import Worker
from percola.store.base import OneStepStore


@dataclass
class Follower:
    """Somebody who follows the table, batch by batch, and keeps what came."""

    repo: Repository
    after: int = 0
    seen: list[feed.Change[str]] = field(default_factory=list)

    def poll(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """What is new by now: (row, commit_ts, changed)."""
        upto = max(self.after, feed.settled(self.repo, bank))
        found = list(feed.changes(self.repo, bank, self.after, upto))
        self.after = upto
        self.seen += found
        return [(one.row, one.commit_ts, one.changed) for one in found]

    def rows(self) -> list[str]:
        """The rows that all changes so far were of."""
        return [one.row for one in self.seen]


# --- What a change says -----------------------------------------------------------------


def test_a_change_says_row_timestamp_changed_columns_and_the_row_as_it_was_then(
    repo: Repository,
) -> None:
    follower = Follower(repo)
    with repo.transaction() as first:
        first.set(bal, "b", 1)
        first.set(note, "b", "long" * INLINE_BYTES)
        first.set(bal, "a\0", 2)
        first.set(other_bal, "b", 7)
    with repo.transaction() as second:
        second.delete(note, "b")
        second.set(tags["x"], "b", "y")
        second.get_for_update(bal, "a\0")
    with repo.transaction() as third:
        third.delete(bal, "a\0")
    assert first.commit_ts and second.commit_ts and third.commit_ts
    assert follower.poll() == [
        ("a\0", first.commit_ts, ("bal",)),
        ("b", first.commit_ts, ("bal", "note")),
        ("b", second.commit_ts, ("note", "tag:x")),
        ("a\0", third.commit_ts, ("bal",)),
    ]
    assert [values(one) for one in follower.seen] == [
        {"bal": 2},
        {"bal": 1, "note": "long" * INLINE_BYTES},
        {"bal": 1, "tag:x": "y"},
        {},
    ]
    assert follower.poll() == []
    assert {one.before for one in follower.seen} == {None}
    found = feed.changes(repo, bank, 0, before=True)
    assert [{c.name: v for c, v in (one.before or {}).items()} for one in found] == [
        {},
        {},
        {"bal": 1, "note": "long" * INLINE_BYTES},
        {"bal": 2},
    ]
    sound(repo)


def test_a_part_of_the_columns_may_be_asked_for_and_every_change_is_reported_all_the_same(
    repo: Repository,
) -> None:
    with repo.transaction() as t:
        t.set(bal, "a", 1)
        t.set(note, "a", "n")
        t.set(tags["x"], "a", "y")
        t.set(note, "b", "n")
    found = list(feed.changes(repo, bank, 0, columns=[bal, tags]))
    assert [(one.row, one.changed) for one in found] == [
        ("a", ("bal", "note", "tag:x")),
        ("b", ("note",)),
    ]
    assert [values(one) for one in found] == [{"bal": 1, "tag:x": "y"}, {}]
    with pytest.raises(UsageError, match=r"note of the row 'a' was not read"):  # Not: deleted.
        found[0].image.get(note)


def rows_read(repo: Repository) -> tuple[OneStepStore, list[int]]:
    """The repository's store, which notes of how many rows each read is."""
    rows: list[int] = []
    store = heard(
        repo.context.store,  # type: ignore[arg-type]
        read=lambda _, cells, ts: rows.append(len({cell.row for cell in cells})),
        scan_rows=lambda found, *_: rows.append(len(found)),
    )
    return store, rows


WANTED = pytest.mark.parametrize(
    "wanted", [None, [(bal.key, False), (note.key, False)]], ids=["all-columns", "by-name"]
)


@WANTED
def test_a_thousand_commits_are_read_in_few_calls(repo: Repository, wanted: Any) -> None:
    for number in range(1000):
        with repo.transaction() as t:
            t.set(bal, f"r{number % 900}", number)
    store, rows = rows_read(repo)
    upto = feed.settled(repo, bank)
    found = list(feed.read_changes(store, bank.name, 0, upto, wanted=wanted, before=True))
    assert [one.values[bal.key] for one in found] == [b"%d" % each for each in range(1000)]
    assert [one.before for one in found[:900]] == [{}] * 900
    assert [one.before for one in found[900:]] == [{bal.key: b"%d" % at} for at in range(100)]
    assert sum(rows) == 2 * 1000 and len(rows) <= 2 * 18


@WANTED
def test_of_large_rows_few_are_in_memory_at_once(repo: Repository, wanted: Any) -> None:
    for number in range(12):
        put_all(repo, note, {f"{number}{half}": half * 2**20 for half in ("a", "b")})
    store, rows = rows_read(repo)
    upto = feed.settled(repo, bank)
    found = list(feed.read_changes(store, bank.name, 0, upto, wanted=wanted))
    assert len(found) == sum(rows) == 24
    assert max(rows) <= 4


def test_what_percola_writes_for_itself_is_no_change(repo: Repository) -> None:
    """Acknowledgments of observers stand in the rows that they are about."""

    look = observer(note, name="look")(lambda t, row: t.set(bal, row, 5))

    follower = Follower(repo)
    with repo.transaction() as t:
        t.set(note, "a", "n")
    worker = Worker(repo, observers=[look])
    worker.run_until_idle()
    assert [(row, changed) for row, _, changed in follower.poll()] == [
        ("a", ("note",)),
        ("a", ("bal",)),
    ]


# --- Commits in flight ------------------------------------------------------------------


@dataclass
class Pair:
    """A writer that stops inside its commit, another one, and a follower."""

    gate: Gate
    seam: SeamStore
    writer: Repository
    repo: Repository
    follower: Follower

    def commit_until(self, where: str, row: str, after: bool) -> Any:
        self.seam.hook = stop_at(where, row, self.gate, after=after)
        t = self.writer.transaction(two_phase=True)
        for name in "abc":
            t.set(bal, name, 9)
        committing = in_thread(t.commit)
        self.gate.await_arrival()
        return committing


def pair_on(ground: Ground, **options: Any) -> Pair:
    seam = SeamStore(ground.store)
    writer = ground.repo(TABLES, store=seam, process="writer")
    repo = ground.repo(TABLES, process="other", **options)
    return Pair(Gate(), seam, writer, repo, Follower(repo))


@pytest.fixture
def pair(ground: Ground) -> Pair:
    return pair_on(ground, lock_wait_seconds=20)


@pytest.mark.parametrize(("where", "row", "after"), PLACES)
def test_a_commit_in_flight_at_any_step_is_neither_missed_nor_seen_in_part_nor_twice(
    pair: Pair, where: str, row: str, after: bool
) -> None:
    follower = pair.follower
    put(pair.repo, "z")
    assert follower.poll()
    committing = pair.commit_until(where, row, after)
    later = put(pair.repo, "y")
    early = follower.poll()
    # What others commit meanwhile has to wait for it: it may commit below.
    undecided = (where, row, after) not in ((PLACES[0]), ("commit", "a", True))
    undecided = undecided and (where, row) != ("commit", "b")
    if where == "prewrite" and pair.seam.feed_index is not None:
        undecided = False  # No commit_ts has been drawn, as an index tells.
    if undecided:
        assert early == []
    elif where == "prewrite":
        assert [name for name, _, _ in early] == ["y"]
    else:
        # Past the commit point: the follower itself finishes what it finds.
        assert [name for name, _, _ in early] == ["a", "b", "c", "y"]
    pair.gate.open()
    commit_ts = committing.result(20)
    follower.poll()
    expected = [("y", later), *((name, commit_ts) for name in "abc")]
    found = [(one.row, one.commit_ts) for one in follower.seen[1:]]
    assert sorted(found) == sorted(expected)
    assert found == sorted(found, key=lambda one: one[1])
    sound(pair.repo)


@pytest.mark.parametrize("at", range(1, 9))
def test_a_transaction_whose_process_dies_holds_nobody_up_and_comes_whole_or_not_at_all(
    ground: Ground, at: int
) -> None:
    repo = ground.repo(TABLES)
    follower = Follower(repo)
    store = CrashingStore(ground.store, at)
    dying = ground.repo(TABLES, store=store, process="dying")
    t = dying.transaction(two_phase=True)
    for name in "abc":
        t.set(bal, name, 9)
    store.armed = True
    died = False
    try:
        t.commit()
    except Crashed:
        died = True
    later = put(repo, "y")
    assert follower.poll()[-1] == ("y", later, ("bal",))
    committed = repo.snapshot().get(bal, "a") == 9
    assert follower.rows() == (["a", "b", "c", "y"] if committed else ["y"])
    # Three locks, then the commit point.
    assert (died, committed) == (at <= 6, at >= 5)
    assert ground.left_over(bank, Kind.LOCK) == []
    assert follower.poll() == []
    sound(repo)


def test_a_commit_that_a_reader_rolls_forward_is_listed_at_its_commit_timestamp(
    ground: Ground,
) -> None:
    repo = ground.repo(TABLES)
    store = CrashingStore(ground.store, at=4)
    dying = ground.repo(TABLES, store=store, process="dying")
    t = dying.transaction(two_phase=True)
    for name in "ab":
        t.set(bal, name, 9)
        t.set(tags["x"], name, "9")
        t.set(tags["y"], name, "9")
    store.armed = True
    with pytest.raises(Crashed):
        t.commit()
    # Cell by cell, one of them twice.
    repo.snapshot().get(tags["y"], "b")
    repo.snapshot().get(bal, "b")
    follower = Follower(repo)
    every = ("bal", "tag:x", "tag:y")
    [(_, commit_ts, _), _] = found = follower.poll()
    assert found == [("a", commit_ts, every), ("b", commit_ts, every)]
    assert values(follower.seen[1]) == {"bal": 9, "tag:x": "9", "tag:y": "9"}


def test_what_was_settled_once_stays_so_whatever_locks_come_later(pair: Pair) -> None:
    """A transaction that began long ago locks now: it commits above, and nobody waits for it."""
    put(pair.repo, "a", value=3)
    old = pair.writer.transaction(two_phase=True)
    old.set(tags["x"], "a", "late")
    at = put(pair.repo, "a", value=4)
    before = feed.settled(pair.repo, bank)
    assert before >= at
    with stopped(pair.seam, old.commit, "commit", "a") as committing:
        # Its lock is below what was settled, and in the way of every ordinary reader.
        assert feed.settled(pair.repo, bank) < old.start_ts < at
        store = pair.repo.context.store
        for found in (
            feed.read_changes(store, "bank", old.start_ts, before),
            feed.read_rows(store, "bank", before, wanted=None),
        ):
            seen = [(one.row, one.commit_ts, one.values) for one in found]
            assert seen == [(b"a", at, {b"bal": b"4"})]
    assert committing.result(20) > before
    found = list(feed.changes(pair.repo, bank, before))
    assert [(one.changed, values(one)) for one in found] == [
        (("tag:x",), {"bal": 4, "tag:x": "late"})
    ]


def test_a_position_that_would_go_back_is_refused(pair: Pair) -> None:
    """A follower that stored it would read what is between once more."""
    follower = Follower(pair.repo)
    old = pair.writer.transaction(two_phase=True)
    old.set(tags["x"], "a", "late")
    at = put(pair.repo, "a", value=4)
    assert follower.poll() == [("a", at, ("bal",))]
    with stopped(pair.seam, old.commit, "commit", "a") as committing:
        upto = feed.settled(pair.repo, bank)
        assert upto < at <= follower.after
        with pytest.raises(UsageError, match=r"up to max\(after, feed\.settled\(repo, table\)\)"):
            feed.changes(pair.repo, bank, follower.after, upto)
        assert list(feed.changes(pair.repo, bank, follower.after)) == []
        assert follower.poll() == []
    late = committing.result(20)
    assert follower.poll() == [("a", late, ("tag:x",))]


def test_what_is_no_timestamp_is_refused(repo: Repository) -> None:
    put(repo, "a", value=1)
    for bad in (True, -1, 1.0, "1"):
        for asked in ((0, bad), (bad,)):
            with pytest.raises(UsageError, match=repr(bad)):
                feed.changes(repo, bank, *asked)  # type: ignore[arg-type]


class _Looked(PassingStore):
    """Runs a function once, just after somebody has looked for locks and found none."""

    then: Callable[[], object] | None = None

    def scan_kind(
        self,
        kind: Kind,
        table: str,
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 256,
        **more: Any,
    ) -> tuple[list[tuple[Cell, int, bytes]], bytes | None]:
        found = self.inner.scan_kind(kind, table, start, end, limit, **more)
        then, self.then = self.then, None
        if then is not None:
            then()
        return found


def test_a_commit_that_locks_just_after_the_look_for_locks_is_above_what_is_settled(
    ground: Ground, pair: Pair
) -> None:
    store = _Looked(ground.store)
    looking = Follower(ground.repo(TABLES, store=store))
    committing = []
    store.then = lambda: committing.append(pair.commit_until("commit", "a", False))
    assert looking.poll() == []
    assert committing, "nobody looked for locks"
    pair.gate.open()
    commit_ts = committing[0].result(20)
    assert looking.after < commit_ts
    assert [one[1] for one in looking.poll()] == [commit_ts] * 3


def test_below_a_late_lock_older_versions_and_long_values_are_found(pair: Pair) -> None:
    with pair.repo.transaction() as first:
        first.set(note, "a", "long" * INLINE_BYTES)
    for _ in range(20):
        with pair.repo.transaction() as held:
            held.get_for_update(note, "a")
            held.set(bal, "b", 1)
    late = pair.writer.transaction(two_phase=True)
    late.set(note, "a", "late")
    with pair.repo.transaction() as t:
        t.set(bal, "a", 2)
    before = feed.settled(pair.repo, bank)
    with stopped(pair.seam, late.commit, "commit", "a") as committing:
        store = pair.repo.context.store
        [image] = feed.read_changes(store, "bank", late.start_ts, before, end=b"b")
        assert image.values == {b"bal": b"2", b"note": b"long" * INLINE_BYTES}
        [row] = feed.read_rows(store, "bank", before, wanted=[(b"note", False)])
        assert (row.commit_ts, row.changed) == (first.commit_ts, (b"note",))
    committing.result(20)


def test_asked_for_a_timestamp_that_is_not_settled_it_waits_for_what_may_commit_below(
    pair: Pair,
) -> None:
    committing = pair.commit_until("commit", "a", False)
    upto = put(pair.repo, "y")
    reading = in_thread(lambda: list(feed.changes(pair.repo, bank, 0, upto)))
    whole = in_thread(lambda: list(feed.raw_rows(pair.repo, bank, upto)))
    assert not (reading.done() or whole.done())
    pair.gate.open()
    commit_ts = committing.result(20)
    assert commit_ts < upto
    assert [one.row for one in reading.result(20)] == ["a", "b", "c", "y"]
    assert [one.row for one in whole.result(20)] == [b"a", b"b", b"c", b"y"]


def test_a_transaction_that_takes_too_long_is_told_as_such(ground: Ground) -> None:
    pair = pair_on(ground, clock=ScriptedClock(), lock_wait_seconds=2, lock_ttl_seconds=1000)
    committing = pair.commit_until("commit", "a", False)
    upto = put(pair.repo, "y")
    for read in (
        lambda: feed.changes(pair.repo, bank, 0, upto),
        lambda: Events(bank).rows(pair.repo, upto),
    ):
        with pytest.raises(LockTimeoutError, match="live transaction"):
            read()
    pair.gate.open()
    committing.result(20)
