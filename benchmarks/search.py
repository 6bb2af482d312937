"""How good search results are: nDCG@10 beside plain BM25, on two documentations.

The queries and the pages that answer them are in `search_queries.txt`, written after reading the
pages, before any ranking was tuned. Of each class every second query is *held out*: no weight was
chosen by it. What is compared:

    webindex   `TantivyIndex.search` after the whole chain: pages loaded, observers, PageRank
    BM25       one field of Tantivy with its default analyzer, over title and visible text of the
               page with its navigation, any of the query's words: what a crawl into a search
               library gives without further work
    of text    the same over title and text as `webindex` extracts them

Pages come from Debian's packages, got by `apt-get download`. nDCG has the gain 2^grade - 1; the
ideal order is that of all judged pages, and pages without a grade have none.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tantivy
from rich.console import Console
from selectolax.lexbor import LexborHTMLParser

from benchmarks.duplicates import index_pages
from benchmarks.labelled import LabelsError
from benchmarks.markdown import table
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    percentile,
    temporary_folder,
    write_json,
    write_whole,
)
from percola import Worker
from webindex.corpus.archives import read_archive
from webindex.corpus.debian import Apt, UnavailableError
from webindex.corpus.mounting import Kind, mount
from webindex.corpus.packages import named
from webindex.ranking.job import rank
from webindex.serving import ServingIndex
from webindex.serving.spelling import search_respelt
from webindex.workers.processes import build_observers, open_index, open_repository

QUERIES: Final = Path(__file__).with_name("search_queries.txt")
PACKAGES: Final = {"python": "python3.11-doc", "postgresql": "postgresql-doc-15"}
DEPTH: Final = 10

Search = Callable[[str], list[set[str]]]
"""The URLs of each of the first hits of a query: a hit has one for each page that it stands for."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and the grade of each page that answers it, by URL."""

    corpus: str
    kind: str
    text: str
    grades: dict[str, int]
    held_out: bool


def read_queries(path: Path = QUERIES) -> list[Query]:
    """The judged queries, in the order of the file."""
    found: list[Query] = []
    corpus = base = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            corpus, base = line[1:].split("] ")
        elif line and not line.startswith("#"):
            kind, text, pages = (part.strip() for part in line.split(" | "))
            grades = {
                f"{base}{page}.html": int(grade)
                for page, grade in (one.split("=") for one in pages.split())
            }
            before = sum((one.corpus, one.kind) == (corpus, kind) for one in found)
            found.append(Query(corpus, kind, text, grades, held_out=before % 2 == 1))
    return found


def ndcg(hits: Sequence[set[str]], grades: dict[str, int]) -> float:
    """nDCG@10 of the hits, of which each has the best grade of its pages, once."""
    left = dict(grades)
    gained = 0.0
    for place, urls in enumerate(hits[:DEPTH]):
        graded = [url for url in urls if url in left]
        gained += (2 ** max((left[url] for url in graded), default=0) - 1) / math.log2(place + 2)
        for url in graded:
            del left[url]
    ideal = sorted(grades.values(), reverse=True)[:DEPTH]
    best = sum((2.0**grade - 1) / math.log2(at + 2) for at, grade in enumerate(ideal))
    return gained / best


# --- What is compared -----------------------------------------------------------------------


def by_webindex(index: ServingIndex) -> Search:
    """The search of the web site."""

    def search(text: str) -> list[set[str]]:
        results = search_respelt(index, text, limit=DEPTH).results
        return [{hit.url, *hit.duplicates, *hit.aliases} for hit in results.hits]

    return search


def by_bm25(pages: Iterable[tuple[str, str, str]]) -> Search:
    """BM25 over (URL, title, text) with Tantivy's defaults."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("url", stored=True, tokenizer_name="raw")
    builder.add_text_field("body")
    index = tantivy.Index(builder.build())
    writer = index.writer(15_000_000, num_threads=1)
    for url, title, text in pages:
        writer.add_document(tantivy.Document(url=url, body=[title, text]))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def search(text: str) -> list[set[str]]:
        query, _ = index.parse_query_lenient(text, ["body"])
        hits = searcher.search(query, limit=DEPTH).hits
        return [{str(searcher.doc(address).get_first("url"))} for _, address in hits]

    return search


def visible(url: str, body: bytes) -> tuple[str, str, str]:
    """URL, title and all visible text of a page."""
    tree = LexborHTMLParser(body.decode("utf-8", "replace"))
    for node in tree.css("script, style"):
        node.decompose()
    title = tree.css_first("title")
    text = tree.body.text(separator=" ") if tree.body is not None else ""
    return url, title.text() if title is not None else "", text


# --- Measuring ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """nDCG@10 of one query, by what searched."""

    query: Query
    by: dict[str, float]


def judge(queries: Iterable[Query], searches: dict[str, Search]) -> list[Judged]:
    """Run each query with each search."""
    return [
        Judged(one, {name: ndcg(run(one.text), one.grades) for name, run in searches.items()})
        for one in queries
    ]


def latencies(queries: Sequence[Query], run: Search, times: int) -> list[float]:
    """Milliseconds of each query, in order."""
    found = []
    for _ in range(times):
        for one in queries:
            began = time.perf_counter()
            run(one.text)
            found.append((time.perf_counter() - began) * 1000)
    return sorted(found)


def pages_of(corpus: str, cache: Path, folder: Path) -> tuple[str, list[tuple[str, bytes]]]:
    """The version of a corpus' package, and its pages by URL. Raises LabelsError."""
    [package] = named(PACKAGES[corpus])
    apt = Apt(cache)
    apt.look_up([package.name])
    versions = apt.versions(package.name)
    if not versions:
        raise LabelsError(f"{package.name}: {apt.trouble or 'apt does not know it'}")
    try:
        archive = read_archive(apt.get(package.name, versions[0]), folder / package.name)
    except UnavailableError as error:
        raise LabelsError(f"{package.name}: {error}") from error
    site = mount(package, versions[0], archive)
    kept = {url: one for url, one in site.documents.items() if one.kind is Kind.PAGE}
    return versions[0], [(url, site.read(one)) for url, one in kept.items()]


