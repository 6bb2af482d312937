"""What reads cost beside lock-only records, which `get_for_update` leaves behind.

A transaction that reads a cell with `get_for_update` and does not write it commits a record that
changes nothing. A cell that many transactions lock gathers them until garbage collection. Here one
row of a hundred is locked again and again, by one transaction after the other, in two cells: one
that was written once before, and one that nobody ever writes. Then each kind of read, and the
commit of one more lock, is compared with the same among rows that nobody has locked, in turn.

All of it is on one repository a store, so what differs between the two sides is the locks.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

import percola
from benchmarks.measure import (
    OUTPUT,
    Comparison,
    compare,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from percola import Repository, Table

STORES: Final = ("memory", "LMDB", "HBase", "Bigtable")
DEFAULT_STORES: Final = STORES[:2]
AIM: Final = 1.2
"""How many times as long anything may take beside locks as beside none."""

ROWS: Final = 100
"""Rows that a scan reads, one of which is locked."""

_LOCKED: Final = ROWS // 2
_SPARE: Final = 5_000
_COMMITS: Final = 10

_table = Table("cells")
_value = _table.column("value")
_version = _table.column("version")
_other = _table.column("other")


def sizes(store: str, *, quick: bool) -> tuple[int, ...]:
    """How often the cells are locked. Each lock is a commit, which takes a network store long."""
    if store in DEFAULT_STORES:
        return (1_000, 5_000) if quick else (1_000, 25_000, 100_000, 1_000_000)
    return (100, 500) if quick else (1_000, 10_000)


def row_of(locks: int, number: int = _LOCKED) -> str:
    """A row of those among which one is locked so often; by default that one."""
    return f"{locks:07}/{number:03}"


# --- What is measured ---------------------------------------------------------------------

Operation = Callable[[Repository, int], object]
"""Does it once, beside this many locks."""


def _snapshot_get(repo: Repository, locks: int) -> object:
    return repo.snapshot().get(_value, row_of(locks))


def _snapshot_get_never_written(repo: Repository, locks: int) -> object:
    return repo.snapshot().get(_version, row_of(locks))


def _snapshot_get_beside(repo: Repository, locks: int) -> object:
    return repo.snapshot().get(_other, row_of(locks))


def _transaction_get(repo: Repository, locks: int) -> object:
    with repo.transaction() as t:
        return t.get(_value, row_of(locks))


def _get_row(repo: Repository, locks: int) -> object:
    return repo.snapshot().get_row(_table, row_of(locks))


def _scan(repo: Repository, locks: int) -> object:
    found = list(repo.snapshot().scan(_table, prefix=f"{locks:07}/"))
    assert len(found) == ROWS, len(found)
    return found


READS: Final[dict[str, Operation]] = {
    "snapshot.get": _snapshot_get,
    "snapshot.get, never written": _snapshot_get_never_written,
    "snapshot.get, another cell": _snapshot_get_beside,
    "transaction, get": _transaction_get,
    "snapshot.get_row": _get_row,
    f"snapshot.scan, {ROWS} rows": _scan,
}
COMMIT: Final = "get_for_update and commit"


@dataclass(slots=True)
class Line:
    """The cost of an operation for each number of locks, compared with none.

    Attributes:
        compared: by the number of locks; what is `raw` there is beside none.
    """

    store: str
    operation: str
    compared: dict[int, Comparison] = field(default_factory=dict)

    def cost(self, locks: int) -> float:
        """How many times as long it takes beside this many locks."""
        return 1 / self.compared[locks].ratio

    def microseconds(self) -> float:
        """What it takes beside no locks; the median of the blocks."""
        return 1e6 / statistics.median(next(iter(self.compared.values())).raw)

    def to_json(self) -> dict[str, Any]:
        """All figures of the line."""
        found = [
            {"locks": locks, "times_as_long": self.cost(locks), **one.to_json()}
            for locks, one in self.compared.items()
        ]
        return {"store": self.store, "operation": self.operation, "aim": AIM, "beside": found}


# --- The measurement ----------------------------------------------------------------------


@contextmanager
def opened(store: str, folder: Path) -> Iterator[Repository]:
    """A new repository on the named store, with the servers that it needs."""
    if store == "memory":
        with percola.open("memory:", [_table]) as repo:
            yield repo
    elif store == "LMDB":
        with percola.open(folder / "repo", [_table], durability="relaxed") as repo:
            yield repo
    else:
        from benchmarks.fig8_network import servers

        with servers(store, folder) as (address, _), percola.open(address, [_table]) as repo:
            yield repo


def fill(repo: Repository, locks: int) -> None:
    """Write rows, and lock two cells of one of them so often."""
    with repo.transaction() as t:
        for number in range(ROWS):
            t.set(_value, row_of(locks, number), b"v" * 100)
            t.set(_other, row_of(locks, number), b"o" * 100)
    row = row_of(locks)
    for _ in range(locks):
        with repo.transaction() as t:
            t.get_for_update(_value, row)
            t.get_for_update(_version, row)


def measure(
    repo: Repository,
    store: str,
    locked: Sequence[int],
    pairs: int,
    seconds: float,
    console: Console,
) -> list[Line]:
    """All lines of a store."""
    for locks in (0, *locked):
        with console.status(f"Locked cells on {store}: {locks:,} locks …"):
            fill(repo, locks)
    lines = []
    for name, operation in READS.items():
        line = Line(store, name)
        for locks in locked:
            line.compared[locks] = Comparison()
            with console.status(f"Locked cells on {store}: {name}, {locks:,} locks …"):
                gc.collect()
                compare(
                    pairs,
                    partial(_rate, operation, repo, 0, seconds),
                    partial(_rate, operation, repo, locks, seconds),
                    line.compared[locks],
                )
        lines.append(line)
    with console.status(f"Locked cells on {store}: {COMMIT} …"):
        lines.append(_measure_commits(repo, store, locked, pairs))
    return lines


def _rate(operation: Operation, repo: Repository, locks: int, seconds: float) -> float:
    """Operations a second, measured for about that long, at least one operation."""
    done, clock = 0, time.perf_counter
    began = clock()
    while True:
        operation(repo, locks)
        done += 1
        took = clock() - began
        if took >= seconds:
            return done / took


def _measure_commits(repo: Repository, store: str, locked: Sequence[int], pairs: int) -> Line:
    """One more lock, compared with locks of cells that hardly any have locked before.

    Last, and few of them: they add locks to what the reads were measured with.
    """
    with repo.transaction() as t:
        for number in range(_SPARE):
            t.set(_value, f"spare/{number}", b"v" * 100)
    spare = 0

    def rate(locks: int) -> float:
        nonlocal spare
        began = time.perf_counter()
        for _ in range(_COMMITS):
            row = row_of(locks)
            if not locks:
                row, spare = f"spare/{spare}", (spare + 1) % _SPARE
            with repo.transaction() as t:
                t.get_for_update(_value, row)
        return _COMMITS / (time.perf_counter() - began)

    line = Line(store, COMMIT)
    for locks in locked:
        line.compared[locks] = Comparison()
        compare(pairs, partial(rate, 0), partial(rate, locks), line.compared[locks])
    return line


# --- What is shown ------------------------------------------------------------------------


def table(store: str, lines: Sequence[Line]) -> Grid:
    """What each operation takes beside no locks, and how many times that beside some."""
    grid = Grid(
        title=f"Locked cells on {store}: µs without locks, and how many times those with locks",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    locked = list(lines[0].compared)
    for name in ("", "none, µs", *(f"{locks:,}" for locks in locked)):
        grid.add_column(name, justify="right" if name else "left", no_wrap=True)
    for line in lines:
        costs = [line.cost(locks) for locks in locked]
        cells = [Text(f"{one:,.2f}", style="green" if one <= AIM else "yellow") for one in costs]
        grid.add_row(line.operation, f"{line.microseconds():,.1f}", *cells)
    return grid


def plot(stores: dict[str, list[Line]], path: Path) -> None:
    """How many times as long each operation takes, by the number of locks; a part a store."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, parts = pyplot.subplots(
        1, len(stores), figsize=(6 * len(stores), 4.5), squeeze=False, layout="constrained"
    )
    for part, (store, lines) in zip(parts[0], stores.items(), strict=True):
        for line in lines:
            locked = list(line.compared)
            part.plot(locked, [line.cost(locks) for locks in locked], "o-", label=line.operation)
        part.axhspan(1 / AIM, AIM, color="#2ca02c", alpha=0.15, label=f"aim: at most {AIM}")
        part.set_xscale("log")
        part.set_yscale("log")
        part.set_title(store)
        part.set_xlabel("locks committed on the cell (logarithmic)")
        part.set_ylabel("times as long as beside none (logarithmic)")
    handles, names = parts[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle("What reads and locks cost beside lock-only records")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def run(console: Console, *, quick: bool, stores: Sequence[str] = DEFAULT_STORES) -> None:
    """Measure, print a table a store, draw the plot, leave the figures as JSON."""
    circumstances = conditions()
    found: dict[str, list[Line]] = {}
    for store in stores:
        # Many short blocks: the median bears with what else the machine does in some of them.
        pairs, seconds = (15, 0.005) if quick else (61, 0.02)
        if store not in DEFAULT_STORES:
            pairs, seconds = (5, 0.05) if quick else (15, 0.2)
        with temporary_folder() as folder, opened(store, folder) as repo:
            locked = sizes(store, quick=quick)
            found[store] = measure(repo, store, locked, pairs, seconds, console)
        console.print(table(store, found[store]))
    which = () if tuple(stores) == DEFAULT_STORES else stores
    name = output_name("-".join(["locked_cells", *map(str.lower, which)]), quick=quick)
    picture = OUTPUT / f"{name}.png"
    plot(found, picture)
    figures = [line.to_json() for lines in found.values() for line in lines]
    path = write_json(name, {"conditions": circumstances, "figures": figures})
    console.print(
        Group(
            Text(f"On {conditions_line(circumstances)}."),
            Text(f"Plot: {picture}   Figures: {path}", style="dim"),
        )
    )
