"""The rank of a page between two runs of the PageRank job, from the links to it.

    interim(Q) = 1 - d + d · links(Q) · mean of the shares of the pages that link to Q

The share of a page is its rank divided by the number of its edges, both as the newest run that
wrote its rank found them; a page that no run has ranked yet gives nothing. `links(Q)` is the number
of links that vouch for Q, as in its tally. Of more than `SAMPLE` links, those of a part of the
pages are read, by the first digits of their ids, which are hashes: an estimate costs at most some
hundred small cells, however many links there are.

So an interim rank follows from the in-links of its page and from the ranks of the last run alone.
It does not depend on the order in which pages were loaded, no change of it makes another one due,
and `webindex verify` computes it again. It is written by the observers that count links, for live
pages without a rank and only once there has been a run. A run replaces the interim ranks of all
pages that it has read, and has those of newer pages estimated again when it has written its ranks.

What it leaves out until the next run: links from pages that are new themselves, links to redirects
that lead here, and how the ranks of other pages change because of this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from percola import Family, Snapshot, Transaction
from webindex import tables
from webindex.load.recrawls import rank_moved
from webindex.observers.documents import tell
from webindex.page.urls import page_row

__all__ = ["DAMPING", "DIGITS", "SAMPLE", "estimate", "is_interim", "may_estimate"]

DAMPING: Final = 0.85
"""The probability of following a link of the page rather than starting anywhere."""

DIGITS: Final = 6
"""Decimals that are written: no more than the tolerance justifies, so that pages with the same
links to them have the same rank, independent of how sums are rounded."""

SAMPLE: Final = 128
"""Links to one page that are all read; of more, between a sixteenth of that and so many are."""


def is_interim(rank: Mapping[str, Any] | None) -> bool:
    """Whether a value of `pages.rank` is an estimate, or there is none."""
    return rank is None or "interim" in rank


def may_estimate(t: Snapshot, row: str) -> bool:
    """Whether a page without a rank of a run gets an interim one: whether there was a run."""
    return t.get(tables.rank_run, row[:2]) is not None


def estimate(t: Transaction, row: str, links: int) -> None:
    """Write the interim rank of a page with so many links, if it is live and has no other one."""
    before = t.get(tables.rank, row)
    if not is_interim(before) or t.get(tables.fingerprint, row) is None:
        return
    if not may_estimate(t, row):
        return
    value = round(1 - DAMPING + DAMPING * _received(t, row, links), DIGITS)
    if before is None or before["value"] != value:
        # As in a run: who removes the page from the index must not miss its rank.
        t.get_for_update(tables.fingerprint, row)
        rank = {"value": value, "run": t.get(tables.rank_run, row[:2]), "interim": True}
        t.set(tables.rank, row, rank)
        rank_moved(t, row, rank)
        tell(t, row)


def _received(t: Snapshot, row: str, links: int) -> float:
    """What the pages give that link to a page, extrapolated from a sample of them."""
    digits = 0
    while links > SAMPLE * 16**digits:
        digits += 1
    part: Family[str, Any] = tables.source
    column = part.starting("0" * digits) if digits else part
    found = t.get_row(tables.inlinks, row, [column]).family(part)
    linking = [page_row(one["url"]) for one in found.values() if one["rel"] == "follow"]
    if not links or not linking:
        return 0.0
    shares = [
        rank["value"] / rank["links"]
        for rank in t.get_many((tables.rank, one) for one in linking)
        if rank is not None and rank.get("links")
    ]
    return links * math.fsum(shares) / len(linking)
