"""§2.1, §2.2: walks over ranges of a store, made of bounded scans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from percola.cells import Cell, Kind, LastChange, Op, decode_write, newest_change
from percola.store.base import CellState, Store, missing_data

_RECORDS: Final = 16


def walk_kind(
    store: Store,
    kind: Kind,
    table: str,
    start: bytes = b"",
    end: bytes = b"",
    *,
    first: int = 256,
    limit: int = 256,
    versions: int | None = None,
) -> Iterator[tuple[Cell, int, bytes]]:
    """All entries of a kind in [start, end), from repeated calls of `Store.scan_kind`.

    `limit` is that of each call, and `first` that of the first one: a caller who may need only one
    entry asks for one. With `versions`, only the newest so many of each cell.
    """
    position: bytes | None = start
    most = first
    while position is not None:
        entries, position = store.scan_kind(kind, table, position, end, most, versions=versions)
        most = limit
        yield from entries


def scan_writes(
    store: Store,
    table: str,
    start: bytes = b"",
    end: bytes = b"",
    limit: int = 256,
    *,
    versions: int | None = None,
) -> tuple[list[tuple[Cell, list[tuple[int, bytes]]]], bytes | None]:
    """The write records of a range by cell: one call of `Store.scan_kind`.

    Returns (cell, [(commit_ts, record), …] newest first) of whole rows, about `limit` records, and
    the row to continue from, or None at the end. Of each cell all, or the newest `versions`.
    """
    entries, following = store.scan_kind(Kind.WRITE, table, start, end, limit, versions=versions)
    found = [
        (cell, [(ts, record) for _, ts, record in group])
        for cell, group in itertools.groupby(entries, key=lambda one: one[0])
    ]
    return found, following


class WriteRecords:
    """The write records of a cell, newest first: the newest as known, older ones read when needed.

    Args:
        known: the newest `most` of them, or all if they are fewer (`scan_writes`).
        most: how many are read at once.
    """

    __slots__ = ("_cell", "_known", "_most", "_store")

    def __init__(
        self, store: Store, cell: Cell, known: Sequence[tuple[int, bytes]], most: int
    ) -> None:
        self._store = store
        self._cell = cell
        self._known = known
        self._most = most

    def upto(self, ts: int) -> Iterator[tuple[int, bytes]]:
        """Those at or below `ts`: (commit_ts, record). Raises StoreError."""
        yield from (one for one in self._known if one[0] <= ts)
        records = self._known
        while len(records) >= self._most:
            high = min(ts, records[-1][0] - 1)
            records = self._store.entries(self._cell, Kind.WRITE, 0, high, self._most)
            yield from records

    def newest_upto(self, ts: int) -> int:
        """The timestamp of the newest at or below `ts`; 0 if there is none. Raises StoreError."""
        return next(self.upto(ts), (0, b""))[0]


def state_beneath(store: Store, cell: Cell, ts: int) -> CellState:
    """The state of a cell at `ts`, whatever lock it has: as if that were not there.

    That is what a reader at `ts` should see if the lock's transaction can only commit above `ts`.
    Raises SnapshotTooOldError, StoreError, and DamagedRecordError as every read of it does.
    """
    change: LastChange | None = None
    high = ts
    while change is None:
        records = store.entries(cell, Kind.WRITE, 0, high, _RECORDS)
        change = newest_change(records, complete=len(records) < _RECORDS)
        high = records[-1][0] - 1 if records else 0
    value: bytes | None = None
    lost: int | None = None
    if change.record:
        op, start_ts, value, *_ = decode_write(change.record)
        if op is Op.PUT and value is None:
            data = store.entries(cell, Kind.DATA, start_ts, start_ts)
            value, lost = (data[0][1], None) if data else (None, start_ts)
    # Check after the reads, as every reader does: then no record was missing (P12).
    store.check_safe_point(ts)
    if lost is not None:
        raise missing_data(cell, change.commit_ts, lost)
    return None, change.commit_ts, value
