"""The whole chain: pages a second from a WARC file to a search, and how late a change is found.

Four passes over real pages, each saying what the others cannot:

    bulk      a Spark job loads a crawl while worker processes work it off: pages a second
    steady    pages keep coming at half of that rate: latency of each under load
    trickle   one changed page at a time: from its loader's commit to a search that finds it
    stages    one process, one thread: which share of a page's time each stage has
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

from benchmarks.crawl import multiplied, recaptured, sample, write_warc
from benchmarks.measure import (
    OUTPUT,
    Distribution,
    Usage,
    conditions,
    conditions_line,
    shares,
    temporary_folder,
    write_json,
)
from benchmarks.stages import Stages, measure_stages
from percola import PercolaError, Repository
from percola.spark import spark_session
from webindex import tables
from webindex.loading import load_captures
from webindex.pipeline import load
from webindex.serving.base import ServingIndex
from webindex.summary import summarise
from webindex.warc import Capture
from webindex.working import (
    Workers,
    open_index,
    open_repository,
    running,
    wait_until_idle,
)

AIM_PAGES: Final = 60.0
AIM_MEMORY: Final = 300e6

_PATIENCE: Final = 300.0
_LOOK_SECONDS: Final = 0.25
_LETTERS: Final = "bcdfghjklmnpqrstvwxz"


class ChainError(PercolaError):
    """The chain did not do the work that was to be measured: there are no figures."""


@dataclass(slots=True)
class Figures:
    """What was measured. Seconds by the clock, latencies in milliseconds."""

    workers: int = 0
    pages: int = 0
    page_bytes: float = 0.0
    links: int = 0
    clusters: int = 0
    spark_start: float = 0.0
    workers_start: float = 0.0
    loaded: float = 0.0
    searchable: float = 0.0
    worker_cpu: float = 0.0
    usages: list[Usage] = field(default_factory=list)
    steady_rate: float = 0.0
    latencies: dict[str, list[float]] = field(default_factory=dict)

    @property
    def pages_per_second(self) -> float:
        """From the start of the Spark job until nothing is left to do."""
        return self.pages / self.searchable

    def to_json(self) -> dict[str, Any]:
        """All figures, latencies as percentiles and one by one."""
        return {
            **asdict(self),
            "pages_per_second": self.pages_per_second,
            "percentiles": {
                name: asdict(found)
                for name, all_of_them in self.latencies.items()
                if (found := Distribution.of(all_of_them)) is not None
            },
        }


# --- Passes -------------------------------------------------------------------------------


def measure_chain(
    folder: Path, captures: Sequence[Capture], console: Console, *, quick: bool
) -> Figures:
    """The passes with worker processes: bulk, steady, trickle."""
    figures = Figures(workers=min(8, os.cpu_count() or 1))
    warc = folder / "crawl.warc.gz"
    write_warc(warc, captures)
    address = str(folder / "chain")
    with (
        console.status("Chain: starting Spark and workers …") as status,
        open_repository(address, create=True) as repo,
        open_index(repo, create=True) as index,
    ):
        began = time.perf_counter()
        with running(address, figures.workers) as workers:
            workers.wait_ready()
            figures.workers_start = time.perf_counter() - began
            with watched(workers, figures.usages):
                status.update(f"Chain: {len(captures):,} pages from a WARC file to the index …")
                _bulk(repo, index, workers, warc, captures, figures)
                # The pages that change: those that one would search for.
                changing = [one for one in captures if 200 <= one.status < 300]
                random.Random(1).shuffle(changing)
                rate = figures.pages_per_second / 2
                steady = int(rate * (3 if quick else 10))
                status.update(f"Chain: {rate:.0f} changed pages a second …")
                _steady(repo, workers, changing[:steady], rate, figures)
                status.update("Chain: one changed page at a time …")
                trickle = changing[steady:][: 40 if quick else 200]
                _trickle(repo, index, workers, trickle, figures)
            if workers.restarts:
                raise ChainError(f"{workers.restarts} worker processes died on the way.")
        if repo.set_aside():
            raise ChainError(f"{repo.set_aside()} changes were set aside: observers failed.")
    return figures


def _bulk(
    repo: Repository,
    index: ServingIndex,
    workers: Workers,
    warc: Path,
    captures: Sequence[Capture],
    figures: Figures,
) -> None:
    before = repo.snapshot().start_ts
    worked = processor_time(workers)
    began = time.perf_counter()
    with spark_session("local[*]", app="benchmark") as spark:
        figures.spark_start = time.perf_counter() - began
        began = time.perf_counter()
        report = load(repo.address, [warc], spark=spark, quiet=True)
        figures.loaded = time.perf_counter() - began
        # Looking costs what is dirty; looking all the time would take a core from the workers.
        while sum(repo.pending().values()) > 200:
            workers.check()
            time.sleep(0.5)
        wait_until_idle(repo, workers, _PATIENCE)
        figures.searchable = time.perf_counter() - began
    figures.worker_cpu = processor_time(workers) - worked
    summary = summarise(repo, since=before)
    figures.pages, figures.links, figures.clusters = summary.pages, summary.links, summary.clusters
    figures.page_bytes = sum(len(one.body) for one in captures) / max(1, summary.pages)
    figures.latencies["bulk"] = latencies(repo, before)
    expected = sum(200 <= one.status < 300 for one in captures)
    if report.loaded.written != len(captures) or summary.pages != expected:
        raise ChainError(
            f"{summary.pages} of {expected} pages are in the index, {report.loaded.written} of "
            f"{len(captures)} captures were loaded."
        )
    if index.count() != summary.clusters:
        raise ChainError(f"{index.count()} of {summary.clusters} clusters can be searched.")


def _steady(
    repo: Repository, workers: Workers, pages: Sequence[Capture], rate: float, figures: Figures
) -> None:
    """Pages that come at their time, whether or not the chain has got so far (an open loop)."""
    before = repo.snapshot().start_ts
    began = time.perf_counter()
    for number, page in enumerate(pages):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        load_captures(repo, [recaptured(page, f"Change {number} of this page.")], "steady")
    figures.steady_rate = len(pages) / (time.perf_counter() - began)
    wait_until_idle(repo, workers, _PATIENCE)
    figures.latencies["steady"] = latencies(repo, before)


def _trickle(
    repo: Repository,
    index: ServingIndex,
    workers: Workers,
    pages: Sequence[Capture],
    figures: Figures,
) -> None:
    waited = figures.latencies.setdefault("trickle", [])
    for number, page in enumerate(pages):
        sought = word(number)
        load_captures(repo, [recaptured(page, f"The word is {sought}.", hours=2)], "trickle")
        committed = time.perf_counter()
        while not index.search(sought, limit=1).total:
            if time.perf_counter() - committed > _PATIENCE:
                raise ChainError(f"A changed page was not to be found: {page.url}.")
            time.sleep(0.001)
        waited.append((time.perf_counter() - committed) * 1000)
        # The next one meets the repository at rest.
        wait_until_idle(repo, workers, _PATIENCE)


def processor_time(workers: Workers) -> float:
    """Seconds that all worker processes have computed so far."""
    usages = [Usage() for _ in workers.processes]
    for usage, process in zip(usages, workers.processes, strict=True):
        usage.look(process.pid)
    return sum(usage.cpu_seconds for usage in usages)


def latencies(repo: Repository, since: int) -> list[float]:
    """From loader to index, of each page exported after a timestamp: the export's own notes."""
    return [
        one
        for row in repo.snapshot().scan(tables.journal, start=f"export/{since:020}", end="export0")
        for one in row[tables.report]["latency_ms"]
    ]


