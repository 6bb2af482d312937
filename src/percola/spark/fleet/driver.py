"""§2.4: workers on Spark's executors: the paper's worker on every machine, as long tasks.

A worker is a Spark job of one task, supervised by a thread of the driver: when the job ends
unexpectedly, because its process, executor or machine died, the thread resubmits it after a
back-off. A single job with many tasks would not do: Spark fails the whole job when one task has
failed often enough, and barrier mode fails all tasks together.

    driver ──▶ order: heartbeat, stop ──▶  the fleet's row in  ◀── report: heartbeat, ── workers
                                           the repository          process, totals

Messages go through the repository (`percola.spark.fleet.board`). Both sides send heartbeats: a
worker whose driver is gone ends by itself, and a worker whose heartbeats stop for as long is
cancelled and resubmitted. Spark needs seconds to end a cancelled task, and a machine may be
partitioned for longer, so an old worker may keep running beside its successor. That is safe,
because all their work is transactional.

The driver sends heartbeats and reads reports on two threads. In a folder only one process writes at
a time, so a worker that is frozen while it writes holds back the driver's heartbeats as well; reads
never wait, and so it is found all the same.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from pyspark import InheritableThread, SparkContext

from percola.cells import Kind
from percola.clock import backoff
from percola.errors import PercolaError, StoreError
from percola.repository import Repository
from percola.spark.ctrl_c import interrupts_held
from percola.spark.fleet.board import Board, Order
from percola.spark.fleet.status import Place, WorkerStatus
from percola.spark.fleet.task import Ending, Task, run_task
from percola.store.walks import walk_kind

log = logging.getLogger("percola.fleet")

_LOOK: Final = 0.02
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 10.0
_HEALTHY: Final = 60.0
"""After running for this many seconds, earlier deaths no longer count."""
_CANCEL_SECONDS: Final = 20.0
_SILENT: Final = 3.0
"""Missed heartbeats after which a worker is shown as silent."""
_NO_PERCOLA: Final = "No module named 'percola"
_PROCESS_DIED: Final = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "java.io.EOFException",
    "Connection reset",
    "Broken pipe",
)


class FleetError(PercolaError):
    """The workers on Spark keep dying, cannot run, or did not finish in time."""


class Fleet:
    """Supervised workers on Spark, created by `run_workers`. A context manager that stops them.

    Attributes:
        name: its name, which Spark's job groups and the jobs' descriptions begin with.
    """

    def __init__(self, context: SparkContext, repo: Repository, task: Task, restarts: int) -> None:
        self.name = task.fleet
        self._context = context
        self._repo = repo
        self._task = task
        self._restarts = restarts
        self._board = Board(repo.context.store, task.fleet)
        self._random = random.Random()
        self._guard = threading.RLock()
        self._beat = 0
        self._columns: set[tuple[str, bytes]] = set()
        self._failure: FleetError | None = None
        self._stopping = threading.Event()
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._spark_ended = threading.Event()
        self._stop_guard = threading.Lock()
        self._places = [Place(number) for number in range(task.workers)]
        self._order(stop=False)
        self._beater = threading.Thread(target=self._beats, name="percola-fleet-beat", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="percola-fleet", daemon=True)
        # They inherit the caller's local properties, its scheduler pool among them.
        self._keepers = [
            InheritableThread(
                target=self._keep, args=(one,), name=f"percola-worker-{one.worker}", daemon=True
            )
            for one in self._places
        ]
        for keeper in self._keepers:
            keeper.start()
        self._beater.start()
        self._watcher.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Fleet of {len(self._places)} workers on {self._task.address}>"

    # --- Public API ---------------------------------------------------------------------

    def status(self) -> list[WorkerStatus]:
        """The state of each worker, up to a second old."""
        with contextlib.suppress(PercolaError):
            self._hear()
        with self._guard:
            return [self._status(one) for one in self._places]

    def pending(self) -> dict[str, int]:
        """How many cells wait for an observer, by `table.column`: the remaining work.

        The cost is proportional to it. Raises RepositoryClosedError once the fleet has been
        stopped.
        """
        return self._repo.pending()

    def check(self) -> None:
        """Raise FleetError if a worker cannot work, or has died again and again."""
        if self._failure is not None:
            raise FleetError(str(self._failure)) from self._failure.__cause__

    def wait_until_idle(self, seconds: float | None = None) -> None:
        """Return when the workers' observers have no work left; the workers keep running.

        Dead-lettered changes do not count, nor do columns that these workers do not observe. Those
        that wait for a paused observer do.
        Ctrl-C stops the fleet, as in `wait`.

        Raises FleetError if a worker fails permanently, or if there is still work after `seconds`.
        """
        if not self._until(self._is_idle, seconds):
            left = ", ".join(f"{number:,} {name}" for name, number in self.pending().items())
            waits = "; ".join(map(str, self.status()))
            paused = ", ".join(map(str, self._repo.paused_observers()))
            raise FleetError(
                f"There is still work to do after {seconds:g} s ({left or 'workers to start'}): "
                f"{waits}.{f' Observers are paused: {paused}.' if paused else ''}"
            )

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the fleet is stopped, at most `seconds`; return whether it has been stopped.

        Ctrl-C meanwhile lets running observers finish and stops the workers; then
        KeyboardInterrupt is raised. Raises FleetError if a worker fails permanently.
        """
        return self._until(self._ended.is_set, seconds)

    def stop(self, seconds: float = 30.0) -> None:
        """Let running observers finish, stop the workers, and return when they have ended.

        Workers that have not ended after `seconds` are cancelled. Idempotent.
        """
        with self._stop_guard:
            if self._ended.is_set():
                return
            self._stopping.set()  # The thread that sends heartbeats tells the workers.
            try:
                if not self._joined(seconds):
                    log.warning(
                        "workers did not end within %s s: their jobs are cancelled", seconds
                    )
            finally:
                self._close()

    # --- Waiting ------------------------------------------------------------------------

    def _until(self, done: Callable[[], bool], seconds: float | None) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        # Spark's own handler would cancel all jobs, and so interrupt the observers.
        with interrupts_held() as interrupted:
            while not done():
                self.check()
                if interrupted.is_set():
                    self.stop()
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                self._ended.wait(_LOOK)
        return True

    def _is_idle(self) -> bool:
        with self._guard:
            columns = set(self._columns)
        if not columns:
            with contextlib.suppress(StoreError):
                self._hear()
            return False
        store = self._repo.context.store

        def is_left(kind: Kind) -> bool:
            return any(
                (cell.table, cell.column) in columns
                for table in {name for name, _ in columns}
                for cell, _, _ in walk_kind(store, kind, table, first=1)
            )

        # Without a separate notify table, a commit replaces its locks by notify entries: so check
        # the locks in between.
        looks = [Kind.NOTIFY] if store.has_notify_table else [Kind.NOTIFY, Kind.LOCK, Kind.NOTIFY]
        return self._repo.context.oracle.at_one_moment(
            lambda: not any(is_left(kind) for kind in looks)
        )

    # --- Supervising a worker -----------------------------------------------------------

    def _keep(self, place: Place) -> None:
        """On a dedicated thread: submit the worker's job repeatedly until the fleet stops."""
        deaths = 0
        state = "stopped"
        while not self._stopping.is_set():
            began = time.monotonic()
            with self._guard:
                place.begin(self.name)
            ending = self._submit(place)
            if self._stopping.is_set() or ending.why == "told":
                break
            deaths = 1 if time.monotonic() - began > _HEALTHY else deaths + 1
            log.warning("worker %s of %s ended: %s", place.worker, self.name, ending.error)
            with self._guard:
                place.state, place.error = "resting", ending.error
            if ending.final or deaths > self._restarts:
                self._give_up(place, ending, deaths)
                state = "failed"
                break
            wait = backoff(self._random, deaths, first=_FIRST_WAIT, most=_LONGEST_WAIT)
            self._stopping.wait(wait)
        with self._guard:
            place.state = state

    def _submit(self, place: Place) -> Ending:
        """Run the worker's job to its end."""
        try:
            described = f"Percola worker {place.worker}: {self._task.observers}"
            self._context.setJobGroup(place.group, described)
            job = self._context.parallelize([place.worker], 1).mapPartitions(
                partial(run_task, self._task, place.worker, place.attempt)
            )
            [ending] = job.collect()
        except Exception as error:  # Py4J's errors have no common root but this.
            if _has_ended(self._context):
                self._spark_ended.set()
                return Ending("failed", "Spark has ended", final=True)
            if place.cancelled:
                return Ending("failed", f"it was not heard of for {self._task.timeout_seconds:g} s")
            said = str(error)
            # The next attempt would use the same Python.
            return Ending("failed", _reason(said), said, final=_NO_PERCOLA in said)
        said = {
            "silent": f"it did not hear of its driver for {self._task.timeout_seconds:g} s",
            "superseded": "Spark ran another attempt of its task beside it",
            "over": "another driver took the fleet for abandoned: compare their machines' clocks",
        }.get(ending.why, ending.error)
        return Ending(ending.why, said.rstrip("."), ending.details, ending.final)

    def _give_up(self, place: Place, ending: Ending, deaths: int) -> None:
        often = "" if ending.final else f" for the {deaths}. time in a row"
        failure = FleetError(
            f"Worker {place.worker} has ended{often}: {ending.error}. Nothing is lost: mend the "
            "cause, and run the workers again."
        )
        if ending.details:
            failure.__cause__ = RuntimeError(ending.details)
        with self._guard:
            self._failure = self._failure or failure

    # --- Watching -----------------------------------------------------------------------

    def _beats(self) -> None:
        """On a dedicated thread: send heartbeats, and the order to stop without delay."""
        while not self._stopping.wait(self._task.beat):
            self._send(stop=False)
        while True:
            self._send(stop=True)
            if self._closing.wait(self._task.beat):
                return

    def _send(self, *, stop: bool) -> None:
        try:
            self._order(stop=stop)
        except PercolaError as error:
            log.warning("a heartbeat cannot be sent and will be tried again: %s", error)

    def _watch(self) -> None:
        """On a dedicated thread: read reports, cancel silent workers."""
        while not self._closing.wait(self._task.beat):
            try:
                self._hear()
            except PercolaError as error:
                log.warning("the workers' reports cannot be read and are tried again: %s", error)
                continue
            with self._guard:
                lost = [
                    one
                    for one in self._places
                    if one.is_heard
                    and one.state == "submitted"
                    and time.monotonic() - one.heard > self._task.timeout_seconds
                ]
                for one in lost:
                    one.cancelled = True
            for one in lost:
                self._cancel(one)

    def _order(self, *, stop: bool) -> None:
        self._beat += 1
        self._board.give(Order(self._beat, stop, time.time_ns() // 1_000_000))

    def _hear(self) -> None:
        if self._ended.is_set():
            return
        reports = self._board.reports()
        with self._guard:
            for worker, (epoch, report) in reports.items():
                self._places[worker].hear(epoch, report)
                self._columns.update((table, name.encode()) for table, name in report.columns)

    def _cancel(self, place: Place) -> None:
        with contextlib.suppress(Exception):  # The JVM may be gone.
            self._context.cancelJobGroup(place.group)

    def _status(self, place: Place) -> WorkerStatus:
        report, state = place.report, place.state
        age = time.monotonic() - place.heard if report is not None else None
        if state == "submitted" and place.is_heard:
            state = "working" if age is not None and age < _SILENT * self._task.beat else "silent"
        elif state == "submitted":
            state = "starting" if self._has_slot(place) else "waiting"
        return WorkerStatus(
            worker=place.worker,
            state=state,
            host=report.host if report else None,
            pid=report.pid if report else None,
            transactions=place.past + (report.transactions if report else 0),
            per_second=report.per_second if report and state == "working" else 0.0,
            dead_lettered=report.dead_lettered if report else 0,
            restarts=place.restarts,
            heartbeat=age,
            error=place.error,
        )

    def _has_slot(self, place: Place) -> bool:
        """Whether a task of the worker's job is running, according to Spark's driver."""
        try:
            tracker = self._context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(place.group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            return any(stage.numActiveTasks for stage in stages if stage)
        except Exception:  # Py4J's errors, once the JVM is gone.
            return False

    # --- Ending -------------------------------------------------------------------------

    def _joined(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether every worker's job, or Spark itself, has ended."""
        deadline = time.monotonic() + seconds
        while any(keeper.is_alive() for keeper in self._keepers):
            # When Spark has ended, a thread that waits for one of its jobs may wait forever.
            if self._spark_ended.is_set() or time.monotonic() >= deadline:
                return self._spark_ended.is_set()
            self._ended.wait(_LOOK)
        return True

    def _close(self) -> None:
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not self._joined(0) and time.monotonic() < deadline:
            for one in self._places:
                self._cancel(one)
            self._joined(_FIRST_WAIT)
        self._closing.set()
        self._watcher.join()
        self._beater.join()
        with contextlib.suppress(PercolaError):
            self._hear()
            self._board.clear()
        self._ended.set()
        self._repo.close()


def _has_ended(context: SparkContext) -> bool:
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # The JVM is gone.
        return True


def _reason(text: str) -> str:
    """Why Spark gave up on a worker's job, without a full stop."""
    if any(sign in text for sign in _PROCESS_DIED):
        return "its process died (killed, or out of memory?)"
    if "ExecutorLostFailure" in text:
        return "its executor died (killed, or out of memory?)"
    if _NO_PERCOLA in text:
        return (
            "the Python of Spark's executors has no Percola: install it there, or name another "
            "Python by the variable PYSPARK_PYTHON before Spark starts"
        )
    if "cancelled" in text:
        return "its job was cancelled"
    # A Python traceback ends with the error, and the JVM's traceback follows it; otherwise the
    # JVM's message follows Py4J's.
    _, _, python = text.partition("Traceback (most recent call last):")
    lines = [
        line.strip() for line in re.split(r"\n\s*(?:SQLSTATE|at )", python or text)[0].split("\n")
    ]
    said = [line for line in lines if line] or ["Spark gave no reason"]
    return said[-1].removeprefix(": ").rstrip(".")
