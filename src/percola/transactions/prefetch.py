"""§2.5 Prefetch: the first read also fetches what past transactions read next.

"Percolator attempts to predict, each time a column is read, what other columns in a row will be
read later in the transaction": two values of a row cost about as much as one, and a call to a
store behind a network costs more than either.

    a transaction reads    pages.capture of row R              a call
    past ones read then    R's body, fingerprint, text    ──▶  prefetched into the read cache
    but never              R's rank

A *habit* is learnt per caller (an observer, or the function that `Repository.run` runs) and per
column that it reads first in a row: for each other column, the fraction of transactions that read
it later, weighted towards recent ones. A column that a fifth of them read is prefetched; one that
is no longer read is dropped after six useless fetches. So is a column whose values are large for
how seldom they are read: useless fetches may cost as much as the calls that they save, and no more.
The numbers of habits, of columns per habit, and of rows and cells per call are bounded. In a batch,
each row is learnt from as soon as the next one begins.

An observer declares the rows it was called for (`ReadAhead.expect`): its own row, or all rows of
its batch. What past runs read of their own rows is fetched for all of these in one call, also in
other tables whose rows have the same key. The paper delays reads to form batches; here no delay is
needed, for the rows are known.

Results do not change. A prefetched state is the cell's state at the transaction's own start_ts; it
is kept only if no lock is in the way, and a state that no lock hides never changes (rule P9).
Prefetching never waits for a lock or resolves one: if the transaction asks for the cell, it is read
again. Nor does a damaged cell cause an error unless the transaction asks for it.

Reading whole families of a row (`get_row`) is a habit as well, for the rows that an observer was
called for: reading one row also fetches the others of its batch, in the same call. This does not
happen with the first read, because a store reads single columns by another request. The number of
cells is not known in advance: rows beyond the bounds, and rows with a lock, are not kept.

Single columns of families are not predicted: their names are data. Departure from the paper: its
prediction is within a row of one table.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from percola.cells import SYSTEM_MARK, Cell
from percola.platform import fork_safety as forks
from percola.store.base import CellState
from percola.store.counting import current_caller

Address: TypeAlias = tuple[str, bytes]
"""A column: its table's name and its key. Or a shape, for rows read at once: see `shape_of`."""

ColumnsAsked: TypeAlias = Sequence[tuple[bytes, bool]] | None
"""Columns of a row: (name, is_prefix) each; None: all but Percola's own."""

HABITS: Final = 1_000
"""The most habits remembered; beyond that, all are forgotten and learnt again."""

COLUMNS: Final = 32
"""Columns that a habit has at most."""

CELLS: Final = 512
"""The most cells prefetched with one call."""

ROW_CELLS: Final = 4_096
"""The most cells of rows read at once that one call returns if it prefetches rows."""

BYTES: Final = 1 << 20
"""The most bytes prefetched with one call, estimated from past values."""

WORTH: Final = 32 * 1024
"""Bytes that may be fetched in vain per saved call: about the cost of a call."""

LIKELY: Final = 0.2
"""The least fraction of past transactions that read a column for it to be prefetched."""

_NEWEST: Final = 0.25
_GONE: Final = 0.01
_ROWS: Final = 4_096
_SIZES: Final = 10_000

_Key: TypeAlias = tuple[str, Address | None]
"""A habit's name: the caller, and the column it reads first; None for an observer's own rows."""


_SHAPE: Final = b"\0"


def shape_of(table: str, columns: ColumnsAsked) -> Address:
    """The set of columns read of a row at once, encoded as an `Address`; columns hold no NUL."""
    if columns is None:
        return table, 2 * _SHAPE
    names = [(2 * _SHAPE if is_prefix else _SHAPE) + name for name, is_prefix in columns]
    return table, _SHAPE + b"".join(sorted(names))


