"""§3.1: the document of a cluster: shown under its canonical page, with all links to it.

A document is assembled from cells of several rows: the cluster's members, and of each member the
text, the rank, the redirects that lead to it, and the tallies of the links to all of these. A
transaction that changes one of them notifies the cluster (`clusters.changed`, a weak notification:
one run handles a hundred changes). To find the cluster, `tell` reads the page's membership, and
locks it: if the page were moved to another cluster concurrently, that cluster's run might have read
the cell before it was changed, and the change would be missed.

A cluster with more than `LARGE_CLUSTER` members is not read whole for each change: see
`webindex.observers.summaries`, which is notified of a member instead. Its document is made from the
same values by the same function, `show`. A document names at most `MOST_URLS` duplicates, and as
many redirects: those whose ids come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from percola import Column, Row, Snapshot, Transaction, observer
from webindex import tables
from webindex.observers.election import elect
from webindex.page.outer_blocks import kept
from webindex.page.urls import block_row, page_id, page_row

__all__ = [
    "MAX_ANCHORS",
    "announce",
    "assemble",
    "part_of",
    "put_document",
    "share_all",
    "show",
    "tell",
]

MAX_ANCHORS: Final = 50
"""Distinct anchor texts that a document keeps, the most frequent ones."""

_UNTIMED: Final = {"seen": None, "epoch": 0}
"""The fields of a document that a reader does not see."""

_FEW: Final = 50
"""What of a cluster of more members is not read together with what other clusters need."""


def tell(t: Transaction, row: str) -> bool:
    """Notify a page's cluster that its document must be reassembled, because the page has changed.

    For a redirect, this is the cluster of the page that it leads to. Returns whether it is large.
    """
    joined = t.get_for_update(tables.joined, row)
    if joined is None:
        resolved = t.get_for_update(tables.resolved, row)
        if resolved is None or resolved["kind"] != "redirect":
            return False
        row = page_row(resolved["url"])
        joined = t.get_for_update(tables.joined, row)
    return joined is not None and announce(t, joined["cluster"], row)


def announce(t: Transaction, cluster: str, row: str) -> bool:
    """Notify a cluster, or if it is large the page of this row, that the page has changed.

    Returns whether it is large.
    """
    large = t.get(tables.size, cluster) is not None
    if large:
        t.notify(tables.share_due, row)
    else:
        t.notify(tables.cluster_changed, cluster)
    return large


def share_all(t: Transaction, members: Mapping[str, Any]) -> None:
    """Have all members of a cluster share."""
    for one in members.values():
        t.notify(tables.share_due, page_row(one["url"]))


def _read_ahead(t: Snapshot, clusters: Sequence[str]) -> None:
    """Prefetch what `assemble` reads for these clusters, in batches."""
    t.get_many(
        (column, cluster) for cluster in clusters for column in (tables.document, tables.size)
    )
    small = [cluster for cluster in clusters if t.get(tables.size, cluster) is None]
    found = t.get_rows(tables.clusters, small, [tables.member])
    families = [one.family(tables.member) for one in found]
    few = [members for members in families if len(members) <= _FEW]
    urls = [one["url"] for members in few for one in members.values()]
    rows = [page_row(url) for url in urls]
    t.get_many((column, row) for row in rows for column in (tables.rank, tables.tally))
    leading = dict(zip(urls, t.get_rows(tables.aliases, rows, [tables.leads_here]), strict=True))
    cells: list[tuple[Column[str, Any], str]] = []
    for members in few:
        own = {one["url"] for one in members.values()}
        redirects = redirects_to(leading[url] for url in own)
        cells += [(tables.tally, page_row(url)) for url in redirects]
        if len(own | redirects) > 1:
            cells += [(tables.inverted, page_row(url)) for url in own]
        canonical = elect(members, _ranks(t, members))
        if canonical is not None:
            row = page_row(canonical["url"])
            there = block_row(canonical["url"])
            cells += [(tables.text, row), (tables.outline, row)]
            cells += [(tables.outer, there), (tables.repeated, there)]
    t.get_many(cells)


@observer(tables.cluster_changed, batch=tables.BATCH, ahead=_read_ahead)
def assemble(t: Transaction, cluster: str) -> None:
    """Assemble the cluster's serving document, and enter it in the outbox if it has changed."""
    # For update, even where nothing is written: a slower run that read an older snapshot must not
    # restore an outdated document.
    before = t.get_for_update(tables.document, cluster)
    members = t.get_row(tables.clusters, cluster, [tables.member]).family(tables.member)
    if t.get(tables.size, cluster) is not None:
        share_all(t, members)
        return
    if len(members) > tables.LARGE_CLUSTER:
        t.set(tables.size, cluster, len(members))
        totals = t.get(tables.totals, cluster) or tables.NOTHING
        t.set(tables.totals, cluster, {**totals, "until": len(members)})
        for page, one in members.items():
            if one["target"] is not None:
                # A rebuild, or an earlier version, has not written it.
                t.set(tables.named_by[page], page_row(one["target"]), 1)
        share_all(t, members)
    seen = {page: one["loaded_ms"] for page, one in members.items()}
    known = before["seen"] if before is not None else {}
    # While it was large it had none.
    fresh = [
        loaded
        for page, loaded in seen.items()
        if known.get(page) != loaded and (known or before is None)
    ]
    put_document(t, cluster, before, assemble_document(t, members), seen, fresh)


