"""Workers on Spark: what they do, and what is left of their work when something is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fleets
import pyspark
import pytest
from children import Child, hear, say, wait_in_child
from fleets import executor_of, is_alive
from otlp import commit_ts, identity, receiver
from pyspark.sql import SparkSession
from spark_clusters import standalone_cluster
from spark_processes import QUICK_EXECUTORS
from stores import put

from percola import ConflictingOptionsError, NotARepositoryError, Repository, UsageError
from percola.cells import Kind
from percola.spark import Fleet, FleetError, run_workers, spark_context
from percola.store.base import SYSTEM_TABLE
from percola.store.walks import walk_kind

Wait = Callable[..., Any]

SECONDS = 270
OBSERVERS = "fleets:OBSERVERS"


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with fleets.open_shop(tmp_path / "shop") as opened:
        yield opened


def work_on(spark: SparkSession, repo: Repository, *, workers: int = 2, **more: Any) -> Fleet:
    return run_workers(spark, OBSERVERS, repo.address, workers=workers, threads=2, **more)


def all_work(fleet: Fleet) -> bool:
    fleet.check()
    return all(one.state == "working" for one in fleet.status())


def pids(fleet: Fleet) -> list[int]:
    return [one.pid for one in fleet.status() if one.pid is not None]


def rows_of_fleets(repo: Repository) -> int:
    found = walk_kind(repo.context.store, Kind.DATA, SYSTEM_TABLE, b"fleet/", b"fleet0")
    return sum(1 for _ in found)


@contextlib.contextmanager
def in_the_middle(repo: Repository, folder: Path, orders: range, times: int = 1) -> Iterator[None]:
    """Orders that are being worked off, and one observer that waits until the block has ended.

    So a kill within the block falls in the middle of the work, however quick the workers are.
    """
    gate, before = folder / f"gate-{times}", fleets.added(repo)
    gate.mkdir()
    put(repo, fleets.opened, str(gate), b"")
    try:
        begun = (gate / "begun").exists
        wait_in_child(begun, seconds=SECONDS, what="an observer to wait at the gate")
        fleets.place(repo, orders, times=times)
        wait_in_child(lambda: fleets.added(repo) > before, seconds=SECONDS, what="the first totals")
        yield
        assert repo.pending(), "the kill should have fallen in the middle of the work"
    finally:
        (gate / "go").touch()


# --- At work ------------------------------------------------------------------------------


def test_workers_work_off_what_comes_say_what_they_do_and_leave_nothing_behind(
    spark: SparkSession, repo: Repository, wait_until: Wait
) -> None:
    fleets.place(repo, range(400))
    with work_on(spark, repo) as fleet:
        fleet.wait_until_idle(SECONDS)
        assert fleets.added(repo) == sum(range(400))
        wait_until(lambda: all_work(fleet), seconds=SECONDS, what="two workers")
        # They go on.
        fleets.place(repo, range(400), times=3)
        fleet.wait_until_idle(SECONDS)
        assert fleet.pending() == {}
        done = wait_until(
            lambda: sum(one.transactions for one in fleet.status()) >= 800 and fleet.status(),
            what="reports of all runs",
        )
        assert len({one.pid for one in done} - {os.getpid()}) == 2
        for one in done:
            assert one.host is not None and one.restarts == 0 and one.error == ""
            assert one.heartbeat is not None and 0 <= one.heartbeat < SECONDS
        assert rows_of_fleets(repo) == 3
        assert not fleet.wait(0.01)
    assert fleet.wait(0)
    assert [one.state for one in fleet.status()] == ["stopped", "stopped"]
    assert rows_of_fleets(repo) == 0
    fleets.check_shop(repo, 3 * sum(range(400)))
    fleet.stop()
    # The slots are free again, and the processes are used for other tasks.
    assert spark.sparkContext.parallelize(range(8), 4).map(lambda n: n + 1).sum() == 36


def test_a_stop_lets_the_running_observer_finish(
    spark: SparkSession, repo: Repository, tmp_path: Path, wait_until: Wait
) -> None:
    put(repo, fleets.opened, str(tmp_path), b"")
    with work_on(spark, repo, workers=1) as fleet:
        stopping = threading.Thread(target=fleet.stop)
        try:
            wait_until((tmp_path / "begun").exists, seconds=SECONDS, what="the observer to begin")
            with pytest.raises(
                FleetError, match=r"still work to do after 0\.01 s \(1 gates\.opened"
            ):
                fleet.wait_until_idle(0.01)
            stopping.start()
            stopping.join(0.5)
            assert stopping.is_alive(), "it waits for the observer"
        finally:
            (tmp_path / "go").touch()
        stopping.join(SECONDS)
    assert repo.snapshot().get(fleets.passed, str(tmp_path)) is True
    assert [one.error for one in fleet.status()] == [""]


# --- What cannot work ---------------------------------------------------------------------


def test_what_is_wrong_with_the_call_is_said_at_once(
    spark: SparkSession, repo: Repository, tmp_path: Path
) -> None:
    here, nowhere = repo.address, str(tmp_path / "none")
    wrong: list[tuple[type[Exception], str, str, str, dict[str, Any]]] = [
        (UsageError, "There is no module 'nowhere'", "nowhere:OBSERVERS", here, {}),
        (UsageError, "it should be an observer", "fleets:CUSTOMERS", here, {}),
        (UsageError, "not a list of tables", OBSERVERS, here, {"schema": "fleets:CUSTOMERS"}),
        (ConflictingOptionsError, r"has 2 task .* local\[4\]", OBSERVERS, here, {"workers": 3}),
        (NotARepositoryError, "There is no repository", OBSERVERS, nowhere, {}),
        (NotARepositoryError, "one process only", OBSERVERS, "memory:", {}),
    ]
    for error, said, observers, address, options in wrong:
        with pytest.raises(error, match=said):
            run_workers(spark, observers, address, **options)
    assert rows_of_fleets(repo) == 0


def test_a_worker_that_cannot_work_is_not_started_again(
    spark: SparkSession, repo: Repository
) -> None:
    with (
        run_workers(spark, "fleets:fail_elsewhere", repo.address) as fleet,
        pytest.raises(
            FleetError, match=r"fleets:fail_elsewhere raised RuntimeError: no settings"
        ) as e,
    ):
        fleet.wait(SECONDS)
    assert str(e.value).endswith("mend the cause, and run the workers again.")
    [one] = fleet.status()
    assert (one.state, one.restarts) == ("failed", 0)


def test_a_worker_that_keeps_dying_is_given_up(spark: SparkSession, repo: Repository) -> None:
    with run_workers(spark, "fleets:die", repo.address, restarts=1) as fleet:
        with pytest.raises(FleetError, match=r"for the 2\. time in a row: its process died"):
            fleet.wait_until_idle(SECONDS)
        with pytest.raises(FleetError, match="its process died"):
            fleet.check()
        [one] = fleet.status()
        assert (one.state, one.pid, one.restarts) == ("failed", None, 1)
    assert rows_of_fleets(repo) == 0


# --- Killed -------------------------------------------------------------------------------


def test_a_worker_whose_process_is_killed_works_again_and_nothing_is_lost(
    spark: SparkSession, repo: Repository, tmp_path: Path, wait_until: Wait
) -> None:
    with work_on(spark, repo) as fleet:
        wait_until(lambda: all_work(fleet), seconds=SECONDS, what="two workers")
        victim = pids(fleet)[0]
        with in_the_middle(repo, tmp_path, range(600)):
            os.kill(victim, signal.SIGKILL)
        fleet.wait_until_idle(SECONDS)
        wait_until(
            lambda: victim not in pids(fleet) and all_work(fleet),
            seconds=SECONDS,
            what="the worker to work again",
        )
        first, second = fleet.status()
        assert (first.restarts, second.restarts) == (1, 0)
    fleets.check_shop(repo, sum(range(600)))


def test_a_worker_that_is_frozen_is_replaced(
    spark: SparkSession, repo: Repository, wait_until: Wait
) -> None:
    with work_on(spark, repo, workers=1, timeout_seconds=2.0) as fleet:
        wait_until(lambda: all_work(fleet), seconds=SECONDS, what="the worker")
        [victim] = pids(fleet)
        os.kill(victim, signal.SIGSTOP)
        fleets.place(repo, range(40))
        wait_until(
            lambda: pids(fleet) != [victim] and all_work(fleet),
            seconds=SECONDS,
            what="another process in its place",
        )
        fleet.wait_until_idle(SECONDS)
        [one] = fleet.status()
        assert one.restarts == 1 and "not heard of for 2 s" in one.error
        # Spark ends the process that it has cancelled, frozen or not.
        wait_until(lambda: not is_alive(victim), what="the frozen process to end")
    fleets.check_shop(repo, sum(range(40)))


@pytest.mark.long
def test_a_worker_that_is_frozen_while_nobody_else_can_write_is_replaced(
    spark: SparkSession, repo: Repository, tmp_path: Path, wait_until: Wait
) -> None:
    lock = tmp_path / "shop" / "store" / "turn.lock"
    with work_on(spark, repo, workers=1, timeout_seconds=2.0) as fleet:
        wait_until(lambda: all_work(fleet), seconds=SECONDS, what="the worker")
        [victim] = pids(fleet)
        put(repo, fleets.writing, str(lock), b"")
        wait_until(Path(f"{lock}-taken").exists, what="the worker to have the writers' turn")
        os.kill(victim, signal.SIGSTOP)
        # It waits for the frozen worker, as does the driver's next heartbeat.
        fleets.place(repo, range(40))
        fleet.wait_until_idle(SECONDS)
        [one] = fleet.status()
        assert one.restarts == 1 and "not heard of for 2 s" in one.error
    fleets.check_shop(repo, sum(range(40)))


# --- A driver of its own ------------------------------------------------------------------


def write_orders(spark: SparkSession, address: str) -> None:
    frame = spark.createDataFrame([(str(n), n) for n in range(200)], "row string, amount bigint")
    frame.write.format("percola").mode("append").option("table", "orders").save(address)


def drive(
    pipe: Connection, master: str, address: str, timeout_seconds: float, spans_to: str
) -> object:
    """In a process of its own: two workers, and answers to the test's questions.

    With an endpoint for spans, executors alone are told of it, and write orders for the workers.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable  # A cluster's executors take it from here.
    config = QUICK_EXECUTORS | {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
    }
    if spans_to:
        config["spark.executorEnv.OTEL_EXPORTER_OTLP_ENDPOINT"] = spans_to
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(spark_context(master, app="fleet", config=config))
        say(pipe, (context._gateway.proc.pid, context.applicationId))
        if spans_to:
            write_orders(SparkSession(context), address)
        fleet = stack.enter_context(
            run_workers(
                context, OBSERVERS, address, workers=2, threads=2, timeout_seconds=timeout_seconds
            )
        )
        while (question := hear(pipe)) != "end":
            if question == "idle":
                fleet.wait_until_idle(SECONDS)
                say(pipe)
            elif question == "wait":
                # The signal may come before `say` has returned.
                try:
                    say(pipe)
                    fleet.wait(SECONDS)
                except KeyboardInterrupt:
                    break
            else:
                fleet.check()
                say(pipe, [(one.state, one.pid, one.restarts) for one in fleet.status()])
    return [(one.state, one.error) for one in fleet.status()]


