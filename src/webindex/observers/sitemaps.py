"""Which URLs the sitemaps and robots.txt of sites list: for the frontier, and not as links.

    sitemap ─▶ list_urls ─▶ listed.by:ID ─▶ (changed) ─▶ list_url ─▶ frontier
                  └▶ (more) ─┘

`list_urls` enters each URL in the row of that URL, in a cell of the sitemap's own, and keeps in the
sitemap's row what it has entered. So a newer capture changes the cells that differ, and a takedown
takes all of them back, and so does a newer capture of its URL that is no sitemap, as one that
finds it gone: of `parse` of that capture and the sitemap's loader, the second sees the first. A
sitemap has up to 50,000 URLs: a run changes about `STEP` of them, and notifies itself if there are
more.

`list_url` enters a URL that is listed and was never captured in the last level of the frontier.
It locks `pages.capture`: of it and the loader of the first capture, the second sees the first.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from percola import Snapshot, Transaction, observer
from webindex import tables
from webindex.load.removals import rules_for
from webindex.observers import frontier
from webindex.page.sitemaps import urls_in
from webindex.page.urls import page_id, page_row

__all__ = ["STEP", "list_url", "list_urls"]

STEP: Final = 2_000
"""URLs that one run of `list_urls` enters or takes back, and at most a 256th of the others."""


@observer(tables.sitemap, tables.sitemap_more)
def list_urls(t: Transaction, row: str) -> None:
    """Enter the URLs that a sitemap lists, and take back those that it does not list any more."""
    found = t.get(tables.sitemap, row)
    wanted: dict[str, dict[str, str | None]] = {}
    if found is not None:
        if rules_for(t, [found["url"]]).refuses(found["url"], found["date"]):
            t.notify(tables.erase_due, row)
            return
        page = t.get(tables.capture, row)
        if page is None or page["date"] <= found["date"]:
            stored = t.get(tables.sitemap_body, row)
            body = zlib.decompress(stored) if stored else b""
            for url, modified in urls_in(found["kind"], found["url"], body).items():
                wanted.setdefault(page_id(url)[:2], {})[url] = modified
    entered = t.get_row(tables.sitemaps, row, [tables.sitemap_entered]).family(
        tables.sitemap_entered
    )
    changed = 0
    for part in sorted(entered.keys() | wanted.keys()):
        if changed >= STEP:
            t.notify(tables.sitemap_more, row)
            return
        before = entered[part]["urls"] if part in entered else {}
        after = wanted.get(part, {})
        if before == after:
            continue
        sitemap = found["url"] if found is not None else entered[part]["sitemap"]
        changed += _enter(t, sitemap, before, after)
        value = {"sitemap": sitemap, "urls": after} if after else None
        tables.set_or_delete(t, tables.sitemap_entered[part], row, value)


def _enter(
    t: Transaction, sitemap: str, before: dict[str, str | None], after: dict[str, str | None]
) -> int:
    """Make the URLs of a part those that are listed now; return how many differ."""
    mine = tables.listed_by[page_id(sitemap)]
    differ = [
        url
        for url in dict.fromkeys([*before, *after])
        if url not in before or url not in after or before[url] != after[url]
    ]
    for url in differ:
        if url in after:
            value = {"url": url, "sitemap": sitemap, "modified": after[url]}
            t.set(mine, page_row(url), value)
        else:
            t.delete(mine, page_row(url))
        t.notify(tables.listed_changed, page_row(url))
    return len(differ)


def _read_ahead(t: Snapshot, rows: Sequence[str]) -> None:
    """Prefetch what `list_url` reads of these URLs."""
    t.get_many((tables.capture, row) for row in rows)
    t.get_many((tables.uncaptured, frontier.listed_row(row)) for row in rows)


@observer(tables.listed_changed, batch=tables.BATCH, ahead=_read_ahead)
def list_url(t: Transaction, row: str) -> None:
    """Enter a URL that is listed in the frontier, or take it from there."""
    listed = t.get_row(tables.listed, row, [tables.listed_by]).family(tables.listed_by)
    entry = frontier.listed_row(row)
    before = t.get(tables.uncaptured, entry)
    captured = t.get_for_update(tables.capture, row) is not None
    after = None if captured else next((one["url"] for one in listed.values()), None)
    if before != after:
        tables.set_or_delete(t, tables.uncaptured, entry, after)
