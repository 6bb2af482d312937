"""A copy of a repository in another store: what it is at one timestamp, and the work left to do."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from borrowed import only_near
from stores import (
    Ground,
    PassingStore,
    cell_of,
    delete,
    die,
    heard,
    in_memory,
    notify,
    put,
    put_all,
)

from percola import (
    NotARepositoryError,
    Observer,
    Repository,
    SnapshotTooOldError,
    Table,
    Transaction,
    UsageError,
    ValueTooLargeError,
    Worker,
    observer,
)
from percola.catalog import feed_since
from percola.cells import MAX_TS, Cell, Kind
from percola.clock import Clock
from percola.coordination.memory import MemoryCoordination
from percola.inspection import retry_failures
from percola.maintenance import copy
from percola.maintenance.check import Severity, check
from percola.maintenance.copy import Copied, copy_store
from percola.oracle.embedded import EmbeddedOracle
from percola.paused import paused_observers
from percola.store.base import ChangedRow, Put, RowMutation
from percola.store.memory import MemoryStore
from percola.store.walks import walk_kind

docs = Table("docs", feed=True)
text = docs.column("text", str, observed=True)
size = docs.column("size", int)
letters = docs.column("letters", str)
body = docs.column("body", bytes)
again = docs.weak_column("again")
seen = docs.column("seen", int)
tallies = Table("tallies")
tally = tallies.column("tally", int)
TABLES = [docs, tallies]
ROWS = [f"doc {number:02}" for number in range(24)]

State = dict[tuple[str, Any, str], Any]


@observer(text, name="measure")
def measure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(text, row) or ""))


@observer(text, name="spell")
def spell(t: Transaction, row: str) -> None:
    if t.get(text, row) == "poison":
        raise ValueError(f"cannot spell {row}")
    t.set(letters, row, "".join(sorted(set(t.get(text, row) or ""))))


@observer(again, name="look")
def look(t: Transaction, row: str) -> None:
    """Shows the row's size where it differs, as a careful program does."""
    found = len(t.get(text, row) or "")
    if found != (t.get(seen, row) or 0):
        t.set(seen, row, found)


@observer(text, name="spell")
def failing(t: Transaction, row: str) -> None:
    raise ValueError(f"cannot spell {row}")


OBSERVERS: list[Observer[str]] = [measure, spell, look]


def work(repo: Repository) -> None:
    Worker(repo, OBSERVERS, threads=2, attempts=1, first_wait=0.001).run_until_idle()


def state(repo: Repository, at: int | None = None) -> State:
    """Every value, by table, row and column."""
    with repo.snapshot(at) as now:
        return {
            (table.name, row.key, column.name): value
            for table in repo.schema
            for row in now.scan(table)
            for column, value in row.items()
        }


def errors(repo: Repository) -> list[str]:
    return [str(one) for one in check(repo) if one.severity is not Severity.NOTE]


class Target:
    """An empty store in memory, with its oracle."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.oracle = EmbeddedOracle(self.store)

    def copy(self, source: Repository, **options: Any) -> Copied:
        return copy_store(source, self.store, self.oracle, **options)

    def copied(self, source: Repository, **options: Any) -> Repository:
        """A copy, opened."""
        self.copy(source, **options)
        return self.repo()

    def repo(self) -> Repository:
        return Repository("target", self.store, self.oracle, MemoryCoordination(), TABLES)


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and versions at a time, so that much can happen between; each position is saved."""
    monkeypatch.setattr(copy, "_RECORDS", 8)
    monkeypatch.setattr(copy, "_VERSIONS", 2)
    monkeypatch.setattr(copy, "_SAVED_EVERY", 0.0)


def write(repo: Repository, rng: random.Random, times: int) -> None:
    """Puts, deletes and weak notifications of random rows."""
    for _ in range(times):
        row, what = rng.choice(ROWS), rng.random()
        with repo.transaction() as t:
            if what < 0.6:
                t.set(text, row, "abc" * rng.randrange(4))
            elif what < 0.7:
                t.set(text, row, "poison")
            elif what < 0.8:
                t.delete(text, row)
            else:
                t.notify(again, row)
            if what > 0.5:
                t.set(body, row, bytes([rng.randrange(256)]) * rng.choice((1, 1000)))


