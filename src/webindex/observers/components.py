"""§3.1: which pages are one document to a reader.

Two live pages are joined by an edge if

    they have the same content      the same title and text, or the same bytes if they are short
    their contents are near         one of them leads the other: see below
    one leads to the other          by a `rel=canonical` that counts

and a cluster is a connected component. So it does not depend on the order in which pages arrived,
as it would with a rule such as "join the first cluster that fits": the observers find the same
clusters as a batch computation.

Being near (`fingerprints.Sketch.is_near`, between contents that share a band) is no equivalence
relation: a chain of small edits ends at a different text. So contents are joined to their
*leaders* only, which makes groups of texts that are all near one text: in the order of their keys,
a content is a leader unless an earlier leader is near to it; then the first such leads it. A text
is never joined to another one through a third that only resembles its neighbour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from webindex.page.fingerprints import Sketch

__all__ = ["band_rows", "content_in", "content_key", "packed_key", "partition", "similar"]

LONG: Final = "near/"
SHORT: Final = "text/"
PACKED: Final = 16
"""Bytes of a content in a band."""


def content_key(fingerprint: Mapping[str, Any]) -> str:
    """The row of `keys` for a page's text."""
    heading, text = fingerprint["heading"], fingerprint["hash"]
    return f"{SHORT}{text}" if heading is None else f"{LONG}{heading}/{text.partition(':')[2]}"


def band_rows(content: str, sketch: Sketch) -> list[str]:
    """The rows of `keys`, all of one heading, that list contents which may be near."""
    heading = content.split("/")[1]
    return [f"band/{heading}/{band}" for band in sketch.bands]


def packed_key(content: str) -> bytes:
    """A content as its bands list it; the order of the bytes is the order of the keys."""
    return bytes.fromhex(content.rpartition("/")[2])


def content_in(band_row: str, packed: bytes) -> str:
    """The content that a band lists."""
    return f"{LONG}{band_row.split('/')[1]}/{packed.hex()}"


def similar(one: bytes, other: bytes) -> bool:
    """Whether two contents of one band are near, by their sketches as they are stored."""
    return Sketch.unpack(one).is_near(Sketch.unpack(other))


def partition(members: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The connected components of some pages, the largest first.

    Args:
        members: by page id, as in `clusters.member`: `url`, `leader` and `target` are used.
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
        yield page, first.setdefault(one["leader"], page)
        target = by_url.get(one["target"])
        if target is not None:
            yield page, target
