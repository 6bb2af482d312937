"""Links to a page and from it, by what their authors say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from percola import Snapshot
from webindex import tables

__all__ = ["KINDS", "Link", "in_links", "kinds", "out_links"]

KINDS: Final = {
    "follow": "follow",
    "nofollow": "nofollow",
    "ugc": "ugc",
    "sponsored": "sponsored",
    "alternate": "hreflang",
}
"""How links of each `rel` are called, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link to or from the page; `counts` says whether it recommends the target's document."""

    url: str
    anchors: list[str]
    rel: str
    counts: bool


def in_links(now: Snapshot, row: str, members: Collection[str]) -> list[Link]:
    """The links to the page of this row, those that count first.

    `members` are the page ids of its document: links among them recommend nothing.
    """
    linking = now.get_row(tables.inlinks, row, [tables.source]).family(tables.source)
    links = [
        Link(one["url"], one["anchors"], one["rel"], one["rel"] == "follow" and page not in members)
        for page, one in linking.items()
    ]
    return sorted(links, key=lambda link: (not link.counts, link.url))


def out_links(links: Iterable[Any], members: Collection[str]) -> list[Link]:
    """The links of a page, as `pages.links` has them; `members` are the URLs of its document."""
    return [
        Link(url, anchors, rel, rel == "follow" and url not in members)
        for url, anchors, rel in links
    ]


def kinds(links: Iterable[Link]) -> list[tuple[str, int]]:
    """How many links there are of each `rel`: those that there are."""
    found = Counter(link.rel for link in links)
    order = [*KINDS, *sorted(found.keys() - KINDS.keys())]
    return [(rel, found[rel]) for rel in order if found[rel]]
