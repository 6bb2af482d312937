"""§2.4, §3.1: the chain of observers that keeps the index.

    load ─▶ capture ─▶ parse ─┬▶ fingerprint ─▶ join ──────┐
                              └▶ links ─▶ invert           ├▶ (changed) ─▶ assemble ─┐
                                            └▶ (changed) ─▶ forward                  │
                                                    (ready) ─▶ export ─▶ search ◀────┘

Arrows in parentheses are weak notifications: many pages may change one target or one cluster at
once without a conflict, and one run answers them all. Each observer writes only what differs
from what is there, so a chain ends where nothing changes: a page that was crawled again with the
same text causes no work below `parse`.

Why `forward` is an observer of its own: `invert` could look up the target's cluster itself, but
in its snapshot the target may not have joined one yet, while whoever lets it join may not see
the new in-link yet. Notified at the commit of `invert`, `forward` runs in a later snapshot, and
whichever of the two comes last sees both.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from percola import Observer, Transaction, observer
from webindex import tables
from webindex.pages import parse as parse_page
from webindex.serving.base import ServingDocument, ServingIndex
from webindex.urls import host, page_id, page_row

MAX_ANCHORS: Final = 50
"""Distinct anchor texts that a document keeps, the most frequent ones."""

EXPORT_BATCH: Final = 500
"""Documents that one run of `export` writes to the search index."""


@observer(tables.capture)
def parse(t: Transaction, row: str) -> None:
    """Parse a new capture: text, links and what the page is known by."""
    found = t.get(tables.capture, row)
    if found is None:
        return
    if not 200 <= found["status"] < 300:
        _withdraw(t, row)
        return
    compressed = t.get(tables.body, row)
    body = zlib.decompress(compressed) if compressed else b""
    page = parse_page(body, found["url"], found["content_type"], found["robots"])
    before = t.get(tables.fingerprint, row)
    known = {
        "url": page.url,
        "hash": page.text_hash,
        "title": page.title,
        "language": page.language,
        "indexable": not page.noindex,
    }
    # Short pages are known by their bytes, which another charset turns into another text.
    if (
        before is None
        or {**before, "loaded_ms": 0} != {**known, "loaded_ms": 0}
        or t.get(tables.text, row) != page.text
    ):
        t.set(tables.fingerprint, row, {**known, "loaded_ms": found["loaded_ms"]})
        t.set(tables.text, row, page.text)
    links = [[one.url, list(one.anchors), one.rel] for one in page.links]
    if links != (t.get(tables.links, row) or []):
        t.set(tables.links, row, links)


def _withdraw(t: Transaction, row: str) -> None:
    """The page is gone, or has become a redirect: it leaves its cluster, its links are undone."""
    for column in (tables.fingerprint, tables.text, tables.links):
        if t.get(column, row) is not None:
            t.delete(column, row)


@observer(tables.links)
def invert(t: Transaction, row: str) -> None:
    """Bring the targets' in-links to what the page's links are now."""
    wanted = {url: (anchors, rel) for url, anchors, rel in t.get(tables.links, row) or []}
    standing = {url: (anchors, rel) for url, anchors, rel in t.get(tables.inverted, row) or []}
    if wanted == standing:
        return
    found = t.get(tables.capture, row)
    if found is None:
        return
    me = tables.source[page_id(found["url"])]
    for url in standing.keys() - wanted.keys():
        target = page_row(url)
        t.delete(me, target)
        t.notify(tables.inlinks_changed, target)
    for url, (anchors, rel) in wanted.items():
        if standing.get(url) != (anchors, rel):
            target = page_row(url)
            t.set(me, target, {"url": found["url"], "anchors": anchors, "rel": rel})
            t.notify(tables.inlinks_changed, target)
    t.set(tables.inverted, row, [[url, *link] for url, link in wanted.items()])


@observer(tables.fingerprint)
def join(t: Transaction, row: str) -> None:
    """Let the page be a member of the cluster of its text, and of no other."""
    known = t.get(tables.fingerprint, row)
    before = t.get(tables.cluster, row)
    after = known["hash"] if known else None
    if before is not None and before != after:
        found = t.get(tables.capture, row)
        if found is not None:
            t.delete(tables.member[page_id(found["url"])], before)
        t.notify(tables.cluster_changed, before)
    if known is None or after is None:
        if before is not None:
            t.delete(tables.cluster, row)
        return
    shown = {name: value for name, value in known.items() if name != "hash"}
    t.set(tables.member[page_id(known["url"])], after, shown)
    t.notify(tables.cluster_changed, after)
    if before != after:
        t.set(tables.cluster, row, after)


@observer(tables.inlinks_changed)
def forward(t: Transaction, row: str) -> None:
    """Tell the cluster of a page that the page's in-links have changed."""
    cluster = t.get(tables.cluster, row)
    if cluster is not None:
        t.notify(tables.cluster_changed, cluster)


