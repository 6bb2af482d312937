"""The hunt for a mutant: seed after seed, until one shows it; and then the same seed without it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

from percola.testing.simulation import Fault, FaultKind, Mode, Result, Simulation, Workload, shrink
from percola.testing.simulation import run as simulation
from percola.testing.simulation.workload import COMMON_SIZES
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.mutant import Mutant

MOST_SEEDS: Final = 3000
_LONGEST: Final = 60.0
"""Simulated seconds: nearly all that does not come to rest within a minute never does."""

_WHOLE: Final = simulation._LONGEST


@dataclass(frozen=True)
class Try:
    """One run that may show a mutant: a workload, a seed, and how transactions commit."""

    workload: type[Workload]
    seed: int
    mode: Mode | None

    def run(
        self,
        mutant: Mutant | None,
        kinds: Sequence[FaultKind],
        *,
        watches_steps: bool = False,
        sizes: Mapping[str, int] | None = None,
        faults: Sequence[Fault] | None = None,
        longest: float = _LONGEST,
    ) -> tuple[Result, int]:
        """Run it with the mutant, or without any; and how often the mutant was called."""

        def run(factories: Mapping[str, Any]) -> Result:
            with mock.patch.object(simulation, "_LONGEST", longest):
                return Simulation(
                    self.workload,
                    self.seed,
                    mode=self.mode,
                    kinds=kinds,
                    sizes=sizes,
                    faults=faults,
                    watches_steps=watches_steps,
                    **factories,
                ).run()

        if mutant is None:
            return run({}), 0
        with mutant.installed() as seams:
            result = run(seams.factories)
        return result, seams.calls


@dataclass(frozen=True)
class Hunt:
    """How the hunt for a mutant ended.

    Attributes:
        mutant: its name.
        seeds: how many runs it took, the last one included, by what came of them.
        seconds: how long they took.
        calls: how often the mutant was called in them.
        workload: of the run that showed it.
        seed: the seed of that run.
        mode: how its transactions committed.
        claim: what did not hold; None if it has survived.
        without: what the same run violates without the mutant: it must be None.
        watched: how many it takes if every row mutation is watched as well; 0 if nobody asked.
    """

    mutant: str
    seeds: int
    seconds: float
    calls: int
    workload: str = ""
    seed: int = 0
    mode: str = ""
    claim: str | None = None
    without: str | None = None
    watched: int = 0

    @property
    def problem(self) -> str | None:
        """What is wrong with the simulation, in a sentence; None if it has done its work."""
        if not self.calls:
            return f"{self.mutant} was never called: its workloads do not come by."
        if self.claim is None:
            return f"{self.mutant} survived {self.seeds:,} seeds."
        if self.without is not None:
            return (
                f"{self.mutant} is not to blame: {self.workload} fails with seed {self.seed} "
                f"without it, too: {self.without}"
            )
        return None

    @property
    def first_sentence(self) -> str:
        """The beginning of what did not hold, in one line."""
        claim = re.sub(r"\.{4,}", "…", " ".join((self.claim or "").split()))
        return re.split(r"(?<=[.!?])\s", claim, maxsplit=1)[0]


def tries(mutant: Mutant, number: int) -> Try:
    """The run number `number` (from 0): its workloads in turn, and so its modes."""
    workload = mutant.workloads[number % len(mutant.workloads)]
    seed = number // len(mutant.workloads)
    mode = mutant.modes[seed % len(mutant.modes)] if mutant.modes else None
    return Try(workload, seed, mode)


def hunt(mutant: Mutant, most: int = MOST_SEEDS) -> Hunt:
    """Look for a run that shows the mutant; `most` of them."""
    began = time.monotonic()
    calls = 0
    for number in range(most):
        one = tries(mutant, number)
        result, called = one.run(mutant, mutant.kinds)
        calls += called
        if result.violated is not None and called:
            seconds = time.monotonic() - began
            innocent, _ = one.run(None, mutant.kinds, watches_steps=True)
            if innocent.violated is not None:
                innocent, _ = one.run(None, mutant.kinds, watches_steps=True, longest=_WHOLE)
                if innocent.violated is None:
                    continue  # A minute is not enough for this seed, whatever runs.
            return Hunt(
                mutant.name,
                number + 1,
                seconds,
                calls,
                result.workload,
                one.seed,
                result.mode.value,
                result.violated.claim,
                None if innocent.violated is None else innocent.violated.claim,
            )
    return Hunt(mutant.name, most, time.monotonic() - began, calls)


def watched(mutant: Mutant, seeds: int) -> int:
    """How many of the first runs it takes to see the mutant at its work."""
    for number in range(seeds - 1):
        result, _ = tries(mutant, number).run(mutant, mutant.kinds, watches_steps=True)
        if result.violated is not None:
            return number + 1
    return seeds


def hunt_by_name(name: str, most: int = MOST_SEEDS) -> Hunt:
    """`hunt` in another process, which has no use for the classes that some mutants make."""
    mutant = MUTANTS[name]
    found = hunt(mutant, most)
    return found if found.claim is None else replace(found, watched=watched(mutant, found.seeds))


def shrunk(mutant: Mutant, most: int = MOST_SEEDS) -> Result | None:
    """The smallest run found that shows the mutant; None if none does."""
    for number in range(most):
        one = tries(mutant, number)
        failed, called = one.run(mutant, mutant.kinds)
        if failed.violated is None or not called:
            continue

        def again(sizes: Mapping[str, int], faults: Sequence[Fault], one: Try = one) -> Result:
            return one.run(mutant, mutant.kinds, sizes=sizes, faults=faults)[0]

        least = dict.fromkeys(COMMON_SIZES, 1)
        least.update({name: low for name, (low, _) in one.workload.sizes.items()})
        return shrink(failed, again, least)
    return None
