"""§2.1: conformance tests for single rows: conditions, changes, reads."""

from __future__ import annotations

import pytest

from percola.cells import (
    INLINE_BYTES,
    MAX_TS,
    NO_CHANGE,
    Cell,
    Kind,
    LastChange,
    Op,
    encode_write,
)
from percola.errors import DamagedRecordError
from percola.store.base import BLOCKED, NOTHING, Condition, Delete, Put, RowMutation, Store
from percola.store.capabilities import reader_of
from percola.testing.conformance.fixtures import (
    COLUMN,
    THREADS,
    Ground,
    at_once,
    lock,
    numbers,
    unchanged,
    written,
)
from percola.testing.conformance.model import scan_all, scan_kind_all


class RowClaims(Ground):
    """Conditions, atomicity, changes and reads."""

    # --- Conditions ---------------------------------------------------------------------

    @pytest.mark.parametrize("kind", Kind)
    @pytest.mark.parametrize(
        ("low", "high", "inside"),
        [
            (10, 10, True),
            (0, 10, True),
            (10, MAX_TS, True),
            (0, MAX_TS, True),
            (9, 11, True),
            (0, 9, False),
            (9, 9, False),
            (11, 11, False),
            (11, MAX_TS, False),
        ],
    )
    def test_a_condition_looks_at_its_range_of_timestamps_both_ends_included(
        self, store: Store, table: str, kind: Kind, low: int, high: int, inside: bool
    ) -> None:
        self.put(store, table, b"r", Put(kind, COLUMN, 10, b"x"))
        for present in (True, False):
            condition = Condition(present, kind, COLUMN, low, high)
            assert store.mutate([RowMutation(table, b"r", [condition], ())]) == [present is inside]

    @pytest.mark.parametrize("kind", Kind)
    def test_a_condition_looks_at_its_own_row_column_and_kind_only(
        self, store: Store, table: str, kind: Kind
    ) -> None:
        for row in (b"r\0", b"q", b"rr"):
            self.put(store, table, row, Put(kind, COLUMN, 10, b"x"))
        others = [Put(kind, column, 10, b"x") for column in (b"b", b"c\1", b"cc", b"d")]
        others += [Put(other, COLUMN, 10, b"x") for other in Kind if other is not kind]
        self.put(store, table, b"r", *others)
        absent = Condition(False, kind, COLUMN, 0, MAX_TS)
        assert store.mutate([RowMutation(table, b"r", [absent], ())]) == [True]

    def test_a_mutation_applies_only_if_all_its_conditions_hold(
        self, store: Store, table: str
    ) -> None:
        kind = Kind.FAILED if store.has_notify_table else Kind.NOTIFY
        self.put(store, table, b"r", Put(kind, b"a", 1, b"x"), Put(kind, b"b", 2, b"x"))
        a, b = (Condition(True, kind, column, 0, 9) for column in (b"a", b"b"))
        no_c = Condition(False, kind, COLUMN, 0, 9)
        no_a = a._replace(present=False)
        put = [Put(kind, b"d", 1, b"x")]
        cases = [[a, b, no_c, no_a], [no_a, a, b], [a, b, no_c]]
        assert store.mutate([RowMutation(table, b"r", case, put) for case in cases[:2]]) == [
            False,
            False,
        ]
        assert store.entries(Cell(table, b"r", b"d"), kind, 0, 9) == []
        assert store.mutate([RowMutation(table, b"r", cases[2], put)]) == [True]
        assert store.entries(Cell(table, b"r", b"d"), kind, 0, 9) == [(1, b"x")]

    def test_conditions_see_the_row_as_it_was_before_the_changes(
        self, store: Store, table: str
    ) -> None:
        lock = Put(Kind.LOCK, COLUMN, 5, b"lock")
        absent = Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)
        mutation = RowMutation(table, b"r", [absent], [lock])
        assert store.mutate([mutation]) == [True]
        assert store.mutate([mutation]) == [False]

    # --- Atomicity ----------------------------------------------------------------------

    def test_of_threads_that_race_for_a_row_exactly_one_wins(
        self, store: Store, table: str
    ) -> None:
        rows = [b"%d" % i for i in range(25)]

        def lock_all(i: int) -> list[bool]:
            absent = Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)
            put = Put(Kind.LOCK, COLUMN, 10 + i, b"%d" % i)
            return [store.mutate([RowMutation(table, row, [absent], [put])])[0] for row in rows]

        results = at_once(lock_all)
        for row, won in zip(rows, zip(*results, strict=True), strict=True):
            assert sum(won) == 1
            winner = won.index(True)
            held = store.entries(Cell(table, row, COLUMN), Kind.LOCK, 0, MAX_TS)
            assert held == [(10 + winner, b"%d" % winner)]

    def test_no_increment_of_a_conditional_counter_is_lost(self, store: Store, table: str) -> None:
        each, cell = 20, Cell(table, b"counter", COLUMN)

        def increment(_: int) -> None:
            for _ in range(each):
                while True:
                    newest = store.entries(cell, Kind.DATA, 0, MAX_TS, 1)
                    ts = newest[0][0] if newest else 0
                    unchanged = Condition(False, Kind.DATA, COLUMN, ts + 1, MAX_TS)
                    put = Put(Kind.DATA, COLUMN, ts + 1, b"x")
                    if store.mutate([RowMutation(table, cell.row, [unchanged], [put])])[0]:
                        break

        at_once(increment)
        assert store.entries(cell, Kind.DATA, 0, MAX_TS, 1)[0][0] == THREADS * each

    def test_nobody_sees_half_of_a_row_mutation(self, store: Store, table: str) -> None:
        rounds = 40
        kind = Kind.FAILED if store.has_notify_table else Kind.NOTIFY
        half = [
            Condition(True, kind, b"a", 1, MAX_TS),
            Condition(False, Kind.LOCK, b"b", 1, MAX_TS),
        ]

        def run(i: int) -> bool:
            if i % 2:
                look = RowMutation(table, b"r", half, ())
                return any(store.mutate([look])[0] for _ in range(rounds))
            for _ in range(rounds):
                self.put(store, table, b"r", Put(kind, b"a", 1, b"x"), lock(b"b", 1))
                self.put(store, table, b"r", Delete(Kind.LOCK, b"b", 1), Delete(kind, b"a", 1))
            return False

        assert not any(at_once(run))

    def test_the_rows_of_a_batch_are_independent_of_each_other(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"2", lock(COLUMN, 1))
        absent = Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)
        batch = [RowMutation(table, b"%d" % i, [absent], [lock(COLUMN, 5)]) for i in range(5)]
        assert store.mutate(batch) == [True, True, False, True, True]
        locked = [found[1] for found in scan_kind_all(store, Kind.LOCK, table)]
        assert locked == [5, 5, 1, 5, 5]
        assert store.mutate([]) == []

    # --- Changes ------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", Kind)
    def test_putting_an_entry_again_replaces_it_and_deleting_it_again_is_fine(
        self, store: Store, table: str, kind: Kind
    ) -> None:
        cell = Cell(table, b"r", COLUMN)
        for value in (b"first", b"first", b"second"):
            self.put(store, table, b"r", Put(kind, COLUMN, 7, value))
            assert store.entries(cell, kind, 0, MAX_TS) == [(7, value)]
        for _ in range(2):
            self.put(store, table, b"r", Delete(kind, COLUMN, 6), Delete(kind, COLUMN, 7))
            assert store.entries(cell, kind, 0, MAX_TS) == []
        absent = Condition(False, kind, COLUMN, 0, MAX_TS)
        assert store.mutate([RowMutation(table, b"r", [absent], ())]) == [True]

    def test_a_row_is_changed_in_several_kinds_and_columns_at_once(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"r", lock(b"a", 4), lock(b"b", 4))
        changes = [*written(b"a", 6, b"v", 4), Put(Kind.NOTIFY, b"a", 6, b"")]
        self.put(store, table, b"r", *changes, Delete(Kind.LOCK, b"a", 4))
        states = store.read([Cell(table, b"r", b"a"), Cell(table, b"r", b"b")], 9)
        assert states == [(None, 6, b"v"), ((4, b"lock"), 0, None)]
        assert scan_kind_all(store, Kind.NOTIFY, table) == [(Cell(table, b"r", b"a"), 6, b"")]

    def test_creating_tables_is_idempotent_and_safe_beside_others(self, store: Store) -> None:
        names = [f"made{next(numbers)}" for _ in range(4)]
        at_once(lambda i: store.create_tables(names[i % 4 :]))
        store.create_tables(names)
        for name in names:
            self.put(store, name, b"r", *written(COLUMN, 5, name.encode()))
        cells = [Cell(name, b"r", COLUMN) for name in names]
        assert store.read(cells, 9) == [(None, 5, name.encode()) for name in names]

    # --- Reading ------------------------------------------------------------------------

    def test_a_reader_sees_the_newest_write_at_or_below_its_timestamp(
        self, store: Store, table: str
    ) -> None:
        for commit_ts in (10, 30, 20):
            self.put(store, table, b"r", *written(COLUMN, commit_ts, b"at %d" % commit_ts))
        seen = {ts: self.state(store, table, ts) for ts in (0, 9, 10, 11, 29, 30, MAX_TS)}
        assert seen[0] == seen[9] == NOTHING
        assert seen[10] == seen[11] == (None, 10, b"at 10")
        assert seen[29] == (None, 20, b"at 20")
        assert seen[30] == seen[MAX_TS] == (None, 30, b"at 30")

    def test_rollback_and_lock_only_records_are_passed_over(self, store: Store, table: str) -> None:
        self.put(store, table, b"r", *written(COLUMN, 10, b"v"))
        for commit_ts in range(11, 31):
            op = Op.ROLLBACK if commit_ts % 2 else Op.LOCK
            self.put(store, table, b"r", *written(COLUMN, commit_ts, None, op=op))
        assert self.state(store, table, 30) == (None, 10, b"v")
        assert self.state(store, table, 9) == NOTHING

    @pytest.mark.parametrize("op", [Op.LOCK, Op.ROLLBACK])
    def test_a_record_that_changes_nothing_says_what_is_the_newest_change_below_it(
        self, store: Store, table: str, op: Op
    ) -> None:
        # Nothing stands below, so that no answer can come from there.
        short = LastChange(10, encode_write(Op.PUT, 9, b"v"))
        self.put(store, table, b"r", unchanged(COLUMN, 20, short, op))
        assert self.state(store, table, 20) == (None, 10, b"v")
        assert reader_of(store, table, COLUMN)(b"r", 20) == b"v"
        assert scan_all(store, table, b"", b"", 20)[0][1] == (None, 10, b"v")
        assert self.state(store, table, 19) == NOTHING
        deleted = LastChange(25, encode_write(Op.DELETE, 24))
        self.put(store, table, b"r", unchanged(COLUMN, 30, deleted, op))
        assert self.state(store, table, 30) == (None, 25, None)
        assert reader_of(store, table, COLUMN)(b"r", 30) is None
        # One that says that there is none, above a record that it does not know of.
        self.put(store, table, b"r", unchanged(COLUMN, 40, NO_CHANGE, op))
        assert self.state(store, table, 40) == NOTHING
        assert reader_of(store, table, COLUMN)(b"r", 40) is None
        assert scan_all(store, table, b"", b"", 40) == []
        assert self.state(store, table, 29) == (None, 10, b"v")

    def test_a_long_value_is_found_from_a_record_that_repeats_its_put(
        self, store: Store, table: str
    ) -> None:
        value = b"v" * (INLINE_BYTES + 1)
        change = LastChange(10, encode_write(Op.PUT, 9))
        newer = Put(Kind.DATA, COLUMN, 15, b"of a transaction that commits above")
        data = Put(Kind.DATA, COLUMN, 9, value)
        self.put(store, table, b"r", data, newer, unchanged(COLUMN, 20, change))
        assert self.state(store, table, 20) == (None, 10, value)
        assert reader_of(store, table, COLUMN)(b"r", 20) == value
        assert [state for _, state in scan_all(store, table, b"", b"", 20)] == [(None, 10, value)]
        missing = LastChange(10, encode_write(Op.PUT, 8))
        self.put(store, table, b"r", unchanged(COLUMN, 30, missing))
        with pytest.raises(DamagedRecordError):
            self.state(store, table, 30)

    def test_a_delete_is_seen_as_no_value_with_its_timestamp(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"r", *written(COLUMN, 10, b"v"), *written(COLUMN, 20, None))
        assert self.state(store, table, 19) == (None, 10, b"v")
        assert self.state(store, table, 20) == (None, 20, None)

    def test_a_lock_at_or_below_the_reader_blocks_it_and_one_above_does_not(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"r", *written(COLUMN, 10, b"old"), lock(COLUMN, 20))
        assert self.state(store, table, 19) == (None, 10, b"old")
        assert self.state(store, table, 20)[0] == (20, b"lock")
        assert self.state(store, table, 21)[0] == (20, b"lock")
        assert reader_of(store, table, COLUMN)(b"r", 20) is BLOCKED
        self.put(store, table, b"r", *written(COLUMN, 25, b"new"))
        assert self.state(store, table, 30)[0] == (20, b"lock")

    @pytest.mark.parametrize(
        "size", [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 5000, 1_000_000]
    )
    def test_a_value_of_any_size_is_read_as_it_was_written(
        self, store: Store, table: str, size: int
    ) -> None:
        value = bytes(i * 37 % 256 for i in range(min(size, 4096)))
        value = (value * (size // 4096 + 1))[:size]
        self.put(store, table, b"r", *written(COLUMN, 10, value))
        assert self.state(store, table, 10) == (None, 10, value)
        assert reader_of(store, table, COLUMN)(b"r", 10) == value
        [(_, state)] = scan_all(store, table, b"", b"", 10)
        assert state == (None, 10, value)

    def test_many_cells_are_read_in_the_order_asked(self, store: Store, table: str) -> None:
        rows = [b"%03d" % i for i in range(300)]
        store.mutate([RowMutation(table, row, (), written(COLUMN, 5, row)) for row in rows[::2]])
        asked = [*reversed(rows), rows[0], rows[0]]
        states = store.read([Cell(table, row, COLUMN) for row in asked], 9)
        assert [state[2] for state in states] == [None if int(r) % 2 else r for r in asked]
        assert store.read([], 9) == []

    def test_entries_come_newest_first_within_their_bounds_and_limit(
        self, store: Store, table: str
    ) -> None:
        cell = Cell(table, b"r", COLUMN)
        for kind in set(Kind) - {Kind.LOCK}:
            self.put(
                store, table, b"r", *(Put(kind, COLUMN, ts, b"%d" % ts) for ts in (3, 1, 9, 5))
            )
            every = [(ts, b"%d" % ts) for ts in (9, 5, 3, 1)]
            assert store.entries(cell, kind, 0, MAX_TS) == every
            assert store.entries(cell, kind, 3, 5) == every[1:3]
            assert store.entries(cell, kind, 0, 8, 2) == every[1:3]
            assert store.entries(cell, kind, 4, 4) == []

    def test_a_long_value_is_that_of_the_visible_write_whatever_data_is_newer(
        self, store: Store, table: str
    ) -> None:
        old, new = b"old" * INLINE_BYTES, b"new" * INLINE_BYTES
        self.put(store, table, b"r", *written(COLUMN, 4, old, 3), *written(COLUMN, 9, new, 5))
        for ts, value in ((4, old), (6, old), (8, old), (9, new)):
            state = (None, 4 if value is old else 9, value)
            assert self.state(store, table, ts) == state
            assert store.scan(table, b"", b"", ts)[0] == [(Cell(table, b"r", COLUMN), state)]
        # Data that stands below many records which wrote nothing.
        for ts in range(10, 600):
            op = Op.ROLLBACK if ts % 2 else Op.LOCK
            self.put(store, table, b"r", *written(COLUMN, ts, None, ts, op))
        assert self.state(store, table, 700) == (None, 9, new)
        assert self.state(store, table, 8) == (None, 4, old)