# --- What it is -------------------------------------------------------------------------


def test_a_copy_has_what_the_source_had_with_its_timestamps(
    repo: Repository, target: Target
) -> None:
    write(repo, random.Random(1), 60)
    work(repo)
    write(repo, random.Random(2), 5)
    done = target.copy(repo)
    copied = target.repo()
    assert state(copied) == state(repo)
    now, then = copied.snapshot(), repo.snapshot()
    for row in then.scan(docs, columns=[text]):
        assert now.version(text, row.key) == then.version(text, row.key)
    assert (done.ts, done.resumed, done.table) == (then.start_ts, 0, "")
    assert done.rows >= len(list(then.scan(docs)))
    assert errors(copied) == []
    assert repo.holds() == [], "the source may collect garbage again"


def test_work_that_is_left_is_left_in_the_copy_and_what_is_done_is_done(
    repo: Repository, target: Target
) -> None:
    put_all(repo, text, dict.fromkeys(ROWS[:5], "text"))
    delete(repo, text, ROWS[4])
    work(repo)
    with repo.transaction() as t:
        t.set(text, ROWS[0], "changed")
        t.set(text, ROWS[1], "poison")
        t.delete(text, ROWS[2])
        t.notify(again, ROWS[3])
        t.notify(again, "no row at all")
    copied = target.copied(repo)
    assert copied.pending() == repo.pending() == {"docs.text": 3, "docs.again": 2}
    ran: list[str] = []

    counted = observer(text, name="measure")(lambda t, row: ran.append(row))

    Worker(copied, [counted, spell, look], attempts=1).run_until_idle()
    assert sorted(ran) == ROWS[:3], "once each, and no row that was answered"
    gone = target.store.entries(cell_of(text, ROWS[4]), Kind.WRITE, 0, MAX_TS)
    assert gone == [], "what was deleted and answered has left nothing"
    assert copied.snapshot().get(seen, ROWS[3]) == 4
    assert (copied.pending(), copied.dead_lettered()) == ({}, 1)


def test_a_dead_letter_is_one_in_the_copy_and_can_be_retried_there(
    repo: Repository, target: Target
) -> None:
    put(repo, text, "a", "poison")
    work(repo)
    copied = target.copied(repo)
    assert copied.dead_lettered() == 1
    work(copied)
    assert copied.snapshot().get(letters, "a") is None
    put(copied, text, "a", "well")
    work(copied)
    assert (copied.dead_lettered(), copied.snapshot().get(letters, "a")) == (0, "elw")


def test_a_dead_lettered_delete_is_seen_by_the_observer_when_it_is_retried_in_the_copy(
    repo: Repository, target: Target
) -> None:
    put(repo, text, "a", "well")
    work(repo)
    with repo.transaction() as t:
        t.delete(text, "a")

    Worker(repo, [measure, failing, look], attempts=1).run_until_idle()
    copied = target.copied(repo)
    assert retry_failures(copied) == 1
    work(copied)
    assert (copied.dead_lettered(), copied.snapshot().get(letters, "a")) == (0, "")
    assert errors(copied) == []


def frozen(source: Repository) -> Repository:
    """The source as it is now, every entry of its tables: what a copy is judged by."""
    frozen = in_memory(TABLES)
    store = frozen.context.store
    for table in source.schema:
        for kind in Kind:
            for cell, ts, raw in walk_kind(source.context.store, kind, table.name):
                store.mutate([RowMutation(*cell[:2], (), [Put(kind, cell.column, ts, raw)])])
    store.draw(source.context.oracle.read_timestamp())
    return frozen


def dirty(repo: Repository) -> set[Cell]:
    return {cell for cell, _, _ in walk_kind(repo.context.store, Kind.NOTIFY, docs.name)}


