"""Figure 8 on HBase and Bigtable: what a transaction costs over one call to the store itself.

The paper's figure compares Percolator with raw Bigtable. Here both sides make network calls as in
the paper, and Percola is as a user has it: timestamps from `percola oracle`, liveness tokens in
ZooKeeper, the store on servers. Raw and Percola's blocks take turns in one process, with one thread
(what a caller waits for) and with sixteen (what the calls of many come to, where they share a call
to the oracle).

The paper's figure is of a tablet server at its limit: of clients there were enough. Here they share
the servers' cores and are at theirs first. So for each block the processor time of the client, the
store's servers and the oracle is noted, each apart: operations for each second of the servers' are
what a server could do. `benchmarks/scale.py` takes its service times from these.

Where the time of one goes is measured apart, with a clock around each call that Percola makes.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

import percola
from benchmarks.fig8_shown import Line, plot, table
from benchmarks.fig8_stores import RAW, VALUE, Raw
from benchmarks.lockstep import Lockstep, Measured, Player
from benchmarks.measure import (
    OUTPUT,
    Comparison,
    compare,
    conditions,
    conditions_line,
    cpu_seconds,
    output_name,
    temporary_folder,
    throughput,
    write_json,
)
from benchmarks.processes import descendants
from benchmarks.servers import OracleProcess, emulator, small_cluster, zookeeper
from percola import Table

ROWS: Final = 20_000
CELLS: Final = 5
RENEWED: Final = 1_000
"""Reads that share a snapshot, where they share one."""
THREADS: Final = (1, 16)

_table = Table("cells")
_column = _table.column("value")
_SEED: Final = 8


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the table: its name, and the line of the paper's figure.

    Attributes:
        aims: the ratio aimed at on HBase, by threads, or "servers" for their processors.
    """

    name: str
    figure: str | None = None
    aims: Mapping[int | str, float] = field(default_factory=dict)
    rows: int = 1


OPERATIONS: Final = {
    "write": Operation("write a cell", "write", {1: 0.45, 16: 0.26, "servers": 0.49}),
    "write five": Operation("write five cells", None, {1: 0.30, 16: 0.25}, CELLS),
    "read": Operation("read, 1,000 a snapshot", "read", {1: 0.85, 16: 0.80, "servers": 0.94}),
    "read alone": Operation("read, in a transaction", "read", {1: 0.40, 16: 0.45}),
}


@dataclass(slots=True)
class Found:
    """What was measured on one store.

    Attributes:
        lines: operations a second.
        capacity: operations for each second that the store's servers compute.
        processors: milliseconds of processor time an operation, by part, median of the blocks.
        calls: where a call's time goes, in seconds.
    """

    store: str
    lines: list[Line] = field(default_factory=list)
    capacity: list[Line] = field(default_factory=list)
    processors: list[dict[str, Any]] = field(default_factory=list)
    calls: dict[str, list[tuple[str, float]]] = field(default_factory=dict)


# --- What runs in the measured process ----------------------------------------------------


@contextmanager
def open_player(number: int, count: int, store: str, address: str, notes: str) -> Iterator[Player]:
    """The process of the measurement, with both stores open."""
    raw: Raw = RAW[store](address)
    with percola.open(address, [_table]) as repo, ThreadPoolExecutor(max(THREADS)) as pool:
        raw.create()
        _fill(raw, repo)
        keys = [f"row{row:08}" for row in range(ROWS)]
        random.Random(_SEED).shuffle(keys)
        tasks = _tasks(raw, repo)

        def work(task: str, place: int, threads: int, seconds: float) -> Measured:
            # No two threads write the same row: what is measured is the store, not conflicts. Nor
            # does a thread read one again in the same snapshot, which would answer by itself.
            once, mine = tasks[task](), keys[place::threads]
            rows = OPERATIONS[task.removeprefix("raw ")].rows
            assert len(mine) - rows >= RENEWED
            at = random.randrange(len(mine) - rows)
            done = 0
            clock = time.perf_counter
            began = clock()
            while (now := clock()) - began < seconds:
                once(mine[at : at + rows])
                done += 1
                at = (at + rows) % (len(mine) - rows)
            return done, began, now

        def play(task: str, seconds: float) -> Measured:
            name, _, threads = task.partition("@")
            gc.collect()
            if not threads:
                return _trace(repo, name, tasks[name](), keys, Path(notes), seconds)
            each = [
                pool.submit(work, name, place, int(threads), seconds)
                for place in range(int(threads))
            ]
            found = [one.result() for one in each]
            began = min(one[1] for one in found)
            return sum(one[0] for one in found), began, max(one[2] for one in found)

        yield play
    raw.close()


