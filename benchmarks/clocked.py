"""Worker processes of the web index that record the cost of their observers.

They are what `webindex work` starts, with the same settings, but each observer is clocked: the
processor time and the time by the clock of its transactions, from beginning to commit. Once a
second every process writes down what it has come to, a line of JSON, so that the figures of one
that dies are not lost, and those of a stretch of time are the difference of two lines.

python -m benchmarks.clocked --repo FOLDER --notes FOLDER [--threads N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from percola import Observer, Worker, WorkerOptions
from percola.observers.observer import NOBODY, Notified, Watch
from percola.transactions.context import TransactionContext
from webindex.workers.processes import (
    THREADS,
    Workers,
    build_observers,
    open_index,
    open_repository,
)

T = TypeVar("T")

_EVERY_SECONDS: Final = 1.0


# --- What is counted ----------------------------------------------------------------------


@dataclass(slots=True)
class Ran:
    """The totals of an observer: rows processed, transactions, seconds."""

    runs: float = 0
    transactions: float = 0
    conflicts: float = 0
    failures: float = 0
    cpu: float = 0.0
    clock: float = 0.0


@dataclass(slots=True)
class Work:
    """The totals of worker processes: by observer, and all their processor time.

    Attributes:
        at: when it was written down, in seconds since 1970.
        cpu: processor time of the processes, in seconds: what the observers took, and looking
            for work, the search index's threads, garbage collection.
    """

    at: float = 0.0
    cpu: float = 0.0
    observers: dict[str, Ran] = field(default_factory=dict)

    @property
    def runs(self) -> float:
        """Runs of all observers."""
        return sum(one.runs for one in self.observers.values())

    @property
    def transactions(self) -> float:
        """Transactions of all observers."""
        return sum(one.transactions for one in self.observers.values())

    @property
    def rest(self) -> float:
        """Processor time outside of observers."""
        return max(0.0, self.cpu - sum(one.cpu for one in self.observers.values()))

    def __add__(self, other: Work) -> Work:
        return _combined(self, other, 1)

    def __sub__(self, other: Work) -> Work:
        return _combined(self, other, -1)

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Work:
        """The figures of a line of notes."""
        observers = {name: Ran(**one) for name, one in stored["observers"].items()}
        return cls(stored["at"], stored["cpu"], observers)


def _combined(one: Work, other: Work, sign: int) -> Work:
    found = Work(max(one.at, other.at), one.cpu + sign * other.cpu)
    for name in one.observers | other.observers:
        left, right = (asdict(work.observers.get(name, Ran())) for work in (one, other))
        found.observers[name] = Ran(**{key: left[key] + sign * right[key] for key in left})
    return found


def read_notes(files: Iterable[Path]) -> list[list[Work]]:
    """What each of some processes has written down so far, in order; half a line is left out."""
    found = []
    for file in files:
        complete = file.read_text().rpartition("\n")[0]
        found.append([Work.from_json(json.loads(line)) for line in complete.splitlines()])
    return found


def total(notes: Iterable[Sequence[Work]], at: float | None = None) -> Work:
    """What processes came to together until the time `at`: the sum of their last notes by then."""
    found = Work()
    for lines in notes:
        until = [one for one in lines if at is None or one.at <= at]
        if until:
            found += until[-1]
    return found


# --- In the benchmark: the processes ------------------------------------------------------


class ClockedWorkers(Workers):
    """Worker processes that write notes into a folder."""

    def __init__(self, address: str, count: int, notes: Path, *, threads: int = THREADS) -> None:
        notes.mkdir(parents=True, exist_ok=True)
        self._clocked = [sys.executable, "-m", "benchmarks.clocked", "--repo", address]
        self._clocked += ["--threads", str(threads), "--notes", str(notes)]
        self._notes = notes
        super().__init__(address, count, threads=threads)

    def _start(self) -> subprocess.Popen[bytes]:
        self._command = self._clocked
        return super()._start()

    @property
    def notes(self) -> list[list[Work]]:
        """What every process has written down so far, those that have died as well."""
        return read_notes(sorted(self._notes.glob("*.jsonl")))

    def work(self) -> Work:
        """What the processes have come to by now: waits for a line of each that is from now on."""
        now = time.time()
        files = [self._notes / f"{process.pid}.jsonl" for process in self.processes]
        while True:
            self.check()
            if all(one and one[-1].at >= now for one in read_notes(filter(Path.exists, files))):
                return total(self.notes)
            time.sleep(0.05)  # The processes note in files: there is nothing to wait on.


@contextmanager
def clocked(address: str, count: int, notes: Path) -> Iterator[ClockedWorkers]:
    """Clocked worker processes for a `with` block."""
    workers = ClockedWorkers(address, count, notes)
    try:
        yield workers
    finally:
        workers.stop()


# --- In a worker process ------------------------------------------------------------------


class Clock:
    """Adds up the time of observers, on all threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._by_name: dict[str, Ran] = {}

    def timed(self, name: str, call: Callable[[], T]) -> T:
        """Call, and count it as a transaction of an observer."""
        cpu, clock = time.thread_time(), time.perf_counter()
        try:
            return call()
        finally:
            cpu, clock = time.thread_time() - cpu, time.perf_counter() - clock
            with self._guard:
                ran = self._by_name.setdefault(name, Ran())
                ran.transactions += 1
                ran.cpu += cpu
                ran.clock += clock

    def work(self, worker: Worker) -> Work:
        """What has been added up, and what the worker has counted."""
        counts = worker.metrics.counts()
        with self._guard:
            found = Work(time.time(), time.process_time())
            for name, ran in self._by_name.items():
                found.observers[name] = Ran(
                    runs=counts.get("observer_runs", {}).get(name, 0),
                    transactions=ran.transactions,
                    conflicts=counts.get("observer_conflicts", {}).get(name, 0),
                    failures=counts.get("observer_failures", {}).get(name, 0),
                    cpu=ran.cpu,
                    clock=ran.clock,
                )
        return found


