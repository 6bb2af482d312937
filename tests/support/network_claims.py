"""What every store on servers bears of its users: closing amid work, another's safe point."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from row_locks import CELL, COLUMN, LOCK_IT
from stores import DEADLINE, in_thread

from percola.cells import Kind
from percola.errors import RepositoryClosedError, SnapshotTooOldError, StoreError
from percola.store.base import Delete, RowMutation, Store
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
