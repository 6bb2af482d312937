"""§2.5 Calls of bounded size: a sequence is cut where a call would become too long or too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def cut(
    things: Iterable[T], weigh: Callable[[T], int], most: int, most_bytes: int
) -> Iterator[list[T]]:
    """Cut a sequence into lists, in order; no more than one list is in memory at a time.

    Args:
        things: may be made as they are needed.
        weigh: the bytes of one, or what else a call bounds.
        most: how many of them a list holds.
        most_bytes: how much of that they come to, unless a single one has more.
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
