"""§2.2: attempts at a partition of a joint transaction, and its runs: one of them counts."""

from __future__ import annotations

import pytest
from joints import (
    assert_sound,
    begin,
    docs,
    joint,
    row,
    stranger,
    title,
    titles,
    titles_unlocked,
    write,
)
from stores import Ground, put

from percola import Repository, SnapshotTooOldError
from percola.cells import Kind
from percola.store.counting import SCAN, CountedStore, StoreCalls
from percola.store.walks import scan_writes
from percola.transactions.jobs import (
    JOBS,
    JobOverError,
    JointError,
    Part,
    SupersededError,
    forget,
    jobs_before,
)
from percola.transactions.jobs.job_row import STATE

TABLES = [docs, JOBS]


# --- Attempts ---------------------------------------------------------------------------


def test_a_new_attempt_rolls_an_earlier_one_back_and_the_zombie_can_do_nothing(
    repo: Repository, ground: Ground
) -> None:
    one = joint(repo)
    zombie = begin(one, 0, 1)
    zombie.write([row("a", "zombie"), row("gone", "zombie")])
    part = write(one, 0, [row("a", "second"), row("b", "second")], attempt=2)
    with pytest.raises(SupersededError):
        zombie.write([row("b", "zombie"), row("c", "zombie")])
    one.commit([part])
    assert titles_unlocked(ground).keys() == {"docs['a'].title", "docs['b'].title"}
    with pytest.raises(JobOverError):
        zombie.write([row("d", "zombie")])
    with pytest.raises(JobOverError):
        zombie.finish()
    reader, clock = stranger(ground)
    assert titles(reader) == {"a": "second", "b": "second"}
    assert clock.slept == [], "a zombie's locks are known to be dead"
    assert_sound(repo, ground)


def test_a_late_attempt_of_a_lower_number_does_not_begin(repo: Repository) -> None:
    one = joint(repo)
    newer = begin(one, 0, 5)
    with pytest.raises(SupersededError):
        one.attempt(0, 4)
    newer.write([row("a", "newer")])
    one.commit([newer.finish()])
    assert one.attempt(0, 9) is None
    assert titles(repo) == {"a": "newer"}


def test_an_attempt_after_one_that_has_finished_takes_its_work_over(
    repo: Repository, ground: Ground
) -> None:
    """The scheduler may not have heard of it; or it has, and started the second one before."""
    one = joint(repo)
    first = write(one, 0, [row("a", "first")], attempt=1)
    second = begin(one, 0, 2, retry=1)
    assert second.done == first
    second.write([row("a", "second")])
    assert second.finish() == first
    one.commit([first])
    assert titles(repo) == {"a": "first"}
    assert_sound(repo, ground)


def test_of_two_attempts_at_once_exactly_one_gets_the_claim(
    repo: Repository, ground: Ground
) -> None:
    """The second has begun when the first finishes: its subtransactions were rolled back before."""
    one = joint(repo)
    first = begin(one, 0, 1)
    first.write([row("a", "first")])
    second = begin(one, 0, 2)
    second.write([row("a", "second")])
    third = begin(one, 1, 1)
    with pytest.raises(SupersededError):
        first.finish()
    part = second.finish()
    assert part.attempt == 2
    assert first.finish() == part, "it reports the other's work"
    third.abandon()
    one.commit([part])
    assert titles(repo) == {"a": "second"}
    assert_sound(repo, ground)


def test_an_attempt_that_begins_to_count_anew_does_not_take_over_what_came_from_other_rows(
    repo: Repository, ground: Ground
) -> None:
    one = joint(repo)
    first = write(one, 0, [row("a", "first"), row("x", "first")], attempt=1)
    second = begin(one, 0, 2, retry=0)
    assert second.done is None
    second.write([row("a", "second")])
    part = second.finish()
    with pytest.raises(JointError, match="another one has taken its place"):
        one.commit([first])
    one.commit([part])
    assert titles(repo) == {"a": "second"}
    assert_sound(repo, ground)


