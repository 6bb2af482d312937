"""Simulated clients and workers: what runs inside a process while it lives."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from percola.clock import backoff
from percola.errors import CommitUnknownError, StoreError, TransientError
from percola.observers.metrics import WorkerMetrics
from percola.observers.observer import Observer, Observers
from percola.observers.runner import GivenUpError, Runner, WorkerOptions
from percola.observers.scanner import Scanner
from percola.observers.schedule import Schedule
from percola.repository import Repository
from percola.testing.histories.recorder import Outcome, Recorded, RecordedTransaction, Recorder
from percola.testing.simulation.schedule import Task
from percola.testing.simulation.world import Process

if TYPE_CHECKING:
    from percola.testing.simulation.run import Simulation
    from percola.testing.simulation.workload import Workload

_FIRST_WAIT: Final = 0.001
_LONGEST_WAIT: Final = 0.1
_WAKING: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of a client's transaction, as far as the client knows.

    Attributes:
        outcome: of the last attempt.
        value: what its function returned, if it committed.
        start_ts: of the last attempt; 0 if it did not begin.
        commit_ts: where it committed (`start_ts` if it wrote nothing), else None.
    """

    outcome: Outcome
    value: Any
    start_ts: int
    commit_ts: int | None

    def __bool__(self) -> bool:
        return self.outcome is Outcome.COMMITTED


class Client:
    """A client in one of its lives: the argument of a workload's `turn`.

    Attributes:
        number: which client it is, from 1; the same in every life.
        repo: its repository; all of Percola can be used.
        rng: the random number generator for its work.
    """

    def __init__(
        self, simulation: Simulation, process: Process, number: int, turns: list[int]
    ) -> None:
        self.number = number
        self.process = process
        self.rng = process.rng
        self._simulation = simulation
        self._turns = turns
        self.repo = simulation.open(process)
        self.recorder = Recorder(process.name, simulation.world.tick)
        self.recorder.cells = simulation.cells
        simulation.histories.append(self.recorder.history)

    def work(self, workload: Workload) -> None:
        """Take the remaining turns, which all lives of this client share."""
        while self._turns:
            workload.turn(self, self._turns.pop(0))
            # Mostly at once; sometimes so late that others have given up the calls in flight.
            self.think(workload.pause * (20 if self.rng.random() < 0.2 else 1))

    def think(self, seconds: float = 0.01) -> None:
        """Sleep for a random time of at most `seconds`."""
        self.process.schedule.pause(self.rng.random() * seconds)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.process.world.tell(self.process.name, "notes", text)

    def transact(
        self,
        function: Callable[[RecordedTransaction], Any],
        *,
        attempts: int = 6,
        two_phase: bool | None = None,
    ) -> Attempt:
        """Run `function(transaction)` and commit; retry on conflicts; record every attempt.

        Effects of simulated faults become outcomes; errors of `function` are raised.
        In the mixed mode, `two_phase` is drawn if it is not given.
        """
        world = self.process.world
        if two_phase is None:
            two_phase = self._simulation.mode.is_mixed and self.rng.random() < 0.5
        start_ts = 0
        for attempt in range(1, attempts + 1):
            transaction: RecordedTransaction | None = None
            try:
                transaction = self.recorder.transaction(self.repo, two_phase=two_phase)
                start_ts = transaction.start_ts
                value = function(transaction)
                commit_ts = transaction.commit()
            except TransientError as error:
                self._failed(transaction, "conflicted", start_ts, error)
                wait = backoff(self.rng, attempt, first=_FIRST_WAIT, most=_LONGEST_WAIT)
                self.repo.context.clock.sleep(wait)
            except CommitUnknownError as error:
                self._failed(None, "unknown", start_ts, error)
                if transaction is not None:
                    self._simulation.unknown.append((error, transaction.record))
                return Attempt(Outcome.UNKNOWN, None, start_ts, None)
            except StoreError as error:
                self._failed(transaction, "failed", start_ts, error)
                return Attempt(Outcome.ABORTED, None, start_ts, None)
            else:
                world.counts["committed"] += 1
                world.tell(self.process.name, "committed", start_ts, commit_ts)
                return Attempt(Outcome.COMMITTED, value, start_ts, commit_ts)
        return Attempt(Outcome.ABORTED, None, start_ts, None)

    def _failed(
        self, transaction: RecordedTransaction | None, how: str, start_ts: int, error: Exception
    ) -> None:
        if transaction is not None:
            transaction.rollback()
        world = self.process.world
        world.counts[how] += 1
        world.tell(self.process.name, how, start_ts, error)


class SimulatedWorker:
    """A worker in one of its lives: the real scanners and runner, without threads.

    Attributes:
        runs: set `runs.stopping` to let it end.
    """

    def __init__(
        self,
        process: Process,
        repo: Repository,
        observers: Sequence[Observer[Any]],
        options: WorkerOptions,
        metrics: WorkerMetrics,
    ) -> None:
        self._process = process
        self._repo = repo
        self._observers = Observers(observers)
        self._options = options
        self._metrics = metrics
        context = repo.context
        self.runs = Runner(context, self._observers, metrics, options, process.rng)
        self._schedule = Schedule(
            context, self._observers, options.sweep, options.rescan, self._wake
        )
        self._wake_ups = 0
        self._waiting: list[Task] = []

    def start(self) -> None:
        """Start its scanners and its timeout watch."""
        self._repo.context.coordination.on_wake(self._schedule.note_wake_up)
        for _ in range(self._options.threads):
            self._process.schedule.start(self._process, self._scan)
        if self._observers.dedicated:
            self._process.schedule.start(self._process, lambda: self._scan(dedicated=True))
        self._process.schedule.start(self._process, self._watch)

    def stop(self) -> None:
        """Let running observers finish, and start no more."""
        self.runs.stopping = True
        self._wake()

    def _wake(self) -> None:
        self._wake_ups += 1
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._process.schedule.wake(task, _WAKING * self._process.rng.random())

    def _scan(self, *, dedicated: bool = False) -> None:
        process = self._process
        rng = random.Random(process.rng.getrandbits(64))
        scanner = Scanner(
            self._repo.context,
            self._observers,
            self._metrics,
            self._options,
            self.runs,
            self._schedule,
            rng,
            dedicated=dedicated,
        )
        while not self.runs.stopping:
            wake_ups = self._wake_ups
            try:
                wait = scanner.look()
            except GivenUpError:
                return
            except StoreError as error:
                process.world.tell(process.name, "notes", f"ends, for the store fails: {error}")
                process.die()
                return
            if wait and self._wake_ups == wake_ups and not self.runs.stopping:
                self._wait(wait)

    def _wait(self, seconds: float) -> None:
        task = self._process.schedule.current
        if task is not None:
            self._waiting.append(task)
            self._process.schedule.pause(seconds)
            if task in self._waiting:
                self._waiting.remove(task)

    def _watch(self) -> None:
        """Give up observers that exceed their timeout, as the worker's watch does."""
        schedule = self._process.schedule
        while not self.runs.stopping:
            self._wait(self._options.timeout / 4)
            try:
                late = self.runs.give_up_late()
            except StoreError:
                self._process.die()
                return
            for _, rows in late:
                for table, row in rows:
                    self._repo.context.coordination.unlock(table, row)
                schedule.start(self._process, self._scan)


Unknown = tuple[CommitUnknownError, Recorded]
"""A commit of unknown outcome, and its record."""
