"""§2.4 Partitioning a table into ranges of rows, one per task.

Ranges are first cut at the store's tablets. An embedded store does not know sizes, so ranges are
sampled: a range with more records than one probe returns is cut at the middle of its keys,
repeatedly. Keys share long prefixes and are unevenly distributed; cutting at rows that exist,
instead of in the key space, follows their distribution.
"""

from __future__ import annotations

import heapq
import os
import random
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from percola.store.base import Store
from percola.store.walks import scan_writes

LEAST_ROWS: Final = 20_000
"""About how many write records justify a separate task."""

_LOOK: Final = 64
"""Write records that one probe of a range reads."""

_VERSIONS: Final = 64
"""Write records of a cell that count: it may have millions, and a reader looks at a few."""

_LOOKS: Final = 600
"""The maximum number of probes, which bounds planning to some tenths of a second."""

_SAMPLE: Final = 12
"""About so many ranges that were not read to their end are counted, to estimate all."""

_COUNTED: Final = 5000
"""A range is counted up to so many records; with more it is enough for any number of tasks."""


class Range(NamedTuple):
    """The rows from `start` up to but not including `end`; None is no end."""

    start: bytes
    end: bytes | None


@dataclass(order=True, slots=True)
class _Piece:
    """A range of rows. `depth` is how often its tablet was cut to get here."""

    depth: int
    start: bytes = field(compare=False)
    end: bytes = field(compare=False)
    records: int | None = field(compare=False, default=None)  # None: more than a probe reads


def default_partitions() -> int:
    """The default maximum number of tasks for a range of rows: four per core of this machine."""
    return 4 * (os.cpu_count() or 1)


def row_ranges(
    store: Store,
    table: str,
    start: bytes,
    end: bytes,
    wanted: int | None = None,
    *,
    most: int | None = None,
) -> list[tuple[bytes, bytes]]:
    """The rows from `start` up to but not including `end` (empty: no end) as ranges, in order.

    Args:
        wanted: how many, if there are enough rows; None: one per `LEAST_ROWS` records, up to
            `most`.
        most: by default `default_partitions`, or the number of tablets if there are more.
    """
    pieces = _clipped(store, table, start, end)
    most = wanted or most or max(default_partitions(), len(pieces))
    # The last piece may have no end, and then no middle to cut at.
    last = last_row(store, table, pieces[-1].start, end) if pieces else None
    if last is None:
        return [(start, end)]
    leaves: list[_Piece] = []
    looks = 0
    heapq.heapify(pieces)
    while pieces:
        piece = heapq.heappop(pieces)
        if looks < _LOOKS and len(pieces) + len(leaves) < 32 * most:
            looks += 1
            found, following = scan_writes(
                store, table, piece.start, piece.end, _LOOK, versions=_VERSIONS
            )
            if following is None:
                piece.records = sum(len(records) for _, records in found)
            else:
                middle = _middle(store, table, following, piece.end or last)
                heapq.heappush(pieces, _Piece(piece.depth + 1, piece.start, middle))
                heapq.heappush(pieces, _Piece(piece.depth + 1, middle, piece.end))
                continue
        leaves.append(piece)
    leaves.sort(key=lambda one: one.start)
    if wanted is None:
        records = _about(store, table, leaves, most * LEAST_ROWS)
        most = min(most, max(1, records // LEAST_ROWS))
    bounds = _grouped(leaves, most)
    return list(zip([start, *bounds], [*bounds, end], strict=True))


def _clipped(store: Store, table: str, start: bytes, end: bytes) -> list[_Piece]:
    """The tablets' parts between `start` and `end`."""
    pieces = []
    for low, high in store.tablets(table):
        low = max(low, start)
        high = min(high, end) if high and end else high or end
        if not high or low < high:
            pieces.append(_Piece(0, low, high))
    return pieces


def _about(store: Store, table: str, leaves: list[_Piece], enough: int) -> int:
    """About how many records there are, from some of the leaves that were not read to their end.

    Whether they are more than `enough`, at least, is told.
    """
    known = sum(leaf.records or 0 for leaf in leaves)
    unread = [leaf for leaf in leaves if leaf.records is None]
    if not unread:
        return known
    # They differ in size: the larger ones make up for the smaller ones.
    each = 4 * (enough // len(unread) + 1)
    most = min(each, _COUNTED)
    # At random: keys that are counted up are cut in a pattern.
    sample = random.Random(0).sample(unread, min(_SAMPLE, len(unread)))
    counted = 0
    for leaf in sample:
        found, _ = scan_writes(store, table, leaf.start, leaf.end, most, versions=_VERSIONS)
        records = sum(len(of) for _, of in found)
        counted += records if records < most else each
    return known + counted * len(unread) // len(sample)


def _grouped(leaves: list[_Piece], most: int) -> list[bytes]:
    """Bounds that divide the leaves into groups of about equal size."""
    # The size of a leaf that was not read to its end is estimated from its depth.
    deepest = max((leaf.depth for leaf in leaves if leaf.records is None), default=0)
    sizes = [
        leaf.records if leaf.records is not None else 4 * _LOOK << min(10, deepest - leaf.depth)
        for leaf in leaves
    ]
    total = sum(sizes)
    bounds: list[bytes] = []
    done = 0
    for leaf, size in zip(leaves, sizes, strict=True):
        if done and len(bounds) < most - 1 and done >= total * (len(bounds) + 1) / most:
            bounds.append(leaf.start)
        done += size
    return bounds


def last_row(store: Store, table: str, start: bytes, end: bytes) -> bytes | None:
    """The last row from `start` on and before `end` (empty: no end); None if there is none.

    A binary search for each byte of the key: for every prefix up to the last row's own there is a
    row at or after it, and for greater ones there is none.
    """
    known = _first_row(store, table, start, end)
    if known is None:
        return None
    begins = b""
    while True:
        low, high = known[len(begins)] if len(begins) < len(known) else -1, 256
        while high - low > 1:
            middle = (low + high) // 2
            found = _first_row(store, table, max(start, begins + bytes([middle])), end)
            if found is None:
                high = middle
            else:
                known, low = found, found[len(begins)]
        if low < 0 or _first_row(store, table, known + b"\0", end) is None:
            return known
        begins = known[: len(begins) + 1]


def _first_row(store: Store, table: str, start: bytes, end: bytes) -> bytes | None:
    if end and start >= end:
        return None
    found, _ = scan_writes(store, table, start, end, 1, versions=1)
    return found[0][0].row if found else None


def _middle(store: Store, table: str, low: bytes, high: bytes) -> bytes:
    """A row about halfway between the row `low` and the bound `high`, read as numbers."""
    while low < high:
        shared = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), None)
        if shared is None:
            shared = len(low)  # As `low` is the lesser, `high` begins with it.
        a = int.from_bytes(low[shared : shared + 8].ljust(8, b"\0"), "big")
        b = int.from_bytes(high[shared : shared + 8].ljust(8, b"\0"), "big")
        between = low[:shared] + ((a + b) // 2).to_bytes(8, "big")
        if not low < between < high:
            break
        found = _first_row(store, table, between, high)
        if found is not None:
            return found
        high = between  # No row in the upper half: most byte values occur in no key.
    return low
