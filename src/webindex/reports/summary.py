"""Totals of a web index, and how long pages took to become searchable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from percola import Repository, Snapshot
from webindex import tables
from webindex.journal import counts_of
from webindex.load.resources import is_no_page
from webindex.text_format import count, moment, pdf_documents


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from a page's loader commit until search finds it, over `count` pages."""

    count: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """The report of the newest run of the PageRank job; see `ranking.report.RankReport`."""

    run: int
    started_ms: int
    pages: int
    edges: int
    written: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a repository.

    Attributes:
        hosts: hosts with live pages.
        pages: live pages, each in exactly one cluster; `indexable` are those that may be shown.
        redirects: captured pages that send their visitors to another one.
        clusters: sets of live pages that are one document to a reader.
        sizes: how many clusters there are of a size, as (smallest, largest, number); the last
            class has no largest.
        documents: clusters with a page that may be indexed: search shows them once the workers
            are done.
        duplicates: live pages that are represented by another one.
        links: links that vouch for the page that they lead to.
        linked_pages: pages that have such links, captured or not.
        ranked: None if ranks have never been computed.
        rejected: records of WARC files that could not be used, over all loads; `unavailable` are
            captures that say nothing about their page (server errors, redirects from one
            spelling of its URL to another), and `unchanged` reports
            that a page was as before. These, and `cut`, count a record again if its file is loaded
            again.
        unresolved: pages whose newest record is a revisit of a capture that was not loaded: an
            older record determines their content.
        cut: captures of which only the beginning was taken, over all loads.
        pdfs, unread_pdfs: PDF documents that were read over all loads, and those without text.
        latency: of the last hour of exports at most; None if there were none in the period.
    """

    hosts: int
    pages: int
    indexable: int
    redirects: int
    clusters: int
    sizes: list[tuple[int, int | None, int]]
    documents: int
    duplicates: int
    links: int
    linked_pages: int
    ranked: Ranked | None
    rejected: int
    unavailable: int
    unchanged: int
    unresolved: int
    cut: int
    pdfs: int
    unread_pdfs: int
    latency: Latency | None

    def to_json(self) -> dict[str, Any]:
        """The numbers as a dictionary."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The numbers as lines of a table, each a name and a value."""
        rows = [("Pages", f"{self.pages:,} of {count(self.hosts, 'host')}")]
        if self.indexable < self.pages:
            rows.append(("Not to be indexed", f"{self.pages - self.indexable:,} of these"))
        folded = count(self.duplicates, "duplicate")
        rows += [
            ("Redirects", f"{self.redirects:,}"),
            ("Clusters", f"{self.clusters:,}{_sizes(self.sizes)}"),
            ("Documents", f"{self.documents:,}, with {folded} folded in"),
            ("Links", f"{self.links:,} to {count(self.linked_pages, 'page')}"),
        ]
        if self.ranked is not None:
            early = "; that run ended early" if self.ranked.error else ""
            over = count(self.ranked.pages, "page")
            rows.append(("Ranks", f"computed {moment(self.ranked.started_ms)}, over {over}{early}"))
        if self.unresolved:
            waiting = f"{self.unresolved:,}: they refer to captures that were not loaded"
            rows.append(("Revisits not resolved", waiting))
        # Of a file that is loaded again they count again.
        rows.append(("Rejected records", f"{self.rejected:,} over all loads"))
        if self.unavailable:
            told = f"{self.unavailable:,} over all loads, as server errors do"
            rows.append(("Say nothing of a page", told))
        if self.unchanged:
            rows.append(("Reported as unchanged", f"{self.unchanged:,} over all loads"))
        if self.cut:
            rows.append(("Cut off", f"{count(self.cut, 'capture')} of long pages, over all loads"))
        if self.pdfs:
            rows.append(("PDF documents read", pdf_documents(self.pdfs, self.unread_pdfs)))
        if self.latency is not None:
            one = self.latency
            times = f"p50 {_time(one.p50)} · p95 {_time(one.p95)} · p99 {_time(one.p99)}"
            rows.append(("Loaded to searchable", f"{times} ({count(one.count, 'page')})"))
        return rows


