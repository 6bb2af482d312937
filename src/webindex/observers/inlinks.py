"""§2.4, §3.1: the links to each page, and how many of them vouch for it, with which texts.

    links ─▶ invert ─┬▶ (changed) ─▶ count ────▶ tally ─▶ the cluster's document
                     └▶ (added) ───▶ add_links ──┘

`invert` writes each link of a page into the row of its target, in a cell of its own, so pages that
link to one target do not conflict. `count` reads all links to a page and tallies them. A document
needs only the tally. Links to a URL that was never captured are counted as well, and enter it in
the frontier (`webindex.observers.frontier`). Links to a page that is gone, which has a capture and
is neither live nor a redirect, are not counted before it is one again.

A page with more than `LARGE` links becomes *large*: to read them all for each new one would cost
in proportion to their number. From then on `invert`, which knows what a page linked to before,
also writes the difference into one of the target's deltas, and `add_links` adds deltas to the
tally and deletes them. This is the rule of `percola.recipes.Applied`: a contribution is counted
once because `inverted`, the record of it, is read and written in the same transaction.

A live page that no run of the PageRank job has ranked gets an interim rank, which changes with its
in-links: see `webindex.observers.interim`.

A tally has at most `MOST_TEXTS` texts, the most frequent ones. Where a large page has more, all are
in `anchors`: see `webindex.observers.texts`.

Who notifies what decides that no link is missed or counted twice while a page becomes large:

* `invert` writes a delta and notifies `added` if it has read that the target is large; otherwise
  it notifies `changed`. One that began before the page became large, and commits after it, has
  written no delta, but `count` runs again and reads all links.
* `count` deletes the deltas that it sees: their links are in the same snapshot. Deltas that
  are committed later belong to links that it has not read.
* Every run that finds a tally, or makes one, writes or locks its cell, so two of them conflict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from percola import Column, Snapshot, Transaction, observer
from percola.recipes import shard_of
from webindex import tables
from webindex.observers import frontier, interim
from webindex.observers.documents import tell
from webindex.observers.redirects import is_counted
from webindex.observers.texts import Texts, first, part_of, plant
from webindex.page.urls import page_id, page_row, url_of_row

__all__ = ["ADD_SECONDS", "COUNT_SECONDS", "LARGE", "add_links", "count", "invert"]

COUNT_SECONDS: Final = 300.0
"""While pages wait to be parsed, links to pages that are not large are counted at most this often.
A bulk load changes those of nearly every page again and again, and each new result assembles and
exports a document."""

ADD_SECONDS: Final = 10.0
"""The same for large pages, of which there are few."""

LARGE: Final = 128
"""A page with more in-links is large, until none counts, or a count finds half as many."""

_DELTAS: Final = 64
"""Cells for the deltas of one page: transactions that run at a time rarely write the same one."""


# --- Links and their inversion --------------------------------------------------------------


def _read_ahead_links(t: Snapshot, rows: Sequence[str]) -> None:
    """Prefetch what `invert` reads of the targets whose links change."""
    own = (tables.links, tables.inverted, tables.shared)
    t.get_many((column, row) for row in rows for column in own)
    targets = {
        page_row(url)
        for row in rows
        for url in _changed(t.get(tables.inverted, row), t.get(tables.links, row))
    }
    t.get_many((tables.large, target) for target in targets)


@observer(tables.links, batch=tables.BATCH, ahead=_read_ahead_links)
def invert(t: Transaction, row: str) -> None:
    """Update the targets' in-links to match the page's current links."""
    wanted = t.get(tables.links, row) or []
    changed = _changed(t.get(tables.inverted, row), wanted)
    if not changed:
        return
    found = t.get(tables.capture, row)
    if found is None:
        return
    me = tables.source[page_id(found["url"])]
    for url, (before, after) in changed.items():
        target = page_row(url)
        if after is None:
            t.delete(me, target)
        else:
            anchors, rel = after
            t.set(me, target, {"url": found["url"], "anchors": anchors, "rel": rel})
        if not (_counts(before) or _counts(after)):
            continue
        if t.get(tables.large, target) is None:
            t.notify(tables.inlinks_changed, target)
        else:
            _add_delta(t, target, before, after)
    tables.set_or_delete(t, tables.inverted, row, wanted)
    if t.get(tables.shared, row) is not None:
        t.notify(tables.share_due, row)


_Link = tuple[list[str], str]
"""The anchors of a link, and its rel."""


def _changed(
    before: Iterable[Any] | None, after: Iterable[Any] | None
) -> dict[str, tuple[_Link | None, _Link | None]]:
    """The links that differ between two values of `links`, by target: before and after."""
    old: dict[str, _Link] = {url: (anchors, rel) for url, anchors, rel in before or []}
    new: dict[str, _Link] = {url: (anchors, rel) for url, anchors, rel in after or []}
    return {
        url: (old.get(url), new.get(url))
        for url in [*(url for url in old if url not in new), *new]
        if old.get(url) != new.get(url)
    }


def _counts(link: _Link | None) -> bool:
    return link is not None and link[1] == "follow"


def _add_delta(t: Transaction, target: str, before: _Link | None, after: _Link | None) -> None:
    """Add the difference between two states of a link to a delta of its target."""
    links = 0
    anchors: Counter[str] = Counter()
    if before is not None and _counts(before):
        links -= 1
        anchors.subtract(before[0])
    if after is not None and _counts(after):
        links += 1
        anchors.update(after[0])
    anchors = _without_zeros(anchors)
    if links or anchors:
        column = tables.delta[str(shard_of(t.start_ts, _DELTAS))]
        so_far = t.get(column, target) or {"links": 0, "anchors": {}}
        anchors.update(so_far["anchors"])
        t.set(column, target, _totals(links + so_far["links"], _without_zeros(anchors)))
        t.notify(tables.inlinks_added, target)


# --- Counting -------------------------------------------------------------------------------


_OF_COUNTED: Final = (tables.joined, tables.resolved, tables.rank)


def _read_ahead(t: Snapshot, rows: Sequence[str]) -> None:
    """Prefetch what `count` reads for these pages; their in-links are prefetched automatically."""
    own = (tables.fingerprint, tables.pointer, tables.tally)
    t.get_many((column, row) for row in rows for column in own)
    counted = [row for row in rows if is_counted(t, row)]
    others = sorted(set(rows).difference(counted))
    t.get_many((tables.capture, row) for row in others)
    t.get_many(
        [
            *((column, row) for row in counted for column in _OF_COUNTED),
            *((tables.rank_run, shard) for shard in {row[:2] for row in counted}),
        ]
    )
    found = [t.get(tables.resolved, row) for row in counted if t.get(tables.joined, row) is None]
    ends = [page_row(end["url"]) for end in found if end is not None]
    t.get_many((tables.joined, end) for end in ends)
    joined = [t.get(tables.joined, row) for row in (*counted, *ends)]
    t.get_many((tables.size, one["cluster"]) for one in joined if one is not None)


@observer(tables.inlinks_changed, batch=tables.BATCH, defer=COUNT_SECONDS, ahead=_read_ahead)
def count(t: Transaction, row: str) -> None:
    """Count all links that vouch for a page, and their anchor texts."""
    captured = is_captured(t, row)
    counted = not captured or is_counted(t, row)
    if not counted and t.get(tables.tally, row) is None:
        return
    before = t.get_for_update(tables.tally, row)
    if before is None and captured:
        # A slow run must not leave a tally on a page that has gone meanwhile.
        live = t.get(tables.fingerprint, row) is not None
        t.get_for_update(tables.fingerprint if live else tables.pointer, row)
    found = t.get_row(tables.inlinks, row, [tables.source, tables.large, tables.delta])
    for shard in found.family(tables.delta):
        t.delete(tables.delta[shard], row)
    links = 0
    anchors: Counter[str] = Counter()
    sources = found.family(tables.source)
    if counted:
        for link in sources.values():
            if link["rel"] == "follow":
                links += 1
                anchors.update(link["anchors"])
    large = found.get(tables.large)
    if links and len(sources) > (LARGE if large is None else LARGE // 2):
        now_large = tables.IN_ANCHORS if len(anchors) > tables.MOST_TEXTS else tables.IN_TALLY
        if large != now_large:
            t.set(tables.large, row, now_large)
    else:
        now_large = None
        if large is not None:
            t.delete(tables.large, row)
    if tables.IN_ANCHORS in (large, now_large):
        plant(t, row, anchors if now_large == tables.IN_ANCHORS else {})
    after = _totals(links, first(anchors)) if links else None
    _put_tally(t, row, before, after, captured=captured)
    if not captured:
        _enter_frontier(t, row, before, after, sources.values())
    elif before is not None and not counted:
        # If it is not parsed yet, `parse` would not find the entry without a tally.
        frontier.leave(t, row, before, check=True)
    if captured:
        interim.estimate(t, row, links)


def _read_ahead_deltas(t: Snapshot, rows: Sequence[str]) -> None:
    """Prefetch what `add_links` reads for these pages."""
    _read_ahead(t, rows)
    cells: list[tuple[Column[str, Any], str]] = []
    for found in t.get_rows(tables.inlinks, rows, [tables.large, tables.delta]):
        if found.get(tables.large) == tables.IN_ANCHORS:
            changed = {
                text for one in found.family(tables.delta).values() for text in one["anchors"]
            }
            parts = sorted({part_of(text) for text in changed})
            cells += [(tables.best, found.key), *((tables.texts[one], found.key) for one in parts)]
    t.get_many(cells)


@observer(tables.inlinks_added, batch=tables.BATCH, defer=ADD_SECONDS, ahead=_read_ahead_deltas)
def add_links(t: Transaction, row: str) -> None:
    """Add the deltas of a large page to its tally."""
    before = t.get_for_update(tables.tally, row)
    found = t.get_row(tables.inlinks, row, [tables.large, tables.delta])
    deltas = found.family(tables.delta)
    for shard in deltas:
        t.delete(tables.delta[shard], row)
    large = found.get(tables.large)
    captured = is_captured(t, row)
    if large is None or before is None or (captured and not is_counted(t, row)):
        t.notify(tables.inlinks_changed, row)
        return
    links = before["links"] + sum(one["links"] for one in deltas.values())
    changes: Counter[str] = Counter()
    for one in deltas.values():
        changes.update(one["anchors"])
    changes = _without_zeros(changes)
    if links <= 0:
        t.notify(tables.inlinks_changed, row)
        return
    # Less than none of a text: a link is taken back that was entered while the page became large,
    # and that `count` has still to see.
    anchors: Mapping[str, int]
    if large == tables.IN_ANCHORS:
        anchors = Texts(t, row, before["anchors"]).add(changes)
    else:
        changes.update(before["anchors"])
        anchors = +changes
    if len(anchors) > tables.MOST_TEXTS:
        t.set(tables.large, row, tables.IN_ANCHORS)
        plant(t, row, anchors)
    after = _totals(links, first(anchors))
    _put_tally(t, row, before, after, captured=captured)
    if captured:
        interim.estimate(t, row, links)
    else:
        _enter_frontier(t, row, before, after)


def is_captured(t: Snapshot, row: str) -> bool:
    """Whether a page has a capture, parsed or not."""
    return (
        t.get(tables.fingerprint, row) is not None
        or t.get(tables.pointer, row) is not None
        or t.get(tables.capture, row) is not None
    )


def _put_tally(t: Transaction, row: str, before: Any, after: Any, *, captured: bool) -> None:
    """Write a page's tally, and notify the cluster of a captured page, if it has changed."""
    if after != before:
        tables.set_or_delete(t, tables.tally, row, after)
        if captured:
            tell(t, row)


