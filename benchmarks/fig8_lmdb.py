"""Figure 8 on LMDB: what a transaction of Percola costs over one of the store itself.

The paper's figure compares Percolator with raw Bigtable: rates of single-cell reads and writes.
Here it is raw LMDB, through its Python binding, and Percola, through its native engine where that
was built, in turn: one transaction of LMDB for each put or get against one of Percola's, both on
100,000 rows, values of 100 bytes, random rows, the same disk, the same durability.

Reads are measured twice: on the tables as they were filled, with one version of each row, and
again after the lines that write, which leave several versions of each row in Percola's table.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb
from rich.console import Console, Group
from rich.text import Text

import percola
from benchmarks.fig8_shown import Line, plot, table
from benchmarks.lockstep import Lockstep, Measured, Player
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from percola import PercolaError, Table
from percola.store.lmdb import driver

ROWS: Final = 100_000
VALUE: Final = b"v" * 100
CELLS: Final = 5
RENEWED: Final = 1_000
"""Reads that share a snapshot, where they share one."""

_table = Table("cells")
_column = _table.column("value")
_SEED: Final = 8
_WARM: Final = 0.25
"""How much longer each block is: it begins uncounted, since the other store's block came before."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the table.

    Attributes:
        name: what is done, once, for one operation counted.
        figure: the line of the paper's figure that it is, if it is one.
        aims: the ratio aimed at, by what is measured and the number of processes.
        batch: operations between two looks at the clock.
    """

    name: str
    figure: str | None
    aims: dict[tuple[str, int], float]
    batch: int
    writes: bool = True


_FRESH, _FULL, _RELAXED = ("fresh", 1), ("full", 1), ("relaxed", 1)
_NATIVE: Final = driver.native is not None
_WRITE: Final = {_FULL: 0.95, ("full", 2): 0.95, _RELAXED: 0.85, ("relaxed", 2): 1.0}
_READ: Final = {_FRESH: 0.80, _RELAXED: 0.70} if _NATIVE else {_FRESH: 0.40, _RELAXED: 0.40}
_READ_ALONE: Final = dict.fromkeys((_FRESH, _RELAXED), 0.60 if _NATIVE else 0.25)
OPERATIONS: Final = {
    "write": Operation("write a cell", "write", _WRITE if _NATIVE else {}, 10),
    "write five": Operation("write five cells", None, {_RELAXED: 0.70} if _NATIVE else {}, 10),
    "write in two phases": Operation("write, in two phases", "write", {}, 10),
    "read": Operation("read, 1,000 a snapshot", "read", _READ, RENEWED, False),
    "read alone": Operation("read, in a transaction", "read", _READ_ALONE, RENEWED, False),
}


PHASES: Final = {
    "fresh": "one version a row",
    "full": "full durability",
    "relaxed": "relaxed durability",
}
"""What is measured one after the other, and what its lines have in common: reads on tables as they
were filled, writes with full durability, which are few, then writes and again reads."""


def line_of(operation: str, phase: str, processes: int) -> Line:
    """The line of an operation in a phase with a number of processes."""
    what = OPERATIONS[operation]
    together = "1 process" if processes == 1 else f"{processes} processes"
    told = {"phase": phase, "durability": phase if what.writes else None, "processes": processes}
    group = f"{PHASES[phase]}, {together}"
    return Line(what.name, group, what.figure, what.aims.get((phase, processes)), group, told)


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
        check_reads(raw, repo, rows)
        tasks = _tasks(raw, repo)
        # No two processes write the same row: what is measured is the store, not conflicts.
        mine = [row for row in rows if row % count == number]
        batches = {
            task: _endless(_cut(rows if task.startswith(("raw read", "read")) else mine, task))
            for task in tasks
        }

        def play(task: str, seconds: float) -> Measured:
            gc.collect()
            _run_for(tasks[task], batches[task], seconds * _WARM)
            return _run_for(tasks[task], batches[task], seconds)

        yield play


def check_reads(raw: lmdb.Environment, repo: percola.Repository, rows: Sequence[int]) -> None:
    """PercolaError unless what is read in a block is there: to read nothing would be faster."""
    with raw.begin() as t:
        found = [bytes(t.get(key) or b"") for key in _cut(rows, "raw read")[0]]
    snapshot = repo.snapshot()
    found += [snapshot.get(_column, row) or b"" for row in _cut(rows, "read")[0]]
    if lost := sum(value != VALUE for value in found):
        raise PercolaError(f"{lost:,} of {len(found):,} reads did not find what was written.")


def _run_for(
    run: Callable[[Sequence[Any]], None], batches: Iterator[list[Any]], seconds: float
) -> Measured:
    done = 0
    clock = time.perf_counter
    began = clock()
    while (now := clock()) - began < seconds:
        batch = next(batches)
        run(batch)
        done += len(batch)
    return done, began, now


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
    # Many short blocks: the median bears with what else the machine does in some of them. Of an
    # even number, as many begin with one store as with the other.
    pairs, seconds = (4, 0.05) if quick else (16, 0.15)
    lines = []
    for phase, said in PHASES.items():
        durability = "full" if phase == "full" else "relaxed"
        for processes in (1, 2):
            with (
                console.status(f"Figure 8: {said}, processes: {processes} …"),
                Lockstep(processes, open_player, str(folder), durability) as players,
            ):
                for name, operation in OPERATIONS.items():
                    if phase == "relaxed" or operation.writes == (phase == "full"):
                        line = line_of(name, phase, processes)
                        players.compare(f"raw {name}", name, pairs, seconds, line.compared)
                        lines.append(line)
    return lines


# --- What is shown ------------------------------------------------------------------------


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the table, draw the plot, leave the figures as JSON."""
    found = conditions()
    with temporary_folder() as folder:
        with console.status(f"Figure 8: filling both stores with {ROWS:,} rows …"):
            fill(folder)
        lines = measure(folder, console, quick=quick)
    name = output_name("fig8_lmdb", quick=quick)
    picture = OUTPUT / f"{name}.png"
    plot("Figure 8 on LMDB", "LMDB", lines, picture)
    figures = [one.to_json() for one in lines]
    path = write_json(name, {"conditions": found, "rows": ROWS, "figures": figures})
    console.print(
        Group(
            table(
                "Figure 8 on LMDB: operations a second, by durability and processes", "LMDB", lines
            ),
            Text(f"On {conditions_line(found)}."),
            Text(
                "Ratio: the median of the pairs' ratios, half of which lie in the range beside "
                "it. The paper's are of Bigtable, where a network call hides most of the work.",
                style="dim",
            ),
            Text(f"Plot: {picture}   Figures: {path}", style="dim"),
        )
    )
