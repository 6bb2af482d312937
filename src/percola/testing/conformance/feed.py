"""§2.1: conformance tests for the feed of a table's changes."""

from __future__ import annotations

import itertools
from typing import ClassVar

import pytest

from percola.cells import INLINE_BYTES, MAX_TS, Cell, Kind, Op
from percola.errors import NoFeedError, SnapshotTooOldError, UnknownTableError
from percola.store.base import ChangedRow, Condition, Delete, Put, RowMutation, Store
from percola.testing.conformance.fixtures import (
    COLUMN,
    THREADS,
    Ground,
    at_once,
    lock,
    numbers,
    written,
)
from percola.testing.conformance.model import COLUMNS, ROWS

_FAR = 2**56 + 1


class FeedClaims(Ground):
    """The entries of a feed, their order, and their removal.

    Attributes:
        indexed: whether a store with feeds in the rows has an index of them.
    """

    indexed: ClassVar[bool] = True

    @pytest.fixture
    def feed(self, store: Store) -> str:
        """A new table of the store that keeps a feed."""
        name = f"conformance{next(numbers)}"
        store.create_tables([name])
        if self.indexed and store.feed_index is not None:
            store.feed_index.begin(lambda: 0)
        store.keep_feed(name)
        return name

    def listed(self, store: Store, table: str, after: int = 0) -> list[ChangedRow]:
        """All entries of the feed, in calls of few rows each."""
        return list(store.changes(table, after, MAX_TS - 1))

    def test_puts_and_deletes_are_listed_and_nothing_else_is(
        self, store: Store, feed: str, table: str
    ) -> None:
        for other in (feed, table):
            self.put(store, other, b"put", *written(COLUMN, 5, b"v"), *written(b"d", 5, b"v"))
            self.put(store, other, b"long", *written(COLUMN, 6, b"v" * (INLINE_BYTES + 1)))
            self.put(store, other, b"gone", *written(COLUMN, 7, None))
            for op in (Op.LOCK, Op.ROLLBACK):
                self.put(store, other, b"r", *written(COLUMN, 8 + op % 2, None, op=op))
            self.put(store, other, b"r", *written(b"@ack:o:c", 9, b"4"), lock(COLUMN, 9))
            self.put(store, other, b"r", Put(Kind.NOTIFY, COLUMN, 9, b""))
            self.put(store, other, b"r", Put(Kind.FAILED, COLUMN, 9, b"P"))
        assert self.listed(store, feed) == [
            ChangedRow(5, b"put", (COLUMN, b"d")),
            ChangedRow(6, b"long", (COLUMN,)),
            ChangedRow(7, b"gone", (COLUMN,)),
        ]
        with pytest.raises(NoFeedError, match=table):
            list(store.changes(table, 0, 9))

    def test_a_mutation_that_does_not_apply_lists_nothing(self, store: Store, feed: str) -> None:
        held = Condition(True, Kind.LOCK, COLUMN, 4, 4)
        change = RowMutation(feed, b"r", [held], written(COLUMN, 5, b"v"))
        assert store.mutate([change]) == [False]
        assert self.listed(store, feed) == []
        self.put(store, feed, b"r", lock(COLUMN, 4))
        assert store.mutate([change]) == [True]
        assert self.listed(store, feed) == [ChangedRow(5, b"r", (COLUMN,))]

    def test_changes_come_in_the_order_of_commit_ts_and_of_rows_within_one(
        self, store: Store, feed: str
    ) -> None:
        for ts in (_FAR, 256, 3, 255):
            for row in ROWS[::-1]:
                changes = [one for column in COLUMNS for one in written(column, ts, b"v")]
                self.put(store, feed, row, *changes)
        expected = [ChangedRow(ts, row, COLUMNS[1:]) for ts in (3, 255, 256, _FAR) for row in ROWS]
        assert self.listed(store, feed) == expected
        for after, upto in itertools.product((0, 2, 3, 255, _FAR), (3, 255, _FAR)):
            found = list(store.changes(feed, after, upto))
            assert found == [one for one in expected if after < one.commit_ts <= upto]
        assert list(itertools.islice(store.changes(feed, 2, _FAR), 3)) == expected[:3]

    def test_a_feed_of_many_changes_is_walked_whole(self, store: Store, feed: str) -> None:
        for row in range(3):
            every = [written(COLUMN, ts, b"v") for ts in range(row or 3, 1200, 3)]
            self.put(store, feed, b"r%d" % row, *itertools.chain(*every))
        assert [one.commit_ts for one in store.changes(feed, 0, _FAR)] == list(range(1, 1200))
        found = list(store.changes(feed, 0, _FAR, start=b"r1", end=b"r2"))
        assert [one.commit_ts for one in found] == list(range(1, 1200, 3))

    def test_a_walk_over_a_range_of_rows_finds_the_changes_of_those(
        self, store: Store, feed: str
    ) -> None:
        for ts in (5, 7):
            for row in ROWS:
                self.put(store, feed, row, *written(COLUMN, ts, b"v"))
        for start, end in itertools.product((b"", *ROWS), repeat=2):
            found = list(store.changes(feed, 5, _FAR, start=start, end=end))
            within = [row for row in ROWS if row >= start and (not end or row < end)]
            assert found == [ChangedRow(7, row, (COLUMN,)) for row in within]

    def test_a_change_put_again_or_deleted_stays_listed_once(self, store: Store, feed: str) -> None:
        for _ in range(3):
            self.put(store, feed, b"r", *written(COLUMN, 5, b"v"))
        self.put(store, feed, b"r", Delete(Kind.WRITE, COLUMN, 5))
        assert self.listed(store, feed) == [ChangedRow(5, b"r", (COLUMN,))]

    def test_cells_that_are_committed_one_by_one_are_one_changed_row(
        self, store: Store, feed: str
    ) -> None:
        for column in (b"d:2", COLUMN, b"d:1"):
            self.put(store, feed, b"r", *written(column, 5, b"v"))
        assert self.listed(store, feed) == [ChangedRow(5, b"r", (COLUMN, b"d:1", b"d:2"))]

    def test_a_feed_begins_when_it_is_turned_on_and_turning_it_on_again_changes_nothing(
        self, store: Store, table: str
    ) -> None:
        self.put(store, table, b"before", *written(COLUMN, 5, b"v"))
        store.keep_feed(table)
        assert self.listed(store, table) == []
        self.put(store, table, b"after", *written(COLUMN, 4, b"v"))
        store.keep_feed(table)
        assert self.listed(store, table) == [ChangedRow(4, b"after", (COLUMN,))]
        with pytest.raises(UnknownTableError):
            store.keep_feed("nowhere")

    def test_no_change_is_missed_while_others_write(self, store: Store, feed: str) -> None:
        each = 40

        def write(i: int) -> None:
            for k in range(each):
                ts = 1 + i + THREADS * k
                self.put(store, feed, b"%d" % (k % 3), *written(b"c%d" % i, ts, b"v"))

        at_once(write)
        listed = self.listed(store, feed)
        assert [one.commit_ts for one in listed] == list(range(1, THREADS * each + 1))

    def test_a_change_is_found_by_its_cell_and_timestamp(
        self, store: Store, feed: str, table: str
    ) -> None:
        for other in (feed, table):
            self.put(store, other, b"r\0", *written(COLUMN, 5, b"v"))
        assert store.lists_change(Cell(feed, b"r\0", COLUMN), 5)
        for cell in (Cell(table, b"r\0", COLUMN), Cell(feed, b"r", COLUMN)):
            assert not store.lists_change(cell, 5)
        assert not store.lists_change(Cell(feed, b"r\0", b"d"), 5)
        assert not store.lists_change(Cell(feed, b"r\0", COLUMN), 6)

    def test_what_is_forgotten_goes_from_the_beginning_and_of_this_table_only(
        self, store: Store, feed: str, table: str
    ) -> None:
        store.keep_feed(table)
        for other in (feed, table):
            for ts in range(1, 8):
                self.put(store, other, b"r", *written(COLUMN, ts, b"v"), *written(b"d", ts, None))
        gone = [store.forget_changes(feed, 5, 4) for _ in range(4)]
        assert gone == [4, 4, 2, 0]
        assert [one.commit_ts for one in self.listed(store, feed)] == [6, 7]
        assert [one.commit_ts for one in self.listed(store, table)] == list(range(1, 8))

    def test_what_is_forgotten_of_a_range_of_rows_leaves_the_others(
        self, store: Store, feed: str
    ) -> None:
        rows = [b"a", b"b", b"b\0", b"b\0\1", b"c"]
        for ts, row in enumerate(rows, start=1):
            self.put(store, feed, row, *written(COLUMN, ts, b"v"), *written(b"d", ts, b"v"))
        assert store.forget_changes(feed, 9, start=b"b\0", end=b"c") == 4
        assert [one.row for one in self.listed(store, feed)] == [b"a", b"b", b"c"]
        assert store.forget_changes(feed, 9, start=b"b\0", end=b"c") == 0
        assert store.forget_changes(feed, 9, 1, start=b"c") == 1
        assert store.forget_changes(feed, 1, end=b"b") == 2
        assert [(one.row, len(one.columns)) for one in self.listed(store, feed)] == [
            (b"b", 2),
            (b"c", 1),
        ]

    def test_the_index_is_forgotten_up_to_a_timestamp_with_what_refused_mutations_left(
        self, store: Store, feed: str, table: str
    ) -> None:
        store.keep_feed(table)
        for other in (feed, table):
            for ts in range(1, 8):
                self.put(store, other, b"r", *written(COLUMN, ts, b"v"))
        held = Condition(True, Kind.LOCK, COLUMN, 4, 4)
        refused = [
            RowMutation(feed, b"r%d" % ts, [held], written(COLUMN, ts, b"")) for ts in (4, 9)
        ]
        assert store.mutate(refused) == [False, False]
        assert [one.row for one in self.listed(store, feed)] == [b"r"] * 7
        if store.feed_index is not None:
            gone = [sum(store.feed_index.forget(feed, 5)) for _ in range(2)]
            assert gone == ([6, 0] if self.indexed else [0, 0])
        assert [one.commit_ts for one in self.listed(store, feed, 5)] == [6, 7]
        assert [one.commit_ts for one in self.listed(store, table)] == list(range(1, 8))

    def test_a_table_without_a_feed_has_nothing_to_forget(self, store: Store, table: str) -> None:
        self.put(store, table, b"r", *written(COLUMN, 5, b"v"))
        assert store.forget_changes(table, 9) == 0

    def test_what_may_have_been_forgotten_is_an_error_and_never_left_out(
        self, store: Store, feed: str
    ) -> None:
        base = store.safe_point()
        for ts in (base + 3, base + 5, base + 6):
            self.put(store, feed, b"r", *written(COLUMN, ts, b"v"))
        store.raise_safe_point(base + 5)
        with pytest.raises(SnapshotTooOldError) as caught:
            list(store.changes(feed, base + 4, base + 9))
        assert (caught.value.ts, caught.value.safe_point) == (base + 4, base + 5)
        assert store.forget_changes(feed, base + 5) == 2
        assert [one.commit_ts for one in self.listed(store, feed, base + 5)] == [base + 6]
