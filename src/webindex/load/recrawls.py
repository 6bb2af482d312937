"""When pages are due for another crawl, kept as a list by rank and date.

    49/2025-03-01T00:00:00Z/3f0c…   url   https://example.com/: due then
    ── ──────────────────── ─────
    │  │                    the page's id
    │  when it is due
    the level of its PageRank, the highest first, two levels for each doubling; 99 without a rank

The pages of a level that are due now are the first rows of its range, so those of the highest
levels are found without a look at the others. Live pages and redirects have an entry, and each has
its row in `pages.recrawl`.

When a page is due follows from its own row: its captures, and the revisits that report it
unchanged (`webindex.page.changes`). `parse` writes the entry, a loader does if it adds to the
page's past without a new capture, and the rank job moves it to another level. The first two write
or lock `recrawl`, so they conflict; of the row the rank job changes only the level, which they do
not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from percola import Snapshot, Transaction
from webindex import tables
from webindex.load.revisits import earlier_key, is_report_of
from webindex.page.changes import History, history_of
from webindex.page.urls import page_id

__all__ = ["forget", "level_of_rank", "past_of", "plan", "rank_moved"]


def past_of(
    capture: Mapping[str, Any],
    earlier: Mapping[str, Mapping[str, Any]] | None,
    revisited: Mapping[str, Any] | None,
) -> History:
    """The history of a page, from the values of these three columns."""
    return history_of(_seen(capture, earlier or {}, revisited or {}))


def _seen(
    capture: Mapping[str, Any],
    earlier: Mapping[str, Mapping[str, Any]],
    revisited: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    for one in (capture, *earlier.values()):
        content = earlier_key(one)
        yield one["date"], content
        for date in one.get("identical") or ():
            yield date, content
    now = earlier_key(capture)
    if (revisited.get("seen") or "") > capture["date"]:
        yield revisited["seen"], now
    for report in revisited.get("reports") or ():
        if report["date"] > capture["date"] and is_report_of(report, capture):
            yield report["date"], now


def level_of_rank(rank: Mapping[str, Any] | None) -> str:
    """The first part of an entry's row, by a value of `pages.rank`."""
    if rank is None or rank["value"] <= 0:
        return "99"
    return f"{min(98, max(0, 49 - math.floor(2 * math.log2(rank['value'])))):02}"


def plan(t: Transaction, row: str) -> None:
    """Enter a page where its captures, revisits and rank put it; or nowhere, if it is gone."""
    before = t.get_for_update(tables.recrawl, row)
    after = None
    found = t.get(tables.capture, row)
    if found is not None and _is_there(t, row):
        past = past_of(found, t.get(tables.earlier, row), t.get(tables.revisited, row))
        level = level_of_rank(t.get(tables.rank, row))
        after = f"{level}/{past.due}/{page_id(found['url'])}"
    if before != after:
        if before is not None:
            t.delete(tables.recrawl_url, before)
        if found is not None and after is not None:
            t.set(tables.recrawl_url, after, found["url"])
        tables.set_or_delete(t, tables.recrawl, row, after)


def _is_there(t: Snapshot, row: str) -> bool:
    """Whether a page is live or a redirect."""
    if t.get(tables.fingerprint, row) is not None:
        return True
    pointer = t.get(tables.pointer, row)
    return pointer is not None and pointer["kind"] == "redirect"


def rank_moved(t: Transaction, row: str, rank: Mapping[str, Any]) -> None:
    """Move a page's entry to the level of its new rank."""
    before = t.get(tables.recrawl, row)
    level = level_of_rank(rank)
    if before is not None and not before.startswith(level):
        url = t.get(tables.recrawl_url, before)
        if url is not None:
            after = level + before[2:]
            t.delete(tables.recrawl_url, before)
            t.set(tables.recrawl_url, after, url)
            t.set(tables.recrawl, row, after)


def forget(t: Transaction, row: str) -> None:
    """Delete the entry of a page that is erased."""
    before = t.get_for_update(tables.recrawl, row)
    if before is not None:
        t.delete(tables.recrawl_url, before)
        t.delete(tables.recrawl, row)
