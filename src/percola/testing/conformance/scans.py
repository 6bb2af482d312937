"""§2.1: conformance tests for order: keys, scans, tablets."""

from __future__ import annotations

import itertools

import pytest

from percola.cells import Cell, Kind, Op
from percola.store.base import NOTHING, Delete, Put, RowMutation, Store
from percola.testing.conformance.fixtures import COLUMN, Ground, lock, numbers, written
from percola.testing.conformance.model import COLUMNS, ROWS, scan_all, scan_kind_all, scan_rows_all


class ScanClaims(Ground):
    """Keys, scans and tablets."""

    # --- Keys ---------------------------------------------------------------------------

    def test_rows_and_columns_of_any_bytes_stand_in_exact_byte_order(
        self, store: Store, table: str
    ) -> None:
        assert sorted(ROWS) == list(ROWS)
        assert sorted(COLUMNS) == list(COLUMNS)
        for row in ROWS[::-1]:
            changes = [one for c in COLUMNS for one in written(c, 5, row + b"|" + c)]
            self.put(store, table, row, *changes, lock(b"z", 5), Put(Kind.NOTIFY, b"z", 5, b""))
        everything = [(name, False) for name in COLUMNS]
        found = scan_all(store, table, b"", b"", 9, everything, limit=5)
        assert found == [
            (Cell(table, row, c), (None, 5, row + b"|" + c)) for row in ROWS for c in COLUMNS
        ]
        assert store.read([cell for cell, _ in found], 9) == [state for _, state in found]
        for kind in (Kind.LOCK, Kind.NOTIFY):
            assert [cell.row for cell, _, _ in scan_kind_all(store, kind, table)] == list(ROWS)

    def test_a_scan_keeps_to_any_bounds_start_included_and_end_not(
        self, store: Store, table: str
    ) -> None:
        for row in ROWS:
            self.put(store, table, row, *written(COLUMN, 5, row), Put(Kind.NOTIFY, COLUMN, 5, b""))
        for start, end in itertools.product((b"", *ROWS), repeat=2):
            inside = [row for row in ROWS if start <= row and (not end or row < end)]
            found = scan_all(store, table, start, end, 9)
            assert [cell.row for cell, _ in found] == inside
            noticed = scan_kind_all(store, Kind.NOTIFY, table, start, end)
            assert [cell.row for cell, _, _ in noticed] == inside

    def test_the_longest_row_is_stored_and_found(self, store: Store, table: str) -> None:
        row = b"r" * store.limits.row_bytes
        column = b"@failed:%b:%b" % (b"o" * 48, b"c" * 48)
        store.check_row(table, row)
        changes = [Put(kind, column, 5, b"x") for kind in Kind if kind is not Kind.WRITE]
        self.put(store, table, row, *changes, *written(column, 7, b"v" * 300))
        cell = Cell(table, row, column)
        assert store.read([cell], 4) == [NOTHING]
        assert store.read([cell], 5) == [((5, b"x"), 0, None)]
        self.put(store, table, row, Delete(Kind.LOCK, column, 5))
        assert scan_all(store, table, b"", b"", 9, [(b"@", True)]) == [
            (cell, (None, 7, b"v" * 300))
        ]

    # --- Scanning -----------------------------------------------------------------------

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
    def test_a_scan_that_is_continued_finds_every_row_once_and_whole(
        self, store: Store, table: str, limit: int
    ) -> None:
        width = [3, 1, 0, 5, 2, 0, 0, 1, 4, 1]
        for i, count in enumerate(width):
            changes = [one for k in range(count) for one in written(b"c%d" % k, 5, b"v")]
            self.put(store, table, b"%d" % i, *changes, *written(b"@ack", 5, b"v"))
            marks = [Put(Kind.NOTIFY, b"c%d" % k, 5, b"") for k in range(count)]
            self.put(store, table, b"%d" % i, *marks)
        expected = [(b"%d" % i, b"c%d" % k) for i, n in enumerate(width) for k in range(n)]
        found = scan_all(store, table, b"", b"", 9, limit=limit)
        assert [cell[1:] for cell, _ in found] == expected
        marked = scan_kind_all(store, Kind.NOTIFY, table, limit=limit)
        assert [cell[1:] for cell, _, _ in marked] == expected

    def test_a_scan_reads_the_columns_and_prefixes_asked_for(
        self, store: Store, table: str
    ) -> None:
        for column in (b"a", b"b:1", b"b:2", b"bb", COLUMN):
            self.put(store, table, b"r", *written(column, 5, column), *written(column, 6, column))
        found = scan_all(
            store, table, b"", b"", 9, [(COLUMN, False), (b"b:", True), (b"nix", False)]
        )
        assert [cell.column for cell, _ in found] == [b"b:1", b"b:2", COLUMN]
        assert scan_all(store, table, b"", b"", 9, []) == []

    def test_percolas_own_columns_are_scanned_only_when_asked_for(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"r", *written(b"@ack:o:c", 5, b"4"), *written(COLUMN, 5, b"v"))
        assert [cell.column for cell, _ in scan_all(store, table, b"", b"", 9)] == [COLUMN]
        asked = scan_all(store, table, b"", b"", 9, [(b"@ack:", True)])
        assert [cell.column for cell, _ in asked] == [b"@ack:o:c"]

    def test_a_scan_sees_locks_on_cells_without_writes_but_not_those_above_it(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"1", lock(COLUMN, 5))
        self.put(store, table, b"2", lock(COLUMN, 50))
        self.put(store, table, b"3", *written(COLUMN, 5, b"v"), lock(COLUMN, 50))
        assert scan_all(store, table, b"", b"", 9) == [
            (Cell(table, b"1", COLUMN), ((5, b"lock"), 0, None)),
            (Cell(table, b"3", COLUMN), (None, 5, b"v")),
        ]

    def test_a_scan_shows_a_cell_once_however_many_versions_it_has(
        self, store: Store, table: str
    ) -> None:
        for row in (b"1", b"2"):
            for column in (b"a", b"b"):
                for commit_ts in range(10, 20):
                    self.put(store, table, row, *written(column, commit_ts, b"%d" % commit_ts))
        for ts in (9, 10, 14, 19, 50):
            visible = (None, min(ts, 19), b"%d" % min(ts, 19))
            cells = [Cell(table, row, c) for row in (b"1", b"2") for c in (b"a", b"b")]
            expected = [(cell, visible) for cell in cells] if ts >= 10 else []
            assert scan_all(store, table, b"", b"", ts) == expected
            only = [(cell, state) for cell, state in expected if cell.column == b"b"]
            assert scan_all(store, table, b"", b"", ts, [(b"b", False)]) == only

    def test_a_scan_leaves_out_cells_without_a_lock_or_a_value(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"1", *written(COLUMN, 5, b"v"), *written(COLUMN, 6, None))
        self.put(store, table, b"2", *written(COLUMN, 5, None, op=Op.ROLLBACK))
        self.put(store, table, b"3", *written(COLUMN, 50, b"later"))
        self.put(store, table, b"4", Put(Kind.NOTIFY, COLUMN, 5, b""))
        assert scan_all(store, table, b"", b"", 9) == []

    # --- Single rows --------------------------------------------------------------------

    def test_single_rows_come_whole_each_as_a_scan_finds_it(self, store: Store, table: str) -> None:
        for row in ROWS:
            changes = [one for c in COLUMNS for one in written(c, 5, row + b"|" + c)]
            self.put(store, table, row, *changes, *written(b"@ack", 5, b"4"))
        asked = [*ROWS[::-2], b"none"]
        found = store.scan_rows(table, asked, 9, limit=10_000)
        assert set(found) == set(asked)
        for row in asked:
            assert found[row] == scan_all(store, table, row, row + b"\0", 9)
        some = [(COLUMNS[0], False), (COLUMNS[-1], True)]
        found = store.scan_rows(table, asked, 9, columns=some)
        for row in asked:
            assert found[row] == scan_all(store, table, row, row + b"\0", 9, some)
        assert store.scan_rows(table, asked, 9, columns=[]) == {row: [] for row in asked}

    @pytest.mark.parametrize("limit", [1, 3, 7])
    def test_of_single_rows_the_first_is_always_read_and_no_more_once_the_limit_is_reached(
        self, store: Store, table: str, limit: int
    ) -> None:
        rows = [b"%d" % number for number in range(6)]
        for row in rows:
            self.put(store, table, row, *(e for c in (b"a", b"b") for e in written(c, 5, row)))
        for asked in (rows, rows[::-1], rows[3:] + rows[:3]):
            found = store.scan_rows(table, asked, 9, limit=limit)
            assert len(found[asked[0]]) == 2
            assert len(found) <= 1 + (limit + 1) // 2
            everything = scan_rows_all(store, table, asked, 9, limit=limit)
            assert [len(cells) for cells in everything.values()] == [2] * 6

    def test_single_rows_show_locks_on_cells_without_writes_but_not_those_above(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"1", lock(COLUMN, 5))
        self.put(store, table, b"2", lock(COLUMN, 50))
        self.put(store, table, b"3", *written(COLUMN, 5, b"v" * 300), lock(b"d", 7))
        assert store.scan_rows(table, [b"3", b"1", b"2"], 9) == {
            b"1": [(Cell(table, b"1", COLUMN), ((5, b"lock"), 0, None))],
            b"2": [],
            b"3": [
                (Cell(table, b"3", COLUMN), (None, 5, b"v" * 300)),
                (Cell(table, b"3", b"d"), ((7, b"lock"), 0, None)),
            ],
        }

    @pytest.mark.parametrize("kind", [Kind.LOCK, Kind.NOTIFY, Kind.FAILED, Kind.DATA])
    def test_a_scan_of_one_kind_finds_that_kind_in_that_table_until_it_is_deleted(
        self, store: Store, table: str, kind: Kind
    ) -> None:
        other = f"conformance{next(numbers)}"
        store.create_tables([other])
        for name in (table, other):
            self.put(store, name, b"r", *(Put(one, COLUMN, 5, b"x") for one in Kind))
            self.put(store, name, b"r", *written(b"d", 5, b"v"))
        assert scan_kind_all(store, kind, table) == [(Cell(table, b"r", COLUMN), 5, b"x")]
        self.put(store, table, b"r", Delete(kind, COLUMN, 5))
        assert scan_kind_all(store, kind, table) == []
        assert scan_kind_all(store, kind, other) == [(Cell(other, b"r", COLUMN), 5, b"x")]

    @pytest.mark.parametrize("kind", [Kind.LOCK, Kind.NOTIFY, Kind.FAILED, Kind.DATA])
    def test_deleting_another_entry_leaves_one_to_be_found(
        self, store: Store, table: str, kind: Kind
    ) -> None:
        self.put(store, table, b"r", *(Put(kind, column, 5, b"x") for column in (b"a", b"b", b"c")))
        self.put(store, table, b"r", Delete(kind, b"a", 4), Delete(kind, b"b", 5))
        found = scan_kind_all(store, kind, table)
        assert [cell.column for cell, _, _ in found] == [b"a", b"c"]

    @pytest.mark.parametrize("rows", [0, 1, 2, 200])
    def test_tablets_cover_every_row_in_order_without_overlap(
        self, store: Store, table: str, rows: int
    ) -> None:
        keys = [b"%d/\0%d" % (i % 3, i) for i in range(rows)]
        store.mutate([RowMutation(table, row, (), written(COLUMN, 5, b"v")) for row in keys])
        tablets = store.tablets(table)
        assert tablets[0].start == b""
        assert tablets[-1].end == b""
        bounds = [tablet.end for tablet in tablets[:-1]]
        assert bounds == [tablet.start for tablet in tablets[1:]]
        assert sorted(set(bounds) - {b""}) == bounds
        found = [c.row for t in tablets for c, _ in scan_all(store, table, *t, 9)]
        assert found == sorted(keys)
