"""The writer of a search index that stays open from batch to batch."""

from __future__ import annotations

import fcntl
import json
import shutil
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from forked import Forked, held_by_a_thread
from serving_documents import version

from webindex.serving import BusyIndexError, IndexWriteError, TantivyIndex
from webindex.serving.tantivy import index as serving
from webindex.serving.tantivy import writer as kept


def is_held(folder: Path) -> bool:
    """Whether somebody holds the folder, found out without waiting for it."""
    with (folder / ".writer.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def when_opened(monkeypatch: pytest.MonkeyPatch, note: Callable[[Any], object]) -> None:
    """Call `note` with the `KeptWriter` each time that one opens its writer."""
    before = kept.KeptWriter._opened

    def noting(self: Any) -> Any:
        fresh = self._writer is None
        before(self)
        if fresh:
            note(self)
        return self._writer

    monkeypatch.setattr(kept.KeptWriter, "_opened", noting)


class Noting:
    """Tantivy's writer, which calls `note` when its merges are waited for."""

    def __init__(self, writer: Any, note: Callable[[], object]) -> None:
        self.writer = writer
        self.note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)

    def wait_merging_threads(self) -> None:
        self.note()
        self.writer.wait_merging_threads()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every writer that is opened."""
    found: list[object] = []
    when_opened(monkeypatch, found.append)
    return found


def test_batches_that_follow_each_other_have_one_writer(
    tmp_path: Path, opened: list[object]
) -> None:
    with TantivyIndex(tmp_path) as index:
        for n in range(30):
            assert index.apply([version(f"c{n}")]) == 1
            assert index.search("word", limit=100).total == n + 1
        assert len(opened) == 1
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_merges_are_waited_for_when_it_closes_and_not_after_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on beside the batches, and what is left of them is done by the end."""
    waits: list[int] = []

    def wrap(keeper: Any) -> None:
        keeper._writer = Noting(keeper._writer, lambda: waits.append(applied))

    when_opened(monkeypatch, wrap)
    applied = 0
    with TantivyIndex(tmp_path) as index:
        for applied in range(1, 61):
            index.apply([version(f"c{applied}")])
        assert waits == []
    assert waits == [60]
    segments = json.loads((tmp_path / "meta.json").read_text())["segments"]
    assert len(segments) < 16
    assert sum(one["max_doc"] for one in segments) == 60


def test_the_first_document_that_a_writer_replaces_is_there_once_though_a_merge_begins(
    tmp_path: Path,
) -> None:
    """In a folder whose last writer was killed, so that eight segments are still to be merged."""
    folder, other = tmp_path / "index", tmp_path / "other"
    with TantivyIndex(folder) as index, TantivyIndex(other) as apart:
        for n in range(6):
            index.apply([version(f"{one}{n}") for one in "abc"])
        # The last commit deletes a document of the segment that has the one replaced below.
        index.apply([version("b2", 2)])
        apart.apply([version("d")])
    meta = json.loads((folder / "meta.json").read_text())
    meta["segments"] += json.loads((other / "meta.json").read_text())["segments"]
    assert len(meta["segments"]) == 8
    shutil.copytree(
        other, folder, ignore=shutil.ignore_patterns("*.json", ".*"), dirs_exist_ok=True
    )
    (folder / "meta.json").write_text(json.dumps(meta))
    with TantivyIndex(folder) as index:
        index.apply([version("a2", 2)])
    with TantivyIndex(folder) as index:
        assert len(json.loads((folder / "meta.json").read_text())["segments"]) < 8
        assert sorted(index.clusters()) == sorted(
            [
                (f"{one}{n}", 2 if f"{one}{n}" in ("a2", "b2") else 1)
                for one in "abc"
                for n in range(6)
            ]
            + [("d", 1)]
        )


def test_one_that_has_nothing_to_do_lets_go_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., object]
) -> None:
    monkeypatch.setattr(kept, "_IDLE_SECONDS", 0.05)
    with TantivyIndex(tmp_path) as index:
        index.apply([version("a")])
        wait_until(lambda: not is_held(tmp_path))
        assert index.apply([version("b")]) == 1, "and opens another one"
        assert index.count() == 2


