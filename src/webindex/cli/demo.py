"""The demonstration: loads real pages from a crawl and shows that search follows a changed page.

    python -m webindex.cli.demo [--keep FOLDER]

Every step prints what it does and its result, and compares that with the known contents of the
sample crawl; the exit code is 0 only if everything was as expected.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
from pyspark import SparkContext
from rich.text import Text

from percola import PercolaError, Repository
from percola.spark import spark_context
from webindex import tables
from webindex.cli.demo_render import restyle
from webindex.cli.main import errors, print_results
from webindex.cli.options import console, grid
from webindex.crawl.warc import NotAWarcError, Rejection
from webindex.errors import NoBrowserError, WebindexError
from webindex.load.job import load
from webindex.page.urls import page_row
from webindex.rendering.browser import find_browser
from webindex.reports import tell
from webindex.reports.summary import summarise
from webindex.sample import (
    CHANGED_URL,
    CHANGED_WORDS,
    NEW_LINK,
    OLDER_URL,
    OLDER_WORDS,
    STYLED,
    UNSTYLED,
    recrawl_path,
    sample_path,
)
from webindex.serving.base import ServingError, ServingIndex
from webindex.workers.processes import (
    Workers,
    open_index,
    open_repository,
    running,
    wait_until_idle,
)

PAGES: Final = 204
CAPTURES: Final = PAGES + 2
"""Captures of the sample: its pages, a redirect and a missing page."""
DOCUMENTS: Final = 183
DUPLICATES: Final = PAGES - DOCUMENTS
REJECTED: Final = {str(Rejection.DAMAGED): 1, str(Rejection.NOT_A_PAGE): 1}

QUERIES: Final = (
    ("self-contained database engine", "https://www.sqlite.org/"),
    ('"start the server"', "https://www.postgresql.org/docs/15/server-start.html"),
    ("apache 프로세스", "https://httpd.apache.org/docs/2.4/ko/invoking.html"),
)
"""A query, and a page that has to be among the best three hits."""

DUPLICATE: Final = "https://httpd.apache.org/docs/2.4/ko/mod/worker.html"
CANONICAL: Final = "https://httpd.apache.org/docs/2.4/en/mod/worker.html"

WORKERS: Final = 2
SECONDS: Final = 120.0
"""How long a step may take before it counts as failed."""

# The JVM only schedules a few tasks: a quick start matters more than optimised code.
_SPARK: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


class Checks:
    """Compares results with what is expected, and counts the checks."""

    def __init__(self) -> None:
        self.made = 0
        self.failed = 0

    def equal(self, claim: str, found: object, expected: object) -> None:
        """Check that two values are the same."""
        self.holds(claim, found == expected, f"expected {expected!r}, found {found!r}")

    def holds(self, claim: str, held: bool, otherwise: str) -> None:
        """Check a condition; `otherwise` says what was expected and what was found."""
        self.made += 1
        self.failed += not held
        if held:
            console.print(Text.assemble(("✓ ", "green"), claim))
        else:
            console.print(Text.assemble(("✗ ", "bold red"), claim, (f": {otherwise}", "red")))


class Watch:
    """Repeats a search until it finds something."""

    def __init__(self, index: ServingIndex, words: str) -> None:
        self._index, self._words = index, words
        self._found_ms: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._search, name="demo-search", daemon=True)
        self._thread.start()

    def _search(self) -> None:
        while not self._stopping.wait(0.001):
            with suppress(ServingError):
                if self._index.search(self._words, limit=1).total:
                    self._found_ms = time.time_ns() / 1e6
                    return

    def stop(self, seconds: float) -> float | None:
        """The time of the first hit in milliseconds since 1970; None if not within `seconds`."""
        self._thread.join(seconds)
        self._stopping.set()
        self._thread.join()
        return self._found_ms


class Demo:
    """The steps, on one repository."""

    def __init__(self, folder: Path) -> None:
        self.checks = Checks()
        self._folder = folder
        self._steps = 0

    def run(self, spark: SparkContext) -> None:
        """Run all steps; both loads use the one Spark context."""
        self._load(spark)
        with (
            open_repository(str(self._folder)) as repo,
            open_index(repo, create=True) as index,
            # Not as Spark tasks: workers keep their slots, and the second load would wait for one
            # on a machine with two cores; a second Spark beside this one takes seconds to start.
            running(repo.address, WORKERS) as workers,
        ):
            self._work_off(repo, index, workers)
            self._search(index)
            self._explain(repo, index)
            self._recrawl(repo, index, workers, spark)
            self._render()
            self._say("The summary", "The sample was loaded all at once: its pages had to queue.")
            console.print(grid(summarise(repo).rows()))

    def _say(self, title: str, sentences: str) -> None:
        self._steps += 1
        console.print(Text.assemble("\n", (f"{self._steps}. {title}", "bold cyan")))
        console.print(Text(sentences), soft_wrap=False)
        console.print()

    def _load(self, spark: SparkContext) -> None:
        self._say(
            "Load a crawl",
            "A Spark job reads a WARC file with pages of the documentation of the Apache HTTP "
            "Server, PostgreSQL and SQLite. Its tasks write them in transactions.",
        )
        with console.status("Loading …"):
            report = load(self._folder, [sample_path()], spark=spark, quiet=True)
        console.print(grid(report.rows()))
        self.checks.equal(f"{CAPTURES} captures were written", report.loaded.written, CAPTURES)
        self.checks.equal(
            "records that cannot be used were counted, and stopped nothing",
            dict(report.rejected),
            REJECTED,
        )

    def _work_off(self, repo: Repository, index: ServingIndex, workers: Workers) -> None:
        self._say(
            "Work it off",
            f"Each write has notified an observer. {WORKERS} worker processes run them: parse "
            "pages, invert their links, cluster duplicates, assemble documents, export them.",
        )
        with console.status("Starting workers …") as status:
            workers.wait_ready()
            status.update("Working …")
            began = time.monotonic()
            wait_until_idle(repo, workers, SECONDS)
            seconds = time.monotonic() - began
        found = summarise(repo)
        console.print(
            f"{found.pages} pages in {seconds:.1f} s: {found.pages / seconds:.0f} a second"
        )
        self.checks.equal(
            f"{PAGES} pages make {DOCUMENTS} documents, {DUPLICATES} being duplicates of another",
            (found.pages, found.documents, found.duplicates),
            (PAGES, DOCUMENTS, DUPLICATES),
        )
        self.checks.equal("the search index holds all of them", index.count(), DOCUMENTS)
        self.checks.equal(
            "nothing is left to do, and nothing has failed",
            (repo.pending(), repo.dead_lettered()),
            ({}, 0),
        )

    def _search(self, index: ServingIndex) -> None:
        self._say(
            "Search",
            "Pages are ranked by their words, by the words of links to them, and by how many "
            "pages link to them.",
        )
        for query, expected in QUERIES:
            if query != QUERIES[0][0]:
                console.print()
            quoted = f"'{query}'" if '"' in query else f'"{query}"'
            console.print(Text(f"$ webindex search {quoted}", style="bold"))
            results = index.search(query, limit=3)
            print_results(query, replace(results, hits=results.hits[:2]))
            console.print()
            best = [hit.url for hit in results.hits]
            self.checks.holds(
                f"{expected} is among the best three",
                expected in best,
                f"found {', '.join(best) or 'nothing'}",
            )

    def _explain(self, repo: Repository, index: ServingIndex) -> None:
        self._say(
            "Explain a duplicate",
            "One text is served under two addresses. This is some of what 'webindex explain' says:",
        )
        found = tell(repo, index, DUPLICATE)
        console.print(Text.assemble((found.url, "green")))
        for reason in found.reasons:
            console.print(Text(reason))
        self.checks.equal("the other page stands for it", found.canonical, CANONICAL)

    def _recrawl(
        self, repo: Repository, index: ServingIndex, workers: Workers, spark: SparkContext
    ) -> None:
        self._say(
            "Crawl a page again",
            f"Since then {CHANGED_URL} has gained a sentence and a link. While the workers go on "
            "running, its new capture is loaded, together with one of another page that is older "
            "than what is there. Meanwhile a search for the sentence is repeated all the time.",
        )
        console.print(Text(f"“{CHANGED_WORDS}”", style="italic"))
        self.checks.equal("before: no page is found", index.search(CHANGED_WORDS).total, 0)
        before, at = dict(index.clusters()), repo.snapshot().start_ts
        older = _page(repo, OLDER_URL)
        watch = Watch(index, CHANGED_WORDS)
        with console.status("Loading …"):
            try:
                report = load(self._folder, [recrawl_path()], spark=spark, quiet=True)
            except BaseException:
                watch.stop(0)
                raise
            found_ms = watch.stop(SECONDS)
            wait_until_idle(repo, workers, SECONDS)
        hits = [hit.url for hit in index.search(CHANGED_WORDS).hits]
        self.checks.equal("after: the page is found", hits, [CHANGED_URL])
        self._tell_latency(repo, at, found_ms)
        after = dict(index.clusters())
        written = [index.get(name) for name in after if after[name] != before.get(name)]
        self.checks.equal(
            "two documents were written: that of the page, and of the page it now links to",
            sorted(one.url for one in written if one is not None),
            sorted([CHANGED_URL, NEW_LINK]),
        )
        now = _page(repo, OLDER_URL)
        # What is kept of the page's past may change, and when it is due for the next crawl.
        of_past = (tables.earlier.name, tables.recrawl.name)
        changed = sorted(
            name
            for name in {*older, *now}
            if older.get(name) != now.get(name) and not name.startswith(of_past)
        )
        self.checks.equal(
            "the older capture is kept beside, and changes nothing that is shown",
            (report.loaded.older, changed, index.search(OLDER_WORDS).total),
            (1, [], 0),
        )

    def _render(self) -> None:
        self._say(
            "Render pages",
            f"A headless browser makes images of {len(STYLED) + len(UNSTYLED)} pages, in a "
            "repository of their own that keeps the stylesheet of the sample. It sees nothing but "
            "the repository. Then a new capture of that stylesheet is loaded.",
        )
        try:
            find_browser()
            with (
                console.status("Rendering …"),
                tempfile.TemporaryDirectory(prefix="webindex-demo-") as folder,
            ):
                found = restyle(Path(folder) / "index", SECONDS)
        except NoBrowserError as error:
            console.print(Text(f"Left out: {error}", style="yellow"))
            return
        self.checks.equal("each page has an image", found.pages, sorted([*STYLED, *UNSTYLED]))
        self.checks.equal(
            f"exactly the {len(STYLED)} pages that use the stylesheet were rendered again",
            found.again,
            sorted(STYLED),
        )
        console.print(
            Text.assemble(
                ("  From the stylesheet's commit to the first image: ", "bold"),
                (f"{found.first_seconds:.1f} s", "bold yellow"),
                (", to the last: ", "bold"),
                (f"{found.seconds:.1f} s", "bold yellow"),
            )
        )

    def _tell_latency(self, repo: Repository, at: int, found_ms: float | None) -> None:
        """Report the time from the loader's commit to the search: as exported and as observed."""
        loaded = _page(repo, CHANGED_URL)[tables.capture.name]["loaded_ms"]
        reported = summarise(repo, since=at).latency
        self.checks.holds(
            "the exporter reports the time that the one page took",
            reported is not None and reported.count == 1,
            f"expected a report of 1 page, found {reported}",
        )
        self.checks.holds(
            "the repeated search has found it as well",
            found_ms is not None,
            f"expected a hit within {SECONDS:.0f} s, found none",
        )
        if reported is not None and found_ms is not None:
            console.print(
                Text.assemble(
                    ("  From the loader's commit to the search: ", "bold"),
                    (f"{reported.p50:.0f} ms", "bold yellow"),
                    (" by the exporter's report, ", "bold"),
                    (f"{found_ms - loaded:.0f} ms", "bold yellow"),
                    (" as seen by the search", "bold"),
                )
            )


