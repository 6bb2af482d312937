"""Figure 8 on LMDB: what a transaction of Percola costs over one of the store itself.

The paper's figure compares Percolator with raw Bigtable: rates of single-cell reads and writes.
Here it is raw LMDB, through the same Python binding that Percola's store uses, and Percola, in
turn: one transaction of LMDB for each put or get against one of Percola's, both on 100,000 rows,
values of 100 bytes, random rows, the same disk, the same durability.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import lmdb
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

import percola
from benchmarks.lockstep import Lockstep, Measured, Player
from benchmarks.measure import (
    OUTPUT,
    Comparison,
    compare,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    throughput,
    write_json,
)
from percola import Table

ROWS: Final = 100_000
VALUE: Final = b"v" * 100
CELLS: Final = 5
RENEWED: Final = 1_000
"""Reads that share a snapshot, where they share one."""

PAPER: Final = {"read": 0.94, "write": 0.23}

_table = Table("cells")
_column = _table.column("value")
_SEED: Final = 8


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the table.

    Attributes:
        name: what is done, once, for one operation counted.
        figure: the line of the paper's figure that it is, if it is one.
        aims: the ratio aimed at, by durability.
        batch: operations between two looks at the clock.
    """

    name: str
    figure: str | None
    aims: dict[str, float]
    batch: int
    writes: bool = True


OPERATIONS: Final = {
    "write": Operation("write a cell", "write", {"full": 0.80, "relaxed": 0.40}, 10),
    "write five": Operation("write five cells", None, {}, 10),
    "write in two phases": Operation("write, in two phases", "write", {}, 10),
    "read": Operation("read, 1,000 a snapshot", "read", {"relaxed": 0.40}, RENEWED, False),
    "read alone": Operation("read, in a transaction", "read", {"relaxed": 0.40}, RENEWED, False),
}


@dataclass(slots=True)
class Line:
    """What was measured of an operation with a durability and a number of processes."""

    operation: str
    durability: str
    processes: int
    compared: Comparison = field(default_factory=Comparison)

    @property
    def aim(self) -> float | None:
        """The ratio aimed at, if there is one."""
        return OPERATIONS[self.operation].aims.get(self.durability)

    @property
    def paper(self) -> float | None:
        """The paper's ratio, if the operation is in its figure."""
        figure = OPERATIONS[self.operation].figure
        return PAPER[figure] if figure else None


# --- What runs in the measured processes --------------------------------------------------


@contextmanager
def open_player(number: int, count: int, folder: str, durability: str) -> Iterator[Player]:
    """A process of the measurement, with both stores open."""
    rows = list(range(ROWS))
    random.Random(_SEED + number).shuffle(rows)
    sync = durability == "full"
    with (
        open_raw(Path(folder), sync=sync) as raw,
        percola.open(Path(folder) / "percola", [_table], durability=durability) as repo,
    ):
        tasks = _tasks(raw, repo)
        # No two processes write the same row: what is measured is the store, not conflicts.
        mine = [row for row in rows if row % count == number]
        batches = {
            task: _endless(_cut(rows if task.startswith(("raw read", "read")) else mine, task))
            for task in tasks
        }

        def play(task: str, seconds: float) -> Measured:
            gc.collect()
            run, each = tasks[task], batches[task]
            done = 0
            clock = time.perf_counter
            began = clock()
            while (now := clock()) - began < seconds:
                batch = next(each)
                run(batch)
                done += len(batch)
            return done, began, now

        yield play


@contextmanager
def open_raw(folder: Path, *, sync: bool) -> Iterator[lmdb.Environment]:
    """LMDB by itself, opened as Percola's store opens it."""
    env = lmdb.open(
        str(folder / "raw"),
        map_size=1 << 36,
        sync=sync,
        metasync=sync,
        max_spare_txns=64,
        readahead=False,
    )
    try:
        yield env
    finally:
        env.close()


