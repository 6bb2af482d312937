"""Blocks of text that a host repeats on its pages: they are left out of what search shows.

    parse ─▶ outer ─▶ (changed) ─▶ find_repeated ─▶ repeated ─▶ the cluster's document

The live pages of a host that have outer blocks (`webindex.page.outer_blocks`) form a ring in the
order of their ids, which are hashes. A page is judged by a sample of its host: itself and the pages
after it on the ring, `WINDOW` in all. A block is repeated if `REPEATED` of these with different
texts have it. So what is repeated on a page depends on 16 pages, whatever the size of the host, and
on the present pages alone, not on the order in which they came.

A page that comes, goes or changes may change what is repeated on the pages before it. It writes its
blocks and notifies its own row. The run, later, reads `WINDOW` - 1 pages to either side, and
writes what has changed of those before it and of its own. Two runs may write in the wrong order:
the later one may read more, find nothing to change, and commit first. So what is changed of a page
also notifies that page's row: its run, after the commit, judges it again. At rest the last run
that judged a page has seen every page of its sample, and has found nothing to change.

The text of a page stays whole in `pages.text`, and so does what clusters are made from: the same
text on two hosts is one content, whatever else these hosts repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from percola import Row, Snapshot, Transaction, observer
from webindex import tables
from webindex.observers.documents import tell
from webindex.page.outer_blocks import digests
from webindex.page.urls import block_row, page_row

__all__ = ["REPEATED", "WINDOW", "find_repeated", "withdraw_blocks", "write_blocks"]

WINDOW: Final = 16
"""Pages by which one is judged, itself included; all of a host that has fewer."""

REPEATED: Final = 8
"""Pages of a window that have a block, each with another text, if it is repeated."""

_RING: Final = 1 << 128
_AIM: Final = 20
"""Pages that are looked for on either side: so many that seldom too few are found."""

_FIRST_REACH: Final = _RING >> 24
_reaches: dict[str, int] = {}
"""By host, how far to look for `_AIM` pages: a guess from the last time, which saves scans."""

_MOST_HOSTS: Final = 10_000

_MOST: Final = 400
"""Rows of one look; if there are more, it was too far."""


def write_blocks(t: Transaction, url: str, found: Mapping[str, Any] | None) -> None:
    """Write the outer blocks of a live page, and have what is repeated found again."""
    if found is None:
        withdraw_blocks(t, url)
        return
    row, value = block_row(url), {**found, "url": url}
    if t.get(tables.outer, row) != value:
        t.set(tables.outer, row, value)
        t.notify(tables.blocks_changed, row)


def withdraw_blocks(t: Transaction, url: str) -> None:
    """Withdraw the blocks of a page that is not live, or has none any more."""
    row = block_row(url)
    if t.get(tables.outer, row) is not None:
        t.delete(tables.outer, row)
        # Also if there is none: a run that has seen the page may be about to write it.
        t.delete(tables.repeated, row)
        t.notify(tables.blocks_changed, row)


@observer(tables.blocks_changed, batch=tables.BATCH)
def find_repeated(t: Transaction, row: str) -> None:
    """Judge a page, and those before it on its host, by the pages after each of them."""
    ring, judged = _around(t, row)
    found = [(one, one[tables.outer]) for one in ring]
    known = [(digests(blocks), blocks["text"]) for _, blocks in found]
    for at in judged:
        page, blocks = found[at]
        window = known if len(known) < WINDOW else [*known, *known][at : at + WINDOW]
        now = _repeated(blocks, window)
        if now != page.get(tables.repeated, []):
            tables.set_or_delete(t, tables.repeated, page.key, now)
            t.notify(tables.blocks_changed, page.key)
            tell(t, page_row(blocks["url"]))


def _repeated(
    blocks: Mapping[str, Any], window: Sequence[tuple[Collection[str], str]]
) -> list[str]:
    """The digests of a page's blocks that are repeated, up to the first that is not."""
    repeated = []
    for side in ("first", "last"):
        for digest, _ in blocks[side]:
            if len({text for there, text in window if digest in there}) < REPEATED:
                break
            repeated.append(digest)
    return sorted(set(repeated))


def _around(t: Snapshot, row: str) -> tuple[list[Row[str]], range]:
    """The pages around a row, in the order of the ring, and which of them it may affect.

    Of a host with few pages all, of others at least `WINDOW` - 1 to both sides of the row.
    """
    name, _, page = row.rpartition("/")
    beside = WINDOW - 1
    middle = int(page, 16)
    reach = _reaches.get(name, _FIRST_REACH)
    most: int | None = _MOST
    while True:
        whole = reach >= _RING // 2
        start, end = (middle, middle + _RING) if whole else (middle - reach, middle + reach)
        ring = [*islice(_between(t, name, start, end), most)]
        if len(ring) == most:
            # The host was remembered as a small one, and has grown.
            reach //= 16
            continue
        if whole:
            before = max(0, len(ring) - beside)
            ring = [*ring[before:], *ring[:before]]
            at = len(ring) - before
        else:
            at = next((n for n, one in enumerate(ring) if _is_after(one, middle, reach)), len(ring))
        there = at < len(ring) and ring[at].key == row
        enough = at >= beside and len(ring) - at - there >= beside
        if whole or enough:
            break
        reach *= 2 if ring else 16
        most = None  # So that this ends, however the ids lie.
    if len(_reaches) >= _MOST_HOSTS:
        _reaches.clear()
    _reaches[name] = min(reach, _RING // 2) * 2 * _AIM // max(1, len(ring))
    if not enough:
        return ring, range(len(ring))
    return ring[at - beside : at + there + beside], range(beside + there)


def _is_after(one: Row[str], middle: int, reach: int) -> bool:
    """Whether a page that is at most `reach` away is the one in the middle, or after it."""
    return (int(one.key[-32:], 16) - middle) % _RING <= reach


def _between(t: Snapshot, name: str, low: int, high: int) -> Iterator[Row[str]]:
    """The pages of a host whose ids are at least `low` and less than `high`, on the ring."""
    if low < 0:
        parts = [(low + _RING, _RING), (0, high)]
    elif high > _RING:
        parts = [(low, _RING), (0, high - _RING)]
    else:
        parts = [(low, high)]
    for first, last in parts:
        start = f"{name}/{first:032x}"
        end = f"{name}0" if last == _RING else f"{name}/{last:032x}"
        columns = [tables.outer, tables.repeated]
        for one in t.scan(tables.blocks, start=start, end=end, columns=columns):
            if tables.outer in one:
                yield one