def _page(repo: Repository, url: str) -> dict[str, Any]:
    """All columns of a page, by name."""
    found = repo.snapshot().get_row(tables.pages, page_row(url))
    return {column.name: value for column, value in found.items()}


def _demonstrate(folder: Path) -> int:
    """Run the demonstration in a folder; the exit code."""
    console.print(Text("A web index that follows every change of its pages", style="bold"))
    began = time.monotonic()
    demo = Demo(folder)
    starting = console.status("Starting Spark …")
    starting.start()
    try:
        with spark_context(app="webindex demo", config=_SPARK) as spark:
            starting.stop()
            console.print(f"Spark has started, in {time.monotonic() - began:.1f} s.", style="dim")
            demo.run(spark)
    finally:
        starting.stop()
    made, failed = demo.checks.made, demo.checks.failed
    if failed:
        console.print(Text(f"\n✗ {failed} of {made} checks failed: see above.", style="bold red"))
        return 1
    seconds = time.monotonic() - began
    console.print(Text(f"\n✓ All {made} checks held, in {seconds:.0f} s.", style="bold green"))
    return 0


def _show_what_next(kept: Path | None) -> None:
    programs = Path(os.path.relpath(Path(sys.executable).parent))
    webindex, percola = programs / "webindex", programs / "percola"
    if kept is None:
        lines = [
            "make demo ARGS='--keep demo-index'   (the same, and it stays there to be looked at)",
            f"{webindex} load --repo my-index CRAWL.warc.gz",
            f"{webindex} work --repo my-index --until-idle",
            f'{webindex} search --repo my-index "words"',
        ]
    else:
        lines = [
            f'{webindex} search --repo {kept} "foreign keys"',
            f"{webindex} explain --repo {kept} {CHANGED_URL}",
            f"{percola} status --repo {kept}",
        ]
    console.print(Text("\nTry next:", style="bold"))
    for line in lines:
        console.print(Text(f"  {line}"))


def _pass_on(number: int, frame: FrameType | None) -> None:
    # As Ctrl-C: it is the only signal that a running Spark job handles.
    signal.raise_signal(signal.SIGINT)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Make the repository in this new folder, and leave it there.",
)
def main(keep: Path | None) -> None:
    """Load real pages, search them, and see the search follow a page that changes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # The background job of a script: SIGTERM, which is passed on as SIGINT, must still end it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _pass_on)
    if keep is not None and keep.exists() and not (keep.is_dir() and not os.listdir(keep)):
        raise click.UsageError(f"{keep} is there already: name a new folder, or an empty one.")
    try:
        if keep is not None:
            code = _demonstrate(keep)
        else:
            with tempfile.TemporaryDirectory(prefix="webindex-demo-") as folder:
                code = _demonstrate(Path(folder) / "index")
    except (PercolaError, WebindexError, ServingError, NotAWarcError) as error:
        errors.print(Text.assemble(("Error: ", "bold red"), str(error)))
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("Stopped.")
        sys.exit(130)
    _show_what_next(keep)
    sys.exit(code)


if __name__ == "__main__":
    main()
