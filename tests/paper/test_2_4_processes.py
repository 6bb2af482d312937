"""§2.4: workers in processes of their own: woken, stopped, killed, told apart."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stores import DEADLINE, Program, in_thread

import percola
from percola import ObserverMismatchError, Repository, Table, Transaction, Worker, observer
from percola.cells import Kind
from percola.inspection import failures, locks, notifications, processes

pages = Table("pages")
body = pages.column("body", str, observed=True)
done = pages.column("done", int)
counters = Table("counters")
total = counters.column("total", int)
TABLES = [pages, counters]


@pytest.fixture(params=["one-step", "two-phase"])
def commit(request: pytest.FixtureRequest) -> str:
    """How the repository and its workers commit."""
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repo"


@pytest.fixture
def repo(folder: Path, commit: str) -> Iterator[Repository]:
    with percola.open(
        folder, schema=TABLES, durability="relaxed", one_step=commit == "one-step"
    ) as repo:
        yield repo


def write(repo: Repository, row: str) -> None:
    repo.run(lambda t: t.set(body, row, "text"))


def worker_process(folder: Path, commit: str, what: str, rescan: float) -> Program:
    return Program("worker_process.py", folder, commit, what, rescan)


def test_a_commit_wakes_a_worker_in_another_process(
    repo: Repository, folder: Path, commit: str, wait_until: Callable[..., object]
) -> None:
    """With the safety net at an hour, nothing but a wake-up tells it of a change."""
    with worker_process(folder, commit, "tally", 3600) as worker:
        worker.expect("ready")
        for number in range(10):
            write(repo, f"page {number}")
            wait_until(lambda n=number: repo.snapshot().get(done, f"page {n}"))


def test_sigterm_lets_a_running_observer_finish_and_ends_the_worker(
    repo: Repository, folder: Path, commit: str
) -> None:
    write(repo, "page 1")
    with worker_process(folder, commit, "slow", 60) as worker:
        worker.expect("ready")
        worker.expect("began")
        assert [one.pid for one in processes(repo) if "pages.body" in one.observers]
        worker.terminate()
        worker.tell("go on")
        worker.expect("stopped")
        assert worker.wait() == 0
    assert repo.snapshot().get(done, "page 1") == 1
    assert list(notifications(repo)) == []
    assert [one for one in processes(repo) if one.observers] == []


def test_sigterm_ends_an_idle_worker_at_once(
    repo: Repository, folder: Path, commit: str, wait_until: Callable[..., object]
) -> None:
    """With the safety net at an hour, it does not wait for the next look."""
    with worker_process(folder, commit, "tally", 3600) as worker:
        wait_until(lambda: any("pages.body" in one.observers for one in processes(repo)))
        worker.terminate()
        worker.expect("stopped")
        assert worker.wait() == 0


def test_n3_two_processes_of_four_threads_run_each_change_exactly_once(
    repo: Repository, folder: Path, commit: str, wait_until: Callable[..., object]
) -> None:
    with (
        worker_process(folder, commit, "tally", 60) as one,
        worker_process(folder, commit, "tally", 60) as two,
    ):
        one.expect("ready")
        two.expect("ready")
        for number in range(120):
            write(repo, f"page {number}")
        wait_until(lambda: not list(notifications(repo)))
    check_exactly_once(repo, 120)


def check_exactly_once(repo: Repository, count: int) -> None:
    snapshot = repo.snapshot()
    assert [row[done] for row in snapshot.scan(pages, columns=[done])] == [1] * count
    assert sum(row[total] for row in snapshot.scan(counters)) == count
    assert list(failures(repo)) == []


def test_a_worker_killed_in_the_middle_of_a_load_loses_nothing_and_repeats_nothing(
    repo: Repository, folder: Path, commit: str, wait_until: Callable[..., object]
) -> None:
    """SIGKILL to two of three, one after the other; every effect is there exactly once."""
    both_killed = threading.Event()

    def counted() -> int:
        return sum(row[total] for row in repo.snapshot().scan(counters))

    def load() -> int:
        """Goes on for as long as there is somebody to kill, and a bit; the number of pages."""
        for number in itertools.count():
            write(repo, f"page {number}")
            if number >= 200 and both_killed.is_set():
                return number + 1
        raise AssertionError

    with (
        worker_process(folder, commit, "tally", 0.5) as first,
        worker_process(folder, commit, "tally", 0.5) as second,
        worker_process(folder, commit, "tally", 0.5) as other,
    ):
        for worker in (first, second, other):
            worker.expect("ready")
        loading = in_thread(load)
        for victim, after in ((first, 30), (second, 120)):
            wait_until(lambda after=after: counted() >= after)
            victim.kill()
        both_killed.set()
        count = loading.result(DEADLINE)
        wait_until(lambda: not list(notifications(repo)))
        other.terminate()
        other.expect("stopped")
    # What the victim left locked, whoever comes next settles; here an empty worker does.
    Worker(repo, [observer(body, name="work")(lambda t, row: None)]).run_until_idle()
    check_exactly_once(repo, count)
    assert [lock for lock in locks(repo) if lock.cell.table == "pages"] == []
    list(repo.snapshot().scan(counters))
    assert list(locks(repo)) == []
    for table in TABLES:
        assert repo.context.store.scan_kind(Kind.NOTIFY, table.name) == ([], None)


def test_a_worker_with_other_observers_on_a_column_is_refused_while_one_runs(
    repo: Repository, folder: Path, commit: str
) -> None:
    """Each would take the other's notifications for answered."""

    @observer(body)
    def another(t: Transaction, row: str) -> None:
        pass

    write(repo, "page 1")
    with worker_process(folder, commit, "slow", 60) as worker:
        worker.expect("began")
        for start in (Worker(repo, [another]).start, Worker(repo, [another]).run_until_idle):
            with pytest.raises(
                ObserverMismatchError, match=r"stop the others first.*how teams share"
            ):
                start()
        worker.tell("go on")
    Worker(repo, [another]).run_until_idle()
