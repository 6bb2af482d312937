"""The link graph: what one snapshot says of pages and links, as arrays.

    nodes   live pages, numbered in the order of their ids
    edges   P → Q for each live P with a link that vouches (`rel` is follow) for a page that is
            the live Q, or for a redirect that leads to Q in the end; once, however many such
            links there are, and never from a page to itself

A page's row begins with the first two digits of its id. So the rows with one such prefix, a
*shard*, hold a stretch of the numbers, and whoever has read some shards knows all links *of*
their pages. Where the links lead to is an id at first; `Numbering` makes it a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from percola import Snapshot
from webindex import tables
from webindex.urls import page_id

SHARDS: Final = tuple(f"{byte:02x}" for byte in range(256))
"""The prefixes of page rows, and the rows of the table `ranks`."""

Ids: TypeAlias = NDArray[np.bytes_]
"""Page ids, 16 bytes each; they compare as bytes do."""
Numbers: TypeAlias = NDArray[np.int32]
Values: TypeAlias = NDArray[np.float64]

_COLUMNS: Final = (tables.capture, tables.fingerprint, tables.links, tables.resolved)


@dataclass(frozen=True, slots=True)
class PagesRead:
    """What one or several neighbouring shards hold.

    Attributes:
        ids, rows: the live pages in the order of their ids, shape (n,), and their rows.
        redirects, destinations: pages that lead elsewhere, and where to; shape (r,) each.
        targets: the distinct pages that are linked to, shape (t,).
        links: for each link, which of `ids` it is from and which of `targets` it is to;
            shape (2, m).
    """

    ids: Ids
    rows: list[str]
    redirects: Ids
    destinations: Ids
    targets: Ids
    links: Numbers


def read_pages(snapshot: Snapshot, shards: Iterable[str]) -> PagesRead:
    """Read neighbouring shards, given in order."""
    pages: list[tuple[bytes, str, list[int]]] = []
    redirects: list[bytes] = []
    destinations: list[bytes] = []
    targets: dict[str, int] = {}
    for shard in shards:
        for row in snapshot.scan(tables.pages, prefix=f"{shard}/", columns=_COLUMNS):
            fingerprint = row.get(tables.fingerprint)
            if fingerprint is not None:
                linked = [
                    targets.setdefault(url, len(targets))
                    for url, _, rel in row.get(tables.links) or ()
                    if rel == "follow"
                ]
                pages.append((_id(fingerprint["url"]), row.key, linked))
                continue
            resolved = row.get(tables.resolved)
            if resolved is not None and resolved["kind"] == "redirect":
                redirects.append(_id(row[tables.capture]["url"]))
                destinations.append(_id(resolved["url"]))
    # Within a shard, rows are in the order of the URLs.
    pages.sort()
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
    """From page ids to the numbers of the live pages that they stand for.

    Args:
        live: the ids of all live pages, ascending; a page's number is its place in there.
        redirects, destinations: other pages, and where they lead to.
    """

    def __init__(self, live: Ids, redirects: Ids, destinations: Ids) -> None:
        self.size = len(live)
        numbers = _places(live, destinations)
        there = numbers >= 0
        ids = np.concatenate([live, redirects[there]])
        order = np.argsort(ids, kind="stable")
        self._ids: Ids = ids[order]
        self._numbers: Numbers = np.concatenate(
            [np.arange(self.size, dtype=np.int32), numbers[there]]
        )[order]

    def of(self, ids: Ids) -> Numbers:
        """The numbers that some ids stand for, shape as given; -1 for those that are none."""
        places = _places(self._ids, ids)
        return np.where(places >= 0, self._numbers[places], -1) if self.size else places


def _places(ascending: Ids, wanted: Ids) -> Numbers:
    """Where each id stands in an array; -1 for those that do not."""
    if not len(ascending):
        return np.full(len(wanted), -1, dtype=np.int32)
    places = np.searchsorted(ascending, wanted).astype(np.int32)
    places[places == len(ascending)] = 0
    places[ascending[places] != wanted] = -1
    return places


def edges_of(read: PagesRead, first: int, numbering: Numbering) -> Numbers:
    """The edges from the pages of some shards, by source and then target; shape (2, e).

    Args:
        first: the number of the first of these pages.
    """
    sources = read.links[0].astype(np.int64) + first
    targets = numbering.of(read.targets)[read.links[1]]
    counted = (targets >= 0) & (targets != sources)
    size = max(numbering.size, 1)
    pairs = np.unique(sources[counted] * size + targets[counted])
    return np.stack([pairs // size, pairs % size]).astype(np.int32)
