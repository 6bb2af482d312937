"""§2.5 Batching: fewer, larger store calls.

What the paper batches over the network is batched here at three places:

* Conditional mutations of one transaction go to the store in bounded batches (`batches`): one
  LMDB transaction, one request a region, many calls in flight, as the store can.
* Commits of many threads share one fsync: group commit, in `percola.store.lmdb_environment`.
* Reads of one transaction are answered once (`ReadCache`): its snapshot does not change, so
  what has been read stays true. `get_many` and `get_row` ask for many cells in one call.

The paper delays single reads to batch them and compensates by prefetching what past
transactions read next. On an embedded store a read costs about a microsecond, less than the
delay or the guess. On a store behind a network, the cache and the prediction
(`percola.prefetch`) are at work; nothing is delayed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

from percola.cells import Cell
from percola.prefetch import ReadAhead
from percola.store.base import CellState, Put, RowMutation
from percola.store.cutting import cut

BATCH_ROWS: Final = 2_000
BATCH_BYTES: Final = 8 * 1024 * 1024
READ_CACHE_CELLS: Final = 10_000
READ_CACHE_BYTES: Final = 32 * 1024 * 1024


def batches(mutations: Iterable[RowMutation]) -> Iterator[list[RowMutation]]:
    """Cut mutations into batches of bounded rows and bytes, in order.

    They may be made as they are needed: no more than a batch is in memory at a time.
    """
    return cut(mutations, _bytes_put, BATCH_ROWS, BATCH_BYTES)


def _bytes_put(mutation: RowMutation) -> int:
    return sum(len(change.value) for change in mutation.changes if isinstance(change, Put))


class ReadCache(dict[Cell, CellState]):
    """What a transaction has read, bounded: when it is full it starts afresh.

    Args:
        ahead: guesses what else to read, and learns from what is read; None: nothing does.
    """

    __slots__ = ("_bytes", "ahead")

    def __init__(self, ahead: ReadAhead | None = None) -> None:
        self._bytes = 0
        self.ahead = ahead

    def guess(self, cells: Sequence[Cell], written: Container[Cell]) -> list[Cell]:
        """What should be read together with `cells`, and is neither here nor written."""
        return [] if self.ahead is None else self.ahead.guess(cells, written)

    def keep(self, cell: Cell, state: CellState, *, asked: bool = True) -> None:
        """Remember an unlocked state; `asked`: it was read, and not only guessed."""
        self._bytes += len(state[2] or b"")
        if len(self) >= READ_CACHE_CELLS or self._bytes > READ_CACHE_BYTES:
            self.clear()
            self._bytes = len(state[2] or b"")
        self[cell] = state
        if self.ahead is not None:
            if asked:
                self.ahead.read(cell, state)
            else:
                self.ahead.came(cell, state)

    def look_up(self, cell: Cell) -> CellState | None:
        """What is known of a cell that is read now."""
        state = self.get(cell)
        if state is not None and self.ahead is not None:
            self.ahead.read(cell, state)
        return state

    def end(self) -> None:
        """The transaction has ended."""
        if self.ahead is not None:
            self.ahead.end()
