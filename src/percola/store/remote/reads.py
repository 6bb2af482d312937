"""§2.1, §2.5: figure 6's Get, scans and entries, on stores where each read is a call.

One request returns a row's locks, newest write records and newest data at or below the reader's
timestamp, from one consistent view of the row: locks are read no later than writes. That is nearly
always enough. A second request is needed only where none of the newest records is visible, or where
the newest data is not what the visible record put. Entries at or below a reader's timestamp that
are not locked no longer change, except that the collector removes some, which the check of the safe
point afterwards detects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from percola.cells import Cell, Kind, Op, decode_write, repeated_change
from percola.store.base import NOTHING, CellState, is_wanted, missing_data
from percola.store.remote.shared_row import SharedRow

Family: TypeAlias = Any
"""A column family's name: bytes or a string, as the database's client has it."""

Entries: TypeAlias = list[tuple[int, bytes]]
"""(timestamp, value) of a column in a family, newest first."""

StoredRow: TypeAlias = dict[tuple[Family, bytes], Entries]
"""The entries of a row, by family and column."""

Rows: TypeAlias = Sequence[tuple[bytes, StoredRow]]
"""Keys and entries of rows, in the order of their keys."""

Columns: TypeAlias = Sequence[tuple[bytes, bool]] | None
"""(name, is_prefix) of the columns that a scan reads; None is all but Percola's own."""

Query: TypeAlias = Any
"""What to read of a row; only the subclass of `Reading` that made it knows what it is."""

KEYS: Final = 500
"""The most rows that one call names."""

_MORE_RECORDS: Final = 256
"""Write records of a cell that each further request reads."""

_LONG_BYTES: Final = 8 * 1024 * 1024
"""Values of so many bytes are enough for one call of a scan, however few they are."""

_FIRST_KEYS: Final = 32
"""The most rows that `scan_rows` asks for as long as it does not know how long they are."""


class RowReading(ABC):
    """The requests for rows of one store, by family; a subclass sends them.

    Attributes:
        families: the column family of each kind of entry.
        changes: the column family of feed entries.
        max_ts: the highest timestamp that the database can store.
    """

    families: Mapping[Kind, Family]
    changes: Family
    max_ts: int

    @abstractmethod
    def everything(self, family: Family, low: int, high: int) -> Query:
        """The query for a family's entries with `low` ≤ timestamp ≤ `high`."""

    @abstractmethod
    def both(self, one: Query, other: Query) -> Query:
        """The query for what two of `everything` ask for, of two families: for `rows` alone."""

    @abstractmethod
    def rows(
        self, table: str, keys: Sequence[bytes], query: Query
    ) -> Generator[tuple[bytes, StoredRow], None, None]:
        """Those of up to 500 rows that have entries, in the order of `keys`; usually one call."""

    @abstractmethod
    def chunks(
        self, table: str, query: Query, start: bytes, end: bytes, limit: int | None
    ) -> Generator[tuple[Rows, bool], None, None]:
        """Up to `limit` rows of a range that have entries; and whether these are the last.

        They come in chunks as large as one answer: what is not taken is not waited for.
        """

    @abstractmethod
    def look(
        self, family: Family, asked: Mapping[Cell, tuple[int, int]], limit: int | None
    ) -> dict[Cell, Entries]:
        """Each cell's newest entries between two timestamps, both included."""


