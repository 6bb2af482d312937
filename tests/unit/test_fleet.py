"""What needs no Spark of a fleet: its board, its task as a plain function, what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import pytest
from pyspark.errors import PySparkException
from stores import at_work

import percola
from percola import (
    ConflictingOptionsError,
    PercolaError,
    Repository,
    StoreError,
    UsageError,
    Worker,
    WorkerOptions,
)
from percola.cells import Kind
from percola.maintenance.check import check
from percola.spark import Fleet, WorkerStatus, run_workers
from percola.spark.fleet.board import Board, Order, Report, clear_abandoned
from percola.spark.fleet.status import Place
from percola.spark.fleet.task import Ending, Task, attempts_of, epoch_of, run_task, work
from percola.store.base import SYSTEM_TABLE, Put, RowMutation
from percola.store.walks import walk_kind

Wait = Callable[..., Any]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with fleets.open_shop(tmp_path / "shop") as opened:
        yield opened


@pytest.fixture
def board(repo: Repository) -> Board:
    return Board(repo.context.store, "f1")


def entries(repo: Repository) -> list[tuple[bytes, int]]:
    """What stands in the rows of fleets: column and timestamp."""
    found = walk_kind(repo.context.store, Kind.DATA, SYSTEM_TABLE, b"fleet/", b"fleet0")
    return [(cell.column, ts) for cell, ts, _ in found]


# --- The board ----------------------------------------------------------------------------


def test_what_one_side_says_the_other_hears(repo: Repository, board: Board) -> None:
    assert board.order() is None and board.reports() == {}
    order = Order(7, stop=True, wall_ms=99)
    board.give(order)
    told = Report(3, "host", 42, 10, 12, 1.5, 1, 2, 3, [("orders", "amount")])
    assert board.report(1, epoch_of(1), told)
    assert board.order() == order
    assert board.reports() == {1: (epoch_of(1), told)}
    assert Board(repo.context.store, "f10").order() is None, "another fleet has another row"
    assert Board(repo.context.store, "f").reports() == {}


def test_fields_that_a_newer_version_adds_are_passed_over(repo: Repository, board: Board) -> None:
    board.give(Order(1, stop=False, wall_ms=1))
    board.report(0, 7, Report(1, "here", 4711, columns=[("docs", "text")]))
    store = repo.context.store
    walked = list(walk_kind(store, Kind.DATA, SYSTEM_TABLE, b"fleet/", b"fleet0"))
    for cell, ts, text in walked:
        newer = json.dumps(json.loads(text) | {"added": [1]}).encode()
        put = Put(Kind.DATA, cell.column, ts, newer)
        store.mutate([RowMutation(cell.table, cell.row, (), [put])])
    assert board.order() == Order(1, stop=False, wall_ms=1)
    assert board.reports() == {0: (7, Report(1, "here", 4711, columns=[("docs", "text")]))}
    clear_abandoned(store, 2 * 24 * 3_600_000)
    assert board.order() is None


def test_no_versions_pile_up(repo: Repository, board: Board) -> None:
    for beat in range(1, 6):
        board.give(Order(beat, stop=False, wall_ms=0))
        for worker in range(3):
            # One of them is always a further attempt.
            assert board.report(worker, epoch_of(1 + beat * worker), Report(beat, "host", 1))
    assert len(entries(repo)) == 4
    board.clear()
    assert entries(repo) == []
    assert list(check(repo)) == []


def test_an_older_attempt_cannot_report_once_a_newer_one_has(board: Board) -> None:
    board.give(Order(1, stop=False, wall_ms=0))
    assert board.report(0, epoch_of(1), Report(1, "old", 1))
    assert board.report(0, epoch_of(1, 1), Report(1, "again", 2))
    assert board.report(0, epoch_of(2), Report(1, "new", 3))
    for older in (epoch_of(1), epoch_of(1, 1)):
        assert not board.report(0, older, Report(2, "old", 1))
    assert board.report(1, epoch_of(1), Report(1, "other", 4)), "another worker's are its own"
    assert {worker: one.host for worker, (_, one) in board.reports().items()} == {
        0: "new",
        1: "other",
    }


def test_nobody_can_report_to_a_fleet_that_is_over(repo: Repository, board: Board) -> None:
    board.give(Order(1, stop=False, wall_ms=0))
    assert board.report(0, epoch_of(1), Report(1, "host", 1))
    board.clear()
    assert not board.report(0, epoch_of(1), Report(2, "host", 1))
    assert not board.report(0, epoch_of(9), Report(1, "host", 1))
    assert entries(repo) == []


def test_fleets_that_were_left_alone_for_a_day_are_cleared_away(repo: Repository) -> None:
    day = 24 * 3_600_000
    for name, wall_ms in (("old", 1_000), ("young", 2_000)):
        Board(repo.context.store, name).give(Order(1, stop=False, wall_ms=wall_ms))
    clear_abandoned(repo.context.store, day + 1_500)
    assert Board(repo.context.store, "old").order() is None
    assert Board(repo.context.store, "young").order() is not None


def test_epochs_go_up_with_either_kind_of_attempt() -> None:
    pairs = [(1, 0), (1, 1), (1, 999), (2, 0), (3, 5)]
    epochs = [epoch_of(*pair) for pair in pairs]
    assert epochs == sorted(set(epochs))
    assert [attempts_of(epoch) for epoch in epochs] == pairs
    assert epoch_of(1, 5_000) < epoch_of(2)


def test_a_large_fleet_reports_and_looks_less_often_but_well_within_its_timeout() -> None:
    def spans(workers: int, timeout: float = 60.0) -> tuple[float, float]:
        task = Task("./repo", "fleets:OBSERVERS", None, "f1", WorkerOptions(), timeout, workers)
        return task.beat, task.look

    assert spans(1) == spans(16) == (1.0, 0.1)
    for workers in (64, 256, 5_000):
        beat, look = spans(workers)
        assert beat <= 6.0, "a tenth of the timeout"
        assert 0.1 < look <= beat
    assert spans(256) == (4.0, 1.6)
    assert spans(256, timeout=5.0) == (0.5, 0.5)


# --- The task -----------------------------------------------------------------------------


def task_for(repo: Repository, observers: str = "fleets:OBSERVERS", **changed: Any) -> Task:
    options = WorkerOptions(threads=1, retention=None)
    return replace(Task(repo.address, observers, None, "f1", options, 60.0), **changed)


@contextmanager
def working(
    task: Task, worker: int = 0, epoch: int = epoch_of(1)
) -> Iterator[Callable[[], Ending]]:
    """A worker in a thread of this process; the function waits for its end."""
    endings: list[Ending] = []
    thread = threading.Thread(target=lambda: endings.append(work(task, worker, epoch)))

    def ending() -> Ending:
        thread.join(60)
        assert not thread.is_alive(), "the worker should have ended"
        return endings[0]

    thread.start()
    try:
        yield ending
    finally:
        with percola.open(task.address) as repo:
            Board(repo.context.store, task.fleet).clear()
        thread.join(60)


def test_a_worker_works_and_reports_until_it_is_told_to_end(
    repo: Repository, board: Board, wait_until: Wait
) -> None:
    fleets.place(repo, range(60))
    board.give(Order(1, stop=False, wall_ms=0))
    # Short timeout_seconds means quick beats; the driver has to keep up with them.
    task = task_for(repo, timeout_seconds=1.0)
    beats = iter(range(2, 1_000_000))

    def seen() -> Report | None:
        board.give(Order(next(beats), stop=False, wall_ms=0))
        _, report = board.reports().get(0, (0, None))
        return report if report is not None and report.runs == 60 else None

    with working(task) as ending:
        report = wait_until(seen, what="a report of all runs")
        assert report.transactions == 60 and report.failures == 0 and report.per_second > 0
        assert ("orders", "amount") in report.columns
        board.give(Order(next(beats), stop=True, wall_ms=0))
        assert ending() == Ending("told")
    fleets.check_shop(repo, sum(range(60)))


def test_a_worker_ends_when_its_fleet_is_over(repo: Repository, board: Board) -> None:
    assert work(task_for(repo), 0, epoch_of(1)) == Ending("over"), "it never began"
    board.give(Order(1, stop=False, wall_ms=0))
    with working(task_for(repo)) as ending:
        board.clear()
        assert ending() == Ending("over")


def test_a_fleet_that_ends_between_a_look_and_a_report_is_over_and_nothing_else(
    repo: Repository, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.give(Order(1, stop=False, wall_ms=0))
    report = Board.report

    def too_late(self: Board, *what: Any) -> bool:
        board.clear()
        return report(self, *what)

    monkeypatch.setattr(Board, "report", too_late)
    assert work(task_for(repo), 0, epoch_of(1)) == Ending("over")


def test_a_worker_ends_when_another_attempt_has_taken_its_place(
    repo: Repository, board: Board, wait_until: Wait
) -> None:
    board.give(Order(1, stop=False, wall_ms=0))
    with working(task_for(repo)) as ending:
        wait_until(lambda: 0 in board.reports(), what="its first report")
        assert board.report(0, epoch_of(1, 1), Report(1, "another", 1))
        assert ending() == Ending("superseded")
    board.give(Order(1, stop=False, wall_ms=0))
    assert board.report(0, epoch_of(3), Report(1, "another", 1))
    assert work(task_for(repo), 0, epoch_of(2)) == Ending("superseded"), "it came too late"


def test_a_worker_ends_when_its_driver_is_silent_for_too_long(
    repo: Repository, board: Board, wait_until: Wait
) -> None:
    board.give(Order(1, stop=False, wall_ms=0))
    beats = iter(range(2, 1_000_000))

    def beaten_for_long() -> bool:
        board.give(Order(next(beats), stop=False, wall_ms=0))
        _, report = board.reports().get(0, (0, Report(0, "", 0)))
        return report.beat > 25  # More than two times its timeout_seconds.

    with working(task_for(repo, timeout_seconds=1.0)) as ending:
        wait_until(beaten_for_long, what="a worker that goes on while its driver beats")
        assert ending() == Ending("silent")


def test_a_worker_that_cannot_reach_the_store_does_not_hear_its_driver(
    repo: Repository, board: Board, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Board] = []

    def broken(self: Board) -> None:
        asked.append(self)
        raise StoreError("The store is away.")

    board.give(Order(1, stop=False, wall_ms=0))
    with working(task_for(repo, timeout_seconds=1.0)) as ending:
        wait_until(lambda: 0 in board.reports(), what="its first report")
        monkeypatch.setattr(Board, "order", broken)
        assert ending() == Ending("silent")
    assert len(asked) > 2, "one look in vain is not the end"


def test_a_running_observer_finishes_before_its_worker_ends(
    repo: Repository, board: Board, tmp_path: Path, wait_until: Wait
) -> None:
    board.give(Order(1, stop=False, wall_ms=0))
    repo.run(lambda t: t.set(fleets.opened, str(tmp_path), b""))
    with working(task_for(repo, timeout_seconds=2.0)) as ending:
        try:
            wait_until((tmp_path / "begun").exists, what="the observer to begin")
            board.give(Order(2, stop=True, wall_ms=0))
            before = board.reports()[0][1].beat
            wait_until(lambda: board.reports()[0][1].beat > before + 5, what="it to beat meanwhile")
        finally:
            (tmp_path / "go").touch()
        assert ending() == Ending("told")
    assert repo.snapshot().get(fleets.passed, str(tmp_path)) is True


@pytest.mark.parametrize(
    ("observers", "words", "final"),
    [
        ("nowhere:OBSERVERS", "There is no module 'nowhere'", True),
        ("fleets:fail_elsewhere", "fleets:fail_elsewhere raised RuntimeError: no settings", True),
        ("fleets:CUSTOMERS", "it should be an observer", True),
        ("fleets:break_unforeseen", "KeyError: 'out of luck'", False),
    ],
)
def test_why_a_worker_cannot_work_is_a_sentence(
    repo: Repository, board: Board, observers: str, words: str, final: bool
) -> None:
    board.give(Order(1, stop=False, wall_ms=0))
    ending = work(task_for(repo, observers), 0, epoch_of(1))
    assert ending.why == "failed" and words in ending.error and ending.final is final
    assert ("Traceback" in ending.details) is not final


def test_other_observers_of_another_worker_may_be_gone_at_the_next_attempt(
    repo: Repository, board: Board
) -> None:
    board.give(Order(1, stop=False, wall_ms=0))
    other = percola.observer(fleets.amount, name="other")(lambda t, row: None)
    with at_work(Worker(repo, [other], threads=1)):
        ending = work(task_for(repo), 0, epoch_of(1))
    assert ending.why == "failed" and "run the same observers" in ending.error
    assert not ending.final


def test_the_task_says_its_ending(repo: Repository) -> None:
    assert list(run_task(task_for(repo), 0, 1, [0])) == [Ending("over")]


# --- What the driver knows ----------------------------------------------------------------


def test_a_worker_is_counted_over_all_its_lives() -> None:
    place = Place(0)
    place.begin("f1")
    assert not place.is_heard
    place.hear(epoch_of(1), Report(1, "a", 1, transactions=5))
    place.hear(epoch_of(1), Report(2, "a", 1, transactions=8))
    place.hear(epoch_of(1, 1), Report(1, "a", 2, transactions=4))
    assert place.is_heard
    place.begin("f1")
    assert not place.is_heard and place.group == "f1/0/2"
    place.hear(epoch_of(2), Report(1, "b", 3, transactions=1))
    place.hear(epoch_of(1, 1), Report(9, "a", 2, transactions=400))
    assert place.is_heard and place.report is not None and place.report.host == "b"
    assert place.past + place.report.transactions == 13
    assert place.restarts == 2


class HereContext:
    """Runs a job's one task in the thread that submits it."""

    def setJobGroup(self, *_: str) -> None:  # noqa: N802
        pass

    def parallelize(self, *_: Any) -> HereContext:
        return self

    def mapPartitions(self, task: Callable[[list[int]], Iterator[Ending]]) -> HereContext:  # noqa: N802
        self.task = task
        return self

    def collect(self) -> list[Ending]:
        return list(self.task([0]))