def _tasks(
    raw: lmdb.Environment, repo: percola.Repository
) -> dict[str, Callable[[Sequence[Any]], None]]:
    """Each operation on the raw store and on Percola, for a batch of rows."""

    def raw_write(keys: Sequence[bytes]) -> None:
        for key in keys:
            with raw.begin(write=True) as t:
                t.put(key, VALUE)

    def write(rows: Sequence[str]) -> None:
        for row in rows:
            with repo.transaction() as t:
                t.set(_column, row, VALUE)

    def write_in_two_phases(rows: Sequence[str]) -> None:
        for row in rows:
            with repo.transaction(two_phase=True) as t:
                t.set(_column, row, VALUE)

    def raw_write_five(groups: Sequence[Sequence[bytes]]) -> None:
        for group in groups:
            with raw.begin(write=True) as t:
                for key in group:
                    t.put(key, VALUE)

    def write_five(groups: Sequence[Sequence[str]]) -> None:
        for group in groups:
            with repo.transaction() as t:
                for row in group:
                    t.set(_column, row, VALUE)

    def raw_read(keys: Sequence[bytes]) -> None:
        for key in keys:
            with raw.begin() as t:
                t.get(key)

    def read(rows: Sequence[str]) -> None:
        snapshot = repo.snapshot()
        for row in rows:
            snapshot.get(_column, row)

    def read_alone(rows: Sequence[str]) -> None:
        for row in rows:
            with repo.transaction() as t:
                t.get(_column, row)

    return {
        "raw write": raw_write,
        "write": write,
        "raw write in two phases": raw_write,
        "write in two phases": write_in_two_phases,
        "raw write five": raw_write_five,
        "write five": write_five,
        "raw read": raw_read,
        "read": read,
        "raw read alone": raw_read,
        "read alone": read_alone,
    }


def _cut(rows: Sequence[int], task: str) -> list[list[Any]]:
    """The rows as the task takes them, in batches: the raw store's keys are bytes already."""
    name = task.removeprefix("raw ")
    keys: list[Any] = [f"row{row:08}".encode() if task != name else f"row{row:08}" for row in rows]
    if name == "write five":
        keys = [keys[at : at + CELLS] for at in range(0, len(keys) - CELLS + 1, CELLS)]
    size = OPERATIONS[name].batch
    return [keys[at : at + size] for at in range(0, len(keys) - size + 1, size)]


def _endless(batches: Sequence[list[Any]]) -> Iterator[list[Any]]:
    while True:
        yield from batches


# --- The measurement ----------------------------------------------------------------------


def fill(folder: Path) -> None:
    """Make both stores, with all rows in them, written in the same random order."""
    rows = list(range(ROWS))
    random.Random(_SEED).shuffle(rows)
    folder.mkdir(exist_ok=True)
    with (
        open_raw(folder, sync=False) as raw,
        percola.open(folder / "percola", [_table], durability="relaxed") as repo,
    ):
        for at in range(0, ROWS, 1_000):
            with raw.begin(write=True) as txn, repo.transaction() as t:
                for row in rows[at : at + 1_000]:
                    txn.put(f"row{row:08}".encode(), VALUE)
                    t.set(_column, f"row{row:08}", VALUE)
        raw.sync(True)


def measure(folder: Path, console: Console, *, quick: bool) -> list[Line]:
    """All lines of the table, with one process and with two, one durability after the other."""
    # Many short blocks: the median bears with what else the machine does in some of them.
    pairs, seconds = (3, 0.05) if quick else (15, 0.15)
    lines = []
    # Full durability first: it writes least, so both begin on tables as they were filled.
    for durability in ("full", "relaxed"):
        for processes in (1, 2):
            with (
                console.status(f"Figure 8: {durability} durability, processes: {processes} …"),
                Lockstep(processes, open_player, str(folder), durability) as players,
            ):
                for name, operation in OPERATIONS.items():
                    # Durability is nothing to a read.
                    if operation.writes or durability == "relaxed":
                        line = Line(name, durability, processes)
                        _measure_line(line, players, pairs, seconds)
                        lines.append(line)
    return lines


def _measure_line(line: Line, players: Lockstep, pairs: int, seconds: float) -> None:
    def rate(task: str, length: float = seconds) -> float:
        return throughput(players.run(task, length))

    raw = f"raw {line.operation}"
    for task in (raw, line.operation):
        rate(task, seconds / 4)
    compare(pairs, lambda: rate(raw), lambda: rate(line.operation), line.compared)


