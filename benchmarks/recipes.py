"""What recipes cost: changes a second, latency in large groups, and how the cost grows.

    sums        changes a second that one worker answers, over a million groups
    hot         the same for further rows over four groups with two workers, and the share of runs
                that conflict
    tree        from the commit that takes the largest of all contributions back until the next
                largest one is the aggregate, by the number of contributors
    join        how long other rows wait while a dimension row with many dependants changes
    touched     cells that are read and written for a change and all that follows from it, with few
                rows and with many: of sums, of the tree, and of the index that the join uses

Everything is on LMDB with relaxed durability; workers are processes with one thread, and what they
answer is loaded before they start in `sums` and `hot`, so that only their work is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

import percola
from benchmarks.lockstep import child
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    percentile,
    temporary_folder,
    write_json,
)
from percola import Column, Repository, Table, Transaction, Worker, observer
from percola.coordination.memory import MemoryCoordination
from percola.recipes import MAX, Index, Sums, Tree, check
from percola.store.counting import ENTRIES, MUTATE, READ, SCAN, Count, CountedStore, StoreCalls

GROUPS: Final = 1_000_000
HOT: Final = 4
BATCH: Final = 64
_COMMIT: Final = 500
_HOT_CHANGES: Final = 100_000
_PAIRS: Final = 10
_WAIT_SECONDS: Final = 120.0

facts: Final = Table("facts")
group: Final = facts.column("group", str)
amount: Final = facts.column("amount", int, observed=True)
sums: Final = Sums("sums", facts, {"amount": int})

bids: Final = Table("bids")
bid: Final = bids.column("bid", int, observed=True)
best: Final[Tree[str]] = Tree("best", bids, MAX)

lines: Final = Table("lines")
refers: Final = lines.column("refers", str, observed=True)
due: Final = lines.weak_column("due")
seen: Final = lines.column("seen", int)
things: Final = Table("things")
price: Final = things.column("price", int, observed=True)
referring: Final = Index("referring", lines, due=due)


@observer(amount, batch=BATCH)
def add(t: Transaction, row: str) -> None:
    """Contribute a fact to its group."""
    value = t.get(amount, row)
    sums.contribute(t, row, {} if value is None else {str(t.get(group, row)): {"amount": value}})


@observer(bid, batch=BATCH)
def climb(t: Transaction, row: str) -> None:
    """Contribute a bid."""
    value = t.get(bid, row)
    best.contribute(t, row, {} if value is None else {"all": [value, row]})


@observer(refers, batch=BATCH)
def register(t: Transaction, row: str) -> None:
    """Register what a line refers to."""
    key = t.get(refers, row)
    referring.register(t, row, [] if key is None else [key])


@observer(price)
def tell(t: Transaction, row: str) -> None:
    """Have the lines notified that refer to a thing."""
    referring.notify_owners(t, row)


@observer(due, batch=BATCH)
def look(t: Transaction, row: str) -> None:
    """Note the price of what a line refers to."""
    for key in referring.keys(t, row):
        t.set(seen, row, t.get(price, key) or 0)


SCHEMA: Final = [facts, *sums.tables, bids, *best.tables, lines, things, *referring.tables]
OBSERVERS: Final = [
    *(add, climb, register, tell, look),
    *(*sums.observers, *best.observers, *referring.observers),
]


@dataclass(slots=True)
class Figure:
    """One line of the table.

    Attributes:
        what: what was measured.
        size: groups, contributors or dependants.
        value: the measurement, in `unit`.
        aim: what it should be, in words.
        met: whether it is.
    """

    what: str
    size: int
    value: float
    unit: str
    aim: str
    met: bool


# --- Workers ------------------------------------------------------------------------------


def _drain(pipe: Connection, folder: str) -> None:
    """Answer everything that is there; send transactions committed, conflicts, and seconds."""
    with percola.open(folder, SCHEMA, durability="relaxed") as repo:
        worker = Worker(repo, OBSERVERS, threads=1)
        pipe.send("ready")
        pipe.recv()
        began = time.perf_counter()
        worker.run_until_idle()
        conflicts = sum(worker.metrics.counts().get("observer_conflicts", {}).values())
        transactions = sum(
            sample.value
            for metric in worker.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "percola_observer_seconds_count"
        )
        pipe.send((transactions, conflicts, time.perf_counter() - began))
        pipe.recv()


def _serve(pipe: Connection, folder: str) -> None:
    """Answer changes until told to stop."""
    with percola.open(folder, SCHEMA, durability="relaxed") as repo:
        worker = Worker(repo, OBSERVERS, threads=1)
        worker.start()
        pipe.send("ready")
        pipe.recv()
        worker.stop()


# --- Measurements -------------------------------------------------------------------------


def _touched(
    repo: Repository, column: Column[str, Any], changes: Sequence[tuple[str, Any]]
) -> float:
    """Cells that are read and written for a change of a row, and all that follows from it."""
    calls, context = StoreCalls(), repo.context
    store = CountedStore(context.store, calls)
    counted = Repository("counted", store, context.oracle, MemoryCoordination(), SCHEMA)
    worker = Worker(counted, OBSERVERS, threads=1)
    worker.run_until_idle()
    before = calls.counts()
    for row, value in changes:
        with counted.transaction() as t:
            t.set(column, row, value)
        worker.run_until_idle()
    after = calls.counts()
    found = sum(
        count.cells - before.get(key, Count()).cells
        for key, count in after.items()
        if key[1] in (READ, SCAN, ENTRIES, MUTATE)
    )
    return found / len(changes)


def _growth(
    what: str, sizes: Sequence[int], cells: Sequence[float], most: float
) -> Iterator[Figure]:
    """A line for each size; at the last, at most so many times the cells of the first."""
    name = f"cells that a change touches, {what}"
    for size, each in zip(sizes, cells, strict=True):
        bound = most * cells[0]
        aim = f"≤ {bound:,.1f}" if size == sizes[-1] else ""
        yield Figure(name, size, each, "cells", aim, each <= bound)


def _load(repo: Repository, numbers: range, groups: int, seed: int) -> None:
    rng = random.Random(seed)
    for low in range(numbers.start, numbers.stop, _COMMIT):
        with repo.transaction() as t:
            for number in range(low, low + _COMMIT):
                row = f"f{number:07}"
                t.set(group, row, f"g{rng.randrange(groups):07}")
                t.set(amount, row, rng.randrange(1_000))


def measure_sums(repo: Repository, folder: Path, sizes: Sequence[int]) -> list[Figure]:
    """Changes a second, over many groups by one worker and over few by two."""
    figures: list[Figure] = []
    cells, known, rate = [], 0, 0.0
    for size in sizes:
        _load(repo, range(known, size), GROUPS, 1)
        with child(_drain, str(folder)) as pipe:
            pipe.send("go")
            _, _, seconds = pipe.recv()
        rate = (size - known) / seconds
        known = size
        cells.append(_touched(repo, amount, [(f"f{n:07}", n) for n in range(2 * _PAIRS)]))
    figures += _growth("sums", sizes, cells, 1.5)
    wide = Figure("sums, 1 worker", GROUPS, rate, "changes/s", "≥ 8,000", rate >= 8_000)
    # Rows that contribute nothing yet, as those before: to change one is two changes of sums.
    changes = min(known, _HOT_CHANGES)
    _load(repo, range(known, known + changes), HOT, 2)
    with child(_drain, str(folder)) as one, child(_drain, str(folder)) as other:
        one.send("go")
        other.send("go")
        found = [one.recv(), other.recv()]
    rate = changes / max(seconds for _, _, seconds in found)
    conflicts = sum(lost for _, lost, _ in found)
    share = 100 * conflicts / max(1, conflicts + sum(done for done, _, _ in found))
    at_least = 0.8 * wide.value
    figures += [
        wide,
        Figure("sums, 2 workers", HOT, rate, "changes/s", f"≥ {at_least:,.0f}", rate >= at_least),
        Figure("conflicts of transactions", HOT, share, "%", "≤ 2", share <= 2),
    ]
    return figures


def measure_tree(
    repo: Repository, folder: Path, sizes: Sequence[int], times: int, console: Console
) -> list[Figure]:
    """Take the largest contribution back, and wait for the next largest one."""
    figures, cells, known = [], [], 0
    for size in sizes:
        with console.status(f"Recipes: a tree of {size:,} contributors …"):
            for low in range(known, size, _COMMIT):
                with repo.transaction() as t:
                    for number in range(low, min(size, low + _COMMIT)):
                        t.set(bid, f"b{number:07}", number)
            known = size
            Worker(repo, OBSERVERS, threads=1).run_until_idle()
        # The largest of all and small again, in turn.
        cells.append(_touched(repo, bid, [("b0000007", 10 * size), ("b0000007", 7)] * _PAIRS))
        taken = []
        with child(_serve, str(folder)):
            for number in range(size - 1, size - 1 - times, -1):
                with repo.transaction() as t:
                    t.delete(bid, f"b{number:07}")
                taken.append(_until(lambda n=number: _best(repo) == n - 1))
            for number in range(size - times, size):
                with repo.transaction() as t:
                    t.set(bid, f"b{number:07}", number)
            _until(lambda n=size: _best(repo) == n - 1)
        p99 = 1e3 * percentile(sorted(taken), 0.99)
        median = 1e3 * percentile(sorted(taken), 0.5)
        figures += [
            Figure("largest taken back, median", size, median, "ms", "", True),
            Figure("largest taken back, p99", size, p99, "ms", "≤ 5", p99 <= 5),
        ]
    return [*figures, *_growth("tree", sizes, cells, 2.5)]


def _best(repo: Repository) -> int:
    found = best.get(repo.snapshot(), "all")
    return -1 if found is None else int(found[0])


def measure_join(
    repo: Repository, folder: Path, sizes: Sequence[int], console: Console
) -> list[Figure]:
    """Change a row with many dependants; meanwhile others change, and wait for their answer."""
    cells, known = [], 0
    with repo.transaction() as t:
        t.set(refers, "other", "lone")
    for size in sizes:
        with console.status(f"Recipes: {size:,} dependants …"):
            for low in range(known, size, _COMMIT):
                with repo.transaction() as t:
                    for number in range(low, low + _COMMIT):
                        t.set(refers, f"l{number:07}", "hub")
            known = size
            Worker(repo, OBSERVERS, threads=1).run_until_idle()
        pair = [("l0000007", "else"), ("l0000007", "hub")]
        cells.append(_touched(repo, refers, pair * _PAIRS))
    dependants, taken = known, []
    with child(_serve, str(folder)):
        with repo.transaction() as t:
            t.set(price, "hub", 7)
        began, value = time.perf_counter(), 0
        last = f"l{dependants - 1:07}"
        with console.status("Recipes: a dimension row changes …"):
            while repo.snapshot().get(seen, last) != 7:
                value += 1
                with repo.transaction() as t:
                    t.set(price, "lone", value)
                taken.append(_until(lambda v=value: repo.snapshot().get(seen, "other") == v))
        drained = time.perf_counter() - began
    p99 = 1e3 * percentile(sorted(taken), 0.99)
    return [
        *_growth("index", sizes, cells, 1.5),
        Figure("all dependants told", dependants, drained, "s", "", True),
        Figure("others meanwhile, p99", dependants, p99, "ms", "≤ 100", p99 <= 100),
    ]


def _until(finished: Any) -> float:
    """Seconds until it is so."""
    began = time.perf_counter()
    while not finished():
        if time.perf_counter() > began + _WAIT_SECONDS:
            raise percola.PercolaError(f"Nothing came within {_WAIT_SECONDS:.0f} s.")
        time.sleep(0.0002)  # Another process commits: nothing here tells when it has.
    return time.perf_counter() - began


# --- What is shown ------------------------------------------------------------------------


def table(figures: Sequence[Figure]) -> Grid:
    """All figures, with what is aimed at."""
    grid = Grid(title="Recipes on LMDB, relaxed durability", title_justify="left", box=SIMPLE_HEAD)
    for name in ("", "size", "measured", "", "aim"):
        grid.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for one in figures:
        shown = f"{one.value:,.0f}" if one.value >= 100 else f"{one.value:,.2f}"
        style = "green" if one.met else "yellow"
        grid.add_row(one.what, f"{one.size:,}", Text(shown, style=style), one.unit, one.aim)
    return grid


def _told(figures: list[Figure], console: Console) -> list[Figure]:
    """The same figures, after a line for each: a run at full size takes minutes."""
    for one in figures:
        console.print(Text(f"{one.what}, {one.size:,}: {one.value:,.2f} {one.unit}", style="dim"))
    return figures


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the table, leave the figures as JSON; an error if a table is wrong."""
    circumstances = conditions()
    sizes, times = ((1_000, 5_000), 20) if quick else ((10_000, 1_000_000), 200)
    with temporary_folder() as folder:
        place = folder / "repo"
        with percola.open(place, SCHEMA, durability="relaxed") as repo:
            with console.status("Recipes: sums …"):
                figures = _told(measure_sums(repo, place, sizes), console)
            figures += _told(measure_tree(repo, place, sizes, times, console), console)
            figures += _told(measure_join(repo, place, sizes, console), console)
            with console.status("Recipes: recomputing everything …"):
                Worker(repo, OBSERVERS, threads=1).run_until_idle()
                wrong = check(repo, [sums, best, referring])
    if wrong:
        raise percola.PercolaError(f"{len(wrong)} results are wrong; the first: {wrong[0]}")
    console.print(table(figures))
    name = output_name("recipes", quick=quick)
    shown = [asdict(one) for one in figures]
    path = write_json(name, {"conditions": circumstances, "figures": shown})
    console.print(Text(f"On {conditions_line(circumstances)}."))
    console.print(Text(f"Figures: {path.relative_to(OUTPUT.parent.parent)}", style="dim"))
