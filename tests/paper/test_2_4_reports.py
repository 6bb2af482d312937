"""§2.4: what workers report of themselves in the repository, for `percola serve`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import at_work

import percola
from percola import ConflictingOptionsError, Repository, Table, Transaction, Worker, observer
from percola.observers.metrics import LATENCIES
from percola.observers.reports import Report, read_reports, reporting_process
from tests.support.children import Child, hear

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
links = docs.column("links", str, observed=True)
TABLES = [docs]

QUICK: dict[str, Any] = {"attempts": 1, "first_wait": 0.001, "threads": 1, "report": 0.01}
WaitUntil = Callable[..., Any]


@observer(contents)
def follow(t: Transaction, row: str) -> None:
    """Do nothing."""


@observer(links)
def fails(t: Transaction, row: str) -> None:
    raise ValueError(row)


def put(repo: Repository, column: Any, *rows: str) -> None:
    for row in rows:
        with repo.transaction() as t:
            t.set(column, row, "text")


def reports(repo: Repository) -> list[Report]:
    return list(read_reports(repo.context.store).values())


def test_a_worker_reports_what_it_counted_until_it_stops(
    repo: Repository, wait_until: WaitUntil
) -> None:
    worker = Worker(repo, [follow, fails], **QUICK, retention=3600.0)
    with at_work(worker):
        put(repo, contents, "a", "b")
        put(repo, links, "a")

        def counted() -> bool:
            told = reports(repo)
            return bool(told) and (
                told[0].observers["follow"].runs == 2
                and told[0].observers["fails"].dead_lettered == 1
            )

        wait_until(counted, what="its numbers")
        [(row, one)] = read_reports(repo.context.store).items()
        assert reporting_process(row) == repo.context.coordination.token
        assert one.observers["fails"].failures == 1 and one.observers["fails"].runs == 0
        assert sum(one.observers["follow"].latencies) == 2
        assert len(one.observers["follow"].latencies) == len(LATENCIES) + 1
        assert one.retention == 3600 and one.threads == 1 and one.every == 0.01
        assert (one.calls is None) == (repo.context.calls is None)
    assert reports(repo) == []


def test_an_idle_worker_writes_no_report(repo: Repository, wait_until: WaitUntil) -> None:
    worker = Worker(repo, [follow], **QUICK)
    with at_work(worker):
        wait_until(lambda: reports(repo), what="its first report")
        [first] = reports(repo)
        looks = []

        def looked() -> bool:
            # Each report draws on the counters: many have been taken when they were read often.
            looks.append(reports(repo) == [first])
            return len(looks) > 50

        wait_until(looked, what="time to pass")
        assert all(looks)
        put(repo, contents, "a")
        wait_until(lambda: reports(repo)[0].at_ms > first.at_ms, what="another report")


def test_a_run_that_takes_long_is_in_the_report(repo: Repository, wait_until: WaitUntil) -> None:
    released = threading.Event()

    @observer(contents)
    def slow(t: Transaction, row: str) -> None:
        assert released.wait(60)

    worker = Worker(repo, [slow], **QUICK)
    worker.start()
    try:
        put(repo, contents, "a")

        def running() -> Any:
            told = reports(repo)
            return told and told[0].running

        [run] = wait_until(running, what="the run")
        assert run.observer == "slow"
        assert run.since_ms <= reports(repo)[0].at_ms
        released.set()
        wait_until(lambda: not running(), what="its end")
    finally:
        released.set()
        worker.stop()


def work(pipe: Any, folder: Path) -> None:
    with percola.open(folder, TABLES) as repo:
        Worker(repo, [follow], **QUICK).start()
        while not reports(repo):
            pass
        pipe.send(("said", "reported"))
        hear(pipe)


def test_the_report_of_a_killed_worker_is_removed_by_the_next_one(
    tmp_path: Path, wait_until: WaitUntil
) -> None:
    folder = tmp_path / "r"
    percola.create(folder)
    with Child(work, folder) as child:
        assert child.hear() == "reported"
        child.kill()
    with percola.open(folder, TABLES) as repo:
        [left] = read_reports(repo.context.store)
        assert not repo.context.coordination.is_alive(reporting_process(left))
        worker = Worker(repo, [follow], **QUICK)
        with at_work(worker):
            wait_until(
                lambda: (
                    {reporting_process(row) for row in read_reports(repo.context.store)}
                    == {repo.context.coordination.token}
                ),
                what="the removal of the killed one's report",
            )


def test_a_report_needs_a_time_that_can_pass() -> None:
    with (
        percola.open("memory:", TABLES) as repo,
        pytest.raises(ConflictingOptionsError, match="report must be None or more than 0"),
    ):
        Worker(repo, [follow], report=0)
