"""§2.4 The worker: threads that look for dirty cells and run observers on them.

Each thread has a scanner (`percola.observers.scanner`) that scans the notify entries, runs the
observers of dirty cells (`percola.observers.runner`), and returns for how long there is nothing to
do. The thread waits that long for a wake-up: one from a commit in this process arrives at once, one
from another process within milliseconds, and a periodic scan makes up for lost ones.

A watch thread finds observers that exceed the time limit, and replaces the threads that they
occupy.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import random
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final

from percola.coordination.base import Coordination
from percola.errors import (
    ConflictingOptionsError,
    ObserverError,
    ObserverMismatchError,
    PercolaError,
    StoreError,
    UsageError,
)
from percola.gc.collector import GarbageCollector
from percola.gc.time_log import TimeLog, read_log
from percola.observers.draw_times import DrawTimes
from percola.observers.observer import ObservedColumn, Observer, Observers
from percola.observers.reports import Reporter
from percola.observers.runner import GivenUpError, Runner, WorkerOptions
from percola.observers.scanner import Scanner
from percola.observers.schedule import Schedule
from percola.observers.survey import Survey
from percola.observers.unobserved import warn_of_unobserved
from percola.platform import fork_safety as forks
from percola.repository import Repository
from percola.schema import WeakColumn
from percola.transactions.prefetch import Prefetch

__all__ = ["Worker", "WorkerOptions"]

log = logging.getLogger("percola.worker")

_LOOK: Final = 0.02
_LONGEST_LOOK: Final = 1.0
"""Seconds after which a waiting worker sees whether it is to end, at most."""
_WATCH: Final = 1.0
"""Seconds between looks for observers that exceed the time limit, at most."""
_COLLECTING: Final = 0.1  # of a thread's time
_SAID_AFTER: Final = 5.0
"""Seconds after which a worker that was told to end says for what it waits."""
_STOPPED: Final = "This worker was stopped, and does not start again: make another Worker."


@dataclass
class _Shared:
    """What the threads of a worker share, under one condition."""

    changed: threading.Condition
    wake_ups: int = 0


class Worker:
    """Runs observers on a repository until it is stopped.

        percola.Worker(repo, observers=[index]).run()

    Any number of workers, in any number of processes, may serve one repository; those that
    observe a column run the same observers on it.

    Args:
        repo: an open repository.
        observers: all observers that this worker runs.
        options: see `WorkerOptions`; its fields may be given by keyword instead.

    Raises:
        ObserverError: observers that cannot work together, or with this schema.
        ConflictingOptionsError: options out of range.
    """

    def __init__(
        self,
        repo: Repository,
        observers: Iterable[Observer[Any]],
        options: WorkerOptions | None = None,
        **fields: Any,
    ) -> None:
        self._context = repo.context
        self._observers = Observers(observers)
        if options is not None and fields:
            raise ConflictingOptionsError(
                f"A worker takes its options as WorkerOptions or by keyword ({', '.join(fields)}), "
                "not both."
            )
        self._options = options or WorkerOptions(**fields)
        self._options.check()
        for one in self._observers:
            for column in one.columns:
                repo.table(column.table_name).resolve(column.name)
                self._check_observed(one, column)
        # Prometheus is loaded by the first worker, not by every program.
        from percola.observers.metrics import WorkerMetrics

        self.metrics = WorkerMetrics(one.name for one in self._observers)
        if (calls := self._context.calls) is not None:
            prefetch = self._context.prefetch or Prefetch()
            self.metrics.watch_store(calls.counts, prefetch.counts)
        self._rng = forks.new_random()
        self._start_afresh()
        if self._options.survey is not None:
            self.metrics.watch_survey(
                [one.name for one in self._observers],
                lambda: self._runs.paused.known,
                lambda: (self._survey.last, self._times),
                self._options.retention,
            )
        forks.at_fork(self._leave_parent)

    def _check_observed(self, one: Observer[Any], column: ObservedColumn[Any]) -> None:
        """Refuse a column whose writes, or notifications, would notify nobody."""
        is_weak = isinstance(column, WeakColumn)
        if self._context.columns.get(column.address) is not (None if is_weak else True):
            raise ObserverError(
                f"The observer {one.name!r} is for {column!r}, which this repository was not "
                f"opened with as {'a weak' if is_weak else 'an observed'} column: nothing that is "
                f"written here would notify it. Pass the table {column.table_name!r}, as it is "
                "declared here, in schema=[…] when you open the repository."
            )

    def _leave_parent(self) -> None:
        self._runs.leave_parent()
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Initialise the unstarted state; also in a forked child, which has none of the threads."""
        self._shared = _Shared(threading.Condition())
        self._threads: list[threading.Thread] = []
        self._dedicated: threading.Thread | None = None
        self._times = DrawTimes(self._context.clock)
        self._runs = self._new_runner()
        self._survey = Survey(self._context, self._observers)
        self._reporter: Reporter | None = None
        self._told: set[str] = set()
        self._schedule = Schedule(
            self._context, self._observers, self._options.sweep, self._options.rescan, self._wake
        )
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._unlisten: Callable[[], None] | None = None
        self._announced = False
        self._has_started = False
        self._failure: BaseException | None = None
        self._numbers = itertools.count(1)

    @property
    def _watches_itself(self) -> bool:
        return self._options.survey is not None or self._options.report is not None

    def _new_runner(self) -> Runner:
        times = self._times if self._watches_itself else None
        return Runner(self._context, self._observers, self.metrics, self._options, self._rng, times)

    # --- Starting and stopping ----------------------------------------------------------

    def start(self) -> None:
        """Start the threads and return.

        Raises UsageError if it runs already, or was stopped: a worker that was stopped stays so,
        and another one takes its place. Raises ObserverMismatchError if a live worker runs other
        observers on one of the columns.
        """
        if self._runs.stopping:
            raise UsageError(_STOPPED)
        if self._announced:
            raise UsageError("This worker runs already.")
        self._start()

    def _start(self) -> None:
        """Start the threads. They end at once if the worker has been stopped meanwhile."""
        self._has_started = True
        coordination = self._context.coordination
        if self._options.warn_unobserved:
            self._told = warn_of_unobserved(self._context, self._observers)
        _announce(coordination, self._observers.announcement)
        self._announced = True
        self._unlisten = coordination.on_wake(self._schedule.note_wake_up)
        self._schedule.clean.forget()  # Wake-ups before did not arrive here.
        self._stopped.clear()
        threading.Thread(target=self._watch, name="percola-watch", daemon=True).start()
        self._begin(self._maintenance())
        if self._watches_itself:
            target = self._watch_itself
            self._begin(threading.Thread(target=target, name="percola-survey", daemon=True))
        for _ in range(self._options.threads):
            self._start_thread()
        if self._observers.dedicated:
            self._start_thread(dedicated=True)

    def stop(self, *, wait: bool = True) -> None:
        """Let running observers finish and start no more; with `wait`, return when all have ended.

        Idempotent. Does not wait for an observer that exceeds its time limit. Raises the error
        that ended the worker, if there was one.
        """
        with self._shared.changed:
            self._runs.stopping = True
            self._shared.changed.notify_all()
        self._stopped.set()
        if wait:
            deadline = time.monotonic() + self._options.timeout
            with self._guard:
                threads = list(self._threads)
            self._await(threads, min(deadline, time.monotonic() + _SAID_AFTER))
            if running := self._runs.running():
                log.warning(
                    "the worker is ending, and waits up to %g s for runs that have begun: %s",
                    self._options.timeout,
                    ", ".join(f"{name}, for {seconds:.0f} s" for name, seconds in running),
                )
            self._await(threads, deadline)
            with self._guard:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._schedule.disclaim()
            if self._unlisten is not None:
                self._unlisten()
                self._unlisten = None
            if self._announced:
                self._announced = False
                _withdraw(self._context.coordination, self._observers.announcement)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    @staticmethod
    def _await(threads: Iterable[threading.Thread], deadline: float) -> None:
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`; let running observers finish, then return.

        A worker that was started goes on. If `stop` was called before it began, it returns at once.
        Signals are handled only in a program's main thread. Raises StoreError if the store fails
        for good; UsageError if the worker ran and was stopped.
        """
        self._work(lambda: False)

    def run_until_idle(self) -> bool:
        """Work until no notification is left that these observers answer, then return.

        Returns whether that was reached: False if the worker was stopped before.

        Dead-lettered changes do not count: `percola.inspection.failures` lists them; nor do those
        that only paused observers have yet to handle (`Repository.paused_observers`). It may be
        called again later, unless it was stopped: errors are those of `run`.
        """
        self._schedule.ending = True
        try:
            done = self._work(lambda: self._schedule.is_idle(lambda: self._runs.stopping))
        finally:
            self._schedule.ending = False
        if done and self._options.warn_unobserved:
            with contextlib.suppress(PercolaError):  # The work is done, and this is advice.
                warn_of_unobserved(self._context, self._observers, self._told)
        return done

    @contextlib.contextmanager
    def ending_with_input(self) -> Iterator[None]:
        """While a `with` block runs, stop once standard input ends.

        For a process that was started with a pipe as its input: it ends with the process that has
        the other end, however that ends.
        """
        ended, end = os.pipe()
        watch = threading.Thread(
            target=self._stop_at_end_of_input, args=(ended,), name="percola-parent", daemon=True
        )
        watch.start()
        try:
            yield
        finally:
            # A thread that still waits when Python exits keeps its resources.
            os.close(end)
            watch.join()
            os.close(ended)

    def _stop_at_end_of_input(self, ended: int) -> None:
        while True:
            readable, _, _ = select.select([0, ended], [], [])
            if ended in readable:
                return
            if not os.read(0, 1024):
                self.stop(wait=False)
                return

    def _work(self, finished: Callable[[], bool]) -> bool:
        """Work until it is finished; False if it was stopped before."""
        if self._runs.stopping:
            if self._has_started:
                raise UsageError(_STOPPED)
            return False
        done, failures = False, 0
        with self._signals():
            if not self._announced:
                self._start()
            try:
                while not self._runs.stopping:
                    began = time.monotonic()
                    try:
                        done, failures = finished(), 0
                    except StoreError as error:
                        failures += 1
                        log.warning("whether there is more to do is not known: %s", error)
                        if failures >= self._options.attempts:
                            raise
                    if done:
                        break
                    # Waits for the end only, not for the wake-up of every commit. The question may
                    # take long if many cells wait for a paused observer: half of the time at most.
                    now = time.monotonic()
                    until = now + max(_LOOK, now - began)
                    while not self._runs.stopping and (left := until - time.monotonic()) > 0:
                        self._stopped.wait(min(_LONGEST_LOOK, left))
            finally:
                self.stop()
        if done:
            self._runs.stopping = False
        return done

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _: Any) -> None:
            # No lock here: the main thread may hold it. It polls every few milliseconds.
            self._runs.stopping = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def is_idle(self) -> bool:
        """Whether no notify entry is left for this worker's observers, in the whole repository.

        An entry is removed only after its observer's commit, so a run in progress counts as work;
        so does a lock on an observed cell, if resolving it puts the notify entry.
        """
        return self._schedule.is_idle()

    # --- Scanning -----------------------------------------------------------------------

    def _start_thread(self, *, dedicated: bool = False) -> None:
        thread = threading.Thread(
            target=self._scan_forever,
            args=(dedicated,),
            name=f"percola-{'dedicated' if dedicated else 'scan'}-{next(self._numbers)}",
            daemon=True,
        )
        if dedicated:
            self._dedicated = thread
        self._begin(thread)

    def _begin(self, thread: threading.Thread) -> None:
        # Under the guard, so that a concurrent `stop` joins only threads that have been started.
        with self._guard:
            thread.start()
            self._threads.append(thread)

    def _wake(self) -> None:
        with self._shared.changed:
            self._shared.wake_ups += 1
            self._shared.changed.notify_all()

    def _scan_forever(self, dedicated: bool) -> None:
        process = os.getpid()
        try:
            self._scan(dedicated)
        finally:
            # Threads that libraries have started in the child would keep it alive for ever.
            if os.getpid() != process:
                log.warning("process %d, which an observer has forked, ends here", os.getpid())
                os._exit(1)

    def _scan(self, dedicated: bool) -> None:
        rng = random.Random(self._rng.getrandbits(64))
        scanner = Scanner(
            self._context,
            self._observers,
            self.metrics,
            self._options,
            self._runs,
            self._schedule,
            rng,
            dedicated=dedicated,
        )
        pool = self._observers.pool
        while not self._runs.stopping:
            wake_ups = self._shared.wake_ups
            try:
                wait = scanner.look()
            except GivenUpError:
                return
            except Exception as error:
                self._end_with(error)
                return
            if wait:
                if not dedicated and scanner.is_well and self._shared.wake_ups == wake_ups:
                    self._context.coordination.idle(pool)
                with self._shared.changed:
                    if self._shared.wake_ups == wake_ups and not self._runs.stopping:
                        self._shared.changed.wait(wait)

    def _end_with(self, error: Exception) -> None:
        """Stop the worker; `run` and `stop` raise the error."""
        self._failure = error
        self._runs.stopping = True
        self._wake()

    # --- Watching -----------------------------------------------------------------------

    def _watch(self) -> None:
        """Give up observers that exceed the time limit, and replace their threads.

        Ends the worker if its repository is gone.
        """
        period, looked_at = min(_WATCH, self._options.timeout / 4), monotonic()
        while not self._stopped.wait(period):
            now = monotonic()
            late, looked_at = now - looked_at - period, now
            if late > period:
                # The process was stopped, by Ctrl-Z or with its container: no run has gone on.
                self._runs.excuse(late)
            try:
                self._context.coordination.check_place()
                for thread, rows in self._runs.give_up_late():
                    with self._guard:  # If it has ended since, `stop` may have removed it.
                        self._threads = [one for one in self._threads if one is not thread]
                    for table, row in rows:
                        self._context.coordination.unlock(table, row)
                    self._start_thread(dedicated=thread is self._dedicated)
            except Exception as error:
                self._end_with(error)
                return

    # --- Garbage collection ---------------------------------------------------------------

    def _maintenance(self) -> threading.Thread:
        """The thread that collects garbage, or else writes the log of times that GC also writes."""
        context, retention = self._context, self._options.retention
        if retention is None:
            action = partial(self._note_time, TimeLog(context.store, context.clock, None))
            name, failed = "percola-time", "the time was not logged, and will be next time"
        else:
            collector = GarbageCollector(context, retention=retention, share=_COLLECTING)
            action = partial(self._collect, collector)
            name, failed = "percola-gc", "garbage collection failed and will be tried again"
        args = (action, failed)
        return threading.Thread(target=self._regularly, args=args, name=name, daemon=True)

    def _regularly(self, action: Callable[[], None], failed: str) -> None:
        while not self._stopped.wait(self._options.collect):
            try:
                action()
            except PercolaError as error:
                log.warning("%s: %s", failed, error)
            except Exception as error:
                self._end_with(error)
                return

    def _collect(self, collector: GarbageCollector) -> None:
        """Remove old versions, a little at a time; one worker per repository does it (P12)."""
        with collector.turn() as mine:
            if mine:
                collected = collector.collect(stopped=self._stopped.is_set)
                self.metrics.collected(collected.safe_point, collected.removed)
                if self._reporter is not None:
                    self._reporter.held_back = collected.held_back
            elif self._reporter is not None:
                self._reporter.held_back = ""

    # --- Surveys and reports --------------------------------------------------------------

    def _watch_itself(self) -> None:
        """Survey and report now and then, and note once a second which timestamp is the newest."""
        clock, learned = self._context.clock, False
        reporter = self._reporter = self._new_reporter()
        actions: dict[str, tuple[float, Callable[[], None]]] = {}
        if self._options.survey is not None:
            actions["the survey for the metrics"] = self._options.survey, self._survey.look
        if reporter is not None and self._options.report is not None:
            actions["the report for percola serve"] = self._options.report, reporter.report
        due = dict.fromkeys(actions, -math.inf)
        shortest = min(every for every, _ in actions.values())
        try:
            while not self._stopped.is_set():
                doing = "reading the log of times"
                try:
                    if not learned:
                        self._times.learn(read_log(self._context.store))
                        if reporter is not None:
                            reporter.forget_dead()
                        learned = True
                    self._times.note(self._context.oracle.read_timestamp())
                    for name, (every, action) in actions.items():
                        if clock.monotonic() >= due[name]:
                            doing, due[name] = name, clock.monotonic() + every
                            action()
                except PercolaError as error:
                    log.warning("%s failed and is repeated: %s", doing, error)
                    self._stopped.wait(shortest)
                except Exception as error:
                    self._end_with(error)
                    return
                self._stopped.wait(min(1.0, shortest))
        finally:
            self._survey.end_turn()
            if reporter is not None:
                with contextlib.suppress(PercolaError):  # The next worker that starts removes it.
                    reporter.withdraw()

    def _new_reporter(self) -> Reporter | None:
        options, calls = self._options, self._context.calls
        if options.report is None:
            return None
        return Reporter(
            self._context,
            [one.name for one in self._observers],
            self.metrics,
            self._runs.running,
            None if calls is None else calls.counts,
            every=options.report,
            threads=options.threads,
            retention=options.retention,
        )

    def _note_time(self, times: TimeLog) -> None:
        times.newest_older(self._context.oracle.read_timestamp())


# --- What this process announces: the observers of all its workers ------------------------

_announcing = threading.Lock()
_announced: weakref.WeakKeyDictionary[Coordination, list[dict[str, list[str]]]] = (
    weakref.WeakKeyDictionary()
)


def _start_afresh() -> None:
    global _announcing
    _announcing = threading.Lock()
    _announced.clear()


forks.at_fork(_start_afresh)


def _announce(coordination: Coordination, mine: dict[str, list[str]]) -> None:
    with _announcing:
        others = _announced.setdefault(coordination, [])
        for column, names in mine.items():
            for other in others:
                if sorted(other.get(column, names)) != sorted(names):
                    raise ObserverMismatchError(
                        f"Another worker of this process observes {column} with "
                        f"{', '.join(other[column])}, and this one with {', '.join(names)}. All "
                        "workers of a repository run the same observers on a column: "
                        "docs/guide.md, Observers of several programs, says how teams share one."
                    )
        coordination.announce_observers(_merged([*others, mine]))
        others.append(mine)


def _withdraw(coordination: Coordination, mine: dict[str, list[str]]) -> None:
    with _announcing:
        others = _announced.setdefault(coordination, [])
        if mine in others:
            others.remove(mine)
            with contextlib.suppress(PercolaError, OSError):  # The coordination may be closed.
                coordination.announce_observers(_merged(others))


def _merged(announcements: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    return {column: names for one in announcements for column, names in one.items()}
