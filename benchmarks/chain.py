"""The whole chain: pages a second from a WARC file to a search, and how late a change is found.

Four passes over real pages:

    bulk      a Spark job loads a crawl while worker processes drain it: pages a second
    steady    pages arrive at half of that rate: latency of each under load
    trickle   one changed page at a time: from its loader's commit until the search index has it
    stages    one process, one thread: which share of a page's time each stage has
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.text import Text

from benchmarks.arrivals import one_at_a_time, pages_of
from benchmarks.chain_report import (
    AIM_MEMORY,
    AIM_PAGES,
    Figures,
    grid_of_figures,
    grid_of_latencies,
    grid_of_stages,
    plot,
)
from benchmarks.crawl import multiplied, recaptured, sample, write_warc
from benchmarks.measure import (
    OUTPUT,
    Usage,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.processes import check_no_failures
from benchmarks.stages import measure_stages
from percola import PercolaError, Repository
from percola.spark import spark_session
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.job import load
from webindex.load.transaction import load_captures
from webindex.reports.summary import summarise
from webindex.serving.base import ServingIndex
from webindex.workers.processes import (
    Workers,
    open_index,
    open_repository,
    running,
    wait_until_idle,
)

_TIMEOUT: Final = 300.0
_LOOK_SECONDS: Final = 0.25


class ChainError(PercolaError):
    """The chain did not finish the work to be measured, so there are no figures."""


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
                alone = 20 if quick else 200
                steady = min(int(rate * (2 if quick else 10)), len(changing))
                status.update(f"Chain: {rate:.0f} changed pages a second …")
                _steady(repo, workers, changing[:steady], rate, figures)
                status.update("Chain: one changed page at a time …")

                def rest() -> None:
                    wait_until_idle(repo, workers, _TIMEOUT)

                arrivals = one_at_a_time(repo, index, pages_of(repo, alone, seed=1), rest, _TIMEOUT)
                figures.latencies["trickle"] = [
                    one.found for one in arrivals if one.found is not None
                ]
            if workers.restarts:
                raise ChainError(f"{workers.restarts} worker processes died on the way.")
        check_no_failures(repo)
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
        wait_until_idle(repo, workers, _TIMEOUT)
        figures.searchable = time.perf_counter() - began
    figures.worker_cpu = processor_time(workers) - worked
    summary = summarise(repo, since=before)
    figures.pages, figures.links, figures.clusters = summary.pages, summary.links, summary.documents
    figures.page_bytes = sum(len(one.body) for one in captures) / max(1, summary.pages)
    figures.latencies["bulk"] = latencies(repo, before)
    expected = sum(200 <= one.status < 300 for one in captures)
    if report.loaded.written != len(captures) or summary.pages != expected:
        raise ChainError(
            f"{summary.pages} of {expected} pages are in the index, {report.loaded.written} of "
            f"{len(captures)} captures were loaded."
        )
    if index.count() != summary.documents:
        raise ChainError(f"{index.count()} of {summary.documents} documents can be searched.")


def _steady(
    repo: Repository, workers: Workers, pages: Sequence[Capture], rate: float, figures: Figures
) -> None:
    """Load pages at a fixed rate, whether or not the chain keeps up (an open loop)."""
    before = repo.snapshot().start_ts
    began = time.perf_counter()
    for number, page in enumerate(pages):
        # The rate is what is asked for.
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        changed = recaptured(page, f"Change {number} of this page.")
        if not load_captures(repo, [changed], "steady").written:
            raise ChainError(
                f"A changed page was not taken as newer than what is there: {page.url}."
            )
    figures.steady_rate = len(pages) / (time.perf_counter() - began)
    wait_until_idle(repo, workers, _TIMEOUT)
    figures.latencies["steady"] = latencies(repo, before)


def processor_time(workers: Workers) -> float:
    """The processor time of all worker processes so far, in seconds."""
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


@contextmanager
def watched(workers: Workers, usages: list[Usage]) -> Iterator[None]:
    """Sample the resource usage of the worker processes several times a second."""
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


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the tables, draw the plot, write the figures as JSON."""
    found = conditions()
    pages = sample()
    with temporary_folder() as folder:
        copies, staged = (2, 1) if quick else (8, 3)
        figures = measure_chain(folder, list(multiplied(pages, copies)), console, quick=quick)
        with console.status("Chain: stage by stage, in one thread …"):
            stages = measure_stages(folder, list(multiplied(pages, staged)))
    name = output_name("chain", quick=quick)
    picture = OUTPUT / f"{name}.png"
    plot(figures, stages, picture)
    path = write_json(
        name,
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
            grid_of_latencies(figures),
            grid_of_stages(stages),
            Text(
                f"Waiting, for the disk at commits, is {stages.waiting / stages.seconds:.0%} of "
                "the one thread's time."
            ),
            Text(f"On {conditions_line(found)}; every commit is on disk before the next step."),
            Text(
                f"The pages are the sample crawl {copies} times, on other hosts, with one "
                "sentence more and one word in five respelt: real pages, links and duplicates, "
                "but no page that very many link to.",
                style="dim",
            ),
            Text(f"Plot: {picture}   Figures: {path}", style="dim"),
        )
    )
