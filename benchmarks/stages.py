"""Where the time of a page goes: one process, one thread, a clock at every stage.

With one thread nothing overlaps, so that the stages and what lies between them add up to the
whole. How fast many processes are is not measured here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.crawl import write_warc
from benchmarks.processes import check_no_failures
from percola import Observer, Repository, Transaction, Worker, WorkerOptions
from webindex.crawl.warc import Capture, read_captures
from webindex.load.transaction import load_captures
from webindex.workers.processes import build_observers, open_index, open_repository

_GROUP: Final = 16
_LOOK_SECONDS: Final = 0.1


@dataclass(slots=True)
class Stage:
    """Seconds of one stage.

    Attributes:
        runs: how often it ran.
        inside: in the stage's own code, its reads included.
        transaction: before and after it: beginning, acknowledging, committing.
    """

    runs: int = 0
    inside: float = 0.0
    transaction: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.inside + self.transaction


@dataclass(slots=True)
class Stages:
    """The whole pass: `seconds` by the clock, of which `waiting` neither computed nor looked
    for work: it waited for the disk, as good as all of it at commits.
    """

    pages: int
    seconds: float = 0.0
    waiting: float = 0.0
    by_name: dict[str, Stage] = field(default_factory=dict)

    @property
    def scanning(self) -> float:
        """Seconds between the stages: looking for dirty cells, and locking their rows."""
        return max(0.0, self.seconds - sum(stage.seconds for stage in self.by_name.values()))

    def parts(self) -> dict[str, float]:
        """Seconds by stage, in the order of the chain; they add up to the whole."""
        found = {name: stage.seconds for name, stage in self.by_name.items()}
        return {**found, "looking for work": self.scanning}

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "pages": self.pages,
            "seconds": self.seconds,
            "waiting_seconds": self.waiting,
            "stages": {
                name: {
                    "runs": stage.runs,
                    "inside_seconds": stage.inside,
                    "transaction_seconds": stage.transaction,
                }
                for name, stage in self.by_name.items()
            },
            "scanning_seconds": self.scanning,
        }


def measure_stages(folder: Path, captures: Sequence[Capture]) -> Stages:
    """Load the captures and drain them, in one thread, from a WARC file to the index."""
    warc = folder / "stages.warc.gz"
    write_warc(warc, captures)
    found = Stages(sum(200 <= one.status < 300 for one in captures))
    address = str(folder / "stages")
    with open_repository(address, create=True) as repo, open_index(repo, create=True) as index:
        began, on_processor = time.perf_counter(), time.process_time()
        load = found.by_name.setdefault("load", Stage())
        group: list[Capture] = []
        for one in read_captures(warc):
            if isinstance(one, Capture):
                group.append(one)
            if len(group) >= _GROUP:
                _load(repo, group, warc, load)
        _load(repo, group, warc, load)
        load.inside = time.perf_counter() - began - load.transaction
        observers = [_clocked(one, found) for one in build_observers(index)]
        worker = Worker(repo, observers, WorkerOptions(threads=1))
        worker.start()
        try:
            # Seldom: each look takes its time from the thread that is measured.
            while not worker.is_idle():
                time.sleep(_LOOK_SECONDS)
            found.seconds = time.perf_counter() - began
            found.waiting = max(0.0, found.seconds - (time.process_time() - on_processor))
        finally:
            worker.stop()
        check_no_failures(repo)
        for metric in worker.metrics.registry.collect():
            for sample in metric.samples:
                if sample.name == "percola_observer_seconds_sum":
                    stage = found.by_name[sample.labels["observer"]]
                    stage.transaction = max(0.0, sample.value - stage.inside)
                elif sample.name == "percola_observer_runs_total":
                    found.by_name[sample.labels["observer"]].runs = int(sample.value)
    return found


def _load(repo: Repository, group: list[Capture], file: Path, stage: Stage) -> None:
    if group:
        began = time.perf_counter()
        load_captures(repo, group, str(file))
        stage.transaction += time.perf_counter() - began
        stage.runs += 1
        group.clear()


def _clocked(one: Observer[Any], found: Stages) -> Observer[Any]:
    """The observer with a clock around its function; its transaction is the worker's to time."""
    stage = found.by_name.setdefault(one.name, Stage())

    def run(t: Transaction, row: Any) -> object:
        began = time.perf_counter()
        try:
            return one.function(t, row)
        finally:
            stage.inside += time.perf_counter() - began

    return replace(one, function=run)
