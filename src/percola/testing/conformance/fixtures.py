"""Fixtures of the conformance tests: a store, a table, and helpers to write to it."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import pytest

from percola.cells import INLINE_BYTES, Cell, Kind, LastChange, Op, encode_write
from percola.store.base import CellState, Delete, Put, RowMutation, Store

T = TypeVar("T")

THREADS: Final = 8
COLUMN: Final = b"c"
"""The column of the cells that most tests write."""

numbers = itertools.count(1)
"""For names that no other test has used."""


class Ground:
    """A store, and a separate table for each test."""

    def make_store(self, folder: Path) -> Store:
        """A store to test: a new one, or one whose tables are not those of other tests."""
        raise NotImplementedError("Say how to make the store that is to be tested.")

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """The store under test, closed at the end."""
        store = self.make_store(tmp_path)
        yield store
        store.close()

    @pytest.fixture
    def table(self, store: Store) -> str:
        """A new table of the store."""
        name = f"conformance{next(numbers)}"
        store.create_tables([name])
        return name

    def put(self, store: Store, table: str, row: bytes, *changes: Put | Delete) -> None:
        """Change a row without conditions."""
        assert store.mutate([RowMutation(table, row, (), changes)]) == [True]

    def state(self, store: Store, table: str, ts: int) -> CellState:
        """The cell that these tests write, as a reader sees it."""
        return store.read([Cell(table, b"r", COLUMN)], ts)[0]


def at_once(function: Callable[[int], T], threads: int = THREADS) -> list[T]:
    """Call `function(i)` in many threads that begin together; return the results in order.

    Meanwhile Python switches between threads as often as it can, to expose races.
    """
    barrier = threading.Barrier(threads)
    usual = sys.getswitchinterval()

    def begin(i: int) -> T:
        barrier.wait(60)
        return function(i)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(begin, range(threads)))
    finally:
        sys.setswitchinterval(usual)


def written(
    column: bytes, commit_ts: int, value: bytes | None, start_ts: int = 0, op: Op | None = None
) -> list[Put | Delete]:
    """The changes of a committed write, with the value inline or in a data entry by its size."""
    start_ts = start_ts or commit_ts - 1
    op = op or (Op.DELETE if value is None else Op.PUT)
    inline = value if value is not None and len(value) <= INLINE_BYTES else None
    changes: list[Put | Delete] = [
        Put(Kind.WRITE, column, commit_ts, encode_write(op, start_ts, inline))
    ]
    if value is not None and inline is None:
        changes.append(Put(Kind.DATA, column, start_ts, value))
    return changes


def unchanged(column: bytes, commit_ts: int, last_change: LastChange, op: Op = Op.LOCK) -> Put:
    """A write record that changes nothing, and repeats the newest change below it."""
    record = encode_write(op, commit_ts - 1, last_change=last_change)
    return Put(Kind.WRITE, column, commit_ts, record)


def lock(column: bytes, ts: int) -> Put:
    """A lock, with a record that the store need not interpret."""
    return Put(Kind.LOCK, column, ts, b"lock")
