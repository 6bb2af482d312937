"""§2.4 The size of a table, as Spark's planner wants it: cheap, and rather too large.

Spark broadcasts a table that it believes to be small. Every reference to a table in a query asks
for its size, so no table is scanned for it:

    small tables   are read: up to 1,000 cells, or a megabyte of them, among 10,000 deleted ones
    LMDB           knows how many entries its tables have together, old versions included: as many
                   as the table can have. They are taken to be of the size of those that were read
    other stores   do not know: nothing is estimated
"""

from __future__ import annotations

from typing import Final, NamedTuple

from percola.cells import Cell
from percola.store.base import CellState, Store
from percola.store.walks import scan_writes

_CELLS: Final = 1000
_BYTES: Final = 1 << 20
_FIRST_CELLS: Final = 64
_PASSED: Final = 10_000
"""Cells that are looked at, deleted ones included."""


class Size(NamedTuple):
    """What is known of a table's size.

    Attributes:
        rows: the number of rows; None if it is not known.
        bytes: keys and values, at most; None if it is not known.
    """

    rows: int | None
    bytes: int | None


def estimate(store: Store, table: str, ts: int) -> Size:
    """The size of a table at a timestamp, which the caller protects from garbage collection."""
    rows = cells = passed = size = 0
    position: bytes | None = b""
    limit = _FIRST_CELLS
    while position is not None and cells < _CELLS and passed < _PASSED and size < _BYTES:
        # A scan alone would go on to the next cell behind all that has been deleted.
        records, following = scan_writes(store, table, position, b"", limit, versions=1)
        found, rest = store.scan(table, position, following or b"", ts, limit=limit)
        position = following if rest is None else rest
        rows += len({cell.row for cell, _ in found})
        cells += len(found)
        passed += len(records)
        size += sum(map(_bytes_of, found))
        limit = max(1, min(_CELLS, limit * 4, (cells + 1) * _BYTES // max(1, size)))
    if position is None:
        return Size(rows, size)
    entries = store.statistics().get("cells")
    return Size(None, None if entries is None or not cells else size * entries // cells)


def _bytes_of(found: tuple[Cell, CellState]) -> int:
    cell, (_, _, value) = found
    return len(cell.row) + len(cell.column) + len(value or b"")