class Driver:
    """A `drive` in a child process."""

    def __init__(self, child: Child, wait_until: Wait) -> None:
        self.child = child
        self.jvm = 0
        self._wait_until = wait_until

    def ask(self, question: str) -> Any:
        self.child.tell(question)
        return self.child.hear()

    def working(self, *, restarts: int = 0) -> list[int]:
        """The processes of its workers, once both work, after at least so many restarts."""

        def found() -> list[int]:
            told = self.ask("status")
            enough = sum(again for _, _, again in told) >= restarts
            works = all(state == "working" for state, _, _ in told)
            return [pid for _, pid, _ in told] if enough and works else []

        pids: list[int] = self._wait_until(found, seconds=SECONDS, what="two workers at work")
        return pids


@contextlib.contextmanager
def driver(
    master: str,
    repo: Repository,
    wait_until: Wait,
    *,
    timeout_seconds: float = 60.0,
    spans_to: str = "",
) -> Iterator[Driver]:
    with Child(drive, master, repo.address, timeout_seconds, spans_to) as child:
        started = Driver(child, wait_until)
        application = "none"
        try:
            started.jvm, application = child.hear()
            yield started
        finally:
            child.kill()
            # The end of the JVM's input tells it to go, and its executors go with it.
            wait_until(lambda: not is_alive(started.jvm), what="the driver's JVM to end")
            # Where a cluster that lives in the driver writes its logs.
            shutil.rmtree(Path(pyspark.__file__).parent / "work" / application, ignore_errors=True)


