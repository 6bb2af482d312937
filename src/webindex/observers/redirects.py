"""Pages that name another page as their replacement: redirects, and `rel=canonical`.

    parse ──▶ pointer, from:ID at its target ──(resolve)──▶ resolved, via:ID at the end of the chain
                                                  ▲                            │
                 (changed) of the pointer target ─┴────────────(changed)───────┘

Where a pointer leads depends on other pages: a target may disappear, return, or redirect further.
`resolve` reads only one page ahead, the row of the pointer's target: whether it is live, what it
points to, and what that was resolved to. A transaction that changes one of these cells also
notifies `aliases.changed` of that row, and `follow` passes the notification on to all pages that
point there. A page is registered at its target (`from:ID`) before it is resolved for the
first time, in an earlier transaction. So of a change to the target and a resolution of the pointer,
the later one sees the other, and a chain of redirects settles from its end to its beginning.

Redirects in a circle lead nowhere. While a circle closes, its pages pass an outdated answer round,
each time with one more hop, and drop it at `MAX_HOPS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from percola import Snapshot, Transaction, observer
from webindex import tables
from webindex.observers import frontier
from webindex.observers.documents import tell
from webindex.page.pointers import MAX_HOPS
from webindex.page.urls import page_id, page_row, registrable_domain

__all__ = ["follow", "is_counted", "point", "resolve", "target_of"]

Pointer = Mapping[str, Any]


def point(
    t: Transaction, row: str, url: str, after: Pointer | None, *, was_live: bool, live: bool
) -> None:
    """Register what a page points to now, and notify the pages that point to it of its state.

    Called by `parse`: `live` is the page's new state. A page that was not captured before leaves
    the frontier.
    """
    before = t.get(tables.pointer, row)
    if before != after:
        here = tables.points_here[page_id(url)]
        if before is not None:
            t.delete(here, page_row(before["url"]))
        if after is not None:
            t.set(here, page_row(after["url"]), {"url": url, "kind": after["kind"]})
            t.set(tables.pointer, row, after)
        else:
            t.delete(tables.pointer, row)
    if before != after or (after is not None and was_live != live):
        t.notify(tables.resolve_due, row)
    if before != after or was_live != live:
        t.notify(tables.aliases_changed, row)
    was_counted = was_live or _redirects(before)
    if not was_counted:
        # For update: a count that has found no capture would not notify the page's cluster.
        tally = t.get_for_update(tables.tally, row)
        if tally is not None:
            # It was counted as a URL without a capture.
            frontier.leave(t, row, tally)
            was_counted = True
        listed = frontier.listed_row(row)
        if t.get(tables.uncaptured, listed) is not None:
            t.delete(tables.uncaptured, listed)
    if was_counted != (live or _redirects(after)):
        t.notify(tables.inlinks_changed, row)


def is_counted(t: Snapshot, row: str) -> bool:
    """Whether links to a page count: it is live, or redirects its readers."""
    return t.get(tables.fingerprint, row) is not None or _redirects(t.get(tables.pointer, row))


def _redirects(pointer: Pointer | None) -> bool:
    return pointer is not None and pointer["kind"] == "redirect"


@observer(tables.aliases_changed, batch=tables.BATCH)
def follow(t: Transaction, row: str) -> None:
    """Have all pages that point to this one resolved again."""
    pointing = t.get_row(tables.aliases, row, [tables.points_here]).family(tables.points_here)
    for one in pointing.values():
        t.notify(tables.resolve_due, page_row(one["url"]))


@observer(tables.resolve_due, batch=tables.BATCH)
def resolve(t: Transaction, row: str) -> None:
    """Find where the page's pointer leads, and enter the page there."""
    found = t.get(tables.capture, row)
    if found is None:
        return
    url = found["url"]
    before = t.get(tables.resolved, row)
    pointer = t.get(tables.pointer, row)
    after = _resolve(t, url, pointer)
    if before == after:
        return
    tables.set_or_delete(t, tables.resolved, row, after)
    here = tables.leads_here[page_id(url)]
    left = end_of(url, before)
    if left is not None:
        t.delete(here, page_row(left))
    reached = end_of(url, after)
    if after is not None and reached is not None:
        t.set(here, page_row(reached), {"url": url, "kind": after["kind"]})
    for end in {left, reached} - {None}:
        if tell(t, page_row(str(end))):
            # Pages of that cluster that link to this one look again whether they link to it.
            t.notify(tables.share_due, row)
    # Others read where a redirect leads, also what was resolved before the page became a redirect.
    if _redirects(pointer) or _redirects(before):
        t.notify(tables.aliases_changed, row)
    if "canonical" in {one["kind"] for one in (before, after) if one is not None}:
        t.notify(tables.join_due, row)


def _resolve(t: Transaction, url: str, pointer: Pointer | None) -> dict[str, Any] | None:
    if pointer is None:
        return None
    ahead = page_row(pointer["url"])
    further = t.get(tables.pointer, ahead)
    if t.get(tables.fingerprint, ahead) is not None:
        end, hops, plain = pointer["url"], 0, further is None
    elif not _redirects(further):
        return None
    else:
        there = t.get(tables.resolved, ahead)
        if there is None or there["hops"] >= MAX_HOPS:
            return None
        end, hops, plain = there["url"], there["hops"] + 1, there["plain"]
    if end == url:
        return None
    return {"kind": pointer["kind"], "url": end, "hops": hops, "plain": plain}


def end_of(url: str, resolved: Pointer | None) -> str | None:
    """The page under which another one is entered in `aliases.via`; None if there is none.

    A redirect counts wherever it leads. A canonical page counts if it declares no other one
    itself, and both are in the same registrable domain: the owner of one domain cannot give away or
    take over the pages of another.
    """
    if resolved is None:
        return None
    end: str = resolved["url"]
    if resolved["kind"] == "redirect":
        return end
    if resolved["plain"] and registrable_domain(end) == registrable_domain(url):
        return end
    return None


def target_of(url: str, resolved: Pointer | None) -> str | None:
    """The page that a live page declares itself a copy of: an edge of its cluster."""
    if resolved is None or resolved["kind"] != "canonical":
        return None
    return end_of(url, resolved)
