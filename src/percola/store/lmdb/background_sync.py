"""§2.1: durability "relaxed": a thread writes what was committed to disk, once a second.

No commit waits for it. The first commit starts the thread, which ends after a minute without
commits. It syncs through a descriptor of its own, which is the same to the kernel, and so is not
inside LMDB meanwhile: growing the map, a fork and an abort do not wait for the disk.

A sync that fails is logged, and raised to one write of this process, before that write begins; if
there is none, when the store is closed. It is tried again, but Linux may have dropped the pages
that it could not write, so a later success does not show that they are on disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

from percola.errors import StoreError, StoreFullError
from percola.platform.files import is_full

_IDLE_LOOKS: Final = 60

log = logging.getLogger("percola.store")


class BackgroundSync:
    """Writes a file to disk in the background, while there are commits; of one process.

    Args:
        file: the data file; it exists by the first commit.
        upkeep: called by the thread after each sync; it must not raise.

    Attributes:
        failure: why the last sync failed, if no caller has been told yet.
    """

    seconds: ClassVar[float] = 1.0
    """The interval of syncs."""

    def __init__(self, file: Path, upkeep: Callable[[], None]) -> None:
        self._file = file
        self._upkeep = upkeep
        self._fd = -1
        self._unsynced = False
        self._running = False
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self.failure: OSError | None = None

    def note_commit(self) -> None:
        """There has been a commit; have it synced soon."""
        # In this order: `_ends` sets and reads the two in the other one.
        self._unsynced = True
        if not self._running:
            with self._guard:
                if not (self._running or self._closed.is_set()):
                    self._start()

    def _start(self) -> None:
        """Open the file and start the thread; the next commit tries again what fails here.

        The file is opened now, for a commit that has just succeeded shows that it is there: a
        repository that is deleted while open has nothing left to lose, and nothing to report.
        """
        if self._fd < 0:
            try:
                self._fd = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                self._fails(error)
                return
        thread = threading.Thread(target=self._work, name="percola-sync", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # No more threads, or the interpreter is ending.
            log.warning("The thread that writes %s to disk cannot start: %s.", self._file, error)
            return
        self._running, self._thread = True, thread

    def _work(self) -> None:
        idle = 0
        while not self._closed.wait(self.seconds):
            if self._unsynced:
                idle = 0
                self._sync()
                self._upkeep()
            elif (idle := idle + 1) >= _IDLE_LOOKS and self._ends():
                return

    def _ends(self) -> bool:
        """Whether the thread may end: no commit has come meanwhile, and the next starts another."""
        with self._guard:
            self._running = False
            self._running = self._unsynced
            return not self._running

    def _sync(self) -> None:
        # First: what is committed from here on may not be part of this sync.
        self._unsynced = False
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._fails(error)

    def _fails(self, error: OSError) -> None:
        self._unsynced = True
        # Before a write can be refused for it: the log is to name the cause first.
        log.error(
            "%s could not be written to disk: %s. What was committed lately may be lost, or "
            "the repository damaged, when the system crashes or loses power.",
            *(self._file, error.strerror),
        )
        self.failure = error

    def take_failure(self, consequence: str = "") -> StoreError | None:
        """The error of a failed sync that no caller has been told yet; it is told now.

        `consequence` is a sentence on what this means for the caller.
        """
        with self._guard:
            failure, self.failure = self.failure, None
        if failure is None:
            return None
        kind = StoreFullError if is_full(failure) else StoreError
        told = kind(
            f"What was committed to {self._file} lately could not be written to disk "
            f"({failure.strerror}): it may be lost, or the repository damaged, when the system "
            f"crashes or loses power. {consequence}Check the disk, and make a backup."
        )
        told.__cause__ = failure
        return told

    def close(self) -> None:
        """End the thread, once its running sync has ended; idempotent."""
        self._closed.set()
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._close_file()

    def leave_parent(self) -> None:
        """In the child of a fork, which has no such thread: close the descriptor."""
        self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)
