"""§2.4: writes of observed columns that notify nobody: `transaction(notify=False)`."""

from __future__ import annotations

import joints
import pytest
from stores import Ground, cell_of

from percola import Repository, UsageError
from percola.cells import (
    Cell,
    Kind,
    LockRecord,
    Op,
    decode_lock,
    decode_write,
    encode_lock,
    encode_write,
)
from percola.errors import DamagedRecordError
from percola.store.base import Delete, RowMutation
from percola.transactions.two_phase import TwoPhaseCommit
from tests.unit.checked import (
    LARGE,
    TABLES,
    contents,
    docs,
    measure,
    only,
    recluster,
    size,
    sound,
    title,
    work,
    write,
)


def write_silently(repo: Repository, row: str, value: bytes) -> None:
    with repo.transaction(notify=False) as t:
        t.set(contents, row, value)
        t.set(title, row, "not observed")


@pytest.mark.parametrize("value", [b"short", LARGE], ids=["inline", "long"])
def test_a_silent_write_is_read_and_found_sound_and_runs_no_observer(
    ground: Ground, repo: Repository, value: bytes
) -> None:
    write_silently(repo, "r", value)
    assert repo.pending() == {}
    work(repo, measure)
    with repo.snapshot() as s:
        assert (s.get(contents, "r"), s.get(size, "r")) == (value, None)
        assert s.get_row(docs, "r")[contents] == value
    [(_, raw)] = ground.entries(contents, "r", Kind.WRITE)
    assert decode_write(raw).silent
    [(_, raw)] = ground.entries(title, "r", Kind.WRITE)
    assert not decode_write(raw).silent, "the column is not observed"
    sound(repo)


def test_a_silent_delete_runs_no_observer_and_is_collected(repo: Repository) -> None:
    write(repo, contents, "r", b"1")
    work(repo, measure)
    repo.run(lambda t: t.delete(contents, "r"), notify=False)
    work(repo, measure)
    sound(repo)
    with repo.snapshot() as s:
        assert (s.get(contents, "r"), s.get(size, "r")) == (None, 1)
    assert repo.collect_garbage(retention=0).deleted == 1


def test_the_next_loud_write_is_seen_by_the_observer(repo: Repository) -> None:
    write_silently(repo, "r", b"1")
    write(repo, contents, "r", b"22")
    work(repo, measure)
    assert repo.snapshot().get(size, "r") == 2
    sound(repo)


def test_a_silent_write_leaves_the_notification_of_the_change_before_it(repo: Repository) -> None:
    write(repo, contents, "r", b"1")
    write_silently(repo, "r", b"22")
    assert repo.pending() == {"docs.contents": 1}
    work(repo, measure)
    assert repo.snapshot().get(size, "r") == 2


def test_the_lost_notification_of_a_change_below_a_silent_one_is_still_found(
    ground: Ground, repo: Repository
) -> None:
    _, commit_ts = write(repo, contents, "r", b"1")
    write_silently(repo, "r", b"22")
    gone = Delete(Kind.NOTIFY, b"contents", commit_ts)
    assert ground.store.mutate([RowMutation("docs", b"r", (), [gone])]) == [True]
    assert only(repo, "lost-notification").ts == commit_ts


def test_a_silent_transaction_refuses_weak_notifications(repo: Repository) -> None:
    with (
        pytest.raises(UsageError, match=r"docs\.recluster cannot be notified.*notify=False"),
        repo.transaction(notify=False) as t,
    ):
        t.notify(recluster, "r")


def test_a_client_that_rolls_a_silent_write_forward_notifies_nobody(ground: Ground) -> None:
    t = ground.repo(TABLES).transaction(two_phase=True)
    for row in ("a", "b"):
        t.set(contents, row, b"1")
    first, second = (cell_of(contents, row) for row in ("a", "b"))
    commit = TwoPhaseCommit(t._context, t.start_ts, t._writes, silent=True)
    commit.prewrite([[first], [second]], first)
    commit.commit_primary([first], first, ground.oracle.timestamp())
    assert ground.lock_holders(contents, "b") == [t.start_ts]
    other = ground.repo(TABLES)
    assert other.snapshot().get(contents, "b") == b"1"
    [(_, raw)] = ground.entries(contents, "b", Kind.WRITE)
    assert decode_write(raw).silent
    assert other.pending() == {}
    sound(other)


def test_a_joint_transaction_may_be_silent(ground: Ground) -> None:
    repo = ground.repo(joints.TABLES)
    one = joints.joint(repo, notify=False)
    one.commit([joints.write(one, 0, [joints.row("a", "A"), joints.row("b", "B")])])
    assert joints.titles(repo) == {"a": "A", "b": "B"}
    assert repo.pending() == {}
    joints.assert_sound(repo, ground)


def test_a_lock_and_a_record_say_that_they_are_silent() -> None:
    for op in (Op.PUT, Op.DELETE):
        raw = encode_write(op, 7, b"v" if op is Op.PUT else None, silent=True)
        record = decode_write(raw)
        assert (record.op, record.start_ts, record.silent) == (op, 7, True)
        lock = LockRecord(op, Cell("t", b"r", b"c"), "me", 1, 9, False, None, silent=True)
        assert decode_lock(encode_lock(lock)) == lock
    for wrong in (Op.LOCK, Op.ROLLBACK):
        with pytest.raises(DamagedRecordError):
            decode_write(encode_write(wrong, 7, silent=True))
