"""§2.5: column-by-column scans of LMDB's tree, for readers of whole tables.

Entries are read in runs. In most tables, as most readers see them, every row has the same columns,
each in one version, with its value in its record. Arrow and numpy split such a run as a whole, with
no work per entry:

    run    a:title a:size  b:title b:size  c:title c:size   period 2
           [0::2] are titles, [1::2] are sizes, and both have the same rows

A run that contains anything else (a lock, an older version, a missing column, a long value) is
processed entry by entry.

This module needs pyarrow and numpy, which the extra `spark` installs; the rest of the store does
not.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from percola.cells import INLINE, MAX_TS, WRITE_HEADER, Op, decode_write
from percola.store.base import CellScan, ColumnScan
from percola.store.lmdb.driver import LONG_BYTES, Txn
from percola.store.lmdb.keys import TOP, Keys

_FIRST_RUN: Final = 64
_RUN: Final = 2048
_FEW: Final = 4
"""Runs of fewer rows than this are processed entry by entry."""

_STEPS: Final = 24
"""The number of unwanted entries that are skipped one by one before seeking the next wanted one."""

_PUT, _DELETE = int(Op.PUT), int(Op.DELETE)
_AFTER: Final = b"\xff" * 9
_TO_THE_END: Final = 1 << 30  # Arrow's slices need one.


class ColumnReader:
    """Reads a range of rows within one LMDB transaction; for one call of `read`.

    Args:
        keys: of the store.
        cells, data: the handles of the trees.
        ts: the reader's timestamp.
        columns: the columns wanted.
    """

    def __init__(
        self, txn: Txn, keys: Keys, cells: Any, data: Any, ts: int, columns: Sequence[bytes]
    ) -> None:
        self._txn, self._keys, self._data = txn, keys, data
        self._cursor, self._follower = txn.cursor(cells), txn.cursor(cells)
        self._ts = ts
        self._bound = (TOP - ts).to_bytes(8, "big")
        self._places = {column + b"\0": at for at, column in enumerate(columns)}
        self._sorted = sorted(self._places)
        # What has been found as arrays: the rows, and the columns' values.
        self._parts: list[tuple[pa.Array, list[pa.Array]]] = []
        self._before = 0  # The number of rows in these.
        # What has been found since, entry by entry. A column's values may end early.
        self._rows: list[bytes] = []
        self._values: list[list[bytes | None]] = [[] for _ in columns]
        self._blocked: list[tuple[int, int, tuple[int, bytes]]] = []
        self._last_row = b""  # Escaped, as in its keys.
        self._done = b""  # The cell that has been decided; its older versions do not matter.
        self._long = 0

    def read(self, first: bytes, last: bytes, limit: int) -> ColumnScan:
        """Whole rows with keys in [first, last): about `limit` of them."""
        jump: bytes | None = first
        whole = b""  # What the last row's keys begin with, once there are enough rows.
        while jump is not None and self._cursor.set_range(jump):
            self._follower.set_range(jump)
            jump = None
            # Two iterators: one of pairs would make a tuple for each, for the collector to trace.
            keys = self._cursor.iternext(keys=True, values=False)
            values = self._follower.iternext(keys=False, values=True)
            entries: list[bytes] = []
            records: list[bytes] = []
            size = _FIRST_RUN
            while jump is None:
                entries += itertools.islice(keys, size)
                records += itertools.islice(values, size)
                if not entries:
                    break
                size = min(2 * size, _RUN)
                at_end = entries[-1] >= last
                if at_end:
                    cut = bisect_left(entries, last)
                    del entries[cut:], records[cut:]
                if whole:
                    cut = next((i for i, e in enumerate(entries) if not e.startswith(whole)), -1)
                    if cut >= 0:
                        jump = self._step(entries[:cut], records)
                        if jump is None:
                            return self._found(_row(entries[cut]))
                        break
                taken = 0 if whole else self._take(entries, records)
                if not taken:
                    jump = self._step(entries, records)
                    taken = len(entries)
                del entries[:taken], records[:taken]
                if at_end and not entries and jump is None:
                    return self._found(None)
                if self._before + len(self._rows) >= limit or self._long >= LONG_BYTES:
                    whole = first[:2] + self._last_row + b"\0\1"
        return self._found(None)

    # --- A run as a whole ---------------------------------------------------------------

    def _take(self, entries: list[bytes], records: list[bytes]) -> int:
        """Split the run if it is regular; return how many entries were taken, 0 if it is not."""
        if not entries:
            return 0
        first = entries[0]
        row = first[: first.index(b"\0\1", 2) + 2]
        period = next((i for i, entry in enumerate(entries) if not entry.startswith(row)), 0)
        count = len(entries) // period if period else 0
        if count < _FEW or first[:-8] == self._done or row[2:-2] == self._last_row:
            return 0
        tails = [entry[len(row) - 2 : -8] for entry in entries[:period]]
        wanted = [self._places.get(tail[2:]) for tail in tails]
        if all(place is None for place in wanted) or len(set(tails)) < period:
            return 0
        end = count * period
        rows: pa.Array | None = None
        found: dict[int, pa.Array] = {}
        for at, tail in enumerate(tails):
            keys = pa.array(entries[at:end:period], pa.binary())
            if not self._is_all(keys, tail):
                return 0
            same = pc.binary_slice(keys, 2, -len(tail) - 8)
            if rows is None:
                rows = same
                if pc.any(pc.equal(rows[1:], rows[:-1])).as_py():
                    return 0
            elif not same.equals(rows):
                return 0
            place = wanted[at]
            if place is not None:
                some = pa.array(records[at:end:period], pa.binary())
                if not _are_plain(some):
                    return 0
                found[place] = pc.binary_slice(some, WRITE_HEADER, _TO_THE_END)
        assert rows is not None
        self._flush()
        empty = pa.nulls(count, pa.binary()) if len(found) < len(self._values) else None
        self._parts.append((rows, [found.get(at, empty) for at in range(len(self._values))]))
        self._before += count
        self._last_row = rows[-1].as_py()
        self._done = entries[end - 1][:-8]
        return end

    def _is_all(self, keys: pa.Array, tail: bytes) -> bool:
        """Whether all keys are of this column, and neither locks nor newer than the reader."""
        _, ends, raw = _buffers(keys)
        size = len(tail) + 8
        endings = raw[(ends[1:, None] - size) + np.arange(size, dtype=np.int32)]
        stamps = np.ascontiguousarray(endings[:, -8:]).view(">u8")
        expected = np.frombuffer(tail, np.uint8)
        return bool((endings[:, :-8] == expected).all()) and int(stamps.min()) >= TOP - self._ts

    # --- Entry by entry -----------------------------------------------------------------

    def _step(self, entries: list[bytes], records: list[bytes]) -> bytes | None:
        """Process the entries one by one; return the key to seek next, if it is far away."""
        idle = 0
        row, width = b"", 0
        for entry, record in zip(entries, records, strict=False):
            key = entry[:-8]
            if key == self._done:
                idle += 1
                if idle > _STEPS:
                    return key + _AFTER
                continue
            if not row or not entry.startswith(row):
                width = entry.index(b"\0\1", 2) + 2
                row = entry[:width]
            place = self._places.get(key[width:])
            if place is None:
                idle += 1
                if idle > _STEPS:
                    return self._next_wanted(row, key[width:])
                continue
            if entry[-8:] < self._bound:
                at = int.from_bytes(entry[-8:], "big")
                if at <= self._ts:
                    self._add(row[2:-2], place, None)
                    index = self._before + len(self._rows) - 1
                    self._blocked.append((index, place, (at, record)))
                    self._done = key
                elif at > MAX_TS:
                    idle += 1
                    if idle > _STEPS:
                        return key + self._bound
                continue
            if record[1] > INLINE and (change := decode_write(record).last_change) is not None:
                if not change.commit_ts:
                    self._done = key
                    idle = 0
                    continue
                record = change.record
            op = record[0]
            if op == _PUT:
                self._add(row[2:-2], place, self._value(entry, record))
            if op in (_PUT, _DELETE):
                self._done = key
                idle = 0
        return None

    def _value(self, entry: bytes, record: bytes) -> bytes:
        if record[1]:
            return record[WRITE_HEADER:]
        value = self._keys.long_value(self._txn, self._data, entry, record)
        self._long += len(value)
        return value

    def _add(self, row: bytes, place: int, value: bytes | None) -> None:
        if row != self._last_row:
            self._rows.append(row)
            self._last_row = row
        elif not self._rows:
            # The last row was taken as one of a run, and has another column behind it.
            self._reopen()
        values = self._values[place]
        values += [None] * (len(self._rows) - 1 - len(values))
        values.append(value)

    def _reopen(self) -> None:
        """Move the last row from its array to the rows that are being assembled."""
        rows, columns = self._parts.pop()
        self._before -= 1
        self._rows = [self._last_row]
        self._values = [[v] if (v := column[-1].as_py()) is not None else [] for column in columns]
        self._parts.append((rows[:-1], [column[:-1] for column in columns]))

    def _next_wanted(self, row: bytes, column: bytes) -> bytes:
        """The key of the next wanted column after one of a row, or of the next row."""
        at = bisect_left(self._sorted, column)
        return row + self._sorted[at] if at < len(self._sorted) else row[:-1] + b"\2"

    # --- Results ------------------------------------------------------------------------

    def _flush(self) -> None:
        """Convert the rows found entry by entry to arrays."""
        count = len(self._rows)
        if count:
            columns = [
                pa.array(values + [None] * (count - len(values)), pa.binary())
                for values in self._values
            ]
            self._parts.append((pa.array(self._rows, pa.binary()), columns))
            self._before += count
            self._rows, self._values = [], [[] for _ in self._values]

    def _found(self, following: bytes | None) -> ColumnScan:
        self._flush()
        if not self._parts:
            nothing = pa.array([], pa.binary())
            return ColumnScan(nothing, [nothing] * len(self._values), [], following)
        parts = self._parts
        rows = pa.concat_arrays([rows for rows, _ in parts])
        if (_buffers(rows)[2] == 0).any():
            escaped = [row.replace(b"\0\xff", b"\0") for row in rows.to_pylist()]
            rows = pa.array(escaped, pa.binary())
        values = [
            pa.concat_arrays([columns[at] for _, columns in parts])
            for at in range(len(self._values))
        ]
        return ColumnScan(rows, values, self._blocked, following)


def column_scan(
    arrays: list[tuple[int, list[bytes]]],
    blocked: list[tuple[int, int, tuple[int, bytes]]],
    following: bytes | None,
) -> ColumnScan:
    """What `percola._native.scan_columns` has found: each array's length and buffers."""
    rows, *values = map(_from_buffers, arrays)
    return ColumnScan(rows, values, blocked, following)