CLASSES: Final = ((1, 1), (2, 2), (3, 4), (5, 9), (10, 99), (100, None))
"""Classes of cluster sizes."""


def summarise(repo: Repository, *, since: int = 0) -> Summary:
    """Count what the repository holds now; latencies of exports after the timestamp `since`.

    It reads a small cell of each page, of each page that is linked to and of each member of a
    cluster, but no text.
    """
    with repo.snapshot() as now:
        hosts, pages, indexable = _hosts(now)
        redirects = sum(
            row[tables.pointer]["kind"] == "redirect"
            for row in now.scan(tables.pages, columns=[tables.pointer])
        )
        sizes: Counter[int] = Counter()
        documents = duplicates = 0
        for row in now.scan(tables.clusters, columns=[tables.member]):
            members = row.family(tables.member).values()
            sizes[len(members)] += 1
            if any(one["indexable"] for one in members):
                documents += 1
                duplicates += len(members) - 1
        links = linked = 0
        for linked_to in now.scan(tables.inlinks, columns=[tables.tally]):
            links += linked_to[tables.tally]["links"]
            linked += 1
        loads = _loads(now)
        unresolved = sum(
            not is_no_page(now, row.key)
            for row in now.scan(tables.pages, columns=[tables.unresolved])
        )
        waited = [
            one
            for row in now.scan(tables.journal, start=f"export/{since:020}", end="export0")
            for one in row[tables.report]["latency_ms"]
        ]
        return Summary(
            hosts,
            pages,
            indexable,
            redirects,
            sizes.total(),
            _classes(sizes),
            documents,
            duplicates,
            links,
            linked,
            _ranked(now),
            loads["rejected"],
            loads["unavailable"],
            loads["unchanged"],
            unresolved,
            loads["cut"],
            loads["pdfs"],
            loads["unread_pdfs"],
            latency(waited),
        )


def _hosts(now: Snapshot) -> tuple[int, int, int]:
    """The numbers of hosts, of their live pages, and of those that may be indexed."""
    names = set()
    pages = indexable = 0
    for row in now.scan(tables.hosts, columns=[tables.live]):
        names.add(row.key.rpartition("/")[0])
        pages += row[tables.live]["pages"]
        indexable += row[tables.live]["indexable"]
    return len(names), pages, indexable


def _classes(sizes: Counter[int]) -> list[tuple[int, int | None, int]]:
    found = [
        (low, high, sum(n for size, n in sizes.items() if low <= size <= (high or size)))
        for low, high in CLASSES
    ]
    return [one for one in found if one[2]]


def _loads(now: Snapshot) -> Counter[str]:
    """Sums over all loads, by the names of `journal.counts_of`."""
    total = Counter(counts_of(now.get(tables.report, "load") or {}))
    for row in now.scan(tables.journal, prefix="load/", columns=[tables.report]):
        total.update(counts_of(row[tables.report]))
    return total


def _ranked(now: Snapshot) -> Ranked | None:
    newest = None
    for row in now.scan(tables.journal, prefix="rank/"):
        newest = row[tables.report]
    if newest is None:
        return None
    return Ranked(*(newest[one.name] for one in fields(Ranked)))


def latency(milliseconds: Sequence[float]) -> Latency | None:
    """Percentiles of a list of latencies; None for an empty one."""
    if not milliseconds:
        return None
    ordered = sorted(milliseconds)

    def at(share: float) -> float:
        return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])

    return Latency(len(ordered), at(0.50), at(0.95), at(0.99))


# --- Messages -------------------------------------------------------------------------------


def _sizes(sizes: Sequence[tuple[int, int | None, int]]) -> str:
    """`: 160 of one page, 12 of 2, 3 of 3 to 4`."""
    said = []
    for low, high, number in sizes:
        pages = (
            f"{low} or more" if high is None else f"{low}" if high == low else f"{low} to {high}"
        )
        said.append(f"{number:,} of {'one page' if high == 1 else pages}")
    return ": " + ", ".join(said) if said else ""


def _time(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"
