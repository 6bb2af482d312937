"""§2.2, §2.4: coordination between processes of one machine, by the kernel alone.

    live/TOKEN     a file whose owner holds a record lock on it for as long as it runs; the
                   kernel frees the lock when the process ends, however it ends. Its text
                   says the pid and which observers the process runs.
    wake/TOKEN     a FIFO of each process that listens; a byte in it rings the bell
    rows.lock      advisory row locks: a record lock on the byte at hash(row)
    leases         what each process still reads: `percola.coordination.local.active_slots`

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
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from percola.coordination.base import Coordination
from percola.coordination.local.active_slots import ActiveSlots
from percola.coordination.observer_agreement import check_agreement
from percola.errors import RepositoryClosedError, RepositoryError
from percola.platform import fork_safety as forks
from percola.platform.file_locks import Wait, holders
from percola.platform.files import make_folder, open_file, restrict, using

_ANNOUNCING: Final = 1 << 62
"""The byte of `rows.lock`, beyond every row's, that is locked while observers are announced."""


class LocalCoordination(Coordination):
    """Coordination through files in the repository's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._closed = False
        make_folder(folder / "live")
        make_folder(folder / "wake")
        self._start_afresh()
        forks.at_fork(self._leave_parent)

    def _start_afresh(self) -> None:
        self._guard = threading.RLock()
        self._token: str | None = None
        self._token_fd = -1
        self._rows_fd = -1
        self._leases: ActiveSlots | None = None
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
            if self._closed:
                raise RepositoryClosedError("This repository has been closed; open it again.")
            if self._token is None:
                token = f"{os.getpid()}-{secrets.token_hex(6)}"
                # Nobody may see it before it is locked: it would be taken for a dead one's.
                temporary = self._folder / f"live-{token}"
                with using(temporary):
                    fd = open_file(temporary, exclusive=True)
                    try:
                        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        self._describe(fd, self._observers)
                        temporary.rename(self._folder / "live" / token)
                    except BaseException:
                        # On a full disk there is a file, but no room for its text.
                        os.close(fd)
                        with contextlib.suppress(OSError):
                            temporary.unlink()
                        raise
                self._token_fd, self._token = fd, token
            return self._token

    def _describe(self, fd: int, observers: dict[str, list[str]]) -> None:
        text = json.dumps({"pid": os.getpid(), "observers": observers}).encode()
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))

    def is_alive(self, token: str) -> bool:
        # Opening and closing our own file would drop our lock: that is how record locks are.
        if not token or token == self._token:
            return True
        path = self._folder / "live" / token
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:  # No descriptors left, say. Its locks still run out of time.
            return True
        try:
            # A shared lock, so that two who ask at once do not take each other for the owner.
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        for kind in ("live", "wake"):
            with contextlib.suppress(OSError):
                (self._folder / kind / token).unlink()
        return False

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
            mine, rows_fd = self.token, self._open_rows()
            # One at a time: two that come at once must not overlook each other.
            self._lock_announcing(rows_fd)
            try:
                for other in self.processes():
                    if other["token"] != mine:
                        check_agreement(other, observers)
                with using(self._folder / "live" / mine):
                    self._describe(self._token_fd, observers)
                self._observers = observers
            finally:
                fcntl.lockf(rows_fd, fcntl.LOCK_UN, 1, _ANNOUNCING)

    def _lock_announcing(self, rows_fd: int) -> None:
        try:
            fcntl.lockf(rows_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _ANNOUNCING)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            wait = Wait(
                f"the lock on announcing observers in {self._folder / 'rows.lock'}",
                lambda: holders(rows_fd, "POSIX", _ANNOUNCING),
            )
            with contextlib.closing(wait), wait.waiting():
                fcntl.lockf(rows_fd, fcntl.LOCK_EX, 1, _ANNOUNCING)

    # --- Advisory row locks -------------------------------------------------------------

    def try_lock(self, table: str, row: bytes) -> bool:
        with self._guard:
            if (table, row) in self._rows:
                return False
            at = _byte_of(table, row)
            try:
                fcntl.lockf(self._open_rows(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return False
                raise
            self._rows.add((table, row))
            return True

    def _open_rows(self) -> int:
        if self._rows_fd < 0:
            if self._closed:
                raise RepositoryClosedError("This repository has been closed; open it again.")
            path = self._folder / "rows.lock"
            with using(path):
                self._rows_fd = open_file(path)
        return self._rows_fd

    def unlock(self, table: str, row: bytes) -> None:
        with self._guard:
            if (table, row) in self._rows:
                self._rows.remove((table, row))
                fcntl.lockf(self._rows_fd, fcntl.LOCK_UN, 1, _byte_of(table, row))

    # --- What is read (P12) ---------------------------------------------------------------

    def hold_back(self, ts: int) -> None:
        # Called for nearly every transaction. A process that has lost its lease reads on, and is
        # told if garbage collection overtook it.
        try:
            (self._leases or self._open_leases()).hold(ts)
        except (OSError, ValueError, RepositoryError):
            return

    def oldest_held(self) -> int | None:
        return (self._leases or self._open_leases()).oldest()

    def _open_leases(self) -> ActiveSlots:
        with self._guard:
            if self._closed:
                raise RepositoryClosedError("This repository has been closed; open it again.")
            if self._leases is None:
                with using(self._folder / "leases"):
                    self._leases = ActiveSlots(self._folder)
            return self._leases

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
        # Under the guard: a descriptor that is closed meanwhile may be another file's by now.
        with self._guard:
            for token, fd in list(self._bells.items()):
                try:
                    os.write(fd, b"!")
                except BlockingIOError:
                    pass  # It has not even looked at the last ring.
                except OSError:
                    self._forget_bell(token)
                    self.is_alive(token)  # Which clears up behind it, if it is not.

    def _find_bells(self, changed: int) -> None:
        with self._guard:
            if self._closed:
                return
            complete = True
            names = set(os.listdir(self._folder / "wake")) - {self._token}
            for gone in self._bells.keys() - names:
                self._forget_bell(gone)
            for token in names - self._bells.keys():
                path = self._folder / "wake" / token
                try:
                    self._bells[token] = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError:  # Nobody listens; or we have no descriptors left.
                    complete = complete and not self.is_alive(token)
            # The file system's clock is coarse: trust its time only once it is well past.
            settled = time.time_ns() - changed > 100_000_000
            self._bells_seen = changed if settled and complete else -1

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
                with using(temporary):
                    os.mkfifo(temporary, 0o600)
                    # Read and write, so that it never reports the end when the last writer goes.
                    self._fifo_fd = os.open(temporary, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                    restrict(self._fifo_fd, os.stat(self._folder), made=True)
                    temporary.rename(path)
                self._stop_fds = os.pipe()
                self._listener = threading.Thread(
                    target=self._hear,
                    args=(self._fifo_fd, *self._stop_fds),
                    name="percola-bell",
                    daemon=True,
                )
                self._listener.start()

        def stop() -> None:
            with self._guard:
                self._listeners = [one for one in self._listeners if one is not heard]

        return stop

    def _hear(self, fifo: int, *stop_fds: int) -> None:
        stop = stop_fds[0]
        # Not select(), which takes no descriptor above 1023.
        poll = select.poll()
        poll.register(fifo, select.POLLIN)
        poll.register(stop, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if stop in ready:
                break
            with contextlib.suppress(BlockingIOError):
                os.read(fifo, 4096)
            for heard in self._listeners:
                heard()
        for fd in (fifo, *stop_fds):
            os.close(fd)

    # --- The end ------------------------------------------------------------------------

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._listeners = []
            listener, self._listener = self._listener, None
            stop_fds, self._stop_fds, self._fifo_fd = self._stop_fds, None, -1
            if stop_fds is not None:
                # The listening thread closes what it listens to.
                os.write(stop_fds[1], b"!")
            for token in list(self._bells):
                self._forget_bell(token)
            rows_fd, self._rows_fd = self._rows_fd, -1
            if rows_fd >= 0:
                os.close(rows_fd)
            leases, self._leases = self._leases, None
            if leases is not None:
                leases.close()
            mine, self._token = self._token, None
            token_fd, self._token_fd = self._token_fd, -1
            if mine is not None:
                for kind in ("wake", "live"):
                    with contextlib.suppress(OSError):
                        (self._folder / kind / mine).unlink()
                os.close(token_fd)
        # Not under the guard: what the thread calls just now may want it.
        if listener is not None and listener is not threading.current_thread():
            listener.join()

    def _leave_parent(self) -> None:
        # The parent's descriptors are copies here; the locks on them stayed with the parent. Where
        # another thread was about to close one, its field was emptied before: the number may be
        # another file's by now.
        try:
            if self._leases is not None:
                self._leases.close(forked=True)
            for fd in (
                self._token_fd,
                self._rows_fd,
                *(self._stop_fds or ()),
                self._fifo_fd,
                *self._bells.values(),
            ):
                if fd >= 0:
                    with contextlib.suppress(OSError):
                        os.close(fd)
        finally:
            self._start_afresh()


def _byte_of(table: str, row: bytes) -> int:
    digest = hashlib.blake2b(table.encode() + b"\0" + row, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
