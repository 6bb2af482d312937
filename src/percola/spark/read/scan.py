"""§2.4 The scan of a task: a range of a table's rows at one timestamp, as Arrow batches.

Single columns are read column by column and families cell after cell, into Arrow arrays
(`percola.store.capabilities`). In both cases a lock on a cell is resolved first and the cell read
again, as by every reader (figure 6, rules P9 and P10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from percola import LockTimeoutError
from percola.cells import Cell, decode_lock
from percola.spark.columns import (
    Chosen,
    arrays_of,
    cells_of,
    row_array,
    rows_of,
    schema_of,
    value_array,
)
from percola.spark.metrics import TaskMetrics
from percola.spark.read.family_rows import LongRows
from percola.store.base import CellScan, CellState, ColumnScan
from percola.store.capabilities import scan_cells, scan_columns
from percola.store.walks import state_beneath
from percola.transactions.context import TransactionContext

_ROWS: Final = 8192
_FIRST_CELLS: Final = 256
_CELLS: Final = 8192
_ROWS_OF_CELLS: Final = 64
"""A batch may have more than `_CELLS` if it has fewer rows: each of its columns costs time."""
_BYTES: Final = 8 << 20
"""About how many bytes of values a batch holds; more only for a single larger row."""


class Sieve(NamedTuple):
    """A test of one column's values that rows have to pass.

    Attributes:
        at: the column's index among those chosen.
        test: from its values to a mask; rows whose value is not true are dropped.
    """

    at: int
    test: Callable[[pa.Array], pa.Array]


class RangeReader:
    """Reads ranges of one table at `ts`.

    Args:
        context: the repository's transaction context.
        table: the table's name.
        ts: the timestamp; the caller protects it from garbage collection meanwhile.
        fails_on_lock: raise LockTimeoutError at once for the lock of a live transaction.

    Attributes:
        metrics: what has been read so far.
    """

    def __init__(
        self, context: TransactionContext, table: str, ts: int, *, fails_on_lock: bool = False
    ) -> None:
        self._context = context
        self._store = context.store
        self._table, self._ts = table, ts
        self._fails_on_lock = fails_on_lock
        self.metrics = TaskMetrics()

    def batches(
        self,
        columns: Sequence[Chosen],
        start: bytes,
        end: bytes,
        sieves: Sequence[Sieve] = (),
        every: Sequence[Chosen] | None = None,
    ) -> Iterator[Any]:
        """The rows from `start` to before `end` that have one of `columns`, as Arrow batches.

        With `every`, the rows that have one of those columns, which are read but not decoded.
        Only the rows that pass all sieves are returned. Raises WrongTypeError, LockTimeoutError,
        SnapshotTooOldError, StoreError.
        """
        wanted = _wanted(every or columns)
        if wanted and not any(is_prefix for _, is_prefix in wanted):
            names = list(dict.fromkeys(name for name, _ in wanted))
            return self._by_column(columns, names, start, end, sieves)
        return self._by_cell(columns, wanted or None, start, end, sieves)

    def points(
        self,
        columns: Sequence[Chosen],
        keys: Sequence[bytes],
        sieves: Sequence[Sieve] = (),
        every: Sequence[Chosen] | None = None,
    ) -> Iterator[Any]:
        """What `batches` returns for each of these rows, which are distinct: many by one call."""
        schema, wanted = schema_of(columns), _wanted(every or columns)
        missing, limit, most = list(keys), _FIRST_CELLS, _most_cells(columns)
        while missing:
            stored = self._store.scan_rows(
                self._table, missing[:limit], self._ts, columns=wanted or None, limit=limit
            )
            missing = [key for key in missing[:limit] if key not in stored] + missing[limit:]
            rows = [(key, found) for key, of in stored.items() if (found := self._values(of))]
            cells = cells_of(rows)
            self._count(cells)
            limit = _next_limit(limit, cells.values.nbytes, most)
            if rows:
                batch = pa.RecordBatch.from_arrays(arrays_of(columns, cells, schema), schema=schema)
                yield from _sifted(batch, sieves)

    def long_batches(self, columns: LongRows, start: bytes, end: bytes) -> Iterator[Any]:
        """The cells of a family, one per row, as Arrow batches; raises the errors of `batches`."""
        for found in self._cells([(columns.family.prefix, True)], start, end, _CELLS):
            rows = found.rows.take(pa.array(rows_of(found)))
            for at in range(0, len(rows), _CELLS):
                parts = (rows, found.columns, found.values)
                yield columns.batch(*(one[at : at + _CELLS] for one in parts))

    def some_rows(self, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """The encoded values of rows by column, of as many of these as one call reads.

        That is at least one of them, if there are any. Raises the errors of `batches`.
        """
        stored = self._store.scan_rows(
            self._table, list(dict.fromkeys(keys)), self._ts, limit=_CELLS
        )
        self.metrics.calls += 1
        return {row: self._values(cells) for row, cells in stored.items()}

    def _values(self, cells: Iterable[tuple[Cell, CellState]]) -> dict[bytes, bytes]:
        """The encoded values of a row's cells once their locks are resolved."""
        values = {}
        for cell, (lock, _, value) in cells:
            raw = value if lock is None else self._settled(cell, lock)
            if raw is not None:
                values[cell.column] = raw
        return values

    # --- Column by column ---------------------------------------------------------------

    def _by_column(
        self,
        columns: Sequence[Chosen],
        names: list[bytes],
        start: bytes,
        end: bytes,
        sieves: Sequence[Sieve],
    ) -> Iterator[Any]:
        schema = schema_of(columns)
        places = {name: at for at, name in enumerate(names)}
        position: bytes | None = start
        while position is not None:
            found = scan_columns(self._store, self._table, position, end, self._ts, names, _ROWS)
            position = found.following
            keys, values = found.rows, found.values
            if found.blocked:
                keys, values = self._unblocked(found, names)
            self.metrics.calls += 1
            self.metrics.rows += len(keys)
            self.metrics.size += keys.nbytes + sum(one.nbytes for one in values)
            arrays: dict[int, pa.Array] = {}
            for at, test in sieves:
                # An array decoded for an earlier sieve is filtered with the others.
                array = arrays.get(at)
                if array is None:
                    array = self._array(columns[at], keys, values, places, schema.field(at).type)
                mask = test(array).fill_null(False)
                arrays = {at: one.filter(mask) for at, one in {**arrays, at: array}.items()}
                keys, values = keys.filter(mask), [one.filter(mask) for one in values]
            if len(keys):
                for at, one in enumerate(columns):
                    if at not in arrays:
                        kind = schema.field(at).type
                        arrays[at] = self._array(one, keys, values, places, kind)
                found_arrays = [arrays[at] for at in range(len(columns))]
                yield pa.RecordBatch.from_arrays(found_arrays, schema=schema)

    def _array(
        self,
        one: Chosen,
        keys: pa.Array,
        values: Sequence[pa.Array],
        places: Mapping[bytes, int],
        kind: pa.DataType,
    ) -> pa.Array:
        if one.wanted is None:
            return row_array(keys, kind, one.row_codec)
        return value_array(one, values[places[one.wanted[0]]], keys, kind)

    def _unblocked(self, found: ColumnScan, names: list[bytes]) -> tuple[Any, list[Any]]:
        """The rows and values once all locks are resolved; rows without values are dropped."""
        keys = found.rows.to_pylist()
        values = [one.to_pylist() for one in found.values]
        for row, column, lock in found.blocked:
            values[column][row] = self._settled(Cell(self._table, keys[row], names[column]), lock)
        kept = [at for at in range(len(keys)) if any(one[at] is not None for one in values)]
        return (
            pa.array([keys[at] for at in kept], pa.binary()),
            [pa.array([one[at] for at in kept], pa.binary()) for one in values],
        )

    # --- Cell by cell -------------------------------------------------------------------

    def _by_cell(
        self,
        columns: Sequence[Chosen],
        wanted: list[tuple[bytes, bool]] | None,
        start: bytes,
        end: bytes,
        sieves: Sequence[Sieve],
    ) -> Iterator[Any]:
        schema = schema_of(columns)
        for found in self._cells(wanted, start, end, _most_cells(columns)):
            batch = pa.RecordBatch.from_arrays(arrays_of(columns, found, schema), schema=schema)
            yield from _sifted(batch, sieves)

    def _cells(
        self, wanted: list[tuple[bytes, bool]] | None, start: bytes, end: bytes, most: int
    ) -> Iterator[CellScan]:
        """The cells of the range once all locks are resolved, in parts that are not empty.

        A part has up to about `most`, fewer if their values are long.
        """
        position: bytes | None = start
        limit = _FIRST_CELLS
        while position is not None:
            found = scan_cells(self._store, self._table, position, end, self._ts, wanted, limit)
            position = found.following
            if found.blocked:
                found = self._without_locks(found)
            self._count(found)
            limit = _next_limit(limit, found.values.nbytes, most)
            if len(found.rows):
                yield found

    def _count(self, found: CellScan) -> None:
        """Count a call and what it has found."""
        self.metrics.calls += 1
        self.metrics.rows += len(found.rows)
        self.metrics.size += found.rows.nbytes + found.values.nbytes

    def _without_locks(self, found: CellScan) -> CellScan:
        """The cells once all locks are resolved; cells and rows without a value are dropped."""
        row_of, values = rows_of(found), found.values.to_pylist()
        for at, lock in found.blocked:
            row, column = found.rows[row_of[at]].as_py(), found.columns[at].as_py()
            values[at] = self._settled(Cell(self._table, row, column), lock)
        kept = np.array([value is not None for value in values], bool)
        counts = np.bincount(row_of[kept], minlength=len(found.rows))
        return CellScan(
            found.rows.filter(pa.array(counts > 0)),
            pa.array(np.append(0, np.cumsum(counts[counts > 0])).astype(np.int32)),
            found.columns.filter(pa.array(kept)),
            pa.array([value for value in values if value is not None], pa.binary()),
            [],
            found.following,
        )

    # --- Locks --------------------------------------------------------------------------

    def _settled(self, cell: Cell, lock: tuple[int, bytes] | None) -> bytes | None:
        """The cell's value once its lock is resolved."""
        resolver, clock = self._context.resolver, self._context.clock
        value: bytes | None = None
        begun = clock.monotonic()
        while lock is not None:
            self.metrics.conflicts += 1
            self.metrics.calls += 1
            start_ts, raw = lock
            if not self._fails_on_lock:
                gone = resolver.wait_below(cell, start_ts, raw, self._ts)
            elif resolver.settled_below(cell, start_ts, raw, self._ts) >= self._ts:
                gone = False
            else:
                raise LockTimeoutError(
                    f"{self._context.shown(cell)} "
                    f"is locked by the live transaction that started at {start_ts} (owner "
                    f"{decode_lock(raw).owner_name}). Read with onLock=wait, or "
                    "with onLock=avoid to see the table as it was before."
                )
            if not gone:
                value = state_beneath(self._store, cell, self._ts)[2]
                break
            lock, _, value = self._store.read((cell,), self._ts)[0]
        self.metrics.waited += clock.monotonic() - begun
        return value


def _wanted(columns: Iterable[Chosen]) -> list[tuple[bytes, bool]]:
    return [one.wanted for one in columns if one.wanted is not None]


def _most_cells(columns: Sequence[Chosen]) -> int:
    """How many cells a batch of these columns has at most."""
    return max(_CELLS, _ROWS_OF_CELLS * len(columns))


def _next_limit(limit: int, size: int, most: int) -> int:
    """How many cells to read next, if `limit` of them had values of `size` bytes."""
    return max(16, min(most, limit * 4, limit * _BYTES // max(1, size)))


def _sifted(batch: Any, sieves: Sequence[Sieve]) -> Iterator[Any]:
    """The batch's rows that pass all sieves, if there are any."""
    for at, test in sieves:
        batch = batch.filter(test(batch.column(at)))
    if batch.num_rows:
        yield batch


def merged(batches: Iterator[Any]) -> Iterator[Any]:
    """Concatenate small batches."""
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
