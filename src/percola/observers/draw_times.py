"""§2.4: when timestamps were drawn, for the ages and latencies that a worker's metrics show.

A timestamp is a number without a time. A worker notes (timestamp, time) pairs: those of the log of
times (`percola.gc.time_log`) when it starts, then one a second, and the `start_ts` of its runs. A
timestamp was drawn before the first noted one that is not below it, so an age is never
overestimated, except by wall clocks that differ if the change is older than this process. It is
underestimated by the time to that note: up to a second, and a hundredth of one while runs follow
each other; of older notes so many are kept that it is half a percent of the age.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from percola.cells import MAX_TS
from percola.clock import Clock
from percola.gc.time_log import Entry

_APART: Final = 0.01
_MOST: Final = 8192
_PRECISION: Final = 400


class DrawTimes:
    """When timestamps were drawn, by this process's monotonic clock; for several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._noted: tuple[list[int], list[float]] = ([], [])

    def learn(self, entries: Sequence[Entry]) -> None:
        """Take over the log of times, newest first, for the time before the first note."""
        now, wall = self._clock.monotonic(), self._clock.wall_ms()
        with self._guard:
            timestamps, times = self._noted
            first = timestamps[0] if timestamps else MAX_TS
            older = [entry for entry in reversed(entries) if entry.ts < first]
            walls = itertools.accumulate((entry.wall for entry in older), max)
            before = [now - max(0, wall - one) / 1000 for one in walls]
            self._noted = [entry.ts for entry in older] + timestamps, before + times

    def note(self, ts: int) -> None:
        """A timestamp that was drawn just now, or is the newest one."""
        now = self._clock.monotonic()
        times = self._noted[1]
        if times and now - times[-1] < _APART:
            return
        with self._guard:
            timestamps, times = self._noted
            if timestamps and ts <= timestamps[-1]:
                return
            times.append(now)  # Before its timestamp: `age` looks without the guard.
            timestamps.append(ts)
            if len(timestamps) > _MOST:
                self._thin_out(now)

    def age(self, ts: int) -> float:
        """How many seconds ago, at least, a timestamp was drawn: 0 if no later one was noted."""
        [age] = self.ages([ts])
        return age

    def reaches_back_to(self, ts: int) -> bool:
        """Whether a note is older than a timestamp: if not, its age is only a lower bound."""
        noted = self._noted[0]
        return bool(noted) and noted[0] < ts

    def ages(self, timestamps: Iterable[int]) -> list[float]:
        """The same for several."""
        noted, times = self._noted
        most, now = len(noted), self._clock.monotonic()
        places = [bisect_left(noted, ts) for ts in timestamps]
        return [now - times[at] if at < most else 0.0 for at in places]

    def _thin_out(self, now: float) -> None:
        kept: list[tuple[int, float]] = []
        following = now
        timestamps, times = self._noted
        for ts, time in zip(reversed(timestamps), reversed(times), strict=True):
            if not kept or following - time >= max(_APART, (now - time) / _PRECISION):
                kept.append((ts, time))
                following = time
        kept.reverse()
        # Replaced, not changed: `age` may be looking at it.
        self._noted = [ts for ts, _ in kept], [time for _, time in kept]
