"""Links to a page and from it, by how their authors mark them, and how they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from percola import Snapshot
from webindex import tables
from webindex.page.urls import page_row

__all__ = ["KINDS", "Counted", "Link", "counted", "in_links", "kinds", "out_links"]

MOST: Final = 1_000
"""About how many in-links of a page are read: it may have millions, and is shown at once."""

_PARTS: Final = 16**3
"""The number of parts into which page ids are divided, by their first three digits."""

KINDS: Final = {
    "follow": "follow",
    "nofollow": "nofollow",
    "ugc": "ugc",
    "sponsored": "sponsored",
    "alternate": "hreflang",
}
"""The names of links of each `rel`, in the order in which they are listed."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link to or from the page; `counts` says whether it recommends the target's document."""

    url: str
    anchors: list[str]
    rel: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """How many links name one URL of a document.

    `role` is the URL's role in the document: `canonical`, `duplicate` or `redirect`.
    """

    url: str
    role: str
    links: int


def counted(now: Snapshot, document: Mapping[str, Any]) -> tuple[list[Counted], int]:
    """The summands of a document's `inlinks`, and how much is subtracted.

    The URLs that have most links come first. Links between the document's own pages are subtracted.
    Of a document with more URLs than it names, these are those of the URLs that it names, and how
    much is subtracted is not known: 0.
    """
    roles = {document["url"]: "canonical"}
    roles |= dict.fromkeys(document["duplicates"], "duplicate")
    roles |= dict.fromkeys(document["aliases"], "redirect")
    tallies = now.get_many((tables.tally, page_row(url)) for url in roles)
    found = [
        Counted(url, role, 0 if tally is None else tally["links"])
        for (url, role), tally in zip(roles.items(), tallies, strict=True)
    ]
    # While some are still to be counted, the document may have more than its URLs.
    known = sum(one.links for one in found) if "more" not in document else 0
    inside = max(0, known - document["inlinks"])
    return sorted(found, key=lambda one: (-one.links, one.url)), inside


def in_links(now: Snapshot, row: str, members: Collection[str]) -> tuple[list[Link], bool]:
    """The links to the page of this row, those that count first; and whether there are more.

    `members` are the page ids of its document: links among them recommend nothing. If a page has
    many more in-links than `MOST`, about that many are read, selected by their ids.
    """
    linking: dict[str, Any] = {}
    read, step = 0, 1
    # Ids are hashes: the number in some parts is an estimate of the number in the rest.
    while read < _PARTS and len(linking) < MOST:
        upto = min(_PARTS, read + step)
        parts = [tables.source.starting(start) for start in _starts(read, upto)]
        linking |= now.get_row(tables.inlinks, row, parts).family(tables.source)
        read = upto
        if not linking:
            step = 255 * read
        else:
            step = max(1, min(15 * read, (MOST - len(linking)) * read // len(linking)))
    links = [
        Link(one["url"], one["anchors"], one["rel"], one["rel"] == "follow" and page not in members)
        for page, one in linking.items()
    ]
    return sorted(links, key=lambda link: (not link.counts, link.url)), read < _PARTS


def _starts(first: int, last: int) -> Iterator[str]:
    """The id prefixes of some parts, `last` excluded; a whole run of 16 is one prefix."""
    at = first
    while at < last:
        digits = next(
            n for n in (1, 2, 3) if at % 16 ** (3 - n) == 0 and at + 16 ** (3 - n) <= last
        )
        yield f"{at:03x}"[:digits]
        at += 16 ** (3 - digits)


def out_links(links: Iterable[Any], members: Collection[str]) -> list[Link]:
    """The links of a page, as in `pages.links`; `members` are the URLs of its document."""
    return [
        Link(url, anchors, rel, rel == "follow" and url not in members)
        for url, anchors, rel in links
    ]


def kinds(links: Iterable[Link]) -> list[tuple[str, int]]:
    """How many links there are of each `rel` that occurs."""
    found = Counter(link.rel for link in links)
    order = [*KINDS, *sorted(found.keys() - KINDS.keys())]
    return [(rel, found[rel]) for rel in order if found[rel]]