def ended(*pids: int) -> bool:
    return not any(map(is_alive, pids))


def finish_here(repo: Repository) -> None:
    """Work off what is left, in this process."""
    from percola import Worker

    Worker(repo, fleets.OBSERVERS, threads=2).run_until_idle()


def test_ctrl_c_stops_the_workers_and_lets_them_finish(
    repo: Repository, java_home: Path, wait_until: Wait
) -> None:
    with driver("local[2]", repo, wait_until) as one:
        workers = one.working()
        one.ask("wait")
        one.child.signal(signal.SIGINT)
        # Nothing was cancelled, nothing is an error: each said itself that it was told to end.
        assert one.child.hear() == [("stopped", ""), ("stopped", "")]
        wait_until(lambda: ended(*workers), what="their processes to end")
    assert rows_of_fleets(repo) == 0


@pytest.mark.long
def test_workers_end_by_themselves_when_their_driver_is_killed(
    repo: Repository, tmp_path: Path, java_home: Path, wait_until: Wait
) -> None:
    with driver("local[2]", repo, wait_until) as one:
        workers = one.working()
        with in_the_middle(repo, tmp_path, range(600)):
            one.child.kill()
            wait_until(lambda: ended(*workers), seconds=SECONDS, what="the workers to end")
    finish_here(repo)
    fleets.check_shop(repo, sum(range(600)))


