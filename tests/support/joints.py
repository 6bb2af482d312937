"""What the tests of joint transactions and of Spark's writes share: a table, and its state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stores import Ground, ScriptedClock

from percola import Repository, Table
from percola.cells import Kind, Op, decode_write
from percola.maintenance.check import check
from percola.store.walks import scan_writes
from percola.transactions.jobs import JOBS, Attempt, JointTransaction, Part, RowWrites, new_run

docs = Table("docs")
title = docs.column("title", str, observed=True)
size = docs.column("size", int)
links = docs.family("links", str)
TABLES = [docs, JOBS]
TTL = 5.0


def row(key: str, text: str | None = None, number: int | None = None, **more: Any) -> RowWrites:
    cells: dict[bytes, bytes | None] = {title.key: None if text is None else text.encode()}
    if number is not None:
        cells[size.key] = b"%d" % number
    return RowWrites("docs", key.encode(), cells, **more)


def titles(repo: Repository) -> dict[str, str]:
    with repo.snapshot() as snapshot:
        return {found.key: found[title] for found in snapshot.scan(docs, columns=[title])}


def stranger(ground: Ground, **more: Any) -> tuple[Repository, ScriptedClock]:
    """A repository as another process, with a clock that stands still until it waits."""
    clock = more.pop("clock", ScriptedClock())
    return ground.repo(TABLES, clock=clock, **more), clock


def assert_sound(repo: Repository, ground: Ground) -> None:
    """Nothing is locked any more, and every invariant of the cells holds."""
    assert ground.left_over(docs, Kind.LOCK) == []
    assert ground.left_over(JOBS, Kind.LOCK) == []
    assert [str(one) for one in check(repo)] == []


def joint(
    repo: Repository, job: str = "job", run: int | None = None, **more: Any
) -> JointTransaction:
    more = {"ttl_seconds": TTL, "timeout": 2.0, **more}
    return JointTransaction(repo, job, new_run(repo) if run is None else run, ["docs"], **more)


def begin(one: JointTransaction, partition: int, attempt: int, retry: int = 0) -> Attempt:
    begun = one.attempt(partition, attempt, retry)
    assert begun is not None
    return begun


def write(
    one: JointTransaction, partition: int, rows: Iterable[RowWrites], attempt: int | None = None
) -> Part:
    begun = begin(one, partition, partition if attempt is None else attempt)
    begun.write(list(rows))
    return begun.finish()


def titles_unlocked(ground: Ground) -> dict[str, int]:
    """What has been committed, whatever is locked."""
    return {
        str(cell): records[0][0]
        for cell, records in scan_writes(ground.store, "docs")[0]
        if decode_write(records[0][1]).op is not Op.ROLLBACK
    }
