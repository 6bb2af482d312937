"""The writer of a Tantivy folder, kept open from one batch to the next.

A batch is a segment, and Tantivy merges segments: after every seventh batch or so it rewrites
most of an index of some thousand documents, for a second or two, in threads of its own. A writer
that is dropped discards its merges: 400 small batches then leave 400 segments. One that waits for
them after each batch delays the next batch by as long. So the writer stays open while batches
come, merges run concurrently, and only closing waits for them:

    a batch ─▶ open, with the folder's lock ─▶ batch, batch, …
                     ▲                             │ idle for some seconds, or
                     │                             ▼ another writer waits for the lock
                  closed ◀── wait for merges, release the lock

A process that dies loses its unfinished merges, which the next writer repeats, and no
batch that was committed. A child of a fork has none of Tantivy's threads, so it leaves the writer
to its parent and opens its own.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import tantivy

from webindex.serving.base import BusyIndexError
from webindex.serving.lock import WriterLock, at_fork

# Tantivy's minimum for one thread. More would only give fewer, larger segments for a huge batch.
_HEAP_BYTES: Final = 15_000_000
_IDLE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.01
_TANTIVYS_LOCK: Final = ".tantivy-writer.lock"


class KeptWriter:
    """One process's writer of a folder; for any of its threads, one at a time.

    Args:
        open_writer: opens Tantivy's writer; called with the folder's lock held.
        timeout: seconds that a batch waits for other writers, of this process or others.
    """

    def __init__(
        self, folder: Path, open_writer: Callable[[int], tantivy.IndexWriter], timeout: float
    ) -> None:
        self._folder = folder
        self._open_writer = open_writer
        self._timeout = timeout
        self._start_afresh()
        at_fork(self)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._lock: WriterLock | None = None
        self._writer: tantivy.IndexWriter | None = None
        self._keeper: tuple[threading.Thread, threading.Event] | None = None
        self._used = 0.0

    def leave_parent(self) -> None:
        """In the child of a fork: the writer is the parent's."""
        if self._writer is not None:
            # Dropping it would wait for threads that do not exist here: keep it, even at exit.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._writer))
            # Tantivy has its own lock, which is shared until every copy is closed.
            _close_copies(self._folder / _TANTIVYS_LOCK)
        self._start_afresh()

    @contextmanager
    def batch(self) -> Iterator[Callable[[], tantivy.IndexWriter]]:
        """Hold the folder's lock for a block; yields a function that opens or returns the writer.

        If the block fails, its uncommitted changes are discarded.

        Raises BusyIndexError if others held the lock for too long; OSError, ValueError.
        """
        guard = self._guard  # In a child it may be another one at the end.
        if not guard.acquire(timeout=self._timeout):
            raise BusyIndexError(
                f"Other threads wrote to the search index in {self._folder} for "
                f"{self._timeout:g} seconds. Nothing was written; try again."
            )
        try:
            if self._lock is None:
                self._lock = WriterLock(self._folder, self._timeout)
                self._start_keeper(self._lock)
            try:
                yield self._opened
            except BaseException:
                # The writer goes, and with it its uncommitted changes. Dropped at once, it could
                # still be replacing `meta.json` after a merge when the next one has begun.
                self._end()
                raise
            self._used = time.monotonic()
        finally:
            guard.release()

    def close(self) -> None:
        """Wait for merges, and release the folder; idempotent. A later batch reopens it."""
        with self._guard:
            self._end()
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            # A thread that still waits when Python exits keeps its resources.
            thread, wake = keeper
            wake.set()
            thread.join()

    def _opened(self) -> tantivy.IndexWriter:
        if self._writer is None:
            self._writer = self._open_writer(_HEAP_BYTES)
        return self._writer

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        try:
            # If a merge fails its batches stay durable, and the next merge takes the segments.
            if writer is not None:
                with suppress(ValueError):
                    writer.wait_merging_threads()
        finally:
            del writer
            self._let_go()

    def _let_go(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _start_keeper(self, lock: WriterLock) -> None:
        wake = threading.Event()
        thread = threading.Thread(
            target=self._keep, args=(lock, wake), name="webindex-writer", daemon=True
        )
        self._keeper = thread, wake
        thread.start()

    def _keep(self, lock: WriterLock, wake: threading.Event) -> None:
        """Close the writer when it has been idle, or another writer waits for the folder."""
        while not wake.wait(_LOOK_SECONDS):
            with self._guard:
                if self._lock is not lock:
                    return
                try:
                    due = time.monotonic() - self._used > _IDLE_SECONDS or lock.is_awaited()
                except OSError:
                    due = True  # The folder is gone, or cannot be used: the next batch fails.
                if due:
                    self._end()
                    return


def _close_copies(path: Path) -> None:
    """Close descriptors that other code of this process has opened for a file."""
    real = path.resolve()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if Path(os.readlink(f"/proc/self/fd/{name}")) == real:
                os.close(int(name))
