"""§2.5: calls of bounded size: splits a sequence by number and by bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def cut(
    things: Iterable[T], weigh: Callable[[T], int], most: int, most_bytes: int
) -> Iterator[list[T]]:
    """Split a sequence into lists, in order; only one list is in memory at a time.

    Args:
        things: the sequence; may be lazy.
        weigh: returns the bytes of a thing, or another size that a call bounds.
        most: the most things in a list.
        most_bytes: the largest total size of a list, unless a single thing is larger.
    """
    part: list[T] = []
    size = 0
    for thing in things:
        weight = weigh(thing)
        if part and (len(part) >= most or size + weight > most_bytes):
            yield part
            part, size = [], 0
        part.append(thing)
        size += weight
    if part:
        yield part
