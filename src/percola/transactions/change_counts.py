"""§2.2: how often commits of this process have notified each table, for its own scanners."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from percola.platform import fork_safety as forks


class ChangeCounts:
    """Which tables the commits of this process have notified somebody in; thread-safe.

    A scanner that has found nothing in a table need not look again until its count has changed, or
    a wake-up of another process has arrived: as many wake-ups as `told` are our own.
    """

    def __init__(self) -> None:
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[str, int] = {}
        self.told = 0
        """How often anything was noted."""

    def note(self, tables: Iterable[str]) -> None:
        """A transaction has committed and notified somebody in these tables."""
        with self._guard:
            for table in tables:
                self._counts[table] = self._counts.get(table, 0) + 1
            self.told += 1

    def of(self, table: str) -> int:
        """A number that changes with every commit that notifies somebody in the table."""
        return self._counts.get(table, 0)
