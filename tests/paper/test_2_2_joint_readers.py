"""§2.2: nobody waits for a joint transaction that has yet to commit, only for the commit itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from joints import (
    TTL,
    assert_sound,
    begin,
    docs,
    joint,
    links,
    row,
    size,
    stranger,
    title,
    titles,
    write,
)
from stores import Gate, Ground, ScriptedClock, SeamStore, heard, in_thread, phase

from percola import ConflictError, Repository, Table, Worker, feed, observer
from percola.cells import Cell, Kind, LockRecord, Op, encode_lock
from percola.store.base import Put, RowMutation
from percola.transactions.jobs import JOBS, Part, RowWrites
from percola.transactions.jobs.job_row import JobRow
from percola.transactions.lock_resolver import LockResolver

TABLES = [docs, JOBS]
followed = Table("docs", feed=True)
followed.column("title", str, observed=True)


class WaitedError(Exception):
    """Raised in place of waiting."""


def stop() -> None:
    raise WaitedError


@pytest.fixture
def old(repo: Repository) -> int:
    """Rows of every sort, and the timestamp of their commit."""
    with repo.transaction() as t:
        t.set(title, "a", "old")
        t.set(title, "long", "old" * 1000)
        t.set(size, "a", 1)
        t.set(links["x"], "a", "y")
    return t.commit_ts


def test_a_reader_sees_what_is_beneath_the_locks(
    repo: Repository, ground: Ground, old: int
) -> None:
    one = joint(repo)
    reader, clock = stranger(ground)
    before = reader.snapshot()
    rows = [
        RowWrites("docs", b"a", {title.key: b"new", size.key: None}, clears=True),
        row("long", "new"),
        row("b", "new"),
    ]
    parts = [write(one, 0, rows[:2]), write(one, 1, rows[2:])]
    after = reader.snapshot()
    for snapshot in (before, after):
        assert snapshot.get(title, "a") == "old" and snapshot.get(title, "b") is None
        assert snapshot.get_many([(size, "a"), (links["x"], "a")]) == [1, "y"]
        assert snapshot.get_row(docs, "a").family(links) == {"x": "y"}
        assert [len(found[title]) for found in snapshot.scan(docs)] == [3, 3000]
        assert snapshot.version(title, "a") == old
    committed = one.commit(parts)
    assert after.start_ts < committed
    assert after.get(title, "a") == "old" and len(list(after.scan(docs))) == 2
    assert clock.slept == []
    assert titles(reader) == {"a": "new", "b": "new", "long": "new"}
    assert_sound(repo, ground)


def test_readers_at_one_timestamp_remove_what_a_dead_job_has_locked(
    repo: Repository, ground: Ground, old: int
) -> None:
    write(joint(repo), 0, [row("a", "new")])
    reader, clock = stranger(ground)
    at = reader.snapshot().start_ts
    for _ in range(2):
        assert reader.snapshot(at=at).get(title, "a") == "old"
    assert ground.left_over(docs, Kind.LOCK) != []
    clock.sleep(TTL)
    assert reader.snapshot(at=at).get(title, "a") == "old"
    assert ground.left_over(docs, Kind.LOCK) == []


def test_a_writer_of_what_the_job_has_locked_conflicts_although_it_can_read_it(
    repo: Repository, ground: Ground, old: int
) -> None:
    one = joint(repo)
    part = write(one, 0, [row("a", "new")])
    other, clock = stranger(ground)
    with pytest.raises(ConflictError), other.transaction() as t:
        t.set(title, "a", f"{t.get(title, 'a')} and more")
    with other.transaction() as t:
        t.set(title, "copy", t.get(title, "a") or "")
    one.commit([part])
    assert titles(repo) == {"a": "new", "copy": "old", "long": "old" * 1000}
    assert clock.slept == []
    assert_sound(repo, ground)


def committing(
    ground: Ground,
    part: Callable[[Any], Part],
    meanwhile: Callable[[], object],
    then: Callable[[], object] = lambda: None,
) -> int:
    """Commit a job; `meanwhile` runs between its commit_ts and its commit point, `then` after it.

    Nothing is rolled forward before `then` returns.
    """
    seam = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=seam)
    one = joint(repo)
    done = part(one)
    reached: list[RowMutation] = []

    def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) != "commit" or mutation.table != JOBS.name or reached:
            return apply()
        reached.append(mutation)
        meanwhile()
        applied = apply()
        then()
        return applied

    seam.hook = hook
    committed = one.commit([done])
    assert reached
    return committed


def test_a_reader_who_begins_while_the_job_commits_waits_and_sees_it(
    repo: Repository, ground: Ground, old: int
) -> None:
    reader, clock = stranger(ground)
    begun = []

    def meanwhile() -> None:
        clock.on_sleep = stop
        begun.append(reader.snapshot())
        with pytest.raises(WaitedError):
            begun[0].get(title, "a")
        with pytest.raises(WaitedError):
            list(begun[0].scan(docs))

    committed = committing(ground, lambda one: write(one, 0, [row("a", "new")]), meanwhile)
    assert committed < begun[0].start_ts
    assert begun[0].get(title, "a") == "new"
    assert_sound(repo, ground)


def test_a_reader_who_has_begun_before_the_job_commits_does_not_wait(
    repo: Repository, ground: Ground, old: int
) -> None:
    reader, clock = stranger(ground)
    clock.on_sleep = stop
    begun = []

    def locked(one: Any) -> Part:
        part = write(one, 0, [row("a", "new")])
        begun.append(reader.snapshot())
        return part

    def meanwhile() -> None:
        assert begun[0].get(title, "a") == "old"

    committed = committing(ground, locked, meanwhile)
    assert begun[0].start_ts < committed
    assert begun[0].get(title, "a") == "old"


def test_what_one_reader_has_found_does_not_count_for_a_later_one(ground: Ground, old: int) -> None:
    reader, clock = stranger(ground)
    clock.on_sleep = stop

    def locked(one: Any) -> Part:
        part = write(one, 0, [row("a", "new")])
        assert titles(reader)["a"] == "old"
        return part

    def meanwhile() -> None:
        with pytest.raises(WaitedError):
            titles(reader)

    committing(ground, locked, meanwhile)
    assert titles(reader)["a"] == "new"


def test_a_job_that_commits_while_a_reader_looks_is_seen(ground: Ground, old: int) -> None:
    """Its primary is found undecided, then it commits: now its `state` is found unlocked."""
    before, after = Gate(), Gate()
    found_locked: list[Cell] = []

    def decide(_: object, cell: Cell, kind: Kind, *where: object) -> None:
        if kind is Kind.WRITE and cell.column.startswith(b"primary:") and not found_locked:
            found_locked.append(cell)
            before.open()
            after.await_arrival()

    reader = ground.repo(TABLES, store=heard(ground.store, entries=decide))
    running = in_thread(
        lambda: committing(
            ground, lambda one: write(one, 0, [row("a", "new")]), before.wait_here, after.wait_here
        )
    )
    before.await_arrival()
    snapshot = reader.snapshot()
    assert snapshot.get(title, "a") == "new"
    assert found_locked, "nobody looked at the primary"
    after.open()
    assert running.result(20) < snapshot.start_ts


def test_a_job_that_died_while_it_committed_is_passed_once_its_state_is_free(
    repo: Repository, ground: Ground, old: int
) -> None:
    dying, _ = stranger(ground)
    one = joint(dying)
    part = write(one, 0, [row("a", "new")])
    with dying.transaction(two_phase=True) as t:
        commit_of_state = t.start_ts
        t.rollback()
    state = JobRow(dying, "job").state_cell
    # As the coordinator leaves it when it dies before its commit point.
    lock = LockRecord(Op.PUT, state, "", 1, 5000, False, b"{}")
    put = Put(Kind.LOCK, state.column, commit_of_state, encode_lock(lock))
    ground.store.mutate([RowMutation(JOBS.name, state.row, [], [put])])
    reader, clock = stranger(ground)
    clock.on_sleep = stop
    snapshot = reader.snapshot()
    with pytest.raises(WaitedError):
        snapshot.get(title, "a")
    reader.context.resolver.fate(state, commit_of_state, force=True)
    assert snapshot.get(title, "a") == "old"
    assert one.commit([part]) > snapshot.start_ts
    assert snapshot.get(title, "a") == "old"
    assert titles(repo)["a"] == "new"


# --- Followers --------------------------------------------------------------------------


def test_a_follower_passes_a_job_and_finds_its_changes_once_it_has_committed(
    ground: Ground,
) -> None:
    repo = ground.repo([followed, JOBS])
    one = joint(repo)
    begun = begin(one, 0, 0)
    begun.write([row("a", "new"), row("b", "new")])
    with repo.transaction() as t:
        t.set(title, "c", "other")
    reader, clock = stranger(ground)
    clock.on_sleep = stop
    upto = feed.settled(reader, "docs")
    assert upto >= t.commit_ts
    [change] = feed.changes(reader, followed, 0, upto)
    assert (change.row, change.commit_ts) == ("c", t.commit_ts)
    committed = one.commit([begun.finish()])
    assert committed > upto
    found = list(feed.changes(reader, followed, upto))
    assert [(each.row, each.commit_ts) for each in found] == [("a", committed), ("b", committed)]


def test_a_follower_stands_below_a_job_only_from_where_it_begins_to_commit(ground: Ground) -> None:
    repo = ground.repo([followed, JOBS])
    reader, clock = stranger(ground)
    clock.on_sleep = stop
    seen = []

    def locked(one: Any) -> Part:
        part = write(one, 0, [row("a", "new")])
        with repo.transaction() as t:
            t.set(title, "c", "other")
        seen.append(t.commit_ts)
        return part

    def meanwhile() -> None:
        seen.append(feed.settled(reader, "docs"))

    committed = committing(ground, locked, meanwhile)
    other, stood = seen
    assert other <= stood < committed
    assert feed.settled(reader, "docs") >= committed


def test_a_worker_asks_once_about_all_that_a_job_has_locked_and_then_not_soon_again(
    ground: Ground,
) -> None:
    clock = ScriptedClock()
    repo = ground.repo(TABLES, clock=clock)
    writer = ground.repo(TABLES, process="task")
    begin(joint(writer, ttl_seconds=600), 0, 0).write(row(f"{n:03}", "new") for n in range(100))
    worker = Worker(repo, [observer(title, name="read")(lambda t, key: None)], sweep=5.0)
    schedule, resolver = worker._schedule, repo.context.resolver
    asked: list[Cell] = []

    def fate(primary: Cell, start_ts: int, **how: Any) -> Any:
        asked.append(primary)
        clock.now += 2.0
        return LockResolver.fate(resolver, primary, start_ts, **how)

    resolver.fate = fate  # type: ignore[method-assign]
    clock.now += 5.0
    assert schedule.is_due()
    found = schedule.finish_the_dead()
    assert found == (not ground.store.has_notify_table)
    assert len(asked) == found
    for seconds, is_due in ((10.0, not found), (9.0, True)):
        clock.now += seconds
        assert schedule.is_due() == is_due