def test_a_partition_reported_twice_or_not_finished_is_refused(
    repo: Repository, ground: Ground
) -> None:
    one = joint(repo)
    part = write(one, 0, [row("a", "new")])
    with pytest.raises(JointError, match="reported twice"):
        one.commit([part, part])
    begin(one, 1, 1).write([row("b", "new")])
    with pytest.raises(JointError, match="partition 1"):
        one.commit([part, Part(1, 1, 1, 1)])
    assert titles_unlocked(ground) == {}
    one.commit([part])
    assert titles(repo) == {"a": "new"}
    assert_sound(repo, ground)


# --- Runs -------------------------------------------------------------------------------


def test_a_later_run_ends_an_earlier_one_and_the_job_commits_once(
    repo: Repository, ground: Ground
) -> None:
    first, second = joint(repo), joint(repo)
    part = write(first, 0, [row("a", "first"), row("b", "first")])
    other, clock = stranger(ground)
    again = joint(other, run=second._run)
    done = write(again, 0, [row("a", "second")])
    assert clock.slept == [], "an earlier run is not waited for"
    with pytest.raises(JobOverError, match="later run"):
        first.attempt(1, 1)
    with pytest.raises(JobOverError, match="later run"):
        first.commit([part])
    assert first.abort(), "which does not touch the later run"
    commit_ts = again.commit([done])
    assert titles(repo) == {"a": "second"}
    third = joint(repo)
    assert third.attempt(0, 0) is None
    assert third.commit([]) == commit_ts == first.commit([part])
    assert not third.abort()
    assert titles(repo) == {"a": "second"}
    assert_sound(repo, ground)


def test_what_ended_long_ago_is_forgotten_and_garbage_collection_takes_the_rest(
    ground: Ground,
) -> None:
    repo, clock = stranger(ground)
    for name in ("write/1", "write/2", "other/1"):
        one = joint(repo, name)
        one.commit([write(one, 0, [row("a", name)])])
        clock.now += 100
    assert jobs_before(repo, "write/", clock.wall_ms() - 250_000, 5) == ["write/1"]
    assert jobs_before(repo, "write/", clock.wall_ms() - 150_000, 1) == ["write/1"]
    forget(repo, ["write/1", "write/2", "write/9"])
    repo.collect_garbage(retention=0)
    repo.collect_garbage(retention=0)
    left = {(cell.row, cell.column) for cell, _ in scan_writes(ground.store, JOBS.name)[0]}
    assert left == {(b"other/1", b"state")}
    assert_sound(repo, ground)


def test_jobs_that_are_kept_cost_the_search_for_old_ones_nothing(ground: Ground) -> None:
    calls = StoreCalls()
    repo = ground.repo(TABLES, store=CountedStore(ground.store, calls), one_step=False)
    with repo.transaction() as t:
        for number in range(3000):
            t.set(STATE, f"write/{number:04}", {"is": "committed", "at": number})
    read = sum(one.cells for (_, kind), one in calls.counts().items() if kind == SCAN)
    assert jobs_before(repo, "write/", 2, 5) == ["write/0000", "write/0001"]
    now = sum(one.cells for (_, kind), one in calls.counts().items() if kind == SCAN)
    assert 0 < now - read < 1000


# --- Garbage collection (P12) -----------------------------------------------------------


def test_a_job_under_way_holds_the_safe_point_back(repo: Repository, ground: Ground) -> None:
    one = joint(repo)
    part = write(one, 0, [row("a", "new")])
    oldest = min(ts for _, ts in ground.left_over(JOBS, Kind.LOCK))
    other, _ = stranger(ground)
    for number in range(3):
        put(other, title, "z", str(number))
    collected = other.collect_garbage(retention=0)
    assert collected.safe_point <= oldest and "still committing" in collected.held_back
    one.commit([part])
    assert titles(repo)["a"] == "new"
    assert other.collect_garbage(retention=0).safe_point > oldest
    assert_sound(repo, ground)


def test_a_job_older_than_the_safe_point_does_not_commit(repo: Repository, ground: Ground) -> None:
    one = joint(repo)
    part = write(one, 0, [row("a", "new")])
    ground.store.raise_safe_point(repo.context.oracle.timestamp())
    with pytest.raises(SnapshotTooOldError):
        one.commit([part])
    assert one.abort()
    assert titles(repo) == {}
    assert_sound(repo, ground)