@only_near("it is about what happens between reads, and many transactions take long elsewhere")
@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_source_at_one_timestamp_however_much_happens_meanwhile(
    repo: Repository, target: Target, small_ranges: None, seed: int
) -> None:
    """Each range that is read is followed by writes, runs of observers, and garbage collection."""
    rng = random.Random(seed)
    write(repo, rng, 60)
    work(repo)
    write(repo, rng, 12)
    kept: list[Repository] = []

    def meanwhile(copied: Copied) -> None:
        if not kept:
            kept.append(frozen(repo))  # Nothing has happened since the timestamp was drawn.
        write(repo, rng, 4)
        if rng.random() < 0.7:
            work(repo)
        if rng.random() < 0.3:
            repo.collect_garbage(retention=0)

    copied, [judge] = target.copied(repo, progress=meanwhile), kept
    assert state(copied) == state(judge)
    assert errors(copied) == []
    assert dirty(judge) <= dirty(copied)
    weak = {cell.row.decode() for cell in dirty(judge) if cell.column == again.key}
    work(judge)
    work(copied)
    expected, found = state(judge), state(copied)
    # Rows that were notified weakly since then may be looked at once more.
    shown = [key for key in expected.keys() | found.keys() if key[2] != "seen" or key[1] in weak]
    assert {key: found.get(key) for key in shown} == {key: expected.get(key) for key in shown}
    assert copied.dead_lettered() == judge.dead_lettered()


@only_near("it is about what happens between reads")
def test_what_is_dead_lettered_meanwhile_is_pending_or_dead_lettered_in_the_copy(
    repo: Repository, target: Target, small_ranges: None
) -> None:
    """By the only observer of the column, which leaves no acknowledgment."""
    many = [f"row {number:03}" for number in range(400)]
    put_all(repo, text, dict.fromkeys(many, "poison"))

    def fail(copied: Copied) -> None:
        Worker(repo, [spell], attempts=1, threads=1).run_until_idle()

    copied = target.copied(repo, progress=fail)
    waiting = {cell.row for cell in dirty(copied)}
    failed = {cell.row for cell, _, _ in walk_kind(target.store, Kind.FAILED, docs.name)}
    assert waiting | failed == {row.encode() for row in many}


class AnsweringStore(PassingStore):
    """Runs the observers after each read of write records."""

    answer: Callable[[], None] | None = None

    def scan_kind(self, kind: Kind, *args: Any, **kwargs: Any) -> Any:
        found = self.inner.scan_kind(kind, *args, **kwargs)
        if kind is Kind.WRITE and self.answer is not None:
            answer, self.answer = self.answer, None
            answer()
        return found


def test_a_change_that_is_answered_while_its_row_is_read_is_left_to_the_copy(
    ground: Ground, target: Target
) -> None:
    store = AnsweringStore(ground.store)
    source = ground.repo(TABLES, store=store)
    with source.transaction() as t:
        for row in ROWS[:3]:
            t.set(text, row, "text")
            t.notify(again, row)
    store.answer = lambda: work(ground.repo(TABLES))
    target.copy(source)
    assert source.pending() == {}
    copied = target.repo()
    assert copied.pending() == {"docs.text": 3, "docs.again": 3}
    work(copied)
    assert [copied.snapshot().get(seen, row) for row in ROWS[:3]] == [4, 4, 4]


@pytest.mark.parametrize("column", [text, again])
def test_what_is_retried_while_it_is_copied_is_left_to_the_copy(
    ground: Ground, target: Target, column: Any
) -> None:
    """The dead letter is gone by then, and what it became is of a newer timestamp."""
    source = ground.repo(TABLES)

    @observer(column, name="spell")
    def fail(t: Transaction, row: str) -> None:
        raise ValueError(row)

    put_all(source, text, {"a": "text"})
    notify(source, again, "a")
    Worker(source, [fail], attempts=1, threads=1).run_until_idle()
    assert source.dead_lettered() == 1

    def retry(found: object, kind: Kind, *_: object) -> None:
        if kind is Kind.LOCK:
            assert retry_failures(source) in (0, 1)

    target.copy(ground.repo(TABLES, store=heard(ground.store, scan_kind=retry)))
    assert source.dead_lettered() == 0
    copied = target.repo()
    assert f"docs.{column.name}" in copied.pending()
    assert errors(copied) == []


