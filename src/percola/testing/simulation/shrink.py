"""Shrinking: from a failing run to a smaller one that still fails.

A run is determined by its seed, its sizes and the list of its faults. Removing some faults, a
client or a turn gives another run with another history; if it also violates a property, it replaces
the first. Shrinking ends when nothing more can be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from percola.testing.simulation.faults import Fault
from percola.testing.simulation.run import Result, Simulation
from percola.testing.simulation.workload import COMMON_SIZES, Workload

Run = Callable[[Mapping[str, int], Sequence[Fault]], Result]
"""Runs the same seed with other sizes and exactly these faults."""


def shrink(failed: Result, run: Run, least: Mapping[str, int], *, attempts: int = 300) -> Result:
    """The smallest failing run found by removing faults, clients and turns one after the other.

    Args:
        failed: a run that violated a claim.
        least: the smallest each size may become.
        attempts: how many runs may be tried.
    """
    best = failed
    left = attempts
    progress = True
    while progress:
        progress = False
        for sizes, faults in _smaller(best, least):
            if left == 0:
                return best
            left -= 1
            result = run(sizes, faults)
            if result.violated is not None and _weight(result) < _weight(best):
                best, progress = result, True
                break
    return best


def shrink_run(
    workload: type[Workload], failed: Result, *, attempts: int = 300, **seams: Any
) -> Result:
    """Shrink a failed run of a workload; `seams` are what its `Simulation` was given."""

    def run(sizes: Mapping[str, int], faults: Sequence[Fault]) -> Result:
        again = Simulation(
            workload, failed.seed, sizes=sizes, faults=faults, mode=failed.mode, **seams
        )
        return again.run()

    return shrink(failed, run, _least(workload.sizes), attempts=attempts)


def _least(sizes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """How small a workload's sizes can become: its own least; of the common ones, one each."""
    return {**dict.fromkeys(COMMON_SIZES, 1), **{name: low for name, (low, _) in sizes.items()}}


def _weight(result: Result) -> tuple[int, int, int]:
    """Fewer faults are better than fewer clients and turns, and those than a short history."""
    return len(result.faults), sum(result.sizes.values()), len(result.trace)


def _smaller(
    result: Result, least: Mapping[str, int]
) -> Iterator[tuple[Mapping[str, int], Sequence[Fault]]]:
    """Runs that have less of something, those that have much less first."""
    faults, sizes = result.faults, result.sizes
    count = len(faults)
    step = count
    while step >= 1:
        for start in range(0, count, step):
            yield sizes, faults[:start] + faults[start + step :]
        step //= 2
    for name, number in sizes.items():
        low = least.get(name, number)
        for smaller in dict.fromkeys((low, (low + number) // 2, number - 1)):
            if low <= smaller < number:
                yield {**sizes, name: smaller}, faults
