"""§2.4: a worker's Prometheus metrics, in a registry per worker.

Nothing is global: two workers in one process do not share counters. A program
that serves metrics passes `WorkerMetrics.registry` to prometheus_client's exposition.
"""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from percola.platform.fork_safety import at_fork

if TYPE_CHECKING:
    from percola.observers.draw_times import DrawTimes
    from percola.observers.survey import Surveyed

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
LATENCIES: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0),
)
"""Upper bounds of the buckets of latencies, in seconds; one more bucket has what is above."""

Counted: TypeAlias = Mapping[tuple[str, str], Sequence[int]]
"""Calls to a network store, by caller and kind: number of calls, rows and cells requested."""


class WorkerMetrics:
    """Counters of one worker, labelled by observer.

    `runs` that committed, each for one row: one that keeps growing at rest shows a cycle of
    observers; `batches` of several runs that committed as one transaction, and how many were
    `split` into single runs because they did not; `conflicts` with other transactions;
    `failures`, and changes that were `dead_lettered`; `seconds` that a transaction took; `latency`
    from a change to its answer, if the worker surveys (`WorkerOptions.survey`); `teleports` of
    scanners that met another one. `gc_removed`, by what was removed, and `gc_safe_point`: what the
    worker's garbage collection did. On a network store also `store_calls`, `store_rows` and
    `store_cells`, by caller and kind, and the `prefetched_cells`, and how many of them were `used`
    (§2.5): of all that uses the repository object that the worker has.

    Args:
        observers: the names of those whose counters begin at 0. Prometheus sees no increase in a
            counter that appears with its first event.
    """

    def __init__(self, observers: Iterable[str] = ()) -> None:
        registry = self.registry = CollectorRegistry()
        label = ["observer"]
        self.runs = Counter(
            "percola_observer_runs",
            "Runs of observers that committed",
            label,
            registry=registry,
        )
        self.batches = Counter(
            "percola_observer_batches",
            "Observer transactions that committed runs for several rows",
            label,
            registry=registry,
        )
        self.split = Counter(
            "percola_observer_batches_split",
            "Batches that conflicted or failed, and ran again row by row",
            label,
            registry=registry,
        )
        self.conflicts = Counter(
            "percola_observer_conflicts",
            "Observer transactions that lost to another one and ran again",
            label,
            registry=registry,
        )
        self.failures = Counter(
            "percola_observer_failures", "Times that an observer raised", label, registry=registry
        )
        self.dead_lettered = Counter(
            "percola_observer_dead_lettered",
            "Times that a change was dead-lettered for an observer",
            label,
            registry=registry,
        )
        self.seconds = Histogram(
            "percola_observer_seconds",
            "Seconds that a committed run, or a batch of them, took",
            label,
            registry=registry,
            buckets=_SECONDS,
        )
        self.latency = _Latencies()
        registry.register(self.latency)
        self.teleports = Counter(
            "percola_scan_teleports", "Jumps of scanners that met another", registry=registry
        )

        self.gc_removed = Counter(
            "percola_gc_removed",
            "Entries that garbage collection removed",
            ["what"],
            registry=registry,
        )
        self.gc_safe_point = Gauge(
            "percola_gc_safe_point", "The oldest timestamp that can be read", registry=registry
        )
        self._committed: dict[str, tuple[Counter, Histogram]] = {}
        counters = self.runs, self.batches, self.split, self.conflicts, self.failures
        for name in observers:
            for counter in (*counters, self.dead_lettered, self.seconds):
                counter.labels(name)

    def committed(self, observer: str, rows: int, seconds: float) -> None:
        """Count an observer's transaction that ran for some rows and committed."""
        children = self._committed.get(observer)
        if children is None:
            # Cached: looking them up takes longer than counting.
            children = self.runs.labels(observer), self.seconds.labels(observer)
            self._committed[observer] = children
        runs, took = children
        runs.inc(rows)
        took.observe(seconds)
        if rows > 1:
            self.batches.labels(observer).inc()

    def collected(self, safe_point: int, removed: Mapping[str, int]) -> None:
        """Count a cycle of garbage collection."""
        self.gc_safe_point.set(safe_point)
        for what, number in removed.items():
            self.gc_removed.labels(what).inc(number)

    def watch_store(
        self, calls: Callable[[], Counted], prefetched: Callable[[], tuple[int, int]]
    ) -> None:
        """Export a repository's calls to its store as well, whenever metrics are collected.

        `prefetched` returns how many cells and whole rows were prefetched, and how many of them
        were read.
        """
        self.registry.register(_StoreMetrics(calls, prefetched))

    def watch_survey(
        self,
        observers: Sequence[str],
        paused: Callable[[], Collection[str]],
        surveyed: Callable[[], tuple[Surveyed | None, DrawTimes]],
        retention: float | None,
    ) -> None:
        """Export what surveys find as well, and which of the worker's observers are paused."""
        self.latency.observers = observers
        self.registry.register(_SurveyMetrics(observers, paused, surveyed, retention))

    def counts(self) -> dict[str, dict[str, float]]:
        """The counters as plain numbers: metric → label → count; several labels with / between.

        Without labels that have not been counted yet.
        """
        found: dict[str, dict[str, float]] = {}
        for metric in self.registry.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total") and (sample.value or not sample.labels):
                    name = sample.name.removeprefix("percola_").removesuffix("_total")
                    label = "/".join(sample.labels.values())
                    found.setdefault(name, {})[label] = sample.value
        return found


