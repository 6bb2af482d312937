"""§2.5: faster reads that a store may offer, and what takes their place where it does not.

A store implements `CellReads`, `ColumnReads` or `NativeCalls` by having their method; nothing else
in the store changes. Callers use `reader_of`, `scan_columns` and `scan_cells`, which work with
every store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from percola.cells import Cell
from percola.errors import ValueTooLargeError
from percola.store.base import BLOCKED, Blocked, CellScan, ColumnScan, Reader, Store

if TYPE_CHECKING:
    import percola._native as _native


@runtime_checkable
class CellReads(Protocol):
    """A store that reads single cells faster than `Store.read` does."""

    def reader(self, table: str, column: bytes) -> Reader:
        """A function that reads one column of a table, usable until the store is closed."""


@runtime_checkable
class ColumnReads(Protocol):
    """A store that scans a table into Arrow arrays faster than `Store.scan` does."""

    def scan_columns(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        columns: Sequence[bytes],
        limit: int = 8192,
    ) -> ColumnScan:
        """The result of `Store.scan` for these columns, as Arrow arrays of about `limit` rows."""

    def scan_cells(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        columns: Sequence[tuple[bytes, bool]] | None,
        limit: int = 8192,
    ) -> CellScan | None:
        """The result of `Store.scan`, as Arrow arrays of about `limit` cells; None: ask `scan`."""


Codecs: TypeAlias = Sequence[tuple[Callable[[Any], bytes], Callable[[bytes], Any]]]
"""The functions that encode and decode bytes, text and integers."""


@runtime_checkable
class NativeCalls(Protocol):
    """A store with native code for what transactions call (`percola.transactions.calls`)."""

    def native_calls(
        self,
        columns: Mapping[tuple[str, bytes], bool | None],
        class_: type,
        codecs: Codecs,
        leases: _native.ActiveSnapshots,
    ) -> _native.Calls | None:
        """What calls it, for the columns of a schema, of the class of columns; None without it."""


def reader_of(store: Store, table: str, column: bytes) -> Reader:
    """A function that reads one column of a table: the store's own, or one that calls `read`."""
    if isinstance(store, CellReads):
        return store.reader(table, column)

    def read(row: bytes, ts: int) -> bytes | Blocked | None:
        lock, _, value = store.read((Cell(table, row, column),), ts)[0]
        return value if lock is None else BLOCKED

    return read


def scan_columns(
    store: Store,
    table: str,
    start: bytes,
    end: bytes,
    ts: int,
    columns: Sequence[bytes],
    limit: int = 8192,
) -> ColumnScan:
    """The result of `Store.scan` for some columns, as Arrow arrays of about `limit` whole rows.

    Needs pyarrow, which the extra `spark` installs.
    """
    if isinstance(store, ColumnReads):
        return store.scan_columns(table, start, end, ts, columns, limit)
    import pyarrow as pa

    asked = [(column, False) for column in columns]
    cells, following = store.scan(
        table, start, end, ts, columns=asked, limit=limit * max(1, len(columns))
    )
    places = {column: at for at, column in enumerate(columns)}
    rows: list[bytes] = []
    values: list[list[bytes | None]] = [[] for _ in columns]
    blocked = []
    for cell, (lock, _, value) in cells:
        if not rows or rows[-1] != cell.row:
            rows.append(cell.row)
            for one in values:
                one.append(None)
        place = places[cell.column]
        if lock is None:
            values[place][-1] = value
        else:
            blocked.append((len(rows) - 1, place, lock))
    arrays = [pa.array(one, pa.binary()) for one in values]
    return ColumnScan(pa.array(rows, pa.binary()), arrays, blocked, following)


def scan_cells(
    store: Store,
    table: str,
    start: bytes,
    end: bytes,
    ts: int,
    columns: Sequence[tuple[bytes, bool]] | None,
    limit: int = 8192,
) -> CellScan:
    """The result of `Store.scan`, as Arrow arrays of about `limit` cells of whole rows.

    Needs pyarrow, which the extra `spark` installs.
    """
    if isinstance(store, ColumnReads):
        scanned = store.scan_cells(table, start, end, ts, columns, limit)
        if scanned is not None:
            return scanned
    cells, following = store.scan(table, start, end, ts, columns=columns, limit=limit)
    blocked = [(at, lock) for at, (_, (lock, _, _)) in enumerate(cells) if lock is not None]
    found = cell_scan(
        (row, [(cell.column, value if lock is None else None) for cell, (lock, _, value) in group])
        for row, group in itertools.groupby(cells, key=lambda one: one[0].row)
    )
    return found._replace(blocked=blocked, following=following)


def cell_scan(rows: Iterable[tuple[bytes, Iterable[tuple[bytes, bytes | None]]]]) -> CellScan:
    """Rows, each with its cells as (column, value), as arrays; a row may have none."""
    import pyarrow as pa

    keys: list[bytes] = []
    offsets = [0]
    columns: list[bytes] = []
    values: list[bytes | None] = []
    for row, cells in rows:
        keys.append(row)
        for column, value in cells:
            columns.append(column)
            values.append(value)
        offsets.append(len(values))
    arrays = [pa.array(one, pa.binary()) for one in (keys, columns, values)]
    if any(isinstance(one, pa.ChunkedArray) for one in arrays):
        raise ValueTooLargeError(
            f"The row {keys[-1][:60]!r}, or what is read with it, has more than 2 GiB, which the "
            "arrays of Arrow do not hold: read fewer of its columns."
        )
    return CellScan(arrays[0], pa.array(offsets, pa.int32()), arrays[1], arrays[2], [], None)