def word(number: int) -> str:
    """A word that no page has, another for each number."""
    letters = ""
    for _ in range(4):
        number, at = divmod(number, len(_LETTERS))
        letters += _LETTERS[at]
    return f"zq{letters}qz"


@contextmanager
def watched(workers: Workers, usages: list[Usage]) -> Iterator[None]:
    """Note what the worker processes use, several times a second."""
    done = threading.Event()
    seen = {process.pid: Usage() for process in workers.processes}

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            for pid, usage in seen.items():
                usage.look(pid)

    thread = threading.Thread(target=watch, name="usage", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        usages.extend(seen.values())


# --- What is shown ------------------------------------------------------------------------


def rows(figures: Figures) -> list[tuple[str, str, str]]:
    """Name, figure and remark of each line."""
    anonymous = max(usage.anonymous for usage in figures.usages)
    resident = max(usage.resident for usage in figures.usages)
    whole = f"{figures.pages:,} pages, {figures.links:,} links in {figures.searchable:.1f} s"
    start = f"Spark's start, apart: {figures.spark_start:.1f} s"
    files = f"with pages of shared files {resident / 1e6:,.0f} MB"
    found = [
        (
            "Throughput",
            f"{figures.pages_per_second:,.0f} pages/s",
            f"aim {AIM_PAGES:.0f}; {whole}, {figures.workers} workers",
        ),
        (
            "  of it loading",
            f"{figures.loaded:.1f} s",
            f"the Spark job; workers work meanwhile. {start}",
        ),
        (
            "  computing",
            f"{figures.worker_cpu / figures.pages * 1000:.1f} ms/page",
            "processor time of the workers, whatever else the machine did",
        ),
        (
            "Memory of a worker",
            f"{anonymous / 1e6:,.0f} MB" if anonymous else "unknown",
            f"aim under {AIM_MEMORY / 1e6:.0f}; its own, at its peak; {files}",
        ),
    ]
    remarks = {
        "trickle": "one changed page at a time, commit to search",
        "steady": f"{figures.steady_rate:.0f} changed pages a second",
        "bulk": "everything at once: mostly waiting for its turn",
    }
    for name, remark in remarks.items():
        one = Distribution.of(figures.latencies.get(name, []))
        if one is not None:
            found.append(
                (
                    f"Latency, {name}",
                    f"{milliseconds(one.p50)} · {milliseconds(one.p95)} · {milliseconds(one.p99)}",
                    f"p50 · p95 · p99 of {one.count:,}; {remark}",
                )
            )
    return found


def milliseconds(value: float) -> str:
    """A latency, in the unit that fits."""
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def grid_of_figures(figures: Figures) -> Grid:
    """The table of throughput, memory and latency."""
    grid = Grid(
        title=f"The chain: {figures.pages:,} pages of {figures.page_bytes / 1000:.1f} kB",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_header=False,
    )
    grid.add_column("", no_wrap=True)
    grid.add_column("", no_wrap=True, style="bold")
    grid.add_column("", style="dim")
    for row in rows(figures):
        grid.add_row(*row)
    return grid


def grid_of_stages(stages: Stages) -> Grid:
    """The table of shares."""
    grid = Grid(
        title=f"Share by stage: one process, one thread, {stages.pages:,} pages in "
        f"{stages.seconds:.1f} s",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    grid.add_column("", no_wrap=True)
    for name in ("Share", "ms/page", "Code", "Transaction", "Runs/page"):
        grid.add_column(name, justify="right", no_wrap=True)
    portions = shares(stages.parts())
    for name, seconds in stages.parts().items():
        stage = stages.by_name.get(name)
        each = 1000 / stages.pages
        grid.add_row(
            name,
            f"{portions[name]:.1%}",
            f"{seconds * each:.2f}",
            f"{stage.inside * each:.2f}" if stage else "",
            f"{stage.transaction * each:.2f}" if stage else "",
            f"{stage.runs / stages.pages:.2f}" if stage else "",
        )
    return grid


def plot(figures: Figures, stages: Stages, path: Path) -> None:
    """Stacked bars of the stages, and how the latencies are distributed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    each = 1000 / stages.pages
    colours = pyplot.get_cmap("tab10")
    bars = {
        "all": {name: stage.seconds for name, stage in stages.by_name.items()},
        "own code": {name: stage.inside for name, stage in stages.by_name.items()},
        "transaction": {name: stage.transaction for name, stage in stages.by_name.items()},
    }
    for column, parts in bars.items():
        bottom = 0.0
        for number, (name, seconds) in enumerate(parts.items()):
            label = name if column == "all" else None
            left.bar(column, seconds * each, bottom=bottom, color=colours(number), label=label)
            bottom += seconds * each
        if column == "all":
            rest = stages.scanning * each
            left.bar(column, rest, bottom=bottom, color="#cccccc", label="looking for work")
    left.set_ylabel("milliseconds a page, one thread")
    left.set_title("Share by stage")
    left.legend(reverse=True, fontsize=8)
    for name, values in figures.latencies.items():
        ordered = sorted(max(one, 1.0) for one in values)
        right.step(
            ordered,
            [(at + 1) / len(ordered) for at in range(len(ordered))],
            where="post",
            label=f"{name} ({len(ordered):,} pages)",
        )
    right.set_xscale("log")
    right.set_xlabel("milliseconds from loader to search (logarithmic)")
    right.set_ylabel("share of pages found by then")
    right.set_title("Latency")
    right.grid(visible=True, alpha=0.3)
    right.legend(fontsize=8)
    figure.suptitle(
        f"The chain: {figures.pages_per_second:,.0f} pages a second, {figures.workers} workers"
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the tables, draw the plot, leave the figures as JSON."""
    found = conditions()
    pages = sample()
    with temporary_folder() as folder:
        copies, staged = (2, 1) if quick else (8, 3)
        figures = measure_chain(folder, list(multiplied(pages, copies)), console, quick=quick)
        with console.status("Chain: stage by stage, in one thread …"):
            stages = measure_stages(folder, list(multiplied(pages, staged)))
    picture = OUTPUT / "chain.png"
    plot(figures, stages, picture)
    path = write_json(
        "chain",
        {
            "conditions": found,
            "copies": copies,
            "aims": {"pages_per_second": AIM_PAGES, "worker_bytes": AIM_MEMORY},
            "chain": figures.to_json(),
            "stages": stages.to_json(),
        },
    )
    console.print(
        Group(
            grid_of_figures(figures),
            grid_of_stages(stages),
            Text(
                f"Waiting, for the disk at commits, is {stages.waiting / stages.seconds:.0%} of "
                "the one thread's time."
            ),
            Text(f"On {conditions_line(found)}; every commit is on disk before the next step."),
            Text(
                f"The pages are the sample crawl {copies} times, on other hosts and with one "
                "sentence more each: real pages, links and duplicates, but no page that very many "
                "link to.",
                style="dim",
            ),
            Text(f"Plot: {picture}   Figures: {path}", style="dim"),
        )
    )
