"""§2.2, §2.4: coordination between processes of one machine, by the kernel alone.

    live/TOKEN     a file whose owner holds a record lock on it for as long as it runs; the
                   kernel frees the lock when the process ends, however it ends. Its text
                   has the pid, the time, and the observers that the process runs.
    wake/TOKEN     a FIFO of each process that runs a worker; what is written into it wakes the
                   process: the marks of tables (`percola.coordination.wake_ups`)
    rows.lock      advisory row locks: a record lock on the byte at hash(row)
    leases         what each process still reads: `percola.coordination.local.active_slots`; the
                   name is older than the module

Record locks (fcntl), not flock: a child does not inherit them, so a fork never keeps a dead
parent's token alive. They belong to the process, so the threads of one process exclude each
other by a set in memory. Two rows of one hash share a lock, which is harmless: the locks are
advisory. The paper's lock service is a server; here the kernel serves, and it releases the locks
of dead processes by itself.
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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from percola.coordination.base import Coordination
from percola.coordination.local.active_slots import ActiveSlots
from percola.coordination.observer_agreement import check_agreement
from percola.coordination.wake_ups import EVERY_TABLE, Place, marks_of, read_marks
from percola.errors import RepositoryClosedError, RepositoryError
from percola.platform import fork_safety as forks
from percola.platform.file_locks import Wait, holders
from percola.platform.files import make_folder, open_file, restrict, using, write_to_pipe

T = TypeVar("T")

_ANNOUNCING: Final = 1 << 62
"""The byte of `rows.lock`, beyond every row's, that is locked while observers are announced."""
_ALL: Final = b"!"
"""A wake-up for all tables: no mark of a table, and what earlier releases write."""
_LONGEST_QUIET: Final = 1.0
"""Seconds for which wake-ups are left unread at most: a listener may be added meanwhile."""
_READ: Final = 4096
_MANY: Final = 2048
"""After so many bytes of wake-ups there may have been no room for others: a FIFO has room for 4,096
at least."""


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
        self._since_ms = 0
        self._rows_fd = -1
        self._active_slots: ActiveSlots | None = None
        self._rows: set[tuple[str, bytes]] = set()
        self._observers: dict[str, list[str]] = {}
        self._callbacks: list[Callable[[bytes], float | None]] = []
        self._fifo_fd = -1
        self._stop_fds: tuple[int, int] | None = None
        self._listener: threading.Thread | None = None
        self._fifos: dict[str, int] = {}
        self._fifos_seen = -1

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
                self._since_ms = time.time_ns() // 1_000_000
                # Locked before it is visible: without a lock it would look dead.
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
        text = self._description(observers).encode()
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))

    def _description(self, observers: dict[str, list[str]]) -> str:
        process = {"pid": os.getpid(), "since_ms": self._since_ms, "observers": observers}
        return json.dumps(process)

    def is_alive(self, token: str) -> bool:
        # Opening and closing our own file would drop our lock: that is how record locks are.
        if not token or token == self._token:
            return True
        # A token names one file; any other text in a lock is not a token of ours.
        if "/" in token or "\0" in token or token in (".", ".."):
            return False
        path = self._folder / "live" / token
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:  # For example no descriptors left. Its locks still expire.
            return True
        try:
            # A shared lock, so that two that check at once do not mistake each other for the owner.
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        for kind in ("live", "wake"):
            with contextlib.suppress(OSError):
                (self._folder / kind / token).unlink()
        return False

    def check_place(self) -> None:
        with self._guard:
            if self._token is None:
                return
            path, mine = self._folder / "live" / self._token, os.fstat(self._token_fd)
        with using(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.stat(path), mine):
                return
        raise RepositoryError(
            f"The repository {self._folder} was removed or replaced while this process had "
            "it open: what it writes would be lost."
        )

    def processes(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        with using(self._folder / "live"):  # The folder may have been removed.
            paths = sorted((self._folder / "live").iterdir())
        for path in paths:
            token = path.name
            if not self.is_alive(token):
                continue
            if token == self._token:
                text = self._description(self._observers)
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
            # One at a time: two that announce at once must not overlook each other.
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

    # --- Active reads (P12) ---------------------------------------------------------------

    def hold_back(self, ts: int) -> Callable[[int], object] | None:
        # A process without a slot continues to read; its reads fail if garbage collection overtakes
        # them.
        try:
            return (self._active_slots or self._open_active_slots()).hold(ts)
        except (OSError, ValueError, RepositoryError):
            return None

    def oldest_held(self) -> int | None:
        return self._looked(ActiveSlots.oldest)

    def readers(self, ts: int) -> list[str]:
        return list(map(str, self._looked(lambda slots: slots.readers(ts))))

    def _looked(self, look: Callable[[ActiveSlots], T]) -> T:
        """What a look at the slots finds, which another thread may close meanwhile."""
        try:
            return look(self._active_slots or self._open_active_slots())
        except (OSError, ValueError) as error:
            if not self._closed:
                raise
            raise RepositoryClosedError(
                "This repository has been closed; open it again."
            ) from error

    def _open_active_slots(self) -> ActiveSlots:
        with self._guard:
            if self._closed:
                raise RepositoryClosedError("This repository has been closed; open it again.")
            if self._active_slots is None:
                with using(self._folder / "leases"):
                    self._active_slots = ActiveSlots(self._folder)
            return self._active_slots

    # --- Wake-ups -----------------------------------------------------------------------

    def wake(self, places: Iterable[Place] | None = None) -> None:
        marks = marks_of(places)
        for callback in self._callbacks:
            callback(marks)
        try:
            changed = os.stat(self._folder / "wake").st_mtime_ns
            if changed != self._fifos_seen:
                self._find_fifos(changed)
        except OSError:
            return
        # Under the guard: a descriptor that is closed meanwhile may be another file's by now.
        with self._guard:
            for token, fd in list(self._fifos.items()):
                try:
                    write_to_pipe(fd, marks or _ALL)
                except BlockingIOError:
                    pass  # It has `_MANY` to read, and takes them for one of all tables.
                except OSError:
                    self._close_fifo(token)
                    self.is_alive(token)  # Removes its files if it is dead.

    def _find_fifos(self, changed: int) -> None:
        with self._guard:
            if self._closed:
                return
            complete = True
            names = set(os.listdir(self._folder / "wake")) - {self._token}
            for gone in self._fifos.keys() - names:
                self._close_fifo(gone)
            for token in names - self._fifos.keys():
                path = self._folder / "wake" / token
                try:
                    self._fifos[token] = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError:  # No process reads it; or there are no descriptors left.
                    complete = complete and not self.is_alive(token)
            # The file system's clock is coarse: trust its time only once it is well past.
            settled = time.time_ns() - changed > 100_000_000
            self._fifos_seen = changed if settled and complete else -1

    def _close_fifo(self, token: str) -> None:
        with self._guard:
            fd = self._fifos.pop(token, -1)
            if fd >= 0:
                os.close(fd)

    def on_wake(self, callback: Callable[[bytes], float | None]) -> Callable[[], None]:
        with self._guard:
            self._callbacks = [*self._callbacks, callback]
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
                    target=self._read_wake_ups,
                    args=(self._fifo_fd, *self._stop_fds),
                    name="percola-wake-ups",
                    daemon=True,
                )
                self._listener.start()

        def stop() -> None:
            with self._guard:
                self._callbacks = [other for other in self._callbacks if other is not callback]

        return stop

    def _read_wake_ups(self, fifo: int, *stop_fds: int) -> None:
        stop = stop_fds[0]
        # Not select(), which takes no descriptor above 1023.
        poll, stopped = select.poll(), select.poll()
        poll.register(fifo, select.POLLIN)
        for one in (poll, stopped):
            one.register(stop, select.POLLIN)
        quiet = 0.0
        # What nobody waits for may stay in the FIFO: neither its writer wakes this thread then, nor
        # this thread others.
        while not (quiet and stopped.poll(1000 * quiet)):
            ready = [fd for fd, _ in poll.poll()]
            if stop in ready:
                break
            raw = _ALL
            with contextlib.suppress(BlockingIOError):
                raw = os.read(fifo, _READ)
            marks = EVERY_TABLE if len(raw) > _MANY else read_marks(raw)
            waits = [callback(marks) or 0.0 for callback in self._callbacks]
            quiet = min(_LONGEST_QUIET, *waits) if waits else 0.0
        for fd in (fifo, *stop_fds):
            os.close(fd)

    # --- The end ------------------------------------------------------------------------

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._callbacks = []
            listener, self._listener = self._listener, None
            stop_fds, self._stop_fds, self._fifo_fd = self._stop_fds, None, -1
            if stop_fds is not None:
                # The listening thread closes its descriptors.
                os.write(stop_fds[1], b"!")
            for token in list(self._fifos):
                self._close_fifo(token)
            rows_fd, self._rows_fd = self._rows_fd, -1
            self._rows.clear()  # A worker may still run, and gives back what it believes to hold.
            if rows_fd >= 0:
                os.close(rows_fd)
            active_slots, self._active_slots = self._active_slots, None
            if active_slots is not None:
                active_slots.close()
            mine, self._token = self._token, None
            token_fd, self._token_fd = self._token_fd, -1
            if mine is not None:
                for kind in ("wake", "live"):
                    with contextlib.suppress(OSError):
                        (self._folder / kind / mine).unlink()
                os.close(token_fd)
        # Not under the guard: a callback that the thread is running may want it.
        if listener is not None and listener is not threading.current_thread():
            listener.join()

    def _leave_parent(self) -> None:
        # The parent's descriptors are copies here; the locks on them stayed with the parent. Where
        # another thread was about to close one, its field was emptied before: the number may be
        # another file's by now.
        try:
            if self._active_slots is not None:
                self._active_slots.close(forked=True)
            for fd in (
                self._token_fd,
                self._rows_fd,
                *(self._stop_fds or ()),
                self._fifo_fd,
                *self._fifos.values(),
            ):
                if fd >= 0:
                    with contextlib.suppress(OSError):
                        os.close(fd)
        finally:
            self._start_afresh()


def _byte_of(table: str, row: bytes) -> int:
    digest = hashlib.blake2b(table.encode() + b"\0" + row, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
