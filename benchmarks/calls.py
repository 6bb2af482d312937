"""§2.5: calls to a network store that a document takes: plain, with a cache, and with prefetch.

The whole web index is drained in one thread, which scans for work, runs the observers and commits
to a store in two phases, as to a remote one. It is the memory store, so nothing is timed: calls,
and the Bigtable requests that they would need, are counted.

    calls      store calls, each of which its caller waits for
    rounds     how often a caller waits for the network: 64 row changes, or 32 reads, at once
    requests   one for each row that is changed under conditions, and for all rows of which the
               same columns are read

Where Google's emulator of Bigtable is there, the same is done once more on it, and the requests are
those that the store's driver really made.

    bulk       a crawl is loaded, then drained: observers process many rows at once
    trickle    pages change one after the other, each drained before the next arrives
"""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.crawl import multiplied, recaptured, sample
from benchmarks.markdown import table
from benchmarks.measure import conditions, output_name, temporary_folder, write_json
from benchmarks.processes import StageError
from benchmarks.servers import ROOT, emulator
from percola import Observer, Repository, WorkerOptions
from percola.cells import Cell
from percola.coordination.memory import MemoryCoordination
from percola.observers.metrics import WorkerMetrics
from percola.observers.observer import Observers
from percola.observers.runner import Runner
from percola.observers.scanner import Scanner
from percola.observers.schedule import Schedule
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import CellState, RowMutation, Store
from percola.store.counting import CountedStore, StoreCalls
from percola.store.memory import MemoryStore
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.transaction import load_captures
from webindex.serving.tantivy.index import TantivyIndex
from webindex.workers.processes import build_observers

VARIANTS: Final = {"plain": (False, False), "cache": (True, False), "cache, prefetch": (True, True)}
"""Whether reads are cached, and whether what past transactions read next comes along."""

LOOKING: Final = "looking for work"
_GROUP: Final = 16
_ROWS_AT_ONCE: Final = 64
_READS_AT_ONCE: Final = 32


class RequestStore(CountedStore):
    """Counts the requests that Bigtable would get, and how often one would wait for it.

    What its driver does besides is left out: a second look where a row has changed very often, the
    safe point once a second.
    """

    def __init__(self, inner: Store, calls: StoreCalls) -> None:
        super().__init__(inner, calls)
        self.requests: Counter[str] = Counter()
        self.waited = 0

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        """Each row that is changed under conditions, and the others of each table."""
        conditional = sum(1 for one in batch if one.conditions)
        others = len({one.table for one in batch if not one.conditions})
        self.requests["CheckAndMutateRow"] += conditional
        self.requests["MutateRows"] += others
        self.waited += math.ceil((conditional + others) / _ROWS_AT_ONCE) - 1
        return super().mutate(batch)

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        """All rows of a table of which the same columns are read."""
        by_row: dict[tuple[str, bytes], set[bytes]] = {}
        for name, row, column in cells:
            by_row.setdefault((name, row), set()).add(column)
        groups = {(name, frozenset(columns)) for (name, _), columns in by_row.items()}
        self.requests["ReadRows"] += len(groups) - 1  # One is counted with all other calls.
        self.waited += math.ceil(len(groups) / _READS_AT_ONCE) - 1
        return super().read(cells, ts)


@dataclass(slots=True)
class Calls:
    """What some documents took, by caller and kind, and in all.

    Attributes:
        requests: as Bigtable would get them; `made`: as its driver made them, if it was there.
        seconds: by the clock.
    """

    documents: int
    by_caller: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    cells: int = 0
    rounds: int = 0
    requests: int = 0
    made: Counter[str] = field(default_factory=Counter)
    guessed: int = 0
    used: int = 0
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        """All calls."""
        return self.by_kind.total()

    @property
    def reads(self) -> int:
        """Those that change nothing."""
        return self.calls - self.by_kind["mutate"]

    def to_json(self) -> dict[str, Any]:
        """All figures, a document."""
        return {
            "documents": self.documents,
            "calls": self.calls / self.documents,
            "by_caller": {name: n / self.documents for name, n in self.by_caller.items()},
            "by_kind": {name: n / self.documents for name, n in self.by_kind.items()},
            "cells_read": self.cells / self.documents,
            "rounds": self.rounds / self.documents,
            "requests": self.requests / self.documents,
            "requests_made": {name: n / self.documents for name, n in self.made.items()},
            "came_ahead": self.guessed / self.documents,
            "came_ahead_and_read": self.used / self.documents,
            "seconds": self.seconds,
        }


