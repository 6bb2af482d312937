"""§2.2, §2.4: coordination between processes of one machine, by the kernel alone.

    live/TOKEN     a file whose owner holds a record lock on it for as long as it runs; the
                   kernel frees the lock when the process ends, however it ends. Its text
                   says the pid and which observers the process runs.
    wake/TOKEN     a FIFO of each process that listens; a byte in it rings the bell
    rows.lock      advisory row locks: a record lock on the byte at hash(row)

Record locks (fcntl), not flock: a child does not inherit them, so a fork never keeps a dead
parent's token alive. They belong to the process, so threads of one process keep out of each
other's way by a set in memory. Two rows of one hash share a lock: that is harmless, the locks
are advisory. The paper's lock service is a server; here the kernel already is one, and it
forgets the locks of the dead by itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import select
import struct
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from percola.coordination.base import Coordination
from percola.errors import ObserverMismatchError

_FLOCK: Final = struct.Struct("hhqqi4x")
_coordinations: weakref.WeakSet[LocalCoordination] = weakref.WeakSet()


class LocalCoordination(Coordination):
    """Coordination through files in the repository's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "live").mkdir(exist_ok=True)
        (folder / "wake").mkdir(exist_ok=True)
        self._start_afresh()
        _coordinations.add(self)

    def _start_afresh(self) -> None:
        self._guard = threading.RLock()
        self._token: str | None = None
        self._token_fd = -1
        self._rows_fd = -1
        self._rows: set[tuple[str, bytes]] = set()
        self._observers: dict[str, list[str]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._fifo_fd = -1
        self._stop_fds: tuple[int, int] | None = None
        self._listener: threading.Thread | None = None
        self._bells: dict[str, int] = {}
        self._bells_seen = -1

    # --- Liveness -----------------------------------------------------------------------

    @property
    def token(self) -> str:
        return self._token or self._take_token()

    def _take_token(self) -> str:
        with self._guard:
            if self._token is None:
                token = f"{os.getpid()}-{secrets.token_hex(6)}"
                path = self._folder / "live" / token
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._token_fd, self._token = fd, token
                self._describe()
            return self._token

    def _describe(self) -> None:
        text = json.dumps({"pid": os.getpid(), "observers": self._observers}).encode()
        os.pwrite(self._token_fd, text, 0)
        os.ftruncate(self._token_fd, len(text))

    def is_alive(self, token: str) -> bool:
        # Opening and closing our own file would drop our lock: that is how record locks are.
        if token == self._token:
            return True
        path = self._folder / "live" / token
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(fd, fcntl.F_GETLK, question)
            alive: bool = _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK
        finally:
            os.close(fd)
        if not alive:
            with contextlib.suppress(OSError):
                path.unlink()
            with contextlib.suppress(OSError):
                (self._folder / "wake" / token).unlink()
        return alive

    def processes(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for path in sorted((self._folder / "live").iterdir()):
            token = path.name
            if not self.is_alive(token):
                continue
            if token == self._token:
                text = json.dumps({"pid": os.getpid(), "observers": self._observers})
            else:
                try:
                    text = path.read_text()
                except OSError:
                    continue
            try:
                found.append({"token": token, **json.loads(text)})
            except ValueError:  # It is being written just now.
                found.append({"token": token, "pid": int(token.split("-")[0]), "observers": {}})
        return found

    def announce_observers(self, observers: dict[str, list[str]]) -> None:
        with self._guard:
            mine = self.token
            for other in self.processes():
                theirs = other["observers"]
                if other["token"] == mine or not isinstance(theirs, dict):
                    continue
                for column, names in observers.items():
                    if column in theirs and sorted(theirs[column]) != sorted(names):
                        raise ObserverMismatchError(
                            f"The process {other['pid']} observes {column} with "
                            f"{', '.join(theirs[column])}, and this worker with "
                            f"{', '.join(names)}. All workers of a repository run the same "
                            "observers on a column: stop the others first."
                        )
            self._observers = observers
            self._describe()

    # --- Advisory row locks -------------------------------------------------------------

    def try_lock(self, table: str, row: bytes) -> bool:
        with self._guard:
            if (table, row) in self._rows:
                return False
            if self._rows_fd < 0:
                path = self._folder / "rows.lock"
                self._rows_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            at = _byte_of(table, row)
            try:
                fcntl.lockf(self._rows_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return False
                raise
            self._rows.add((table, row))
            return True

    def unlock(self, table: str, row: bytes) -> None:
        with self._guard:
            if (table, row) in self._rows:
                self._rows.remove((table, row))
                fcntl.lockf(self._rows_fd, fcntl.LOCK_UN, 1, _byte_of(table, row))

    # --- The bell -----------------------------------------------------------------------

    def ring(self) -> None:
        for heard in self._listeners:
            heard()
        try:
            changed = os.stat(self._folder / "wake").st_mtime_ns
            if changed != self._bells_seen:
                self._find_bells(changed)
        except OSError:
            return
        for token, fd in list(self._bells.items()):
            try:
                os.write(fd, b"!")
            except BlockingIOError:
                pass  # It has not even looked at the last ring.
            except OSError:
                self._forget_bell(token)

    def _find_bells(self, changed: int) -> None:
        with self._guard:
            names = set(os.listdir(self._folder / "wake")) - {self._token}
            for gone in self._bells.keys() - names:
                self._forget_bell(gone)
            for token in names - self._bells.keys():
                path = self._folder / "wake" / token
                try:
                    self._bells[token] = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError:  # Nobody listens: it has died, or has only just begun.
                    self.is_alive(token)
            # The file system's clock is coarse: trust its time only once it is well past.
            settled = time.time_ns() - changed > 100_000_000
            self._bells_seen = changed if settled else -1

    def _forget_bell(self, token: str) -> None:
        with self._guard:
            fd = self._bells.pop(token, -1)
            if fd >= 0:
                os.close(fd)

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        with self._guard:
            self._listeners = [*self._listeners, heard]
            if self._listener is None:
                path = self._folder / "wake" / self.token
                temporary = self._folder / f"wake-{self.token}"
                os.mkfifo(temporary, 0o644)
                # Read and write, so that it never reports the end when the last writer goes.
                self._fifo_fd = os.open(temporary, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                temporary.rename(path)
                self._stop_fds = os.pipe()
                self._listener = threading.Thread(
                    target=self._hear, name="percola-bell", daemon=True
                )
                self._listener.start()

        def stop() -> None:
            with self._guard:
                self._listeners = [one for one in self._listeners if one is not heard]

        return stop

    def _hear(self) -> None:
        if self._stop_fds is None:
            return
        fifo, stop = self._fifo_fd, self._stop_fds[0]
        while True:
            ready, _, _ = select.select([fifo, stop], [], [])
            if stop in ready:
                return
            with contextlib.suppress(BlockingIOError):
                os.read(fifo, 4096)
            for heard in self._listeners:
                heard()

    # --- The end ------------------------------------------------------------------------

    def close(self) -> None:
        with self._guard:
            self._listeners = []
            if self._stop_fds is not None:
                os.write(self._stop_fds[1], b"!")
                if self._listener is not None and self._listener is not threading.current_thread():
                    self._listener.join()
                for fd in (*self._stop_fds, self._fifo_fd):
                    os.close(fd)
                self._stop_fds = None
                self._fifo_fd = -1
                self._listener = None
            for token in list(self._bells):
                self._forget_bell(token)
            if self._rows_fd >= 0:
                os.close(self._rows_fd)
                self._rows_fd = -1
            if self._token is not None:
                for kind in ("wake", "live"):
                    with contextlib.suppress(OSError):
                        (self._folder / kind / self._token).unlink()
                os.close(self._token_fd)
                self._token, self._token_fd = None, -1

    def _leave_parent(self) -> None:
        for fd in (
            self._token_fd if self._token else -1,
            self._rows_fd,
            *(self._stop_fds or ()),
            self._fifo_fd,
            *self._bells.values(),
        ):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._start_afresh()


def _byte_of(table: str, row: bytes) -> int:
    digest = hashlib.blake2b(table.encode() + b"\0" + row, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def _after_fork_in_child() -> None:
    # The parent's descriptors are copies here; the locks on them stayed with the parent.
    for coordination in list(_coordinations):
        coordination._leave_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
