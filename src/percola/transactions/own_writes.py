"""§2.2 Own writes: what a transaction lays over the rows and ranges that it reads.

A transaction's buffer is a dict, which answers for a single cell at once. A row or a range takes
the cells in order. The order is made when one is read, never by writing:

    buffer          c  a  d  b  e              by first write; a cell that is written again stays
    runs            [a b c d]                  when the first row or range is read: all of it
                    [a b c d] [e]              when the next one is: what is new, a run of its own

Cells are never removed from the buffer, and a dict yields its newest keys first when it is
reversed: so the number of cells in runs says which are new. A run that is not at least twice as
long as the one behind it is merged with that one. So there are about log n runs, and a cell is
moved about log n times, however writes and reads alternate.

A run never changes once it is made. A scan goes through those that were there when it reached its
present chunk of the store's rows, whatever is written meanwhile, and so it ends.
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
from percola.transactions.snapshot import Writes

_LOCK: Final = int(Op.LOCK)
_new_cell: Final = tuple.__new__  # A third of the time that Cell(…) takes.
_row_of: Final = itemgetter(Cell._fields.index("row"))

Rows: TypeAlias = Iterator[tuple[bytes, dict[bytes, bytes]]]
"""Rows in order, with the values of their columns in order."""

Changed: TypeAlias = dict[bytes, bytes | None]
"""The own writes of a row by column; None deletes it."""


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
        """The rows in [start, end) as the transaction sees them; `stored` are the store's."""
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
        """The rows of a range that are written, in order."""
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
        """The runs, with all that has been written by now."""
        runs, new = self._runs, len(self._writes) - self._ordered
        if new:
            run = sorted(itertools.islice(reversed(self._writes), new))
            while runs and len(runs[-1]) < 2 * len(run):
                run = sorted(runs.pop() + run)  # Of two that are in order: linear.
            runs.append(run)
            self._ordered += new
        return runs


_NO_MORE: Final[tuple[bytes, Changed]] = (b"", {})


def _between(run: list[Cell], low: Cell, high: Cell) -> Iterator[Cell]:
    """A run's cells in [low, high): none is touched before it is asked for."""
    first = bisect_left(run, low)
    return map(run.__getitem__, range(first, bisect_left(run, high, first)))


def _merged(values: dict[bytes, bytes], changed: Changed) -> dict[bytes, bytes]:
    """A row's columns, in order, with what has been changed; those that are deleted go."""
    merged = values | changed
    return {name: raw for name in sorted(merged) if (raw := merged[name]) is not None}
