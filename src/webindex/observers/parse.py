"""§2.4, §3.1: the chain of observers that keeps the index.

    load ─▶ capture ─▶ parse ─┬▶ (join) ─────────────────────────┐
                              ├▶ (resolve) ⇄ (aliases changed) ──┤
                              ├▶ (changed) ─▶ find_repeated ─────┤
                              └▶ links ─▶ invert                 ├▶ (changed) ─▶ assemble ─┐
                                            ├▶ (changed) ─▶ count ┤                        │
                                            └▶ (added) ─▶ add_links                        │
                                                         search ◀── export ◀── (ready) ────┘

Arrows in parentheses are weak notifications: many pages may change one target or one cluster at
once without a conflict, and one run handles them all. Each observer writes only cells whose value
changes, so a chain ends where nothing changes: a page that was crawled again with the same text
causes no work after `parse`.

This module parses pages. `webindex.load.settling` resolves revisits, pages for which a crawler
recorded only that they are like another capture. `webindex.observers.inlinks` inverts the links
between pages and counts them, `webindex.observers.redirects` resolves redirects and canonical
pages, `webindex.observers.repeated` finds what a host repeats around the texts of its pages,
`webindex.observers.clustering` finds the pages that are one document,
`webindex.observers.documents` assembles it, and `webindex.observers.export` writes it to the search
index.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from percola import Snapshot, Transaction, observer
from webindex import tables
from webindex.load.recrawls import plan
from webindex.load.removals import rules_for
from webindex.load.revisits import is_report_of, is_synthetic
from webindex.load.settling import offer_captures, read_ahead
from webindex.load.transaction import reports_in
from webindex.observers import frontier
from webindex.observers.interim import may_estimate
from webindex.observers.redirects import point
from webindex.observers.repeated import withdraw_blocks, write_blocks
from webindex.page.pages import parse_capture
from webindex.page.pointers import is_live, pointer_of_capture
from webindex.page.urls import block_row, page_row

__all__ = ["parse", "withdraw"]

_UNTIMED: Final = {"loaded_ms": 0, "changed": ""}
"""The fields of a fingerprint that are those of the capture that first had it."""

_OWN: Final = (
    tables.fingerprint,
    tables.text,
    tables.outline,
    tables.sketch,
    tables.links,
    tables.rank,
)
"""What a page has only while it is live."""


def _read_ahead(t: Snapshot, rows: Sequence[str]) -> None:
    """Prefetch what `parse` reads for these pages."""
    read_ahead(
        t,
        rows,
        [
            *((tables.rank_run, shard) for shard in {row[:2] for row in rows}),
            *((tables.uncaptured, frontier.listed_row(row)) for row in rows),
            *((tables.sitemap, row) for row in rows),
        ],
    )
    found = [one for row in rows if (one := t.get(tables.capture, row)) is not None]
    t.get_many((tables.outer, block_row(one["url"])) for one in found)


@observer(tables.capture, batch=tables.BATCH, ahead=_read_ahead)
def parse(t: Transaction, row: str) -> None:
    """Parse a new capture: text, links, and the keys by which the page is compared."""
    found = t.get(tables.capture, row)
    if found is None:
        return
    # Of several captures loaded before this run, only the newest is stored there.
    earlier = t.get(tables.earlier, row) or {}
    rules = rules_for(t, [found["url"]])
    if any(rules.refuses(found["url"], one["date"]) for one in (found, *earlier.values())):
        t.notify(tables.erase_due, row)
        if rules.refuses(found["url"], found["date"]):
            return
    offer_captures(t, [one for one in (found, *earlier.values()) if not is_synthetic(one)])
    if t.get(tables.sitemap, row) is not None:
        # What it lists counts no more if this is newer.
        t.notify(tables.sitemap_more, row)
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
            _withdraw(t, row, found["url"])
        plan(t, row)
        return
    known = {
        "url": page.url,
        "hash": page.text_hash,
        "heading": page.heading,
        "title": page.title,
        "language": page.language,
        "indexable": not page.noindex,
        # Only where they are there: fingerprints of earlier versions have none of these.
        **({"noarchive": True} if page.noarchive else {}),
        **({"nosnippet": True} if page.nosnippet else {}),
    }
    # Short pages are compared by their bytes, which another charset decodes to another text.
    if (
        before is None
        or {**before, **_UNTIMED} != {**known, **_UNTIMED}
        or t.get(tables.text, row) != page.text
        or t.get(tables.outline, row) != page.outline
    ):
        times = {"loaded_ms": found["loaded_ms"], "changed": _changed(t, row, found, before)}
        t.set(tables.fingerprint, row, {**known, **times})
        t.set(tables.text, row, page.text)
        t.set(tables.outline, row, page.outline)
        if page.sketch is not None:
            t.set(tables.sketch, row, page.sketch.pack())
        elif before is not None and before["heading"] is not None:
            t.delete(tables.sketch, row)
        t.notify(tables.join_due, row)
    write_blocks(t, page.url, page.outer_blocks)
    if before is None and may_estimate(t, row):
        _have_rank_estimated(t, row)
    links = [[one.url, list(one.anchors), one.rel] for one in page.links]
    if links != (t.get(tables.links, row) or []):
        tables.set_or_delete(t, tables.links, row, links)
    plan(t, row)


def _changed(
    t: Snapshot, row: str, found: Mapping[str, Any], before: Mapping[str, Any] | None
) -> str:
    """When the page came to be what this capture says."""
    date = str(found["date"])
    last = "" if before is None else before.get("changed", "")
    if last <= date:
        return date
    # It is back at an older capture: a revisit has reported that.
    _, reports = reports_in(t.get(tables.revisited, row))
    since = [str(one["date"]) for one in reports if is_report_of(one, found)]
    return min((one for one in since if one >= last), default=date)


def _have_rank_estimated(t: Transaction, row: str) -> None:
    """Have the links to a page that becomes live counted, and with them its interim rank.

    If it was live a moment ago, its links may not have been taken back yet, and never will be if
    they are the same: but it has lost its rank, of which it gave the pages that it links to.
    """
    t.notify(tables.inlinks_changed, row)
    for url, _, rel in t.get(tables.inverted, row) or ():
        if rel == "follow":
            t.notify(tables.inlinks_changed, page_row(url))


def withdraw(t: Transaction, row: str, url: str) -> None:
    """Change a page's own cells as a capture does that finds it gone."""
    was_live = t.get(tables.fingerprint, row) is not None
    point(t, row, url, None, was_live=was_live, live=False)
    if was_live:
        _withdraw(t, row, url)


def _withdraw(t: Transaction, row: str, url: str) -> None:
    """Withdraw a page that is gone or redirects: remove it from its cluster, and its links."""
    t.notify(tables.join_due, row)
    for column in _OWN:
        if t.get(column, row) is not None:
            t.delete(column, row)
    withdraw_blocks(t, url)
