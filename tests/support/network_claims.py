"""What every store on servers bears of its users: closing amid work, another's safe point."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from row_locks import CELL, COLUMN, LOCK_IT
from stores import DEADLINE, in_thread

from percola import Column, Repository, Table, feed
from percola.cells import Kind
from percola.errors import RepositoryClosedError, SnapshotTooOldError, StoreError
from percola.store.base import Delete, RowMutation, Store
from percola.store.remote.feed_index import FEED_TABLE, SALTS
from percola.store.remote.reads import Rows
from percola.store.remote.store import RemoteStore
from percola.testing.conformance.fixtures import written

WaitUntil = Callable[..., object]

_BATCH: Final = [
    RowMutation("t", b"%d" % i, LOCK_IT.conditions, LOCK_IT.changes) for i in range(90)
]
_WORK: Final[Mapping[str, Callable[[Store], object]]] = {
    "read": lambda store: store.read([CELL], 9),
    "scan": lambda store: store.scan("t", b"", b"", 9),
    "write": lambda store: store.mutate([LOCK_IT]),
    "write many": lambda store: store.mutate(_BATCH),
}


def whoever_is_at_work_when_it_is_closed_gets_an_error_of_ours(
    make: Callable[[], Store], wait_until: WaitUntil
) -> None:
    for how, act in _WORK.items():
        store = make()
        store.create_tables(["t"])
        done: list[int] = []

        def work(
            store: Store = store, act: Callable[[Store], object] = act, done: list[int] = done
        ) -> None:
            while True:
                act(store)
                done.append(1)

        working = in_thread(work)
        wait_until(lambda done=done: len(done) > 5)
        store.close()
        error = working.exception(DEADLINE)
        assert isinstance(error, RepositoryClosedError | StoreError), (how, error)


def nobody_reads_below_a_safe_point_that_another_has_raised(
    raiser: Store, reader: Store, wait_until: WaitUntil
) -> None:
    raiser.create_tables(["t"])
    raiser.mutate(
        [RowMutation("t", b"r", (), [*written(COLUMN, 5, b"old"), *written(COLUMN, 9, b"new")])]
    )
    stop = threading.Event()
    seen: list[object] = []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.append(reader.read([CELL], 6)[0][2])
            except SnapshotTooOldError:
                seen.append("too old")

    reading = in_thread(read)
    wait_until(lambda: len(seen) > 10)
    raiser.raise_safe_point(9)
    # Now the collector may remove what nobody reads any more.
    raiser.mutate([RowMutation("t", b"r", (), [Delete(Kind.WRITE, COLUMN, 5)])])
    count = len(seen)
    wait_until(lambda: len(seen) > count + 10)
    stop.set()
    reading.result(DEADLINE)
    assert set(seen) == {b"old", "too old"}
    assert seen[0] == b"old" and seen[-1] == "too old"
    assert reader.safe_point() == 9


def a_look_at_a_feed_costs_what_has_changed(
    repo: Repository, table: Table[str], column: Column[str, int]
) -> None:
    """However many rows there are: the same ranges, and rows in proportion to the changes."""
    store = repo.context.store
    assert isinstance(store, RemoteStore)
    reading = store._reading
    ranges: Counter[str] = Counter()
    rows: Counter[str] = Counter()

    def counted(
        chunks: Callable[..., Generator[tuple[Rows, bool]]],
    ) -> Callable[..., Generator[tuple[Rows, bool]]]:
        def count(name: str, *arguments: Any) -> Generator[tuple[Rows, bool]]:
            ranges[name] += 1
            for found, is_last in chunks(name, *arguments):
                rows[name] += len(found)
                yield found, is_last

        return count

    def looked(after: int, changed: int) -> tuple[int, dict[str, int], dict[str, int]]:
        for number in range(changed):
            with repo.transaction() as t:
                t.set(column, f"r{number}", number)
        ranges.clear()
        rows.clear()
        upto = feed.settled(repo, table)
        assert len(list(store.changes(table.name, after, upto))) == changed
        return upto, dict(ranges), dict(rows)

    after = feed.settled(repo, table)
    reading.chunks = counted(reading.chunks)  # type: ignore[method-assign]
    costs = []
    for more in (20, 200):
        with repo.transaction() as t:
            for number in range(more):
                t.set(column, f"{more}-{number}", number)
        after = feed.settled(repo, table)
        for changed in (0, 10):
            after, *cost = looked(after, changed)
            costs.append(cost)
    # Pending entries twice, and committed ones, in each salt; and no range of the table.
    assert costs[1] == costs[3] == [{FEED_TABLE: 3 * SALTS}, {FEED_TABLE: 20}]
    for asked, came in (costs[0], costs[2]):
        assert asked.keys() == {FEED_TABLE} and not sum(came.values())


def a_scan_of_long_values_comes_in_parts(store: Store) -> None:
    """However many cells the caller takes at once: Spark takes thousands."""
    store.create_tables(["t"])
    value = bytes(1024 * 1024)
    rows = [b"%02d" % number for number in range(40)]
    for row in rows:
        store.mutate([RowMutation("t", row, (), written(COLUMN, 5, value))])
    found: list[bytes] = []
    position: bytes | None = b""
    while position is not None:
        cells, position = store.scan("t", position, b"", 9, limit=8192)
        assert len(cells) < 40
        assert all(state == (None, 5, value) for _, state in cells)
        found += [cell.row for cell, _ in cells]
    assert found == rows
    kept: list[bytes] = []
    position = b""
    while position is not None:
        entries, position = store.scan_kind(Kind.DATA, "t", position, limit=1000)
        assert len(entries) < 40
        kept += [cell.row for cell, _, _ in entries]
    assert kept == rows
    looked_up: dict[bytes, bytes | None] = {}
    while left := [row for row in rows if row not in looked_up]:
        some = store.scan_rows("t", left, 9, limit=8192)
        assert 0 < len(some) < 40
        looked_up |= {row: state[2] for row, [(_, state)] in some.items()}
    assert looked_up == dict.fromkeys(rows, value)
