"""§2.4: a worker of a fleet, as a Spark task runs it.

The task opens the repository and runs the observers in threads. Once a second it reports to the
board of its fleet, and several times a second it reads the driver's order there; less often in a
large fleet, since the board is one row, and in a folder one process writes at a time. It ends when
ordered to, when a newer attempt of the same worker has replaced it, when the fleet has ended, or
when the driver's heartbeat has not changed for the timeout.

Spark forks the process that runs this from a daemon and reuses it for other tasks: nothing is open
before the task begins or after it ends.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext

from percola import Observer, ObserverMismatchError, PercolaError, StoreError, UsageError
from percola.observers import loading as targets
from percola.observers.worker import Worker, WorkerOptions
from percola.spark.fleet.board import Board, Report

LOOK: Final = 0.1
"""Seconds between reads of the driver's order, at least."""
LOOKS: Final = 160
"""Reads of the driver's order that a fleet makes a second, at most."""
BEAT: Final = 1.0
"""Seconds between heartbeats of driver and workers, at least, unless the timeout is short."""
REPORTS: Final = 64
"""Reports that a fleet writes a second, at most, unless the timeout is short."""
_ATTEMPTS: Final = 1_000
_RATE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Task:
    """The description of a worker, the same for the whole fleet; pickled with each job.

    Attributes:
        address: the repository, as tasks reach it.
        observers: MODULE:NAME.
        schema: MODULE:NAME of further tables, or None.
        fleet: the fleet's name on the board.
        options: the worker's options.
        timeout_seconds: seconds without a heartbeat of the driver after which it counts as dead.
        workers: how many the fleet has.
        paths: the driver's import paths.
    """

    address: str
    observers: str
    schema: str | None
    fleet: str
    options: WorkerOptions
    timeout_seconds: float
    workers: int = 1
    paths: tuple[str, ...] = ()

    @property
    def beat(self) -> float:
        """Seconds between heartbeats."""
        return min(max(BEAT, self.workers / REPORTS), self.timeout_seconds / 10)

    @property
    def look(self) -> float:
        """Seconds between reads of the driver's order."""
        return min(max(LOOK, self.workers / LOOKS), self.beat)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker ended, as reported by itself.

    Attributes:
        why: "told" to, "superseded" by a newer attempt, the fleet "over", the driver "silent", or
            "failed".
        error: if it failed, what happened, in a sentence.
        details: if it failed with an unexpected exception, the traceback.
        final: whether another attempt would fail in the same way.
    """

    why: str
    error: str = ""
    details: str = ""
    final: bool = False


def run_task(task: Task, worker: int, attempt: int, _: Iterable[Any]) -> Iterator[Ending]:
    """The function of the Spark job: `work`, at the epoch of this attempt."""
    context = TaskContext.get()
    # Spark may retry a task of a job by itself.
    again = context.attemptNumber() if context is not None else 0
    yield work(task, worker, epoch_of(attempt, again))


def epoch_of(attempt: int, again: int = 0) -> int:
    """The epoch of a job's attempt and of Spark's own retries of its task."""
    return attempt * _ATTEMPTS + min(again, _ATTEMPTS - 1)


def attempts_of(epoch: int) -> tuple[int, int]:
    """The inverse of `epoch_of`."""
    return divmod(epoch, _ATTEMPTS)


def work(task: Task, worker: int, epoch: int) -> Ending:
    """Run the observers until there is a reason to end; never raises an Exception."""
    # Appended: only for modules that this machine would not find otherwise.
    sys.path.extend(one for one in task.paths if one not in sys.path and os.path.exists(one))
    try:
        with targets.opened(task.address, task.observers, task.schema) as (repo, observers):
            board = Board(repo.context.store, task.fleet)
            return _Work(task, worker, epoch, board, Worker(repo, observers, task.options)).run(
                observers
            )
    except PercolaError as error:
        # The mismatch may be with a fleet that is just ending, so try again.
        final = isinstance(error, UsageError) and not isinstance(error, ObserverMismatchError)
        return Ending("failed", str(error), final=final)
    except Exception as error:
        return Ending("failed", f"{type(error).__name__}: {error}", traceback.format_exc())


class _Work:
    """One attempt of a worker, from its first heartbeat to its last."""

    def __init__(self, task: Task, worker: int, epoch: int, board: Board, run: Worker) -> None:
        self._task = task
        self._worker = worker
        self._epoch = epoch
        self._board = board
        self._run = run
        self._beat = 0
        self._heard_beat = -1
        self._heard = time.monotonic()
        self._committed: deque[tuple[float, int]] = deque([(self._heard, 0)])
        self._columns: list[tuple[str, str]] = []

    def run(self, observers: Sequence[Observer[Any]]) -> Ending:
        """Run the worker; raises what it raised."""
        self._columns = sorted(
            {(column.table_name, column.name) for one in observers for column in one.columns}
        )
        raised: list[BaseException] = []
        ended = threading.Event()

        def run() -> None:
            try:
                self._run.run()
            except BaseException as error:
                raised.append(error)
            finally:
                ended.set()

        why = self._why_end() or self._reported_or_ended()
        if why:
            return Ending(why)
        # Not in this thread, which sends heartbeats, nor with a main thread's signal handling.
        thread = threading.Thread(target=run, name="percola-fleet-worker", daemon=True)
        thread.start()
        reported = time.monotonic()
        while not ended.wait(self._task.look):
            if not why and (why := self._why_end()):
                self._run.stop(wait=False)
            if time.monotonic() - reported >= self._task.beat:
                reported = time.monotonic()
                # Keep reporting while the last observers finish, or the driver would time out.
                refused = self._reported_or_ended()
                if refused and not why:
                    why = refused
                    self._run.stop(wait=False)
        thread.join()
        if raised:
            raise raised[0]
        self._report()
        return Ending(why or "told")

    def _why_end(self) -> str:
        now = time.monotonic()
        try:
            order = self._board.order()
        except StoreError:
            # An unreachable store counts as a missing heartbeat of the driver.
            return "silent" if now - self._heard > self._task.timeout_seconds else ""
        if order is None:
            return "over"
        if order.beat != self._heard_beat:
            self._heard_beat, self._heard = order.beat, now
        if order.stop:
            return "told"
        return "silent" if now - self._heard > self._task.timeout_seconds else ""

    def _reported_or_ended(self) -> str:
        """Report; return why this attempt must end if its report was refused, else ""."""
        return "" if self._report() else self._why_end() or "superseded"

    def _report(self) -> bool:
        """Send a heartbeat; False if this attempt has been replaced or the fleet has ended."""
        self._beat += 1
        now, counts = time.monotonic(), self._run.metrics.counts()
        transactions = self._transactions()
        self._committed.append((now, transactions))
        while len(self._committed) > 2 and now - self._committed[0][0] > _RATE_SECONDS:
            self._committed.popleft()
        since, before = self._committed[0]
        totals = {name: int(sum(by.values())) for name, by in counts.items()}
        report = Report(
            beat=self._beat,
            host=socket.gethostname(),
            pid=os.getpid(),
            transactions=transactions,
            runs=totals.get("observer_runs", 0),
            per_second=(transactions - before) / (now - since) if now > since else 0.0,
            conflicts=totals.get("observer_conflicts", 0),
            failures=totals.get("observer_failures", 0),
            dead_lettered=totals.get("observer_dead_lettered", 0),
            columns=self._columns,
        )
        try:
            return self._board.report(self._worker, self._epoch, report)
        except StoreError:
            return True

    def _transactions(self) -> int:
        """How many observers' transactions have committed; a batch is one."""
        return int(
            sum(
                sample.value
                for metric in self._run.metrics.registry.collect()
                for sample in metric.samples
                if sample.name == "percola_observer_seconds_count"
            )
        )
