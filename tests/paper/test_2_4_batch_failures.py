"""§2.4: batches that fail or conflict, and what they hold meanwhile (N5, N7)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

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
    make,
    notify,
    poke,
    runs,
    targets,
    totals,
)
from stores import DEADLINE, Ground, ScriptedClock, ShiftedClock, at_work

from percola import Repository, Transaction, Worker, observer
from percola.cells import Cell, Kind
from percola.inspection import failures
from percola.observers import observer as observers


@pytest.fixture
def still(ground: Ground) -> Repository:
    """Its clock stands still: no batch ends because the machine is busy."""
    return ground.repo(TABLES, clock=ScriptedClock())


# --- Failures and conflicts -------------------------------------------------------------


def test_n5_one_row_that_fails_takes_no_other_row_of_its_batch_along(
    ground: Ground, repo: Repository
) -> None:
    calls: Counter[str] = Counter()

    def careful(t: Transaction, row: str) -> None:
        calls[row] += 1
        double(t, row)
        if row == "row 4":
            raise ValueError(f"cannot double {row}")

    notify(repo, *ROWS, value=3)
    worker = drain(repo, make(careful, batch=32), attempts=3, first_wait=0.01, longest_wait=0.02)
    assert totals(repo) == {row: 6 for row in ROWS if row != "row 4"}
    [failure] = failures(repo)
    assert (failure.cell.row, failure.attempts) == (b"row 4", 3)
    assert failure.error == "ValueError: cannot double row 4"
    assert (count(worker, "observer_failures"), count(worker, "observer_dead_lettered")) == (3, 1)
    joined = count(worker, "observer_batches_split")
    assert joined <= 1
    assert calls["row 4"] == joined + 3, "it joins no other batch"
    assert count(worker, "observer_conflicts") == 0
    assert max(calls[row] for row in ROWS if row != "row 4") <= 2
    assert ground.left_over(targets, Kind.NOTIFY) == []


def test_n5_rows_with_which_another_scanners_batch_has_failed_meanwhile_join_none(
    still: Repository,
) -> None:
    called: list[str] = []

    def double_while_another_batch_fails(t: Transaction, row: str) -> None:
        double(t, row)
        if not called:
            for other in {*ROWS} - {row}:
                worker._runs._keep_alone(Cell("targets", other.encode(), poke.key))
        called.append(row)

    notify(still, *ROWS)
    worker = Worker(still, [make(double_while_another_batch_fails, batch=32)], threads=1)
    worker.run_until_idle()
    assert commits(still) == [1] * len(ROWS)
    assert sorted(called) == ROWS


def test_n5_a_row_that_fails_first_is_called_as_often_as_without_batches(
    ground: Ground, repo: Repository
) -> None:
    """No other row is in its batch yet, so it is a run like any other."""
    calls: Counter[str] = Counter()

    def broken(t: Transaction, row: str) -> None:
        calls[row] += 1
        raise ValueError("the service is down")

    notify(repo, *ROWS)
    worker = drain(repo, make(broken), attempts=3, first_wait=0.01, longest_wait=0.02)
    assert calls == dict.fromkeys(ROWS, 3)
    assert count(worker, "observer_failures") == 3 * 8
    assert count(worker, "observer_batches_split") == 0
    assert {failure.cell.row.decode() for failure in failures(repo)} == set(ROWS)
    assert {failure.attempts for failure in failures(repo)} == {3}
    assert ground.left_over(targets, Kind.NOTIFY) == []


@only_near("it is the runner's matter, and takes many transactions")
def test_after_a_failed_batch_rows_run_one_by_one_and_then_batches_grow_slowly(
    still: Repository,
) -> None:
    calls = 0

    def careful(t: Transaction, row: str) -> None:
        nonlocal calls
        calls += 1
        double(t, row)
        if calls == 14:  # The sixth row of the second batch.
            raise ValueError("once")

    notify(still, *(f"row {number:02}" for number in range(60)))
    worker = drain(still, observer(poke, name="double")(careful), attempts=1)
    assert list(failures(still)) == []
    assert count(worker, "observer_batches_split") == 1
    assert commits_in_order(still) == [8, *[1] * 6, 2, 4, 5, 6, 7, 8, 9, 5]


def test_n5_a_success_in_a_batch_removes_the_failure_that_it_has_made_up_for(
    ground: Ground, still: Repository
) -> None:
    bad = {"row 2", "row 5"}

    def careful(t: Transaction, row: str) -> None:
        if row in bad:
            raise ValueError("not yet")
        double(t, row)

    one = make(careful, batch=32)
    notify(still, *ROWS)
    drain(still, one, attempts=1)
    assert sorted(failure.cell.row for failure in failures(still)) == [b"row 2", b"row 5"]
    bad.clear()
    notify(still, "row 2", "row 3")
    drain(still, one)
    assert [failure.cell.row for failure in failures(still)] == [b"row 5"]


def test_n5_a_batch_does_not_remove_the_failure_of_a_change_that_it_has_not_seen(
    ground: Ground, still: Repository
) -> None:
    notify(still, *ROWS)
    failing = make(lambda t, row: 1 // 0, batch=1)

    def meanwhile(t: Transaction, row: str) -> None:
        if row == "row 1":
            notify(still, "row 0")
            ground.coordination.unlock("targets", b"row 0")
            drain(still, failing, attempts=1)
        double(t, row)

    make(meanwhile).run_batch(still.context, dirty(ground, "row 0", "row 1"), most=8)
    assert b"row 0" in [failure.cell.row for failure in failures(still)]


def test_a_batch_that_conflicts_is_run_row_by_row(ground: Ground, repo: Repository) -> None:
    """A hot row does not make the others run again and again."""
    calls: Counter[str] = Counter()

    def contended(t: Transaction, row: str) -> None:
        calls[row] += 1
        double(t, row)
        if row == "row 3" and calls[row] <= 4:
            t.get(runs, row)
            t.set(runs, row, 1)
            repo.run(lambda other: other.set(runs, row, 0))

    notify(repo, *ROWS)
    worker = drain(repo, make(contended, batch=32), attempts=1)
    assert totals(repo) == dict.fromkeys(ROWS, 2)
    assert count(worker, "observer_failures") == 0
    assert count(worker, "observer_conflicts") == 4
    assert calls["row 3"] == 5
    assert max(calls[row] for row in ROWS if row != "row 3") <= 2
    assert ground.left_over(targets, Kind.NOTIFY) == []


@only_near("it takes hundreds of transactions, whose conflicts are those of any store")
def test_an_observer_whose_batches_conflict_has_smaller_ones_for_a_while(still: Repository) -> None:
    rows = [f"row {number:02}" for number in range(40)]
    hot: list[str] = []

    def contended(t: Transaction, row: str) -> None:
        double(t, row)
        if not hot:
            hot.append(row)
            t.set(runs, row, 1)
            still.run(lambda other: other.set(runs, row, 0))

    worker = Worker(still, [make(contended, batch=16)], threads=1)
    notify(still, *rows)
    worker.run_until_idle()
    assert len(totals(still)) == 40
    assert 1 < commits(still)[0] < 16
    for _ in range(16):
        notify(still, *rows)
        worker.run_until_idle()
    assert commits(still)[0] == 16
    assert len(commits(still)) <= 5, "those that ran alone meanwhile join again"


# --- N7: advisory locks -------------------------------------------------------------------


def test_n7_a_batch_takes_the_lock_of_each_row_and_leaves_out_those_of_others(
    ground: Ground, repo: Repository, wait_until: Callable[..., object]
) -> None:
    coordination = ground.coordination
    free: list[str] = []

    def noting(t: Transaction, row: str) -> None:
        double(t, row)
        if coordination.try_lock("targets", row.encode()):
            free.append(row)

    assert coordination.try_lock("targets", b"row 3")
    notify(repo, *ROWS)
    worker = Worker(repo, [make(noting, batch=5)], threads=3)
    with at_work(worker):
        wait_until(lambda: len(totals(repo)) == 7)
        assert "row 3" not in totals(repo)
        coordination.unlock("targets", b"row 3")
        wait_until(lambda: len(totals(repo)) == 8)
    assert free == [], "each was locked while it ran"
    for row in ROWS:
        assert coordination.try_lock("targets", row.encode()), f"{row} is locked still"


@pytest.mark.parametrize("where", ["row 0", "row 4", "row 7"])
@pytest.mark.parametrize("ends", ["in time", "with its rows"])
def test_n5_a_row_that_never_ends_is_dead_lettered_alone_and_its_batch_runs_without_it(
    ground: Ground,
    wait_until: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    ends: str,
) -> None:
    clock = ShiftedClock(monkeypatch)
    repo = ground.repo(TABLES, clock=clock)
    if ends == "with its rows":
        monkeypatch.setattr(observers, "_BATCH_SECONDS", DEADLINE)
    go = threading.Event()
    stuck: list[threading.Thread] = []
    later: list[str] = []

    def endless(t: Transaction, row: str) -> None:
        double(t, row)
        if threading.current_thread() in stuck:
            later.append(row)
        if row == where and not go.is_set():
            stuck.append(threading.current_thread())
            assert go.wait(DEADLINE)

    notify(repo, *ROWS)
    worker = Worker(repo, [make(endless, batch=32)], threads=1, timeout=DEADLINE, rescan=0.05)
    worker.start()
    try:
        wait_until(lambda: stuck)
        clock.overrun()
        # On a slow store another thread is through with the others before it is noted.
        wait_until(lambda: len(totals(repo)) == 7 and list(failures(repo)))
        [failure] = failures(repo)
        assert failure.cell.row == where.encode()
        assert failure.error.startswith("ObserverTimeoutError")
        go.set()
        for thread in stuck:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        assert where not in totals(repo), "nothing of it may be committed"
        assert later == [], "a thread that was given up runs nothing more"
        # A commit is seen before it has removed what it answers in other rows than its first.
        wait_until(lambda: ground.left_over(targets, Kind.NOTIFY) == [])
        notify(repo, where)
        wait_until(lambda: totals(repo).get(where) == 2)
    finally:
        go.set()
        worker.stop()
    assert list(failures(repo)) == []
    for row in ROWS:
        assert ground.coordination.try_lock("targets", row.encode()), f"{row} is locked still"
