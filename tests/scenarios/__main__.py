"""`make corpus`: everything that happens to an index, at the size of a corpus.

    python -m tests.scenarios [--crawl FOLDER] [--only NAME]... [--updates N] [--seed N]

FOLDER is what `webindex crawl-docs` has made; without it, the sample of the package is loaded, as
in the tests. After each scenario `webindex verify` compares the whole index with a computation
from scratch. Prints a table as Markdown; the exit status is 1 if anything differed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from percola import PercolaError
from tests.scenarios.crawls import Crawl, made_crawl, sample_crawl
from tests.scenarios.scenarios import SCENARIOS, UPDATES, Outcome, Scenario, random_updates
from tests.scenarios.stage import Stage
from webindex.errors import WebindexError
from webindex.spark.jobs import running_context

_CORPUS_SECONDS = 3600.0
_POOL = 600
"""Pages of a corpus that the random updates are about: few enough that several meet at one."""


@dataclass(frozen=True)
class Played:
    """A scenario that was played; `outcome` is None if it failed, for the reason `failure`."""

    name: str
    seconds: float
    outcome: Outcome | None
    failure: str = ""


class Run:
    """Scenarios, one after the other, on one stage."""

    def __init__(self, console: Console, stage: Stage) -> None:
        self.console = console
        self.stage = stage
        self.played: list[Played] = []

    def play(self, name: str, scenario: Scenario) -> None:
        """Play one; say how it went."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        quiet = not self.console.is_terminal
        began = time.monotonic()
        with Progress(*columns, console=self.console, transient=True, disable=quiet) as progress:
            task = progress.add_task(name)
            self.stage.show = lambda said: progress.update(task, description=f"{name}: {said}")
            try:
                outcome = scenario(self.stage)
            except (AssertionError, PercolaError, WebindexError) as error:
                self.played.append(Played(name, time.monotonic() - began, None, str(error)))
                self.console.print(f"[red]FAILED[/] {name}")
                self.console.print(str(error), markup=False, highlight=False)
                return
            finally:
                self.stage.clear()
        seconds = time.monotonic() - began
        self.played.append(Played(name, seconds, outcome))
        self.console.print(f"[green]ok[/] {name} ({seconds:.0f} s): ", end="")
        self.console.print(outcome.said, markup=False, highlight=False)

    def table(self) -> str:
        """What ran, as Markdown."""
        lines = [
            "| Scenario | Captures | Seconds | of them verify | `webindex verify` |",
            "|---|--:|--:|--:|---|",
        ]
        for one in self.played:
            if one.outcome is None:
                lines.append(f"| {one.name} | | {one.seconds:,.0f} | | **failed** |")
                continue
            verdict = one.outcome.verdict
            lines.append(
                f"| {one.name} | {one.outcome.captures:,} | {one.seconds:,.0f} "
                f"| {verdict.said['seconds']:,.0f} | {verdict} |"
            )
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make corpus", description=__doc__.partition("\n")[0])
    parser.add_argument("--crawl", type=Path, default=None, help="a folder of 'crawl-docs'")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="may be repeated")
    parser.add_argument("--updates", type=int, default=UPDATES, help="how many random updates")
    parser.add_argument("--seed", type=int, default=None, help="of what is left to chance")
    parser.add_argument("--scratch", type=Path, default=None, help="where repositories are made")
    options = parser.parse_args(arguments)
    if options.crawl is not None and not (options.crawl / "manifest.json").is_file():
        parser.error(f"there is no corpus in {options.crawl}: 'webindex crawl-docs' makes one")
    seed = random.randrange(2**32) if options.seed is None else options.seed
    console = Console(soft_wrap=True)
    console.print(f"seed {seed}", highlight=False)
    chosen: dict[str, Scenario] = {
        **SCENARIOS,
        "random-updates": partial(random_updates, number=options.updates),
    }
    with (
        tempfile.TemporaryDirectory(prefix="percola-scenarios-", dir=options.scratch) as scratch,
        running_context(None, f"local[{os.cpu_count() or 1}]", "scenarios"),
    ):
        run = Run(console, _stage(Path(scratch), options.crawl, seed))
        console.print(f"crawl: {run.stage.crawl.name}", highlight=False)
        for name in options.only or SCENARIOS:
            run.play(name, chosen[name])
    console.print()
    console.print(run.table(), markup=False, highlight=False)
    return 1 if any(one.outcome is None for one in run.played) else 0


def _stage(scratch: Path, folder: Path | None, seed: int) -> Stage:
    crawl: Crawl
    if folder is None:
        return Stage(scratch, sample_crawl(scratch / "crawl", seed), seed)
    crawl = made_crawl(folder.resolve())
    return Stage(scratch, crawl, seed, timeout=_CORPUS_SECONDS, pool=_POOL)


if __name__ == "__main__":
    sys.exit(main())
