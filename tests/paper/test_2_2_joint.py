"""§2.2: a joint transaction commits whole or not at all, whoever dies, lingers or comes late."""

from __future__ import annotations

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
from stores import Ground, die, put, put_all

from percola import LockTimeoutError, Repository
from percola.cells import Cell, Kind
from percola.store.walks import walk_kind
from percola.transactions.jobs import (
    JOBS,
    JobOverError,
    JointError,
    RowInTwoPartitionsError,
    RowLockedError,
    RowWrites,
)
from percola.transactions.jobs.job_row import JobRow

TABLES = [docs, JOBS]


# --- All or nothing ---------------------------------------------------------------------


def test_nothing_is_visible_before_the_commit_and_all_of_it_at_one_timestamp(
    repo: Repository, ground: Ground
) -> None:
    one = joint(repo)
    parts = [write(one, p, [row(f"{p}-{n}", "new", n) for n in range(20)]) for p in range(3)]
    with repo.snapshot() as before:
        commit_ts = one.commit(parts)
        assert list(before.scan(docs)) == []
    with repo.snapshot() as after:
        found = list(after.scan(docs))
        assert [one.key for one in found] == sorted(f"{p}-{n}" for p in range(3) for n in range(20))
        assert {after.version(title, one.key) for one in found} == {commit_ts}
        assert {after.version(size, one.key) for one in found} == {commit_ts}
    assert sorted(ts for _, ts in ground.left_over(docs, Kind.NOTIFY)) == [commit_ts] * 60
    assert one.committed() == commit_ts
    assert_sound(repo, ground)


def test_an_aborted_job_leaves_nothing_behind(repo: Repository, ground: Ground) -> None:
    put(repo, title, "a", "old")
    one = joint(repo)
    write(one, 0, [row("a", "x" * 1000), row("b", "new", 1)])
    begin(one, 1, 1).write([row("c", "new")])
    assert one.abort()
    reader, clock = stranger(ground)
    assert titles(reader) == {"a": "old"}
    assert clock.slept == []
    assert one.abort(), "to abort twice is as once"
    with pytest.raises(JobOverError, match="aborted"):
        one.attempt(2, 9)
    with pytest.raises(JobOverError, match="aborted"):
        one.commit([])
    assert_sound(repo, ground)


def test_a_job_that_wrote_nothing_commits(repo: Repository, ground: Ground) -> None:
    one = joint(repo)
    assert one.commit([write(one, 0, []), write(one, 1, [RowWrites("docs", b"a", {})])])
    assert titles(repo) == {}
    other = joint(repo, "empty")
    assert other.commit([]) == other.committed()
    assert not one.abort() and not other.abort()
    assert_sound(repo, ground)


def test_values_of_any_length_deletes_and_cleared_rows_are_written(
    repo: Repository, ground: Ground
) -> None:
    for column, value in ((title, "old" * 500), (size, 1), (links["x"], "y")):
        put_all(repo, column, dict.fromkeys("abc", value))
    one = joint(repo)
    part = write(
        one,
        0,
        [
            row("a", "n" * 5000),
            RowWrites("docs", b"b", {size.key: None}),
            RowWrites("docs", b"c", {}, clears=True),
            RowWrites("docs", b"d", {title.key: b"only"}, clears=True),
        ],
    )
    one.commit([part])
    with repo.snapshot() as now:
        found = {
            one.key: sorted(column.name for column, _ in one.items()) for one in now.scan(docs)
        }
        assert found == {
            "a": ["links:x", "size", "title"],
            "b": ["links:x", "title"],
            "d": ["title"],
        }
        assert now.get(title, "a") == "n" * 5000
    assert_sound(repo, ground)


def test_of_two_writes_of_a_cell_in_one_attempt_the_later_one_counts(
    repo: Repository, ground: Ground
) -> None:
    one = joint(repo)
    begun = begin(one, 0, 0)
    begun.write([row("a", "x" * 1000), row("b", "first"), row("a", "second")])
    begun.write([row("b", "y" * 1000), row("c", "z" * 1000, 1)])
    begun.write([RowWrites("docs", b"c", {}, clears=True)])
    one.commit([begun.finish()])
    assert titles(repo) == {"a": "second", "b": "y" * 1000}
    assert_sound(repo, ground)


def test_the_later_write_counts_although_the_earlier_one_is_held_up(
    repo: Repository, ground: Ground
) -> None:
    one = joint(repo)
    begun = begin(one, 0, 0)
    repo.run(lambda t: t.set(size, "a", 7))
    begun.write([row("a", "first", 1), row("a", "second")])
    one.commit([begun.finish()])
    assert titles(repo) == {"a": "second"} and repo.snapshot().get(size, "a") == 1
    assert_sound(repo, ground)


def test_a_row_that_is_written_and_cleared_at_once_is_gone_and_may_come_back(
    repo: Repository, ground: Ground
) -> None:
    clear = RowWrites("docs", b"a", {}, clears=True)
    one = joint(repo)
    begun = begin(one, 0, 0)
    begun.write([row("a", "first", 1), clear])
    begun.write([row("b", "first", 1), clear._replace(row=b"b"), row("b", "second")])
    one.commit([begun.finish()])
    assert titles(repo) == {"b": "second"}
    with repo.snapshot() as now:
        assert [[one[0] for one in found.items()] for found in now.scan(docs)] == [[title]]
    assert_sound(repo, ground)


