"""§2.4: running the observers of a dirty cell.

An observer that conflicts is run again at once, a few times: that is no failure. One that raises
is tried again later and then set aside, and the others go on (`percola.patience`, rule N5). One
that runs for too long is set aside as well: its thread cannot be stopped, but its transaction can
no longer commit.

Where several observers have one column, the last of them answers the notify entry, once every
other has run or been set aside. The paper avoids the case; here none answers for another.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import traceback
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any, Final

from percola.cells import MAX_TS, Cell, Kind
from percola.clock import backoff
from percola.errors import (
    ConflictingOptionsError,
    ObserverTimeoutError,
    RepositoryError,
    TransientError,
)
from percola.gc import RETENTION
from percola.metrics import WorkerMetrics
from percola.observers import Observer, Observers
from percola.patience import Patience
from percola.snapshot import Services

_CONFLICTS: Final = 8


@dataclass
class WorkerOptions:
    """How a worker works.

    Attributes:
        threads: how many scan and run observers.
        attempts: how often an observer may fail on a change before it is set aside.
        first_wait: seconds until the second attempt; they double from there.
        longest_wait: seconds that they double up to.
        timeout: seconds after which a running observer is set aside.
        rescan: seconds between scans when no bell rings: the safety net.
        sweep: seconds between looks for locks that dead processes left on observed columns.
        retention: seconds for which superseded versions stay readable; the worker removes
            older ones (`percola.gc`). Of several workers' the shortest counts. None: it leaves
            garbage collection to others.
        collect: seconds between cycles of garbage collection.
    """

    threads: int = 4
    attempts: int = 5
    first_wait: float = 0.1
    longest_wait: float = 10.0
    timeout: float = 300.0
    rescan: float = 1.0
    sweep: float = 5.0
    retention: float | None = RETENTION
    collect: float = 60.0

    def check(self) -> None:
        """Raise ConflictingOptionsError for a value that cannot work."""
        for name in ("threads", "attempts"):
            if getattr(self, name) < 1:
                raise ConflictingOptionsError(
                    f"A worker's {name} must be at least 1, not {getattr(self, name)}."
                )
        for name in ("first_wait", "longest_wait", "timeout", "rescan", "sweep", "collect"):
            if not getattr(self, name) > 0:
                raise ConflictingOptionsError(
                    f"A worker's {name} must be more than 0 seconds, not {getattr(self, name)}."
                )
        if self.retention is not None and not self.retention >= 0:
            raise ConflictingOptionsError(
                f"A worker's retention must be None or 0 seconds or more, not {self.retention}."
            )
        if self.first_wait > self.longest_wait:
            raise ConflictingOptionsError(
                f"A worker's first_wait ({self.first_wait} s) is longer than its longest_wait "
                f"({self.longest_wait} s)."
            )


class Found(Flag):
    """What a scan has come across."""

    NOTHING = 0
    RAN = auto()  # an observer ran, or a notify entry was answered
    HELD = auto()  # a dirty row that another scanner works on
    LATER = auto()  # a dirty cell whose observer is to be tried again in a while


class Outcome(Enum):
    """What has become of an observer's run on a cell."""

    RAN = auto()  # it committed
    IDLE = auto()  # it had seen the change already
    LATER = auto()  # it conflicted or failed, and will be tried again
    ASIDE = auto()  # it failed, and will not


class GivenUpError(Exception):
    """This thread's observer took too long; another thread has taken its place."""


@dataclass
class _Run:
    """An observer that is running now: what a watch over it needs to know."""

    observer: Observer[Any]
    cell: Cell
    notified: list[int]
    answered: list[int]
    thread: threading.Thread
    began: float = 0.0
    committing: bool = False
    abandoned: bool = False


