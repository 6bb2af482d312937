"""§2.1, §2.5: the parts of a batch that may be under way together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def waves(addresses: Iterable[Sequence[tuple[str, bytes]]]) -> list[list[int]]:
    """Split a batch into waves, to be sent one after the other: no row is in one twice.

    Args:
        addresses: (table, row) of the rows that each item of the batch touches.

    Returns the indexes of the items of each wave. The items that touch a row stay in their order.
    """
    found: list[list[int]] = []
    following: dict[tuple[str, bytes], int] = {}
    for at, touched in enumerate(addresses):
        wave = max((following.get(one, 0) for one in touched), default=0)
        if wave == len(found):
            found.append([])
        found[wave].append(at)
        following.update((one, wave + 1) for one in touched)
    return found