class Reading(RowReading):
    """The reads of one store; a subclass sends the requests.

    Attributes:
        records: how many write records of a column a snapshot's query reads.
        rows_ahead: how many rows a scan reads at most before it looks at them.
    """

    records: int
    rows_ahead: int

    def __init__(self, shared: SharedRow) -> None:
        self._shared = shared
        self._lock, self._write, self._data = (
            self.families[kind] for kind in (Kind.LOCK, Kind.WRITE, Kind.DATA)
        )

    # --- Requests -----------------------------------------------------------------------

    @abstractmethod
    def snapshot(self, columns: Columns, ts: int) -> Query:
        """The query for what a reader at `ts` needs of at least these columns, not none."""

    @abstractmethod
    def newest(self, family: Family, versions: int) -> Query:
        """The query for the newest `versions` entries of each cell of a family."""

    def table_of(self, table: str, kind: Kind) -> str:
        """The table that holds a table's entries of a kind."""
        return table

    @abstractmethod
    def cells(
        self, wanted: Mapping[str, Mapping[bytes, Collection[bytes]]], ts: int
    ) -> Iterator[tuple[str, bytes, StoredRow]]:
        """The snapshot at `ts` of table → row → columns, in as few calls as possible.

        A row may come in parts, each with whole columns.
        """

    # --- Cells --------------------------------------------------------------------------

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        """See `Store.read`."""
        if len(cells) == 1:
            return [self._alone(cells[0], ts)]
        wanted: dict[str, dict[bytes, set[bytes]]] = {}
        for table, row, column in cells:
            wanted.setdefault(table, {}).setdefault(row, set()).add(column)
        found = [
            (Cell(table, row, column), stored)
            for table, row, stored in self.cells(wanted, ts)
            for column in wanted[table][row]
            if (self._write, column) in stored or (self._lock, column) in stored
        ]
        states = self._states(found, ts)
        self._shared.check(ts)
        return [states.get(cell, NOTHING) for cell in cells]

    def _alone(self, cell: Cell, ts: int) -> CellState:
        """`read` for a single cell, without the overhead of several."""
        state = NOTHING
        query = self.snapshot(((cell.column, False),), ts)
        for _, stored in self.rows(cell.table, (cell.row,), query):
            seen = self._state(stored, cell.column, ts)
            if isinstance(seen, (DataAt, RecordsBelow)):
                state = self._states(((cell, stored),), ts)[cell]
            else:
                state = seen
        self._shared.check(ts)
        return state

    def _state(self, row: StoredRow, column: bytes, ts: int) -> CellState | DataAt | RecordsBelow:
        """The state of a cell from the first request, or what to read next."""
        locks = row.get((self._lock, column))
        if locks and locks[0][0] <= ts:
            return locks[0], 0, None
        records = row.get((self._write, column))
        if not records:
            return NOTHING
        return visible(records, row.get((self._data, column), ()), self.records)

    def _states(self, found: Iterable[tuple[Cell, StoredRow]], ts: int) -> dict[Cell, CellState]:
        """The states of cells, with further requests for those that need them."""
        states: dict[Cell, CellState] = {}
        records: dict[Cell, tuple[int, int]] = {}
        data: dict[Cell, DataAt] = {}

        def sort(cell: Cell, state: CellState | DataAt | RecordsBelow) -> None:
            if isinstance(state, RecordsBelow):
                records[cell] = (0, state.ts - 1)
            elif isinstance(state, DataAt):
                data[cell] = state
            else:
                states[cell] = state

        for cell, row in found:
            sort(cell, self._state(row, cell.column, ts))
        while records:
            asked, records = records, {}
            for cell, entries in self.look(self._write, asked, _MORE_RECORDS).items():
                sort(cell, visible(entries, (), _MORE_RECORDS))
        if data:
            at = {cell: (one.start_ts, one.start_ts) for cell, one in data.items()}
            values = self.look(self._data, at, 1)
            for cell, one in data.items():
                if not values[cell]:
                    one.missing(cell, ts, self._shared)
                states[cell] = (None, one.commit_ts, values[cell][0][1])
        return states

    def entries(self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None) -> Entries:
        """See `Store.entries`."""
        high = min(high, self.max_ts)
        if low > high or limit == 0:
            return []
        cell = cell._replace(table=self.table_of(cell.table, kind))
        return self.look(self.families[kind], {cell: (low, high)}, limit)[cell]

    def entries_of(self, cells: Sequence[Cell], kind: Kind, low: int, high: int) -> list[Entries]:
        """See `Store.entries_of`."""
        high = min(high, self.max_ts)
        if low > high:
            return [[] for _ in cells]
        placed = [cell._replace(table=self.table_of(cell.table, kind)) for cell in cells]
        found = self.look(self.families[kind], dict.fromkeys(placed, (low, high)), None)
        return [found[cell] for cell in placed]

    # --- Ranges of rows -----------------------------------------------------------------

    def scan(
        self, table: str, start: bytes, end: bytes, ts: int, columns: Columns, limit: int
    ) -> tuple[list[tuple[Cell, CellState]], bytes | None]:
        """See `Store.scan`."""
        found: list[tuple[Cell, CellState]] = []
        following: bytes | None = None
        size = 0
        if columns is None or columns:

            def take(rows: Rows) -> Iterator[int]:
                nonlocal size
                wanted = [self._wanted(table, key, row, columns) for key, row in rows]
                states = self._states((one for part in wanted for one in part), ts)
                size += sum(len(value) for _, _, value in states.values() if value is not None)
                for left, part in enumerate(wanted, start=1 - len(wanted)):
                    found.extend(_seen(part, states))
                    yield limit if not left and size >= _LONG_BYTES else len(found)

            query = self.snapshot(columns, ts)
            following = self._walk(table, query, start, end, limit, take)
        self._shared.check(ts)
        return found, following

    def scan_rows(
        self, table: str, rows: Sequence[bytes], ts: int, columns: Columns, limit: int
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        """See `Store.scan_rows`: a call for a few rows, and others for up to 500 each."""
        found: dict[bytes, list[tuple[Cell, CellState]]] = {}
        if columns is not None and not columns:
            found, rows = {row: [] for row in rows}, ()
        wanted: list[tuple[Cell, StoredRow]] = []
        at, most, size = 0, _FIRST_KEYS, 0
        while at < len(rows) and (not at or (len(wanted) < limit and size < _LONG_BYTES)):
            # Rows come in key order: those before the first one requested may exceed the limit.
            keys = sorted(rows[at : at + most])
            until, too_many = keys[-1], set()
            with closing(self.rows(table, keys, self.snapshot(columns, ts))) as stored:
                for key, row in stored:
                    if len(wanted) < limit or key == rows[0]:
                        wanted += self._wanted(table, key, row, columns)
                        size += _bytes_of(row)
                    else:
                        too_many.add(key)
                    if len(wanted) >= limit and (at or key >= rows[0]):
                        until = key
                        break
            found.update((key, []) for key in keys if key <= until and key not in too_many)
            at += len(keys)
            # As many as fit if they are as long as those before.
            most = min(KEYS, max(1, at * (_LONG_BYTES - size) // max(1, size)))
        for cell, state in _seen(wanted, self._states(wanted, ts)):
            found[cell.row].append((cell, state))
        self._shared.check(ts)
        return found

    def scan_kind(
        self,
        kind: Kind,
        table: str,
        start: bytes,
        end: bytes,
        limit: int,
        versions: int | None,
    ) -> tuple[list[tuple[Cell, Entries]], bytes | None]:
        """The entries of a kind of a range of rows, about `limit`, and the row to continue from."""
        found: list[tuple[Cell, Entries]] = []
        count = size = 0

        def take(rows: Rows) -> Iterator[int]:
            nonlocal count, size
            for left, (key, row) in enumerate(rows, start=1 - len(rows)):
                for (_, column), entries in sorted(row.items()):
                    found.append((Cell(table, key, column), entries))
                    count += len(entries)
                    size += sum(len(value) for _, value in entries)
                yield limit if not left and size >= _LONG_BYTES else count

        family = self.families[kind]
        if versions is None:
            query = self.everything(family, 0, self.max_ts)
        else:
            query = self.newest(family, versions)
        following = self._walk(self.table_of(table, kind), query, start, end, limit, take)
        return found, following

    def _walk(
        self,
        table: str,
        query: Query,
        start: bytes,
        end: bytes,
        limit: int,
        take: Callable[[Rows], Iterator[int]],
    ) -> bytes | None:
        """Pass rows to `take` until it has `limit` items; return the row to continue from.

        `take` gets some rows at a time and yields its count of items after each, `limit` after the
        last of them if their values are long.
        """
        position, count = start, 0
        while not end or position < end:
            most = min(max(1, limit - count), self.rows_ahead)
            received = 0
            with closing(self.chunks(table, query, position, end, most)) as chunks:
                for rows, is_all in chunks:
                    received += len(rows)
                    for at, count in enumerate(take(rows)):
                        if count >= limit:
                            position = rows[at][0] + b"\0"
                            is_last = is_all and at == len(rows) - 1
                            return None if is_last or (end and position >= end) else position
                    if rows:
                        position = rows[-1][0] + b"\0"
            if received < most:
                return None
        return None

    def _wanted(
        self, table: str, key: bytes, row: StoredRow, columns: Columns
    ) -> list[tuple[Cell, StoredRow]]:
        """The cells of a row that a scan reads, in order."""
        names = sorted({name for family, name in row if family != self._data})
        return [(Cell(table, key, name), row) for name in names if is_wanted(name, columns)]


def _bytes_of(row: StoredRow) -> int:
    """The bytes of a row's values and records."""
    return sum(len(value) for entries in row.values() for _, value in entries)


def _seen(
    wanted: Iterable[tuple[Cell, StoredRow]], states: Mapping[Cell, CellState]
) -> Iterator[tuple[Cell, CellState]]:
    """The cells that have a lock or a value, in order."""
    for cell, _ in wanted:
        state = states[cell]
        if state[0] is not None or state[2] is not None:
            yield cell, state


# --- The visible record -----------------------------------------------------------------


class DataAt(NamedTuple):
    """The visible record refers to data that the first request did not return."""

    commit_ts: int
    start_ts: int

    def missing(self, cell: Cell, ts: int, shared: SharedRow) -> NoReturn:
        """Raise the error for missing data: SnapshotTooOldError or DamagedRecordError."""
        # Either it was collected, as the safe point shows, or it never existed.
        shared.look()
        shared.check(ts)
        raise missing_data(cell, self.commit_ts, self.start_ts)


class RecordsBelow(NamedTuple):
    """None of the newest records is visible: those below `ts` are needed."""

    ts: int


def visible(
    records: Sequence[tuple[int, bytes]], data: Sequence[tuple[int, bytes]], asked: int
) -> CellState | DataAt | RecordsBelow:
    """The newest put or delete among records, newest first; `asked` is how many were requested."""
    for commit_ts, raw in records:
        if change := repeated_change(raw):
            commit_ts, raw = change
            if not raw:
                return NOTHING
        op, start_ts, value, *_ = decode_write(raw)
        if op == Op.DELETE:
            return None, commit_ts, None
        if op == Op.PUT:
            if value is None:
                for ts, stored_value in data:
                    if ts == start_ts:
                        return None, commit_ts, stored_value
                return DataAt(commit_ts, start_ts)
            return None, commit_ts, value
    return RecordsBelow(records[-1][0]) if len(records) >= asked else NOTHING
