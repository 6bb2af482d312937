"""How soon a changed page is found while the pages of a changed stylesheet are rendered again.

A site of small pages, each with a text of its own, and one stylesheet that all of them use, is
loaded and indexed; every page has an image. Then `webindex work --processes 1 --render` runs, with
a real Chromium, and a later capture of the stylesheet is loaded, which makes all pages due.

    at rest     every two seconds a page is captured with a new word in its text: how long from the
                loader's commit until a search for that word finds it
    draining    the same from the moment at which the stylesheet's capture is loaded
    alone       pages are rendered, and no other page changes

Only the first minutes of a drain are measured: at the rate of one Chromium, that of 10,000 pages
takes most of an hour. For the same reason the first images are copies of a single page's: a
stand-in for the browser gives it for each page, entered as having asked for the stylesheet. The
time until a page is found includes up to 5 ms until the next look, and those of the search.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.crawl import recaptured
from benchmarks.markdown import table
from benchmarks.measure import (
    OUTPUT,
    Distribution,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
    write_whole,
)
from benchmarks.processes import StageError, until
from percola import Repository, Worker
from webindex.crawl.warc import Capture, Resource
from webindex.load.resources import keep_resources
from webindex.load.transaction import load_captures
from webindex.rendering import tables as rendering
from webindex.rendering.browser import Answer, Answers, Browser, Rendered
from webindex.rendering.render import answers_at, render_with
from webindex.serving import ServingIndex
from webindex.workers.processes import (
    idle_but_for_renders,
    open_index,
    open_repository,
    running,
)

SITE: Final = "https://site.example/"
STYLE: Final = f"{SITE}style.css"
EVERY: Final = 2.0
"""Seconds between the captures of changed pages."""
_GROUP: Final = 64
_LOOK: Final = 0.005
_LOST: Final = 60.0
_DATE: Final = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Size:
    """How many pages, and the seconds of each part."""

    pages: int = 10_000
    rest: float = 60.0
    draining: float = 180.0
    alone: float = 60.0


@dataclass(slots=True)
class Drained:
    """Milliseconds until changed pages were found; seconds and pages a second of the renderer."""

    rest: list[float]
    draining: list[float]
    first_image: float
    due: int
    rate_beside: float
    rate_alone: float


def pages_of(count: int) -> Iterator[Capture]:
    """The site's pages: 150 words each, links to three others, and the stylesheet."""
    rng = random.Random(count)
    words = ["".join(rng.choices("abcdefghijklmnoprstuvwz", k=7)) for _ in range(5_000)]
    for number in range(count):
        text = " ".join(rng.choices(words, k=150))
        links = " ".join(
            f'<a href="/{rng.randrange(count)}">{rng.choice(words)}</a>' for _ in range(3)
        )
        body = (
            f'<html><head><title>Page {number}</title><link rel="stylesheet" href="/style.css">'
            f"</head><body><p>{text}</p><p>{links}</p></body></html>"
        ).encode()
        headers = {"content-type": "text/html"}
        url = f"{SITE}{number}"
        yield Capture(url, _DATE, 200, "text/html", headers, body, 0, len(body), None, False)


def style(colour: str) -> Resource:
    """A capture of the stylesheet, by its time now."""
    body = f"body {{ background: {colour} }}".encode()
    now = datetime.now(UTC)
    return Resource(STYLE, now, "style", "text/css", body, 0, len(body), None)


class StandIn:
    """Gives the image that a browser made of one page, for any page."""

    def __init__(self, browser: Browser, image: Rendered) -> None:
        self.version = browser.version
        self._image = image

    def render(self, url: str, answers: Answers) -> Rendered:
        """That image, of a page that asked for the stylesheet."""
        answered: Answer | None = answers(STYLE)[1]
        asked = {STYLE: answered.digest if answered else None}
        return Rendered(**{**asdict(self._image), "asked": asked})


def prepare(repo: Repository, pages: Iterable[Capture]) -> None:
    """Load the site, index it, and give every page its first image."""
    keep_resources(repo)
    load_captures(repo, [style("white")], "style.warc.gz")
    group: list[Capture] = []
    for one in pages:
        group.append(one)
        if len(group) == _GROUP:
            load_captures(repo, group, "site.warc.gz")
            group = []
    load_captures(repo, group, "site.warc.gz")
    with running(repo.address, 2) as workers, idle_but_for_renders(repo) as is_idle:
        workers.wait_ready()
        until(is_idle, repo.pending, timeout=300, every=1)
    with Browser() as browser, repo.snapshot() as now:
        stand_in = StandIn(browser, browser.render(f"{SITE}0", answers_at(now)))
        render: Any = render_with(stand_in)  # type: ignore[arg-type]
        Worker(repo, [render], threads=1, warn_unobserved=False).run_until_idle()


