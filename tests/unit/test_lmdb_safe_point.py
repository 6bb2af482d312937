"""The safe point in LMDB and the one in shared memory: whichever is lost, nobody is locked out."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from children import Child, hear, say

from percola import RepositoryError, SnapshotTooOldError
from percola.cells import Cell
from percola.store.capabilities import reader_of
from percola.store.lmdb.store import LmdbStore

CELL = Cell("docs", b"r", b"c")


def store_in(folder: Path) -> LmdbStore:
    store = LmdbStore(folder, durability="relaxed")
    store.create_tables(["docs"])
    return store


def collected(folder: Path, drawn: int, safe_point: int) -> None:
    store = store_in(folder)
    store.draw(drawn)
    store.raise_safe_point(safe_point)
    store.close()


def test_the_safe_point_is_there_again_after_the_shared_file_was_lost(tmp_path: Path) -> None:
    collected(tmp_path, 100, 40)
    (tmp_path / "safe-point").unlink()
    store = store_in(tmp_path)
    assert store.safe_point() == 40
    with pytest.raises(SnapshotTooOldError):
        store.read([CELL], 39)
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_who_writes_without_the_others_shared_file_is_told_in_time(
    tmp_path: Path, replaced: bool
) -> None:
    """It would see neither the safe point that they raise nor which tables keep a feed from now on.

    Nothing else shows that: the store itself is the same.
    """
    store = LmdbStore(tmp_path, durability="full")
    (tmp_path / "safe-point").unlink()
    if replaced:
        (tmp_path / "safe-point").write_bytes(bytes(16))
    store._environment._care_at = 0.0
    store.draw()
    for act in (store.draw, store.last_drawn, lambda: store.raise_safe_point(1)):
        with pytest.raises(RepositoryError, match=r"its safe-point or .* removed or replaced"):
            act()
    store.close()
    again = store_in(tmp_path)
    assert again.draw() == 2
    again.close()


def test_a_shared_file_that_is_ahead_of_an_older_store_locks_nobody_out(tmp_path: Path) -> None:
    """As a power cut with relaxed durability may leave them, or a store copied over another."""
    collected(tmp_path, 100, 40)
    older = (tmp_path / "data.mdb").read_bytes()
    collected(tmp_path, 100, 170)
    (tmp_path / "data.mdb").write_bytes(older)
    (tmp_path / "lock.mdb").unlink()
    store = store_in(tmp_path)
    assert store.last_drawn() == 100
    assert store.safe_point() == 40
    assert store.read([CELL], 100)
    store.close()


def test_a_shared_file_that_is_a_little_ahead_stays_so(tmp_path: Path) -> None:
    """The collector was killed after it had told the readers and before it told the disk."""
    collected(tmp_path, 100, 40)
    (tmp_path / "safe-point").write_bytes((90).to_bytes(8, "little"))
    store = store_in(tmp_path)
    assert store.safe_point() == 90
    store.close()


def look(pipe: Connection, folder: Path) -> None:
    store = LmdbStore(folder, durability="relaxed")
    reader = reader_of(store, "docs", b"c")
    while hear(pipe):
        try:
            reader(b"r", 10)
            say(pipe, "read")
        except SnapshotTooOldError as error:
            say(pipe, error.safe_point)


def test_a_process_that_has_it_open_sees_it_raised_at_once(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.draw(100)
    with Child(look, tmp_path) as other:
        other.tell(True)
        assert other.hear() == "read"
        store.raise_safe_point(60)
        other.tell(True)
        assert other.hear() == 60
    store.close()