def test_another_writer_gets_its_turn_between_two_batches(tmp_path: Path) -> None:
    with TantivyIndex(tmp_path) as one, TantivyIndex(tmp_path, lock_timeout=20.0) as other:
        ended, writing = threading.Event(), threading.Event()

        def write() -> None:
            n = 0
            while not ended.is_set():
                n += 1
                one.apply([version("a", n)])
                writing.set()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert writing.wait(60)
            for n in range(3):
                began = time.monotonic()
                assert other.apply([version(f"b{n}")]) == 1
                assert time.monotonic() - began < 20
        finally:
            ended.set()
            thread.join()
        assert {name for name, _ in other.clusters()} == {"a", "b0", "b1", "b2"}


def test_one_with_nothing_to_do_makes_room_for_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would else keep the folder, and the other one gives up sooner."""
    monkeypatch.setattr(kept, "_IDLE_SECONDS", 120.0)
    with TantivyIndex(tmp_path) as one, TantivyIndex(tmp_path, lock_timeout=30.0) as other:
        one.apply([version("a")])
        assert is_held(tmp_path)
        assert other.apply([version("b")]) == 1


@pytest.mark.filterwarnings("error")
def test_it_ends_when_its_folder_is_gone(tmp_path: Path, wait_until: Callable[..., object]) -> None:
    with TantivyIndex(tmp_path / "index") as index:
        index.apply([version("a")])
        # At once: what removes file by file meets those that a merge goes on writing.
        (tmp_path / "index").rename(tmp_path / "gone")
        wait_until(lambda: not [one for one in threading.enumerate() if "webindex-w" in one.name])


def test_a_batch_that_fails_gives_the_writer_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[object]
) -> None:
    """What it has added and not committed must not come with the next batch. Its merges end
    before another writer begins: the end of a merge replaces `meta.json`.
    """
    held: list[bool] = []
    with TantivyIndex(tmp_path) as index:
        index.apply([version("a")])
        before = serving._commit
        index._kept._writer = Noting(index._kept._writer, lambda: held.append(is_held(tmp_path)))

        def failing(writer: Callable[[], Any], changes: Any) -> None:
            for change in changes.values():
                writer().add_document(change)
            raise ValueError("the disk is full")

        monkeypatch.setattr(serving, "_commit", failing)
        with pytest.raises(IndexWriteError, match="the disk is full"):
            index.apply([version("lost")])
        assert held == [True] and not is_held(tmp_path)
        monkeypatch.setattr(serving, "_commit", before)
        assert index.apply([version("b")]) == 1
        assert {name for name, _ in index.clusters()} == {"a", "b"}
        assert len(opened) == 2


def test_threads_of_one_process_wait_for_each_other_no_longer_than_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TantivyIndex(tmp_path, lock_timeout=0.05) as index:
        waits, go_on = threading.Event(), threading.Event()
        before = serving._commit

        def slow(writer: Callable[[], Any], changes: Any) -> None:
            waits.set()
            assert go_on.wait(60)
            before(writer, changes)

        monkeypatch.setattr(serving, "_commit", slow)
        thread = threading.Thread(target=index.apply, args=([version("a")],))
        thread.start()
        try:
            assert waits.wait(60)
            with pytest.raises(BusyIndexError, match=r"Other threads .* 0\.05 seconds"):
                index.apply([version("b")])
        finally:
            go_on.set()
            thread.join()
        assert {name for name, _ in index.clusters()} == {"a"}


# --- After a fork: `flock`s are shared with a child -----------------------------------------


def test_a_child_neither_takes_the_folder_from_its_parent_nor_keeps_it(tmp_path: Path) -> None:
    def live(child: Forked) -> object:
        index.close()
        child.say("has closed it")
        return child.hear()

    with TantivyIndex(tmp_path) as index:
        index.apply([version("parent")])
        assert is_held(tmp_path)
        with Forked(live) as child:
            assert child.hear() == "has closed it"
            assert is_held(tmp_path)
            index.close()
            assert not is_held(tmp_path)
            child.say("end")


@pytest.mark.parametrize("lock", ["_kept._guard", "_reloading"])
def test_a_child_writes_and_searches_though_a_thread_held_a_lock_when_it_was_forked(
    tmp_path: Path, lock: str
) -> None:
    def use(child: Forked) -> object:
        child.hear()
        index.apply([version("child")])
        found = index.search("word", limit=10).total
        index.close()
        return found

    index = TantivyIndex(tmp_path)
    index.apply([version("parent")])
    with held_by_a_thread(attrgetter(lock)(index)):
        child = Forked(use)
    with child:
        index.close()
        child.say("the folder is free")
        assert child.hear() == "2"
    with TantivyIndex(tmp_path) as again:
        assert again.search("word", limit=10).total == 2
