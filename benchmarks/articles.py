"""How much of an article's text `webindex` takes for the text of its page, and what else.

The pages and their texts are those of Scrapinghub's article extraction benchmark: 181 pages of news
and blogs with the text of each article, written down by hand. They are cloned from GitHub, or taken
from the clone that the environment variable ARTICLES names.

    precision    of the words that were taken, those of the article
    recall       of the words of the article, those that were taken
    F1           their harmonic mean

A word counts as often as it occurs. The mean is over pages.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import statistics
import subprocess
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.markdown import table
from benchmarks.measure import (
    OUTPUT,
    conditions,
    output_name,
    temporary_folder,
    write_json,
    write_whole,
)
from benchmarks.processes import StageError
from webindex.page.pages import parse

SOURCE: Final = "https://github.com/scrapinghub/article-extraction-benchmark"
AIMS: Final = {"precision": None, "recall": 0.98, "F1": 0.93}
_WORD: Final = re.compile(r"\w+")
_WORST: Final = 5


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found of one page."""

    url: str
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def judge(url: str, article: str, taken: str) -> Judged:
    """Compare two texts, word by word."""
    wanted, found = (Counter(_WORD.findall(text.lower())) for text in (article, taken))
    common = (wanted & found).total()
    return Judged(url, common / max(1, found.total()), common / max(1, wanted.total()))


def pages(folder: Path) -> list[Judged]:
    """Judge all pages of a clone; StageError if it is none."""
    try:
        articles = json.loads((folder / "ground-truth.json").read_text(encoding="utf-8"))
        return [
            judge(
                one["url"],
                one["articleBody"],
                parse(
                    gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes()),
                    one["url"],
                    "text/html; charset=utf-8",
                ).text,
            )
            for name, one in articles.items()
        ]
    except OSError as error:
        raise StageError(f"{folder} is no clone of {SOURCE}: {error}") from error


def cloned(folder: Path) -> Path:
    """The clone that ARTICLES names, or a new one; StageError if there is neither."""
    if given := os.environ.get("ARTICLES"):
        return Path(given)
    done = subprocess.run(
        ["git", "clone", "--quiet", "--depth", "1", SOURCE, str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise StageError(
            f"{SOURCE} cannot be cloned: {done.stderr.strip()}. Set ARTICLES to a clone of it."
        )
    return folder


def report(judged: list[Judged]) -> str:
    """The tables: means, and the pages of which least was understood."""
    means = {
        "precision": statistics.fmean(one.precision for one in judged),
        "recall": statistics.fmean(one.recall for one in judged),
        "F1": statistics.fmean(one.f1 for one in judged),
    }
    rows = [
        [name, f"{mean:.3f}", "" if (aim := AIMS[name]) is None else f"{aim:.2f}"]
        for name, mean in means.items()
    ]
    low = sum(one.f1 < 0.5 for one in judged)
    worst = sorted(judged, key=lambda one: one.f1)[:_WORST]
    return (
        f"{len(judged)} pages; {low} with an F1 below 0.5.\n\n"
        + table(["mean", "here", "aim"], rows)
        + "\n"
        + table(
            ["lowest F1", "F1", "precision", "recall"],
            [[o.url, f"{o.f1:.2f}", f"{o.precision:.2f}", f"{o.recall:.2f}"] for o in worst],
        )
    )


def run(console: Console, *, quick: bool) -> None:
    """Judge, print tables as Markdown, leave the figures as JSON."""
    with temporary_folder() as folder, console.status("Articles …"):
        judged = pages(cloned(folder / "clone"))
    name = output_name("articles", quick=quick)
    words = report(judged)
    write_whole(OUTPUT / f"{name}.md", words)
    path = write_json(
        name,
        {"conditions": conditions(), "pages": [asdict(one) | {"f1": one.f1} for one in judged]},
    )
    console.out(words, highlight=False)
    console.print(f"Figures: {path}", style="dim", soft_wrap=True)
