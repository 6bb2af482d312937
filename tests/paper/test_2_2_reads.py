"""§2.2 Get(), lines 8–25 of figure 6: snapshots, own writes, ranges, and whom it waits for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stores import Ground, ListeningClock, ScriptedClock, SeamStore, in_thread, put_all, stopped

from percola import LockTimeoutError, Repository, Row, Table, Transaction, UsageError
from percola.cells import Kind
from percola.transactions.snapshot import Snapshot

docs = Table("docs")
title = docs.column("title", str)
size = docs.column("size", int)
links = docs.family("link", str)
keyed = Table("keyed", rows=bytes)
value = keyed.column("value", bytes)
TABLES = [docs, keyed]


def write(repo: Repository, **titles: str) -> int:
    """Commit some titles; the commit timestamp."""
    return put_all(repo, title, titles)


def shown(rows: Iterable[Row[Any]]) -> dict[str, dict[str, Any]]:
    return {row.key: {column.name: value for column, value in row.items()} for row in rows}


# --- Snapshots --------------------------------------------------------------------------


def test_a_snapshot_does_not_change_whatever_is_committed_later(repo: Repository) -> None:
    write(repo, a="old", b="old")
    snapshot, transaction = repo.snapshot(), repo.transaction()
    write(repo, a="new", c="new")
    repo.run(lambda t: t.delete(title, "b"))
    for view in (snapshot, transaction):
        assert view.get(title, "a") == "old"
        assert view.get_many([(title, "b"), (title, "c")]) == ["old", None]
        assert [row.key for row in view.scan(docs)] == ["a", "b"]
        assert view.get_row(docs, "c").get(title) is None


def test_every_past_timestamp_shows_what_was_committed_by_then(repo: Repository) -> None:
    """Time travel, against a list of what each commit left behind."""
    rng = random.Random(7)
    model: dict[str, str] = {}
    past = [(repo.snapshot().start_ts, dict(model))]
    for number in range(40):
        row = rng.choice("abcd")
        with repo.transaction(two_phase=rng.random() < 0.3) as t:
            if rng.random() < 0.3:
                t.delete(title, row)
                model.pop(row, None)
            else:
                model[row] = f"v{number}" * rng.choice((1, 200))
                t.set(title, row, model[row])
        assert t.commit_ts is not None
        past.append((t.commit_ts, dict(model)))
    for (ts, then), (following, _) in zip(past, [*past[1:], past[-1]], strict=True):
        for at in {ts, max(ts, following - 1)}:
            snapshot = repo.snapshot(at)
            assert {row.key: row[title] for row in snapshot.scan(docs)} == then
            assert {r: v for r in "abcd" if (v := snapshot.get(title, r)) is not None} == then


def test_a_snapshot_of_the_future_is_refused(repo: Repository) -> None:
    now = write(repo, a="x")
    assert repo.snapshot(now).get(title, "a") == "x"
    for at in (repo.snapshot().start_ts + 1, -1, 2**80):
        with pytest.raises(UsageError, match="no snapshot"):
            repo.snapshot(at)


def test_version_tells_when_a_cell_last_changed(repo: Repository) -> None:
    assert repo.snapshot().version(title, "a") == 0
    first = write(repo, a="1")
    second = write(repo, a="2")
    assert repo.snapshot().version(title, "a") == second
    assert repo.snapshot(second - 1).version(title, "a") == first
    with repo.transaction() as t:
        t.get_for_update(title, "a")
    assert repo.snapshot().version(title, "a") == second, "locking is no change"


# --- Own writes -------------------------------------------------------------------------


def test_a_scan_longer_than_one_chunk_lays_own_writes_into_place(repo: Repository) -> None:
    count = 1500
    put_all(repo, size, {f"{number:05}": number for number in range(0, count, 2)})
    t = repo.transaction()
    for number in range(count):
        if number % 2:
            t.set(size, f"{number:05}", number)
        elif number % 10 == 0:
            t.delete(size, f"{number:05}")
    t.set(size, "zzz", -1)
    expected = [n for n in range(count) if n % 10] + [-1]
    assert [row[size] for row in t.scan(docs)] == expected


# --- Ranges -----------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "a"])
def test_a_prefix_of_text_is_not_compared_with_bytes(repo: Repository, prefix: str) -> None:
    """That would be a warning under python -b, and an error under -bb."""

    class Text(str):
        def __ne__(self, other: object) -> bool:
            assert not isinstance(other, bytes)
            return str.__ne__(self, other)

        __eq__, __hash__ = str.__eq__, str.__hash__

    assert list(repo.snapshot().scan(docs, prefix=Text(prefix))) == []


def test_a_scan_takes_a_prefix_or_a_range_but_not_both(repo: Repository) -> None:
    with pytest.raises(UsageError, match="not both"):
        repo.snapshot().scan(docs, prefix="a", start="b")


# --- Whom a reader waits for (rule P9) --------------------------------------------------


@contextmanager
def live_commit(ground: Ground, where: str, row: str) -> Iterator[Transaction]:
    """A live transaction that writes rows a and b waits before one of its mutations meanwhile."""
    store = SeamStore(ground.store)
    holder = ground.repo(TABLES, store=store).transaction(two_phase=True)
    holder.set(title, "a", "new")
    holder.set(title, "b", "new")
    with stopped(store, holder.commit, where, row) as committing:
        yield holder
    committing.result(20)


def test_p9_a_reader_ignores_a_lock_above_its_start_ts(ground: Ground) -> None:
    clock = ScriptedClock()
    reader = ground.repo(TABLES, clock=clock)
    write(reader, a="old", b="old")
    before = [reader.snapshot(), reader.transaction(two_phase=True)]
    with live_commit(ground, "commit", "a") as holder:
        for view in before:
            assert view.start_ts < holder.start_ts
            assert view.get(title, "a") == "old"
            assert [row[title] for row in view.scan(docs)] == ["old", "old"]
        assert clock.slept == [], "it waited"


READS: dict[str, Callable[[Snapshot], str | None]] = {
    "get": lambda view: view.get(title, "a"),
    "get_many": lambda view: view.get_many([(title, "b"), (title, "a")])[1],
    "get_row": lambda view: view.get_row(docs, "a").get(title),
    "scan": lambda view: next(iter(view.scan(docs)))[title],
}


@pytest.mark.parametrize("how", READS)
def test_p9_a_reader_waits_for_a_lock_below_its_start_ts_and_then_sees_the_commit(
    ground: Ground, how: str
) -> None:
    write(ground.repo(TABLES), a="old", b="old")
    clock = ListeningClock()
    with live_commit(ground, "commit", "a"):
        view = ground.repo(TABLES, clock=clock).snapshot()
        reading = in_thread(lambda: READS[how](view))
        assert clock.slept.wait(20), "the reader did not wait"
        assert not reading.done()
    assert reading.result(20) == "new"


def test_p9_a_reader_does_not_wait_for_a_transaction_that_has_reached_its_commit_point(
    ground: Ground,
) -> None:
    """It rolls the secondary forward itself, although the owner lives."""
    clock = ScriptedClock()
    with live_commit(ground, "commit", "b") as holder:
        assert ground.repo(TABLES, clock=clock).snapshot().get(title, "b") == "new"
        assert clock.slept == []
        assert ground.lock_holders(title, "b") == []
    assert [ts for ts, _ in ground.entries(title, "b", Kind.WRITE)] == [holder.commit_ts]


def test_p9_a_scan_sees_the_lock_on_a_cell_that_has_no_write_yet(ground: Ground) -> None:
    clock = ListeningClock()
    with live_commit(ground, "commit", "a"):
        view = ground.repo(TABLES, clock=clock).snapshot()
        reading = in_thread(lambda: shown(view.scan(docs)))
        assert clock.slept.wait(20), "the scan overlooked the lock"
    assert reading.result(20) == {"a": {"title": "new"}, "b": {"title": "new"}}


def test_p9_a_reader_that_may_not_wait_longer_gets_an_error_and_never_a_wrong_answer(
    ground: Ground,
) -> None:
    clock = ScriptedClock()
    reader = ground.repo(TABLES, clock=clock, lock_wait_seconds=5)
    with live_commit(ground, "commit", "a"):
        began = clock.now
        with pytest.raises(LockTimeoutError, match="locked for 5 s"):
            reader.snapshot().get(title, "a")
        assert 5 <= clock.now - began < 6
    assert reader.snapshot().get(title, "a") == "new"
