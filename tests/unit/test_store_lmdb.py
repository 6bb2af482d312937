"""The LMDB store keeps every promise of the contract, at both durabilities."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import engines
import pytest

import percola
from percola import Table
from percola.cells import Kind
from percola.store.lmdb.store import LmdbStore
from percola.store.walks import walk_kind
from percola.testing import OneStepConformance


class TestLmdbStore(OneStepConformance):
    def make_store(self, folder: Path) -> LmdbStore:
        return LmdbStore(folder, durability="full")


class TestLmdbStoreThroughPyLmdb(OneStepConformance):
    """The native engine is the one that the others use."""

    def make_store(self, folder: Path) -> LmdbStore:
        with engines.using("python"):
            return LmdbStore(folder, durability="relaxed")


class TestLmdbStoreWithRelaxedDurability(OneStepConformance):
    def make_store(self, folder: Path) -> LmdbStore:
        return LmdbStore(folder, durability="relaxed")


class TestLmdbStoreInASmallMap(OneStepConformance):
    """The map is full again and again, so that every test runs into its growth."""

    def make_store(self, folder: Path) -> LmdbStore:
        return LmdbStore(folder, durability="relaxed", map_bytes=1 << 16)


def test_a_cell_is_read_by_the_short_path_although_others_have_locked_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table("cells")
    written, never = table.column("written"), table.column("never")
    with (
        engines.using("python"),
        percola.open(tmp_path / "repo", [table], durability="relaxed") as repo,
    ):
        repo.run(lambda t: t.set(written, "a", b"value"))
        for two_phase in (False, True):
            with repo.transaction(two_phase=two_phase) as t:
                assert t.get_for_update(written, "a") == b"value"
                assert t.get_for_update(never, "a") is None
            snapshot = repo.snapshot()

            def walk(*_: Any) -> None:
                raise AssertionError("it looks at one record after the other")

            with monkeypatch.context() as patch:
                patch.setattr(LmdbStore, "_state", walk)
                assert snapshot.get(written, "a") == b"value"
                assert snapshot.get(never, "a") is None


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_a_scan_of_long_values_is_read_in_parts(tmp_path: Path, engine: str) -> None:
    """A snapshot's scan holds a part in memory."""
    table = Table("pages")
    body = table.column("body")
    value = b"x" * (1 << 20)
    with engines.using(engine), percola.open(tmp_path / "repo", [table], durability="relaxed") as r:
        with r.transaction() as t:
            for number in range(40):
                t.set(body, f"{number:02}", value)
        store, ts = r.context.store, r.context.oracle.read_timestamp()
        found, following = store.scan("pages", b"", b"", ts, limit=512)
        assert len(found) == 16 and following == b"16"
        assert [row.key for row in r.snapshot().scan(table)] == [f"{n:02}" for n in range(40)]


def test_a_scan_of_values_alone_is_read_in_parts(tmp_path: Path) -> None:
    """As by `percola check`, which holds a part in memory."""
    table = Table("pages")
    body = table.column("body")
    with percola.open(tmp_path / "repo", [table], durability="relaxed") as repo:
        with repo.transaction() as t:
            for number in range(24):
                t.set(body, f"{number:02}", b"x" * (1 << 20))
        store = repo.context.store
        found, following = store.scan_kind(Kind.DATA, "pages")
        assert len(found) == 16 and following == b"16"
        rows = [cell.row for cell, _, _ in walk_kind(store, Kind.DATA, "pages")]
        assert rows == [b"%02d" % number for number in range(24)]


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_a_closed_repository_leaves_no_file_open_until_python_collects_garbage(
    tmp_path: Path, engine: str
) -> None:
    table = Table("cells")
    column = table.column("column")

    def opened() -> list[str]:
        paths = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        found = [os.readlink(path) for path in paths if path.is_symlink()]
        return [path for path in found if path.startswith(str(tmp_path))]

    gc.collect()
    gc.disable()
    try:
        with engines.using(engine), percola.open(tmp_path / "repo", [table]) as repo:
            repo.run(lambda t: t.set(column, "a", b"value"))
            assert repo.snapshot().get(column, "a") == b"value" and opened()
        del repo
        assert opened() == []
    finally:
        gc.enable()
