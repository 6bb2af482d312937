"""How well the web index tells near-copies of a page from other pages, by labels of its own.

`benchmarks.labelled` makes the set: generated pages of documentation packages, labelled by their
main text, and near-copies of them. All of them are loaded as a crawl is, by loader transactions,
and go through the observers up to the search index; then the clusters are read.

    folded       of the pages with distinct main text, those whose cluster shows another one: they
                 have vanished. Their number is that of the texts in a cluster, less the one shown.
    found        of the near-copies, those in the cluster of their original
    worst        the most distinct texts in one cluster
    searched     of the folded pages, those that a search for their own title still shows among its
                 first ten hits; beside as many pages that were not folded
    extracted    of the near-copies, those that were found or whose text, as `webindex` extracts
                 it, is that of the original by at least `EXTRACTED`: the others have lost it
                 before any rule of clustering is asked

Links are not counted: no cluster depends on them, and they are most of the work.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.labelled import DOCUMENTATION, Documentation, Labelled, Original, collect
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
from benchmarks.near_copies import KINDS
from percola import Repository, Worker, WorkerOptions
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.transaction import load_captures
from webindex.observers import parse as observers
from webindex.observers.clustering import join
from webindex.observers.documents import assemble
from webindex.observers.export import export_to
from webindex.observers.redirects import follow, resolve
from webindex.page.urls import normalise, page_row
from webindex.serving import ServingIndex
from webindex.workers.processes import open_index, open_repository

AIM_FOLDED: Final = 0.001
AIM_FOUND: Final = 0.99
EXTRACTED: Final = 0.8
"""Jaccard index of the three-word runs of two extracted texts."""
SEED: Final = 1
_BATCH: Final = 64
_HITS: Final = 10
_SEARCHED: Final = 300
_QUICK: Final = (
    "libcommons-lang3-java-doc",
    "libsfml-doc",
    "python-scipy-doc",
    "libgtk-4-doc",
    "libxerces-c-doc",
)
_DATE: Final = datetime(2025, 1, 6, tzinfo=UTC)


@dataclass(slots=True)
class Cluster:
    """A cluster at rest: the URL that it shows, if any, and those of all its pages."""

    shown: str | None
    pages: frozenset[str]


@dataclass(slots=True)
class Share:
    """A number out of a total."""

    part: int = 0
    of: int = 0

    def __str__(self) -> str:
        return f"{self.part:,} of {self.of:,} ({100 * self.value:.2f} %)"

    @property
    def value(self) -> float:
        """0 … 1; 0 of none."""
        return self.part / self.of if self.of else 0.0

    def to_json(self) -> dict[str, float]:
        """Both numbers and the share."""
        return {"part": self.part, "of": self.of, "share": self.value}


@dataclass(slots=True)
class Folded:
    """A page that has vanished into the cluster of another, and the one that is shown there.

    `similarity` is the Jaccard index of the three-word runs of both main texts, `extracted` that
    of the texts as `webindex` extracts them.
    """

    url: str
    title: str
    package: str
    shown_url: str
    shown_title: str
    similarity: float
    extracted: float = 0.0
    found_by_title: bool | None = None


@dataclass(slots=True)
class Missed:
    """A near-copy in another cluster than its original.

    `extracted` is the similarity of both texts as `webindex` extracts them.
    """

    kind: str
    url: str
    of: str
    title: str
    extracted: float = 0.0


@dataclass(slots=True)
class Figures:
    """What was measured. Packages are the keys of `folded`, kinds those of `found`."""

    folded: dict[str, Share] = field(default_factory=dict)
    found: dict[str, Share] = field(default_factory=dict)
    extracted: dict[str, Share] = field(default_factory=dict)
    tuning: Share = field(default_factory=Share)
    held_out: Share = field(default_factory=Share)
    worst: list[str] = field(default_factory=list)
    vanished: list[Folded] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    alike: int = 0
    same: int = 0
    same_apart: int = 0
    not_indexed: int = 0
    searched: Share = field(default_factory=Share)
    searched_others: Share = field(default_factory=Share)

    @property
    def all_folded(self) -> Share:
        """Of all packages."""
        return _sum(self.folded.values())

    @property
    def all_found(self) -> Share:
        """Of all kinds."""
        return _sum(self.found.values())

    def to_json(self) -> dict[str, Any]:
        """Everything, with the pages behind the figures."""
        return {
            "folded": {name: one.to_json() for name, one in self.folded.items()},
            "folded_tuning": self.tuning.to_json(),
            "folded_held_out": self.held_out.to_json(),
            "folded_all": self.all_folded.to_json(),
            "found": {name: one.to_json() for name, one in self.found.items()},
            "found_all": self.all_found.to_json(),
            "extracted": {name: one.to_json() for name, one in self.extracted.items()},
            "worst_cluster_texts": len(self.worst),
            "worst_cluster": self.worst,
            "alike": self.alike,
            "same": self.same,
            "same_apart": self.same_apart,
            "not_indexed": self.not_indexed,
            "folded_found_by_title": self.searched.to_json(),
            "others_found_by_title": self.searched_others.to_json(),
            "folded_pages": [asdict(one) for one in self.vanished],
            "missed_copies": [asdict(one) for one in self.missed],
        }


def _sum(shares: Iterable[Share]) -> Share:
    whole = Share()
    for one in shares:
        whole.part += one.part
        whole.of += one.of
    return whole


# --- The web index at work ------------------------------------------------------------------


def load_pages(repo: Repository, pages: Sequence[tuple[str, bytes]]) -> None:
    """Load pages, given as URL and bytes, as a crawl is loaded."""
    for at in range(0, len(pages), _BATCH):
        load_captures(repo, [_capture(*one) for one in pages[at : at + _BATCH]], "labelled")


def index_pages(repo: Repository, index: ServingIndex, pages: Sequence[tuple[str, bytes]]) -> None:
    """Load pages as a crawl is loaded, and run the observers until no work is left."""
    load_pages(repo, pages)
    chain = [observers.parse, resolve, follow, join, assemble, export_to(index)]
    Worker(repo, chain, WorkerOptions(threads=1)).run_until_idle()


def _capture(url: str, body: bytes) -> Capture:
    kind = "text/html; charset=utf-8"
    headers = {"content-type": kind}
    return Capture(url, _DATE, 200, kind, headers, body, 0, 0, None, False)


def clusters(repo: Repository) -> list[Cluster]:
    """The clusters of an idle repository."""
    with repo.snapshot() as snapshot:
        return [
            Cluster(
                None if (shown := row.get(tables.document)) is None else shown["url"],
                frozenset(one["url"] for one in row.family(tables.member).values()),
            )
            for row in snapshot.scan(tables.clusters, columns=[tables.member, tables.document])
        ]


# --- Judging --------------------------------------------------------------------------------


class _Labels:
    """The labels by URL, as the web index writes URLs."""

    def __init__(self, labelled: Labelled) -> None:
        self.originals = {normalise(one.url): one for one in labelled.originals}
        self.copies = {normalise(one.url): one for one in labelled.copies}

    def original(self, url: str) -> Original:
        """The page itself, or the one that it is a near-copy of."""
        copy = self.copies.get(url)
        return self.originals[url] if copy is None else copy.of


def judge(labelled: Labelled, found: Sequence[Cluster]) -> Figures:
    """Compare the clusters with the labels."""
    labels = _Labels(labelled)
    figures = Figures()
    cluster_of = {url: one for one in found for url in one.pages}
    texts: dict[str, list[Original]] = defaultdict(list)
    for url, one in labels.originals.items():
        if url in cluster_of:
            texts[one.like].append(one)
        else:
            figures.not_indexed += 1
    for pages in texts.values():
        share = figures.folded.setdefault(pages[0].package, Share())
        share.of += 1
        figures.alike += len({one.text for one in pages}) - 1
        figures.same += len(pages) - len({one.text for one in pages})
        by_text = defaultdict(set)
        for one in pages:
            by_text[one.text].add(id(cluster_of[normalise(one.url)]))
        figures.same_apart += sum(len(there) - 1 for there in by_text.values())
    for cluster in found:
        _judge_cluster(cluster, labels, figures)
    for copy in labelled.copies:
        share = figures.found.setdefault(copy.kind, Share())
        there = cluster_of.get(normalise(copy.of.url))
        if there is None:
            continue
        share.of += 1
        if normalise(copy.url) in there.pages:
            share.part += 1
        else:
            figures.missed.append(Missed(copy.kind, copy.url, copy.of.url, copy.of.title))
    for name, share in figures.folded.items():
        held_out = any(one.held_out for one in labelled.originals if one.package == name)
        whole = figures.held_out if held_out else figures.tuning
        whole.part += share.part
        whole.of += share.of
    return figures


def _judge_cluster(cluster: Cluster, labels: _Labels, figures: Figures) -> None:
    there = [labels.originals[url] for url in sorted(cluster.pages) if url in labels.originals]
    first: dict[str, Original] = {}
    for one in there:
        first.setdefault(one.like, one)
    if len(first) < 2:
        return
    if len(first) > len(figures.worst):
        figures.worst = [f"{one.url} {one.title}" for one in first.values()]
    shown = labels.original(cluster.shown) if cluster.shown else there[0]
    for like, one in first.items():
        if like != shown.like:
            figures.folded[one.package].part += 1
            figures.vanished.append(
                Folded(
                    url=one.url,
                    title=one.title,
                    package=one.package,
                    shown_url=shown.url,
                    shown_title=shown.title,
                    similarity=_similarity(one, shown),
                )
            )


def _similarity(one: Original, other: Original) -> float:
    return round(_alike(_words(one), _words(other)), 3)


def _words(one: Original) -> list[str]:
    main = main_text(one.body.decode(), one.generator)
    return main.text.lower().split() if main is not None else []


def _alike(one: Sequence[str], other: Sequence[str]) -> float:
    """The Jaccard index of the three-word runs."""
    mine, its = (
        {tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))}
        for words in (one, other)
    )
    return len(mine & its) / len(mine | its)


def compare_extracted(labelled: Labelled, figures: Figures, repo: Repository) -> None:
    """Compare what `webindex` extracted: where that differs, what the clusters do follows."""
    with repo.snapshot() as now:

        def extracted(one: str, other: str) -> float:
            cells = [(tables.text, page_row(normalise(url))) for url in (one, other)]
            texts = [(text or "").lower().split() for text in now.get_many(cells)]
            return round(_alike(texts[0], texts[1]), 3)

        for missed in figures.missed:
            missed.extracted = extracted(missed.url, missed.of)
        for folded in figures.vanished:
            folded.extracted = extracted(folded.url, folded.shown_url)
        lost = Counter(one.kind for one in figures.missed if one.extracted < EXTRACTED)
    for kind, share in figures.found.items():
        figures.extracted[kind] = Share(share.of - lost[kind], share.of)


def search(labelled: Labelled, figures: Figures, index: ServingIndex) -> None:
    """Search for the titles of folded pages, and of as many others."""
    labels = _Labels(labelled)
    rng = random.Random(SEED)

    def finds(like: str, title: str) -> bool:
        hits = index.search(title, limit=_HITS).hits
        return any(labels.original(one.url).like == like for one in hits)

    asked = rng.sample(figures.vanished, min(_SEARCHED, len(figures.vanished)))
    for one in asked:
        one.found_by_title = finds(labels.originals[normalise(one.url)].like, one.title)
        figures.searched.of += 1
        figures.searched.part += one.found_by_title
    gone = {one.url for one in figures.vanished}
    others = [one for one in labelled.originals if one.url not in gone]
    for other in rng.sample(others, min(max(50, len(asked)), len(others))):
        figures.searched_others.of += 1
        figures.searched_others.part += finds(other.like, other.title)


# --- The run --------------------------------------------------------------------------------


def measure(
    packages: Sequence[Documentation],
    cache: Path,
    folder: Path,
    *,
    pages: int,
    copies: int,
    say: Callable[[str], None],
) -> tuple[Labelled, Figures]:
    """Make the labelled set, index it in an empty folder, and judge the clusters."""
    say("getting and labelling pages")
    labelled = collect(packages, cache, folder, pages=pages, copies=copies, seed=SEED)
    say(f"indexing {len(labelled.originals):,} pages and {len(labelled.copies):,} near-copies")
    address = str(folder / "repository")
    with open_repository(address, create=True) as repo, open_index(repo, create=True) as index:
        index_pages(repo, index, labelled.pages(SEED))
        say("judging the clusters")
        figures = judge(labelled, clusters(repo))
        compare_extracted(labelled, figures, repo)
        search(labelled, figures, index)
    return labelled, figures


def run(console: Console, *, quick: bool) -> None:
    """Measure, print tables as Markdown, leave the figures and examples as JSON."""
    found = conditions()
    packages = [one for one in DOCUMENTATION if not quick or one.name in _QUICK]
    with temporary_folder() as folder, console.status("Duplicates …") as status:

        def say(words: str) -> None:
            status.update(f"Duplicates: {words} …")

        labelled, figures = measure(
            packages,
            OUTPUT / "packages",
            folder,
            pages=250 if quick else 1500,
            copies=5 if quick else 30,
            say=say,
        )
    name = output_name("duplicates", quick=quick)
    words = report(labelled, figures) + f"\nOn {conditions_line(found)}.\n"
    path = write_json(
        name,
        {
            "conditions": found,
            "versions": labelled.versions,
            "missing": labelled.missing,
            "left_out": dict(labelled.left_out),
            **figures.to_json(),
        },
    )
    write_whole(OUTPUT / f"{name}.md", words)
    console.out(words, highlight=False)
    console.print(f"Figures and examples: {path}", style="dim", soft_wrap=True)


def report(labelled: Labelled, figures: Figures) -> str:
    """The tables and the remarks on them."""
    made = Counter(one.package for one in labelled.originals)
    rows = []
    for one in DOCUMENTATION:
        share = figures.folded.get(one.name)
        if share is None:
            continue
        similar = [page.similarity for page in figures.vanished if page.package == one.name]
        rows.append(
            [
                f"{one.name}{', held out' if one.held_out else ''}",
                one.generator,
                f"{made[one.name]:,}",
                f"{share.of:,}",
                f"{share.part:,}",
                f"{100 * share.value:.2f} %",
                f"{min(similar):.2f}" if similar else "",
            ]
        )
    for name, share in (
        ("all but held out", figures.tuning),
        ("held out", figures.held_out),
        ("all", figures.all_folded),
    ):
        rows.append(
            [name, "", "", f"{share.of:,}", f"{share.part:,}", f"{100 * share.value:.2f} %"]
        )
    columns = ("Package", "generator", "pages", "texts", "folded", "share", "least similar")
    kinds = [
        [
            kind,
            f"{share.of:,}",
            f"{share.part:,}",
            f"{100 * share.value:.2f} %",
            f"{100 * figures.extracted[kind].value:.2f} %",
        ]
        for kind in KINDS
        if (share := figures.found.get(kind)) is not None
    ]
    whole = figures.all_found
    extracted = _sum(figures.extracted.values())
    kinds.append(
        [
            "all",
            f"{whole.of:,}",
            f"{whole.part:,}",
            f"{100 * whole.value:.2f} %",
            f"{100 * extracted.value:.2f} %",
        ]
    )
    missing = "".join(f"Not to be had: {name}: {why}.\n" for name, why in labelled.missing.items())
    return (
        f"{table(columns, rows)}\n"
        f"Aimed at: at most {100 * AIM_FOLDED:.1f} % folded. The worst cluster has "
        f"{max(1, len(figures.worst))} distinct texts. {figures.same:,} pages have the text of "
        f"another page ({figures.same_apart:,} of them in another cluster), {figures.alike:,} "
        "differ from another in dates and version numbers alone; neither count as texts of their "
        f"own. {figures.not_indexed:,} pages are not in the index.\n\n"
        f"A search for its own title shows, among the first {_HITS}, {figures.searched} of the "
        f"folded pages, and {figures.searched_others} of others.\n\n"
        f"{table(('Near-copies', 'made', 'found', 'share', 'extracted'), kinds)}\n"
        f"Aimed at: at least {100 * AIM_FOUND:.0f} % found.\n{missing}"
    )
