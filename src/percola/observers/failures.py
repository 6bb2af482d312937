"""§2.4: what a worker does about an observer that fails on a cell (rule N5).

A failure is tried again after a growing while, and after some attempts the observer is set
aside on that cell: a `failed` entry with the traceback, in the same row mutation that answers
the notify entry. An operator can list such entries and have the observers run again; a new
write to the cell tries again by itself.

Where a column has several observers, the notify entry stays until the last of them has dealt
with the change. Which ones are aside meanwhile is remembered here, by this process alone:
another one, or this one after a restart, tries them afresh, and comes to the same end.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from percola.cells import Cell, Kind, failed_column
from percola.clock import backoff
from percola.metrics import WorkerMetrics
from percola.observers import Observer
from percola.snapshot import Services
from percola.store.base import Delete, Put, RowMutation

log = logging.getLogger("percola.worker")

_AFTER_CONFLICTS: Final = 0.02
_REMEMBERED: Final = 10_000


@dataclass
class _Trouble:
    """An observer's trouble with a cell, up to the notify entry at `ts`."""

    ts: int
    attempts: int = 0
    due: float = 0.0
    is_aside: bool = False


class Patience:
    """Remembers which observers failed on which cells, and when to try them again.

    Args:
        attempts: how often an observer may fail on a change before it is set aside.
        first_wait: seconds until the second attempt; they double from there.
        longest_wait: seconds that they double up to.
    """

    def __init__(
        self,
        services: Services,
        metrics: WorkerMetrics,
        chance: random.Random,
        *,
        attempts: int,
        first_wait: float,
        longest_wait: float,
    ) -> None:
        self._services = services
        self._clock = services.clock
        self._metrics = metrics
        self._attempts = attempts
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._chance = chance
        self._troubles: dict[tuple[Cell, str], _Trouble] = {}
        self._guard = threading.Lock()

    def is_aside(self, one: Observer[Any], cell: Cell, newest: int) -> bool:
        """Whether the observer has been set aside for the change that `newest` tells of."""
        trouble = self._troubles.get((cell, one.name))
        return trouble is not None and trouble.is_aside and newest <= trouble.ts

    def is_due(self, one: Observer[Any], cell: Cell, newest: int) -> bool:
        """Whether to run the observer now: it has not failed, its wait is over, or it is news."""
        trouble = self._troubles.get((cell, one.name))
        return trouble is None or newest > trouble.ts or self._clock.monotonic() >= trouble.due

    def until_due(self) -> float:
        """Seconds until the next attempt that is waited for; infinite if there is none."""
        with self._guard:
            dues = [one.due for one in self._troubles.values() if not one.is_aside]
        return max(0.0, min(dues) - self._clock.monotonic()) if dues else float("inf")

    def succeeded(self, one: Observer[Any], cell: Cell) -> None:
        """The observer has run on the cell."""
        if self._troubles:
            with self._guard:
                self._troubles.pop((cell, one.name), None)

    def settled(self, cell: Cell, group: Sequence[Observer[Any]]) -> None:
        """The cell's notify entries have been answered: forget who is aside."""
        for one in group:
            self.succeeded(one, cell)

    def conflicted(self, one: Observer[Any], cell: Cell, newest: int) -> None:
        """It keeps losing to others, which is no failure: let them go first."""
        self._trouble(one, cell, newest).due = self._clock.monotonic() + _AFTER_CONFLICTS

    def failed(
        self,
        one: Observer[Any],
        cell: Cell,
        notified: Sequence[int],
        answered: Sequence[int],
        story: str,
    ) -> bool:
        """It raised, as `story` tells: try again later or set it aside; whether the latter."""
        self._metrics.failures.labels(one.name).inc()
        trouble = self._trouble(one, cell, max(notified))
        trouble.attempts += 1
        wait = backoff(
            self._chance, trouble.attempts, first=self._first_wait, most=self._longest_wait
        )
        trouble.due = self._clock.monotonic() + wait
        if trouble.attempts < self._attempts:
            return False
        self.set_aside(one, cell, notified, answered, story, trouble.attempts)
        return True

    def _trouble(self, one: Observer[Any], cell: Cell, newest: int) -> _Trouble:
        with self._guard:
            trouble = self._troubles.get((cell, one.name))
            if trouble is None or newest > trouble.ts:
                if len(self._troubles) >= _REMEMBERED:
                    self._forget_old()
                trouble = self._troubles[cell, one.name] = _Trouble(newest)
            return trouble

    def _forget_old(self) -> None:
        # Another process may have run what failed or conflicted here: nothing tells us.
        now = self._clock.monotonic()
        self._troubles = {
            key: one for key, one in self._troubles.items() if one.is_aside or one.due > now
        }

    def set_aside(
        self,
        one: Observer[Any],
        cell: Cell,
        notified: Sequence[int],
        answered: Sequence[int],
        story: str,
        attempts: int,
    ) -> None:
        """Put a `failed` entry with the story, and answer the notify entries `answered`.

        It stands at the timestamp of the newest change that the observer was to look at: a run
        that began before that change does not take it away.
        """
        last_line = story.strip().splitlines()[-1]
        log.error("%s was set aside on %s: %s", one.name, cell, last_line)
        self._metrics.set_aside.labels(one.name).inc()
        entry = {
            "observer": one.name,
            "column": cell.column.decode(),
            "attempts": attempts,
            "at_ms": self._services.clock.wall_ms(),
            "error": last_line,
            "traceback": story,
        }
        newest, store = max(notified), self._services.store
        failed = Cell(cell.table, cell.row, failed_column(one.name, cell.column))
        changes: list[Put | Delete] = [
            Put(Kind.FAILED, failed.column, newest, json.dumps(entry).encode())
        ]
        # A later failure replaces an earlier one.
        for ts, _ in store.entries(failed, Kind.FAILED, 0, newest - 1):
            changes.append(Delete(Kind.FAILED, failed.column, ts))
        changes += [Delete(Kind.NOTIFY, cell.column, ts) for ts in answered]
        store.mutate([RowMutation(cell.table, cell.row, (), changes)])
        if answered:
            self.succeeded(one, cell)
        else:
            self._trouble(one, cell, newest).is_aside = True
