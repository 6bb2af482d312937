"""What one more link to a page costs, by the number of links to it.

Pages link to one page, each with a text of its own, or all with one of ten texts. Then pages that
are there already are captured again, one at a time, with one link more: to that page, or to one
that is not there. The difference is what the page costs to which they link: its in-links are
counted, and its document is assembled.

A figure is the processor time of all that follows in one process with one thread, but for parsing
and exporting, less that of a worker that finds nothing to do: the median of some changes, in
milliseconds. On LMDB, with relaxed durability.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from benchmarks.clusters import Changes, new_index
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    write_json,
)
from percola import PercolaError, Repository
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.page.urls import page_row
from webindex.serving import TantivyIndex

SIZES: Final = (100, 1_000, 20_000)
_HUB: Final = "https://hub.example/"
_TEXTS: Final[dict[str, Callable[[int], str]]] = {
    "ten texts": lambda number: f"Text {number % 10}",
    "all texts different": lambda number: f"Text {number}",
}


class Hub(Changes):
    """A page to which others link, and pages that do not link anywhere yet."""

    def __init__(
        self, repo: Repository, index: TantivyIndex, text: Callable[[int], str], more: int
    ) -> None:
        super().__init__(repo, index)
        self._text, self._links, self._more = text, 0, 0
        self.load(
            [self.page(_HUB, "The page to which all link."), *map(self._to_link, range(more))]
        )

    def _linking(self, number: int) -> str:
        return f'<a href="{_HUB}">{self._text(number)}</a>'

    def _to_link(self, number: int, link: str = "") -> Capture:
        url = f"https://later.example/{number}"
        return self.page(url, f"{number} is the number of this page.", more=link)

    def grow(self, size: int) -> None:
        """Load pages until so many link to the page; PercolaError if they are not counted."""
        numbers = range(self._links, size)
        self.load(
            self.page(f"https://linking.example/{n}", f"Number {n} links.", more=self._linking(n))
            for n in numbers
        )
        self._links = max(self._links, size)
        tally = self.repo.snapshot().get(tables.tally, page_row(_HUB))
        if tally is None or tally["links"] != self._links:
            raise PercolaError(f"{self._links:,} pages link to {_HUB}, and {tally} is counted.")

    def link(self, *, to_hub: bool) -> float:
        """Have one more page link to the hub, or to no page; the ms of what follows."""
        self.pass_an_hour()
        number, self._more = self._more, self._more + 1
        if to_hub:
            self._links += 1
            link = self._linking(self._links)
        else:
            link = f'<a href="https://hub.example/{number}">{self._text(number)}</a>'
        return self.captured(self._to_link(number, link))


def run(console: Console, *, quick: bool) -> None:
    """Measure, check that all links are counted, print the table, leave the figures as JSON."""
    where = conditions()
    sizes, times = (SIZES[:2], 3) if quick else (SIZES, 21)
    found: list[tuple[int, str, float, float]] = []
    for name, text in _TEXTS.items():
        with (
            console.status(f"Hubs: {name} …") as status,
            new_index() as (repo, index),
        ):
            hub = Hub(repo, index, text, 2 * times * len(sizes))
            for size in sizes:
                status.update(f"Hubs: {size:,} links, {name} …")
                hub.grow(size)
                idle = hub.idle()
                pairs = [(hub.link(to_hub=True), hub.link(to_hub=False)) for _ in range(times)]
                linked, first = (statistics.median(one) - idle for one in zip(*pairs, strict=True))
                found.append((size, name, linked, first))
            hub.grow(0)
    grid = Grid(box=SIMPLE_HEAD, title="Processor time of one more link, ms", title_justify="left")
    grid.add_column("Links to the page", justify="right")
    grid.add_column("Their texts")
    for heading in ("One more", "One to no page", "Difference"):
        grid.add_column(heading, justify="right")
    for size, name, linked, first in found:
        grid.add_row(f"{size:,}", name, f"{linked:.1f}", f"{first:.1f}", f"{linked - first:.1f}")
    console.print(grid)
    names = ("links", "texts", "ms", "to_no_page_ms")
    lines = [dict(zip(names, one, strict=True)) for one in found]
    path = write_json(output_name("hubs", quick=quick), {"conditions": where, "lines": lines})
    console.print(Text(f"On {conditions_line(where)}."))
    console.print(Text(f"Figures: {path.relative_to(OUTPUT.parent.parent)}", style="dim"))
