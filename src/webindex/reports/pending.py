"""Pending work of observers for a page, and dead-lettered changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from percola import Column, Family, Repository, Snapshot, Table, inspection
from webindex import tables
from webindex.page.urls import block_row, url_of_row

__all__ = ["STEPS", "Trouble", "troubles", "unparsed", "waiting"]

STEPS: Final[Mapping[str, str]] = {
    "pages.settle": "to have its revisits compared with what they refer to",
    "pages.offer": "to have its captures offered to revisits that refer to them",
    "waiting.wake": "to have the revisits that refer to it compared again",
    "pages.capture": "to be parsed",
    "pages.resolve": "to find where it leads",
    "aliases.changed": "to tell the pages that point to it",
    "blocks.changed": "to have it found what its host repeats",
    "pages.join": "to join a cluster",
    "pages.links": "to have its links inverted",
    "inlinks.changed": "to have its in-links counted",
    "inlinks.added": "to have changes of its in-links added up",
    "sitemaps.capture": "to have the URLs entered that it lists",
    "sitemaps.more": "to have more of the URLs entered that it lists",
    "listed.changed": "to have it seen which sitemaps list it",
    "clusters.changed": "to have its document assembled",
    "pages.share": "to be added to the summary of its cluster",
    "summaries.due": "to have its summary computed",
    "removals.erase": "to have what was loaded of it erased, as it was removed",
    "outbox.ready": "to be exported to search",
    "journal.trim": "to have its old entries removed",
    "resources.capture": "to have it entered what it asks for",
    "uses.changed": "to have it found which pages use it",
    "uses.spread": "to have the pages rendered again that use it",
    "bodies.released": "to be removed if nothing has it any more",
    "renders.due": "to be rendered, by 'webindex work --render'",
}
"""What a dirty column waits for, in the order of the chain. Other columns are shown by name."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A dead-lettered change of the page, and the observer that failed on it."""

    observer: str
    attempts: int
    at_ms: int
    error: str
    traceback: str


def unparsed(repo: Repository, row: str) -> bool:
    """Whether the newest capture of a page waits to be parsed."""
    return inspection.is_dirty(repo, tables.capture, row)


def waiting(repo: Repository, now: Snapshot, row: str, cluster: str | None) -> Iterator[str]:
    """Pending work for a page and for its cluster, as sentences."""
    for table, key in _rows(row, cluster):
        for column in table.members:
            if isinstance(column, Column) and not column.observed:
                continue
            if not isinstance(column, Family) and inspection.is_dirty(repo, column, key):
                whose = "Its cluster" if key == cluster else "The page"
                step = STEPS.get(repr(column), f"for the observer of {column!r}")
                yield f"{whose} waits {step}."
    if cluster is not None and any(
        True for window in _windows(repo) for _ in tables.exports.entries(now, window, cluster)
    ):
        yield f"Its cluster waits {STEPS['outbox.ready']}."


def troubles(repo: Repository, row: str, cluster: str | None) -> Iterator[Trouble]:
    """The dead-lettered changes of a page and of its cluster."""
    found = [inspection.failures(repo, table=table, row=key) for table, key in _rows(row, cluster)]
    for one in itertools.chain(*found, inspection.failures(repo, table=tables.outbox)):
        yield Trouble(one.observer, one.attempts, one.at_ms, one.error, one.traceback)


def _windows(repo: Repository) -> set[str]:
    """Windows of the outbox that may have entries: those notified or dead-lettered."""
    due = {one.cell.row for one in inspection.notifications(repo, table=tables.outbox)}
    due |= {one.cell.row for one in inspection.failures(repo, table=tables.outbox)}
    return {tables.outbox.decode_row(row) for row in due}


def _rows(row: str, cluster: str | None) -> Iterator[tuple[Table[str], str]]:
    """The rows whose notifications and failures concern the page."""
    yield tables.pages, row
    yield tables.aliases, row
    yield tables.inlinks, row
    yield tables.sitemaps, row
    yield tables.listed, row
    if (url := url_of_row(row)) is not None:
        yield tables.blocks, block_row(url)
    if cluster is not None:
        yield tables.clusters, cluster
        yield tables.summaries, cluster