@contextmanager
def working(repo: Repository) -> Iterator[None]:
    """`webindex work` with one process and a renderer, until the end of the block."""
    command = [sys.executable, "-m", "webindex", "work", "--repo", repo.address]
    process = subprocess.Popen(
        [*command, "--processes", "1", "--render", "--json"], stdout=subprocess.DEVNULL
    )
    try:
        yield
        if process.poll() is not None:
            raise StageError(f"'webindex work' ended with exit code {process.returncode}.")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Changes:
    """Captures of changed pages, each with a word of its own."""

    def __init__(self, repo: Repository, index: ServingIndex, pages: list[Capture]) -> None:
        self._repo, self._index = repo, index
        self._pages = iter(pages)
        self._number = 0

    def find(self) -> float:
        """Load a changed page; the milliseconds until a search for its new word finds it."""
        page, word = next(self._pages), f"changed{self._number}word"
        self._number += 1
        load_captures(self._repo, [recaptured(page, f"Now with {word}.")], "changes.warc.gz")
        began = time.perf_counter()
        while not any(hit.url == page.url for hit in self._index.search(word).hits):
            if time.perf_counter() - began > _LOST:
                raise StageError(f"{page.url} was not found within {_LOST:.0f} s of its capture.")
            time.sleep(_LOOK)  # Nothing tells when an index has changed.
        return (time.perf_counter() - began) * 1000

    def find_for(self, seconds: float) -> list[float]:
        """One every two seconds, for so long."""
        found, tick = [], threading.Event()
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            began = time.monotonic()
            found.append(self.find())
            tick.wait(min(left, max(0.0, began + EVERY - time.monotonic())))
        return found


def rendered_at(repo: Repository) -> list[float]:
    """When images were made because of the stylesheet, in seconds of the wall clock, in order."""
    with repo.snapshot() as now:
        abouts = (
            row[rendering.about] for row in now.scan(rendering.renders, columns=[rendering.about])
        )
        made = [one for about in abouts for one in (about, *about["history"])]
    return sorted(
        one["at_ms"] / 1000 for one in made if STYLE in {why["url"] for why in one["because"]}
    )


def drain(folder: Path, size: Size, status: Any) -> Drained:
    """Measure on a site of that size."""
    pages = list(pages_of(size.pages))
    with (
        open_repository(str(folder / "index"), create=True) as repo,
        open_index(repo, create=True) as index,
    ):
        status.update(f"Render drain: a site of {size.pages:,} pages …")
        prepare(repo, pages)
        # The first page of all is changed before anything is measured: the workers run then.
        changed = random.Random(1).sample(pages, min(len(pages), 400))
        changes = Changes(repo, index, changed)
        with working(repo):
            status.update("Render drain: at rest …")
            changes.find()
            rest = changes.find_for(size.rest)
            status.update("Render drain: the stylesheet has changed …")
            began = time.time()
            load_captures(repo, [style("yellow")], "style.warc.gz")
            draining = changes.find_for(size.draining)
            between = time.time()
            time.sleep(size.alone)  # What is measured is what the renderer does in this time.
            ended = time.time()
        made = rendered_at(repo)
        due = repo.pending().get("renders.due", 0)
    if not made or not due:
        raise StageError("All pages were rendered, or none, before the time was over.")
    beside = sum(began <= at < between for at in made)
    alone = sum(between <= at < ended for at in made)
    return Drained(
        rest=rest,
        draining=draining,
        first_image=made[0] - began,
        due=due,
        rate_beside=beside / (between - began),
        rate_alone=alone / (ended - between),
    )


def report(size: Size, found: Drained) -> str:
    """The tables."""
    rows = []
    for name, times in (("at rest", found.rest), ("draining", found.draining)):
        spread = Distribution.of(times)
        assert spread is not None
        figures = (spread.p50, spread.p95, spread.most)
        rows.append([name, f"{spread.count}", *(f"{one:.0f}" for one in figures)])
    rates = [
        ["beside changed pages", f"{size.draining:.0f}", f"{found.rate_beside:.2f}"],
        ["alone", f"{size.alone:.0f}", f"{found.rate_alone:.2f}"],
    ]
    return (
        f"{size.pages:,} pages of one stylesheet; one page changes every {EVERY:.0f} s. "
        "Milliseconds from a page's capture until it is found:\n\n"
        + table(["", "pages", "median", "95 %", "most"], rows)
        + "\nImages a second:\n\n"
        + table(["", "seconds", "a second"], rates)
        + f"\nThe first image with the new stylesheet was there {found.first_image:.1f} s after "
        f"its capture; {found.due:,} pages were still due when the time was over.\n"
    )


def run(console: Console, *, quick: bool) -> None:
    """Measure, print tables as Markdown, leave the figures as JSON."""
    where = conditions()
    size = Size(500, 10, 30, 15) if quick else Size()
    with temporary_folder() as folder, console.status("Render drain …") as status:
        found = drain(folder, size, status)
    name = output_name("render_drain", quick=quick)
    words = f"{report(size, found)}\nOn {conditions_line(where)}.\n"
    write_whole(OUTPUT / f"{name}.md", words)
    path = write_json(name, {"conditions": where, "size": asdict(size), **asdict(found)})
    console.out(words, highlight=False)
    console.print(f"Figures: {path}", style="dim", soft_wrap=True)
