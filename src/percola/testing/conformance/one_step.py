"""§2.1, rule P11: conformance tests for stores that commit a transaction in one step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percola.cells import (
    INLINE_BYTES,
    MAX_TS,
    NO_CHANGE,
    Cell,
    Kind,
    LastChange,
    Op,
    decode_write,
    encode_write,
)
from percola.errors import RepositoryClosedError, SnapshotTooOldError, UnknownTableError
from percola.store.base import (
    NOTHING,
    CellState,
    ChangedRow,
    Delete,
    OneStepConflict,
    OneStepStore,
    OneStepWrite,
    Put,
    RowMutation,
)
from percola.testing.conformance.fixtures import COLUMN, THREADS, at_once, numbers, written
from percola.testing.conformance.model import (
    Comparison,
    Operation,
    commits,
    looks,
    mutations,
    scan_kind_all,
)
from percola.testing.conformance.suite import RANDOM, StoreConformance

_PUT, _DELETE, _LOCK = int(Op.PUT), int(Op.DELETE), int(Op.LOCK)
Sighting = tuple[int, list[int]]
"""A reader's result: its timestamp, and the commit_ts of each cell's newest write."""


class OneStepConformance(StoreConformance):
    """The conformance tests of `OneStepStore`, in addition to those of `Store`."""

    def make_store(self, folder: Path) -> OneStepStore:
        """A store to test: a new one, or one whose tables are not those of other tests."""
        raise NotImplementedError("Say how to make the store that is to be tested.")

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OneStepStore]:
        """The store under test, closed at the end."""
        store = self.make_store(tmp_path)
        yield store
        store.close()

    def test_a_commit_that_began_below_the_safe_point_is_refused_and_writes_nothing(
        self, store: OneStepStore, table: str
    ) -> None:
        start_ts = store.draw(10)
        store.raise_safe_point(start_ts)
        cell = Cell(table, b"r", COLUMN)
        with pytest.raises(SnapshotTooOldError):
            store.commit_one_step(start_ts - 1, [(cell, _PUT, b"v", True)])
        assert store.entries(cell, Kind.WRITE, 0, MAX_TS) == []
        assert isinstance(store.commit_one_step(start_ts, [(cell, _PUT, b"v", True)]), int)

    # --- What a commit writes -----------------------------------------------------------

    def test_a_commit_applies_writes_notifications_and_deletes_at_one_timestamp(
        self, store: OneStepStore, table: str
    ) -> None:
        answered = Cell(table, b"z", b"noted")
        marks = [Put(kind, answered.column, 1, b"") for kind in (Kind.NOTIFY, Kind.FAILED)]
        store.mutate([RowMutation(table, answered.row, (), marks)])
        start_ts = store.draw(10)
        small, large, gone, held = (Cell(table, b"r%d" % i, b"c") for i in range(4))
        weak = Cell(table, b"w", b"weak")
        writes: list[OneStepWrite] = [
            (small, _PUT, b"v", True),
            (large, _PUT, b"v" * (INLINE_BYTES + 1), False),
            (gone, _DELETE, None, True),
            (held, _LOCK, None, False),
        ]
        deletes = [(Kind.NOTIFY, answered, 1), (Kind.FAILED, answered, 1)]
        commit_ts = store.commit_one_step(start_ts, writes, [weak], deletes)
        assert isinstance(commit_ts, int)
        assert commit_ts > start_ts
        assert store.last_drawn() == commit_ts
        assert store.read([small, large, gone, held], commit_ts) == [
            (None, commit_ts, b"v"),
            (None, commit_ts, b"v" * (INLINE_BYTES + 1)),
            (None, commit_ts, None),
            (None, 0, None),
        ]
        assert store.read([small, large, gone, held], commit_ts - 1) == [(None, 0, None)] * 4
        for cell, op, _, _ in writes:
            [(at, raw)] = store.entries(cell, Kind.WRITE, 0, MAX_TS)
            record = decode_write(raw)
            assert (at, record.op, record.start_ts) == (commit_ts, op, start_ts)
        assert [ts for ts, _ in store.entries(large, Kind.DATA, 0, MAX_TS)] == [start_ts]
        noticed = [(cell, ts) for cell, ts, _ in scan_kind_all(store, Kind.NOTIFY, table)]
        assert noticed == [(small, commit_ts), (gone, commit_ts), (weak, commit_ts)]
        assert scan_kind_all(store, Kind.FAILED, table) == []

    @pytest.mark.parametrize("value", [b"v", b"v" * (INLINE_BYTES + 1), None, NOTHING])
    def test_a_cell_that_is_only_locked_repeats_its_newest_change(
        self, store: OneStepStore, table: str, value: bytes | CellState | None
    ) -> None:
        cell, change = Cell(table, b"r", COLUMN), NO_CHANGE
        if not isinstance(value, tuple):
            op = _DELETE if value is None else _PUT
            changed = store.commit_one_step(store.draw(), [(cell, op, value, False)])
            assert isinstance(changed, int)
            [(_, raw)] = store.entries(cell, Kind.WRITE, changed, changed)
            change = LastChange(changed, raw)
        before = store.read([cell], store.last_drawn())
        # Records that say nothing of it, as a transaction leaves that was rolled back unlocked.
        for op in (Op.ROLLBACK, Op.LOCK, Op.ROLLBACK):
            ts = store.draw()
            put = Put(Kind.WRITE, COLUMN, ts, encode_write(op, ts - (op is Op.LOCK)))
            store.mutate([RowMutation(table, b"r", (), [put])])
        for _ in range(3):
            locked = store.commit_one_step(store.draw(), [(cell, _LOCK, None, False)])
            assert isinstance(locked, int)
            [(_, raw)] = store.entries(cell, Kind.WRITE, locked, locked)
            assert decode_write(raw).last_change == change
            assert store.read([cell], locked) == before

    @pytest.mark.parametrize("value", [b"", b"v" * INLINE_BYTES, b"v" * 1_000_000])
    def test_a_value_of_any_size_is_read_as_it_was_committed(
        self, store: OneStepStore, table: str, value: bytes
    ) -> None:
        cell = Cell(table, b"r\0\xff", b"c")
        commit_ts = store.commit_one_step(store.last_drawn(), [(cell, _PUT, value, False)])
        assert isinstance(commit_ts, int)
        assert store.read([cell], commit_ts) == [(None, commit_ts, value)]

    def test_a_feed_lists_what_a_commit_in_one_step_puts_and_deletes(
        self, store: OneStepStore, table: str
    ) -> None:
        store.keep_feed(table)
        other = f"{table}-other"
        store.create_tables([other])
        start_ts = store.draw(10)
        writes: list[OneStepWrite] = [
            (Cell(table, b"b\0", b"c"), _PUT, b"v", True),
            (Cell(table, b"b\0", b"d"), _DELETE, None, False),
            (Cell(table, b"a", b"c"), _PUT, b"v" * (INLINE_BYTES + 1), False),
            (Cell(table, b"held", b"c"), _LOCK, None, False),
            (Cell(table, b"a", b"@ack:o:c"), _PUT, b"5", False),
            (Cell(other, b"a", b"c"), _PUT, b"v", False),
        ]
        weak = Cell(table, b"w", b"weak")
        commit_ts = store.commit_one_step(start_ts, writes, [weak])
        assert isinstance(commit_ts, int)
        assert list(store.changes(table, 0, MAX_TS - 1)) == [
            ChangedRow(commit_ts, b"a", (b"c",)),
            ChangedRow(commit_ts, b"b\0", (b"c", b"d")),
        ]
        assert isinstance(store.commit_one_step(start_ts, writes), OneStepConflict)
        assert len(list(store.changes(table, 0, MAX_TS - 1))) == 2

    # --- Refusals -----------------------------------------------------------------------

    @pytest.mark.parametrize("op", Op)
    def test_a_newer_write_of_any_cell_refuses_the_commit_and_nothing_is_written(
        self, store: OneStepStore, table: str, op: Op
    ) -> None:
        start_ts = store.draw(10)
        newer = store.draw(5)
        cells = [Cell(table, b"r%d" % i, b"c") for i in range(3)]
        value = b"won" if op is Op.PUT else None
        won = RowMutation(table, cells[1].row, (), written(b"c", newer, value, newer - 1, op))
        store.mutate([won])
        outcome = self._try(store, start_ts, cells)
        assert outcome == OneStepConflict(cells[1], None, newer)
        assert isinstance(self._try(store, newer, cells), int)

    @pytest.mark.parametrize("lock_ts", [5, 500])
    def test_a_lock_at_any_timestamp_refuses_the_commit_and_is_named(
        self, store: OneStepStore, table: str, lock_ts: int
    ) -> None:
        start_ts = store.draw(10)
        cells = [Cell(table, b"r%d" % i, b"c") for i in range(3)]
        lock = Put(Kind.LOCK, b"c", lock_ts, b"whose it is")
        store.mutate([RowMutation(table, cells[2].row, (), [lock])])
        outcome = self._try(store, start_ts, cells)
        assert outcome == OneStepConflict(cells[2], (lock_ts, b"whose it is"), 0)
        store.mutate([RowMutation(table, cells[2].row, (), [Delete(Kind.LOCK, b"c", lock_ts)])])
        assert isinstance(self._try(store, start_ts, cells), int)

    def test_writes_at_the_start_timestamp_and_other_cells_locks_do_not_refuse(
        self, store: OneStepStore, table: str
    ) -> None:
        start_ts = store.draw(10)
        cell = Cell(table, b"r", b"c")
        store.mutate([RowMutation(table, b"r", (), written(b"c", start_ts, b"seen", 5))])
        for row, column in ((b"r", b"b"), (b"r", b"cc"), (b"r\0", b"c"), (b"q", b"c")):
            lock = Put(Kind.LOCK, column, 5, b"lock")
            later = written(column, start_ts + 7, b"later")
            store.mutate([RowMutation(table, row, (), [lock, *later])])
        assert isinstance(self._try(store, start_ts, [cell]), int)

    def test_an_unknown_table_leaves_nothing_of_the_transaction(
        self, store: OneStepStore, table: str
    ) -> None:
        cell, nowhere = Cell(table, b"r", b"c"), Cell("nowhere", b"r", b"c")
        write: OneStepWrite = (cell, _PUT, b"v", True)
        for writes, notifications in (
            ([write, (nowhere, _PUT, b"v", False)], []),
            ([write], [nowhere]),
        ):
            with pytest.raises(UnknownTableError, match="nowhere"):
                store.commit_one_step(store.last_drawn(), writes, notifications)
        assert store.entries(cell, Kind.WRITE, 0, MAX_TS) == []

    def test_a_closed_store_refuses_transactions_and_timestamps(
        self, store: OneStepStore, table: str
    ) -> None:
        write: OneStepWrite = (Cell(table, b"r", b"c"), _PUT, b"v", False)
        store.close()
        uses: list[Callable[[], object]] = [
            store.draw,
            store.last_drawn,
            lambda: store.commit_one_step(0, [write]),
        ]
        for use in uses:
            with pytest.raises(RepositoryClosedError):
                use()

    # --- Timestamps ---------------------------------------------------------------------

    def test_timestamps_only_go_up_whoever_draws_them(
        self, store: OneStepStore, table: str
    ) -> None:
        before = store.last_drawn()

        def use(i: int) -> list[tuple[int, int]]:
            drawn = []
            for k in range(30):
                if k % 3:
                    drawn.append((store.draw(k), k))
                else:
                    cell = Cell(table, b"%d" % i, b"c")
                    commit_ts = store.commit_one_step(
                        store.last_drawn(), [(cell, _PUT, b"", False)]
                    )
                    assert isinstance(commit_ts, int)
                    drawn.append((commit_ts, 1))
                assert store.last_drawn() >= drawn[-1][0]
            return drawn

        results = at_once(use)
        for drawn in results:
            assert drawn == sorted(drawn)
        every = [
            ts for drawn in results for last, n in drawn for ts in range(last - n + 1, last + 1)
        ]
        assert len(set(every)) == len(every)
        assert min(every) == before + 1
        assert max(every) == store.last_drawn()

    def test_a_reader_sees_every_commit_at_or_below_the_timestamp_it_draws(
        self, store: OneStepStore, table: str
    ) -> None:
        cells = [Cell(table, b"r%d" % i, b"c") for i in range(THREADS // 2)]
        going = threading.Event()
        going.set()

        def run(i: int) -> list[int] | list[Sighting]:
            if i % 2:
                seen = [sight(store, cells)]
                while going.is_set():
                    seen.append(sight(store, cells))
                return seen
            try:
                return commit_often(store, cells[i // 2], 60)
            finally:
                if i == 0:
                    going.clear()

        results = at_once(run)
        commits: list[list[int]] = results[::2]  # type: ignore[assignment]
        sightings: list[list[Sighting]] = results[1::2]  # type: ignore[assignment]
        assert_nothing_missed(commits, (seen for one in sightings for seen in one))

    def test_of_transactions_that_race_for_a_cell_each_that_commits_saw_the_last(
        self, store: OneStepStore, table: str
    ) -> None:
        cell, each = Cell(table, b"counter", b"c"), 25

        def increment(_: int) -> None:
            for _ in range(each):
                while True:
                    start_ts = store.last_drawn()
                    value = store.read([cell], start_ts)[0][2]
                    following = b"%d" % (int(value or b"0") + 1)
                    write: OneStepWrite = (cell, _PUT, following, False)
                    if isinstance(store.commit_one_step(start_ts, [write]), int):
                        break

        at_once(increment)
        value = store.read([cell], store.last_drawn())[0][2]
        assert value == b"%d" % (THREADS * each)

    # --- Against the model --------------------------------------------------------------

    @RANDOM
    @given(operations=st.lists(mutations | looks | commits, min_size=1, max_size=25))
    def test_any_operations_and_commits_give_what_a_dictionary_gives(
        self, store: OneStepStore, table: str, operations: Sequence[Operation]
    ) -> None:
        store.draw(20)
        comparison = Comparison(store, table, b"%07d|" % next(numbers))
        for operation in operations:
            comparison.do(operation)

    def _try(
        self, store: OneStepStore, start_ts: int, cells: Sequence[Cell]
    ) -> int | OneStepConflict:
        """Write the cells; if that is refused, nothing at all may have been written."""
        before = self._contents(store, cells)
        writes: list[OneStepWrite] = [
            (cell, _PUT, b"v" * (INLINE_BYTES + 1), True) for cell in cells
        ]
        outcome = store.commit_one_step(start_ts, writes, [Cell(cells[0].table, b"n", b"weak")])
        if isinstance(outcome, OneStepConflict):
            assert self._contents(store, cells) == before
        return outcome

    def _contents(self, store: OneStepStore, cells: Sequence[Cell]) -> object:
        entries = [store.entries(cell, kind, 0, MAX_TS) for cell in cells for kind in Kind]
        return entries, scan_kind_all(store, Kind.NOTIFY, cells[0].table)


def commit_often(store: OneStepStore, cell: Cell, times: int) -> list[int]:
    """Commit new values of the cell; return their timestamps."""
    committed = []
    for _ in range(times):
        outcome = store.commit_one_step(store.last_drawn(), [(cell, _PUT, b"v", False)])
        assert isinstance(outcome, int)
        committed.append(outcome)
    return committed


def sight(store: OneStepStore, cells: Sequence[Cell]) -> Sighting:
    """Begin to read as a transaction does, and return what it reads."""
    start_ts = store.last_drawn()
    return start_ts, [state[1] for state in store.read(cells, start_ts)]


def assert_nothing_missed(commits: Sequence[Sequence[int]], sightings: Iterable[Sighting]) -> None:
    """Each sighting shows each cell's last commit at or below its timestamp (rule P11)."""
    for start_ts, seen in sightings:
        for committed, newest in zip(commits, seen, strict=True):
            visible = [commit_ts for commit_ts in committed if commit_ts <= start_ts]
            assert newest == max(visible, default=0), f"a reader at {start_ts} missed a commit"
