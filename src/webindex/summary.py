"""What is in a web index, and how fast it got there: the numbers at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from percola import Repository
from webindex import tables


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from a page's loader commit until it can be found, over `count` pages."""

    count: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a repository.

    Attributes:
        pages: live pages, each in exactly one cluster.
        clusters: documents that the search index shows.
        duplicates: live pages that another one stands for.
        links: links of live pages to other pages.
        linked_pages: pages that are linked to, captured or not.
        rejected: records of WARC files that could not be used, over all loads.
        latency: None if nothing was exported in the time looked at.
    """

    pages: int
    clusters: int
    duplicates: int
    links: int
    linked_pages: int
    rejected: int
    latency: Latency | None

    def to_json(self) -> dict[str, Any]:
        """The numbers as a dictionary."""
        return asdict(self)


def summarise(repo: Repository, *, since: int = 0) -> Summary:
    """Count what the repository holds now; latencies of exports after the timestamp `since`."""
    now = repo.snapshot()
    fingerprints = sum(1 for _ in now.scan(tables.pages, columns=[tables.fingerprint]))
    links = sum(len(row[tables.links]) for row in now.scan(tables.pages, columns=[tables.links]))
    linked = sum(1 for _ in now.scan(tables.inlinks, columns=[tables.source]))
    documents = duplicates = 0
    for row in now.scan(tables.clusters, columns=[tables.document]):
        documents += 1
        duplicates += len(row[tables.document]["duplicates"])
    rejected = sum(
        sum(row[tables.report].get("rejected", {}).values())
        for row in now.scan(tables.journal, prefix="load/")
    )
    waited = [
        one
        for row in now.scan(tables.journal, start=f"export/{since:020}", end="export0")
        for one in row[tables.report]["latency_ms"]
    ]
    return Summary(fingerprints, documents, duplicates, links, linked, rejected, latency(waited))


def latency(milliseconds: Sequence[float]) -> Latency | None:
    """Percentiles of a list of latencies; None for an empty one."""
    if not milliseconds:
        return None
    ordered = sorted(milliseconds)

    def at(share: float) -> float:
        return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])

    return Latency(len(ordered), at(0.50), at(0.95), at(0.99))
