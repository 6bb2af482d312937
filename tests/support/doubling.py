"""What the tests of batches share: rows with a weight, and an observer that doubles it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from stores import Ground

from percola import Observer, Repository, Table, Transaction, Worker, observer
from percola.cells import MAX_TS, Cell, Kind

targets = Table("targets")
weight = targets.column("weight", int)
total = targets.column("total", int)
large = targets.column("large", str)
runs = targets.column("runs", int)
poke = targets.weak_column("poke")
contents = targets.column("contents", str, observed=True)
TABLES = [targets]

ROWS = [f"row {number}" for number in range(8)]


def notify(repo: Repository, *rows: str, value: int = 1) -> int:
    """Give rows a weight and notify them, in one transaction; its commit_ts."""
    with repo.transaction() as t:
        for row in rows:
            t.set(weight, row, value)
            t.notify(poke, row)
    assert t.commit_ts is not None
    return t.commit_ts


def double(t: Transaction, row: str) -> None:
    """What the observers of these tests do."""
    t.set(total, row, 2 * (t.get(weight, row) or 0))


def make(function: Callable[[Transaction, str], object], batch: int = 8) -> Observer[str]:
    """An observer of the weak column."""
    return observer(poke, name="double", batch=batch)(function)


def drain(repo: Repository, one: Observer[str], **options: Any) -> Worker:
    """A worker of one thread that has answered all there was."""
    worker = Worker(repo, [one], **{"threads": 1, **options})
    worker.run_until_idle()
    return worker


def totals(repo: Repository) -> dict[str, int]:
    """What the observer has written."""
    return {row.key: row[total] for row in repo.snapshot().scan(targets, columns=[total])}


def commits(repo: Repository) -> list[int]:
    """How many rows each transaction of the observer has written, the largest first."""
    snapshot = repo.snapshot()
    found = Counter(snapshot.version(total, row) for row in totals(repo))
    return sorted(found.values(), reverse=True)


def commits_in_order(repo: Repository) -> list[int]:
    """The same, the earliest first."""
    snapshot = repo.snapshot()
    found = Counter(snapshot.version(total, row) for row in totals(repo))
    return [found[version] for version in sorted(found)]


def count(worker: Worker, metric: str) -> float:
    """One of the worker's counters, for the observer."""
    return worker.metrics.counts().get(metric, {}).get("double", 0)


def dirty(ground: Ground, *rows: str) -> Iterator[tuple[bytes, dict[Cell, list[int]]]]:
    """Rows and their notify entries, as a worker hands them to a batch."""
    for row in rows:
        cell = Cell("targets", row.encode(), poke.key)
        entries = ground.store.entries(cell, Kind.NOTIFY, 0, MAX_TS)
        yield cell.row, {cell: [ts for ts, _ in entries]}
