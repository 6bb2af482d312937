"""Durability "relaxed": the disk is written in the background; the program learns of failures."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import in_child

from percola import RepositoryClosedError, StoreError, StoreFullError
from percola.store.lmdb import background_sync
from percola.store.lmdb.background_sync import BackgroundSync
from percola.store.lmdb.environment import Environment

DEADLINE = 90.0

Wait = Callable[..., object]


class Disk:
    """Stands between the process and `fdatasync`: notes calls, holds them up, makes them fail."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.error: OSError | None = None
        self.is_free = threading.Event()
        self.is_free.set()

    def fdatasync(self, fd: int) -> None:
        self.begun += 1
        assert self.is_free.wait(DEADLINE)
        if self.error is not None:
            raise self.error
        os.fsync(fd)
        self.ended += 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(background_sync.os, "fdatasync", disk.fdatasync)
    monkeypatch.setattr(BackgroundSync, "seconds", 0.01)
    yield disk
    disk.is_free.set()


@pytest.fixture
def environment(tmp_path: Path, disk: Disk) -> Iterator[Environment]:
    """One that begins small, so that it has to grow."""
    environment = Environment(tmp_path, [b"one"], durability="relaxed", map_bytes=1 << 20)
    yield environment
    disk.is_free.set()
    environment.close()


def background_of(environment: Environment) -> BackgroundSync:
    assert environment._background is not None
    return environment._background


def write(environment: Environment, key: bytes, value: bytes = b"") -> None:
    environment.write(lambda txn: txn.put(key, value, db=environment.databases[0]))


def stored(environment: Environment, key: bytes) -> bytes | None:
    with environment.reading() as txn:
        return txn.get(key, db=environment.databases[0])


def test_the_last_commit_is_synced_without_another_one(
    environment: Environment, disk: Disk, wait_until: Wait
) -> None:
    for number in range(3):
        before = disk.ended
        write(environment, b"%d" % number)
        wait_until(lambda before=before: disk.ended > before)


def test_commits_reads_growth_and_a_fork_do_not_wait_for_a_sync(
    environment: Environment, disk: Disk, wait_until: Wait
) -> None:
    disk.is_free.clear()
    write(environment, b"first")
    wait_until(lambda: disk.begun)
    for number in range(4):
        write(environment, b"%d" % number, b"v" * 1_000_000)  # The map grows.
    with pytest.raises(ZeroDivisionError):
        environment.write(lambda txn: 1 // 0)  # It is rolled back.
    assert in_child(lambda: write(environment, b"child")) == "None"
    assert stored(environment, b"3") == b"v" * 1_000_000
    assert stored(environment, b"child") == b""
    assert (disk.begun, disk.ended) == (1, 0), "the sync has ended too early to show anything"


def test_what_is_committed_during_a_sync_is_part_of_the_next(
    environment: Environment, disk: Disk, wait_until: Wait
) -> None:
    disk.is_free.clear()
    write(environment, b"first")
    wait_until(lambda: disk.begun == 1)
    write(environment, b"second")
    disk.is_free.set()
    wait_until(lambda: disk.begun >= 2)


def test_a_failed_sync_is_logged_and_raised_to_one_write_which_does_nothing(
    environment: Environment, disk: Disk, wait_until: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    background = background_of(environment)
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    with caplog.at_level(logging.ERROR, "percola.store"):
        write(environment, b"before")
        wait_until(lambda: background.failure)
    assert "could not be written to disk: Input/output error" in caplog.text
    disk.error = None
    # A later success does not take it back: the kernel may have dropped the pages.
    done = disk.ended
    wait_until(lambda: disk.ended > done)
    with pytest.raises(StoreError, match=r"data\.mdb.*Input/output error.*Nothing of this write"):
        write(environment, b"refused")
    write(environment, b"after")
    found = [stored(environment, key) for key in (b"before", b"refused", b"after")]
    assert found == [b"", None, b""]


def test_a_sync_that_fails_is_tried_again_and_told_each_time(
    environment: Environment, disk: Disk, wait_until: Wait
) -> None:
    background = background_of(environment)
    disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write(environment, b"before")
    for _ in range(3):
        wait_until(lambda: background.failure)
        with pytest.raises(StoreFullError, match="No space left"):
            write(environment, b"refused")
    disk.error = None
    wait_until(lambda: disk.ended)
    background.take_failure()
    write(environment, b"after")


def test_a_failed_sync_that_no_write_was_told_of_is_raised_by_close(
    tmp_path: Path, disk: Disk, wait_until: Wait
) -> None:
    environment = Environment(tmp_path, [b"one"], durability="relaxed")
    background = background_of(environment)
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    write(environment, b"before")
    wait_until(lambda: background.failure)
    with pytest.raises(StoreError, match="could not be written to disk"):
        environment.close()
    environment.close()
    with pytest.raises(RepositoryClosedError):
        write(environment, b"after")
    again = Environment(tmp_path, [b"one"], durability="relaxed")
    assert stored(again, b"before") == b""
    again.close()


def test_the_thread_ends_without_commits_and_the_next_commit_starts_another(
    environment: Environment, disk: Disk, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_sync, "_IDLE_LOOKS", 2)
    background = background_of(environment)
    for number in range(3):
        write(environment, b"%d" % number)
        thread = background._thread
        assert thread is not None
        thread.join(DEADLINE)
        assert not thread.is_alive()
        assert disk.ended >= number + 1, "it ended before it had synced"


def test_a_thread_that_is_about_to_end_stays_for_a_commit_of_that_moment(tmp_path: Path) -> None:
    background = BackgroundSync(tmp_path / "data.mdb", lambda: None)
    background._running = background._unsynced = True
    assert not background._ends()
    assert background._running
    background._unsynced = False
    assert background._ends()
    assert not background._running


def test_a_repository_that_is_deleted_while_open_is_synced_in_silence(
    tmp_path: Path, disk: Disk, wait_until: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "repository"
    environment = Environment(folder, [b"one"], durability="relaxed")
    background = background_of(environment)
    disk.is_free.clear()
    write(environment, b"one")
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING, "percola.store"):
        disk.is_free.set()
        wait_until(lambda: disk.ended)
        environment._drop()
        background.note_commit()
        wait_until(lambda: disk.ended > 1)
        environment.close()
    assert not caplog.records


def test_closing_ends_the_thread_and_its_descriptor(
    environment: Environment, disk: Disk, wait_until: Wait
) -> None:
    background = background_of(environment)
    write(environment, b"one")
    wait_until(lambda: disk.ended)
    thread, fd = background._thread, background._fd
    assert thread is not None
    assert fd >= 0
    environment.close()
    assert not thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_forked_child_syncs_what_it_commits_itself(
    environment: Environment, disk: Disk, wait_until: Wait
) -> None:
    write(environment, b"parent")
    wait_until(lambda: disk.ended)
    inherited = background_of(environment)._fd

    def write_in_child() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(inherited)
        before = disk.ended
        write(environment, b"child")
        wait_until(lambda: disk.ended > before)
        environment.close()

    assert in_child(write_in_child) == "None"
    assert stored(environment, b"child") == b""


def test_with_full_durability_there_is_no_such_thread(tmp_path: Path, disk: Disk) -> None:
    environment = Environment(tmp_path, [b"one"])
    write(environment, b"one")
    assert environment._background is None
    environment.close()
    assert not disk.begun
