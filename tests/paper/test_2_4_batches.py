"""§2.4: several dirty rows of a column in one transaction, up to `@observer(…, batch=N)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from borrowed import only_near
from doubling import (
    ROWS,
    TABLES,
    commits,
    commits_in_order,
    count,
    dirty,
    double,
    drain,
    large,
    make,
    notify,
    poke,
    targets,
    total,
    totals,
    weight,
)
from stores import (
    Crashed,
    CrashingStore,
    Ground,
    PassingStore,
    ScriptedClock,
    SeamStore,
    at_work,
    heard,
    phase,
    telling,
)

from percola import ObserverError, Repository, Transaction, Worker, observer
from percola.cells import Cell, Kind
from percola.store.base import SYSTEM_TABLE, RowMutation


@pytest.fixture
def still(ground: Ground) -> Repository:
    """Its clock stands still: no batch ends because the machine is busy."""
    return ground.repo(TABLES, clock=ScriptedClock())


# --- What a batch is --------------------------------------------------------------------


def test_a_batch_answers_dirty_rows_in_one_transaction_as_if_each_had_run_alone(
    ground: Ground, still: Repository
) -> None:
    notify(still, *ROWS, value=21)
    worker = drain(still, make(double, batch=32))
    assert totals(still) == dict.fromkeys(ROWS, 42)
    assert len(commits(still)) <= 2, "a scan begins at a random row and goes round"
    assert count(worker, "observer_runs") == 8
    assert 1 <= count(worker, "observer_batches") <= 2
    assert ground.left_over(targets, Kind.NOTIFY) == []
    assert count(worker, "observer_conflicts") == count(worker, "observer_batches_split") == 0


def test_a_batch_has_no_more_rows_than_the_observer_says(still: Repository) -> None:
    rows = [f"row {number:02}" for number in range(20)]
    notify(still, *rows)
    drain(still, make(double, batch=3))
    assert len(totals(still)) == 20
    assert commits(still)[0] == 3


@only_near("how many rows come at once is the scanner's matter, and 300 take long")
def test_a_batch_may_be_larger_than_what_a_scan_reads_at_once(still: Repository) -> None:
    rows = [f"row {number:03}" for number in range(300)]
    notify(still, *rows)
    drain(still, make(double, batch=250))
    assert len(totals(still)) == 300
    assert commits(still)[0] > 64


def test_with_a_batch_of_one_each_row_has_a_transaction_of_its_own(repo: Repository) -> None:
    notify(repo, *ROWS)
    drain(repo, observer(poke, batch=1)(double))
    assert commits(repo) == [1] * 8


@only_near("each row of a chunk costs calls, and a network store's chunks are no other")
def test_an_observer_without_options_has_batches_that_grow_while_rows_wait(
    still: Repository,
) -> None:
    one = observer(poke, name="double")(double)
    worker = Worker(still, [one], threads=1)
    rows = [f"row {number:02}" for number in range(60)]
    notify(still, *rows)
    worker.run_until_idle()
    assert commits_in_order(still) == [8, 16, 32, 4]
    notify(still, *rows)
    worker.run_until_idle()
    assert commits_in_order(still) == [60]
    assert count(worker, "observer_batches") == 5


def test_rows_that_come_one_by_one_run_one_by_one(still: Repository) -> None:
    """Nothing waits for company."""
    worker = Worker(still, [observer(poke, name="double")(double)], threads=1)
    for row in ROWS:
        notify(still, row)
        worker.run_until_idle()
    assert commits(still) == [1] * 8
    assert count(worker, "observer_batches") == 0


def test_the_rows_of_a_batch_see_one_snapshot_and_what_the_rows_before_have_written(
    still: Repository,
) -> None:
    seen: list[tuple[int, int]] = []

    def tally(t: Transaction, row: str) -> None:
        before = t.get(total, "all") or 0
        seen.append((t.start_ts, before))
        t.set(total, "all", before + (t.get(weight, row) or 0))

    notify(still, *ROWS)
    one = make(tally)
    answered, runs = one.run_batch(
        still.context,
        [
            (row.encode(), {Cell("targets", row.encode(), poke.key): [still.snapshot().start_ts]})
            for row in ROWS
        ],
        most=8,
    )
    assert answered == [row.encode() for row in ROWS]
    assert runs == 8
    assert seen == [(seen[0][0], number) for number in range(8)]
    assert totals(still) == {"all": 8}


@pytest.mark.parametrize("batch", [0, -1, 2.5, "many", None])
def test_a_batch_that_is_no_number_of_rows_is_refused(batch: Any) -> None:
    with pytest.raises(ObserverError, match=r"'double' cannot have a batch of .*from 1"):
        make(double, batch=batch)


# --- It takes what is dirty now ---------------------------------------------------------


def counting(ground: Ground) -> tuple[PassingStore, Counter[str]]:
    """A store, and the calls that a worker makes for a row: not those to learn what is paused."""
    calls: Counter[str] = Counter()
    hears: dict[str, Callable[..., object]] = {
        "entries": lambda _, cell, *where: calls.update(entries=cell.table != SYSTEM_TABLE)
    }
    if hasattr(ground.store, "commit_one_step"):
        hears["commit_one_step"] = lambda *_: calls.update(["commit"])
    return heard(ground.store, **hears), calls


def test_a_single_dirty_row_costs_what_it_costs_without_batches(ground: Ground) -> None:
    """And so it waits for nothing, and for no other row."""
    costs = []
    for batch in (1, 32):
        store, calls = counting(ground)
        notify(ground.repo(TABLES), "only")
        repo = ground.repo(TABLES, store=store)
        calls.clear()
        worker = drain(repo, make(double, batch=batch))
        assert count(worker, "observer_runs") == 1
        assert count(worker, "observer_batches") == 0
        costs.append(calls)
    assert costs[0] == costs[1]


def test_each_row_of_a_batch_is_looked_at_once(ground: Ground) -> None:
    store, calls = counting(ground)
    repo = ground.repo(TABLES, store=store, clock=ScriptedClock())
    notify(repo, *ROWS)
    calls.clear()
    drain(repo, make(double))
    # One that runs alone looks for its failures as well; a batch has one look for all of them.
    assert calls["entries"] == 8 + commits(repo).count(1)


def test_a_batch_ends_when_it_has_gone_on_for_some_time(ground: Ground) -> None:
    clock = ScriptedClock()
    repo = ground.repo(TABLES, clock=clock)

    def slow(t: Transaction, row: str) -> None:
        clock.now += 0.02
        double(t, row)

    notify(repo, *ROWS)
    asked: list[bytes] = []

    def asking() -> Iterator[tuple[bytes, dict[Cell, list[int]]]]:
        for row, notified in dirty(ground, *ROWS):
            asked.append(row)
            yield row, notified

    answered, _ = make(slow).run_batch(repo.context, asking(), most=8)
    assert answered == [b"row 0", b"row 1", b"row 2"]
    assert len(asked) == 3, "nor is another row locked"


@only_near("a transaction's size is known before anything is sent")
@pytest.mark.parametrize("what", ["cells", "bytes", "notifications"])
def test_a_batch_ends_when_its_transaction_is_large(
    ground: Ground, still: Repository, what: str
) -> None:
    def much(t: Transaction, row: str) -> None:
        for number in range(400 if what != "bytes" else 0):
            if what == "cells":
                t.set(total, f"{row}/{number}", number)
            else:
                t.notify(poke, f"{row}/{number}")
        if what == "bytes":
            t.set(large, row, "x" * 400_000)

    notify(still, *ROWS)
    answered, _ = make(much).run_batch(still.context, dirty(ground, *ROWS), most=8)
    assert len(answered) == 3


# --- N2, N4: nothing is lost --------------------------------------------------------------


def test_n2_a_notification_that_comes_while_a_batch_runs_is_answered_by_another_run(
    ground: Ground, still: Repository
) -> None:
    """Whether its row has been run already or has yet to join: the batch saw nothing of it."""

    def meanwhile(t: Transaction, row: str) -> None:
        double(t, row)
        if row == "row 4":
            notify(still, *ROWS, value=5)

    notify(still, *ROWS, value=1)
    answered, _ = make(meanwhile).run_batch(still.context, dirty(ground, *ROWS), most=8)
    assert len(answered) == 8
    assert totals(still) == dict.fromkeys(ROWS, 2)
    changed = still.snapshot().version(weight, "row 0")
    assert [ts for _, ts in ground.left_over(targets, Kind.NOTIFY)] == [changed] * 8
    drain(still, make(double))
    assert totals(still) == dict.fromkeys(ROWS, 10)
    assert ground.left_over(targets, Kind.NOTIFY) == []


def test_n2_a_row_that_was_notified_since_the_batch_began_does_not_join_it(
    ground: Ground, still: Repository
) -> None:
    calls: list[str] = []

    def meanwhile(t: Transaction, row: str) -> None:
        calls.append(row)
        if row == "row 0":
            notify(still, "row 1")

    notify(still, "row 0", "row 2")
    answered, _ = make(meanwhile).run_batch(
        still.context, dirty(ground, "row 0", "row 1", "row 2"), most=8
    )
    assert answered == [b"row 0", b"row 2"]
    assert calls == ["row 0", "row 2"]
    assert [cell for cell, _ in ground.left_over(targets, Kind.NOTIFY)] == ["targets['row 1'].poke"]


@pytest.mark.parametrize("at", range(1, 14))
def test_a_crash_anywhere_in_the_commit_of_a_batch_loses_nothing(ground: Ground, at: int) -> None:
    """Prewrites of four rows and their commits, with which their notify entries go, or after it."""
    steps = 12 if ground.store.has_notify_table else 8
    rows = ROWS[:4]
    notify(ground.repo(TABLES), *rows)
    store = CrashingStore(ground.store, at=at)
    dying = ground.repo(TABLES, store=store, process="dying", clock=ScriptedClock(), one_step=False)
    answered = list(dirty(ground, *rows))
    store.armed = True
    if at <= steps:
        with pytest.raises(Crashed):
            make(double).run_batch(dying.context, answered, most=8)
    else:
        make(double).run_batch(dying.context, answered, most=8)
        assert ground.left_over(targets, Kind.NOTIFY) == [], "these were all steps"
    ground.alive.clear()
    other = ground.repo(TABLES, process="other")
    drain(other, make(double))
    assert totals(other) == dict.fromkeys(rows, 2)
    assert ground.left_over(targets, Kind.NOTIFY) == []
    assert ground.left_over(targets, Kind.LOCK) == []


def test_n2_what_somebody_rolled_forward_meanwhile_is_answered_all_the_same(ground: Ground) -> None:
    """A reader meets the lock of a secondary past the commit point; the owner comes too late."""
    rows = ROWS[:3]
    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store, one_step=False, clock=ScriptedClock())
    reader = ground.repo(TABLES)
    notify(repo, *rows)
    read: list[object] = []

    def look(mutation: RowMutation) -> None:
        if phase(mutation) == "commit" and mutation.row == b"row 1":
            read.append(reader.snapshot().get(total, "row 1"))

    store.hook = telling(look)
    answered, _ = make(double).run_batch(repo.context, dirty(ground, *rows), most=8)
    assert len(answered) == 3
    assert set(read) == {2}, "it was the reader who came first"
    assert ground.left_over(targets, Kind.NOTIFY) == []
    assert ground.left_over(targets, Kind.LOCK) == []


def test_n4_many_workers_with_batches_lose_no_notification(
    ground: Ground, repo: Repository
) -> None:
    """Every row has the last weight in the end, however rows and runs fell together."""
    rows = [f"row {number:02}" for number in range(30)]
    one = make(double, batch=7)
    workers = [Worker(repo, [one], threads=3, rescan=0.05) for _ in range(2)]
    with at_work(*workers):
        for value in range(1, 11):
            notify(repo, *rows, value=value)
    drain(repo, one)
    assert totals(repo) == dict.fromkeys(rows, 20)
    assert ground.left_over(targets, Kind.NOTIFY) == []
    assert sum(count(worker, "observer_failures") for worker in workers) == 0