class ScannedStore(PassingStore):
    """Counts the rows of docs that scans for entries pass: some stores read all of them."""

    def __init__(self, inner: Any, keys: list[bytes]) -> None:
        super().__init__(inner)
        self.passed: Counter[Kind] = Counter()
        self._keys = keys

    def scan_kind(
        self,
        kind: Kind,
        table: str,
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 256,
        **more: Any,
    ) -> Any:
        found, following = self.inner.scan_kind(kind, table, start, end, limit, **more)
        upto = following or end
        if table == docs.name:
            passed = [one for one in self._keys if start <= one and not (upto and one >= upto)]
            self.passed[kind] += len(passed)
        return found, following


@pytest.mark.parametrize("are_dirty", [False, True])
def test_a_row_is_not_searched_again_for_work_with_each_range_before_it(
    ground: Ground, target: Target, small_ranges: None, are_dirty: bool
) -> None:
    many = [f"row {number:03}" for number in range(400)]
    store = ScannedStore(ground.store, [row.encode() for row in many])
    source = ground.repo(TABLES, store=store)
    put_all(source, text if are_dirty else size, dict.fromkeys(many, "text" if are_dirty else 4))
    store.passed.clear()
    target.copy(source)
    assert store.passed[Kind.WRITE] == 400
    assert store.passed[Kind.FAILED] <= 2 * 400
    assert store.passed[Kind.NOTIFY] <= 4 * 400
    assert sum(target.repo().pending().values()) == 400 * are_dirty


def test_silent_writes_stay_silent(repo: Repository, target: Target) -> None:
    put(repo, text, "a", "text", notify=False)
    copied = target.copied(repo)
    work(copied)
    assert (copied.pending(), copied.snapshot().get(size, "a")) == ({}, None)


def test_locks_of_the_dead_are_resolved_before_anything_is_read(
    ground: Ground, target: Target
) -> None:
    """One transaction died after its commit point, and another one before it."""
    for name, at in (("late", 4), ("early", 3)):
        die(ground, TABLES, at, text, {f"{name} 1": name, f"{name} 2": name}, name)
    copied = target.copied(ground.repo(TABLES, process="copying"))
    assert {row for _, row, _ in state(copied)} == {"late 1", "late 2"}
    # Where notify entries are put before the commit point, the other one has left hints, too.
    assert copied.pending()["docs.text"] >= 2
    assert errors(copied) == []
    work(copied)
    assert copied.pending() == {}
    assert copied.snapshot().get(size, "late 2") == 4


def test_paused_observers_are_paused_in_the_copy_and_lose_nothing(
    repo: Repository, target: Target
) -> None:
    repo.pause_observer(measure, reason="wrong sizes")
    put(repo, text, "a", "text")
    work(repo)
    copied = target.copied(repo)
    assert copied.paused_observers() == repo.paused_observers() != []
    work(copied)
    assert state(copied) == {("docs", "a", "text"): "text", ("docs", "a", "letters"): "etx"}
    copied.resume_observer(measure)
    work(copied)
    assert copied.snapshot().get(size, "a") == 4
    assert copied.pending() == {}
    assert [one.name for one in repo.paused_observers()] == ["measure"], "the source is another"


def test_a_run_beside_a_paused_observer_that_is_newer_than_the_copy_is_repeated_there(
    repo: Repository, target: Target
) -> None:
    repo.pause_observer(measure)
    put(repo, text, "a", "text")
    before = repo.snapshot().start_ts
    work(repo)  # The notify entry, which is older, now says that it was handled.
    copied = target.copied(repo, at=before)
    assert not Worker(copied, OBSERVERS).is_idle()
    work(copied)
    assert copied.snapshot().get(letters, "a") == "etx"