def _fill(raw: Raw, repo: percola.Repository) -> None:
    """All rows in both, so that nothing is read that is not there."""
    for at in range(0, ROWS, 500):
        rows = [f"row{row:08}" for row in range(at, at + 500)]
        raw.write([row.encode() for row in rows])
        with repo.transaction() as t:
            for row in rows:
                t.set(_column, row, VALUE)


Once = Callable[[Sequence[str]], None]
"""Does an operation on the first key, or on all."""


def _tasks(raw: Raw, repo: percola.Repository) -> dict[str, Callable[[], Once]]:
    """Each operation on the raw store and on Percola, made anew for each block of a thread."""

    def raw_write(keys: Sequence[str]) -> None:
        raw.write([keys[0].encode()])

    def write(keys: Sequence[str]) -> None:
        with repo.transaction() as t:
            t.set(_column, keys[0], VALUE)

    def raw_write_five(keys: Sequence[str]) -> None:
        raw.write([key.encode() for key in keys])

    def write_five(keys: Sequence[str]) -> None:
        with repo.transaction() as t:
            for key in keys:
                t.set(_column, key, VALUE)

    def raw_read(keys: Sequence[str]) -> None:
        assert raw.read(keys[0].encode()) == VALUE

    def read_from(snapshots: Iterator[percola.Snapshot]) -> Once:
        def read(keys: Sequence[str]) -> None:
            assert next(snapshots).get(_column, keys[0]) == VALUE

        return read

    def renewed() -> Iterator[percola.Snapshot]:
        while True:
            with repo.snapshot() as snapshot:
                for _ in range(RENEWED):
                    yield snapshot

    def read_alone(keys: Sequence[str]) -> None:
        with repo.transaction() as t:
            assert t.get(_column, keys[0]) == VALUE

    return {
        "raw write": lambda: raw_write,
        "write": lambda: write,
        "raw write five": lambda: raw_write_five,
        "write five": lambda: write_five,
        "raw read": lambda: raw_read,
        "read": lambda: read_from(renewed()),
        "raw read alone": lambda: raw_read,
        "read alone": lambda: read_alone,
    }


# --- Where the time goes ------------------------------------------------------------------

_TIMED: Final = {
    "oracle": ("timestamp", "read_timestamp"),
    "store": ("mutate", "read"),
}


