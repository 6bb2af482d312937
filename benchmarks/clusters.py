"""What one change costs in a cluster of duplicates, by the number of its pages.

Pages of one text, each of which has a link to it, are one cluster. Then, one at a time:

    link       a page elsewhere links to a member
    rank       a member's PageRank moves
    leave      a member gets a text of its own
    gone       a member is removed from its site
    join       a page with the text arrives

A figure is the processor time of all that follows from one change in one process with one thread,
but for parsing and exporting, less that of a worker that finds nothing to do: the median of some
changes, in milliseconds. On LMDB, with relaxed durability.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

import percola
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.processes import check_no_failures
from percola import Observer, PercolaError, Repository, Worker
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.transaction import load_captures
from webindex.observers.documents import assemble, tell
from webindex.observers.parse import parse
from webindex.page.urls import page_row
from webindex.serving import TantivyIndex
from webindex.workers.processes import build_observers

SIZES: Final = (10, 400, 4_000, 20_000)
_GROUP: Final = 64
_TEXT: Final = " ".join(f"The {number}th sentence of the page." for number in range(40))


@contextmanager
def new_index() -> Iterator[tuple[Repository, TantivyIndex]]:
    """An empty repository of the web index with its search index, for as long as the block."""
    with (
        temporary_folder() as folder,
        percola.open(folder / "repo", tables.SCHEMA, durability="relaxed") as repo,
        TantivyIndex(Path(folder) / "index", create=True) as index,
    ):
        yield repo, index


class Changes:
    """A repository of the web index, and what follows from changes of its pages."""

    def __init__(self, repo: Repository, index: TantivyIndex) -> None:
        self.repo = repo
        self._hours = 1
        every: Sequence[Observer[Any]] = build_observers(index)
        answering = [
            one for one in every if one is not parse and tables.outbox_ready not in one.columns
        ]
        # As a worker does that lives, these keep what they make once for each observer.
        self._parser, self._answerer = self._worker([parse]), self._worker(answering)
        # Documents are assembled once all pages of a load are there.
        self._builder = self._worker([parse, *(one for one in answering if one is not assemble)])

    def _worker(self, observers: Sequence[Observer[Any]]) -> Worker:
        return Worker(self.repo, observers, threads=1, warn_unobserved=False)

    def load(self, captures: Iterable[Capture]) -> None:
        """Load captures and answer them."""
        left = iter(captures)
        while some := list(islice(left, _GROUP)):
            load_captures(self.repo, some, "crawl.warc.gz")
        self._builder.run_until_idle()
        self._answerer.run_until_idle()

    def answered(self) -> float:
        """Answer what is to be answered; the milliseconds of processor time it took."""
        began = time.process_time()
        self._answerer.run_until_idle()
        return (time.process_time() - began) * 1000

    def idle(self) -> float:
        """The milliseconds of a worker that finds nothing to do."""
        return statistics.median(self.answered() for _ in range(9))

    def captured(self, capture: Capture) -> float:
        """Load and parse a capture; the milliseconds of what follows."""
        load_captures(self.repo, [capture], "crawl.warc.gz")
        self._parser.run_until_idle()
        return self.answered()

    def page(self, url: str, text: str = _TEXT, status: int = 200, more: str = "") -> Capture:
        """A capture of a page, an hour after those before the last `pass_an_hour`."""
        body = f"<html><title>Copy</title><body><p>{text}</p>{more}</body></html>".encode()
        at = 1_600_000_000 + 3600 * self._hours
        date = datetime.fromtimestamp(at, UTC)
        headers = {"content-type": "text/html"}
        return Capture(url, date, status, "text/html", headers, body, 0, len(body), None, False)

    def pass_an_hour(self) -> None:
        """Have the next captures be later ones."""
        self._hours += 1


class Cluster(Changes):
    """A repository with one cluster, and changes to it."""

    def __init__(self, repo: Repository, index: TantivyIndex, pages: int) -> None:
        super().__init__(repo, index)
        self._urls = [f"https://copies.example/?session={number}" for number in range(pages)]
        self.load(
            capture
            for number, url in enumerate(self._urls)
            for capture in (self.page(url), self._linking(number))
        )

    def _linking(self, number: int, *, twice: bool = False) -> Capture:
        """A page elsewhere that links to a member, and perhaps to the one after it."""
        one, other = (self._urls[(number + n) % len(self._urls)] for n in (0, 1))
        links = f'<a href="{one}">Text {number % 100}</a>'
        links += f'<a href="{other}">Text {number % 90}</a>' if twice else ""
        return self.page(f"https://linking.example/{number}", f"Number {number}.", more=links)

    def change(self, what: str, number: int) -> float:
        """Make one change; the milliseconds of what follows."""
        self.pass_an_hour()
        url = self._urls[number]
        if what == "rank":

            def move(t: percola.Transaction) -> None:
                t.set(tables.rank, page_row(url), {"value": 0.5 + number / 1e6, "run": 1})
                tell(t, page_row(url))

            self.repo.run(move)
            return self.answered()
        made: dict[str, Callable[[], Capture]] = {
            "link": lambda: self._linking(number, twice=True),
            "leave": lambda: self.page(url, f"{number} alone. " * 40),
            "gone": lambda: self.page(url, status=404),
            "join": lambda: self.page(f"{url}&new=1"),
        }
        return self.captured(made[what]())

    def check(self, pages: int) -> None:
        """PercolaError unless the largest cluster has so many pages, and no observer has failed."""
        check_no_failures(self.repo)
        with self.repo.snapshot() as now:
            rows = now.scan(tables.clusters, columns=[tables.member])
            found = max((len(row.family(tables.member)) for row in rows), default=0)
        if found != pages:
            raise PercolaError(f"The cluster has {found:,} pages and not {pages:,}.")


CHANGES: Final = ("link", "rank", "join", "leave", "gone")
_PAGES: Final = {"join": 1, "leave": -1, "gone": -1}
"""How many more pages the cluster has after a change."""


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the table, leave the figures as JSON."""
    where = conditions()
    sizes, times = (SIZES[:2], 3) if quick else (SIZES, 9)
    found: dict[str, dict[str, float]] = {}
    for size in sizes:
        with (
            console.status(f"Clusters: {size:,} pages …"),
            new_index() as (repo, index),
        ):
            cluster = Cluster(repo, index, size)
            cluster.check(size)
            number, pages = 0, size
            found[str(size)] = {}
            idle = cluster.idle()
            for what in CHANGES:
                measured = []
                for _ in range(min(times, max(1, size // len(CHANGES)))):
                    measured.append(cluster.change(what, number))
                    number += 1
                found[str(size)][what] = round(statistics.median(measured) - idle, 2)
                pages += _PAGES.get(what, 0) * len(measured)
            cluster.check(pages)
    grid = Grid(box=SIMPLE_HEAD, title="Processor time of one change, ms", title_justify="left")
    for heading in ("Pages", *CHANGES):
        grid.add_column(heading, justify="right")
    for size_, figures in found.items():
        grid.add_row(f"{int(size_):,}", *(f"{figures[what]:.1f}" for what in CHANGES))
    console.print(grid)
    path = write_json(output_name("clusters", quick=quick), {"conditions": where, "ms": found})
    console.print(Text(f"On {conditions_line(where)}."))
    console.print(Text(f"Figures: {path.relative_to(OUTPUT.parent.parent)}", style="dim"))
