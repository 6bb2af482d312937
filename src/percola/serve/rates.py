"""Throughput, conflicts, latencies and store calls, from the totals that workers report.

A worker's row has totals since it started (`percola.observers.reports`), and is rewritten when they
have changed. A rate is the difference of a worker's last two reports; a percentile is over the
changes that were answered within the last minute, as far as the buckets of the histogram tell, as
Prometheus computes it. A worker that is seen for the first time has no rates yet: its totals may be
of days.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from percola.clock import Clock
from percola.observers.metrics import LATENCIES
from percola.observers.reports import ObserverTotals, Report

WINDOW: Final = 60.0
"""Seconds over which percentiles, failures and conflicts are counted."""

_NOTHING: Final = ObserverTotals()


@dataclass(slots=True)
class Speed:
    """What workers did for one observer, or for all.

    Attributes:
        runs, conflicts: per second, since the reports before the last ones.
        recent_runs, recent_conflicts, recent_failures: within the last minute, or since they are
            watched.
        p50, p95, p99: seconds from a change to its answer, of the last minute's answers; None if
            there were none.
    """

    runs: float = 0.0
    conflicts: float = 0.0
    recent_runs: int = 0
    recent_conflicts: int = 0
    recent_failures: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(slots=True)
class Speeds:
    """What all workers that report did.

    Attributes:
        known: whether any worker has been watched for long enough to tell.
        total: all observers together.
        observers: by observer.
        calls: calls to the store a second, and the cells that they named or found, by kind; None
            if no worker counts them.
    """

    known: bool = False
    total: Speed = field(default_factory=Speed)
    observers: dict[str, Speed] = field(default_factory=dict)
    calls: dict[str, tuple[float, float]] | None = None


class Rates:
    """Remembers the last minute's reports of each worker. For one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, deque[tuple[float, Report]]] = {}

    def take(self, reports: Mapping[str, Report]) -> Speeds:
        """The rates now that these are the reports, by row."""
        now = self._clock.monotonic()
        for row, report in reports.items():
            seen = self._seen.setdefault(row, deque())
            if not seen or seen[-1][1].at_ms != report.at_ms:
                seen.append((now, report))
            # One from before the window is where it begins.
            while len(seen) > 1 and now - seen[1][0] > WINDOW:
                seen.popleft()
        for row in [row for row in self._seen if row not in reports]:
            # What a worker did that has stopped counts until the minute is over.
            if now - self._seen[row][-1][0] > WINDOW:
                del self._seen[row]
        found = Speeds()
        latencies: dict[str, Counter[int]] = {}
        for row, seen in self._seen.items():
            self._add(found, latencies, seen, now, is_there=row in reports)
        for name, counts in latencies.items():
            _set_percentiles(found.observers.setdefault(name, Speed()), counts)
        _set_percentiles(found.total, sum(latencies.values(), Counter()))
        return found

    def _add(
        self,
        found: Speeds,
        latencies: dict[str, Counter[int]],
        seen: Sequence[tuple[float, Report]],
        now: float,
        *,
        is_there: bool,
    ) -> None:
        (_, first), (at, last) = seen[0], seen[-1]
        # The worker has looked again and reported nothing: nothing has happened since.
        quiet = now - at > 1.5 * last.every + 1
        found.known |= len(seen) > 1 or quiet
        before, seconds = (last, 1.0) if len(seen) == 1 else _since(seen[-2][1], last)
        moving = is_there and not quiet
        for name, totals in last.observers.items():
            speed = found.observers.setdefault(name, Speed())
            start = first.observers.get(name, _NOTHING)
            then = before.observers.get(name, _NOTHING)
            for one in (speed, found.total):
                one.recent_runs += totals.runs - start.runs
                one.recent_conflicts += totals.conflicts - start.conflicts
                one.recent_failures += totals.failures - start.failures
                if moving:
                    one.runs += (totals.runs - then.runs) / seconds
                    one.conflicts += (totals.conflicts - then.conflicts) / seconds
            counts = latencies.setdefault(name, Counter())
            counts.update(dict(enumerate(totals.latencies)))
            counts.subtract(dict(enumerate(start.latencies)))
        if last.calls is not None and is_there:
            found.calls = found.calls or {}
            for kind, made in last.calls.items():
                calls, cells = found.calls.get(kind, (0.0, 0.0))
                if moving and before.calls is not None:
                    earlier = before.calls.get(kind, (0, 0))
                    calls += (made[0] - earlier[0]) / seconds
                    cells += (made[1] - earlier[1]) / seconds
                found.calls[kind] = calls, cells


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The value below which a share of the counted ones is, by buckets of `LATENCIES`; in seconds.

    Within a bucket values are taken to be spread evenly. Above the highest bound it is that bound.
    None if nothing was counted.
    """
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted, reached = share * total, 0
    for place in range(len(LATENCIES)):
        count = counts.get(place, 0)
        if reached + count >= wanted and count:
            low = LATENCIES[place - 1] if place else 0.0
            return low + (LATENCIES[place] - low) * (wanted - reached) / count
        reached += count
    return LATENCIES[-1]


def _set_percentiles(speed: Speed, counts: Mapping[int, int]) -> None:
    speed.p50, speed.p95, speed.p99 = (percentile(counts, share) for share in (0.5, 0.95, 0.99))


def _since(before: Report, last: Report) -> tuple[Report, float]:
    """The report before the last one, and the seconds in which what is new has happened.

    A worker that had nothing to report for an hour had nothing until its last check.
    """
    passed = (last.at_ms - before.at_ms) / 1000
    return before, max(0.001, min(passed, 1.5 * last.every))


def retention(reports: Iterable[Report]) -> float | None:
    """The shortest retention of workers that collect garbage; None if none of them does."""
    return min((one.retention for one in reports if one.retention is not None), default=None)
