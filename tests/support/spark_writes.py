"""Writes from Spark that tests kill in the middle, and what must hold of the table afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stores import DEADLINE, SeamStore, in_thread, phase

import percola
from percola import JSON, Repository, StoreError, Table
from percola.cells import Kind, Op, decode_write
from percola.maintenance.check import check
from percola.store.base import RowMutation
from percola.store.walks import scan_writes, walk_kind
from percola.transactions.jobs import JOBS

docs = Table("docs")
title = docs.column("title", str, observed=True)
size = docs.column("size", int)
score = docs.column("score", float)
good = docs.column("good", bool)
body = docs.column("body")
meta = docs.column("meta", JSON)
links = docs.family("links", str)
refreshed = docs.weak_column("refresh")
SCHEMA = [docs]

ROWS = 4000
_LONGEST = 300.0


def open_table(folder: Path) -> Repository:
    return percola.open(folder, schema=SCHEMA, durability="relaxed")


def frame_of(spark: Any, rows: int = ROWS) -> Any:
    """Rows in two partitions."""
    return spark.range(0, rows, numPartitions=2).selectExpr(
        "concat('row/', lpad(id, 6, '0')) as row",
        "concat('title of ', repeat('x', 300), id) as title",
        "id as size",
    )


@contextlib.contextmanager
def half_way(repo: Repository, rows: int = ROWS) -> Iterator[None]:
    """For the length of a block, a live transaction holds a row in the middle of each partition.

    So a write gets half through and waits, wherever it runs. The transaction then gives up.
    """
    context = repo.context
    assert context.one_step is not None
    seam = SeamStore(context.one_step)
    arrived, released = threading.Event(), threading.Event()
    other = Repository(
        repo.address,
        seam,
        context.oracle,
        context.coordination,
        SCHEMA,
        one_step=False,
        lock_ttl_seconds=600,
    )

    def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == "commit":
            arrived.set()
            assert released.wait(_LONGEST), "nobody released the rows"
            raise StoreError("The test gives up.")
        return apply()

    seam.hook = hook
    t = other.transaction(two_phase=True)
    for part in (0, 1):
        t.set(size, f"row/{rows // 4 + part * rows // 2:06}", -1)
    holding = in_thread(t.commit)
    assert arrived.wait(DEADLINE)
    try:
        yield
    finally:
        released.set()
        assert isinstance(holding.exception(DEADLINE), StoreError)


def in_session(spark: Any) -> None:
    """Make the session this thread's: Spark looks for data sources in the active one alone."""
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def save(frame: Any, folder: Path, atomicity: str, **options: str) -> None:
    """Write the frame into the table, from any thread."""
    in_session(frame.sparkSession)
    frame.write.format("percola").mode("append").options(**options).option("table", "docs").option(
        "atomicity", atomicity
    ).save(str(folder))


def under_way(repo: Repository) -> bool:
    """Whether some of the rows have been written or locked, apart from those of `half_way`."""
    locks, _ = repo.context.store.scan_kind(Kind.LOCK, "docs", limit=5)
    return len(locks) > 2 or bool(visible(repo))


def visible(repo: Repository) -> dict[str, int]:
    """Every row's size, without waiting for locks that are in the way."""
    found: dict[str, int] = {}
    position: bytes | None = b""
    while position is not None:
        cells, position = scan_writes(repo.context.store, "docs", position, limit=5000)
        for cell, records in cells:
            if decode_write(records[0][1]).op is not Op.ROLLBACK:
                found[cell.row.decode()] = 1
    return found


def assert_written_once(repo: Repository, rows: int = ROWS, *, start: int = 0) -> None:
    """Every row is there, was committed once, notifies once, and nothing else is left."""
    with repo.snapshot() as now:
        found = {row.key: row[size] for row in now.scan(docs, columns=[size])}
    assert found == {f"row/{n:06}": n for n in range(start, start + rows)}
    for column in (title, size):
        versions = [
            (cell.row, sum(decode_write(raw).op is not Op.ROLLBACK for _, raw in records))
            for cell, records in _versions(repo)
            if cell.column == column.key
        ]
        assert len(versions) == rows
        assert {count for _, count in versions} == {1}, "a row was committed twice"
    store = repo.context.store
    notified = [cell.row for cell, _, _ in walk_kind(store, Kind.NOTIFY, "docs")]
    assert len(notified) == len(set(notified)) == rows
    assert_nothing_left(repo)


def assert_nothing_left(repo: Repository) -> None:
    """No lock is left, no marker, and the cells are sound."""
    store = repo.context.store
    for table in ("docs", JOBS.name):
        with contextlib.suppress(percola.UnknownTableError):
            assert [str(cell) for cell, _, _ in walk_kind(store, Kind.LOCK, table)] == []
    assert [str(finding) for finding in check(repo)] == []


def _versions(repo: Repository) -> Iterator[Any]:
    position: bytes | None = b""
    while position is not None:
        cells, position = scan_writes(repo.context.store, "docs", position, limit=5000)
        yield from cells