# --- Others' writes ---------------------------------------------------------------------


def test_a_write_newer_than_the_attempt_gets_a_leg_and_nothing_is_lost(
    repo: Repository, ground: Ground
) -> None:
    """Figure 6's check at line 32 stays whole: `check` finds no overlapping writes."""
    one = joint(repo)
    begun = begin(one, 0, 0)
    for number in range(3):
        with repo.transaction() as t:
            t.set(title, f"row {number}", "others'")
            t.set(size, f"row {number}", 7)
        begun.write([row(f"row {number}", "ours"), row(f"fresh {number}", "ours")])
    part = begun.finish()
    assert part.subtransactions == 4
    one.commit([part])
    assert set(titles(repo).values()) == {"ours"} and len(titles(repo)) == 6
    with repo.snapshot() as now:
        assert now.get(size, "row 1") == 7
    assert_sound(repo, ground)


def test_an_ordinary_transactions_lock_is_waited_for(ground: Ground) -> None:
    die(ground, TABLES, 3, title, dict.fromkeys("abc", "theirs"), "other")
    ground.alive.add("other")
    assert len(ground.left_over(docs, Kind.LOCK)) == 2
    repo, clock = stranger(ground, process="ours")
    clock.on_sleep = lambda: ground.alive.discard("other")
    one = joint(repo)
    one.commit([write(one, 0, [row("a", "ours"), row("b", "ours")])])
    assert clock.slept and titles(repo) == {"a": "ours", "b": "ours"}
    assert_sound(repo, ground)


def test_a_row_in_two_partitions_is_one_clear_error(repo: Repository, ground: Ground) -> None:
    one = joint(repo)
    write(one, 0, [row("a", "first")])
    with pytest.raises(RowInTwoPartitionsError, match=r"docs\['a'\].title .*partitions 0 and 1"):
        write(one, 1, [row("a", "second")])
    assert one.abort()
    assert titles(repo) == {}
    assert_sound(repo, ground)


def test_of_two_jobs_that_want_one_row_one_gives_up_and_the_other_commits(ground: Ground) -> None:
    repo, clock = stranger(ground)
    older, younger = joint(repo, "older"), joint(repo, "younger")
    part = write(older, 0, [row("a", "older")])
    other = begin(younger, 0, 0)
    other.write([row("b", "younger")])
    with pytest.raises(RowLockedError, match="'younger'"):
        begin(older, 1, 1).write([row("b", "older")])
    assert 1.9 < sum(clock.slept) < 4, "it waits for its timeout"
    # The older one goes on meanwhile: its primaries are refreshed.
    clock.on_sleep = lambda: JobRow(repo, "older").refresh(older._run, {})
    with pytest.raises(RowLockedError, match="'older'"):
        other.write([row("a", "younger")])
    assert younger.abort()
    older.commit([part, write(older, 1, [row("b", "older")], attempt=2)])
    assert titles(repo) == {"a": "older", "b": "older"}
    assert_sound(repo, ground)


def test_a_dead_jobs_locks_run_out_and_the_next_job_waits_no_longer_than_that(
    ground: Ground,
) -> None:
    repo, clock = stranger(ground)
    dead = joint(repo, "dead")
    lost = write(dead, 0, [row("a", "dead")])
    after = joint(repo, "after")
    after.commit([write(after, 0, [row("a", "after")])])
    assert TTL <= sum(clock.slept) < TTL + 1
    with pytest.raises(JointError, match="rolled back before the job could commit"):
        dead.commit([lost])
    assert dead.abort()
    assert titles(repo) == {"a": "after"}
    assert_sound(repo, ground)


def test_a_job_that_shows_life_is_not_rolled_back_and_one_that_does_not_is(ground: Ground) -> None:
    repo, _ = stranger(ground)
    one = joint(repo)
    part = write(one, 0, [row("a", "new")])
    other, clock = stranger(ground, lock_wait_seconds=4 * TTL)
    seen: dict[Cell, int] = {}
    beats = iter(range(int(1e9)))

    def beat() -> None:
        if next(beats) % 20 == 0:
            JobRow(repo, "job").refresh(one._run, seen)

    clock.on_sleep = beat
    [(cell, start_ts, raw)] = walk_kind(ground.store, Kind.LOCK, "docs")
    with pytest.raises(LockTimeoutError, match="has been locked for 20 s by the live transaction"):
        other.context.resolver.wait_out(cell, start_ts, raw)
    assert len(JobRow(repo, "job").held()[0]) == 1
    clock.on_sleep = lambda: None
    other.context.resolver.wait_out(cell, start_ts, raw)
    assert titles(other) == {}
    with pytest.raises(JointError, match="no sign of life"):
        one.commit([part])
    assert one.abort()
    assert_sound(repo, ground)
