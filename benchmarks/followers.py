"""`percola.feed` on HBase and Bigtable's emulator: how fast one process follows a table.

Every row of a table is changed, by many threads; then one process follows: it finds up to where the
table is settled, and reads all changes with the rows as they were. Changes come one and a hundred
to a transaction. A follower keeps up as long as a second's changes take it less than a second.

    write     the transactions of 16 threads, with the entries for followers
    settle    `feed.settled`: what the writers have left to do in the index
    read      `feed.changes`: the index, what changed, and each row as of its change

Processor time is that of this one process and of the store's servers; writers rest while it
follows.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks.fig8_network import Processors, servers
from benchmarks.measure import (
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from percola import Table, feed

STORES: Final = ("HBase", "Bigtable")
SHAPES: Final = (1, 100)
"""Changes a transaction."""

_docs = Table("docs", feed=True)
_number = _docs.column("number", int)
_body = _docs.column("body", str)
_PADDING: Final = "x" * 200
_WRITERS: Final = 16
_PHASES: Final = ("write", "settle", "read")
_FOLLOWS: Final = _PHASES[1:]


def _write(repo: percola.Repository, rows: int, shape: int, number: int) -> None:
    """Change every row, `shape` of them in a transaction."""

    def change(keys: range) -> None:
        with repo.transaction() as t:
            for key in keys:
                t.set(_number, f"doc{key:08}", number)
                t.set(_body, f"doc{key:08}", f"{number} {_PADDING}")

    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(change, (range(at, at + shape) for at in range(0, rows, shape))))


def _rounds(
    address: str, computing: Mapping[str, Processors], rows: int, shape: int, rounds: int
) -> Iterator[dict[str, dict[str, float]]]:
    """Seconds, and processor time of each part, by phase, of each round but the first."""
    with percola.open(address, [_docs]) as repo:
        after = feed.settled(repo, _docs)
        for number in range(rounds + 1):
            took: dict[str, dict[str, float]] = {}
            with _clocked(took.setdefault("write", {}), computing):
                _write(repo, rows, shape, number)
            with _clocked(took.setdefault("settle", {}), computing):
                upto = max(after, feed.settled(repo, _docs))
            with _clocked(took.setdefault("read", {}), computing):
                found = list(feed.changes(repo, _docs, after, upto))
            assert len({one.row for one in found}) == len(found) == rows
            assert {one.image[_number] for one in found} == {number}
            after = upto
            if number:
                yield took


@contextmanager
def _clocked(into: dict[str, float], computing: Mapping[str, Processors]) -> Iterator[None]:
    before = {part: one.spent() for part, one in computing.items()}
    began = time.perf_counter()
    yield
    into["seconds"] = time.perf_counter() - began
    for part, one in computing.items():
        into[part] = one.spent() - before[part]


def measure(store: str, console: Console, *, quick: bool) -> list[dict[str, Any]]:
    """A line for each shape."""
    rows, rounds = (2_000, 1) if quick else (20_000, 5)
    if store != "HBase":
        rows //= 5  # The emulator is slow, and a benchmark of it no benchmark of Bigtable.
    lines = []
    said = f"Followers on {store}"
    with (
        temporary_folder() as folder,
        console.status(f"{said}: starting its servers …"),
        servers(store, folder / "servers") as (address, computing),
    ):
        computing["follower"] = Processors([os.getpid()])
        for shape in SHAPES:
            console.log(f"{said}: {shape} changes a transaction …")
            found = list(_rounds(address, computing, rows, shape, rounds))
            line: dict[str, Any] = {"store": store, "changes a transaction": shape, "rows": rows}
            for phase in _PHASES:
                each = [one[phase] for one in found]
                line[phase] = {
                    part: statistics.median(one[part] for one in each) / rows for part in each[0]
                }
            lines.append(line)
    return lines


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the table, leave the figures as JSON."""
    circumstances = conditions()
    lines = [line for store in STORES for line in measure(store, console, quick=quick)]
    grid = Grid(
        title="One process follows a table: changes a second, and microseconds of processor time "
        "a change",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("", "write /s", "settle /s", "read /s", "both /s", "follower µs", "servers µs"):
        grid.add_column(name, justify="right" if name else "left", no_wrap=True)
    for line in lines:
        seconds = [line[phase]["seconds"] for phase in _PHASES]
        line["changes a second"] = 1 / sum(seconds[1:])
        grid.add_row(
            f"{line['store']}, {line['changes a transaction']} a transaction",
            *(f"{1 / one:,.0f}" for one in (*seconds, sum(seconds[1:]))),
            *(
                f"{1e6 * sum(line[phase][part] for phase in _FOLLOWS):.0f}"
                for part in ("follower", "servers")
            ),
        )
    console.print(grid)
    path = write_json(
        output_name("followers", quick=quick), {"conditions": circumstances, "lines": lines}
    )
    console.print(conditions_line(circumstances), f"Figures: {path}", style="dim", sep="\n")
