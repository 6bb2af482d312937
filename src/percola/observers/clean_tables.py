"""§2.4: in which tables a worker's scanners have found nothing left to do.

Such a table need not be scanned again before a wake-up is about it: by another scanner of this
worker as little as by the one that found it clean. So each table has a number that changes with
every wake-up that is about it, and a scan that left nothing to do is good for the number that was
read before it began. A scan that went over the whole table but had to leave some rows is good for
all others.

What wake-ups since then were about is kept, so that only those rows need to be scanned; if they
were about the whole table, or about too many rows, all of it has to be. In case a wake-up was lost,
one scanner in `WorkerOptions.rescan` forgets what all of them have found (`take_turn`).

While one scanner looks at a table that may be clean, others need not do the same: they are told
(`wake`) once it has found work for them.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Set
from typing import Final, NamedTuple

from percola.coordination.wake_ups import mark_of, rows_of

_MARKS: Final = 256
_ROWS: Final = 64
"""The most rows of a table that are scanned by themselves."""
_KEPT: Final = 32
"""So many wake-ups about rows are kept for each table."""

Columns = frozenset[tuple[str, bytes]]
"""The columns that a scanner looks for, in any table."""

_NO_ROWS: Final[Set[bytes]] = frozenset()

Number = tuple[int, int]
"""How many wake-ups there were about all tables, and about this one."""


class Look(NamedTuple):
    """A scan that has begun.

    Attributes:
        number: the table's.
        rows: the rows to scan, as a wake-up has them; None for all of the table.
    """

    number: Number
    rows: Set[bytes] | None


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
        # By mark: the last wake-ups about rows alone, each with how many there were with it.
        self._rows: dict[int, deque[tuple[int, Set[bytes]]]] = {}
        self.calls = 0
        """The number of wake-ups about all tables."""
        # For which number a table is clean, but for some rows.
        self._clean: dict[tuple[Columns, str], tuple[Number, Set[bytes]]] = {}
        # By what is looked at: its number, the scanner, and whether others were sent away.
        self._looking: dict[tuple[Columns, str], tuple[Number, object, bool]] = {}
        self._turn_at = -math.inf

    def note_wake_up(self, wake_up: bytes) -> None:
        """A wake-up has arrived, from this process or another."""
        about = rows_of(wake_up)
        with self._guard:
            if not about:
                self.calls += 1
            for mark, rows in about.items():
                self._wake_ups[mark] += 1
                if rows is not None:
                    kept = self._rows.setdefault(mark, deque(maxlen=_KEPT))
                    kept.append((self._wake_ups[mark], rows))

    def _number(self, table: str) -> Number:
        return self.calls, self._wake_ups[mark_of(table)]

    def _rows_since(self, number: Number, table: str) -> set[bytes] | None:
        """What wake-ups have been about since there was this number; None for all of the table."""
        calls, missing = self._number(table)
        if number[0] != calls:
            return None
        found: set[bytes] = set()
        for count, rows in reversed(self._rows.get(mark_of(table), ())):
            if missing == number[1] or len(found) > _ROWS:
                break
            if count != missing:
                return None
            found |= rows
            missing -= 1
        return found if missing == number[1] and len(found) <= _ROWS else None

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
        """Whether a table, or some of its rows, has to be scanned for these columns."""
        number, rows = self._clean.get((columns, table), (None, _NO_ROWS))
        return number != self._number(table) or bool(rows)

    def begin(self, columns: Columns, table: str, scanner: object) -> Look | None:
        """What to scan of a table; None if another scanner is looking at it already."""
        key = columns, table
        with self._guard:
            number = self._number(table)
            looking = self._looking.get(key)
            if looking is not None and looking[0] == number and looking[1] is not scanner:
                self._looking[key] = (*looking[:2], True)
                return None
            self._looking[key] = number, scanner, False
            if (clean := self._clean.get(key)) is None:
                return Look(number, None)
            since = self._rows_since(clean[0], table)
            return Look(number, None if since is None else since | clean[1])

    def found(self, columns: Columns, table: str, scanner: object, *, several: bool) -> None:
        """A scanner has found work in a table: others may look there, and should if it is much."""
        if self._stops_looking((columns, table), scanner) and several:
            self._wake()

    def end(
        self,
        columns: Columns,
        table: str,
        scanner: object,
        look: Look,
        left: Set[bytes] | None,
    ) -> None:
        """A scan has ended; `left` are rows in which there is more to do, None if it was cut short.

        The rows as a wake-up has them.
        """
        key = columns, table
        self._stops_looking(key, scanner)
        if left is not None:
            with self._guard:
                if len(left) <= _ROWS:
                    self._clean[key] = look.number, left
                else:
                    self._clean.pop(key, None)

    def _stops_looking(self, key: tuple[Columns, str], scanner: object) -> bool:
        """Whether others were sent away in the meantime."""
        with self._guard:
            looking = self._looking.get(key)
            if looking is None or looking[1] is not scanner:
                return False
            del self._looking[key]
            return looking[2]
