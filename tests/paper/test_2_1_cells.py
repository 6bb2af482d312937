"""§2.1, figure 5: what a Percola column looks like in the store."""

from __future__ import annotations

import pytest
from stores import Ground, cell_of, put

from percola import Repository, Table, Transaction, Worker, observer
from percola.cells import (
    INLINE_BYTES,
    NO_CHANGE,
    Cell,
    Kind,
    LastChange,
    LockRecord,
    Op,
    WriteRecord,
    ack_column,
    decode_lock,
    decode_write,
    encode_lock,
    encode_write,
    newest_change,
)
from percola.errors import DamagedRecordError
from percola.store.base import Condition, Put, RowMutation

docs = Table("docs")
contents = docs.column("contents", observed=True)
title = docs.column("title", str)
votes = docs.family("votes", int)
TABLES = [docs]


def test_a_committed_column_has_a_write_record_that_points_at_its_data(
    ground: Ground, repo: Repository
) -> None:
    long = b"x" * (INLINE_BYTES + 1)
    with repo.transaction() as t:
        t.set(contents, "a", long)
    [(commit_ts, raw)] = ground.entries(contents, "a", Kind.WRITE)
    record = decode_write(raw)
    assert (record.op, record.start_ts, record.value) == (Op.PUT, t.start_ts, None)
    assert commit_ts == t.commit_ts
    assert ground.entries(contents, "a", Kind.DATA) == [(t.start_ts, long)]
    assert ground.entries(contents, "a", Kind.LOCK) == []
    assert ground.entries(contents, "a", Kind.NOTIFY) == [(commit_ts, b"")]


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES])
def test_a_small_value_stands_in_its_write_record(
    ground: Ground, repo: Repository, size: int
) -> None:
    put(repo, contents, "a", b"x" * size)
    [(_, raw)] = ground.entries(contents, "a", Kind.WRITE)
    assert decode_write(raw).value == b"x" * size
    assert ground.entries(contents, "a", Kind.DATA) == []
    assert repo.snapshot().get(contents, "a") == b"x" * size


def test_an_acknowledgment_is_a_percola_column_that_holds_the_observers_start_ts(
    ground: Ground, repo: Repository
) -> None:
    starts = []

    index = observer(contents, name="index")(lambda t, row: starts.append(t.start_ts))

    for body in (b"one", b"two"):
        put(repo, contents, "a", body)
        Worker(repo, [index], threads=1).run_until_idle()
    cell = Cell("docs", b"a", ack_column("index", contents.key))
    records = [decode_write(raw) for _, raw in ground.store.entries(cell, Kind.WRITE, 0, 2**62)]
    assert [int(record.value or b"") for record in records] == starts[::-1]
    assert len(starts) == 2


def test_percolas_own_columns_do_not_show_in_rows_and_scans(repo: Repository) -> None:
    @observer(contents)
    def index(t: Transaction, row: str) -> None:
        pass

    put(repo, contents, "a", b"body")
    Worker(repo, [index], threads=1).run_until_idle()
    snapshot = repo.snapshot()
    assert [c.name for c, _ in snapshot.get_row(docs, "a").items()] == ["contents"]
    assert [[c.name for c, _ in row.items()] for row in snapshot.scan(docs)] == [["contents"]]


