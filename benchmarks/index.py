"""The web index at the size of a crawl: stages, cost a page, latencies, and a real recrawl.

Worker processes run all the time, as many as there are cores; the rest are the commands that a
user would type. Stage by stage, on one repository:

    load       `webindex load` of the crawl, while the workers drain it: pages a second
    rank       `webindex rank`, and the work that moved ranks make
    verify     `webindex verify`: everything compared with a computation from scratch
    recrawl    `webindex load` of the same pages as they were found later: work saved
    trickle    one changed page at a time: milliseconds until its document, and until a search
    beside     changed pages that come while another crawl is loaded: until a search
    verify     once more, after all of that

Before, with a crawl of its own (`--crawl FOLDER`), 3,000 pages of it go through `load` in another
repository: what a page costs there is what a page of the whole crawl is compared with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.arrivals import Beside, one_at_a_time, pages_of
from benchmarks.clocked import ClockedWorkers, clocked
from benchmarks.corpus import Corpus, given, made
from benchmarks.index_figures import (
    Figures,
    Filled,
    Recrawled,
    Stage,
    curve,
    text_hashes,
)
from benchmarks.index_plot import plot
from benchmarks.index_report import report
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
    write_whole,
)
from benchmarks.processes import StageError, command, disk_bytes, until, watched
from percola import PercolaError, Repository
from webindex.reports.summary import summarise
from webindex.serving.base import ServingIndex
from webindex.workers.processes import open_index, open_repository

_TIMEOUT: Final = 600.0
_TRICKLE_TIMEOUT: Final = 60.0
_REST_SECONDS: Final = 0.005
_EVERY: Final = 0.3
_BESIDE_PAGES: Final = 30


class _Pass:
    """One repository, its search index and worker processes."""

    def __init__(self, folder: Path, repo: Repository, index: ServingIndex) -> None:
        self.folder = folder
        self.repo = repo
        self.index = index
        self.workers: ClockedWorkers

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, workers: int) -> Iterator[_Pass]:
        """A new repository in a folder, and workers that are ready."""
        folder.mkdir()
        address = str(folder / "repository")
        with (
            open_repository(address, create=True) as repo,
            open_index(repo, create=True) as index,
            clocked(address, workers, folder / "notes") as processes,
        ):
            found = cls(folder, repo, index)
            found.workers = processes
            processes.wait_ready()
            yield found
            if processes.restarts:
                raise StageError(f"{processes.restarts} worker processes died on the way.")

    @property
    def address(self) -> str:
        """The repository's folder."""
        return self.repo.address

    def rest(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Return once nothing is dirty."""

        def done() -> bool:
            if meanwhile is not None:
                meanwhile()
            self.workers.check()
            return self.repo.is_idle()

        until(done, lambda: self.repo.snapshot().start_ts, _TIMEOUT, every=_REST_SECONDS)

    def stage(
        self,
        name: str,
        *arguments: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> Stage:
        """Run a command of `webindex`, and wait until the workers have dealt with what it did."""
        before = self.workers.work()
        with watched() as usage:
            said = command(
                arguments[0],
                "--repo",
                self.address,
                "--json",
                *arguments[1:],
                meanwhile=meanwhile,
                # Not what it was told to find, but a difference: the figures say so, and `run`.
                accepted=(0, 1) if arguments[0] == "verify" else (0,),
            )
            ended = time.time()
            self.rest(meanwhile)
            idle = time.time()
            work = self.workers.work() - before
        started = said.get("started_ms", (ended - said["seconds"]) * 1000) / 1000
        began = started + said["starting_seconds"]
        return Stage(
            name=name,
            report=said,
            starting=said["starting_seconds"],
            began=began,
            job=said["seconds"] - said["starting_seconds"],
            seconds=idle - began if work.transactions else said["seconds"] - (began - started),
            work=work,
            usage=usage,
            dead_lettered=self.repo.dead_lettered(),
        )


def _fill(one: _Pass, files: list[Path]) -> Filled:
    """Load a crawl into an empty repository and work it off."""
    before = one.repo.snapshot().start_ts
    stage = one.stage("load", "load", *map(str, files))
    if not stage.job_cpu:
        raise StageError("No task of Spark was seen to compute anything, so nothing is counted.")
    summary = summarise(one.repo, since=before)
    loaded = stage.report["loaded"]["written"]
    if not summary.pages or one.index.count() != summary.documents:
        raise StageError(
            f"{one.index.count():,} of {summary.documents:,} documents of {summary.pages:,} pages "
            "can be searched."
        )
    address = Path(one.address)
    serving = disk_bytes(address / "serving")
    return Filled(
        stage=stage,
        captures=loaded,
        pages=summary.pages,
        links=summary.links,
        linked=summary.linked_pages,
        clusters=summary.clusters,
        documents=summary.documents,
        disk=disk_bytes(address) - serving,
        serving=serving,
        curve=curve(one.repo, one.workers.notes, before, stage.began),
    )


def _recrawl(one: _Pass, corpus: Corpus, filled: Filled) -> Recrawled:
    before = text_hashes(one.repo)
    stage = one.stage("recrawl", "load", *map(str, corpus.recrawl))
    after = text_hashes(one.repo)
    return Recrawled(
        stage=stage,
        real=corpus.real,
        changed=sum(before[row] != after[row] for row in before.keys() & after.keys()),
        new=len(after.keys() - before.keys()),
        gone=len(before.keys() - after.keys()),
        whole=filled.stage,
    )


def measure_index(
    folder: Path, corpus: Corpus, figures: Figures, say: Callable[[str], None], trickle: int
) -> None:
    """All stages; what has been measured stands in `figures`, also if a later stage fails.

    `say` is told what comes next; `trickle` is how many pages come one at a time.
    """
    if corpus.small is not None:
        with _Pass.opened(folder / "small", figures.workers) as one:
            say("loading a part of the crawl, evenly chosen, and working it off")
            figures.small = _fill(one, [corpus.small])
    with _Pass.opened(folder / "whole", figures.workers) as one:
        say(f"loading the {corpus.name} and working it off")
        figures.whole = _fill(one, corpus.crawl)
        say("rank")
        figures.stages.append(one.stage("rank", "rank"))
        say("verify")
        figures.stages.append(one.stage("verify", "verify"))
        say("a later crawl of the same pages")
        figures.recrawl = _recrawl(one, corpus, figures.whole)
        say("one changed page at a time")
        pages = pages_of(one.repo, trickle, seed=1)
        figures.trickle = one_at_a_time(one.repo, one.index, pages, one.rest, _TRICKLE_TIMEOUT)
        say("changed pages beside the load of another crawl")
        beside = Beside(one.repo, one.index, pages_of(one.repo, _BESIDE_PAGES, seed=2), _EVERY)
        stage = one.stage("beside", "load", str(corpus.beside), meanwhile=beside.step)
        figures.stages.append(stage)
        until(beside.look, lambda: one.repo.snapshot().start_ts, _TRICKLE_TIMEOUT)
        figures.beside = beside.arrivals
        say("verify, after all of that")
        figures.stages.append(one.stage("verify after all", "verify"))
    figures.check()


def run(console: Console, *, quick: bool, crawl: Path | None = None) -> None:
    """Measure, print tables as Markdown, draw the plot, leave the figures as JSON.

    Raises StageError if a stage failed or `webindex verify` found a difference; what was measured
    by then is printed and kept all the same, also after Ctrl-C.
    """
    found = conditions()
    name = output_name("index" if crawl is None else "index-crawl", quick=quick)
    figures = Figures(workers=min(8, os.cpu_count() or 1))
    trickle = 30 if quick else 200 if crawl is None else 500
    failure: PercolaError | KeyboardInterrupt | None = None
    with temporary_folder() as folder:
        with console.status("Index: making the crawl …"):
            corpus = made(folder, quick=quick) if crawl is None else given(crawl, folder)
        figures.corpus = corpus.name

        def say(words: str) -> None:
            # What is there is kept at once: hours may go by until the end, and much may happen.
            write_json(name, {"conditions": found, **figures.to_json()})
            status.update(f"Index: {words} …")
            if not console.is_terminal:
                console.print(f"{time.strftime('%H:%M:%S')}  {words}", soft_wrap=True)

        try:
            with console.status("Index: starting workers …") as status:
                measure_index(folder, corpus, figures, say, trickle)
        except (PercolaError, KeyboardInterrupt) as error:
            failure = error
    path = write_json(name, {"conditions": found, **figures.to_json()})
    words = report(figures)
    if failure is not None:
        words += f"\n**Not complete**: {str(failure) or 'interrupted.'}\n"
    words += f"\nOn {conditions_line(found)}; every commit is on disk before the next step.\n"
    markdown = OUTPUT / f"{name}.md"
    write_whole(markdown, words)
    console.out(words, highlight=False)
    if figures.whole is not None:
        picture = OUTPUT / f"{name}.png"
        plot(figures, picture)
        console.print(f"Plot: {picture}", style="dim", soft_wrap=True)
    console.print(f"Tables: {markdown}   Figures: {path}", style="dim", soft_wrap=True)
    if failure is not None:
        raise failure
