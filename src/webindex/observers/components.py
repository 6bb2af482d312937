"""§3.1: which pages are one document to a reader: the connected components of what they share.

Two live pages are joined by an edge if

    they have the same content key      the same simhash, or the same bytes if they are short
    their simhashes are near            at most `fingerprints.NEAR` of 64 bits differ
    one leads to the other              by a `rel=canonical` that counts

and a cluster is a connected component. So it does not depend on the order in which pages came,
which a rule such as "join the first cluster that fits" would: what a batch computation finds,
the observers find as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, Final

from webindex.fingerprints import NEAR, bands, hamming

__all__ = ["NEAR_KEY", "band_rows", "content_key", "near_key", "partition", "simhash_of"]

NEAR_KEY: Final = "near/"
TEXT_KEY: Final = "text/"


def content_key(fingerprint: Mapping[str, Any]) -> str:
    """The row of `keys` that a page stands for with its text."""
    simhash, text_hash = fingerprint["simhash"], fingerprint["hash"]
    return f"{TEXT_KEY}{text_hash}" if simhash is None else f"{NEAR_KEY}{simhash}"


def near_key(simhash: int) -> str:
    """The row of `keys` for the pages with this simhash."""
    return f"{NEAR_KEY}{simhash:016x}"


def simhash_of(content: str) -> int | None:
    """The simhash that a content key is made of; None for that of a short page."""
    return int(content[len(NEAR_KEY) :], 16) if content.startswith(NEAR_KEY) else None


def band_rows(simhash: int) -> list[str]:
    """The four rows of `keys` in which near simhashes meet: they agree in at least one band."""
    return [f"band/{place}/{bits:04x}" for place, bits in enumerate(bands(simhash))]


def partition(members: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The connected components of some pages, the largest first.

    Args:
        members: by page id, as in `clusters.member`: `url`, `content` and `target` are looked at.
            A target that is not among them joins nothing.
    """
    above = {page: page for page in members}

    def root(page: str) -> str:
        while above[page] != page:
            above[page] = page = above[above[page]]
        return page

    for one, other in _edges(members):
        above[root(one)] = root(other)
    components: defaultdict[str, list[str]] = defaultdict(list)
    for page in members:
        components[root(page)].append(page)
    return sorted(components.values(), key=lambda part: (-len(part), min(part)))


def _edges(members: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    first: dict[str, str] = {}
    by_url = {one["url"]: page for page, one in members.items()}
    for page, one in members.items():
        yield page, first.setdefault(one["content"], page)
        target = by_url.get(one["target"])
        if target is not None:
            yield page, target
    for one_key, other_key in _near_keys(first):
        yield first[one_key], first[other_key]


def _near_keys(contents: Iterable[str]) -> Iterator[tuple[str, str]]:
    meeting: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for content in contents:
        simhash = simhash_of(content)
        if simhash is not None:
            for row in band_rows(simhash):
                meeting[row].append((content, simhash))
    for there in meeting.values():
        for (one, mine), (other, its) in combinations(there, 2):
            if hamming(mine, its) <= NEAR:
                yield one, other
