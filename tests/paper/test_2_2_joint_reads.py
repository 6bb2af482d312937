"""§2.2: a joint transaction whose job has read the rows that it writes loses nobody's change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from joints import assert_sound, begin, docs, joint, row, size, stranger, title, titles, write
from stores import Ground, SeamStore, delete, put

from percola import ConflictError, Repository, SnapshotTooOldError
from percola.cells import Kind, Op, decode_write
from percola.errors import OutcomeUnknownError
from percola.store.base import RowMutation
from percola.transactions.jobs import JOBS, RowChangedError, RowWrites, RowWrittenTwiceError

TABLES = [docs, JOBS]


@pytest.fixture
def read_at(repo: Repository) -> int:
    """A timestamp at which there is a row with two cells."""
    with repo.transaction() as t:
        t.set(title, "a", "old")
        t.set(size, "a", 1)
    return repo.snapshot().start_ts


@pytest.mark.parametrize("change", ["put", "delete", "lock"])
def test_a_row_that_was_changed_after_it_was_read_fails_the_job(
    repo: Repository, ground: Ground, read_at: int, change: str
) -> None:
    with repo.transaction() as t:
        if change == "put":
            t.set(title, "a", "theirs")
        elif change == "delete":
            t.delete(title, "a")
        else:
            t.get_for_update(title, "a")
            t.set(title, "other", "relies on a")
    one = joint(repo, read_at=read_at)
    begun = begin(one, 0, 0)
    with pytest.raises(RowChangedError, match=f"'a'].title was changed at .* read at {read_at}"):
        begun.write([row("b", "ours"), row("a", "ours")])
    begun.abandon()
    assert one.abort()
    left = {"put": {"a": "theirs"}, "delete": {}, "lock": {"a": "old", "other": "relies on a"}}
    assert titles(repo) == left[change]
    assert_sound(repo, ground)


def test_a_job_that_has_not_read_the_row_writes_over_the_same_change(
    repo: Repository, read_at: int
) -> None:
    put(repo, title, "a", "theirs")
    one = joint(repo)
    one.commit([write(one, 0, [row("a", "ours")])])
    assert titles(repo) == {"a": "ours"}


def test_a_change_of_another_cell_of_the_row_does_not_matter(
    repo: Repository, read_at: int
) -> None:
    put(repo, size, "a", 2)
    one = joint(repo, read_at=read_at)
    one.commit([write(one, 0, [row("a", "ours")])])
    with repo.snapshot() as after:
        assert (after.get(title, "a"), after.get(size, "a")) == ("ours", 2)


def test_a_cell_that_is_only_locked_must_not_have_changed_either(
    repo: Repository, ground: Ground, read_at: int
) -> None:
    put(repo, size, "a", 2)
    one = joint(repo, read_at=read_at)
    with pytest.raises(RowChangedError, match="size was changed"):
        begin(one, 0, 0).write([row("a", "ours", locks=[size.key])])
    assert one.abort()
    assert_sound(repo, ground)


def test_a_cell_that_is_only_locked_keeps_others_away_and_keeps_its_version(
    repo: Repository, ground: Ground, read_at: int
) -> None:
    with repo.snapshot() as before:
        version = before.version(size, "a")
    one = joint(repo, read_at=read_at)
    parts = [write(one, 0, [row("a", "ours", locks=[size.key])])]
    other, _ = stranger(ground, lock_wait_seconds=1.0)
    with pytest.raises(ConflictError), other.transaction() as t:
        t.set(size, "a", 9)
    commit_ts = one.commit(parts)
    with repo.snapshot() as after:
        assert after.version(title, "a") == commit_ts
        assert (after.get(size, "a"), after.version(size, "a")) == (1, version)
    assert_sound(repo, ground)


def test_an_observed_cell_that_is_only_locked_notifies_nobody(
    repo: Repository, ground: Ground, read_at: int
) -> None:
    notified = ground.left_over(docs, Kind.NOTIFY)
    one = joint(repo, read_at=read_at)
    changes = RowWrites("docs", b"a", {size.key: b"2"}, locks=[title.key])
    one.commit([write(one, 0, [changes])])
    assert ground.left_over(docs, Kind.NOTIFY) == notified
    assert titles(repo) == {"a": "old"}


def test_a_rolled_back_transaction_is_no_change(
    repo: Repository, ground: Ground, read_at: int
) -> None:
    loser = repo.transaction(two_phase=True)
    loser.set(title, "a", "of one that conflicts in another row")
    loser.set(title, "b", "and is rolled back")
    put(repo, title, "b", "theirs")
    with pytest.raises(ConflictError):
        loser.commit()
    records = ground.entries(title, "a", Kind.WRITE)
    assert decode_write(records[0][1]).op is Op.ROLLBACK, "the case did not come about"
    one = joint(repo, read_at=read_at)
    one.commit([write(one, 0, [row("a", "ours")])])
    assert titles(repo) == {"a": "ours", "b": "theirs"}
    assert_sound(repo, ground)


def test_a_lost_reply_is_no_second_row(repo: Repository, ground: Ground, read_at: int) -> None:
    lost: list[RowMutation] = []

    def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        applied = apply()
        if mutation.row == b"a" and not lost:
            lost.append(mutation)
            raise OutcomeUnknownError("the reply is lost")
        return applied

    seam = SeamStore(ground.store)
    one = joint(ground.repo(TABLES, store=seam), read_at=read_at)
    begun = begin(one, 0, 0)
    seam.hook = hook
    begun.write([row("a", "ours")])
    assert lost
    one.commit([begun.finish()])
    assert titles(repo) == {"a": "ours"}
    assert_sound(repo, ground)


def test_a_row_is_written_once(repo: Repository, ground: Ground, read_at: int) -> None:
    one = joint(repo, read_at=read_at)
    begun = begin(one, 0, 0)
    begun.write([row("a", "first")])
    with pytest.raises(RowWrittenTwiceError, match="Two rows to write have the key"):
        begun.write([row("a", "second")])
    begun.abandon()
    assert one.abort()
    assert titles(repo) == {"a": "old"}
    assert_sound(repo, ground)


def test_what_garbage_collection_may_have_removed_since_fails_the_job(
    repo: Repository, ground: Ground, read_at: int
) -> None:
    """A deleted cell leaves nothing behind once it is collected: no change would be seen."""
    delete(repo, size, "a")
    repo.collect_garbage(retention=0)
    repo.collect_garbage(retention=0)
    assert ground.entries(size, "a", Kind.WRITE) == []
    one = joint(repo, read_at=read_at)
    parts = [write(one, 0, [RowWrites("docs", b"a", {size.key: b"2"})])]
    with pytest.raises(SnapshotTooOldError):
        one.commit(parts)
    assert one.abort()
    with repo.snapshot() as after:
        assert after.get(size, "a") is None


def test_an_attempt_that_is_repeated_writes_the_same_row_again(
    repo: Repository, ground: Ground, read_at: int
) -> None:
    one = joint(repo, read_at=read_at)
    begin(one, 0, 0).write([row("a", "ours")])
    part = write(one, 0, [row("a", "ours")], attempt=1)
    one.commit([part])
    assert titles(repo) == {"a": "ours"}
    assert_sound(repo, ground)
