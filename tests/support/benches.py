"""Scanners that a test looks through by hand, on a clock that stands still until it is moved."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from stores import Ground, ScriptedClock

from percola import Observer, Repository, Table
from percola.observers.metrics import WorkerMetrics
from percola.observers.observer import Observers
from percola.observers.runner import Runner, WorkerOptions
from percola.observers.scanner import Scanner
from percola.observers.schedule import Schedule
from percola.store.base import OneStepStore


class Bench:
    """The parts of a worker of one thread, in a process of its own, and what its observers ran."""

    def __init__(
        self,
        ground: Ground,
        tables: Iterable[Table[Any]],
        store: OneStepStore | None = None,
        **options: Any,
    ) -> None:
        self.clock = ScriptedClock()
        self.repo: Repository = ground.repo(tables, store=store, clock=self.clock)
        self.options = WorkerOptions(**{"threads": 1, **options})
        self.ran: list[str] = []

    def scan_with(
        self, observers: Iterable[Observer[str]], *, sweep: float | None = None, seed: int = 2
    ) -> None:
        """Have these observers, with a scanner of the worker."""
        context, options = self.repo.context, self.options
        self.observers, self._metrics = Observers(observers), WorkerMetrics()
        self.runs = Runner(context, self.observers, self._metrics, options, random.Random(1))
        sweep = options.sweep if sweep is None else sweep
        self.schedule = Schedule(context, self.observers, sweep, options.rescan, self.wake)
        context.coordination.on_wake(self.hear)
        self._rng = random.Random(seed)
        self.scanner = self.another_scanner()

    def another_scanner(self, **options: Any) -> Scanner:
        """One more scanner of the same worker."""
        return Scanner(
            self.repo.context,
            self.observers,
            self._metrics,
            self.options,
            self.runs,
            self.schedule,
            self._rng,
            **options,
        )

    def hear(self, wake_up: bytes) -> None:
        """Follow a wake-up."""
        self.schedule.note_wake_up(wake_up)

    def wake(self) -> None:
        """Scanners that rest are woken; here none does."""