def put_document(
    t: Transaction,
    cluster: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    seen: Mapping[str, int],
    fresh: Iterable[int],
) -> None:
    """Write the document of a cluster, and enter it in the outbox if it has changed.

    Args:
        before: what it is; the caller has locked it.
        after: what it must be, without `seen` and `epoch`.
        seen: when the captures of its members were loaded, by page id.
        fresh: those of them that are new.
    """
    if after is None:
        if before is None:
            return
        t.delete(tables.document, cluster)
        fresh = []
    elif before is not None and {**before, **_UNTIMED} == {**after, **_UNTIMED}:
        if seen != before["seen"]:
            t.set(tables.document, cluster, {**before, "seen": seen})
        return
    else:
        t.set(tables.document, cluster, {**after, "seen": seen, "epoch": t.start_ts})
    tables.exports.enter(t, cluster, fresh)


def assemble_document(t: Transaction, members: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document to show for a cluster with these members; None if there is nothing to show."""
    rows = {page: page_row(one["url"]) for page, one in members.items()}
    ranks = _ranks(t, members)
    canonical = elect(members, ranks)
    if canonical is None:
        return None
    redirects = redirects_to(t.get_rows(tables.aliases, rows.values(), [tables.leads_here]))
    links, anchors = _links_to(t, rows, {one["url"] for one in members.values()} | redirects)
    return show(
        t,
        canonical,
        rank=ranks.get(page_id(canonical["url"]), 0.0),
        links=links,
        anchors=anchors,
        members=[members[page]["url"] for page in sorted(members)[: tables.MOST_URLS + 1]],
        redirects=sorted(redirects, key=page_id)[: tables.MOST_URLS],
        more=len(members) + len(redirects),
    )


def show(
    t: Transaction,
    canonical: Mapping[str, Any],
    *,
    rank: float,
    links: int,
    anchors: Mapping[str, int],
    members: Iterable[str],
    redirects: Iterable[str],
    more: int,
) -> dict[str, Any]:
    """The document of a cluster.

    Args:
        t: reads the text, its blocks and the outline of the canonical page.
        canonical: that page: its `url`, `title`, `language` and `changed`.
        rank: its rank.
        links, anchors: the sums over all members and redirects.
        members: the first URLs of members by their ids, one more than `MOST_URLS`.
        redirects: the first `MOST_URLS` URLs of redirects by their ids.
        more: how many members and redirects there are.
    """
    url = canonical["url"]
    outline = t.get(tables.outline, page_row(url)) or {}
    common = sorted(
        ((text, number) for text, number in anchors.items() if number > 0),
        key=lambda anchor: (-anchor[1], anchor[0]),
    )
    duplicates = sorted([one for one in members if one != url][: tables.MOST_URLS])
    aliases = sorted(redirects)
    more -= 1 + len(duplicates) + len(aliases)
    return {
        "url": url,
        "title": canonical["title"],
        "text": (t.get(tables.text, page_row(url)) or "")[part_of(t, url)],
        "headings": outline.get("headings", []),
        "linked": outline.get("linked", 0.0),
        "changed": canonical.get("changed", ""),
        "language": canonical["language"],
        "anchors": [list(anchor) for anchor in common[:MAX_ANCHORS]],
        "duplicates": duplicates,
        "aliases": aliases,
        **({"more": more} if more else {}),
        "inlinks": max(0, links),
        "rank": rank,
    }


def part_of(t: Snapshot, url: str) -> slice:
    """The part of a live page's text that search shows: without what its host repeats."""
    row = block_row(url)
    return kept(t.get(tables.outer, row), t.get(tables.repeated, row))


def _ranks(t: Snapshot, members: Mapping[str, Any]) -> dict[str, float]:
    """The ranks of those members that have one."""
    found = t.get_many((tables.rank, page_row(one["url"])) for one in members.values())
    return {page: rank["value"] for page, rank in zip(members, found, strict=True) if rank}


def redirects_to(aliases: Iterable[Row[str]]) -> set[str]:
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
    for tally in t.get_many((tables.tally, page_row(url)) for url in inside):
        if tally is not None:
            links += tally["links"]
            anchors.update(tally["anchors"])
    if len(inside) > 1:
        # Links inside the cluster are the page's own: they recommend nothing. Some may not have
        # been counted yet; once they are, the document is reassembled.
        for standing in t.get_many((tables.inverted, row) for row in rows.values()):
            for url, words, rel in standing or []:
                if rel == "follow" and url in inside:
                    links -= 1
                    anchors.subtract(words)
    return links, anchors