def measure(corpus: str, folder: Path, times: int) -> tuple[str, list[Judged], list[float]]:
    """Index a corpus and judge its queries: the package's version, the grades, milliseconds."""
    version, pages = pages_of(corpus, OUTPUT / "packages", folder)
    missing = {url for one in read_queries() if one.corpus == corpus for url in one.grades} - {
        url for url, _ in pages
    }
    if missing:
        raise LabelsError(f"{corpus} {version} lacks judged pages: {', '.join(sorted(missing))}")
    address = str(folder / corpus)
    with open_repository(address, create=True) as repo, open_index(repo, create=True) as index:
        index_pages(repo, index, pages)
        Worker(repo, build_observers(index)).run_until_idle()
        rank(address, quiet=True)
        Worker(repo, build_observers(index)).run_until_idle()
        documents = [index.get(cluster) for cluster, _ in index.clusters()]
        searches = {
            "webindex": by_webindex(index),
            "BM25": by_bm25(visible(*one) for one in pages),
            "of text": by_bm25((one.url, one.title, one.text) for one in documents if one),
        }
        queries = [one for one in read_queries() if one.corpus == corpus]
        judged = judge(queries, searches)
        return version, judged, latencies(queries, searches["webindex"], times)


def run(console: Console, *, quick: bool) -> None:
    """Measure, print tables as Markdown, leave the figures as JSON."""
    found = conditions()
    judged: list[Judged] = []
    versions, times = {}, {}
    with temporary_folder() as folder, console.status("Search …") as status:
        for corpus in PACKAGES:
            status.update(f"Search: {corpus} …")
            versions[corpus], some, times[corpus] = measure(corpus, folder, 1 if quick else 3)
            judged += some
    name = output_name("search", quick=quick)
    words = f"{report(judged, times)}\nOn {conditions_line(found)}.\n"
    write_whole(OUTPUT / f"{name}.md", words)
    path = write_json(
        name,
        {
            "conditions": found,
            "versions": versions,
            "queries": [
                {"corpus": one.query.corpus, "class": one.query.kind, "query": one.query.text}
                | {"held_out": one.query.held_out, "ndcg": one.by}
                for one in judged
            ],
        },
    )
    console.out(words, highlight=False)
    console.print(f"Figures: {path}", style="dim", soft_wrap=True)


def report(judged: Sequence[Judged], times: dict[str, list[float]]) -> str:
    """The tables."""
    names = list(judged[0].by)
    rows = []
    kinds = dict.fromkeys((one.query.corpus, one.query.kind) for one in judged)
    groups: list[tuple[str, list[Judged]]] = [
        (f"{corpus}, {kind}", [one for one in judged if _is(one, corpus, kind)])
        for corpus, kind in kinds
    ]
    for half, label in ((False, "tuned on"), (True, "held out")):
        for corpus in PACKAGES:
            some = [one for one in judged if _is(one, corpus) and one.query.held_out == half]
            groups.append((f"{corpus}, {label}", some))
        groups.append((f"all, {label}", [one for one in judged if one.query.held_out == half]))
    groups.append(("all", list(judged)))
    for group, some in groups:
        means = [statistics.fmean(one.by[name] for one in some) for name in names]
        best = max(means[1:])
        ratio = f"{means[0] / best:.2f}" if best else "-"
        rows.append([group, f"{len(some)}", *(f"{mean:.3f}" for mean in means), ratio])
    latency = [
        [corpus, *(f"{percentile(found, share):.1f}" for share in (0.5, 0.95, 1.0))]
        for corpus, found in times.items()
    ]
    return (
        "nDCG@10; the ratio is to the better of the two others.\n\n"
        + table(["", "queries", *names, "ratio"], rows)
        + "\nMilliseconds of a query with its snippets:\n\n"
        + table(["", "median", "95 %", "most"], latency)
    )


def _is(one: Judged, corpus: str, kind: str | None = None) -> bool:
    return one.query.corpus == corpus and kind in (None, one.query.kind)
