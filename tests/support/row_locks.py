"""A table `t` whose rows are locked and committed, for tests of what servers and clients bear."""

from __future__ import annotations

from typing import Final

from percola.cells import MAX_TS, Cell, Kind
from percola.store.base import Condition, Delete, RowMutation, Store
from percola.testing.conformance.fixtures import lock, written

COLUMN: Final = b"c"
CELL: Final = Cell("t", b"r", COLUMN)
ABSENT: Final = Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)
LOCK_IT: Final = RowMutation("t", b"r", [ABSENT], [lock(COLUMN, 5)])


def lock_all(store: Store, prefix: bytes, count: int) -> list[bool]:
    """Lock many rows, and commit them: two batches."""
    rows = [b"%b%05d" % (prefix, i) for i in range(count)]
    done = store.mutate([RowMutation("t", row, [ABSENT], [lock(COLUMN, 5)]) for row in rows])
    held = [Condition(True, Kind.LOCK, COLUMN, 5, 5)]
    commit = [*written(COLUMN, 7, b"v", 5), Delete(Kind.LOCK, COLUMN, 5)]
    return done + store.mutate([RowMutation("t", row, held, commit) for row in rows])
