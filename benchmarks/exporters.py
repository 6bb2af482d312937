"""The web index on OpenSearch: documents a second that one exporter writes, and two side by side.

The sample's pages are multiplied, loaded and answered up to the outbox. Then all documents are
exported to a new index of an OpenSearch of its own, by one worker process and by two in turn. The
processor time of exporters and server is told apart: on one machine they share its cores.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

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
_GROUP: Final = 64


def _export(pipe: Connection, address: str, url: str) -> None:
    """Export what is in the outbox; send when it is empty."""
    with open_repository(address) as repo, OpenSearchIndex(url) as index:
        worker = Worker(repo, [export_to(index)], threads=1, warn_unobserved=False)
        pipe.send("ready")
        pipe.recv()
        worker.run_until_idle()
        pipe.send(time.process_time())
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
    repo: Repository, address: Path, server: OpenSearchServer, url: str, exporters: int
) -> dict[str, Any]:
    """All documents into a new index."""
    documents = reindex(repo)
    pid = server.pid()
    assert pid is not None
    with OpenSearchIndex(url) as index, ExitStack() as stack:
        pipes = [stack.enter_context(child(_export, str(address), url)) for _ in range(exporters)]
        cpu, began = cpu_of(pid), time.monotonic()
        for pipe in pipes:
            pipe.send("go")
        own = sum(pipe.recv() for pipe in pipes)
        seconds = time.monotonic() - began
        served = cpu_of(pid) - cpu
        if index.count() != documents:
            raise PercolaError(f"{index.count():,} of {documents:,} documents are in the index.")
    return {
        "exporters": exporters,
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
        OpenSearchServer(folder / "opensearch") as server,
    ):
        _build(repo, folder, copies)
        # The first block is for Java's compilers.
        for number, exporters in enumerate([2, *(1, 2, 2, 1, 1, 2)[: 2 * rounds]]):
            status.update(f"Exporters: {exporters} …")
            url = f"{server.address}/block-{number}?shards=2&replicas=0"
            blocks.append(_block(repo, folder / "repo", server, url, exporters))
    lines = []
    for exporters in (1, 2):
        its = [one for one in blocks[1:] if one["exporters"] == exporters]
        lines.append({key: statistics.median(one[key] for one in its) for key in its[0]})
    ratio = lines[1]["per_second"] / lines[0]["per_second"]
    grid = Grid("exporters", "documents/s", "exporters, ms", "OpenSearch, ms", box=SIMPLE_HEAD)
    for line in lines:
        grid.add_row(
            str(line["exporters"]),
            f"{line['per_second']:,.0f}",
            f"{line['exporters_ms']:.2f}",
            f"{line['server_ms']:.2f}",
        )
    console.print(grid)
    console.print(
        f"Two exporters write {ratio:.2f} times as much as one (aim: {AIM}). Milliseconds of the "
        f"processor for each of {lines[0]['documents']:,} documents.",
        soft_wrap=True,
    )
    console.print(f"On {conditions_line(found)}.", soft_wrap=True)
    path = write_json(
        output_name("exporters", quick=quick),
        {"conditions": found, "aim": AIM, "ratio": ratio, "blocks": blocks},
    )
    console.print(f"Figures: {path}", style="dim", soft_wrap=True)
