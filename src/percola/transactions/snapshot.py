"""§2.2 Transactions, the reading half: figure 6's Get(), for one cell, many, a row, a range.

A snapshot shows the repository as it was at its `start_ts`, whatever is committed later:

    get(c, row):  a lock at or below start_ts?  → roll it forward or back, or wait; read again
                  newest write ≤ start_ts       → its value, or None

Locks above `start_ts` belong to transactions that will commit above it: they do not matter
(rule P9). Departures from the paper: reads are cached for the transaction's life (§2.5), and a
scan reads chunks of rows, locks included.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from percola.cells import Cell, Op
from percola.codecs import V
from percola.errors import (
    DamagedRecordError,
    TransactionUsedUpError,
    UnknownColumnError,
    UnknownTableError,
    UsageError,
)
from percola.schema import Column, Family, R, Readable, Table, WeakColumn
from percola.store.base import BLOCKED, CellState, Reader
from percola.store.capabilities import reader_of
from percola.store.walks import state_beneath
from percola.transactions.calls import FewRows, SnapshotBase
from percola.transactions.prefetch import ROW_CELLS
from percola.transactions.read_cache import ReadCache, RowCells
from percola.transactions.row import Columns, Row

_CHUNK = 512
_MANY_CELLS = 8192
_new_cell = tuple.__new__  # A third of the time that Cell(…) takes.
_LOCK_ONLY = int(Op.LOCK)
_SURELY_SHORT = 96
_READERS = 1000


class Snapshot(SnapshotBase):
    """The repository as it was at `start_ts`: read-only, safe to use from several threads.

    Garbage collection keeps the versions it reads until it is closed or no longer referenced; as
    a context manager it is closed on leaving the block. It belongs to the process that began it:
    in a forked child, reading it raises TransactionUsedUpError.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # In the base (`percola.transactions.calls`), and documented here.

        def get(self, column: Readable[R, V], row: R) -> V | None:
            """The value of a cell, or None if there is none. Figure 6, Get().

            Raises UnknownColumnError, WrongTypeError or RowTooLongError for invalid arguments,
            LockTimeoutError if a live transaction keeps the cell locked, and StoreError.
            """
            return self._get(cast("Column[R, V]", column), row)

        @overload
        def get_many(self, cells: Iterable[tuple[Column[R, V], R]]) -> list[V | None]: ...
        @overload
        def get_many(self, cells: Iterable[tuple[Column[R, Any], R]]) -> list[Any]: ...
        def get_many(self, cells: Iterable[tuple[Column[R, Any], R]]) -> list[Any]:
            """The values of many cells, of any tables, in one store call (§2.5)."""
            return self._get_many(cells)

    def close(self) -> None:
        """End the snapshot: it cannot be read any more, nor hold back garbage collection."""
        self._used_up = self._used_up or "has been closed"
        self._let_go()

    def _let_go(self) -> None:
        """Unregister the snapshot, and end its cache."""
        self._unregister()
        if self._cache is not None:
            self._cache.end()

    # --- Addresses ----------------------------------------------------------------------

    def _cell(self, column: Readable[R, Any], row: R) -> Cell:
        # Its first lines are repeated in `_get`, which is called for most single reads.
        if column.__class__ is not Column or column.address not in self._context.columns:
            self._check_column(column)
        try:
            key = column.row_key(row)
        except (TypeError, ValueError):
            key = b""
        if not 0 < len(key) <= _SURELY_SHORT:
            key = self._checked_key(column, row)
        return _new_cell(Cell, (column.table_name, key, column.key))

    def _checked_key(self, column: Readable[R, Any], row: R) -> bytes:
        """The key of a row that may be unusable; raises WrongTypeError or RowTooLongError."""
        key = column.table.encode_row(row)
        self._context.store.check_row(column.table_name, key)
        return key

    def _check_column(self, column: object) -> None:
        if isinstance(column, Column):
            family = column.key.partition(b":")[0] + b":"
            if b":" in column.key and (column.table_name, family) in self._context.columns:
                return
        else:
            hint = ""
            if isinstance(column, WeakColumn):
                hint = " (it is weak: it can only be notified)"
            elif isinstance(column, Family):
                hint = " (it is a family: name one of its columns, as in family['name'])"
            raise UsageError(f"{column!r} is not a Column that can be read or written{hint}.")
        self._unknown_column(column)

    def _unknown_column(
        self, column: Column[Any, Any] | Family[Any, Any] | WeakColumn[Any]
    ) -> None:
        self._check_table(column.table)
        raise UnknownColumnError(
            f"The repository's schema has no column {column!r}. Pass its table in schema=[…] "
            "when you open the repository."
        )

    def _check_table(self, table: object) -> None:
        if not isinstance(table, Table):
            raise UsageError(f"{table!r} is not a Table.")
        if (table.name, b"") not in self._context.columns:
            known = sorted({name for name, _ in self._context.columns})
            raise UnknownTableError(
                f"The repository's schema has no table {table.name!r}; it has "
                f"{', '.join(known) or 'none'}. Pass it in schema=[…] when you open the "
                "repository; for a command, create it by 'percola init --schema' before it starts."
            )

    def _check_usable(self) -> None:
        if self._used_up is not None:
            raise TransactionUsedUpError(
                f"The transaction that started at {self.start_ts} {self._used_up}. "
                "Begin another one."
            )
        if self._readers is not self._context.readers.by_column:
            raise TransactionUsedUpError(
                f"What started at {self.start_ts} was begun before this process was forked, and is "
                "its parent's: garbage collection would not wait for it here. Begin another "
                f"transaction, or read with repo.snapshot(at={self.start_ts})."
            )

    # --- Reading ------------------------------------------------------------------------

    def _read(self, cells: Sequence[Cell]) -> list[CellState]:
        """Figure 6, lines 8–25: the cells' states, with no lock in the way."""
        context = self._context
        if self._readers is not context.readers.by_column:
            self._check_usable()
        if self._cache is None:
            states = context.store.read(cells, self.start_ts)
        else:
            states = self._read_ahead(cells, self._cache)
        if len(cells) > 1:
            blocked = [i for i, state in enumerate(states) if state[0] is not None]
            if len(blocked) > 1:
                again = [cells[i] for i in blocked]
                self._resolve_together(zip(again, (states[i] for i in blocked), strict=True))
                found = context.store.read(again, self.start_ts)  # Everything again (P10).
                for i, state in zip(blocked, found, strict=True):
                    states[i] = state
        for i, cell in enumerate(cells):
            while (lock := states[i][0]) is not None:
                # BackoffAndMaybeCleanupLock, line 14; then everything is read again (P10).
                if context.resolver.wait_below(cell, *lock, self.start_ts):
                    states[i] = context.store.read((cell,), self.start_ts)[0]
                else:
                    states[i] = state_beneath(context.store, cell, self.start_ts)
            if self._cache is not None:
                self._cache.keep(cell, states[i])
        return states

    def _resolve_together(self, cells: Iterable[tuple[Cell, CellState]]) -> None:
        """Remove the locks of ended transactions, in few calls, if there are several; never waits.

        One by one each waits for the disk, in a folder, and a job that died has locked very many.
        """
        locks = [(cell, *state[0]) for cell, state in cells if state[0] is not None]
        if len(locks) > 1:
            self._context.resolver.try_resolve_all(locks)

    def _read_ahead(self, cells: Sequence[Cell], cache: ReadCache) -> list[CellState]:
        """The cells' states, locked or not; also prefetches predicted reads (§2.5)."""
        store = self._context.store
        guessed = cache.guess(cells, self._writes)
        if not guessed:
            return store.read(cells, self.start_ts)
        try:
            states = store.read([*cells, *guessed], self.start_ts)
        except DamagedRecordError:
            return store.read(cells, self.start_ts)  # The damaged cell may be a prefetched one.
        for cell, state in zip(guessed, states[len(cells) :], strict=True):
            # A lock matters only when the cell is requested.
            if state[0] is None:
                cache.keep(cell, state, asked=False)
        return states[: len(cells)]

    def _states(self, cells: Sequence[Cell]) -> list[CellState]:
        """The cells' states, from the cache where possible."""
        if self._cache is None:
            return self._read(cells)
        known = {c: state for c in cells if (state := self._cache.look_up(c)) is not None}
        missing = [cell for cell in cells if cell not in known]
        if missing:
            known.update(zip(missing, self._read(missing), strict=True))
        return [known[cell] for cell in cells]

    def _visible(self, cell: Cell) -> bytes | None:
        """The value of a cell as this transaction sees it: its own write, or the snapshot's."""
        if self._writes:
            own = self._writes.get(cell)
            if own is not None and own[0] != _LOCK_ONLY:
                return own[1]
        if self._cache is not None:
            state = self._cache.look_up(cell)
            if state is not None:
                return state[2]
        return self._read((cell,))[0][2]

    def _get(self, column: Column[R, V], row: R) -> V | None:
        if self._used_up is not None:
            self._check_usable()
        if self._writes or self._cache is not None:
            raw = self._visible(self._cell(column, row))
        else:
            try:
                read = self._readers[column.address]
            except (KeyError, AttributeError):
                read = self._reader_of(column)
            try:
                key = column.row_key(row)
            except (TypeError, ValueError):
                key = b""
            if not 0 < len(key) <= _SURELY_SHORT:
                key = self._checked_key(column, row)
            found = read(key, self.start_ts)
            if found is BLOCKED:
                raw = self._read((Cell(column.table_name, key, column.key),))[0][2]
            else:
                raw = found
        if raw is None:
            return None
        try:
            return column.decode(raw)
        except ValueError:
            return column.decode_value(raw)  # Raises with a helpful message.

    def _reader_of(self, column: Column[R, Any]) -> Reader:
        """The column's reader, shared by all transactions; raises for an unreadable column."""
        self._check_usable()
        if column.__class__ is not Column or column.address not in self._context.columns:
            self._check_column(column)
        if len(self._readers) >= _READERS:
            self._readers.clear()  # Families may have any number of columns.
        reader = reader_of(self._context.store, column.table_name, column.key)
        self._readers[column.address] = reader
        return reader

    def _get_many(self, cells: Iterable[tuple[Column[R, Any], R]]) -> list[Any]:
        self._check_usable()
        wanted = list(cells)
        try:
            addresses = [self._cell(column, row) for column, row in wanted]
        except (TypeError, ValueError):
            self._check_pairs(wanted)
            raise
        missing = [address for address in dict.fromkeys(addresses) if self._needs_read(address)]
        states = self._read(missing) if missing else ()
        found = {address: state[2] for address, state in zip(missing, states, strict=True)}
        raws = [found[one] if one in found else self._visible(one) for one in addresses]
        return [
            None if raw is None else column.decode_value(raw)
            for (column, _), raw in zip(wanted, raws, strict=True)
        ]

    @staticmethod
    def _check_pairs(cells: Sequence[object]) -> None:
        for one in cells:
            if not (isinstance(one, tuple | list) and len(one) == 2):
                raise UsageError(
                    f"The cells to read are pairs of a column and a row, but one is {one!r}: write "
                    "get_many([(column, row), …])."
                )

    def _needs_read(self, cell: Cell) -> bool:
        own = self._writes.get(cell)
        if own is not None and own[0] != _LOCK_ONLY:
            return False
        return self._cache is None or cell not in self._cache

    def get_row(self, table: Table[R], row: R, columns: Columns[R] = None) -> Row[R]:
        """A row with the given columns and families (None: all). An empty row is falsy."""
        if self._cache is not None:
            return self.get_rows(table, (row,), columns)[0]
        self._check_usable()
        self._check_table(table)
        key = table.encode_row(row)
        self._context.store.check_row(table.name, key)
        wanted = self._wanted(table, columns)
        for _, values in self._scan(table.name, key, key + b"\0", wanted):
            return Row(table, row, values, wanted)
        return Row(table, row, {}, wanted)

    def get_rows(
        self, table: Table[R], rows: Iterable[R], columns: Columns[R] = None
    ) -> list[Row[R]]:
        """Many rows of a table in one store call, each as `get_row` finds it (§2.5)."""
        self._check_usable()
        self._check_table(table)
        if isinstance(rows, str | bytes):
            raise UsageError(f"The rows to read are a list, but this is {rows!r}.")
        keys = [(table.encode_row(row), row) for row in rows]
        for key, _ in keys:
            self._context.store.check_row(table.name, key)
        wanted = self._wanted(table, columns)
        few: dict[bytes, FewRows | None] = dict.fromkeys(key for key, _ in keys)
        if self._cache is None:
            few = {key: self._few_rows(table.name, key, key + b"\0", wanted) for key in few}
        left = [key for key, read in few.items() if read is None]
        stored = self._cells_of(table.name, left, wanted)
        self._resolve_together(one for key in left for one in stored[key])
        found = []
        for key, row in keys:
            read = few[key]
            if read is not None:
                chunk = iter(read[0])
            else:
                chunk = self._chunk(table.name, key, key + b"\0", stored[key], wanted)
            found.append(Row(table, row, next((values for _, values in chunk), {}), wanted))
        return found

    def _cells_of(
        self, table: str, keys: list[bytes], wanted: list[tuple[bytes, bool]] | None
    ) -> dict[bytes, RowCells]:
        """The cells of rows, locked or not, from the cache where possible."""
        cache, store = self._cache, self._context.store
        if cache is None:
            found: dict[bytes, RowCells] = {}
        else:
            found = cache.look_up_rows(table, keys, wanted)
        while missing := [key for key in keys if key not in found]:
            others = [] if cache is None else cache.guess_rows(table, missing, wanted)
            limit = ROW_CELLS if others else _MANY_CELLS
            try:
                cells = store.scan_rows(
                    table, [*missing, *others], self.start_ts, columns=wanted, limit=limit
                )
            except DamagedRecordError:
                if not others:
                    raise
                # The damaged record may be in a prefetched row.
                cells = store.scan_rows(
                    table, missing, self.start_ts, columns=wanted, limit=_MANY_CELLS
                )
            found.update(cells)
            if cache is not None:
                cache.keep_rows(table, wanted, cells, set(missing))
        return found

    def scan(
        self,
        table: Table[R],
        *,
        prefix: R | None = None,
        start: R | None = None,
        end: R | None = None,
        columns: Columns[R] = None,
    ) -> Iterator[Row[R]]:
        """Scan the rows of a table in order: those that begin with `prefix`, or from `start` up to
        but not including `end`. Only rows that have one of `columns` (None: any) appear. Writes
        that a transaction makes during its own scan may or may not appear in it.

        Raises UsageError if both a prefix and a range are given.
        """
        self._check_usable()
        self._check_table(table)
        if prefix is not None and (start is not None or end is not None):
            raise UsageError("A scan takes either a prefix or a start and an end, not both.")
        low, high = b"", b""
        # Not compared with "" and b"": one of the two would be a BytesWarning under python -b.
        if prefix is not None and (prefix or not isinstance(prefix, str | bytes)):
            low = table.encode_prefix(prefix)
            high = after_prefix(low)
        else:
            low, high = table.encode_bound(start), table.encode_bound(end)
            if high and low >= high:
                return iter(())
        return self._rows(table, low, high, self._wanted(table, columns))

    def _wanted(self, table: Table[R], columns: Columns[R]) -> list[tuple[bytes, bool]] | None:
        if columns is None:
            return None
        if isinstance(columns, Column | Family):
            raise UsageError(
                f"The columns to read are a list, but this is {columns!r} alone: put it in one."
            )
        wanted = []
        for column in columns:
            if isinstance(column, Family):
                if (column.table.name, column.prefix) not in self._context.columns:
                    self._unknown_column(column)
                name = column.table.name
                wanted.append((column.read, True))
            else:
                # None: a weak column, one of a family, or none of the schema.
                if self._context.columns.get(getattr(column, "address", ("", b""))) is None:
                    self._check_column(column)
                name = column.table_name
                wanted.append((column.key, False))
            if name != table.name:
                raise UsageError(
                    f"{column!r} is of another table than {table.name!r}, whose rows are read."
                )
        return wanted

    def _rows(
        self, table: Table[R], start: bytes, end: bytes, wanted: list[tuple[bytes, bool]] | None
    ) -> Iterator[Row[R]]:
        for key, values in self._scan(table.name, start, end, wanted):
            yield Row(table, table.decode_row(key), values, wanted)

    def _scan(
        self, table: str, start: bytes, end: bytes, wanted: list[tuple[bytes, bool]] | None
    ) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        store, position = self._context.store, start
        while True:
            few = self._few_rows(table, position, end, wanted)
            if few is not None:
                rows, following = few
                yield from rows
            else:
                self._check_usable()
                cells, following = store.scan(
                    table, position, end, self.start_ts, columns=wanted, limit=_CHUNK
                )
                upper = end if following is None else following
                yield from self._chunk(table, position, upper, cells, wanted)
            if following is None:
                return
            position = following

    def _chunk(
        self,
        table: str,
        start: bytes,
        end: bytes,
        cells: list[tuple[Cell, CellState]],
        wanted: list[tuple[bytes, bool]] | None,
    ) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """The rows of one chunk; a transaction merges its own writes into them."""
        resolved = False
        for key, group in itertools.groupby(cells, key=lambda entry: entry[0].row):
            values = {}
            for cell, state in group:
                raw = state[2]
                if state[0] is not None:
                    if not resolved:
                        self._resolve_together(cells)
                        resolved = True
                    raw = self._read((cell,))[0][2]
                if raw is not None:
                    values[cell.column] = raw
            if values:
                yield key, values

    def version(self, column: Column[R, Any], row: R) -> int:
        """The commit timestamp of the cell's newest put or delete at start_ts; 0 if none."""
        self._check_usable()
        cell = self._cell(column, row)
        return self._states((cell,))[0][1]


def after_prefix(prefix: bytes) -> bytes:
    """The first key after all keys that begin with `prefix`; empty if there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b""