def test_a_retry_beside_a_paused_observer_that_is_newer_than_the_copy_is_repeated_there(
    repo: Repository, target: Target
) -> None:
    repo.pause_observer(measure)
    put(repo, text, "a", "text")
    Worker(repo, [measure, failing, look], attempts=1).run_until_idle()
    before = repo.snapshot().start_ts
    assert retry_failures(repo) == 1
    copied = target.copied(repo, at=before)
    assert not Worker(copied, OBSERVERS).is_idle()
    work(copied)
    assert copied.snapshot().get(letters, "a") == "etx"


def test_what_is_resumed_while_a_copy_is_interrupted_is_not_paused_in_it(
    repo: Repository, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy ends after it has copied the pauses, and before it is a repository."""

    def stop(*_: object) -> bool:
        raise StoppedError

    repo.pause_observer(measure)
    repo.pause_observer(spell)
    with monkeypatch.context() as patch:
        patch.setattr(copy, "end_copy", stop)
        with pytest.raises(StoppedError):
            target.copy(repo)
    assert list(paused_observers(target.store)) == ["measure", "spell"]
    repo.resume_observer(measure)
    target.copy(repo)
    assert [one.name for one in target.repo().paused_observers()] == ["spell"]


def test_a_copy_of_an_earlier_time(repo: Repository, target: Target) -> None:
    put(repo, text, "a", "old")
    before = repo.snapshot().start_ts
    work(repo)
    put_all(repo, text, {"a": "new", "b": "new"})
    work(repo)
    assert target.copy(repo, at=before).ts == before
    copied = target.repo()
    assert state(copied) == {("docs", "a", "text"): "old"}
    assert copied.pending() == {"docs.text": 1}, "it was not answered then"
    with pytest.raises(SnapshotTooOldError):
        copied.snapshot(before - 1)


def test_every_store_takes_a_copy(ground: Ground) -> None:
    source = Target().repo()
    write(source, random.Random(11), 60)
    work(source)
    write(source, random.Random(12), 10)
    copy_store(source, ground.store, ground.oracle)
    copied = ground.repo(TABLES)
    assert state(copied) == state(source)
    assert copied.pending() == source.pending()
    assert errors(copied) == []
    work(source)
    work(copied)
    assert state(copied) == state(source)
    assert copied.dead_lettered() == source.dead_lettered()


# --- What follows -----------------------------------------------------------------------


def test_what_commits_in_the_copy_is_newer_and_its_feed_begins_there(
    repo: Repository, target: Target
) -> None:
    write(repo, random.Random(3), 30)
    done = target.copy(repo)
    copied = target.repo()
    with copied.transaction() as t:
        t.set(text, "new", "text")
    assert t.commit_ts is not None
    assert t.commit_ts > done.ts
    since = feed_since(target.store, "docs")
    assert since is not None
    assert since >= done.ts
    listed = target.store.changes("docs", since, MAX_TS)
    assert [(one.commit_ts, one.row) for one in listed] == [(t.commit_ts, b"new")]


def test_commit_times_are_known_in_the_copy(repo: Repository, target: Target) -> None:
    write(repo, random.Random(4), 5)
    repo.collect_garbage(retention=3600)  # Writes the log of times.
    target.copy(repo)
    ts = repo.snapshot().start_ts - 1
    assert target.repo().commit_times().of(ts) == repo.commit_times().of(ts)
    assert repo.commit_times().of(ts)[1] is not None


# --- Interrupted ------------------------------------------------------------------------


class StoppedError(Exception):
    """The copy was interrupted."""


def stop_after(ranges: int) -> Callable[[Copied], None]:
    calls: list[Copied] = []

    def stop(copied: Copied) -> None:
        calls.append(copied)
        if len(calls) == ranges:
            raise StoppedError

    return stop


@pytest.mark.parametrize("ranges", [1, 3, 6])
def test_a_copy_that_was_interrupted_goes_on_at_the_same_timestamp(
    repo: Repository, target: Target, small_ranges: None, ranges: int
) -> None:
    write(repo, random.Random(5), 80)
    expected = state(repo)
    with pytest.raises(StoppedError):
        target.copy(repo, progress=stop_after(ranges))
    with pytest.raises(NotARepositoryError, match="unfinished copy"):
        target.repo()
    write(repo, random.Random(6), 30)
    work(repo)
    repo.collect_garbage(retention=0)
    done = target.copy(repo)
    assert state(target.repo()) == expected
    assert 0 < done.resumed < done.rows
    assert errors(target.repo()) == []


class SlowClock(Clock):
    """Each look at it takes a while, as in a process that is held up between any two lines."""

    def __init__(self, step: float) -> None:
        self._now, self._step = 0.0, step

    def monotonic(self) -> float:
        self._now += self._step
        return self._now


@pytest.mark.parametrize("step", [0.13, 0.21, 0.3])
def test_no_position_is_stored_of_rows_that_are_not_written_yet(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    monkeypatch.setattr(copy, "_RECORDS", 4)
    source = in_memory(TABLES, clock=SlowClock(step))
    put_all(source, text, {row: f"text of {row}" for row in ROWS})
    expected = state(source)
    for ranges in range(1, len(ROWS)):
        target = Target()
        with contextlib.suppress(StoppedError):
            target.copy(source, progress=stop_after(ranges))
            break
        target.copy(source)
        assert state(target.repo()) == expected, f"stopped after {ranges} ranges"
    assert ranges > 3


def test_a_copy_that_is_too_old_to_be_resumed_says_what_to_do(
    repo: Repository, target: Target, small_ranges: None
) -> None:
    write(repo, random.Random(7), 40)
    with pytest.raises(StoppedError):
        target.copy(repo, progress=stop_after(2))
    for one in repo.holds():
        repo.release(one.name)  # As after some hours.
    write(repo, random.Random(8), 20)
    repo.collect_garbage(retention=0)
    with pytest.raises(UsageError, match="Delete the target and begin again"):
        target.copy(repo)


# --- With its history -------------------------------------------------------------------


def listed(repo: Repository, after: int) -> list[ChangedRow]:
    upto = repo.snapshot().start_ts
    return list(repo.context.store.changes(docs.name, after, upto))


@only_near("it reads at every timestamp")
@pytest.mark.parametrize("seed", range(3))
def test_a_copy_with_its_history_can_be_read_wherever_the_source_can(
    repo: Repository, target: Target, small_ranges: None, seed: int
) -> None:
    """Beside writes, runs of observers, and garbage collection, which the copy holds back."""
    rng = random.Random(seed)
    write(repo, rng, 40)
    work(repo)
    repo.collect_garbage(retention=0)
    floor = repo.context.store.safe_point()
    write(repo, rng, 40)
    work(repo)
    write(repo, rng, 5)
    kept: list[Repository] = []

    def meanwhile(copied: Copied) -> None:
        if not kept:
            kept.append(frozen(repo))
        write(repo, rng, 2)
        repo.collect_garbage(retention=0)

    done = target.copy(repo, history=True, progress=meanwhile)
    copied, [judge] = target.repo(), kept
    assert 0 < floor == copied.context.store.safe_point() < done.ts
    for at in range(floor, done.ts + 1):
        assert state(copied, at) == state(judge, at), at
    with pytest.raises(SnapshotTooOldError):
        copied.snapshot(floor - 1)
    versions = [
        [one.versions(text, row) for row in ROWS if one.snapshot().get(text, row) is not None]
        for one in (copied, judge)
    ]
    assert max(map(len, versions[0])) > 1
    assert versions[0] == versions[1]
    assert errors(copied) == []
    # The feed goes on where the source's was.
    expected = [one for one in listed(judge, floor) if one.commit_ts <= done.ts]
    assert [one for one in listed(copied, floor) if one.commit_ts < done.ts] == [
        one for one in expected if one.commit_ts < done.ts
    ]
    with copied.transaction() as t:
        t.set(body, "new", b"")
    assert t.commit_ts is not None
    assert t.commit_ts > done.ts
    assert listed(copied, done.ts) == [ChangedRow(t.commit_ts, b"new", (b"body",))]
    work(copied)
    copied.collect_garbage(retention=0)
    assert errors(copied) == []
    assert state(copied, None) == state(copied, copied.snapshot().start_ts)


def test_of_a_cell_with_many_versions_few_are_read_and_held_at_once(
    ground: Ground, target: Target, small_ranges: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "_CHANGES", 3)
    repo = ground.repo(TABLES)
    for number in range(30):
        put(repo, size, "hot", number)
    held: list[int] = []
    most = 0

    def read(found: Any, *_: object) -> None:
        held.append(len(found[0] if isinstance(found, tuple) else found))

    def written(*_: object) -> None:
        nonlocal most
        most = max(most, sum(held))
        held.clear()

    source = ground.repo(TABLES, store=heard(ground.store, scan_kind=read, entries=read))
    copy_store(source, heard(target.store, mutate=written), target.oracle, history=True)
    assert 0 < most <= 8
    assert target.repo().versions(size, "hot") == repo.versions(size, "hot")


def test_a_copy_is_finished_with_or_without_its_history_as_it_was_begun(
    repo: Repository, target: Target, small_ranges: None
) -> None:
    write(repo, random.Random(5), 60)
    with pytest.raises(StoppedError):
        target.copy(repo, history=True, progress=stop_after(2))
    with pytest.raises(UsageError, match="unfinished copy with the history"):
        target.copy(repo)
    assert target.copy(repo, history=True).resumed > 0


def test_of_two_copies_into_one_target_one_ends(
    repo: Repository, target: Target, small_ranges: None
) -> None:
    """What the other one has made is in use by then, and nothing of the first one gets into it."""
    write(repo, random.Random(9), 80)
    expected = state(repo)
    left: list[set[Any]] = []

    def another(copied: Copied) -> None:
        if left:
            return
        target.copy(repo)
        found = target.repo()
        assert state(found) == expected
        with found.transaction() as t:
            for table, row, column in expected:
                t.delete(found.table(table).resolve(column), row)
        work(found)
        found.collect_garbage(retention=0)
        left.append(set(walk_kind(target.store, Kind.WRITE, docs.name)))
        assert not any(cell.column == text.key for cell, _, _ in left[0])

    with pytest.raises(UsageError, match="Another process copies to the same target"):
        target.copy(repo, progress=another)
    assert set(walk_kind(target.store, Kind.WRITE, docs.name)) == left[0]


# --- Refused ----------------------------------------------------------------------------


def test_a_target_with_tables_is_refused(repo: Repository, target: Target) -> None:
    target.repo()
    with pytest.raises(NotARepositoryError, match="table 'docs': name an empty or a new place"):
        target.copy(repo)


def test_an_unfinished_copy_of_another_repository_is_refused(
    ground: Ground, repo: Repository, target: Target, small_ranges: None
) -> None:
    write(repo, random.Random(10), 40)
    with pytest.raises(StoppedError):
        target.copy(repo, progress=stop_after(2))
    other = Target().repo()
    # A folder that is open is named as it is, and not by what it was opened as.
    source = f"({ground.kind}|ground)"
    with pytest.raises(UsageError, match=f"copy of .*{source} in the target, not of .*target"):
        target.copy(other)


def test_a_value_that_the_target_does_not_take_is_named(repo: Repository, target: Target) -> None:
    put(repo, body, "a", b"x" * 5000)
    target.store.limits = replace(target.store.limits, value_bytes=4000)
    told = r"docs\['a'\].body has a value of 5,000 bytes, .*delete the target and copy again"
    with pytest.raises(ValueTooLargeError, match=told):
        target.copy(repo)
    put(repo, body, "a", b"x")
    with pytest.raises(ValueTooLargeError):
        target.copy(repo)  # At the same timestamp.
    limits, target = target.store.limits, Target()
    target.store.limits = limits
    target.copy(repo)