@observer(tables.cluster_changed)
def assemble(t: Transaction, cluster: str) -> None:
    """Make the cluster's serving document, and hand it to the exporter if it has changed."""
    # For update, also where nothing is to be written: a slower run that read an older snapshot,
    # in which something had changed, must not put that back.
    before = t.get_for_update(tables.document, cluster)
    members = t.get_row(tables.clusters, cluster, [tables.member]).family(tables.member)
    after = assemble_document(t, members)
    if after is None:
        if before is None:
            return
        t.delete(tables.document, cluster)
        fresh = []
    else:
        seen = {name: one["loaded_ms"] for name, one in members.items()}
        known = before["seen"] if before is not None else {}
        if before is not None and {**before, "seen": None, "epoch": 0} == {
            **after,
            "seen": None,
            "epoch": 0,
        }:
            if seen != known:
                t.set(tables.document, cluster, {**before, "seen": seen})
            return
        fresh = [loaded for name, loaded in seen.items() if known.get(name) != loaded]
        t.set(tables.document, cluster, {**after, "seen": seen, "epoch": t.start_ts})
    t.set(tables.entry, f"{cluster}/{t.start_ts:020}", {"loaded_ms": fresh})
    t.notify(tables.outbox_ready, tables.OUTBOX_ROW)


def assemble_document(t: Transaction, members: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the search index should show of a cluster with these members; None for nothing."""
    canonical = elect(members)
    if canonical is None:
        return None
    url = canonical["url"]
    anchors: Counter[str] = Counter()
    sources: set[str] = set()
    for one in members.values():
        linking = t.get_row(tables.inlinks, page_row(one["url"]), [tables.source])
        for name, link in linking.family(tables.source).items():
            # Links inside the cluster are the page's own: they recommend nothing.
            if link["rel"] == "follow" and name not in members:
                sources.add(name)
                anchors.update(link["anchors"])
    common = sorted(anchors.items(), key=lambda anchor: (-anchor[1], anchor[0]))
    return {
        "url": url,
        "title": canonical["title"],
        "text": t.get(tables.text, page_row(url)) or "",
        "language": canonical["language"],
        "anchors": [list(anchor) for anchor in common[:MAX_ANCHORS]],
        "duplicates": sorted(one["url"] for one in members.values() if one["url"] != url),
        "inlinks": len(sources),
    }


def elect(members: Mapping[str, Any]) -> dict[str, Any] | None:
    """The canonical page: of those that may be indexed, https first, the shorter, the first."""
    candidates = [one for one in members.values() if one["indexable"]]
    return min(candidates, key=election_order, default=None)


def election_order(one: Mapping[str, Any]) -> tuple[bool, int, str]:
    """Members sort by this: the canonical page comes first."""
    url = one["url"]
    return not url.startswith("https:"), len(url), url


def export_to(index: ServingIndex) -> Observer[str]:
    """The last observer of the chain, for one search index.

    It empties the outbox in batches: one durable write of the search index for all documents
    that have changed since the last one. Writing the index is no part of the transaction, but
    it is idempotent by cluster and epoch: a crash in between only makes it happen again.
    """

    @observer(tables.outbox_ready, name="export")
    def export(t: Transaction, row: str) -> None:
        puts: dict[str, ServingDocument] = {}
        deletes: dict[str, int] = {}
        loaded: list[int] = []
        taken = 0
        for waiting in t.scan(tables.outbox, columns=[tables.entry]):
            if taken >= EXPORT_BATCH:
                t.notify(tables.outbox_ready, row)
                break
            taken += 1
            cluster, _, epoch = waiting.key.rpartition("/")
            loaded += waiting[tables.entry]["loaded_ms"]
            t.delete(tables.entry, waiting.key)
            shown = t.get(tables.document, cluster)
            if shown is None:
                deletes[cluster] = max(deletes.get(cluster, 0), int(epoch))
            else:
                puts[cluster] = serving_document(cluster, shown)
        if not taken:
            return
        index.apply(list(puts.values()), list(deletes.items()))
        now = time.time_ns() // 1_000_000
        if loaded:
            t.set(
                tables.report,
                f"export/{t.start_ts:020}",
                {"at_ms": now, "latency_ms": [now - one for one in loaded]},
            )

    return export


def serving_document(cluster: str, shown: Mapping[str, Any]) -> ServingDocument:
    """The document as the search index takes it."""
    return ServingDocument(
        cluster=cluster,
        epoch=shown["epoch"],
        url=shown["url"],
        title=shown["title"],
        text=shown["text"],
        language=shown["language"],
        host=host(shown["url"]),
        anchors=tuple((words, count) for words, count in shown["anchors"]),
        duplicates=tuple(shown["duplicates"]),
        inlinks=shown["inlinks"],
    )
