"""§2.1, figure 5: what a Percola column looks like in the store."""

from __future__ import annotations

import pytest
from stores import Ground, cell_of

from percola import Repository, Table, Transaction, Worker, observer
from percola.cells import (
    INLINE_BYTES,
    Cell,
    Kind,
    LockRecord,
    Op,
    ack_column,
    decode_lock,
    decode_write,
    encode_lock,
    encode_write,
)
from percola.store.base import Condition, Put, RowMutation

docs = Table("docs")
contents = docs.column("contents", observed=True)
title = docs.column("title", str)
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
    with repo.transaction() as t:
        t.set(contents, "a", b"x" * size)
    [(_, raw)] = ground.entries(contents, "a", Kind.WRITE)
    assert decode_write(raw).value == b"x" * size
    assert ground.entries(contents, "a", Kind.DATA) == []
    assert repo.snapshot().get(contents, "a") == b"x" * size


def test_an_acknowledgment_is_a_percola_column_that_holds_the_observers_start_ts(
    ground: Ground, repo: Repository
) -> None:
    starts = []

    @observer(contents)
    def index(t: Transaction, row: str) -> None:
        starts.append(t.start_ts)

    for body in (b"one", b"two"):
        with repo.transaction() as t:
            t.set(contents, "a", body)
        Worker(repo, [index], threads=1).run_until_idle()
    cell = Cell("docs", b"a", ack_column("index", contents.key))
    records = [decode_write(raw) for _, raw in ground.store.entries(cell, Kind.WRITE, 0, 2**62)]
    assert [int(record.value or b"") for record in records] == starts[::-1]
    assert len(starts) == 2


def test_percolas_own_columns_do_not_show_in_rows_and_scans(repo: Repository) -> None:
    @observer(contents)
    def index(t: Transaction, row: str) -> None:
        pass

    with repo.transaction() as t:
        t.set(contents, "a", b"body")
    Worker(repo, [index], threads=1).run_until_idle()
    snapshot = repo.snapshot()
    assert [c.name for c, _ in snapshot.get_row(docs, "a").items()] == ["contents"]
    assert [[c.name for c, _ in row.items()] for row in snapshot.scan(docs)] == [["contents"]]


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
    assert decode_write(encode_write(Op.PUT, 7, b"")) == (Op.PUT, 7, b"")
    assert decode_write(encode_write(Op.ROLLBACK, 2**62)) == (Op.ROLLBACK, 2**62, None)