def _trace(
    repo: percola.Repository,
    name: str,
    once: Once,
    keys: Sequence[str],
    notes: Path,
    seconds: float,
) -> Measured:
    """Do an operation again and again with a clock around each call; leave the medians in a file.

    The calls are in the order in which they are made; the last part is what is left of the whole.
    """
    made: list[tuple[str, float]] = []

    def timed(called: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                made.append((called, time.perf_counter() - began))

        return timing

    def prepare_timed(*arguments: Any) -> Any:
        prepared = prepare(*arguments)
        if prepared is not None:
            for phase in ("prewrite", "commit"):
                setattr(prepared, phase, timed(f"{phase}, all", getattr(prepared, phase)))
        return prepared

    context = repo.context
    prepare = context.store.prepare_commit
    vars(context.store)["prepare_commit"] = prepare_timed
    for part, methods in _TIMED.items():
        for method in methods:
            timer = timed(method, getattr(getattr(context, part), method))
            setattr(getattr(context, part), method, timer)
    try:
        runs: list[list[tuple[str, float]]] = []
        first = time.perf_counter()
        at = 0
        while time.perf_counter() - first < seconds:
            made.clear()
            began = time.perf_counter()
            once(keys[at : at + CELLS])
            whole = time.perf_counter() - began
            at = (at + CELLS) % (len(keys) - CELLS)
            if made:
                rest = whole - sum(took for _, took in made)
                runs.append([*made, ("rest", rest)])
        last = time.perf_counter()
    finally:
        del vars(context.store)["prepare_commit"]
        for part, methods in _TIMED.items():
            for method in methods:
                delattr(getattr(context, part), method)
    # What had to be tried again makes a run of another shape: that is left out.
    shapes = [tuple(called for called, _ in run) for run in runs]
    usual = max(set(shapes), key=shapes.count)
    alike = [run for run, shape in zip(runs, shapes, strict=True) if shape == usual]
    medians = [statistics.median(run[at][1] for run in alike) for at in range(len(usual))]
    found = list(zip(_steps(usual), medians, strict=True))
    (notes / f"{name}.json").write_text(json.dumps(found))
    return len(runs), first, last


def _steps(calls: Sequence[str]) -> list[str]:
    """What each call of a transaction is for, from its place among the others."""
    named: list[str] = []
    drawn = 0
    for call in calls:
        if call in _TIMED["oracle"]:
            drawn += 1
            named.append("start_ts" if drawn == 1 else "commit_ts")
        elif call == "mutate":
            phase = "prewrite" if drawn == 1 else "commit"
            named.append(
                f"{phase}, others" if f"{phase}, primary" in named else f"{phase}, primary"
            )
        else:
            named.append("Python" if call == "rest" else call)
    return named


# --- The measurement ----------------------------------------------------------------------


@contextmanager
def servers(store: str, folder: Path) -> Iterator[tuple[str, dict[str, Processors]]]:
    """The servers of a repository on a store of this name: its address, what each part computes."""
    if store == "HBase":
        with small_cluster(folder) as cluster:
            computing = {"servers": Processors(descendants(os.getpid()))}
            with OracleProcess(cluster.address) as oracle:
                computing["oracle"] = Processors([oracle.process.pid])
                yield f"{cluster.address}?oracle={oracle.address}", computing
        return
    bare = "bigtable://project/percola"
    with emulator(), zookeeper(folder) as quorum:
        computing = {"servers": Processors(descendants(os.getpid()))}
        with OracleProcess(bare) as oracle:
            computing["oracle"] = Processors([oracle.process.pid])
            yield f"{bare}?oracle={oracle.address}&zookeeper={quorum}", computing


class Processors:
    """The processor time of some processes, in seconds."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._files = [Path(f"/proc/{pid}/stat") for pid in pids]

    def spent(self) -> float:
        """What they have computed since they began; OSError if one has ended."""
        return sum(cpu_seconds(file.read_text()) for file in self._files)


def measure(store: str, folder: Path, console: Console, *, quick: bool) -> Found:
    """All lines of a store, with one thread and with many, and where the time goes."""
    pairs, seconds = (3, 0.5) if quick else (11, 1.5)
    found = Found(store)
    said = f"Figure 8 on {store}"
    notes = folder / "notes"
    notes.mkdir(parents=True)
    with (
        console.status(f"{said}: starting its servers …"),
        servers(store, folder / "servers") as (address, computing),
        Lockstep(1, open_player, store, address, str(notes)) as players,
    ):
        computing["client"] = Processors(players.pids)
        for threads in THREADS:
            for name, operation in OPERATIONS.items():
                together = "1 thread" if threads == 1 else f"{threads} threads"
                console.log(f"{said}: {operation.name}, {together} …")
                line = _line(store, operation, together, threads)
                # Java's compilers take their time: nothing counts until both have run for long.
                for task in (f"raw {name}", name):
                    players.run(f"{task}@{threads}", seconds * 2)
                tasks = f"raw {name}@{threads}", f"{name}@{threads}"
                costs = _compare(players, computing, tasks, pairs, seconds, line.compared)
                found.lines.append(line)
                medians = {
                    side: {part: statistics.median(ms) for part, ms in parts.items()}
                    for side, parts in zip(("raw", "percola"), costs, strict=True)
                }
                found.processors.append({"operation": name, "threads": threads, **medians})
                if threads == max(THREADS):
                    group = f"{together}, a second of the servers' processors"
                    per_server = _line(store, operation, group, threads, "servers' processors")
                    per_server.compared = Comparison(
                        *([1000 / ms for ms in parts["servers"]] for parts in costs)
                    )
                    found.capacity.append(per_server)
        for name in OPERATIONS:
            players.run(name, seconds * 2)
            found.calls[name] = [
                tuple(one) for one in json.loads((notes / f"{name}.json").read_text())
            ]
    return found


def _line(store: str, operation: Operation, group: str, threads: int, label: str = "") -> Line:
    more = {"store": store, "threads": threads, "per": f"second of {label or 'the clock'}"}
    aim = operation.aims.get("servers" if label else threads) if store == "HBase" else None
    return Line(operation.name, group, operation.figure, aim, label, more)


def _compare(
    players: Lockstep,
    computing: Mapping[str, Processors],
    tasks: tuple[str, str],
    pairs: int,
    seconds: float,
    into: Comparison,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Measure the raw task and Percola's in turn.

    Returns:
        Milliseconds of processor time an operation in each block, by part: of raw, of Percola.
    """
    costs: tuple[dict[str, list[float]], ...] = ({}, {})

    def rate(side: int) -> float:
        before = {part: one.spent() for part, one in computing.items()}
        measured = players.run(tasks[side], seconds)
        done = sum(count for count, _, _ in measured)
        for part, one in computing.items():
            costs[side].setdefault(part, []).append(1000 * (one.spent() - before[part]) / done)
        return throughput(measured)

    compare(pairs, lambda: rate(0), lambda: rate(1), into)
    return costs[0], costs[1]


# --- What is shown ------------------------------------------------------------------------


def calls_table(found: Found) -> Grid:
    """Where the time of one transaction goes, call after call, in milliseconds."""
    grid = Grid(
        title=f"Where the time goes on {found.store}: milliseconds, one thread, one call after "
        "another",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    steps = list(dict.fromkeys(step for calls in found.calls.values() for step, _ in calls))
    steps.sort(key="Python".__eq__)
    for name in ("", *(OPERATIONS[name].name for name in found.calls)):
        grid.add_column(name, justify="right" if name else "left", no_wrap=True)
    for step in steps:
        took = [dict(calls).get(step) for calls in found.calls.values()]
        grid.add_row(step, *("" if one is None else f"{one * 1000:.2f}" for one in took))
    grid.add_section()
    sums = [sum(took for _, took in calls) for calls in found.calls.values()]
    grid.add_row("together", *(f"{one * 1000:.2f}" for one in sums))
    return grid


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the tables, draw the plots, leave the figures as JSON."""
    circumstances = conditions()
    everything = []
    for store in RAW:
        with temporary_folder() as folder:
            found = measure(store, folder, console, quick=quick)
        everything.append(found)
        picture = OUTPUT / f"{output_name(f'fig8_{store.lower()}', quick=quick)}.png"
        lines = found.lines + found.capacity
        plot(f"Figure 8 on {store}", store, lines, picture)
        console.print(
            Group(
                table(f"Figure 8 on {store}: operations a second", store, lines),
                calls_table(found),
                Text(f"Plot: {picture}", style="dim"),
            )
        )
    path = write_json(
        output_name("fig8_network", quick=quick),
        {
            "conditions": circumstances,
            "rows": ROWS,
            "figures": [
                line.to_json() for found in everything for line in found.lines + found.capacity
            ],
            "processor_ms": {found.store: found.processors for found in everything},
            "seconds": {found.store: found.calls for found in everything},
        },
    )
    console.print(
        Group(
            Text(f"On {conditions_line(circumstances)}; the servers are on the same cores."),
            Text(f"Figures: {path}", style="dim"),
        )
    )
