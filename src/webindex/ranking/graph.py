"""The link graph of one snapshot: pages and links, as arrays.

    nodes   live pages, numbered in the order of their ids
    edges   P → Q for each live P with a link that vouches (`rel` is follow) for a page that is
            the live Q, or for a redirect that leads to Q in the end; once, however many such
            links there are, and never from a page to itself

A page's row contains all links *from* that page, so any partitioning of the table will do. A link
leads from an id to an id at first; `Numbering` converts both to numbers.

A page's row begins with the first two digits of its id. The rows with one such prefix are a
*shard*: one run at a time writes its ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from webindex.page.urls import page_id

SHARDS: Final = tuple(f"{byte:02x}" for byte in range(256))
"""The prefixes of page rows, and the rows of the table `ranks`."""

Ids: TypeAlias = NDArray[np.bytes_]
"""Page ids, 16 bytes each; they compare as bytes do."""
Numbers: TypeAlias = NDArray[np.int32]
Values: TypeAlias = NDArray[np.float64]


class PageRow(NamedTuple):
    """The fields of a row of `pages` that the graph needs.

    Attributes:
        row: the row's key.
        live: the URL of a live page, else None.
        follows: the targets of its links that vouch; None if it has none.
        url, leads_to: of a redirect, its own URL and that of the page that it leads to in the
            end; `leads_to` is None for all other pages.
    """

    row: str
    live: str | None
    follows: Sequence[str] | None
    url: str | None
    leads_to: str | None


@dataclass(frozen=True, slots=True)
class PagesRead:
    """The contents of some rows of `pages`.

    Attributes:
        ids, rows: the live pages, shape (n,), and their rows.
        redirects, destinations: pages that lead elsewhere, and where to; shape (r,) each.
        targets: the distinct pages that are linked to, shape (t,).
        links: for each link, the indexes of its source in `ids` and of its target in `targets`;
            shape (2, m).
    """

    ids: Ids
    rows: list[str]
    redirects: Ids
    destinations: Ids
    targets: Ids
    links: Numbers


def read_pages(found: Iterable[PageRow]) -> PagesRead:
    """The part of the graph in some rows, given in any order."""
    pages: list[tuple[bytes, str, list[int]]] = []
    redirects: list[bytes] = []
    destinations: list[bytes] = []
    targets: dict[str, int] = {}
    for row, live, follows, url, leads_to in found:
        if live is not None:
            linked = [targets.setdefault(to, len(targets)) for to in follows or ()]
            pages.append((_id(live), row, linked))
        elif url is not None and leads_to is not None:
            redirects.append(_id(url))
            destinations.append(_id(leads_to))
    sources = [number for number, (_, _, linked) in enumerate(pages) for _ in linked]
    return PagesRead(
        ids=_ids([one for one, _, _ in pages]),
        rows=[row for _, row, _ in pages],
        redirects=_ids(redirects),
        destinations=_ids(destinations),
        targets=_ids([_id(url) for url in targets]),
        links=np.array(
            [sources, [target for _, _, linked in pages for target in linked]], dtype=np.int32
        ).reshape(2, -1),
    )


def _id(url: str) -> bytes:
    return bytes.fromhex(page_id(url))


def _ids(found: Sequence[bytes]) -> Ids:
    return np.frombuffer(b"".join(found), dtype="S16")


class Numbering:
    """Maps page ids to the numbers of live pages.

    Args:
        live: the ids of all live pages, in any order; a page's number is its position among them
            in the order of ids, independent of how the table was partitioned.
        redirects, destinations: other pages, and where they lead to.
    """

    def __init__(self, live: Ids, redirects: Ids, destinations: Ids) -> None:
        self.size = len(live)
        live = np.sort(live)
        numbers = _places(live, destinations)
        there = numbers >= 0
        ids = np.concatenate([live, redirects[there]])
        order = np.argsort(ids, kind="stable")
        self._ids: Ids = ids[order]
        self._numbers: Numbers = np.concatenate(
            [np.arange(self.size, dtype=np.int32), numbers[there]]
        )[order]

    def of(self, ids: Ids) -> Numbers:
        """The numbers of some ids, shape as given; -1 for ids that lead to no live page."""
        places = _places(self._ids, ids)
        return np.where(places >= 0, self._numbers[places], -1) if self.size else places


def _places(ascending: Ids, wanted: Ids) -> Numbers:
    """The position of each id in an array; -1 for missing ids."""
    if not len(ascending):
        return np.full(len(wanted), -1, dtype=np.int32)
    places = np.searchsorted(ascending, wanted).astype(np.int32)
    places[places == len(ascending)] = 0
    places[ascending[places] != wanted] = -1
    return places


def edges_of(read: PagesRead, numbering: Numbering) -> Numbers:
    """The edges from the pages that were read, by source and then target; shape (2, e)."""
    sources = numbering.of(read.ids)[read.links[0]].astype(np.int64)
    targets = numbering.of(read.targets)[read.links[1]]
    counted = (targets >= 0) & (targets != sources)
    size = max(numbering.size, 1)
    pairs = np.unique(sources[counted] * size + targets[counted])
    return np.stack([pairs // size, pairs % size]).astype(np.int32)
