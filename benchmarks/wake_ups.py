"""§2.4: how a single change finds an idle worker on HBase, by regions of the table and by workers.

A table is split into regions, and worker processes observe it. Changes come one at a time, ten a
second, each in a row of its own. It is measured how long each waits until its observer begins, and
what workers and region server compute for it; and what they compute while nothing changes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks.fig8_network import Processors, servers
from benchmarks.fig10_bank import cut
from benchmarks.measure import (
    Distribution,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.processes import until
from benchmarks.tablets import worker
from percola import Table, Transaction, observer

CASES: Final = ((1, 2), (20, 2), (100, 2), (20, 8))
"""Regions and worker processes."""
_ROWS: Final = 1000
_PACE: Final = 0.1  # seconds

_docs = Table("docs")
_sent = _docs.column("sent", float, observed=True)
_began = _docs.column("began", float)


@observer(_sent)
def _note_time(t: Transaction, row: str) -> None:
    t.set(_began, row, time.time())


OBSERVERS: Final = [_note_time]


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of a table with so many regions, and so many worker processes.

    Attributes:
        waited: milliseconds from the end of a commit to the beginning of the observer.
        change: processor milliseconds of a change, by part: `servers`, `oracle`, `workers`, and
            `writer`, which is this process.
        idle: processor milliseconds of each in a second without changes.
    """

    regions: int
    processes: int
    waited: Distribution
    change: dict[str, float]
    idle: dict[str, float]


def measure(
    address: str, computing: Mapping[str, Processors], regions: int, processes: int, changes: int
) -> Found:
    """Measure with a table that has been created anew."""
    percola.open(address, [_docs]).close()
    rows = [f"{number:03}" for number in range(_ROWS)]
    cut(address, _docs.name, [rows[_ROWS * at // regions].encode() for at in range(1, regions)])
    rng = random.Random(regions)
    with percola.open(address, [_docs]) as repo, ExitStack() as stack:
        started = [
            stack.enter_context(worker(address, 1, "benchmarks.wake_ups:OBSERVERS"))
            for _ in range(processes)
        ]
        parts = {**computing, "workers": Processors(one.process.pid for one in started)}

        def spend(seconds: float, changed: list[str]) -> tuple[dict[str, float], dict[str, float]]:
            """What each part computes in this time, and when each of these rows was committed."""
            before = {name: part.spent() for name, part in parts.items()}
            committed = {}
            end = time.monotonic() + seconds
            for row in changed:
                with repo.transaction() as t:
                    t.set(_sent, row, 0.0)
                committed[row] = time.time()
                time.sleep(_PACE)
            time.sleep(
                max(0.0, end - time.monotonic())
            )  # The stretch of time is what is asked for.
            return {
                name: 1000 * (part.spent() - before[name]) for name, part in parts.items()
            }, committed

        for _ in range(2):  # Java's compilers take their time.
            spend(0.0, rng.sample(rows, changes))
        idle, _ = spend(changes * _PACE, [])
        spent, committed = spend(0.0, rng.sample(rows, changes))
        began: dict[str, float] = {}

        def served() -> int:
            with repo.snapshot() as now:
                began.update((row, now.get(_began, row) or 0.0) for row in committed)
            # Not in a round before. An observer may begin before its commit has returned.
            return sum(at > committed[row] - _PACE for row, at in began.items())

        until(lambda: served() == len(committed), served, 60.0)
        for one in started:
            one.end()
    waited = Distribution.of([1000 * (began[row] - committed[row]) for row in committed])
    assert waited is not None
    return Found(
        regions,
        processes,
        waited,
        {name: ms / changes for name, ms in spent.items()},
        {name: ms / (changes * _PACE) for name, ms in idle.items()},
    )


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the table, leave the figures as JSON."""
    circumstances = conditions()
    found = []
    for regions, processes in CASES:
        console.log(f"Wake-ups: {regions} regions on HBase, {processes} workers …")
        with temporary_folder() as folder, servers("HBase", folder) as (address, computing):
            found.append(measure(address, computing, regions, processes, 30 if quick else 200))
    grid = Grid(
        title="A single change, by regions and worker processes: how long it waits for an idle "
        "one, and processor time",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("regions", "workers", "median ms", "95 % ms"):
        grid.add_column(name, justify="right", no_wrap=True)
    for name in ("a change: servers ms", "workers ms", "idle, a second: servers ms", "workers ms"):
        grid.add_column(name, justify="right")
    for one in found:
        grid.add_row(
            f"{one.regions}",
            f"{one.processes}",
            *(f"{ms:.1f}" for ms in (one.waited.p50, one.waited.p95)),
            *(
                f"{part['servers']:.0f}" if key == "servers" else f"{part['workers']:.0f}"
                for part in (one.change, one.idle)
                for key in ("servers", "workers")
            ),
        )
    console.print(grid)
    path = write_json(
        output_name("wake_ups", quick=quick),
        {"conditions": circumstances, "found": [asdict(one) for one in found]},
    )
    console.print(conditions_line(circumstances))
    console.print(f"Figures: {path}")