def _enter_frontier(
    t: Transaction, row: str, before: Any, after: Any, sources: Iterable[Mapping[str, Any]] = ()
) -> None:
    """Move the entry of a URL that was never captured to the level of its new tally."""
    if before is not None and after is not None:
        moves = frontier.entry_row(row, before["links"]) != frontier.entry_row(row, after["links"])
        if not moves:
            return
    url = _url(t, row, before, sources) if after is not None else None
    if before is not None:
        frontier.leave(t, row, before)
    if after is not None and url is not None:
        frontier.enter(t, row, url, after)


def _url(t: Transaction, row: str, before: Any, sources: Iterable[Mapping[str, Any]]) -> str | None:
    """The URL of a row; a long one, which is cut in it, from its entry or from a page's links."""
    url = url_of_row(row)
    if url is None and before is not None:
        url = t.get(tables.uncaptured, frontier.entry_row(row, before["links"]))
    if url is None:
        linking = (t.get(tables.inverted, page_row(one["url"])) for one in sources)
        named = (to for links in linking for to, *_ in links or ())
        url = next((to for to in named if page_row(to) == row), None)
    return url


def _totals(links: int, anchors: Mapping[str, int]) -> dict[str, Any]:
    return {"links": links, "anchors": dict(sorted(anchors.items()))}


def _without_zeros(counts: Counter[str]) -> Counter[str]:
    return Counter({text: number for text, number in counts.items() if number})
