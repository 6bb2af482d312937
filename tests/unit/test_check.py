"""`check` finds each broken rule, on every store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import Ground, SeamStore, cell_of, stopped

import percola
from percola import Repository, Table
from percola.cells import (
    NO_CHANGE,
    Cell,
    Kind,
    LastChange,
    LockRecord,
    Op,
    ack_column,
    encode_lock,
    encode_ts,
    encode_write,
    failed_column,
)
from percola.maintenance.check import Counts, Severity, check
from percola.store.base import Delete, Put, RowMutation
from percola.store.lmdb.store import LmdbStore
from percola.transactions.lock_resolver import JOBS_TABLE
from tests.unit.checked import (
    LARGE,
    TABLES,
    bal,
    contents,
    measure,
    only,
    recluster,
    sound,
    title,
    work,
    write,
)


def damage(repo: Repository, table: str, row: bytes, *changes: Put | Delete) -> None:
    assert repo.context.store.mutate([RowMutation(table, row, (), changes)]) == [True]


def lock(
    primary: Cell, *, op: Op = Op.PUT, value: bytes | None = b"1", observed: bool = False
) -> bytes:
    return encode_lock(LockRecord(op, primary, "999999-0", 0, 10, observed, value))


# --- What is broken ---------------------------------------------------------------------

BOB, TITLE = cell_of(bal, "Bob"), cell_of(title, "r")
FAILURE = Cell("docs", b"r", failed_column("o", b"contents"))
UNKNOWN = (b"unheard", b"\xff", b"unheard:of", b"@ack:o:bal", b"@other")
NO_LOCK = (b"", b"junk", b"R" + bytes(25), b"P" + bytes(40))
NO_WRITE = (b"", b"junk", b"Z" + bytes(9), b"D" + bytes(10))
NO_FAILURE = (b"{", b"[]", b'{"observer": "o"}', b"\xff")


def number(ts: int) -> bytes:
    return encode_write(Op.PUT, ts - 1, b"%d" % (ts - 1))


ALONE: list[tuple[str, Cell, Kind, Callable[[int], bytes]]] = [
    ("lock-without-primary", BOB, Kind.LOCK, lambda ts: lock(Cell("gone", b"r", b"c"))),
    ("lock-without-data", TITLE, Kind.LOCK, lambda ts: lock(TITLE, value=None)),
    *(("undecodable-lock", BOB, Kind.LOCK, lambda ts, raw=raw: raw) for raw in NO_LOCK),
    *(("undecodable-write", BOB, Kind.WRITE, lambda ts, raw=raw: raw) for raw in NO_WRITE),
    *(("undecodable-failure", FAILURE, Kind.FAILED, lambda ts, raw=raw: raw) for raw in NO_FAILURE),
    ("commit-before-start", BOB, Kind.WRITE, lambda ts: encode_write(Op.PUT, ts, b"10")),
    ("misplaced-rollback", BOB, Kind.WRITE, lambda ts: encode_write(Op.ROLLBACK, ts - 1)),
    *(("unknown-column", BOB._replace(column=one), Kind.WRITE, number) for one in UNKNOWN),
    ("weak-column-written", cell_of(recluster, "r"), Kind.WRITE, number),
]


@pytest.mark.parametrize(("rule", "cell", "kind", "value"), ALONE)
def test_an_entry_that_is_broken_in_itself_is_found(
    repo: Repository, rule: str, cell: Cell, kind: Kind, value: Callable[[int], bytes]
) -> None:
    ts = repo.context.oracle.timestamp()
    damage(repo, cell.table, cell.row, Put(kind, cell.column, ts, value(ts)))
    found = only(repo, rule)
    assert (found.cell, found.ts) == (cell, ts)


def test_data_without_a_lock_or_a_write_record_is_found(repo: Repository) -> None:
    write(repo, contents, "r", LARGE)
    with repo.transaction() as t:
        t.set(title, "r", "t")
    damage(repo, "docs", b"r", Put(Kind.DATA, b"title", t.start_ts - 1, b"never committed"))
    found = only(repo, "orphan-data")
    assert (found.cell, found.ts) == (cell_of(title, "r"), t.start_ts - 1)
    assert f"docs['r'].title has data at {t.start_ts - 1}" in found.message


def test_data_whose_write_record_was_lost_is_found(repo: Repository) -> None:
    _, commit_ts = write(repo, title, "r", "long" * 100)
    damage(repo, "docs", b"r", Delete(Kind.WRITE, b"title", commit_ts))
    assert only(repo, "orphan-data").cell == cell_of(title, "r")


def test_a_write_record_without_its_data_is_found(repo: Repository) -> None:
    start_ts, commit_ts = write(repo, title, "r", "long" * 100)
    damage(repo, "docs", b"r", Delete(Kind.DATA, b"title", start_ts))
    found = only(repo, "write-without-data")
    assert (found.cell, found.ts) == (cell_of(title, "r"), commit_ts)


def test_a_lock_whose_primary_knows_nothing_of_it_is_found(repo: Repository) -> None:
    write(repo, bal, "Bob", 10)
    ts = repo.context.oracle.timestamp()
    damage(repo, "bank", b"Joe", Put(Kind.LOCK, b"bal", ts, lock(cell_of(bal, "Bob"))))
    found = only(repo, "lock-without-primary")
    assert (found.cell, found.ts) == (cell_of(bal, "Joe"), ts)
    assert "bank['Bob'].bal" in found.message


def test_a_lock_whose_primary_has_another_primary_is_found(repo: Repository) -> None:
    ts = repo.context.oracle.timestamp()
    bob, joe = cell_of(bal, "Bob"), cell_of(bal, "Joe")
    damage(repo, "bank", b"Joe", Put(Kind.LOCK, b"bal", ts, lock(bob)))
    damage(repo, "bank", b"Bob", Put(Kind.LOCK, b"bal", ts, lock(Cell("bank", b"Z", b"bal"))))
    damage(repo, "bank", b"Z", Put(Kind.LOCK, b"bal", ts, lock(Cell("bank", b"Z", b"bal"))))
    found = only(repo, "lock-without-primary")
    assert found.cell == joe
    assert "bank['Z'].bal is" in found.message


def test_two_locks_on_a_cell_are_found(repo: Repository) -> None:
    first, second = repo.context.oracle.timestamp(), repo.context.oracle.timestamp()
    held = lock(cell_of(bal, "Bob"))
    puts = [Put(Kind.LOCK, b"bal", ts, held) for ts in (first, second)]
    damage(repo, "bank", b"Bob", *puts)
    assert f"{first} and {second}" in only(repo, "two-locks").message


def test_a_lock_that_would_commit_without_a_notification_is_found(repo: Repository) -> None:
    ts = repo.context.oracle.timestamp()
    held = Put(Kind.LOCK, b"contents", ts, lock(cell_of(contents, "r"), observed=False))
    damage(repo, "docs", b"r", held)
    assert "notify nobody" in only(repo, "lock-of-wrong-notification").message


@pytest.mark.parametrize("own", [True, False])
def test_a_lock_beside_a_write_record_at_or_above_it_is_found(repo: Repository, own: bool) -> None:
    ts = repo.context.oracle.timestamp()
    _, commit_ts = write(repo, bal, "Bob", 10)
    held = Put(Kind.LOCK, b"bal", ts, lock(cell_of(bal, "Bob")))
    record = encode_write(Op.PUT, ts if own else commit_ts - 1, b"10")
    damage(repo, "bank", b"Bob", held, Put(Kind.WRITE, b"bal", commit_ts, record))
    found = only(repo, "lock-beside-write")
    assert ("own" in found.message) is own


def test_a_lock_beside_its_own_rollback_record_is_found(repo: Repository) -> None:
    ts = repo.context.oracle.timestamp()
    held = Put(Kind.LOCK, b"bal", ts, lock(cell_of(bal, "Bob")))
    damage(repo, "bank", b"Bob", held, Put(Kind.WRITE, b"bal", ts, encode_write(Op.ROLLBACK, ts)))
    assert "own" in only(repo, "lock-beside-write").message


def test_a_transaction_that_committed_and_was_rolled_back_is_found(repo: Repository) -> None:
    start_ts, commit_ts = repo.context.oracle.timestamp(), repo.context.oracle.timestamp()
    committed = Put(Kind.WRITE, b"bal", commit_ts, encode_write(Op.PUT, start_ts, b"10"))
    undone = Put(Kind.WRITE, b"bal", start_ts, encode_write(Op.ROLLBACK, start_ts))
    damage(repo, "bank", b"Bob", committed, undone)
    assert only(repo, "committed-and-rolled-back").ts == commit_ts


def test_a_write_that_did_not_see_the_one_before_it_is_found(repo: Repository) -> None:
    start_ts, _ = write(repo, bal, "Bob", 10)
    ts = repo.context.oracle.timestamp()
    record = encode_write(Op.PUT, start_ts, b"11")
    damage(repo, "bank", b"Bob", Put(Kind.WRITE, b"bal", ts, record))
    assert only(repo, "overlapping-writes").ts == ts


def test_a_lock_that_hides_a_newer_change_is_found(repo: Repository) -> None:
    write(repo, bal, "Ann", 10)
    start_ts, commit_ts = write(repo, bal, "Bob", 10)
    older = LastChange(commit_ts - 1, encode_write(Op.PUT, start_ts - 1, b"9"))
    for change in (NO_CHANGE, older):
        ts = repo.context.oracle.timestamp()
        record = encode_write(Op.LOCK, ts - 1, last_change=change)
        damage(repo, "bank", b"Bob", Put(Kind.WRITE, b"bal", ts, record))
        assert only(repo, "hidden-change").ts == ts
        damage(repo, "bank", b"Bob", Delete(Kind.WRITE, b"bal", ts))


def test_a_lock_that_repeats_what_does_not_stand_there_is_found(repo: Repository) -> None:
    start_ts, commit_ts = write(repo, bal, "Bob", 10)
    right = LastChange(commit_ts, encode_write(Op.PUT, start_ts, b"10"))
    for change in (
        right,
        LastChange(commit_ts, encode_write(Op.PUT, start_ts, b"11")),
        LastChange(commit_ts, encode_write(Op.DELETE, start_ts)),
        LastChange(commit_ts + 1, encode_write(Op.PUT, start_ts, b"10")),
    ):
        ts = repo.context.oracle.timestamp()
        repo.context.oracle.timestamp()
        record = encode_write(Op.LOCK, ts, last_change=change)
        damage(repo, "bank", b"Bob", Put(Kind.WRITE, b"bal", ts + 1, record))
        if change is not right:
            assert only(repo, "wrong-last-change").ts == ts + 1
        else:
            assert list(check(repo)) == []
        damage(repo, "bank", b"Bob", Delete(Kind.WRITE, b"bal", ts + 1))


def test_a_value_that_is_not_of_the_columns_type_is_found(repo: Repository) -> None:
    start_ts, commit_ts = write(repo, bal, "Bob", 10)
    record = encode_write(Op.PUT, start_ts, b"ten")
    damage(repo, "bank", b"Bob", Put(Kind.WRITE, b"bal", commit_ts, record))
    assert "is not int: b'ten'" in only(repo, "undecodable-value").message


def test_a_notification_where_nothing_was_committed_is_noted(repo: Repository) -> None:
    write(repo, contents, "r", b"body")
    work(repo, measure)
    ts = repo.context.oracle.timestamp()
    damage(repo, "docs", b"r", Put(Kind.NOTIFY, b"contents", ts, b""))
    found = only(repo, "notification-without-reason")
    assert (found.severity, found.ts) == (Severity.NOTE, ts)


def test_a_notification_that_nobody_can_observe_is_found(repo: Repository) -> None:
    _, commit_ts = write(repo, title, "r", "t")
    damage(repo, "docs", b"r", Put(Kind.NOTIFY, b"title", commit_ts, b""))
    assert only(repo, "notification-unobserved").ts == commit_ts


def test_a_row_that_is_not_of_the_tables_type_is_found(repo: Repository) -> None:
    ts = repo.context.oracle.timestamp()
    damage(repo, "bank", b"\xff", Put(Kind.WRITE, b"bal", ts, number(ts)))
    assert only(repo, "undecodable-row").cell == Cell("bank", b"\xff", b"bal")


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_lost_notification_is_found(repo: Repository, acknowledged: bool) -> None:
    if acknowledged:
        write(repo, contents, "r", b"body")
        work(repo, measure)
    _, commit_ts = write(repo, contents, "r", b"new body")
    damage(repo, "docs", b"r", Delete(Kind.NOTIFY, b"contents", commit_ts))
    found = only(repo, "lost-notification")
    assert (found.cell, found.ts) == (cell_of(contents, "r"), commit_ts)
    assert ("was never acknowledged" in found.message) is not acknowledged


@pytest.mark.parametrize(
    ("shift", "rule"), [(1, "acknowledgment-from-the-future"), (-1, "wrong-acknowledgment")]
)
def test_an_acknowledgment_of_another_time_than_its_own_is_found(
    repo: Repository, shift: int, rule: str
) -> None:
    write(repo, contents, "r", b"body")
    write(repo, title, "r", "t")
    work(repo, measure)
    column = ack_column("measure", b"contents")
    ack = Cell("docs", b"r", column)
    store = repo.context.store
    ((commit_ts, _),) = store.entries(ack, Kind.WRITE, 0, 2**63 - 1)
    start_ts = commit_ts - 1
    record = encode_write(Op.PUT, start_ts, encode_ts(start_ts + shift))
    damage(repo, "docs", b"r", Put(Kind.WRITE, column, commit_ts, record))
    assert only(repo, rule).cell == ack


@pytest.mark.parametrize("kind", [Kind.WRITE, Kind.NOTIFY, Kind.LOCK])
def test_a_timestamp_that_was_never_handed_out_is_found(repo: Repository, kind: Kind) -> None:
    _, commit_ts = write(repo, contents, "r", b"body")
    ts = commit_ts + 1000
    cell = cell_of(contents, "r")
    value = {
        Kind.WRITE: encode_write(Op.LOCK, commit_ts),
        Kind.NOTIFY: b"",
        Kind.LOCK: lock(cell, observed=True),
    }[kind]
    damage(repo, "docs", b"r", Put(kind, b"contents", ts, value))
    found = [one for one in check(repo) if one.severity is Severity.ERROR]
    assert [(one.rule, one.ts) for one in found] == [("timestamp-from-the-future", ts)]
    last = repo.context.oracle.read_timestamp()
    assert f"the last timestamp handed out is {last}" in found[0].message


def test_every_finding_is_reported_and_the_rest_is_walked(repo: Repository) -> None:
    for i in range(700):
        write(repo, title, f"{i:03}", "long" * 100)
    for i in (3, 300, 699):
        row = b"%03d" % i
        ((ts, _),) = repo.context.store.entries(Cell("docs", row, b"title"), Kind.DATA, 0, 2**63)
        damage(repo, "docs", row, Delete(Kind.DATA, b"title", ts))
    counts, seen = Counts(), []
    found = list(check(repo, counts=counts, progress=lambda c: seen.append(c.rows)))
    assert [one.cell.row for one in found] == [b"003", b"300", b"699"]
    assert (counts.rows, counts.writes, counts.data, counts.errors) == (700, 700, 697, 3)
    assert seen == [500, 700]


def test_a_late_lock_below_the_safe_point_is_only_noted(repo: Repository) -> None:
    ts = repo.context.oracle.timestamp()
    write(repo, bal, "Bob", 10)
    repo.context.store.raise_safe_point(ts + 1)
    damage(repo, "bank", b"Joe", Put(Kind.LOCK, b"bal", ts, lock(cell_of(bal, "Bob"))))
    assert only(repo, "late-lock").severity is Severity.NOTE


def test_a_primary_lock_that_was_lost_with_a_server_is_only_noted(repo: Repository) -> None:
    store: Any = repo.context.store
    store.has_volatile_writes = True
    ts = repo.context.oracle.timestamp()
    damage(repo, "bank", b"Joe", Put(Kind.LOCK, b"bal", ts, lock(cell_of(bal, "Bob"))))
    assert only(repo, "lost-primary-lock").severity is Severity.NOTE
    # As it says, who meets the lock rolls the transaction back. A job's primaries are durable.
    assert repo.snapshot().get(bal, "Joe") is None
    damage(repo, "bank", b"Joe", Put(Kind.LOCK, b"bal", ts, lock(Cell(JOBS_TABLE, b"j", b"p"))))
    assert only(repo, "lock-without-primary").severity is Severity.ERROR


def test_a_long_value_that_the_commit_point_will_put_is_not_missing_yet(ground: Ground) -> None:
    """As on HBase, in the row of a primary; in any other row it is put with its lock."""
    store = SeamStore(ground.store)
    store.has_volatile_writes = True
    repo = ground.repo(TABLES, store=store, one_step=False)

    def commit() -> None:
        with repo.transaction() as t:
            t.set(title, "r", "long" * 100)
            t.set(title, "s", "long" * 100)

    with stopped(store, commit, "commit", "r") as committing:
        sound(repo)
        damage(repo, "docs", b"s", Delete(Kind.DATA, b"title", *ground.lock_holders(title, "s")))
        assert only(repo, "lock-without-data").cell == cell_of(title, "s")
    committing.result(20)


def test_a_key_that_cannot_be_read_is_found_and_other_tables_are_walked(tmp_path: Path) -> None:
    with percola.open(tmp_path / "repo", TABLES, durability="relaxed") as repo:
        for i in range(300):
            write(repo, bal, f"{i:03}", 10)
        write(repo, title, "a", "t")
        store = repo.context.store
        assert isinstance(store, LmdbStore)
        environment = store._environment
        prefix = store._keys.prefix("bank")
        key = prefix + b"280" + b"\xff" * 8
        environment.write(lambda txn: txn.put(key, b"", db=environment.databases[0]))
        counts = Counts()
        found = list(check(repo, counts=counts))
    assert [(one.rule, one.cell) for one in found] == [
        ("undecodable-key", Cell("bank", b"255", b""))
    ]
    assert (counts.tables, counts.rows) == (2, 257)


@pytest.mark.parametrize("value", [b"True", b"", b"1"])
def test_a_value_that_is_neither_true_nor_false_is_found(ground: Ground, value: bytes) -> None:
    flags = Table("flags")
    shown = flags.column("shown", bool)
    repo = ground.repo([flags])
    start_ts, commit_ts = write(repo, shown, "r", True)
    record = encode_write(Op.PUT, start_ts, value)
    damage(repo, "flags", b"r", Put(Kind.WRITE, b"shown", commit_ts, record))
    assert only(repo, "undecodable-value").ts == start_ts
