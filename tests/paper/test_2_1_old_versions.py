"""Rule P12 over time: observers, retention and space. What goes at all stands in
`test_2_1_garbage_collection.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from stores import Ground, ScriptedClock, at_work, delete, put, put_all

from percola import Collected, Repository, SnapshotTooOldError, Table, Transaction, Worker, observer
from percola.cells import MAX_TS, Cell, Kind
from percola.inspection import failures, retry_failures
from percola.observers.observer import Observer
from percola.store.walks import scan_writes

bank = Table("bank")
bal = bank.column("bal", int)
note = bank.column("note", str)
docs = Table("docs")
text = docs.column("text", str, observed=True)
length = docs.column("length", int)
TABLES = [bank, docs]
LONG = "long enough not to stand in its write record: " + "x" * 300


@observer(text)
def measure(t: Transaction, row: str) -> None:
    body = t.get(text, row)
    if body is None:
        t.delete(length, row)
    else:
        t.set(length, row, len(body))


def write(repo: Repository, **values: int) -> int:
    return put_all(repo, bal, values)


def collect(repo: Repository, retention: float = 0) -> Collected:
    return repo.collect_garbage(retention=retention)


def records(ground: Ground) -> list[tuple[Cell, int]]:
    """Every write record and every value of the tables."""
    found = []
    for table in TABLES:
        for cell, versions in scan_writes(ground.store, table.name, limit=10_000)[0]:
            found += [(cell, ts) for ts, _ in versions]
            found += [(cell, ts) for ts, _ in ground.store.entries(cell, Kind.DATA, 0, MAX_TS)]
    return found


# --- Observers --------------------------------------------------------------------------


def observed_delete(repo: Repository, *observers: Observer[Any]) -> None:
    """A row that was observed and then deleted, which nobody has looked at yet."""
    put(repo, text, "a", LONG)
    Worker(repo, observers, retention=None).run_until_idle()
    delete(repo, text, "a")


def test_n1_a_delete_stays_until_its_observer_has_seen_it_and_then_vanishes_whole(
    ground: Ground, repo: Repository
) -> None:
    observed_delete(repo, measure)
    assert collect(repo).deleted == 0
    assert repo.snapshot().get(length, "a") == len(LONG)
    Worker(repo, [measure], retention=None).run_until_idle()
    assert repo.snapshot().get(length, "a") is None
    collected = collect(repo)
    assert collected.deleted == 2
    assert collected.acknowledgments == 1
    assert records(ground) == []


def test_n5_a_delete_stays_for_an_observer_that_was_dead_lettered(
    ground: Ground, repo: Repository
) -> None:
    broken = True

    @observer(text, name="measure")
    def sometimes(t: Transaction, row: str) -> None:
        if broken and t.get(text, row) is None:
            raise ValueError("not today")
        measure(t, row)

    observed_delete(repo, sometimes)
    Worker(repo, [sometimes], attempts=1, retention=None).run_until_idle()
    assert list(failures(repo))
    collect(repo)
    broken = False
    assert retry_failures(repo) == 1
    Worker(repo, [sometimes], retention=None).run_until_idle()
    assert repo.snapshot().get(length, "a") is None
    collect(repo)
    assert records(ground) == []


def test_a_row_that_comes_back_is_observed_again(ground: Ground, repo: Repository) -> None:
    observed_delete(repo, measure)
    Worker(repo, [measure], retention=None).run_until_idle()
    collect(repo)
    assert records(ground) == []
    put(repo, text, "a", "back")
    Worker(repo, [measure], retention=None).run_until_idle()
    assert repo.snapshot().get(length, "a") == 4


def test_a_worker_collects_by_itself_and_counts_it(
    ground: Ground, repo: Repository, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    for i in range(5):
        put(repo, text, "a", f"{i}{LONG}")
    worker = Worker(repo, [measure], retention=0, collect=0.01)
    with at_work(worker):
        wait_until(lambda: len(ground.entries(text, "a", Kind.WRITE)) == 1)
        wait_until(lambda: worker.metrics.counts().get("gc_removed", {}).get("versions") == 4)
    assert repo.snapshot().get(text, "a") == f"4{LONG}"


# --- Retention --------------------------------------------------------------------------


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


def test_a_version_stays_readable_for_the_retention_after_it_was_superseded(
    ground: Ground, clock: ScriptedClock
) -> None:
    repo = ground.repo(TABLES, clock=clock)
    keep = functools.partial(collect, repo, 3600.0)
    first = write(repo, a=1)
    assert keep().safe_point == 0
    clock.now += 1800
    second = write(repo, a=2)
    assert keep().safe_point == 0
    clock.now += 1799
    assert keep().safe_point == 0
    clock.now += 2
    # Half an hour ago the second version was written; an hour ago only the first was there.
    safe_point = keep().safe_point
    assert first <= safe_point < second
    assert repo.snapshot(safe_point).get(bal, "a") == 1
    clock.now += 1800
    write(repo, b=1)
    assert second <= keep().safe_point
    with pytest.raises(SnapshotTooOldError):
        repo.snapshot(first)
    assert repo.snapshot().get(bal, "a") == 2


def test_a_clock_that_is_set_back_makes_it_later_never_wrong(
    ground: Ground, clock: ScriptedClock
) -> None:
    repo = ground.repo(TABLES, clock=clock)
    keep = functools.partial(collect, repo, 60.0)
    write(repo, a=1)
    keep()
    clock.now -= 600
    write(repo, a=2)
    assert keep().safe_point == 0
    clock.now += 59
    assert keep().safe_point == 0
    clock.now += 700
    write(repo, a=3)
    keep()
    clock.now += 61
    assert keep().safe_point > 0
    assert repo.snapshot().get(bal, "a") == 3


# --- Space ------------------------------------------------------------------------------


def test_space_stays_bounded_when_the_same_rows_are_rewritten_a_hundred_times(
    ground: Ground, repo: Repository
) -> None:
    sizes = []
    entries = []
    for i in range(100):
        with repo.transaction() as t:
            for row in range(50):
                t.set(note, f"{row}", f"{i}{LONG}")
                t.set(bal, f"{row}", i)
        collect(repo)
        statistics = ground.store.statistics()
        sizes.append(statistics.get("bytes", 0))
        entries.append(len(records(ground)))
    assert max(entries) == min(entries) == 150
    assert max(sizes) <= 2 * sizes[9], "the store's file should have stopped growing"


def test_n1_a_lock_on_a_deleted_cell_does_not_hide_the_delete_from_its_observer(
    repo: Repository,
) -> None:
    """What was committed since then changed nothing, so it does not stand for the delete."""
    observed_delete(repo, measure)
    with repo.snapshot():
        with repo.transaction() as t:
            t.get_for_update(text, "a")
            t.set(bal, "b", 1)
        collect(repo)
    Worker(repo, [measure], retention=None).run_until_idle()
    assert repo.snapshot().get(length, "a") is None
