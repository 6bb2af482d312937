"""§2.4: in which tables a worker's scanners have found nothing left to do.

Such a table need not be scanned again before a wake-up names it: by another scanner of this worker
as little as by the one that found it clean. So each table has a number that changes with every
wake-up that is about it, and a scan that left nothing to do is good for the number that was read
before it began. In case a wake-up was lost, one scanner in `WorkerOptions.rescan` forgets what all
of them have found (`take_turn`).

While one scanner looks at a table that may be clean, others need not do the same: they are told
(`wake`) once it has found work for them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

from percola.coordination.wake_ups import EVERY_TABLE, mark_of

_MARKS: Final = 256

Columns = frozenset[tuple[str, bytes]]
"""The columns that a scanner looks for, in any table."""


class CleanTables:
    """The tables that are clean; shared by a worker's scanners, and thread-safe.

    Args:
        rescan: seconds after which all tables are scanned without a wake-up.
        wake: wakes the scanners that wait.
    """

    def __init__(self, rescan: float, wake: Callable[[], None]) -> None:
        self._rescan = rescan
        self._wake = wake
        self._guard = threading.Lock()
        self._wake_ups = [0] * _MARKS
        self.calls = 0
        """The number of wake-ups about all tables."""
        self._clean: dict[tuple[Columns, str], int] = {}
        # By what is looked at: its number, the scanner, and whether others were sent away.
        self._looking: dict[tuple[Columns, str], tuple[int, object, bool]] = {}
        self._turn_at = -math.inf

    def note_wake_up(self, marks: bytes) -> None:
        """A wake-up with these marks has arrived, from this process or another."""
        with self._guard:
            if marks == EVERY_TABLE:
                self.calls += 1
            for mark in marks:
                self._wake_ups[mark] += 1

    def _number(self, table: str) -> int:
        return self.calls + self._wake_ups[mark_of(table)]

    # --- Scans without a wake-up --------------------------------------------------------

    def take_turn(self, now: float) -> bool:
        """Whether all tables are due without a wake-up; then they are, to all scanners."""
        with self._guard:
            if now < self._turn_at:
                return False
            self._turn_at = now + self._rescan
            self._clean.clear()
            return True

    def put_off(self, until: float) -> None:
        """No turn is due before this time."""
        with self._guard:
            self._turn_at = max(self._turn_at, until)

    def next_turn(self) -> float:
        """When the next turn is due."""
        return self._turn_at

    def forget(self) -> None:
        """Take no table for clean."""
        with self._guard:
            self._clean.clear()

    # --- Scanning -----------------------------------------------------------------------

    def is_due(self, columns: Columns, table: str) -> bool:
        """Whether a table has to be scanned for these columns."""
        return self._clean.get((columns, table)) != self._number(table)

    def begin(self, columns: Columns, table: str, scanner: object) -> int | None:
        """The table's number, for `end`; None if another scanner is looking at it already."""
        key, number = (columns, table), self._number(table)
        with self._guard:
            looking = self._looking.get(key)
            if looking is not None and looking[0] == number and looking[1] is not scanner:
                self._looking[key] = (*looking[:2], True)
                return None
            self._looking[key] = number, scanner, False
            return number

    def found(self, columns: Columns, table: str, scanner: object, *, several: bool) -> None:
        """A scanner has found work in a table: others may look there, and should if it is much."""
        if self._stops_looking((columns, table), scanner) and several:
            self._wake()

    def end(
        self, columns: Columns, table: str, scanner: object, number: int, *, is_clean: bool
    ) -> None:
        """A scan has ended, and left nothing to do if it `is_clean`."""
        self._stops_looking((columns, table), scanner)
        if is_clean:
            with self._guard:
                self._clean[columns, table] = number

    def _stops_looking(self, key: tuple[Columns, str], scanner: object) -> bool:
        """Whether others were sent away in the meantime."""
        with self._guard:
            looking = self._looking.get(key)
            if looking is None or looking[1] is not scanner:
                return False
            del self._looking[key]
            return looking[2]