class Chain:
    """The web index on a store that counts."""

    def __init__(
        self, inner: Store, clockwork: MemoryStore, folder: Path, reads: tuple[bool, bool]
    ) -> None:
        self.inner = inner
        self.store = RequestStore(inner, StoreCalls())
        self.repo = Repository(
            "counted",
            self.store,
            EmbeddedOracle(clockwork),
            MemoryCoordination(),
            tables.SCHEMA,
            one_step=False,
            caches_reads=reads[0],
            prefetches=reads[1],
        )
        self.index = TantivyIndex(folder, create=True)
        self._work = _worker(self.repo, build_observers(self.index))

    def close(self) -> None:
        """Close the index and the repository."""
        self.index.close()
        self.repo.close()

    def count(self, documents: int, *steps: Callable[[], None]) -> Calls:
        """Count the calls of running some steps and draining the work that they cause."""
        before, began = self._look(), time.perf_counter()
        for step in steps:
            step()
            self._work()
        after = self._look()
        found = Calls(documents, seconds=time.perf_counter() - began)
        counts, earlier = after[0], before[0]
        for key, count in counts.items():
            base = earlier.get(key, (0, 0, 0))
            caller, kind = key
            found.by_caller[_shown(caller)] += count[0] - base[0]
            found.by_kind[kind] += count[0] - base[0]
            if kind in ("read", "scan"):
                found.cells += count[2] - base[2]
        found.rounds = found.calls + after[1] - before[1]
        requests: Counter[str] = after[2] - before[2]
        others = found.calls - found.by_kind["mutate"]
        found.requests = requests.total() + others
        found.made = after[3] - before[3]
        found.guessed, found.used = after[4] - before[4], after[5] - before[5]
        return found

    def check(self) -> None:
        """StageError unless all work was done: what is left has saved its calls."""
        left, failed = sum(self.repo.pending().values()), self.repo.dead_lettered()
        if left or failed:
            raise StageError(
                f"{left:,} cells are still dirty, and {failed:,} changes were dead-lettered: "
                "observers failed."
            )

    def _look(self) -> Any:
        prefetch = self.repo.context.prefetch
        guessed, used = (0, 0) if prefetch is None else prefetch.counts()
        return (
            self.store.calls.counts(),
            self.store.waited,
            Counter(self.store.requests),
            Counter(self.inner.statistics()),
            guessed,
            used,
        )


def _worker(repo: Repository, observers: Sequence[Observer[Any]]) -> Callable[[], None]:
    """A worker on this thread, which returns when no work is left."""
    context, group, metrics = repo.context, Observers(observers), WorkerMetrics()
    # What is looked at once a second whatever comes is not a document's.
    options, rng = WorkerOptions(threads=1, rescan=math.inf), random.Random(1)
    runs = Runner(context, group, metrics, options, rng)
    schedule = Schedule(context, group, math.inf, math.inf, lambda: None)
    schedule.ending = True
    context.coordination.on_wake(schedule.note_wake_up)
    parts = (context, group, metrics, options, runs, schedule, rng)
    common, dedicated = Scanner(*parts), Scanner(*parts, dedicated=True)

    def work() -> None:
        while common.look() == 0.0 or dedicated.look() == 0.0:
            pass

    return work


def _shown(caller: str) -> str:
    return "load" if caller.startswith("load_") else caller or LOOKING


@dataclass(slots=True)
class Passes:
    """The counts of a bulk load and a trickle."""

    bulk: Calls
    trickle: Calls