# --- What is shown ------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> Grid:
    """The table: rates, ratios, and beside them the paper's ratio and the aim."""
    grid = Grid(
        title="Figure 8 on LMDB: operations a second, by durability and processes",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    grid.add_column("", no_wrap=True)
    for name in ("Raw LMDB", "Percola", "Ratio", "Half in", "Paper", "Aim"):
        grid.add_column(name, justify="right", no_wrap=True)
    for (durability, processes), group in groupby(lines, lambda x: (x.durability, x.processes)):
        grid.add_section()
        together = "1 process" if processes == 1 else f"{processes} processes"
        grid.add_row(Text(f"{durability}, {together}", style="bold"))
        for line in group:
            found = line.compared.to_json()
            style = ""
            if line.aim is not None:
                style = "green" if found["ratio"] >= line.aim else "yellow"
            grid.add_row(
                OPERATIONS[line.operation].name,
                f"{found['raw_per_second']:,.0f}",
                f"{found['percola_per_second']:,.0f}",
                Text(f"{found['ratio']:.2f}", style=style),
                "–".join(f"{one:.2f}" for one in found["middle_half"]),
                "" if line.paper is None else f"{line.paper:.2f}",
                "" if line.aim is None else f"{line.aim:.2f}",
            )
    return grid


def plot(lines: Sequence[Line], path: Path) -> None:
    """Ratios with their spread, the paper's ratios and the aims beside; and the rates."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    labels = [
        f"{OPERATIONS[one.operation].name}\n"
        + (f"{one.durability}, " if OPERATIONS[one.operation].writes else "")
        + ("1 process" if one.processes == 1 else f"{one.processes} processes")
        for one in lines
    ]
    places = [-float(place) for place in range(len(lines))]
    found = [one.compared.to_json() for one in lines]
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 0.42 * len(lines) + 1.6), sharey=True, layout="constrained"
    )
    ratios = [one["ratio"] for one in found]
    spread = [
        [one["ratio"] - one["middle_half"][0] for one in found],
        [one["middle_half"][1] - one["ratio"] for one in found],
    ]
    left.barh(places, ratios, xerr=spread, height=0.6, color="#4c78a8", ecolor="#999999")
    for values, marker, colour, name in (
        ([one.paper for one in lines], "D", "#f58518", "paper, on Bigtable"),
        ([one.aim for one in lines], "|", "#d62728", "aim"),
    ):
        known = [(value, at) for value, at in zip(values, places, strict=True) if value is not None]
        left.scatter(
            [value for value, _ in known],
            [at for _, at in known],
            marker=marker,
            s=40 if marker == "D" else 300,
            color=colour,
            label=name,
            zorder=3,
        )
    left.set_xlabel("Percola / raw LMDB (median of the pairs, middle half)")
    left.set_xlim(0, 1.2)
    left.set_ylim(min(places) - 0.6, 0.6)
    left.set_yticks(places, labels, fontsize=8)
    left.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8, markerscale=0.5)
    for name, shift, colour in (("raw", 0.18, "#bbbbbb"), ("percola", -0.18, "#4c78a8")):
        right.barh(
            [at + shift for at in places],
            [one[f"{name}_per_second"] for one in found],
            height=0.34,
            color=colour,
            label={"raw": "raw LMDB", "percola": "Percola"}[name],
        )
    right.set_xscale("log")
    right.set_xlabel("operations a second (logarithmic)")
    right.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8)
    figure.suptitle("Figure 8 on LMDB", x=0.02, horizontalalignment="left")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the table, draw the plot, leave the figures as JSON."""
    found = conditions()
    with temporary_folder() as folder:
        with console.status(f"Figure 8: filling both stores with {ROWS:,} rows …"):
            fill(folder)
        lines = measure(folder, console, quick=quick)
    name = output_name("fig8_lmdb", quick=quick)
    picture = OUTPUT / f"{name}.png"
    plot(lines, picture)
    figures = [
        {
            "operation": OPERATIONS[one.operation].name,
            "durability": one.durability if OPERATIONS[one.operation].writes else None,
            "processes": one.processes,
            "paper": one.paper,
            "aim": one.aim,
            **one.compared.to_json(),
        }
        for one in lines
    ]
    path = write_json(name, {"conditions": found, "rows": ROWS, "figures": figures})
    console.print(
        Group(
            table(lines),
            Text(f"On {conditions_line(found)}."),
            Text(
                "Ratio: the median of the pairs' ratios, half of which lie in the range beside "
                "it. The paper's are of Bigtable, where a network call hides most of the work.",
                style="dim",
            ),
            Text(f"Plot: {picture}   Figures: {path}", style="dim"),
        )
    )
