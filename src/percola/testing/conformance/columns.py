"""§2.1: conformance tests for scans into Arrow arrays: column by column, and cell after cell."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import pytest

from percola.cells import INLINE_BYTES, NO_CHANGE, Kind, LastChange, Op, encode_write
from percola.errors import DamagedRecordError
from percola.store.base import CellState, Delete, Put, RowMutation, Store
from percola.store.capabilities import scan_cells, scan_columns
from percola.testing.conformance.fixtures import Ground, lock, unchanged, written
from percola.testing.conformance.model import scan_all

Changes: TypeAlias = list[Put | Delete]

_LONG: Final = b"x" * (INLINE_BYTES + 1)
_TS: Final = 20


def _put(column: bytes, value: bytes = b"v") -> Changes:
    return written(column, 5, column + value)


# What a row may look like; most tables are hundreds of rows of one of these.
_SHAPES: Final[dict[str, Callable[[bytes], Changes]]] = {
    "one column": lambda row: _put(b"a", row),
    "another column": lambda row: _put(b"b", row),
    "three columns": lambda row: [*_put(b"a", row), *_put(b"b"), *_put(b"c", row)],
    "without the middle one": lambda row: [*_put(b"a"), *_put(b"c")],
    "versions": lambda row: [*_put(b"a"), *written(b"a", 9, b"newer"), *written(b"a", 30, b"n")],
    "many versions": lambda row: [
        *(change for ts in range(21, 99) for change in written(b"a", ts, b"too new")),
        *(change for ts in range(3, 19) for change in written(b"b", ts, b"%d" % ts)),
    ],
    "locked": lambda row: [*_put(b"a"), *_put(b"b"), lock(b"b", 7), *_put(b"c")],
    "locked later": lambda row: [*_put(b"a"), lock(b"a", 70), *_put(b"b")],
    "only locked": lambda row: [lock(b"a", 7)],
    "deleted": lambda row: [*_put(b"a"), *written(b"a", 9, None), *_put(b"b")],
    "rolled back": lambda row: [*_put(b"a"), *written(b"a", 9, None, op=Op.ROLLBACK)],
    "locked only": lambda row: [*_put(b"a"), *written(b"a", 9, None, op=Op.LOCK)],
    "repeats a value": lambda row: [
        unchanged(b"a", 9, LastChange(5, encode_write(Op.PUT, 4, row))),
        *_put(b"b"),
    ],
    "repeats a delete": lambda row: [
        *_put(b"a"),
        unchanged(b"a", 9, LastChange(6, encode_write(Op.DELETE, 5))),
        *_put(b"b"),
    ],
    "repeats a long value": lambda row: [
        Put(Kind.DATA, b"b", 4, _LONG),
        unchanged(b"b", 9, LastChange(5, encode_write(Op.PUT, 4))),
        unchanged(b"b", 30, LastChange(5, encode_write(Op.PUT, 4))),
        *_put(b"c"),
    ],
    "repeats nothing": lambda row: [
        unchanged(b"a", 9, NO_CHANGE, Op.ROLLBACK),
        unchanged(b"c", 9, NO_CHANGE),
    ],
    "long": lambda row: [*_put(b"a", _LONG), *_put(b"b")],
    "a family": lambda row: [
        *_put(b"a"),
        *(change for i in range(60) for change in _put(b"b:%03d" % i)),
        *_put(b"c"),
    ],
    "nothing wanted": lambda row: _put(b"d"),
    "too new": lambda row: written(b"a", 30, b"too new"),
    "notified": lambda row: [*_put(b"a"), Put(Kind.NOTIFY, b"a", 5, b"")],
}

_WANTED: Final[Sequence[Sequence[tuple[bytes, bool]] | None]] = (
    None,
    [(b"b:", True)],
    [(b"b", True), (b"a", False)],
    [(b"nix", False)],
)


def _single(names: Sequence[bytes]) -> list[tuple[bytes, bool]]:
    """Columns with these names, as a scan takes them."""
    return [(name, False) for name in names]


def _some_range(rng: random.Random, rows: Sequence[bytes], most: int) -> tuple[bytes, bytes]:
    """A range of up to so many rows, in half of the cases without an end."""
    places = [b"", *rows]
    first, last = sorted(rng.sample(range(len(places)), 2))
    if rng.random() < 0.5:
        return places[max(first, len(places) - most)], b""
    return places[first], places[min(last, first + most)]


class ColumnClaims(Ground):
    """Columns of a range of rows, and all of their cells."""

    def _columns(
        self, store: Store, table: str, start: bytes, end: bytes, names: Sequence[bytes], limit: int
    ) -> list[tuple[bytes, bytes, CellState]]:
        """The result of `scan_columns`, as cells."""
        found: list[tuple[bytes, bytes, CellState]] = []
        position: bytes | None = start
        while position is not None:
            part = scan_columns(store, table, position, end, _TS, names, limit)
            rows = part.rows.to_pylist()
            assert [len(one) for one in part.values] == [len(rows)] * len(names)
            assert rows or part.following is None
            blocked = {(row, column): held for row, column, held in part.blocked}
            columns = [one.to_pylist() for one in part.values]
            before = len(found)
            for at, row in enumerate(rows):
                for place, name in sorted(enumerate(names), key=lambda one: one[1]):
                    held, value = blocked.get((at, place)), columns[place][at]
                    if held is not None or value is not None:
                        assert held is None or value is None
                        found.append((row, name, (held, 0, value)))
            assert {row for row, _, _ in found[before:]} == set(rows)
            position = part.following
        return found

    def _expected(
        self,
        store: Store,
        table: str,
        start: bytes,
        end: bytes,
        columns: Sequence[tuple[bytes, bool]] | None,
    ) -> list[tuple[bytes, bytes, CellState]]:
        return [
            (cell.row, cell.column, (held, 0, None if held else value))
            for cell, (held, _, value) in scan_all(store, table, start, end, _TS, columns)
        ]

    def _fill(self, store: Store, table: str, shapes: Sequence[str]) -> list[bytes]:
        # Some rows hold what keys have to escape.
        rows = [b"%05d" % at if at % 7 else b"%05d\0%d" % (at, at % 3) for at in range(len(shapes))]
        changes = [_SHAPES[shape](row) for shape, row in zip(shapes, rows, strict=True)]
        batch = [RowMutation(table, row, (), one) for row, one in zip(rows, changes, strict=True)]
        assert all(store.mutate(batch))
        return rows

    def _cells(
        self,
        store: Store,
        table: str,
        start: bytes,
        end: bytes,
        columns: Sequence[tuple[bytes, bool]] | None,
        limit: int,
    ) -> list[tuple[bytes, bytes, CellState]]:
        """The result of `scan_cells`, as cells."""
        found: list[tuple[bytes, bytes, CellState]] = []
        position: bytes | None = start
        while position is not None:
            part = scan_cells(store, table, position, end, _TS, columns, limit)
            rows, offsets = part.rows.to_pylist(), part.offsets.to_pylist()
            names, values = part.columns.to_pylist(), part.values.to_pylist()
            assert rows or part.following is None
            assert len(offsets) == len(rows) + 1
            assert offsets[-1] == len(names) == len(values)
            # Whole rows, each with a cell, up to the limit and to the end of its row.
            assert all(begin < end for begin, end in itertools.pairwise(offsets))
            assert len(rows) < 2 or offsets[-2] < limit
            blocked = dict(part.blocked)
            for row, (begin, until) in zip(rows, itertools.pairwise(offsets), strict=True):
                for at in range(begin, until):
                    held = blocked.get(at)
                    assert (held is None) == (values[at] is not None)
                    found.append((row, names[at], (held, 0, values[at])))
            position = part.following
        return found

    @pytest.mark.parametrize("shape", _SHAPES)
    def test_columns_of_rows_that_are_all_alike_are_what_a_scan_finds(
        self, store: Store, table: str, shape: str
    ) -> None:
        rows = self._fill(store, table, [shape] * 150)
        for names in ([b"a"], [b"b", b"a"], [b"c", b"a", b"b"], [b"nix"]):
            for start, end in ((b"", b""), (rows[3], rows[140])):
                expected = self._expected(store, table, start, end, _single(names))
                for limit in (1, 40, 10_000):
                    found = self._columns(store, table, start, end, names, limit)
                    assert found == expected

    @pytest.mark.parametrize("shape", _SHAPES)
    def test_cells_of_rows_that_are_all_alike_are_what_a_scan_finds(
        self, store: Store, table: str, shape: str
    ) -> None:
        rows = self._fill(store, table, [shape] * 60)
        for columns in _WANTED:
            for start, end in ((b"", b""), (rows[3], rows[50])):
                expected = self._expected(store, table, start, end, columns)
                for limit in (1, 40, 10_000):
                    found = self._cells(store, table, start, end, columns, limit)
                    assert found == expected

    @pytest.mark.parametrize("seed", range(12))
    def test_columns_of_rows_that_differ_are_what_a_scan_finds(
        self, store: Store, table: str, seed: int
    ) -> None:
        rng = random.Random(seed)
        shapes: list[str] = []
        while len(shapes) < 600:
            # Stretches of one shape with another one strewn in, or one after the other.
            usual, other = rng.choices(list(_SHAPES), k=2)
            share = rng.choice((0.0, 0.0, 0.05, 0.5))
            length = rng.choice((1, 3, 40, 200))
            shapes += [other if rng.random() < share else usual for _ in range(length)]
        rows = self._fill(store, table, shapes)
        for _ in range(12):
            names = rng.sample([b"a", b"b", b"c", b"d", b"b:007"], rng.randint(1, 4))
            limit = rng.choice((1, 7, 300, 9999))
            start, end = _some_range(rng, rows, 30 * limit)
            found = self._columns(store, table, start, end, names, limit)
            assert found == self._expected(store, table, start, end, _single(names))
            columns = rng.choice(_WANTED)
            found = self._cells(store, table, start, end, columns, limit)
            assert found == self._expected(store, table, start, end, columns)

    def test_a_long_value_that_is_missing_is_damage_and_not_an_empty_place(
        self, store: Store, table: str
    ) -> None:
        rows = self._fill(store, table, ["long", "one column", "long", "one column"])
        self.put(store, table, rows[2], Delete(Kind.DATA, b"a", 4))
        with pytest.raises(DamagedRecordError, match="data at 4"):
            self._columns(store, table, b"", b"", [b"b", b"a"], 1)
        with pytest.raises(DamagedRecordError, match="data at 4"):
            self._cells(store, table, b"", b"", None, 1)
        assert self._columns(store, table, b"", rows[2], [b"a"], 1)
