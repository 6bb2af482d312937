"""§2.5 Batching: fewer, larger store calls.

The batching that the paper does over the network takes place here at three levels:

* Conditional mutations of one transaction go to the store in bounded batches (`batches`), which
  become one LMDB transaction, one request per region or many calls in flight.
* Commits of many threads share one fsync: group commit, in `percola.store.lmdb.environment`.
* Reads of one transaction are cached (`ReadCache`): its snapshot does not change, so they stay
  valid. `get_many` and `get_rows` read many cells in one call.

The paper delays single reads to batch them and compensates by prefetching what past
transactions read next. On an embedded store a read costs about a microsecond, less than the
delay or the prediction. On a store behind a network, the cache and the prediction
(`percola.transactions.prefetch`) are used; nothing is delayed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from percola.cells import Cell
from percola.store.base import CellState, Put, RowMutation
from percola.store.chunking import cut
from percola.transactions.prefetch import BYTES, Address, ColumnsAsked, ReadAhead, shape_of

BATCH_ROWS: Final = 2_000
BATCH_BYTES: Final = 8 * 1024 * 1024
READ_CACHE_CELLS: Final = 10_000
READ_CACHE_BYTES: Final = 32 * 1024 * 1024


def batches(mutations: Iterable[RowMutation]) -> Iterator[list[RowMutation]]:
    """Cut mutations into batches of bounded rows and bytes, in order.

    `mutations` may be a generator: at most one batch is in memory at a time.
    """
    return cut(mutations, _bytes_put, BATCH_ROWS, BATCH_BYTES)


def _bytes_put(mutation: RowMutation) -> int:
    return sum(len(change.value) for change in mutation.changes if isinstance(change, Put))


RowCells: TypeAlias = list[tuple[Cell, CellState]]
"""The cells of a row, among the requested columns, that have a lock or a value."""


class ReadCache(dict[Cell, CellState]):
    """A bounded cache of a transaction's reads; it is cleared when it is full.

    Rows read at once are kept separately from cells, keyed by the requested columns.

    Args:
        ahead: predicts what else to read, and learns from reads; None: no prefetching.
    """

    __slots__ = ("_bytes", "_rows", "_rows_cells", "ahead")

    def __init__(self, ahead: ReadAhead | None = None) -> None:
        self._bytes = 0
        self._rows: dict[tuple[bytes, Address], RowCells] = {}
        self._rows_cells = 0
        self.ahead = ahead

    def guess(self, cells: Sequence[Cell], written: Container[Cell]) -> list[Cell]:
        """The cells to prefetch together with `cells`, except those in `written`."""
        return [] if self.ahead is None else self.ahead.guess(cells, written)

    def keep(self, cell: Cell, state: CellState, *, asked: bool = True) -> None:
        """Cache an unlocked state; `asked`: the transaction read it, it was not prefetched."""
        self._make_room(1, len(state[2] or b""))
        self[cell] = state
        if self.ahead is not None:
            if asked:
                self.ahead.read(cell, state)
            else:
                self.ahead.came(cell, state)

    def _make_room(self, cells: int, size: int) -> None:
        self._bytes += size
        held = len(self) + self._rows_cells
        if held + cells > READ_CACHE_CELLS or self._bytes > READ_CACHE_BYTES:
            self.clear()
            self._rows.clear()
            self._rows_cells = 0
            self._bytes = size

    def look_up(self, cell: Cell) -> CellState | None:
        """The cached state of a cell that is being read."""
        state = self.get(cell)
        if state is not None and self.ahead is not None:
            self.ahead.read(cell, state)
        return state

    # --- Rows that are read whole -------------------------------------------------------

    def look_up_rows(
        self, table: str, rows: Iterable[bytes], columns: ColumnsAsked
    ) -> dict[bytes, RowCells]:
        """The cached cells of rows that are being read."""
        shape = shape_of(table, columns)
        found = {row: cells for row in rows if (cells := self._rows.get((row, shape))) is not None}
        if self.ahead is not None:
            for row, cells in found.items():
                self.ahead.read_row(row, shape, _bytes_of(cells))
        return found

    def guess_rows(self, table: str, rows: Sequence[bytes], columns: ColumnsAsked) -> list[bytes]:
        """Rows not fetched yet that should be prefetched together with `rows`."""
        if self.ahead is None:
            return []
        return self.ahead.guess_rows(rows, shape_of(table, columns))

    def keep_rows(
        self,
        table: str,
        columns: ColumnsAsked,
        found: Mapping[bytes, RowCells],
        asked: Container[bytes],
    ) -> None:
        """Cache rows that have no locked cell; those not in `asked` were prefetched."""
        shape, left = shape_of(table, columns), BYTES
        for row, cells in found.items():
            size = _bytes_of(cells)
            # A lock matters only when the row is requested: then it is read again.
            fits = len(cells) < READ_CACHE_CELLS and all(state[0] is None for _, state in cells)
            if row not in asked:
                left -= size
                fits = fits and left >= 0
            if self.ahead is not None:
                if row in asked:
                    self.ahead.read_row(row, shape, size)
                elif fits:
                    self.ahead.came_row(row, shape, size)
                else:
                    self.ahead.leave_out(row, shape)
            if fits:
                # Empty rows are cached, too.
                self._make_room(len(cells) + 1, size)
                self._rows[row, shape] = cells
                self._rows_cells += len(cells) + 1

    def end(self) -> None:
        """The transaction has ended."""
        if self.ahead is not None:
            self.ahead.end()


def _bytes_of(cells: RowCells) -> int:
    return sum(len(cell.column) + len(state[2] or b"") for cell, state in cells)
