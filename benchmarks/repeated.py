"""How much of a page's text is its own, before and after what its host repeats is left out.

The pages are the generated ones of the documentation packages of `benchmarks.labelled`, each
package on a host of its own; the truth is their main text by the generator's own markup
(`main_text`), which `webindex` does not know. They are indexed twice:

    as served     with their markup, by which the parser finds most of what is around a text
    unmarked      without classes, ids and roles, and with `div` in place of `nav`, `header`,
                  `footer` and the like: only repetition tells

Precision, recall and F1 are those of `benchmarks.articles`, of words, as means over pages.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console

from benchmarks.articles import Judged, judge
from benchmarks.duplicates import SEED, load_pages
from benchmarks.labelled import DOCUMENTATION, Labelled, Original, collect
from benchmarks.main_text import main_text
from benchmarks.markdown import table
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
    write_whole,
)
from percola import Worker, WorkerOptions
from webindex import tables
from webindex.observers.documents import part_of
from webindex.observers.parse import parse
from webindex.observers.repeated import find_repeated
from webindex.page.urls import normalise, page_row
from webindex.workers.processes import open_repository

_NAMES: Final = re.compile(r"""\s(?:class|id|role)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+)""", re.I)
_SECTIONS: Final = re.compile(
    r"^<(/?)(?:nav|header|footer|main|article|aside|section|address)\b", re.I
)
_TAG: Final = re.compile(r"</?[a-zA-Z][^>]*>")


@dataclass(frozen=True, slots=True)
class Page:
    """The judgements of one page's text, whole and without what is repeated."""

    package: str
    held_out: bool
    whole: Judged
    shown: Judged
    changed: bool


def unmarked(markup: str) -> str:
    """The markup without what tells a text from what is around it."""
    return _TAG.sub(lambda tag: _SECTIONS.sub(r"<\1div", _NAMES.sub("", tag[0])), markup)


def measure(pages: Sequence[Original], *, marked: bool, folder: str) -> list[Page]:
    """Index the pages in an empty folder, and judge the text of each."""
    bodies = [
        (one.url, one.body if marked else unmarked(one.body.decode()).encode()) for one in pages
    ]
    found = []
    with open_repository(folder, create=True) as repo:
        load_pages(repo, bodies)
        Worker(repo, [parse, find_repeated], WorkerOptions(threads=1)).run_until_idle()
        with repo.snapshot() as now:
            for one in pages:
                url = normalise(one.url)
                text = now.get(tables.text, page_row(url)) or ""
                shown = text[part_of(now, url)]
                main = main_text(one.body.decode(), one.generator)
                assert main is not None, one.url
                found.append(
                    Page(
                        one.package,
                        one.held_out,
                        judge(url, main.text, text),
                        judge(url, main.text, shown),
                        shown != text,
                    )
                )
    return found


def _row(name: str, pages: Iterable[Page]) -> list[str]:
    some = list(pages)
    figures = [
        f"{statistics.fmean(getattr(getattr(one, side), figure) for one in some):.3f}"
        for figure in ("precision", "recall", "f1")
        for side in ("whole", "shown")
    ]
    changed = sum(one.changed for one in some)
    return [name, f"{len(some):,}", f"{100 * changed / len(some):.0f} %", *figures]


def report(found: dict[str, list[Page]], missing: Mapping[str, str]) -> str:
    """A table for each sort of pages, and which packages are missing and why."""
    columns = ["pages", "shortened", "precision", "after", "recall", "after", "F1", "after"]
    tables_of = []
    for sort, pages in found.items():
        packages = defaultdict(list)
        for one in pages:
            packages[f"{one.package}{', held out' if one.held_out else ''}"].append(one)
        rows = [_row(name, some) for name, some in packages.items()]
        if held_out := [one for one in pages if one.held_out]:
            rows.append(_row("held out", held_out))
        rows.append(_row("all", pages))
        tables_of.append(table([sort, *columns], rows))
    tables_of += [f"Not to be had: {name}: {why}." for name, why in missing.items()]
    return "\n".join(tables_of)


def run(console: Console, *, quick: bool) -> None:
    """Measure, print tables as Markdown, leave the figures as JSON."""
    conditions_found = conditions()
    with temporary_folder() as folder, console.status("Repeated …"):
        labelled: Labelled = collect(
            DOCUMENTATION,
            OUTPUT / "packages",
            folder,
            pages=40 if quick else 300,
            copies=0,
            seed=SEED,
        )
        found = {
            sort: measure(labelled.originals, marked=marked, folder=str(folder / sort))
            for sort, marked in (("as served", True), ("unmarked", False))
        }
    name = output_name("repeated", quick=quick)
    words = f"{report(found, labelled.missing)}\nOn {conditions_line(conditions_found)}.\n"
    write_whole(OUTPUT / f"{name}.md", words)
    path = write_json(
        name,
        {
            "conditions": conditions_found,
            "versions": labelled.versions,
            "missing": labelled.missing,
            **{sort: [asdict(one) for one in pages] for sort, pages in found.items()},
        },
    )
    console.out(words, highlight=False)
    console.print(f"Figures: {path}", style="dim", soft_wrap=True)