def cell_scan(
    arrays: list[tuple[int, list[bytes]]],
    offsets: bytes,
    blocked: list[tuple[int, tuple[int, bytes]]],
    following: bytes | None,
) -> CellScan:
    """What `percola._native.scan_cells` has found: each array's length and buffers."""
    rows, columns, values = map(_from_buffers, arrays)
    parts = [None, pa.py_buffer(offsets)]
    ends = pa.Array.from_buffers(pa.int32(), len(rows) + 1, parts)
    return CellScan(rows, ends, columns, values, blocked, following)


def _from_buffers(array: tuple[int, list[bytes]]) -> pa.Array:
    count, buffers = array
    return pa.Array.from_buffers(pa.binary(), count, [pa.py_buffer(one) for one in buffers])


def _buffers(array: pa.Array) -> tuple[Any, Any, Any]:
    """The buffers of a whole binary array: which are valid, where they end, and the bytes."""
    valid, ends, raw = array.buffers()
    count = len(array) + 1
    return (
        valid,
        np.frombuffer(ends, np.int32, count) if ends else np.zeros(1, np.int32),
        np.frombuffer(raw, np.uint8) if raw else np.zeros(0, np.uint8),
    )


def _are_plain(records: pa.Array) -> bool:
    """Whether all records are puts that have their values inline."""
    _, ends, raw = _buffers(records)
    starts = ends[:-1]
    return bool((raw[starts] == _PUT).all() and (raw[starts + 1] == 1).all())


def _row(entry: bytes) -> bytes:
    """The row of an entry's key."""
    return entry[2 : entry.index(b"\0\1", 2)].replace(b"\0\xff", b"\0")
