"""§3.1: the document of a cluster: shown under its canonical page, with all links to it.

A document is assembled from cells of several rows: the cluster's members, and of each member the
text, the rank, the redirects that lead to it, and the tallies of the links to all of these. A
transaction that changes one of them notifies the cluster (`clusters.changed`, a weak notification:
one run handles a hundred changes). To find the cluster, `tell` reads the page's membership, and
locks it: if the page were moved to another cluster concurrently, that cluster's run might have read
the cell before it was changed, and the change would be missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from percola import Column, Row, Snapshot, Transaction, observer
from webindex import tables
from webindex.observers.election import elect
from webindex.page.urls import page_id, page_row

__all__ = ["MAX_ANCHORS", "assemble", "tell"]

MAX_ANCHORS: Final = 50
"""Distinct anchor texts that a document keeps, the most frequent ones."""

_UNTIMED: Final = {"seen": None, "epoch": 0}
"""The fields of a document that a reader does not see."""

_FEW: Final = 50
"""What of a cluster of more members is not read together with what other clusters need."""


def tell(t: Transaction, row: str) -> None:
    """Notify a page's cluster that its document must be reassembled, because the page has changed.

    For a redirect, this is the cluster of the page that it leads to.
    """
    joined = t.get_for_update(tables.joined, row)
    if joined is None:
        resolved = t.get_for_update(tables.resolved, row)
        if resolved is None or resolved["kind"] != "redirect":
            return
        joined = t.get_for_update(tables.joined, page_row(resolved["url"]))
    if joined is not None:
        t.notify(tables.cluster_changed, joined["cluster"])


def _read_ahead(t: Snapshot, clusters: Sequence[str]) -> None:
    """Prefetch what `assemble` reads for these clusters, in batches."""
    t.get_many((tables.document, cluster) for cluster in clusters)
    found = t.get_rows(tables.clusters, clusters, [tables.member])
    families = [one.family(tables.member) for one in found]
    few = [members for members in families if len(members) <= _FEW]
    urls = [one["url"] for members in few for one in members.values()]
    rows = [page_row(url) for url in urls]
    t.get_many((column, row) for row in rows for column in (tables.rank, tables.tally))
    leading = dict(zip(urls, t.get_rows(tables.aliases, rows, [tables.leads_here]), strict=True))
    cells: list[tuple[Column[str, Any], str]] = []
    for members in few:
        own = {one["url"] for one in members.values()}
        redirects = _redirects(leading[url] for url in own)
        cells += [(tables.tally, page_row(url)) for url in redirects]
        if len(own | redirects) > 1:
            cells += [(tables.inverted, page_row(url)) for url in own]
        canonical = elect(members, _ranks(t, members))
        if canonical is not None:
            row = page_row(canonical["url"])
            cells += [(tables.text, row), (tables.outline, row)]
    t.get_many(cells)


@observer(tables.cluster_changed, batch=tables.BATCH, ahead=_read_ahead)
def assemble(t: Transaction, cluster: str) -> None:
    """Assemble the cluster's serving document, and enter it in the outbox if it has changed."""
    # For update, even where nothing is written: a slower run that read an older snapshot must not
    # restore an outdated document.
    before = t.get_for_update(tables.document, cluster)
    members = t.get_row(tables.clusters, cluster, [tables.member]).family(tables.member)
    after = assemble_document(t, members)
    if after is None:
        if before is None:
            return
        t.delete(tables.document, cluster)
        fresh = []
    else:
        seen = {page: one["loaded_ms"] for page, one in members.items()}
        known = before["seen"] if before is not None else {}
        if before is not None and {**before, **_UNTIMED} == {**after, **_UNTIMED}:
            if seen != known:
                t.set(tables.document, cluster, {**before, "seen": seen})
            return
        fresh = [loaded for page, loaded in seen.items() if known.get(page) != loaded]
        t.set(tables.document, cluster, {**after, "seen": seen, "epoch": t.start_ts})
    tables.exports.enter(t, cluster, fresh)


def assemble_document(t: Transaction, members: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document to show for a cluster with these members; None if there is nothing to show."""
    rows = {page: page_row(one["url"]) for page, one in members.items()}
    ranks = _ranks(t, members)
    canonical = elect(members, ranks)
    if canonical is None:
        return None
    url = canonical["url"]
    redirects = _redirects(t.get_rows(tables.aliases, rows.values(), [tables.leads_here]))
    outline = t.get(tables.outline, page_row(url)) or {}
    links, anchors = _links_to(t, rows, {one["url"] for one in members.values()} | redirects)
    common = sorted(anchors.items(), key=lambda anchor: (-anchor[1], anchor[0]))
    return {
        "url": url,
        "title": canonical["title"],
        "text": t.get(tables.text, page_row(url)) or "",
        "headings": outline.get("headings", []),
        "linked": outline.get("linked", 0.0),
        "changed": canonical.get("changed", ""),
        "language": canonical["language"],
        "anchors": [list(anchor) for anchor in common[:MAX_ANCHORS]],
        "duplicates": sorted(one["url"] for one in members.values() if one["url"] != url),
        "aliases": sorted(redirects),
        "inlinks": links,
        "rank": ranks.get(page_id(url), 0.0),
    }


def _ranks(t: Snapshot, members: Mapping[str, Any]) -> dict[str, float]:
    """The ranks of those members that have one."""
    found = t.get_many((tables.rank, page_row(one["url"])) for one in members.values())
    return {page: rank["value"] for page, rank in zip(members, found, strict=True) if rank}


def _redirects(aliases: Iterable[Row[str]]) -> set[str]:
    """The URLs that redirect to the pages whose `aliases` rows are given."""
    return {
        one["url"]
        for row in aliases
        for one in row.family(tables.leads_here).values()
        if one["kind"] == "redirect"
    }


def _links_to(
    t: Transaction, rows: Mapping[str, str], inside: set[str]
) -> tuple[int, Counter[str]]:
    """Count links from outside a cluster to any URL of it, and the anchors in their tallies."""
    links = 0
    anchors: Counter[str] = Counter()
    tallies = {}
    for url, tally in zip(
        inside, t.get_many((tables.tally, page_row(url)) for url in inside), strict=True
    ):
        if tally is not None:
            tallies[url] = tally["anchors"]
            links += tally["links"]
            anchors.update(tally["anchors"])
    if len(inside) > 1:
        # Links inside the cluster are the page's own: they recommend nothing. Some may not have
        # been counted yet; once they are, the document is reassembled.
        for standing in t.get_many((tables.inverted, row) for row in rows.values()):
            for url, words, rel in standing or []:
                if rel == "follow" and url in inside:
                    links -= 1
                    counted = tallies.get(url, {})
                    anchors.subtract(text for text in words if text in counted)
    return max(0, links), +anchors
