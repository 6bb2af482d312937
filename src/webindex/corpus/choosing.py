"""Chooses a smaller sample of the documents, of the same shape and determined by the seed.

Every package contributes its share, and within a package neighbouring documents are taken together:
they link to one another, so the sample keeps its links.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final, TypeVar

__all__ = ["blocks", "choose", "quotas", "rank", "share_of"]

Key = TypeVar("Key", bound=Hashable)

BLOCK: Final = 10
"""Neighbouring documents that are taken together."""


def rank(*parts: object) -> int:
    """A number that is the same in every run, distributed evenly over 0 … 2⁶⁴ - 1."""
    text = "\0".join(str(one) for one in parts)
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())


def share_of(share: float, keys: Iterable[Key], *seed: object) -> set[Key]:
    """A share (0 … 1) of the distinct keys, at least one if there is any."""
    ordered = sorted(set(keys), key=lambda one: (rank(*seed, one), str(one)))
    return set(ordered[: max(1, round(share * len(ordered)))])


def quotas(sizes: Sequence[int], total: int) -> list[int]:
    """Documents to take from each package, in proportion to its size; at least one if it can."""
    have = sum(sizes)
    if total >= have:
        return list(sizes)
    given = [min(size, max(1, size * total // have)) for size in sizes]
    largest = sorted(range(len(sizes)), key=lambda one: -sizes[one])
    # The largest packages absorb the rounding error, one document each.
    while (off := total - sum(given)) and (off > 0 or max(given) > 1):
        for at in largest[: abs(off)]:
            given[at] += 1 if off > 0 else -(given[at] > 1)
            given[at] = min(given[at], sizes[at])
    return given


def blocks(urls: Sequence[str], *seed: object) -> list[Sequence[str]]:
    """The URLs in blocks of neighbours; only the seed decides the order of the blocks."""
    cut = [urls[at : at + BLOCK] for at in range(0, len(urls), BLOCK)]
    return sorted(cut, key=lambda block: rank(*seed, block[0]))


def choose(urls: Sequence[str], count: int, seed: int) -> set[str]:
    """Choose `count` of a package's URLs, given in the order of their paths."""
    if count >= len(urls):
        return set(urls)
    # The front page first: every other page links to it.
    front = min(urls, key=lambda url: (not url.endswith("/index.html"), url.count("/"), url))
    ordered = (url for block in blocks(urls, seed, "choose") for url in block if url != front)
    return {front, *islice(ordered, max(0, count - 1))}