@pytest.mark.long
def test_a_fleet_whose_spark_has_died_says_so(
    repo: Repository, java_home: Path, wait_until: Wait
) -> None:
    with driver("local[2]", repo, wait_until) as one:
        workers = one.working()
        os.kill(one.jvm, signal.SIGKILL)
        one.ask("wait")
        with pytest.raises(
            AssertionError, match=r"FleetError: Worker \d has ended: Spark has ended\."
        ):
            one.child.hear()
        wait_until(lambda: ended(*workers), seconds=SECONDS, what="the workers to end")
    assert rows_of_fleets(repo) == 0


@pytest.fixture(scope="module")
def cluster(
    java_home: Path, tmp_path_factory: pytest.TempPathFactory, wait_until: Wait
) -> Iterator[str]:
    """The master of a cluster of two executors, which have only the environment of their Spark."""
    servers = {**os.environ, "JAVA_HOME": str(java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), servers, wait_until) as master:
        yield master


@pytest.mark.long
def test_executors_send_spans_of_writes_and_of_the_runs_that_these_cause(
    cluster: str, repo: Repository, wait_until: Wait
) -> None:
    with receiver() as received:
        with driver(cluster, repo, wait_until, spans_to=received.endpoint) as one:
            workers = one.working()
            assert len({executor_of(worker) for worker in workers}) == 2
            one.ask("idle")
            assert one.ask("end") == [("stopped", ""), ("stopped", "")]
        fleets.check_shop(repo, sum(range(200)))
        # One of each order at least: a run that conflicts has a span, too.
        runs = [run for run in received.named("add_up") if run.links]
        assert len(runs) >= 200
        writes = {identity(one): commit_ts(one) for one in received.named("transaction")}
        for link in (link for run in runs for link in run.links):
            assert writes[identity(link)] == commit_ts(link)


@pytest.mark.long
def test_executors_and_processes_killed_on_a_cluster_lose_nothing(
    cluster: str, repo: Repository, tmp_path: Path, wait_until: Wait
) -> None:
    """An executor's JVM, a worker's process and the driver, each in the middle of the work."""
    with driver(cluster, repo, wait_until) as one:
        first, second = one.working()
        assert executor_of(first) != executor_of(second), "each executor has one slot"
        for times, victim in ((1, executor_of(first)), (2, second)):
            with in_the_middle(repo, tmp_path, range(500), times):
                os.kill(victim, signal.SIGKILL)
            one.ask("idle")
            fleets.check_shop(repo, times * sum(range(500)))
            workers = one.working(restarts=times)
            assert victim not in {*workers, *map(executor_of, workers)}
            first, second = workers
        with in_the_middle(repo, tmp_path, range(500), 3):
            one.child.kill()
            wait_until(lambda: ended(first, second), seconds=SECONDS, what="the workers to end")
        finish_here(repo)
        fleets.check_shop(repo, 3 * sum(range(500)))
