"""Runs many seeds over many workloads, adds up what happened, and says what is missing."""

from __future__ import annotations

import gc
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final

from percola.testing.simulation import (
    BATCHED,
    LOST,
    READ_AHEAD,
    FaultKind,
    Result,
    Simulation,
    shrink_run,
    tell,
)
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.ahead import ReadingAhead
from tests.simulation.workloads.collapsing import COLLAPSED
from tests.simulation.workloads.collecting import COLLECTED
from tests.simulation.workloads.columns import TOGETHER
from tests.simulation.workloads.dead_letters import DEAD_LETTERED
from tests.simulation.workloads.following import FLOOR
from tests.simulation.workloads.joint import JOINED
from tests.simulation.workloads.large import Large
from tests.simulation.workloads.paused import WAITED
from tests.simulation.workloads.recipes import SHARDED, SPLIT, Climbing, Summing
from tests.simulation.workloads.skew import SKEW

Job = tuple[str, int]
"""A workload and a seed."""

EXPECTED: Final = {
    "write-skew": SKEW,
    "collapsing": COLLAPSED,
    "columns": TOGETHER,
    "paused": WAITED,
    "dead-lettered": DEAD_LETTERED,
    "batches": BATCHED,
    "garbage": COLLECTED,
    "joint": JOINED,
    "following": FLOOR,
    ReadingAhead.name: READ_AHEAD,
    Large.name: LOST,
    Summing.name: SHARDED,
    Climbing.name: SPLIT,
}
"""What each workload is there to see happen; never seen, the simulation shows nothing."""

_CHUNK: Final = 25


@dataclass
class Summary:
    """What some runs came to.

    Attributes:
        failures: (workload, seed, claim) of the runs that violated one.
    """

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    sightings: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, int, str]] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        """Add what other runs came to."""
        self.seeds += other.seeds
        self.counts += other.counts
        self.faults += other.faults
        self.sightings += other.sightings
        self.failures += other.failures

    def __str__(self) -> str:
        counts = self.counts
        text = (
            f"{self.seeds:,} seeds: {counts['committed']:,} transactions committed, "
            f"{counts['conflicted']:,} conflicted, {counts['failed']:,} failed, "
            f"{counts['unknown']:,} unknown"
        )
        if counts["observer_runs"]:
            text += (
                f"; {counts['observer_runs']:,} observer runs, "
                f"{counts['observer_dead_lettered']:,} dead-lettered"
            )
        text += f"; {self.faults.total():,} faults"
        for what, seen in sorted(self.sightings.items()):
            text += f"; {what}: {seen:,}"
        return text + f"; {len(self.failures)} FAILED" * bool(self.failures)


def jobs_of(names: Sequence[str], seeds: int, first: int = 0) -> list[Job]:
    """`seeds` runs, spread evenly over the workloads."""
    return [(names[n % len(names)], first + n // len(names)) for n in range(seeds)]


def run_jobs(jobs: Iterable[Job]) -> dict[str, Summary]:
    """Run them in this process; by workload."""
    found: dict[str, Summary] = {}
    for name, seed in jobs:
        result = Simulation(WORKLOADS[name], seed).run()
        one = found.setdefault(name, Summary())
        one.seeds += 1
        one.counts += result.counts
        one.faults.update(fault.kind.value for fault in result.faults)
        one.sightings += result.sightings
        if result.violated is not None:
            one.failures.append((name, seed, result.violated.claim))
    gc.collect()
    return found


def run_in_processes(jobs: Sequence[Job], processes: int) -> Iterator[dict[str, Summary]]:
    """Run them in several processes; yields what a part of them came to, as they end."""
    # Neighbours in the list are of different workloads, so the parts are alike.
    chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]
    if processes == 1:
        yield from map(run_jobs, chunks)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run_jobs, chunks)


def missing(names: Sequence[str], whole: Summary) -> list[str]:
    """What should have happened in these runs and did not, in sentences."""
    problems = [
        f"The fault {kind.value!r} never happened: these runs show nothing about it."
        for kind in FaultKind
        if not whole.faults[kind.value]
    ]
    problems += [
        f"{what!r} was never seen, though the workload {name} is there to see it."
        for name, what in EXPECTED.items()
        if name in names and not whole.sightings[what]
    ]
    return problems


def explain(name: str, seed: int) -> str:
    """The shrunk story of a failing run, and how to replay both."""
    failed = Simulation(WORKLOADS[name], seed).run()
    if failed.violated is None:
        return f"{name}, seed {seed}, does not fail again: it depends on something unseeded."
    small = shrink_run(WORKLOADS[name], failed)
    return (
        f"{tell(small)}\n\nIn full:    {command_for(failed, listed=False)}\n"
        f"This story: {command_for(small)}"
    )


def command_for(result: Result, *, listed: bool = True) -> str:
    """The command that replays a run; `listed` with exactly its faults and sizes."""
    words = ["python", "-m", "tests.simulation", "--workload", result.workload]
    words += ["--seed", str(result.seed), "--story"]
    if listed:
        sizes = ",".join(f"{name}={number}" for name, number in result.sizes.items())
        words += ["--mode", result.mode.value, "--sizes", sizes]
        words += ["--faults", ";".join(map(str, result.faults))]
    return shlex.join(words)