class Prefetch:
    """The habits of a repository's transactions in one process; safe to use from many threads.

    Attributes:
        guessed: the number of cells prefetched; a row read at once counts as one.
        used: how many of them were then read.
    """

    def __init__(self) -> None:
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        # Reentrant, and a nested call changes nothing: Python's garbage collection may end a
        # snapshot, which calls `learn`, at any point of any thread.
        self._guard = threading.RLock()
        self._is_busy = False
        self._habits: dict[_Key, dict[Address, float]] = {}
        self._sizes: dict[Address, float] = {}
        # The results of `likely` since the last call of `learn`.
        self._likely: dict[_Key, Sequence[tuple[Address, float]]] = {}
        self.guessed = 0
        self.used = 0

    def begin(self) -> ReadAhead:
        """Begin to track a transaction of this thread's caller."""
        return ReadAhead(self, current_caller())

    def likely(self, key: _Key) -> Sequence[tuple[Address, float]]:
        """The columns worth prefetching with a first read, with their average sizes."""
        known = self._likely.get(key)
        if known is not None:
            return known
        with self._alone() as is_alone:
            if not is_alone:
                return ()
            found = []
            for address, share in self._habits.get(key, {}).items():
                size = self._sizes.get(address, 0.0)
                if share >= LIKELY and size * (1 - share) <= WORTH * share:
                    found.append((address, size))
            if len(self._likely) >= HABITS:
                self._likely.clear()
            self._likely[key] = found
            return found

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the guard; yields False if this thread holds it already."""
        with self._guard:
            if self._is_busy:
                yield False
                return
            self._is_busy = True
            try:
                yield True
            finally:
                self._is_busy = False

    def counts(self) -> tuple[int, int]:
        """The number of cells prefetched, and how many of them were then read."""
        with self._guard:
            return self.guessed, self.used

    def learn(
        self,
        visits: Iterable[tuple[_Key, Collection[Address]]],
        sizes: Iterable[tuple[Address, int]],
        guessed: int,
        used: int,
    ) -> None:
        """Learn from a transaction: the columns it has read of each row, and their sizes."""
        with self._alone() as is_alone:
            if not is_alone:
                return
            self._likely.clear()
            self.guessed += guessed
            self.used += used
            for key, read in visits:
                if key not in self._habits and len(self._habits) >= HABITS:
                    self._habits.clear()
                habit = self._habits.setdefault(key, {})
                for address in habit:
                    habit[address] *= 1 - _NEWEST
                for address in read:
                    if address in habit or len(habit) < COLUMNS:
                        habit[address] = habit.get(address, 0.0) + _NEWEST
                for address in [one for one, share in habit.items() if share < _GONE]:
                    del habit[address]
            for address, size in sizes:
                if address not in self._sizes and len(self._sizes) >= _SIZES:
                    self._sizes.clear()
                before = self._sizes.get(address, float(size))
                self._sizes[address] = before + (size - before) * _NEWEST


class ReadAhead:
    """Tracks what one transaction reads, row by row, and predicts what to prefetch."""

    __slots__ = (
        "_caller",
        "_expected",
        "_fetched",
        "_finished",
        "_guessed",
        "_keys",
        "_known",
        "_later",
        "_prefetch",
        "_sizes",
        "_unread",
        "_used",
        "_visits",
    )

    def __init__(self, prefetch: Prefetch, caller: str) -> None:
        self._prefetch = prefetch
        self._caller = caller
        # The habits of this caller, interned: many rows share one.
        self._keys: dict[Address | None, _Key] = {}
        # By row key: the habit, and the columns that were read later.
        self._visits: dict[bytes, _Key] = {}
        self._later: dict[bytes, dict[Address, None]] = {}
        self._expected: Collection[bytes] = ()
        self._fetched: set[bytes] = set()
        # Rows that have been learnt from: later reads of them belong to another row's run.
        self._finished: set[bytes] = set()
        # Rows that were read at once, or are not to be prefetched any more.
        self._known: set[tuple[bytes, Address]] = set()
        self._unread: set[Cell | tuple[bytes, Address]] = set()
        self._sizes: dict[Address, int] = {}
        self._guessed = 0
        self._used = 0

    def expect(self, rows: Collection[bytes]) -> None:
        """Declare the rows that the transaction will read; more may be added later."""
        self._expected = rows

    def guess(self, cells: Sequence[Cell], written: Container[Cell]) -> list[Cell]:
        """The cells to prefetch together with `cells`, except those in `written`."""
        if len(cells) == 1:
            # The common case, usually with nothing to prefetch.
            table, row, column = cells[0]
            if not self._is_new(row):
                return []
            habit = (self._caller, (table, column))
            if row not in self._expected and not self._prefetch.likely(habit):
                self._fetched.add(row)
                return []
        asked = set(cells)
        found: dict[Cell, None] = {}
        left = float(BYTES)
        for row, first in self._first_reads(cells):
            if row in self._expected:
                self._finish()
                rows = [row, *(one for one in self._expected if self._is_new(one))]
                likely = self._prefetch.likely((self._caller, None))
            else:
                rows, likely = [row], self._prefetch.likely((self._caller, first))
            for key in dict.fromkeys(rows):
                for (table, column), size in likely:
                    cell = Cell(table, key, column)
                    if (
                        column.startswith(_SHAPE)
                        or cell in asked
                        or cell in found
                        or cell in written
                    ):
                        continue
                    left -= size
                    if len(found) >= CELLS or left < 0:
                        return list(found)
                    found[cell] = None
                self._fetched.add(key)
        return list(found)

    def _first_reads(self, cells: Sequence[Cell]) -> list[tuple[bytes, Address]]:
        """The rows of which nothing has been read before, with the first column read of each."""
        found: dict[bytes, Address] = {}
        for table, row, column in cells:
            if self._is_new(row):
                found.setdefault(row, (table, column))
        return list(found.items())

    def _is_new(self, row: bytes) -> bool:
        return row not in self._visits and row not in self._fetched and row not in self._finished

    def _finish(self) -> None:
        """Another row of the batch begins: learn from the rows that have been read."""
        if self._visits:
            self._finished.update(self._visits)
            self._learn(0, 0)

    def _learn(self, guessed: int, used: int) -> None:
        """Learn from the reads so far, and reset them."""
        visits, later, sizes = self._visits, self._later, self._sizes
        self._visits, self._later, self._sizes = {}, {}, {}
        # Copies: another thread may be reading in the same snapshot.
        read = [(key, tuple(later.get(row, ()))) for row, key in list(visits.items())]
        self._prefetch.learn(read, list(sizes.items()), guessed, used)

    def guess_rows(self, rows: Sequence[bytes], shape: Address) -> list[bytes]:
        """The other rows of the batch to prefetch, in the same shape, together with `rows`."""
        if not any(row in self._expected for row in rows):
            return []
        if not any(row in self._visits for row in rows):
            self._finish()
        for address, size in self._prefetch.likely((self._caller, None)):
            if address == shape:
                most = min(CELLS, int(BYTES // max(size, 1)))
                asked = set(rows)
                others = (
                    row
                    for row in dict.fromkeys(self._expected)
                    if row not in asked
                    and row not in self._finished
                    and (row, shape) not in self._known
                )
                return list(itertools.islice(others, most))
        return []

    def leave_out(self, row: bytes, shape: Address) -> None:
        """A row was prefetched and not kept: do not prefetch it again."""
        self._known.add((row, shape))

    def came_row(self, row: bytes, shape: Address, size: int) -> None:
        """A row was prefetched."""
        self._guessed += 1
        self._known.add((row, shape))
        self._unread.add((row, shape))
        self._note_size(shape, size)

    def read_row(self, row: bytes, shape: Address, size: int) -> None:
        """The transaction has read a row at once, from cache or store; `size` is in bytes."""
        if (row, shape) in self._unread:
            self._unread.discard((row, shape))
            self._used += 1
        if row in self._expected:
            self._known.add((row, shape))
            self._visit(row, shape, size)

    def came(self, cell: Cell, state: CellState) -> None:
        """A cell was prefetched, with no lock in the way."""
        self._guessed += 1
        self._unread.add(cell)
        self._note_size((cell.table, cell.column), len(state[2] or b""))

    def read(self, cell: Cell, state: CellState) -> None:
        """The transaction has read a cell, from cache or store."""
        table, row, column = cell
        if cell in self._unread:
            self._unread.discard(cell)
            self._used += 1
        if b":" in column and not column.startswith(SYSTEM_MARK):
            return
        self._visit(row, (table, column), len(state[2] or b""))

    def _visit(self, row: bytes, address: Address, size: int) -> None:
        """Note a read in a row."""
        visit = self._visits.get(row)
        if visit is None:
            if len(self._visits) >= _ROWS or row in self._finished:
                return
            first = None if row in self._expected else address
            visit = self._keys.get(first) or self._keys.setdefault(first, (self._caller, first))
            self._visits[row] = visit
        if visit[1] != address:
            self._later.setdefault(row, {})[address] = None
        self._note_size(address, size)

    def _note_size(self, address: Address, size: int) -> None:
        # A moving average: the last size weighs as much as all before it.
        self._sizes[address] = (self._sizes.get(address, size) + size) // 2

    def end(self) -> None:
        """The transaction has ended: learn from it. Once."""
        self._learn(self._guessed, self._used)
        self._guessed = self._used = 0
