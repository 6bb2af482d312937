"""§2.2: a cell that is often locked and rarely written is read as fast as any other.

`get_for_update` leaves a write record that changes nothing, and so does a rollback. Each repeats
the newest change below it, so that a reader looks at one record however many there are.
"""

from __future__ import annotations

from functools import partial

import pytest
from stores import (
    DEADLINE,
    Crashed,
    Ground,
    SeamStore,
    cell_of,
    delete,
    phase,
    put,
    stopped,
    telling,
)

from percola import ConflictError, Repository, Table
from percola.cells import (
    INLINE_BYTES,
    MAX_TS,
    NO_CHANGE,
    Kind,
    LastChange,
    Op,
    decode_write,
    encode_write,
)
from percola.gc.rules import garbage_of_row
from percola.store.base import Delete, Put, RowMutation
from percola.transactions.lock_resolver import ROLLED_BACK

rows = Table("rows")
value = rows.column("value", str)
other = rows.column("other", str)
TABLES = [rows]
LONG = "x" * (INLINE_BYTES + 1)

SHAPES: dict[str, list[str | None]] = {
    "never written": [],
    "deleted": ["old", None],
    "short": ["old", "new"],
    "long": [LONG, LONG + "y"],
}


def write(repo: Repository, row: str, what: str | None) -> int:
    return delete(repo, value, row) if what is None else put(repo, value, row, what)


def lock(repo: Repository, row: str, *, beside: str | None = None) -> int:
    """Lock a cell without changing it; `beside` writes another one, which is the primary then."""
    with repo.transaction() as t:
        t.get_for_update(value, row)
        if beside is not None:
            t.set(other, beside, "changed")
    assert t.commit_ts is not None
    return t.commit_ts


def newest_record(ground: Ground, row: str) -> tuple[int, bytes]:
    return ground.store.entries(cell_of(value, row), Kind.WRITE, 0, MAX_TS, 1)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("beside", [None, "b"], ids=["primary", "secondary"])
def test_a_locked_cell_says_what_is_its_newest_change(
    ground: Ground, repo: Repository, shape: str, beside: str | None
) -> None:
    last, written = None, 0
    for last in SHAPES[shape]:
        written = write(repo, "a", last)
    below = newest_record(ground, "a") if SHAPES[shape] else None
    for _ in range(3):
        commit_ts = lock(repo, "a", beside=beside)
        at, raw = newest_record(ground, "a")
        record = decode_write(raw)
        assert (at, record.op) == (commit_ts, Op.LOCK)
        if below is None:
            assert record.last_change == NO_CHANGE
        else:
            expected, found = decode_write(below[1]), record.last_change
            assert found is not None and found.commit_ts == below[0]
            said = decode_write(found.record)
            assert (said.op, said.value) == (expected.op, expected.value)
            if expected.op is Op.PUT and expected.value is None:
                assert said.start_ts == expected.start_ts
        with repo.snapshot() as snapshot:
            assert snapshot.get(value, "a") == last
            assert snapshot.version(value, "a") == written
            assert [row[value] for row in snapshot.scan(rows, prefix="a")] == (
                [last] if last else []
            )


def test_a_read_looks_at_one_record_however_often_the_cell_was_locked(
    ground: Ground, repo: Repository
) -> None:
    write(repo, "a", "old")
    locked = [lock(repo, "a") for _ in range(50)]
    cell = cell_of(value, "a")
    # Without the records below it the newest one still answers: they are not looked at.
    records = ground.entries(value, "a", Kind.WRITE)
    assert [ts for ts, _ in records[:50]] == locked[::-1]
    below = [Delete(Kind.WRITE, cell.column, ts) for ts, _ in records[1:]]
    ground.store.mutate([RowMutation(cell.table, cell.row, (), below)])
    with repo.snapshot() as snapshot:
        assert snapshot.get(value, "a") == "old"
        assert [row[value] for row in snapshot.scan(rows)] == ["old"]
        assert snapshot.get_row(rows, "a")[value] == "old"


def test_a_client_that_rolls_a_lock_forward_writes_the_same_record(
    ground: Ground, repo: Repository
) -> None:
    def crash(mutation: RowMutation) -> None:
        if phase(mutation) == "commit" and mutation.row == b"a":
            raise Crashed

    written = write(repo, "a", "old")
    store = SeamStore(ground.store)
    dying = ground.repo(TABLES, store=store, one_step=False)
    store.hook = telling(crash)
    with pytest.raises(Crashed):
        lock(dying, "a", beside="b")
    assert ground.lock_holders(value, "a")
    with repo.snapshot() as snapshot:
        assert snapshot.get(value, "a") == "old"
    record = decode_write(newest_record(ground, "a")[1])
    assert record.op is Op.LOCK and not record.decides
    assert record.last_change is not None and record.last_change.commit_ts == written


