"""§2.2 Own writes: a transaction merges its buffer into the rows and ranges that it reads.

The buffer is a dict, which serves single cells directly. Rows and ranges need the cells in sorted
order. Sorting happens on such reads, never on writes:

    buffer          c  a  d  b  e              by first write; rewriting a cell keeps its place
    runs            [a b c d]                  the first read of a row or range sorts all cells
                    [a b c d] [e]              the next one sorts the new cells into another run

Cells are never removed from the buffer, and a reversed dict yields its newest keys first, so the
number of cells in runs determines which cells are new. A run less than twice as long as the next
one is merged with it. So there are about log n runs, and a cell is moved about log n times, however
writes and reads alternate.

Runs are immutable. A scan iterates over the runs that existed when it reached its current chunk of
the store's rows, whatever is written meanwhile, so it terminates.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter
from typing import Final, TypeAlias

from percola.cells import Cell, Op
from percola.store.base import is_wanted
from percola.transactions.prefetch import ColumnsAsked

_LOCK: Final = int(Op.LOCK)
_new_cell: Final = tuple.__new__  # A third of the time that Cell(…) takes.
_row_of: Final = itemgetter(Cell._fields.index("row"))

Rows: TypeAlias = Iterator[tuple[bytes, dict[bytes, bytes]]]
"""Rows in order, with the values of their columns in order."""

Writes: TypeAlias = dict[Cell, tuple[int, bytes | None]]
"""A transaction's buffer: the operation and the value of each cell that it writes."""

Changed: TypeAlias = dict[bytes, bytes | None]
"""A transaction's own writes to a row, by column; None deletes the column."""


class OwnWrites:
    """A transaction's buffer by table and row, in order.

    Args:
        writes: the buffer; cells may be added to it and change, but not be removed.
    """

    __slots__ = ("_ordered", "_runs", "_writes")

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._ordered = 0
        self._runs: list[list[Cell]] = []  # Each at least twice as long as the next.

    def lay_over(
        self, stored: Rows, table: str, start: bytes, end: bytes, wanted: ColumnsAsked
    ) -> Rows:
        """Merge own writes into `stored`, the store's rows in [start, end)."""
        if end == start + b"\0":
            return self._lay_over_row(stored, table, start, wanted)
        return self._lay_over_range(stored, table, start, end, wanted)

    def _lay_over_row(self, stored: Rows, table: str, row: bytes, wanted: ColumnsAsked) -> Rows:
        writes, low = self._writes, _new_cell(Cell, (table, row, b""))
        changed: Changed = {}
        for run in self._in_order():
            for at in range(bisect_left(run, low), len(run)):
                cell = run[at]
                if cell[1] != row or cell[0] != table:
                    break
                op, value = writes[cell]
                if op != _LOCK and is_wanted(cell[2], wanted):
                    changed[cell[2]] = value
        if not changed:
            return stored
        _, values = next(stored, (row, {}))
        values = _merged(values, changed)
        return iter(((row, values),) if values else ())

    def _lay_over_range(
        self, stored: Rows, table: str, start: bytes, end: bytes, wanted: ColumnsAsked
    ) -> Rows:
        own = self._rows(table, start, end, wanted)
        row, changed = next(own, _NO_MORE)
        for key, values in stored:
            while row and row < key:
                if added := _merged({}, changed):
                    yield row, added
                row, changed = next(own, _NO_MORE)
            if row == key:
                values = _merged(values, changed)
                row, changed = next(own, _NO_MORE)
            if values:
                yield key, values
        while row:
            if added := _merged({}, changed):
                yield row, added
            row, changed = next(own, _NO_MORE)

    def _rows(
        self, table: str, start: bytes, end: bytes, wanted: ColumnsAsked
    ) -> Iterator[tuple[bytes, Changed]]:
        """The transaction's own writes in a range, row by row, in order."""
        low = _new_cell(Cell, (table, start, b""))
        high = _new_cell(Cell, (table, end, b"") if end else (f"{table}\0", b"", b""))
        runs = [_between(run, low, high) for run in self._in_order()]
        cells = runs[0] if len(runs) == 1 else heapq.merge(*runs)
        writes = self._writes
        for row, group in itertools.groupby(cells, _row_of):
            changed: Changed = {}
            for cell in group:
                op, value = writes[cell]
                if op != _LOCK and is_wanted(cell.column, wanted):
                    changed[cell.column] = value
            if changed:
                yield row, changed

    def _in_order(self) -> list[list[Cell]]:
        """The runs, including all cells written so far."""
        runs, new = self._runs, len(self._writes) - self._ordered
        if new:
            run = sorted(itertools.islice(reversed(self._writes), new))
            while runs and len(runs[-1]) < 2 * len(run):
                run = sorted(runs.pop() + run)  # Linear for two sorted lists.
            runs.append(run)
            self._ordered += new
        return runs


_NO_MORE: Final[tuple[bytes, Changed]] = (b"", {})


def _between(run: list[Cell], low: Cell, high: Cell) -> Iterator[Cell]:
    """A run's cells in [low, high), lazily."""
    first = bisect_left(run, low)
    return map(run.__getitem__, range(first, bisect_left(run, high, first)))


def _merged(values: dict[bytes, bytes], changed: Changed) -> dict[bytes, bytes]:
    """A row's columns, in order, with the changes applied and deleted columns removed."""
    merged = values | changed
    return {name: raw for name in sorted(merged) if (raw := merged[name]) is not None}
