"""§3.1: which page of a cluster is its canonical page.

Of the pages that may be indexed, the one with the highest PageRank; where ranks are equal or
were never computed, https goes before http, then the shorter URL before the longer, then the first
in alphabetical order. No two pages are equal in that order, so the winner depends neither on which
transaction computes it nor on when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["elect", "election_order"]


def elect(
    members: Mapping[str, Mapping[str, Any]], ranks: Mapping[str, float]
) -> Mapping[str, Any] | None:
    """The canonical page of a cluster; None if none of its pages may be indexed.

    Args:
        members: by page id, as in `clusters.member`.
        ranks: PageRank by page id; a page that is missing has none yet, which is 0.
    """
    candidates = [page for page, one in members.items() if one["indexable"]]
    if not candidates:
        return None
    return members[
        min(candidates, key=lambda page: election_order(members[page], ranks.get(page, 0.0)))
    ]


def election_order(one: Mapping[str, Any], rank: float) -> tuple[float, bool, int, str]:
    """Sort key of members that may be indexed: the canonical page comes first."""
    url = one["url"]
    return -rank, not url.startswith("https:"), len(url), url