class Runs:
    """Runs a worker's observers, for all of its threads.

    Args:
        chance: how long runs that conflict wait for each other.

    Attributes:
        patience: which observers failed, and when to try them again.
        stopping: set while the worker stops: scanners go no further, and a run that conflicts
            is left for later.
    """

    def __init__(
        self,
        services: Services,
        observers: Observers,
        metrics: WorkerMetrics,
        options: WorkerOptions,
        chance: random.Random,
    ) -> None:
        self._services = services
        self._clock = services.clock
        self._observers = observers
        self._metrics = metrics
        self._options = options
        self._chance = chance
        self._running: dict[int, _Run] = {}
        self._guard = threading.Lock()
        self.stopping = False
        self.patience = Patience(
            services,
            metrics,
            chance,
            attempts=options.attempts,
            first_wait=options.first_wait,
            longest_wait=options.longest_wait,
        )

    def work_cell(self, cell: Cell) -> Found:
        """Run a dirty cell's observers, under the row's advisory lock.

        The last one answers the notify entries, and only if every other has dealt with the
        change: none answers for another.
        """
        # It may be clean by now: the entries were read before the lock was taken.
        notified = [ts for ts, _ in self._services.store.entries(cell, Kind.NOTIFY, 0, MAX_TS)]
        if not notified:
            return Found.NOTHING
        newest = max(notified)
        everyone = self._observers.of(cell)
        group = [one for one in everyone if not self.patience.is_aside(one, cell, newest)]
        found = Found.NOTHING
        settled = True
        for one in group:
            outcome = Outcome.LATER
            if self.patience.is_due(one, cell, newest):
                answered = notified if settled and one is group[-1] else []
                outcome = self._run_observer(one, cell, notified, answered)
            if outcome is Outcome.LATER:
                settled = False
                found |= Found.LATER
            elif outcome is Outcome.RAN:
                found |= Found.RAN
        if settled:
            self.patience.settled(cell, everyone)
        return found

    def _run_observer(
        self, one: Observer[Any], cell: Cell, notified: list[int], answered: list[int]
    ) -> Outcome:
        """Run one observer for one dirty cell, again if it conflicts."""
        run = _Run(one, cell, notified, answered, threading.current_thread())

        def is_abandoned() -> bool:
            # Either the watch gives it up, or it goes on to commit: never both.
            with self._guard:
                run.committing = not run.abandoned
                return run.abandoned

        try:
            for attempt in itertools.count(1):
                began = self._clock.monotonic()
                with self._guard:
                    run.began, run.committing = began, False
                    self._running[id(run)] = run
                try:
                    ran = one.run(self._services, cell.row, answered, is_abandoned)
                except TransientError:
                    if run.abandoned:
                        raise GivenUpError from None
                    self._metrics.conflicts.labels(one.name).inc()
                    if attempt >= _CONFLICTS or self.stopping:
                        self.patience.conflicted(one, cell, max(notified))
                        return Outcome.LATER
                    wait = backoff(self._chance, attempt, first=0.001, most=0.1)
                    self._clock.sleep(wait)
                    continue
                self.patience.succeeded(one, cell)
                if ran:
                    self._metrics.runs.labels(one.name).inc()
                    took = self._clock.monotonic() - began
                    self._metrics.seconds.labels(one.name).observe(took)
                return Outcome.RAN if ran or answered else Outcome.IDLE
        except ObserverTimeoutError:
            raise GivenUpError from None
        except GivenUpError:
            raise
        except RepositoryError:
            if run.abandoned:
                raise GivenUpError from None
            raise
        except (Exception, SystemExit):
            if run.abandoned:
                raise GivenUpError from None
            story = traceback.format_exc()
            aside = self.patience.failed(one, cell, notified, answered, story)
            return Outcome.ASIDE if aside else Outcome.LATER
        finally:
            with self._guard:
                self._running.pop(id(run), None)
        raise AssertionError("unreachable")

    def give_up_late(self) -> list[tuple[threading.Thread, Cell]]:
        """Set aside what runs for longer than it may; the threads that are lost to it, and where.

        Each gets a GivenUpError as soon as its observer ends; nothing of that is committed.
        """
        now = self._clock.monotonic()
        with self._guard:
            late = [
                run
                for run in self._running.values()
                if now - run.began > self._options.timeout
                and not run.abandoned
                and not run.committing
            ]
            for run in late:
                run.abandoned = True
        for run in late:
            frame = sys._current_frames().get(run.thread.ident or 0)
            where = "".join(traceback.format_stack(frame)) if frame else ""
            story = (
                f"It still ran here after {self._options.timeout:g} s:\n{where}"
                f"ObserverTimeoutError: {run.observer.name} ran for longer than "
                f"{self._options.timeout:g} s; its transaction will not commit."
            )
            self._metrics.failures.labels(run.observer.name).inc()
            self.patience.set_aside(run.observer, run.cell, run.notified, run.answered, story, 1)
        return [(run.thread, run.cell) for run in late]