def test_a_worker_whose_fleet_was_taken_for_abandoned_is_restarted(
    repo: Repository, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver, whose clock is a day ahead, has cleared the fleet's row away."""
    context: Any = HereContext()
    order = Board.order
    cleared: list[Board] = []

    def once_gone(self: Board) -> Order | None:
        if cleared or not self.reports():
            return order(self)
        cleared.append(self)
        self.clear()
        return None

    monkeypatch.setattr(Board, "order", once_gone)
    with Fleet(context, percola.open(repo.address), task_for(repo), 1_000) as fleet:
        wait_until(lambda: cleared, what="the row to be cleared")
        fleets.place(repo, range(20))
        fleet.wait_until_idle(60)
        [worker] = fleet.status()
        assert worker.restarts >= 1 and "took the fleet for abandoned" in worker.error
    fleets.check_shop(repo, sum(range(20)))


def test_a_beat_is_news_and_its_repetition_is_none() -> None:
    place = Place(0)
    place.begin("f1")
    place.hear(epoch_of(1), Report(1, "a", 1))
    place.heard = -1.0
    place.hear(epoch_of(1), Report(1, "a", 1))
    assert place.heard == -1.0
    place.hear(epoch_of(1), Report(2, "a", 1))
    assert place.heard > 0


def test_a_status_reads_as_a_line() -> None:
    told = WorkerStatus(3, "working", "node7", 42, 1_234, 56.7, 0, 2, 0.25, "its process died")
    assert str(told) == (
        "worker 3: working on node7, process 42; 1,234 transactions, 57 a second; 2 restarts; "
        "last heartbeat 0.2 s ago; its process died"
    )
    fresh = WorkerStatus(0, "waiting", None, None, 0, 0.0, 0, 0, None, "")
    assert str(fresh) == "worker 0: waiting; 0 transactions, 0 a second; 0 restarts"


class ConnectSession:
    """A session that has no context, as Spark Connect's."""

    @property
    def sparkContext(self) -> None:  # noqa: N802
        raise PySparkException("not supported")


REFUSED: dict[str, tuple[type[PercolaError], str, dict[str, Any]]] = {
    "no workers": (ConflictingOptionsError, "workers must be at least 1", {"workers": 0}),
    "restarts": (ConflictingOptionsError, "restarts must be at least 0", {"restarts": -1}),
    "timeout_seconds": (
        ConflictingOptionsError,
        "timeout_seconds must be more than 0",
        {"timeout_seconds": 0},
    ),
    "no timeout_seconds": (
        ConflictingOptionsError,
        "timeout_seconds",
        {"timeout_seconds": float("nan")},
    ),
    "threads": (ConflictingOptionsError, "threads must be at least 1", {"threads": 0}),
    "twice": (ConflictingOptionsError, "not both", {"options": WorkerOptions(), "threads": 2}),
    "Spark Connect": (UsageError, "Spark Connect", {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_a_sentence(tmp_path: Path, case: str) -> None:
    kind, words, options = REFUSED[case]
    spark: Any = ConnectSession()
    with pytest.raises(kind, match=words) as caught:
        run_workers(spark, "fleets:OBSERVERS", tmp_path / "none", **options)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