@dataclass(frozen=True)
class Clocked(Observer[Any]):
    """An observer whose transactions are clocked, the commit included."""

    clock: Clock = field(default_factory=Clock)

    def run(
        self, context: TransactionContext, row: bytes, notified: Notified, watch: Watch = NOBODY
    ) -> bool:
        """As an observer does."""
        inner = super().run
        return self.clock.timed(self.name, lambda: inner(context, row, notified, watch))

    def run_batch(
        self,
        context: TransactionContext,
        rows: Iterable[tuple[bytes, Notified]],
        most: int,
        watch: Watch = NOBODY,
        ahead: Collection[bytes] = (),
    ) -> tuple[list[bytes], int]:
        """As an observer does."""
        inner = super().run_batch
        return self.clock.timed(self.name, lambda: inner(context, rows, most, watch, ahead))


def observed(one: Observer[Any], clock: Clock) -> Clocked:
    """The same observer, with all its options."""
    return Clocked(**{each.name: getattr(one, each.name) for each in fields(one)}, clock=clock)


def main() -> None:
    """Work until SIGTERM or the end of standard input, and write notes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clocked")
    parser.add_argument("--repo", required=True)
    parser.add_argument("--notes", required=True, type=Path)
    parser.add_argument("--threads", type=int, default=THREADS)
    options = parser.parse_args()
    clock = Clock()
    with (
        open_repository(options.repo) as repo,
        open_index(repo, create=True) as index,
        (options.notes / f"{os.getpid()}.jsonl").open("w") as file,
    ):
        observers = [observed(one, clock) for one in build_observers(index)]
        worker = Worker(repo, observers, WorkerOptions(threads=options.threads))
        done = threading.Event()

        def write() -> None:
            while True:
                file.write(json.dumps(clock.work(worker).to_json()) + "\n")
                file.flush()
                if done.wait(_EVERY_SECONDS):
                    return

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            with worker.ending_with_input():
                print("ready", flush=True)
                worker.run()
        finally:
            done.set()
            writer.join()


if __name__ == "__main__":
    main()