def test_a_rollback_record_repeats_the_change_below_the_lock_that_it_replaces(
    ground: Ground, repo: Repository
) -> None:
    written = write(repo, "a", LONG)
    losing = ground.repo(TABLES, one_step=False).transaction()
    losing.set(value, "a", "never")
    losing.set(value, "b", "never")
    write(repo, "b", "first")
    with pytest.raises(ConflictError):
        losing.commit()
    at, raw = newest_record(ground, "a")
    record = decode_write(raw)
    assert (at, record.op) == (losing.start_ts, Op.ROLLBACK)
    assert record.last_change is not None and record.last_change.commit_ts == written
    with repo.snapshot() as snapshot:
        assert snapshot.get(value, "a") == LONG


def test_a_rollback_record_without_a_lock_does_not_say_what_is_newest(
    ground: Ground, repo: Repository
) -> None:
    # The other transaction may yet commit below it: it holds the lock, and has its commit_ts.
    write(repo, "a", "old")
    store = SeamStore(ground.store)
    slow = ground.repo(TABLES, store=store, one_step=False)
    with stopped(store, partial(write, slow, "a", "new"), "commit", "a") as writing:
        late = ground.oracle.timestamp()
        assert repo.context.resolver.fate(cell_of(value, "a"), late) == ROLLED_BACK
    assert writing.result(DEADLINE) < late
    assert decode_write(dict(ground.entries(value, "a", Kind.WRITE))[late]).last_change is None
    with repo.snapshot() as snapshot:
        assert snapshot.get(value, "a") == "new"


# --- Garbage collection -----------------------------------------------------------------


def test_locks_are_collected_as_soon_as_a_newer_commit_stands(
    ground: Ground, repo: Repository
) -> None:
    written = write(repo, "a", "old")
    write(repo, "b", "old")
    early = repo.transaction()  # Its lease keeps the safe point below the locks.
    locked = [lock(repo, "a", beside="b") for _ in range(20)]
    repo.collect_garbage(retention=0)
    assert ground.store.safe_point() <= early.start_ts
    assert [ts for ts, _ in ground.entries(value, "a", Kind.WRITE)] == [locked[-1], written]
    with repo.snapshot(at=locked[5]) as snapshot:
        assert snapshot.get(value, "a") == "old"
    # The one that is kept stops the transactions that the others would have stopped.
    early.set(value, "a", "late")
    with pytest.raises(ConflictError):
        early.commit()


def test_a_lock_that_decides_about_others_is_collected_below_the_safe_point_only(
    ground: Ground, repo: Repository
) -> None:
    two_phase = ground.repo(TABLES, one_step=False)
    write(repo, "b", "old")
    reader = repo.snapshot()  # Its lease keeps the safe point below the locks.
    deciding = lock(two_phase, "a")
    newest = lock(two_phase, "a", beside="b")
    repo.collect_garbage(retention=0)
    reader.close()
    assert [ts for ts, _ in ground.entries(value, "a", Kind.WRITE)] == [newest, deciding]
    write(repo, "a", "new")
    repo.collect_garbage(retention=0)
    assert len(ground.entries(value, "a", Kind.WRITE)) == 1


def test_another_transactions_rollback_record_is_no_newer_commit(ground: Ground) -> None:
    locked = encode_write(Op.LOCK, 4, last_change=NO_CHANGE)
    rolled_back = encode_write(Op.ROLLBACK, 9)
    records = [(9, rolled_back), (5, locked)]
    assert not garbage_of_row([(b"c", records)], 1, (), settled=1).changes
    newer = [(7, encode_write(Op.PUT, 6, b"v")), (5, locked)]
    assert garbage_of_row([(b"c", newer)], 1, (), settled=1).changes == [
        Delete(Kind.WRITE, b"c", 5)
    ]


def test_a_rollback_record_that_stays_repeats_no_change_that_goes(ground: Ground) -> None:
    put = LastChange(3, encode_write(Op.PUT, 2, b"v"))
    rolled_back = encode_write(Op.ROLLBACK, 5, last_change=put)
    records = [(8, encode_write(Op.DELETE, 7)), (5, rolled_back), (3, put.record)]
    garbage = garbage_of_row([(b"c", records)], 9, (), settled=4)
    changes = garbage.changes + garbage.last
    assert sorted(one.ts for one in changes if isinstance(one, Delete)) == [3, 8]
    assert [one for one in changes if isinstance(one, Put)] == [
        Put(Kind.WRITE, b"c", 5, encode_write(Op.ROLLBACK, 5))
    ]
