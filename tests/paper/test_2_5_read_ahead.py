"""§2.5: an observer says what it will read of other rows, and reads it for a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from borrowed import only_near
from stores import Ground, ScriptedClock, heard, notify, put_all

from percola import (
    Observer,
    ObserverError,
    Repository,
    Snapshot,
    Table,
    Transaction,
    Worker,
    inspection,
    observer,
)
from percola.cells import Cell

docs = Table("docs")
key = docs.column("key", str)
copies = docs.column("copies", int)
due = docs.weak_column("due")
changed = docs.column("changed", str, observed=True)
keys = Table("keys")
owners = keys.column("owners", int)
TABLES = [docs, keys]


def filled(ground: Ground, **options: Any) -> tuple[list[int], Repository]:
    """A repository of forty documents with ten keys, each of which counts its documents.

    And how many keys each call reads, of those that read some.
    """
    put_all(ground.repo(TABLES), key, {f"d{number:02}": f"k{number % 10}" for number in range(40)})
    calls: list[int] = []

    def note(_: object, cells: Sequence[Cell], ts: int) -> None:
        if of_keys := [cell for cell in cells if cell.table == "keys"]:
            calls.append(len(of_keys))

    store = heard(ground.store, read=note)
    return calls, ground.repo(TABLES, store=store, **{"prefetches": True, **options})


def read_ahead(t: Snapshot, rows: Sequence[str]) -> None:
    t.get_many([(owners, name) for name in t.get_many((key, row) for row in rows) if name])


def enter(t: Transaction, row: str) -> None:
    name = t.get(key, row) or ""
    t.set(owners, name, (t.get(owners, name) or 0) + 1)
    t.set(copies, row, t.get(owners, name) or 0)


def notified(repo: Repository, numbers: Sequence[int]) -> list[str]:
    names = [f"d{number:02}" for number in numbers]
    notify(repo, due, *names)
    return names


def work(repo: Repository, one: Observer[str]) -> dict[str, Any]:
    worker = Worker(repo, [one], threads=1, attempts=1, retention=None)
    worker.run_until_idle()
    return worker.metrics.counts()


def test_what_is_read_ahead_for_a_batch_is_not_read_again_row_by_row(ground: Ground) -> None:
    told: list[list[str]] = []

    def ahead(t: Snapshot, rows: Sequence[str]) -> None:
        told.append(list(rows))
        read_ahead(t, rows)

    calls, repo = filled(ground, clock=ScriptedClock())
    names = notified(repo, range(40))
    work(repo, observer(due, batch=64, ahead=ahead)(enter))
    assert sorted(name for rows in told for name in rows) == names, "each of them once"
    assert len(calls) <= len(told) <= 6
    now = repo.snapshot()
    assert [now.get(owners, f"k{number}") for number in range(10)] == [4] * 10
    assert sorted(now.get(copies, name) or 0 for name in names) == sorted([1, 2, 3, 4] * 10)


@pytest.mark.parametrize("column", [due, changed])
def test_a_row_that_runs_alone_is_read_ahead_too(ground: Ground, column: Any) -> None:
    told: list[list[str]] = []
    calls, repo = filled(ground)
    with repo.transaction() as t:
        if column is due:
            t.notify(due, "d01")
        else:
            t.set(changed, "d01", "now")

    def ahead(t: Snapshot, rows: Sequence[str]) -> None:
        told.append(list(rows))
        read_ahead(t, rows)

    work(repo, observer(column, ahead=ahead)(enter))
    assert (told, calls) == ([["d01"]], [1])
    assert repo.snapshot().get(owners, "k1") == 1


def test_rows_whose_reading_ahead_fails_run_alone_and_only_they_are_dead_lettered(
    ground: Ground,
) -> None:
    _, repo = filled(ground)

    def ahead(t: Snapshot, rows: Sequence[str]) -> None:
        if "d07" in rows:
            raise RuntimeError("the seventh")
        read_ahead(t, rows)

    notified(repo, range(20))
    work(repo, observer(due, batch=32, ahead=ahead)(enter))
    assert [one.cell.row for one in inspection.failures(repo)] == [b"d07"]
    now = repo.snapshot()
    assert sum(now.get(owners, f"k{number}") or 0 for number in range(10)) == 19


@only_near("it is about stores that are not behind a network")
def test_where_a_read_costs_little_nothing_is_read_ahead(ground: Ground) -> None:
    put_all(ground.repo(TABLES), key, {"d01": "k1", "d02": "k2"})
    told: list[Sequence[str]] = []
    for batch in (1, 4):
        with ground.repo(TABLES).transaction() as t:
            t.notify(due, "d01")
            t.notify(due, "d02")
        one = observer(due, batch=batch, ahead=lambda t, rows: told.append(rows))(enter)
        assert sum(work(ground.repo(TABLES), one)["observer_runs"].values()) == 2
    assert told == []


def test_what_cannot_be_called_cannot_read_ahead() -> None:
    with pytest.raises(ObserverError, match="read ahead with 'keys'"):
        observer(due, ahead="keys")(enter)  # type: ignore[arg-type]
