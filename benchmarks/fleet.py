"""Workers on Spark: what a fleet costs while it has nothing to do, by its number of workers.

A worker is a Spark job of one task that never ends, and a thread of the driver waits for each. All
report once a second to one row of the repository, which the driver reads as often. It is measured
how long a fleet takes to start and to stop, what the driver's Python, its JVM and all workers
compute in a second of idleness, and how long a single change waits for one of the workers. All run
on this machine, so what they compute together is what its cores can bear; a cluster's driver has
the first two parts alone. For more workers than these cores can bear, the same threads and jobs of
the driver are measured with tasks that only wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pyspark import InheritableThread
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks.fig7_steps import processes_below
from benchmarks.measure import (
    Distribution,
    conditions,
    conditions_line,
    cpu_seconds,
    output_name,
    parse_sizes,
    temporary_folder,
    write_json,
)
from benchmarks.processes import role_of
from percola import PercolaError, Repository, Table, Transaction, observer
from percola.spark import run_workers, spark_session

WORKERS: Final = (16, 64)
JOBS: Final = 256
_TIMEOUT: Final = 600.0

_table = Table("words")
_text = _table.column("text", str, observed=True)
_length = _table.column("length", int)


@observer(_text)
def _measure_text(t: Transaction, row: str) -> None:
    text = t.get(_text, row)
    t.set(_length, row, len(text) if text else 0)


OBSERVERS: Final = [_measure_text]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What was measured of a fleet.

    Attributes:
        start: seconds until all workers have reported.
        driver: processor milliseconds a second of the driver's Python; `jvm` that of its JVM, and
            `each` that of a worker.
        threads: of the driver's Python, and of its JVM.
        memory: megabytes of all workers, pages that they share counted once.
        answered: milliseconds from the commit of a change to that of the observer.
        stop: seconds until all have ended.
    """

    workers: int
    start: float
    driver: float
    jvm: float
    each: float
    threads: tuple[int, int]
    memory: float
    answered: Distribution
    stop: float


def _jvm() -> int:
    for pid in processes_below(os.getpid()):
        with suppress(OSError):
            if role_of(Path(f"/proc/{pid}/cmdline").read_bytes()) == "Spark's JVM":
                return pid
    raise PercolaError("This process has not started a JVM.")


def _cpu(pid: int) -> float:
    with suppress(OSError):
        return cpu_seconds(Path(f"/proc/{pid}/stat").read_text())
    return 0.0


def _pss(pid: int) -> int:
    with suppress(OSError, KeyError):
        return parse_sizes(Path(f"/proc/{pid}/smaps_rollup").read_text())["Pss"]
    return 0


def _answers(repo: Repository, changes: int) -> Distribution:
    """How long single changes wait for a worker, one after the other."""
    waited = []
    for number in range(changes):
        with repo.transaction() as t:
            t.set(_text, f"row{number}", "to be or not to be")
        began = time.monotonic()
        assert t.commit_ts is not None
        repo.wait_answered(t.commit_ts, timeout=_TIMEOUT)
        waited.append(1000 * (time.monotonic() - began))
    found = Distribution.of(waited)
    assert found is not None
    return found


