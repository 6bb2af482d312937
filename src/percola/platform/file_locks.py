"""File locks between the processes of a machine, and the processes that hold them.

Waiting for such a lock has no time limit: the kernel frees it when its holder ends. But a holder
may be stopped, or hang. So a wait of several seconds is logged, with the process that holds the
lock and its user, as the kernel reports them (`/proc/locks`).

A separate thread writes the log, since the waiting thread is inside a system call. It is started by
the first wait, checks once a second and ends a minute after the last wait: a free lock costs
nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pwd
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from percola.platform.files import open_file

log = logging.getLogger("percola.store")

LOGGED_AFTER: Final = 5.0
"""Seconds after which a wait is logged; again after twice as many, and so on."""

_SPIN_SECONDS: Final = 60e-6
"""How long a lock is tried before its thread sleeps. Turns are short: with two processes that write
all the time, sleeping and being woken took longer than the turns that were waited for."""

_LOOK: Final = 1.0
_LOOKS: Final = 60


class Holder(NamedTuple):
    """A process that holds a lock."""

    pid: int
    user: str
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} (user {self.user}, {self.command!r})"


def holders(fd: int, kind: str, byte: int = 0) -> list[Holder]:
    """The processes that hold a lock on an open file, as far as the system reveals them.

    `kind` is FLOCK, or POSIX for a record lock, and then the one on that byte.
    """
    file = os.fstat(fd)
    found: list[Holder] = []
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 3093 fe:00:1234 0 EOF       2: -> FLOCK … is one that waits
        fields = line.split()
        if len(fields) < 8 or fields[1] != kind or fields[5].split(":")[-1] != str(file.st_ino):
            continue
        first, last = int(fields[6]), fields[7]
        pid = int(fields[4])
        if first <= byte and (last == "EOF" or byte <= int(last)) and pid > 0:
            found.append(_holder(pid))
    return found


def _holder(pid: int) -> Holder:
    user, command = "unknown", "unknown"
    folder = Path(f"/proc/{pid}")
    # KeyError: a user without a name here, as of a container.
    with contextlib.suppress(OSError, KeyError):
        number = folder.stat().st_uid
        user = str(number)
        # The kernel cuts it after 15 bytes, perhaps within a letter.
        command = folder.joinpath("comm").read_text("utf-8", "backslashreplace").strip()
        user = pwd.getpwuid(number).pw_name
    return Holder(pid, user, command)


class Wait:
    """Logs long waits for a lock, by one thread of this process at a time.

    Args:
        described: the lock, as in "the write lock /a/b".
        held_by: finds the holders.
    """

    def __init__(self, described: str, held_by: Callable[[], list[Holder]]) -> None:
        self._described = described
        self._held_by = held_by
        self._since = 0.0
        self._is_watched = False
        self._closed = threading.Event()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark this thread as waiting during a block."""
        self._since = time.monotonic()
        if not self._is_watched:
            self._is_watched = True
            thread = threading.Thread(target=self._watch, name="percola-lock-wait", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # No more threads, or the interpreter is ending: without a log.
                self._is_watched = False
        try:
            yield
        finally:
            self._since = 0.0

    def _watch(self) -> None:
        logged, due = 0.0, LOGGED_AFTER  # The wait that was logged, and when to log it again.
        looks = 0
        while not self._closed.wait(min(_LOOK, LOGGED_AFTER)):
            since = self._since
            looks = 0 if since else looks + 1
            if looks >= _LOOKS:
                self._is_watched = False
                if not self._since:
                    return
                self._is_watched = True  # A wait has just begun.
            if not since:
                continue
            if since != logged:
                logged, due = since, LOGGED_AFTER
            waited = time.monotonic() - since
            if waited >= due:
                due *= 2
                self._log(since, waited)

    def _log(self, since: float, waited: float) -> None:
        try:
            found = self._held_by()
        except OSError:  # The file has been closed meanwhile.
            return
        if self._since != since:  # The lock was released while its holders were looked up.
            return
        others = " and ".join(map(str, found)) or "a process that cannot be seen from here"
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
        log.warning(
            "process %d has waited since %s (%.0f s) for %s, which is held by %s",
            os.getpid(),
            began,
            waited,
            self._described,
            others,
        )

    def close(self) -> None:
        """End the logging thread."""
        self._closed.set()


class TurnLock:
    """An exclusive lock on a file (flock), for one thread of this process at a time.

    Raises OSError if the file cannot be opened.

    Attributes:
        fd: its descriptor, for native code that takes the lock.
    """

    def __init__(self, path: Path) -> None:
        self.fd = fd = open_file(path)
        self._wait = Wait(f"the lock {path}", lambda: holders(fd, "FLOCK"))

    def take(self) -> None:
        """Wait until no other process has the lock, without the GIL."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        until = time.perf_counter() + _SPIN_SECONDS
        while time.perf_counter() < until:
            if self._try():
                return
        with self._wait.waiting():
            fcntl.flock(self.fd, fcntl.LOCK_EX)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file and release the lock."""
        self._wait.close()
        os.close(self.fd)
