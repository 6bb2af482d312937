"""§2.4, §3.1: the chain of observers that keeps the index.

    load ─▶ capture ─▶ parse ─┬▶ (join) ─────────────────────────┐
                              ├▶ (resolve) ⇄ (aliases changed) ──┤
                              └▶ links ─▶ invert                 ├▶ (changed) ─▶ assemble ─┐
                                            └▶ (changed) ─▶ count ┘                        │
                                                         search ◀── export ◀── (ready) ────┘

Arrows in parentheses are weak notifications: many pages may change one target or one cluster at
once without a conflict, and one run handles them all. Each observer writes only cells whose value
changes, so a chain ends where nothing changes: a page that was crawled again with the same text
causes no work after `parse`.

This module parses pages and inverts the links between them. `webindex.load.settling` resolves
revisits, pages for which a crawler recorded only that they are like another capture.
`webindex.observers.redirects` resolves redirects and canonical pages,
`webindex.observers.clustering` finds the pages that are one document,
`webindex.observers.documents` assembles it, and `webindex.observers.export` writes it to the search
index.

Why `count` is a separate observer: ten thousand pages may link to one, and each of them
writes its own cell there, concurrently. One run then counts all of them, however many have
changed; a document needs only the result. Links to a page that is neither live nor a redirect
are not counted before it becomes one: most links of a crawl that has just started lead to such
pages.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

from percola import Snapshot, Transaction, observer
from webindex import tables
from webindex.load.revisits import is_synthetic
from webindex.load.settling import offer_captures, read_ahead
from webindex.observers.documents import tell
from webindex.observers.redirects import is_counted, point
from webindex.page.pages import parse_capture
from webindex.page.pointers import is_live, pointer_of_capture
from webindex.page.urls import page_id, page_row

__all__ = ["COUNT_SECONDS", "count", "invert", "parse"]

COUNT_SECONDS: Final = 300.0
"""While pages wait to be parsed, links are counted at most this often: a bulk load changes those
of a popular page thousands of times, each count reads them all, and each new result assembles and
exports a document. At 28,000 pages one round costs twenty seconds of two cores."""


@observer(tables.capture, batch=tables.BATCH, ahead=read_ahead)
def parse(t: Transaction, row: str) -> None:
    """Parse a new capture: text, links, and the keys by which the page is compared."""
    found = t.get(tables.capture, row)
    if found is None:
        return
    # Of several captures loaded before this run, only the newest is stored there.
    earlier = t.get(tables.earlier, row) or {}
    offer_captures(t, [one for one in (found, *earlier.values()) if not is_synthetic(one)])
    page = None
    if 200 <= found["status"] < 300:
        compressed = t.get(tables.body, row)
        body = zlib.decompress(compressed) if compressed else b""
        page = parse_capture(found, body)
    live = is_live(found, page)
    before = t.get(tables.fingerprint, row)
    pointer, was_live = pointer_of_capture(found, page), before is not None
    point(t, row, found["url"], pointer, was_live=was_live, live=live)
    if page is None or not live:
        if was_live:
            _withdraw(t, row)
        return
    known = {
        "url": page.url,
        "hash": page.text_hash,
        "heading": page.heading,
        "title": page.title,
        "language": page.language,
        "indexable": not page.noindex,
    }
    # Short pages are compared by their bytes, which another charset decodes to another text.
    if (
        before is None
        or {**before, "loaded_ms": 0} != {**known, "loaded_ms": 0}
        or t.get(tables.text, row) != page.text
    ):
        t.set(tables.fingerprint, row, {**known, "loaded_ms": found["loaded_ms"]})
        t.set(tables.text, row, page.text)
        if page.sketch is not None:
            t.set(tables.sketch, row, page.sketch.pack())
        elif before is not None and before["heading"] is not None:
            t.delete(tables.sketch, row)
        t.notify(tables.join_due, row)
    links = [[one.url, list(one.anchors), one.rel] for one in page.links]
    if links != (t.get(tables.links, row) or []):
        if links:
            t.set(tables.links, row, links)
        else:
            t.delete(tables.links, row)


def _withdraw(t: Transaction, row: str) -> None:
    """Withdraw a page that is gone or redirects: remove it from its cluster, and its links."""
    t.notify(tables.join_due, row)
    for column in (tables.fingerprint, tables.text, tables.sketch, tables.links, tables.rank):
        if t.get(column, row) is not None:
            t.delete(column, row)


@observer(tables.links, batch=tables.BATCH)
def invert(t: Transaction, row: str) -> None:
    """Update the targets' in-links to match the page's current links."""
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
    if wanted:
        t.set(tables.inverted, row, [[url, *link] for url, link in wanted.items()])
    else:
        t.delete(tables.inverted, row)


def _read_ahead(t: Snapshot, rows: Sequence[str]) -> None:
    """Prefetch what `count` reads for these pages; their in-links are prefetched automatically."""
    own = (tables.fingerprint, tables.pointer, tables.tally)
    t.get_many((column, row) for row in rows for column in own)
    counted = [row for row in rows if is_counted(t, row)]
    t.get_many((column, row) for row in counted for column in (tables.joined, tables.resolved))
    ends = [t.get(tables.resolved, row) for row in counted if t.get(tables.joined, row) is None]
    t.get_many((tables.joined, page_row(end["url"])) for end in ends if end is not None)


@observer(tables.inlinks_changed, batch=tables.BATCH, defer=COUNT_SECONDS, ahead=_read_ahead)
def count(t: Transaction, row: str) -> None:
    """Count the links that vouch for a page, and their anchor texts."""
    links = 0
    anchors: Counter[str] = Counter()
    if is_counted(t, row):
        linking = t.get_row(tables.inlinks, row, [tables.source])
        for link in linking.family(tables.source).values():
            if link["rel"] == "follow":
                links += 1
                anchors.update(link["anchors"])
    before = t.get(tables.tally, row)
    after = {"links": links, "anchors": dict(sorted(anchors.items()))} if links else None
    if before == after:
        return
    if after is None:
        t.delete(tables.tally, row)
    else:
        t.set(tables.tally, row, after)
    tell(t, row)
