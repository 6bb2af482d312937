"""One writer at a time in a folder, among all threads and processes, with a bounded wait.

The locks are `flock`s: the kernel releases them when their process ends, however it ends, so
a killed writer never blocks the next one. Their files are never removed.

A child of a fork shares the locks of its parent, and unlocking one there would take it from the
parent; a long-lived child would block all other writers. So the child closes its copies at once.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from webindex.serving.base import BusyIndexError

# `flock` has no timeout, so a waiting writer polls at this interval.
_FIRST_LOOK = 0.001
_LONGEST_LOOK = 0.02

_TURNSTILE = ".turnstile.lock"
_RELEASED = -1


class WriterLock:
    """The folder's writer lock, held from construction until `release`.

    Writers pass a turnstile one by one, and the writer that waits for the lock holds it: so a
    writer with batch after batch cannot take the lock again between two polls of the waiting one,
    and one that keeps the lock can see that another writer waits.

    Raises:
        BusyIndexError: others held the lock for `timeout` seconds.
        OSError: the lock's file cannot be opened.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._turnstile = folder / _TURNSTILE
        turnstile = _locked(self._turnstile, deadline, timeout)
        try:
            self._held = _locked(folder / ".writer.lock", deadline, timeout)
        finally:
            _unlock(turnstile)
        at_fork(self)

    def is_awaited(self) -> bool:
        """Whether another writer waits for the lock now."""
        try:
            _unlock(_locked(self._turnstile, time.monotonic(), 0.0))
        except BusyIndexError:
            return True
        return False

    def release(self) -> None:
        """Release the lock; call it once. In a child of a fork it does nothing."""
        held, self._held = self._held, _RELEASED
        if held != _RELEASED:
            _unlock(held)

    def leave_parent(self) -> None:
        """In the child of a fork: close the copy."""
        held, self._held = self._held, _RELEASED
        if held != _RELEASED:
            os.close(held)


class Inherited(Protocol):
    """An object with state that belongs to one process."""

    def leave_parent(self) -> None:
        """In the child of a fork: reset, without touching the parent's state."""


_inherited: Final[weakref.WeakSet[Inherited]] = weakref.WeakSet()


def at_fork(owner: Inherited) -> None:
    """Have `leave_parent` called in every child; does not keep the object alive."""
    _inherited.add(owner)


def _in_child() -> None:
    for owner in list(_inherited):
        owner.leave_parent()


os.register_at_fork(after_in_child=_in_child)


@contextmanager
def only_writer(folder: Path, timeout: float) -> Iterator[None]:
    """Hold the folder's writer lock for the length of a block; raises as `WriterLock` does."""
    lock = WriterLock(folder, timeout)
    try:
        yield
    finally:
        lock.release()


def _locked(path: Path, deadline: float, timeout: float) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        pause = _FIRST_LOOK
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise BusyIndexError(
                        f"Other writers held the search index in {path.parent} for {timeout:g} "
                        f"seconds. Nothing was written; try again, or look for the process that "
                        f"holds {path.name}."
                    ) from None
                time.sleep(min(pause, remaining))
                pause = min(pause * 2, _LONGEST_LOOK)
    except BaseException:
        os.close(descriptor)
        raise


def _unlock(descriptor: int) -> None:
    # Closing alone would leave the lock with a child that was forked in the meantime.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