class _Latencies(Collector):
    """The histogram of latencies, which takes those of a batch at once, under one lock.

    Attributes:
        observers: the names of those whose histograms begin at 0.
    """

    def __init__(self) -> None:
        self.observers: Sequence[str] = ()
        self._start_afresh()
        at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def answered(self, observer: str, seconds: Sequence[float]) -> None:
        """Count changes that an observer answered so many seconds after their commits."""
        with self._guard:
            counts = self._counts.get(observer)
            if counts is None:
                counts = self._counts[observer] = [0] * (len(LATENCIES) + 1)
            for one in seconds:
                counts[bisect_left(LATENCIES, one)] += 1
            self._sums[observer] = self._sums.get(observer, 0.0) + sum(seconds)

    def counts(self, observer: str) -> list[int]:
        """How many changes an observer answered, by bucket; empty if none."""
        with self._guard:
            return list(self._counts.get(observer, ()))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(
            "percola_observer_latency_seconds",
            "Seconds from the commit of a change to the commit of the run that answered it",
            labels=["observer"],
        )
        with self._guard:
            for observer in dict.fromkeys((*self.observers, *self._counts)):
                counts = self._counts.get(observer) or [0] * (len(LATENCIES) + 1)
                reached = itertools.accumulate(counts)
                buckets = [
                    ("+Inf" if bound == math.inf else repr(bound), float(count))
                    for bound, count in zip((*LATENCIES, math.inf), reached, strict=True)
                ]
                family.add_metric([observer], buckets, self._sums.get(observer, 0.0))
        yield family


class _StoreMetrics(Collector):
    """Exports the counts of the counting store and the prefetch when metrics are collected."""

    def __init__(
        self, calls: Callable[[], Counted], prefetched: Callable[[], tuple[int, int]]
    ) -> None:
        self._calls = calls
        self._prefetched = prefetched

    def collect(self) -> Iterator[CounterMetricFamily]:
        labels = ["caller", "kind"]
        families = (
            CounterMetricFamily("percola_store_calls", "Calls to the store", labels=labels),
            CounterMetricFamily("percola_store_rows", "Rows that calls named", labels=labels),
            CounterMetricFamily(
                "percola_store_cells", "Cells that calls named or found", labels=labels
            ),
        )
        for labelled, counts in self._calls().items():
            for family, count in zip(families, counts, strict=True):
                family.add_metric(list(labelled), count)
        yield from families
        guessed, used = self._prefetched()
        yield CounterMetricFamily(
            "percola_prefetched_cells", "Cells and whole rows that came ahead", guessed
        )
        yield CounterMetricFamily(
            "percola_prefetched_cells_used", "Cells that came ahead and were then read", used
        )


class _SurveyMetrics(Collector):
    """Exports the last survey when metrics are collected; ages are as of then."""

    def __init__(
        self,
        observers: Sequence[str],
        paused: Callable[[], Collection[str]],
        surveyed: Callable[[], tuple[Surveyed | None, DrawTimes]],
        retention: float | None,
    ) -> None:
        self._observers = observers
        self._paused = paused
        self._surveyed = surveyed
        self._retention = retention

    def collect(self) -> Iterator[GaugeMetricFamily]:
        label = ["observer"]
        paused = self._paused()
        family = GaugeMetricFamily("percola_observer_paused", "1 if it is paused", labels=label)
        for name in self._observers:
            family.add_metric([name], float(name in paused))
        yield family
        if self._retention is not None:
            yield GaugeMetricFamily(
                "percola_gc_retention_seconds",
                "Seconds for which this worker keeps superseded versions",
                self._retention,
            )
        found, times = self._surveyed()
        dirty = GaugeMetricFamily(
            "percola_observer_dirty_cells", "Cells that it has yet to answer", labels=label
        )
        oldest = GaugeMetricFamily(
            "percola_observer_oldest_change_seconds",
            "Age of the oldest change that it has yet to answer",
            labels=label,
        )
        dead = GaugeMetricFamily(
            "percola_observer_dead_letters", "Changes that are dead-lettered for it", labels=label
        )
        complete = GaugeMetricFamily(
            "percola_survey_complete", "0 if there was more than a survey reads"
        )
        lock = GaugeMetricFamily(
            "percola_oldest_lock_seconds", "Age of the oldest lock, 0 if there is none"
        )
        safe_point = GaugeMetricFamily(
            "percola_gc_safe_point_age_seconds",
            "Seconds since the oldest timestamp that can be read was the newest one",
        )
        if found is not None:
            for name in self._observers:
                dirty.add_metric([name], found.dirty[name])
                ts = found.oldest.get(name)
                oldest.add_metric([name], 0.0 if ts is None else times.age(ts))
                if name in found.dead:
                    dead.add_metric([name], found.dead[name])
            complete.add_metric([], float(found.complete))
            ts = found.oldest_lock
            lock.add_metric([], 0.0 if ts is None else times.age(ts))
            # Of the next one, from which on something is superseded: while nothing is written the
            # safe point grows old, and nothing is kept. Where it was never raised, all is kept.
            safe_point.add_metric([], times.age(found.safe_point + 1))
        yield from (dirty, oldest, dead, lock, complete, safe_point)