def measure(
    inner: Store, clockwork: MemoryStore, folder: Path, copies: int, reads: tuple[bool, bool]
) -> Passes:
    """Load the sample `copies` times over and drain it; then change some pages one by one."""
    captures = list(multiplied(sample(), copies))
    live = [one for one in captures if 200 <= one.status < 300]
    changed = random.Random(1).sample(live, min(100, len(live) // 4))
    chain = Chain(inner, clockwork, folder, reads)

    def load(group: Sequence[Capture]) -> Callable[[], None]:
        return lambda: void(load_captures(chain.repo, group, "crawl.warc.gz"))

    def load_all() -> None:
        for at in range(0, len(captures), _GROUP):
            load(captures[at : at + _GROUP])()

    try:
        bulk = chain.count(len(captures), load_all)
        again = [load([recaptured(one, "A sentence more.")]) for one in changed]
        trickle = chain.count(len(changed), *again)
        chain.check()
        return Passes(bulk, trickle)
    finally:
        chain.close()


def void(_: object) -> None:
    """Forget a result."""


def run(console: Console, *, quick: bool) -> None:
    """Count, print the tables, keep all figures."""
    copies = 1 if quick else 2
    circumstances = conditions()
    found: dict[str, Passes] = {}
    for name, reads in VARIANTS.items():
        with temporary_folder() as folder:
            memory = MemoryStore()
            found[name] = measure(memory, memory, folder / "index", copies, reads)
    on_bigtable = {} if quick else _on_bigtable(console, 1)
    console.print(report(found), markup=False)
    if on_bigtable:
        console.print(bigtable_report(on_bigtable), markup=False)
    figures = {
        name: {"bulk": one.bulk.to_json(), "trickle": one.trickle.to_json()}
        for name, one in found.items()
    }
    emulated = {
        name: {"bulk": one.bulk.to_json(), "trickle": one.trickle.to_json()}
        for name, one in on_bigtable.items()
    }
    write_json(
        output_name("calls", quick=quick),
        {"conditions": circumstances, "memory": figures, "bigtable": emulated},
    )


def _on_bigtable(console: Console, copies: int) -> dict[str, Passes]:
    """The same on Google's emulator, if it is installed: it is never built for this."""
    script = ROOT / "scripts" / "bigtable_emulator.sh"
    if subprocess.run([script, "find"], capture_output=True, check=False).returncode:
        console.print("Without Bigtable's emulator, the requests are only what they should be.")
        return {}
    from percola.store.bigtable.store import open_bigtable

    found = {}
    for number, (name, reads) in enumerate(VARIANTS.items()):
        with emulator(), temporary_folder() as folder:
            store = open_bigtable(f"bigtable://benchmark/calls-{number}")
            found[name] = measure(store, MemoryStore(), folder / "index", copies, reads)
    return found


def report(found: Mapping[str, Passes]) -> str:
    """Calls a document of both passes, by caller and by kind."""
    text = ""
    for title, chosen in (
        ("bulk", {name: one.bulk for name, one in found.items()}),
        ("trickle", {name: one.trickle for name, one in found.items()}),
    ):
        passes = list(chosen.values())
        callers = sorted(
            {name for one in passes for name in one.by_caller}, key=lambda name: name == LOOKING
        )
        lines = [[name, *(_each(one.by_caller[name], one) for one in passes)] for name in callers]
        lines.append(["**calls**", *(f"**{_each(one.calls, one)}**" for one in passes)])
        for kind in ("read", "scan", "entries", "look", "other", "mutate"):
            lines.append([f"of these: {kind}", *(_each(one.by_kind[kind], one) for one in passes)])
        lines.append(["all but mutate", *(_each(one.reads, one) for one in passes)])
        lines.append(["cells read", *(_each(one.cells, one) for one in passes)])
        lines.append(
            ["came ahead / of these read", *(_pair(one.guessed, one.used, one) for one in passes)]
        )
        lines.append(["rounds", *(_each(one.rounds, one) for one in passes)])
        lines.append(["requests of Bigtable", *(_each(one.requests, one) for one in passes)])
        head = f"{title}: {passes[0].documents:,} documents; a document"
        text += table([head, *chosen], lines) + "\n"
    return text


def bigtable_report(found: Mapping[str, Passes]) -> str:
    """Requests a document: as estimated, and as made by the driver."""
    lines = []
    for title in ("bulk", "trickle"):
        passes: list[Calls] = [getattr(one, title) for one in found.values()]
        lines.append([f"{title}: calls", *(_each(one.calls, one) for one in passes)])
        lines.append([f"{title}: requests, as counted", *(_each(o.requests, o) for o in passes)])
        lines.append(
            [f"{title}: requests, made", *(_each(one.made.total(), one) for one in passes)]
        )
        for name in sorted({name for one in passes for name in one.made}):
            lines.append([f"of these: {name}", *(_each(one.made[name], one) for one in passes)])
        lines.append(
            [f"{title}: ms a document", *(_each(one.seconds * 1000, one) for one in passes)]
        )
    return table(["On Bigtable's emulator; a document", *found], lines)


def _each(number: float, one: Calls) -> str:
    return f"{number / one.documents:.1f}"


def _pair(first: float, second: float, one: Calls) -> str:
    return f"{_each(first, one)} / {_each(second, one)}" if first else ""
