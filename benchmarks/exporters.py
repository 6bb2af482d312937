"""The web index on OpenSearch: documents a second that one exporter writes, and two side by side.

The sample's pages are multiplied, loaded and answered up to the outbox. Then all documents are
exported to a new index of an OpenSearch of its own, by one worker process and by two in turn. The
processor time of exporters and server is told apart: on one machine they share its cores.

An index has one shard, which is OpenSearch's default, or two. OpenSearch works a request off with a
thread for each shard, so one exporter keeps two of its threads busy if there are two shards.

One exporter and OpenSearch use more than one core: what two add is what is left of the machine. So
one exporter is also measured with OpenSearch and itself on a single core. Two on two cores have
twice of everything, and write twice as much unless they hinder each other.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Set
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks.crawl import multiplied, sample
from benchmarks.fig7_steps import cpu_of
from benchmarks.lockstep import child
from benchmarks.measure import (
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from percola import PercolaError, Repository, Worker
from webindex import tables
from webindex.cli.reindex import reindex
from webindex.devserver import OpenSearchServer
from webindex.load.transaction import load_captures
from webindex.observers.export import export_to
from webindex.serving import OpenSearchIndex, TantivyIndex
from webindex.workers.processes import build_observers, open_repository

AIM: Final = 1.7
"""How much faster two exporters are to be than one, on an index with OpenSearch's one shard."""

_GROUP: Final = 64


class Turn(NamedTuple):
    """What is measured in turn with others."""

    exporters: int
    shards: int
    cores: int = 2


ONE: Final = Turn(1, 1)
ON_ONE_CORE: Final = Turn(1, 1, cores=1)
TURNS: Final = (ON_ONE_CORE, ONE, Turn(1, 2), Turn(2, 1), Turn(2, 2))


def _export(pipe: Connection, address: str, url: str, cores: Set[int]) -> None:
    """Export what is in the outbox; when it is empty, send the processor time that this took."""
    os.sched_setaffinity(0, cores)
    with open_repository(address) as repo, OpenSearchIndex(url) as index:
        worker = Worker(repo, [export_to(index)], threads=1, warn_unobserved=False)
        pipe.send("ready")
        pipe.recv()
        began = time.process_time()  # Starting the process took half a second, a share of each one.
        worker.run_until_idle()
        pipe.send(time.process_time() - began)
        pipe.recv()


def _created(address: Path) -> Repository:
    percola.create(address, durability="relaxed")
    return open_repository(str(address), create=True)


def _build(repo: Repository, folder: Path, copies: int) -> None:
    """The index of the sample's copies, but for its export."""
    captures = list(multiplied(sample(), copies))
    for at in range(0, len(captures), _GROUP):
        load_captures(repo, captures[at : at + _GROUP], "crawl.warc.gz")
    with TantivyIndex(folder / "unused", create=True) as unused:
        observers = [
            one for one in build_observers(unused) if tables.outbox_ready not in one.columns
        ]
        Worker(repo, observers, threads=1, warn_unobserved=False).run_until_idle()


def _block(
    repo: Repository,
    address: Path,
    server: OpenSearchServer,
    name: str,
    turn: Turn,
) -> dict[str, Any]:
    """All documents into a new index."""
    url = f"{server.address}/{name}?shards={turn.shards}&replicas=0"
    documents = reindex(repo)
    pid = server.pid()
    assert pid is not None
    cores = set(sorted(os.sched_getaffinity(0))[: turn.cores])
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)
    with OpenSearchIndex(url) as index, ExitStack() as stack:
        pipes = [
            stack.enter_context(child(_export, str(address), url, cores))
            for _ in range(turn.exporters)
        ]
        cpu, began = cpu_of(pid), time.monotonic()
        for pipe in pipes:
            pipe.send("go")
        own = sum(pipe.recv() for pipe in pipes)
        seconds = time.monotonic() - began
        served = cpu_of(pid) - cpu
        if index.count() != documents:
            raise PercolaError(f"{index.count():,} of {documents:,} documents are in the index.")
        # OpenSearch keeps some of each in memory.
        urlopen(Request(f"{server.address}/{name}", method="DELETE"), timeout=60).close()
    return {
        **turn._asdict(),
        "documents": documents,
        "per_second": documents / seconds,
        "exporters_ms": 1000 * own / documents,
        "server_ms": 1000 * served / documents,
    }


def run(console: Console, *, quick: bool) -> None:
    """Measure, check the number of documents, print the table, write the figures as JSON."""
    copies, rounds = (20, 1) if quick else (60, 3)
    found = conditions()
    blocks: list[dict[str, Any]] = []
    with (
        temporary_folder() as folder,
        console.status("Exporters: building the index …") as status,
        _created(folder / "repo") as repo,
        OpenSearchServer(folder / "opensearch", heap_mb=1024) as server,
    ):
        _build(repo, folder, copies)
        # The first block is for Java's compilers.
        order = [TURNS[-1]]
        for number in range(rounds):
            order += TURNS if number % 2 == 0 else reversed(TURNS)
        for number, turn in enumerate(order):
            status.update(f"Exporters: {turn.exporters} on {turn.shards} shards …")
            blocks.append(_block(repo, folder / "repo", server, f"block-{number}", turn))
    lines = []
    for turn in TURNS:
        its = [one for one in blocks[1:] if turn == tuple(one[field] for field in Turn._fields)]
        lines.append({key: statistics.median(one[key] for one in its) for key in its[0]})
    rate = dict(zip(TURNS, (line["per_second"] for line in lines), strict=True))
    ratios = {
        "one shard": rate[Turn(2, 1)] / rate[ONE],
        "two shards": rate[Turn(2, 2)] / rate[Turn(1, 2)],
        "twice the cores": rate[Turn(2, 1)] / rate[ON_ONE_CORE],
    }
    grid = Grid(
        *("exporters", "shards", "cores", "documents/s", "exporters, ms", "OpenSearch, ms"),
        box=SIMPLE_HEAD,
    )
    for line in lines:
        grid.add_row(
            f"{line['exporters']:.0f}",
            f"{line['shards']:.0f}",
            f"{line['cores']:.0f}",
            f"{line['per_second']:,.0f}",
            f"{line['exporters_ms']:.2f}",
            f"{line['server_ms']:.2f}",
        )
    console.print(grid)
    console.print(
        f"Two exporters write {ratios['one shard']:.2f} times as much as one on one shard "
        f"(aim: {AIM}), {ratios['two shards']:.2f} times on two; and on two cores "
        f"{ratios['twice the cores']:.2f} times what one writes where it and OpenSearch have one. "
        f"Milliseconds of the processor for each of {lines[0]['documents']:,.0f} documents.",
        soft_wrap=True,
    )
    console.print(f"On {conditions_line(found)}.", soft_wrap=True)
    path = write_json(
        output_name("exporters", quick=quick),
        {"conditions": found, "aim": AIM, "ratios": ratios, "blocks": blocks},
    )
    console.print(f"Figures: {path}", style="dim", soft_wrap=True)