def measure(folder: Path, workers: int, seconds: float, changes: int) -> Fleet:
    """A fleet from its start to its end, in a Spark of its own.

    Raises PercolaError if it does not start in time.
    """
    address = folder / f"repository-{workers}"
    properties = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    with (
        percola.open(address, [_table], durability="relaxed") as repo,
        spark_session(f"local[{workers}]", "fleet", properties) as spark,
    ):
        began = time.monotonic()
        fleet = run_workers(spark, "benchmarks.fleet:OBSERVERS", address, workers=workers)
        try:
            while not all(one.state == "working" for one in fleet.status()):
                fleet.check()
                if time.monotonic() - began > _TIMEOUT:
                    raise PercolaError(f"{workers} workers have not begun in {_TIMEOUT:.0f} s.")
                fleet.wait(0.5)
            start = time.monotonic() - began
            jvm, *tasks = processes_below(_jvm())
            fleet.wait(seconds / 4)
            before = _spent(jvm, tasks)
            fleet.wait(seconds)
            own, java, rest = (
                1000 * (after - then) / seconds
                for after, then in zip(_spent(jvm, tasks), before, strict=True)
            )
            threads = threading.active_count(), _threads_of(jvm)
            memory = sum(map(_pss, tasks)) / 1e6
            answered = _answers(repo, changes)
        finally:
            ended = time.monotonic()
            fleet.stop(_TIMEOUT)
        return Fleet(
            workers, start, own, java, rest / workers, threads, memory,
            answered, time.monotonic() - ended,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Jobs:
    """What so many jobs of one waiting task cost; the attributes are as those of `Fleet`."""

    jobs: int
    start: float
    driver: float
    jvm: float
    threads: tuple[int, int]
    stop: float


def _wait_for(file: str, numbers: Iterable[int]) -> Iterator[int]:
    for number in numbers:
        Path(f"{file}-{number}").touch()
        while not Path(file).exists():
            time.sleep(0.5)  # The driver tells by a file.
        yield number


def measure_jobs(folder: Path, jobs: int, seconds: float) -> Jobs:
    """Run so many jobs of one task each at a time, each from a thread of its own, as a fleet does.

    Raises PercolaError if they do not start in time.
    """
    ended = folder / "ended"
    properties = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    with spark_session(f"local[{jobs}]", "fleet", properties) as spark:
        context = spark.sparkContext

        def keep(number: int) -> None:
            context.setJobGroup(f"job-{number}", "a task that waits")
            waits = partial(_wait_for, str(ended))
            context.parallelize([number], 1).mapPartitions(waits).collect()

        keepers = [InheritableThread(target=keep, args=(one,), daemon=True) for one in range(jobs)]
        began = time.monotonic()
        for keeper in keepers:
            keeper.start()

        while len(list(folder.glob("ended-*"))) < jobs:
            if time.monotonic() - began > _TIMEOUT:
                raise PercolaError(f"{jobs} jobs have not begun in {_TIMEOUT:.0f} s.")
            time.sleep(0.1)  # Other processes tell by files.
        start, jvm = time.monotonic() - began, _jvm()
        time.sleep(seconds / 4)
        before = time.process_time(), _cpu(jvm)
        time.sleep(seconds)
        own, java = (
            1000 * (after - then) / seconds
            for after, then in zip((time.process_time(), _cpu(jvm)), before, strict=True)
        )
        threads = threading.active_count(), _threads_of(jvm)
        ended.touch()
        stopped = time.monotonic()
        for keeper in keepers:
            keeper.join(_TIMEOUT)
        return Jobs(jobs, start, own, java, threads, time.monotonic() - stopped)


def _threads_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])


def _spent(jvm: int, tasks: list[int]) -> tuple[float, float, float]:
    return time.process_time(), _cpu(jvm), sum(map(_cpu, tasks))


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the table, write the figures as JSON."""
    sizes, seconds, changes = ((4,), 4.0, 10) if quick else (WORKERS, 30.0, 100)
    found = conditions()
    fleets = []
    with temporary_folder() as folder:
        # Said by lines: a moving display would compute in the process that is measured, and more
        # than an idle fleet's driver.
        for workers in sizes:
            console.log(f"A fleet of {workers} workers …")
            fleets.append(measure(folder, workers, seconds, changes))
        console.log("Jobs that wait …")
        waiting = measure_jobs(folder, 16 if quick else JOBS, seconds)
    grid = Grid("", *(f"{one.workers} workers" for one in fleets), box=SIMPLE_HEAD)
    for column in grid.columns[1:]:
        column.justify = "right"
    for name, shown in (
        ("start, s", [f"{one.start:.1f}" for one in fleets]),
        ("driver's Python, ms/s", [f"{one.driver:.1f}" for one in fleets]),
        ("driver's JVM, ms/s", [f"{one.jvm:.1f}" for one in fleets]),
        ("each worker, ms/s", [f"{one.each:.2f}" for one in fleets]),
        ("threads, Python", [f"{one.threads[0]:,}" for one in fleets]),
        ("threads, JVM", [f"{one.threads[1]:,}" for one in fleets]),
        ("memory of all workers, MB", [f"{one.memory:,.0f}" for one in fleets]),
        ("a change is answered, p50 ms", [f"{one.answered.p50:.1f}" for one in fleets]),
        ("a change is answered, p95 ms", [f"{one.answered.p95:.1f}" for one in fleets]),
        ("stop, s", [f"{one.stop:.1f}" for one in fleets]),
    ):
        grid.add_row(name, *shown)
    console.print(grid)
    console.print(
        f"{waiting.jobs} jobs of a task that only waits: all run after {waiting.start:.1f} s; the "
        f"driver's Python takes {waiting.driver:.1f} ms a second and its JVM {waiting.jvm:.1f}, in "
        f"{waiting.threads[0]:,} and {waiting.threads[1]:,} threads; all end within "
        f"{waiting.stop:.1f} s.",
        soft_wrap=True,
    )
    console.print(f"On {conditions_line(found)}.", soft_wrap=True)
    figures = {
        "conditions": found,
        "fleets": [asdict(one) for one in fleets],
        "jobs": asdict(waiting),
    }
    path = write_json(output_name("fleet", quick=quick), figures)
    console.print(f"Figures: {path}", style="dim", soft_wrap=True)
