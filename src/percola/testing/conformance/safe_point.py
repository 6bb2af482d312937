"""§2.1, rule P12: conformance tests for old versions and the safe point."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from percola.cells import INLINE_BYTES, MAX_TS, Cell, Kind
from percola.errors import DamagedRecordError, SnapshotTooOldError
from percola.store.base import Delete, Put, RowMutation, Store
from percola.store.capabilities import reader_of
from percola.store.walks import scan_writes
from percola.testing.conformance.fixtures import COLUMN, Ground, at_once, lock, written

READS: dict[str, Callable[[Store, Cell, int], object]] = {
    "read": lambda store, cell, ts: store.read([cell], ts),
    "reader": lambda store, cell, ts: reader_of(store, cell.table, cell.column)(cell.row, ts),
    "scan": lambda store, cell, ts: store.scan(cell.table, b"", b"", ts),
    "scan_rows": lambda store, cell, ts: store.scan_rows(cell.table, [cell.row], ts),
}


class SafePointClaims(Ground):
    """All versions, and the safe point, below which reads fail."""

    @pytest.mark.parametrize("limit", [1, 2, 5, 1000])
    def test_versions_finds_every_write_record_once_row_by_row_newest_first(
        self, store: Store, table: str, limit: int
    ) -> None:
        expected = []
        for row in (b"a", b"b\0", b"c"):
            for column in (b"@ack:o:c", b"c", b"d"):
                timestamps = list(range(5, 5 + 2 * (row[0] + column[-1]) % 7, 2))
                for commit_ts in timestamps:
                    value = b"%d" % commit_ts * (200 if column == b"d" else 1)
                    self.put(store, table, row, *written(column, commit_ts, value))
                if timestamps:
                    expected.append((Cell(table, row, column), timestamps[::-1]))
            self.put(store, table, row, lock(b"c", 90), Put(Kind.NOTIFY, b"c", 7, b""))
        found = []
        position: bytes | None = b""
        while position is not None:
            cells, position = scan_writes(store, table, position, limit=limit)
            assert position is None or cells, "a part that does not end holds at least a row"
            found += cells
        assert [(cell, [ts for ts, _ in records]) for cell, records in found] == expected
        for cell, records in found:
            assert records == store.entries(cell, Kind.WRITE, 0, MAX_TS)

    @pytest.mark.parametrize("kind", [one for one in Kind if one is not Kind.LOCK])
    @pytest.mark.parametrize(("versions", "limit"), [(1, 1), (2, 3), (3, 1000)])
    def test_of_a_cell_with_more_than_the_versions_asked_for_the_newest_are_found(
        self, store: Store, table: str, versions: int, limit: int, kind: Kind
    ) -> None:
        expected = []
        for row, counts in ((b"a", (4, 0, 1)), (b"a\0", (2, 3, 4)), (b"b", (0, 3, 5))):
            for column, count in zip((b"c", b"cc", b"d"), counts, strict=True):
                for commit_ts in range(5, 5 + 2 * count, 2):
                    value = b"%d" % commit_ts * 200
                    others = [
                        Put(one, column, commit_ts, value) for one in (Kind.NOTIFY, Kind.FAILED)
                    ]
                    self.put(store, table, row, *written(column, commit_ts, value), *others)
                # One that was removed is no version.
                self.put(store, table, row, Put(kind, column, 90, b"gone"))
                self.put(store, table, row, Delete(kind, column, 90))
                cell = Cell(table, row, column)
                entries = store.entries(cell, kind, 0, MAX_TS)[:versions]
                oldest_first = kind in (Kind.NOTIFY, Kind.FAILED)
                expected += [(cell, *one) for one in (entries[::-1] if oldest_first else entries)]
            self.put(store, table, row, lock(b"c", 90))
        found: list[tuple[Cell, int, bytes]] = []
        position: bytes | None = b""
        while position is not None:
            part, position = store.scan_kind(kind, table, position, b"", limit, versions=versions)
            assert position is None or part, "a part that does not end holds at least a row"
            found += part
        # The cells of a row have no order that is promised, the entries of a cell have one.
        assert sorted(found, key=lambda one: one[0]) == expected

    def test_versions_keeps_to_the_range_start_included_and_end_not(
        self, store: Store, table: str
    ) -> None:
        for row in (b"a", b"b", b"c", b"d"):
            self.put(store, table, row, *written(COLUMN, 5, b"v"))
        cells, following = scan_writes(store, table, b"b", b"d")
        assert [cell.row for cell, _ in cells] == [b"b", b"c"]
        assert following is None

    @pytest.mark.parametrize("how", READS)
    def test_below_the_safe_point_nothing_is_read(self, store: Store, table: str, how: str) -> None:
        base = store.safe_point()
        cell = Cell(table, b"r", COLUMN)
        self.put(store, table, b"r", *written(COLUMN, base + 5, b"v"))
        read = READS[how]
        before = read(store, cell, base + 10)
        read(store, cell, base + 6)
        store.raise_safe_point(base + 10)
        assert read(store, cell, base + 10) == before
        with pytest.raises(SnapshotTooOldError) as caught:
            read(store, cell, base + 9)
        assert (caught.value.ts, caught.value.safe_point) == (base + 9, base + 10)

    @pytest.mark.parametrize("how", READS)
    def test_data_that_is_missing_is_damage_unless_it_was_collected(
        self, store: Store, table: str, how: str
    ) -> None:
        base = store.safe_point()
        cell, long = Cell(table, b"r", COLUMN), b"long" * INLINE_BYTES
        self.put(store, table, b"r", *written(COLUMN, base + 4, long, base + 3))
        self.put(store, table, b"r", Delete(Kind.DATA, COLUMN, base + 3))
        with pytest.raises(DamagedRecordError, match=f"data at {base + 3}"):
            READS[how](store, cell, base + 5)
        store.raise_safe_point(base + 6)
        with pytest.raises(SnapshotTooOldError):
            READS[how](store, cell, base + 5)

    def test_a_check_fails_below_the_safe_point_and_not_at_it(
        self, store: Store, table: str
    ) -> None:
        base = store.safe_point()
        store.check_safe_point(base)
        store.raise_safe_point(base + 10)
        store.check_safe_point(base + 10)
        with pytest.raises(SnapshotTooOldError) as caught:
            store.check_safe_point(base + 9)
        assert (caught.value.ts, caught.value.safe_point) == (base + 9, base + 10)

    def test_a_reader_made_before_the_safe_point_was_raised_heeds_it(
        self, store: Store, table: str
    ) -> None:
        base = store.safe_point()
        reader = reader_of(store, table, COLUMN)
        reader(b"r", base + 1)
        store.raise_safe_point(base + 2)
        with pytest.raises(SnapshotTooOldError):
            reader(b"r", base + 1)

    def test_the_safe_point_never_goes_down(self, store: Store, table: str) -> None:
        base = store.safe_point()
        store.raise_safe_point(base + 10)
        store.raise_safe_point(base + 5)
        assert store.safe_point() == base + 10
        at_once(lambda i: store.raise_safe_point(base + 20 + i))
        assert store.safe_point() == base + 27

    def test_the_safe_point_concerns_no_mutation_of_single_rows(
        self, store: Store, table: str
    ) -> None:
        base = store.safe_point()
        store.raise_safe_point(base + 10)
        change = RowMutation(table, b"r", (), written(COLUMN, base + 5, b"v"))
        assert store.mutate([change]) == [True]
        assert store.entries(Cell(table, b"r", COLUMN), Kind.WRITE, 0, base + 9)
