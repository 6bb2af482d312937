"""Feeds in LMDB among several processes: all know at once which tables keep one."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from children import Child, hear, say

import percola
from percola import Table, feed
from percola.cells import Cell, Kind, Op, encode_write
from percola.errors import NoFeedError
from percola.maintenance.backup import backup, restore
from percola.store.base import Put, RowMutation
from percola.store.lmdb.store import LmdbStore

CELL = Cell("docs", b"r", b"c")


def store_in(folder: Path) -> LmdbStore:
    store = LmdbStore(folder, durability="relaxed")
    store.create_tables(["docs"])
    return store


def put(store: LmdbStore, ts: int) -> None:
    change = Put(Kind.WRITE, CELL.column, ts, encode_write(Op.PUT, ts - 1, b"v"))
    assert store.mutate([RowMutation("docs", CELL.row, (), [change])]) == [True]


def listed(store: LmdbStore) -> list[int]:
    return [one.commit_ts for one in store.changes("docs", 0, 2**62)]


def write_when_told(pipe: Connection, folder: Path) -> None:
    store = store_in(folder)
    put(store, 10)
    say(pipe, "open")
    while (ts := hear(pipe)) is not None:
        put(store, ts)
        say(pipe, "put")
    store.close()


def test_a_process_that_is_at_work_lists_what_it_writes_once_another_has_turned_a_feed_on(
    tmp_path: Path,
) -> None:
    store = store_in(tmp_path)
    with Child(write_when_told, tmp_path) as child:
        child.hear()
        child.tell(20)
        child.hear()
        with pytest.raises(NoFeedError):
            listed(store)
        store.keep_feed("docs")
        child.tell(30)
        child.hear()
        store.close()
        # Also if nobody who has turned it on is there any more.
        child.tell(40)
        child.hear()
        store = store_in(tmp_path)
        put(store, 50)
        assert listed(store) == [30, 40, 50]
        child.tell(None)
    store.close()


def turn_on_and_die(pipe: Connection, folder: Path) -> None:
    store = store_in(folder)
    environment = store._environment

    def die(txn: object) -> None:
        say(pipe, "raised")
        hear(pipe)

    keep = store._feeds.keep

    def keep_and_die(table: str) -> None:
        write = environment.write

        def both(operation: object) -> None:
            write(lambda txn: [operation(txn), die(txn)])  # type: ignore[operator, func-returns-value]

        environment.write = both  # type: ignore[method-assign, assignment]
        keep(table)

    keep_and_die("docs")


def test_a_process_that_is_killed_while_it_turns_a_feed_on_leaves_none_and_misleads_nobody(
    tmp_path: Path,
) -> None:
    store = store_in(tmp_path)
    put(store, 10)
    with Child(turn_on_and_die, tmp_path) as child:
        child.hear()
        # All processes have been told of a change that will never be committed.
        assert store._safe_point.view[1] == 1
        os.kill(child.pid, signal.SIGKILL)
        put(store, 20)
    with pytest.raises(NoFeedError):
        listed(store)
    store.keep_feed("docs")
    put(store, 30)
    assert listed(store) == [30]
    store.close()


def test_a_feed_is_kept_after_the_shared_file_was_lost(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.keep_feed("docs")
    put(store, 10)
    store.close()
    (tmp_path / "safe-point").unlink()
    store = store_in(tmp_path)
    put(store, 20)
    assert listed(store) == [10, 20]
    store.close()


def test_a_shared_file_from_before_there_were_feeds_is_enlarged(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.draw(100)
    store.raise_safe_point(40)
    store.close()
    (tmp_path / "safe-point").write_bytes((40).to_bytes(8, "little"))
    store = store_in(tmp_path)
    assert store.safe_point() == 40
    store.keep_feed("docs")
    put(store, 50)
    assert [one.commit_ts for one in store.changes("docs", 40, 2**62)] == [50]
    store.close()


docs = Table("docs", feed=True)
title = docs.column("title", str)


def test_a_backup_holds_the_feed_and_what_is_restored_goes_on_with_it(tmp_path: Path) -> None:
    with percola.open(tmp_path / "repo", [docs], durability="relaxed") as repo:
        for number in range(3):
            repo.run(lambda t, number=number: t.set(title, f"r{number}", "v"))  # type: ignore[misc]
        backup(repo, tmp_path / "backup")
        repo.run(lambda t: t.set(title, "lost", "v"))
        beyond = feed.settled(repo, docs)
    restore(tmp_path / "backup", tmp_path / "restored")
    with percola.open(tmp_path / "restored") as repo:
        since = feed.since(repo, "docs")
        repo.run(lambda t: t.set(title, "r3", "v"))
        repo.run(lambda t: t.set(title, "r4", "v"))
        assert [one.row for one in feed.changes(repo, docs, since)] == [
            "r0",
            "r1",
            "r2",
            "r3",
            "r4",
        ]
        with pytest.raises(percola.UsageError, match="before it was restored from a backup"):
            feed.changes(repo, docs, beyond + 2)