def test_a_family_can_be_read_in_part_however_wide_the_rows_are(repo: Repository) -> None:
    names = [f"{number:03}" for number in range(120)]
    for row in ("a", "b", "c"):
        with repo.transaction() as t:
            for name in names:
                t.set(votes[name], row, int(name))
            t.set(contents, row, b"first")
            t.set(title, row, "before the votes")
    with repo.transaction() as t:
        t.delete(votes["077"], "b")
        t.set(votes["07x"], "b", -1)  # Its own writes are found in the same way.
        for reader in (t, repo.snapshot()):
            own = {"07x": -1} if reader is t else {"077": 77}
            some = {f"{n:03}": n for n in range(70, 80) if n != 77} | own
            asked = [votes.starting("07"), votes.starting("119"), votes.starting("none")]
            found = reader.get_row(docs, "b", asked)
            assert found.family(votes) == some | {"119": 119}
            assert {column.name.partition(":")[0] for column, _ in found.items()} == {"votes"}
        seen = [
            (one.key, sorted(one.family(votes)), one.get(title))
            for one in t.scan(docs, columns=[votes.starting("00"), title])
        ]
    assert seen == [(row, names[:10], "before the votes") for row in ("a", "b", "c")]
    assert repo.snapshot().get_row(docs, "a", [votes]).family(votes) == dict(
        zip(names, range(120), strict=True)
    )


def test_a_row_mutation_is_applied_whole_or_not_at_all(ground: Ground, repo: Repository) -> None:
    a, b = cell_of(contents, "a"), cell_of(title, "a")
    absent = Condition(False, Kind.DATA, a.column, 1, 9)
    both = [Put(Kind.DATA, a.column, 5, b"1"), Put(Kind.DATA, b.column, 5, b"2")]
    mutation = RowMutation("docs", b"a", [absent], both)
    assert ground.store.mutate([mutation]) == [True]
    again = RowMutation("docs", b"a", [absent], [Put(Kind.DATA, b.column, 6, b"3")])
    assert ground.store.mutate([again]) == [False]
    assert ground.store.entries(b, Kind.DATA, 0, 9) == [(5, b"2")]


def test_records_read_back_as_they_were_written() -> None:
    lock = LockRecord(Op.DELETE, Cell("t", b"r\0ow", b"c"), "owner-é", 2**40, 9, True, None)
    for one in (lock, lock._replace(value=b""), lock._replace(value=b"v", observed=False)):
        assert decode_lock(encode_lock(one)) == one
    assert decode_write(encode_write(Op.PUT, 7, b"")) == WriteRecord(Op.PUT, 7, b"")
    assert decode_write(encode_write(Op.ROLLBACK, 2**62)) == WriteRecord(Op.ROLLBACK, 2**62, None)


@pytest.mark.parametrize(
    "change",
    [
        NO_CHANGE,
        LastChange(3, encode_write(Op.DELETE, 2)),
        LastChange(3, encode_write(Op.PUT, 2)),
        LastChange(3, encode_write(Op.PUT, 2, b"value")),
    ],
    ids=["nothing", "delete", "long value", "value"],
)
def test_a_record_without_a_change_repeats_the_newest_change_below_it(change: LastChange) -> None:
    for op, decides in ((Op.LOCK, False), (Op.LOCK, True), (Op.ROLLBACK, False)):
        record = WriteRecord(op, 7, None, change, decides)
        raw = encode_write(op, 7, last_change=change, decides=decides)
        assert decode_write(raw) == record
        assert newest_change([(9, raw)], complete=False) == change
    lock = LockRecord(Op.LOCK, Cell("t", b"row", b"c"), "owner", 1, 9, False, None, change)
    assert decode_lock(encode_lock(lock)) == lock
    for op in (Op.PUT, Op.DELETE):
        with pytest.raises(DamagedRecordError):
            decode_write(encode_write(op, 7, last_change=change))
        with pytest.raises(DamagedRecordError):
            decode_lock(encode_lock(lock._replace(op=op)))


def test_a_change_that_is_none_is_not_repeated() -> None:
    for raw in (encode_write(Op.LOCK, 2), encode_write(Op.LOCK, 2, last_change=NO_CHANGE), b"P"):
        with pytest.raises(DamagedRecordError):
            decode_write(encode_write(Op.LOCK, 7, last_change=LastChange(3, raw)))
    with pytest.raises(DamagedRecordError):
        decode_write(encode_write(Op.LOCK, 7, last_change=LastChange(3, b"")))
