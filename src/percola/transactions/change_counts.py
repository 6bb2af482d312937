"""§2.2: how often commits of this process have notified each table, for its own scanners."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from percola.platform import fork_safety as forks


class ChangeCounts:
    """Counts, by table, the commits of this process that put notify entries; thread-safe.

    A scanner that has found nothing in a table need not scan it again until its count has changed
    or a wake-up from another process has arrived; `told` of all wake-ups are from this process.
    """

    def __init__(self) -> None:
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[str, int] = {}
        self.told = 0
        """The number of calls of `note`."""

    def note(self, tables: Iterable[str]) -> None:
        """Note that a transaction with notify entries in these tables has committed."""
        with self._guard:
            for table in tables:
                self._counts[table] = self._counts.get(table, 0) + 1
            self.told += 1

    def of(self, table: str) -> int:
        """A number that changes with every commit that puts notify entries in the table."""
        return self._counts.get(table, 0)
