"""The HBase store keeps every promise of the contract, on a real HBase."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hbase import REGION_SERVERS, InHBase
from hbase_admin import Admin
from hbase_upkeep import Upkeep
from hypothesis import given, settings
from hypothesis import strategies as st
from server_scans import ServerConformance

from percola.cells import MAX_TS, Cell, Kind, Op, encode_write
from percola.store.base import Condition, Delete, Put, RowMutation, Store
from percola.store.hbase.store import HBaseStore
from percola.store.hbase.wire import FAMILIES, Ask, get, rows_of
from percola.store.remote.shared_row import ROW, SHARED_TABLE
from percola.store.walks import walk_kind
from percola.testing.conformance.fixtures import COLUMN, lock, numbers, written
from percola.testing.conformance.model import Comparison, Operation, looks, mutations
from percola.testing.conformance.suite import RANDOM

WaitUntil = Callable[..., object]


class TestHBaseStore(InHBase, ServerConformance):
    namespace = f"conformance_{os.getpid()}"

    def test_several_cells_of_a_row_may_each_need_a_second_look(
        self, store: Store, table: str
    ) -> None:
        columns = [b"c%d" % i for i in range(5)]
        for column in columns:
            self.put(store, table, b"r", *written(column, 4, column * 200, 3))
            self.put(store, table, b"r", *written(column, 6, None, 6, Op.ROLLBACK))
            self.put(store, table, b"r", Put(Kind.DATA, column, 5, b"newer"))
        states = store.read([Cell(table, b"r", column) for column in columns], 9)
        assert states == [(None, 4, column * 200) for column in columns]

    def test_of_a_safe_point_that_is_raised_each_minute_the_last_is_stored(
        self, store: HBaseStore
    ) -> None:
        """Every process reads it each second, and a read passes all versions of a cell."""
        first = store.safe_point()
        for ts in range(first + 1, first + 8):
            store.raise_safe_point(ts)
        asked = get(ROW, [Ask(FAMILIES[Kind.DATA], None)], 100)
        [(_, entries)] = rows_of(store._calls.get(SHARED_TABLE, [asked]))
        stamps = [ts for _, column, ts, _ in entries if column.startswith(b"safe-point:")]
        assert stamps == [first + 7] * 2
        assert store.safe_point() == first + 7

    def test_a_single_column_is_found_between_others_and_in_the_version_that_is_seen(
        self, store: HBaseStore, table: str
    ) -> None:
        names = [b"b", b"b\xff", b"c", b"c\0", b"ca", b"d"]
        for ts in (3, 5, 8):
            changes = [
                Put(Kind.WRITE, name, ts, encode_write(Op.PUT, ts - 1, name)) for name in names
            ]
            store.mutate([RowMutation(table, b"r", [], changes)])
        for name in names:
            cell = Cell(table, b"r", name)
            assert [ts for ts, _ in store.entries(cell, Kind.WRITE, 0, 7, 1)] == [5]
            assert [ts for ts, _ in store.entries(cell, Kind.WRITE, 4, MAX_TS)] == [8, 5]
            [(found, state)] = store.scan_rows(table, [b"r"], 7, columns=[(name, False)])[b"r"]
            assert (found, state[1:]) == (cell, (5, name))
        missing = Cell(table, b"r", b"c\1")
        assert store.entries(missing, Kind.WRITE, 0, MAX_TS) == []

    @pytest.mark.parametrize("width", [1, 40, 300])
    def test_a_row_of_many_columns_is_locked_and_committed_in_one_mutation(
        self, store: Store, table: str, width: int
    ) -> None:
        columns = [b"column:%04d" % i for i in range(width)]
        absent = [
            Condition(False, kind, column, low, MAX_TS)
            for column in columns
            for kind, low in ((Kind.WRITE, 5), (Kind.LOCK, 0))
        ]
        prewrite = RowMutation(table, b"r", absent, [lock(column, 5) for column in columns])
        held = [Condition(True, Kind.LOCK, column, 5, 5) for column in columns]
        changes = [one for column in columns for one in written(column, 7, b"v", 5)]
        changes += [Delete(Kind.LOCK, column, 5) for column in columns]
        commit = RowMutation(table, b"r", held, changes)
        for column in {columns[0], columns[-1], columns[width // 2]}:
            self.put(store, table, b"r", lock(column, 4))
            assert store.mutate([prewrite, commit]) == [False, False]
            self.put(store, table, b"r", Delete(Kind.LOCK, column, 4))
        assert store.mutate([prewrite, prewrite, commit, prewrite]) == [True, False, True, False]
        assert store.scan_kind(Kind.LOCK, table) == ([], None)
        found, _ = store.scan(table, b"", b"", 9)
        assert [(cell.column, state) for cell, state in found] == [
            (column, (None, 7, b"v")) for column in columns
        ]

    @pytest.mark.parametrize("refused", [[], [0], [137], [3, 64, 199]])
    def test_rows_that_are_sent_together_to_three_servers_are_judged_each_by_itself(
        self, store: HBaseStore, table: str, refused: list[int]
    ) -> None:
        rows = [b"%d|%03d" % (i % 3, i) for i in range(200)]
        admin = Admin(store)
        assert len({admin.server(table, row) for row in rows[:3]}) == REGION_SERVERS
        for i in refused:
            self.put(store, table, rows[i], lock(COLUMN, 2))
        absent = [Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)]
        batch = [RowMutation(table, row, absent, [lock(COLUMN, 5)]) for row in rows]
        assert store.mutate(batch) == [i not in refused for i in range(200)]
        held = {cell.row: ts for cell, ts, _ in walk_kind(store, Kind.LOCK, table)}
        assert list(held) == sorted(rows)
        assert held == {row: 2 if i in refused else 5 for i, row in enumerate(rows)}

    def test_rows_that_are_too_much_for_one_answer_come_in_several(
        self, store: HBaseStore, table: str
    ) -> None:
        values = {b"%d|%03d" % (i % 3, i): b"%d|" % i * 10_000 for i in range(180)}
        for row, value in values.items():
            self.put(store, table, row, *written(COLUMN, 5, value))
        made = store._calls.made["get"]
        states = store.read([Cell(table, row, COLUMN) for row in values], 9)
        assert [value for _, _, value in states] == [*values.values()]
        assert store._calls.made["get"] > made + 1, "servers answer with more at once"
        rows = store.scan_rows(table, [*values], 9)
        assert {row: cells[0][1][2] for row, cells in rows.items()} == values

    def test_a_batch_whose_conditions_have_much_to_read_is_written_whole(
        self, store: HBaseStore, table: str
    ) -> None:
        rows = [b"%d|%04d" % (i % 3, i) for i in range(900)]
        note = [Put(Kind.NOTIFY, COLUMN, 5, b"long" * 2500)]
        store.mutate([RowMutation(table, row, (), note) for row in rows])
        Admin(store).flush(table)
        made = store._calls.made["mutate"]
        noted = [Condition(True, Kind.NOTIFY, COLUMN, 5, 5)]
        assert all(
            store.mutate([RowMutation(table, row, noted, [lock(COLUMN, 7)]) for row in rows])
        )
        assert store._calls.made["mutate"] > made + 1, "servers read as much for one call"
        assert sum(1 for _ in walk_kind(store, Kind.LOCK, table)) == len(rows)

    def test_each_region_of_the_tables_of_these_tests_stands_on_a_server_of_its_own(
        self, store: HBaseStore, table: str, feed: str
    ) -> None:
        admin = Admin(store)
        made = admin.tables()
        assert {table, feed} <= {*made}
        for name in made:
            servers = [server for _, server in admin.regions(name)]
            assert len(servers) == len({*servers}) == REGION_SERVERS, name

    @pytest.mark.long
    def test_the_tables_of_these_tests_are_flushed_and_compacted_meanwhile(
        self, store: HBaseStore, table: str, upkeep: Upkeep
    ) -> None:
        upkeep.check(
            table, lambda i: self.put(store, table, b"r", *written(COLUMN, 10 + i, b"%d" % i))
        )
        assert self.state(store, table, 12) == (None, 12, b"2")

    @pytest.mark.parametrize("kind", Kind)
    def test_what_the_servers_check_is_what_a_look_finds(
        self, store: Store, table: str, kind: Kind
    ) -> None:
        others = [Put(other, COLUMN, 5, b"") for other in Kind if other is not kind]
        self.put(store, table, b"r", Put(kind, COLUMN, 5, b""), *others[:2])
        self.put(store, table, b"none", *others)
        change = [Put(Kind.NOTIFY, b"d", 1, b"")]
        for low, high in ((0, MAX_TS), (5, 5), (0, 5), (0, 4), (1, 9), (5, MAX_TS), (6, MAX_TS)):
            for present in (True, False):
                for row, inside in ((b"r", low <= 5 <= high), (b"none", False), (b"no", False)):
                    condition = Condition(present, kind, COLUMN, low, high)
                    for changes in ([], change):
                        done = store.mutate([RowMutation(table, row, [condition], changes)])
                        assert done == [present is inside], condition

    @pytest.mark.parametrize(
        "settle",
        [
            "memory",
            *(pytest.param(one, marks=pytest.mark.long) for one in ("flushed", "compacted")),
        ],
    )
    def test_what_is_put_again_where_it_was_deleted_is_there(
        self, store: HBaseStore, table: str, wait_until: WaitUntil, settle: str
    ) -> None:
        admin, rows = Admin(store), {kind: b"%d" % kind for kind in Kind}
        cells = {kind: Cell(table, row, COLUMN) for kind, row in rows.items()}
        for i in range(3):
            value = b"%d" % i
            for kind, row in rows.items():
                self.put(store, table, row, Put(kind, COLUMN, 7, value))
            _settle(admin, table, settle, wait_until)
            for kind, cell in cells.items():
                assert store.entries(cell, kind, 0, MAX_TS) == [(7, value)]
                assert store.scan_kind(kind, table)[0] == [(cell, 7, value)]
            for kind, row in rows.items():
                self.put(store, table, row, Delete(kind, COLUMN, 7))
            _settle(admin, table, settle, wait_until)
            absent = [Condition(False, kind, COLUMN, 0, MAX_TS) for kind in Kind]
            for kind, row in rows.items():
                assert store.entries(cells[kind], kind, 0, MAX_TS) == []
                assert store.scan_kind(kind, table)[0] == []
                mark = Put(Kind.FAILED if kind is Kind.NOTIFY else Kind.NOTIFY, b"d", 1, b"")
                assert store.mutate([RowMutation(table, row, absent, [mark])]) == [True]
                self.put(store, table, row, Delete(mark.kind, b"d", 1))

    @pytest.mark.long
    @settings(RANDOM, max_examples=12)
    @given(
        operations=st.lists(
            mutations | mutations | looks | st.sampled_from(("flush", "compact")),
            min_size=8,
            max_size=30,
        )
    )
    def test_files_and_compactions_in_between_change_no_answer(
        self, store: HBaseStore, table: str, operations: Sequence[Operation | str]
    ) -> None:
        comparison = Comparison(store, table, b"%07d|" % next(numbers))
        admin = Admin(store)
        for operation in operations:
            if operation == "flush":
                admin.flush(table)
            elif operation == "compact":
                admin.compact(table)
            else:
                assert not isinstance(operation, str)
                comparison.do(operation)


def _settle(admin: Any, table: str, how: str, wait_until: WaitUntil) -> None:
    """Have what was written in memory, in files, or in one file a family."""
    if how == "memory":
        return
    admin.flush(table)
    if how == "compacted":
        admin.compact(table)
        wait_until(lambda: not admin.is_compacting(table))
