"""§2.1: LMDB's file mapped into this process: reading, growing the map, and `fork`.

With LMDB many processes use one file without a server, and readers never wait. This module does
what LMDB leaves to its users:

The map. LMDB maps its file into memory at a size fixed when it is opened. When another process
has grown it, or a writer of this one needs more, the map is enlarged after the running
transactions of this process's threads have ended.

Turns. Writers of all processes queue for a kernel lock on `turn.lock` before they begin LMDB's own
write transaction. LMDB's mutex alone would suffice but for one gap: if a process is killed just as
it is woken for the mutex, the wake-up is lost, and another process sleeps for ever although the
mutex is free. The kernel's file lock has no such gap.

fork. No environment may be inherited: LMDB could neither use nor close it in the child, nor
open another on the same file. So it is closed just before a fork, once its running transactions
have ended, and parent and child each open one when they next need it, which takes milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import lmdb

from percola.errors import RepositoryClosedError, StoreError, StoreFullError
from percola.platform import fork_safety as forks
from percola.platform.file_locks import TurnLock
from percola.platform.files import PRIVATE_FOLDER, allocate, open_file
from percola.store.lmdb.driver import Txn, translate

_MAX_READERS: Final = 2048
_LEAST_MAP_BYTES: Final = 1 << 20

_LOCK_BYTES: Final = _MAX_READERS * 64 + 4096
"""The size of `lock.mdb` for so many readers, or a little more: LMDB uses the file's size."""

_TIMEOUT_SECONDS: Final = 5.0
"""How long, in seconds, to wait for LMDB transactions of this process to end, before relying on
py-lmdb's own checks. They are short; a Ctrl-C at a bad moment can make their count wrong."""


class MappedFile:
    """An LMDB environment with named databases, open in this process; for all its threads.

    Args:
        folder: the folder of `data.mdb` and `lock.mdb`.
        names: the named databases, opened in this order.
        sync: whether LMDB waits for the disk at every commit.
        map_bytes: initial address space; it grows automatically.

    Raises:
        StoreError: the file is damaged, of another format, or not accessible.

    Attributes:
        databases: the handles of the databases, in the order of `names`; valid in a transaction.
    """

    def __init__(self, folder: Path, names: Sequence[bytes], *, sync: bool, map_bytes: int) -> None:
        self.folder = folder
        self._names = names
        self._sync = sync
        self._map_bytes = map_bytes
        self._closed = False
        self._start_afresh()
        forks.at_fork(self._leave_parent, before=self._close_before_fork, in_parent=self._resume)
        self._open()

    def _start_afresh(self) -> None:
        """Set every field that belongs to one process; run again in the child of a fork."""
        self._env: lmdb.Environment | None = None
        self.databases: list[Any] = []
        self._turn: TurnLock | None = None
        # Held while the environment is opened, remapped or closed.
        self._changing = threading.Lock()
        # append and pop of a deque are atomic: a counter of running LMDB transactions.
        self._running: deque[None] = deque()
        # While the map grows, at a fork and in `close`, no thread may begin a transaction.
        self._paused = False

    def _leave_parent(self) -> None:
        # Closed before the fork, unless that was interrupted: LMDB could not close it here.
        if self._env is not None:
            forks.keep_inherited(self._env)
        self._start_afresh()

    def _open(self) -> None:
        """Open the environment, unless it is open; in a pause, wait for its end.

        Must not be called by a thread that counts as running: a pause waits for those.
        """
        with self._changing:
            if self._closed:
                raise RepositoryClosedError("This repository has been closed; open it again.")
            if self._env is None:
                try:
                    self._env = self._map()
                except (lmdb.Error, OSError) as error:
                    raise translate(error, self.folder) from error

    def _map(self) -> lmdb.Environment:
        size = self._map_bytes
        self._make_files()
        while True:
            try:
                used = os.path.getsize(self.folder / "data.mdb")
            except FileNotFoundError:
                used = 0
            while size < used:
                size *= 2
            try:
                env = lmdb.open(
                    str(self.folder),
                    map_size=size,
                    max_dbs=len(self._names),
                    max_readers=_MAX_READERS,
                    max_spare_txns=64,
                    sync=self._sync,
                    metasync=self._sync,
                    readahead=False,
                    mode=0o600,
                )
            except lmdb.MemoryError:
                # If address space is limited (ulimit -v), begin with less: the map grows.
                if size // 2 < max(used, _LEAST_MAP_BYTES):
                    raise
                size //= 2
                continue
            turn = None
            try:
                turn = TurnLock(self.folder / "turn.lock")
                turn.take()
                with env.begin(write=True) as txn:
                    self.databases = [env.open_db(name, txn=txn) for name in self._names]
                turn.release()
                env.reader_check()
            except BaseException as error:
                env.close()
                if turn is not None:
                    turn.close()
                if not isinstance(error, lmdb.MapResizedError):
                    raise
                size *= 2  # Another process has grown it just now.
            else:
                self._turn = turn
                return env

    def _make_files(self) -> None:
        """Create LMDB's files with the permissions of the folder, and reserve `lock.mdb`'s blocks.

        LMDB maps `lock.mdb` sparse: on a full disk a reader that takes a slot would get SIGBUS.
        Call it only while the environment is closed: closing a file drops this process's locks.
        """
        self.folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        os.close(open_file(self.folder / "data.mdb", locked=False))
        fd = open_file(self.folder / "lock.mdb")
        try:
            # A file in use keeps its size, because processes rely on the size that they found.
            allocate(fd, os.fstat(fd).st_size or _LOCK_BYTES)
        finally:
            os.close(fd)

    # --- Reading ------------------------------------------------------------------------

    def begin_read(self) -> Txn:
        """Begin a read transaction; `end_read` must follow soon, in every case."""
        try:
            self._running.append(None)
            env = self._env
            if env is not None and not self._paused:
                txn: Txn = env.begin()  # type: ignore[assignment]
                return txn
        except BaseException as error:
            # Processes killed during a read may have left their slots occupied.
            full = isinstance(error, lmdb.ReadersFullError)
            freed = full and self._env is not None and self._env.reader_check() > 0
            self._running.pop()
            if isinstance(error, lmdb.MapResizedError):
                self._grow(0)
            elif isinstance(error, lmdb.Error) and not freed:
                raise translate(error, self.folder) from error
            elif not freed:
                raise
        else:
            self._running.pop()
            self._open()
        return self.begin_read()

    def end_read(self, txn: Txn) -> None:
        """End a read transaction."""
        try:
            txn.abort()
        finally:
            self._running.pop()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Txn]:
        """A read transaction for a `with` block; LMDB's errors become StoreErrors."""
        txn = self.begin_read()
        try:
            yield txn
        except lmdb.Error as error:
            raise translate(error, self.folder) from error
        finally:
            self.end_read(txn)

    # --- The map, a fork, the end -------------------------------------------------------

    def _pause(self) -> None:
        """Keep this process's threads out of LMDB until `_resume`; not for a thread inside it."""
        self._changing.acquire()
        self._paused = True
        try:
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            while self._running and time.monotonic() < deadline:
                time.sleep(0.0001)
        except BaseException:  # Ctrl-C.
            self._resume()
            raise

    def _resume(self) -> None:
        self._paused = False
        self._changing.release()

    def _drop(self) -> None:
        """Close LMDB's environment, in a pause; the next thread that needs it opens it again."""
        env, self._env = self._env, None
        if env is not None:
            env.close()
            turn, self._turn = self._turn, None
            if turn is not None:
                turn.close()

    def _grow(self, factor: int) -> None:
        """Enlarge the map by `factor`, or adopt the size another process gave it (0)."""
        self._pause()
        try:
            env = self._env
            if env is not None:
                # LMDB forbids it while a transaction runs in this process; Percola's are short.
                env.set_mapsize(env.info()["map_size"] * factor)
        except lmdb.Error as error:
            # The old map is gone, and there is no new one: LMDB must not be touched again.
            self._drop()
            kind = StoreFullError if factor else StoreError
            raise kind(
                f"The store in {self.folder} has grown, but the system gives it no more address "
                "space. Raise the limit (ulimit -v) or use a larger machine."
            ) from error
        finally:
            self._resume()

    def _close_before_fork(self) -> None:
        self._pause()
        try:
            self._drop()
        except BaseException:
            self._resume()
            raise

    def close(self) -> None:
        """Close the environment; everything committed is on disk afterwards.

        Running transactions of other threads end first; later ones raise RepositoryClosedError.
        """
        self._pause()
        try:
            self._closed = True
            if self._env is not None:
                try:
                    self._env.sync(True)
                except lmdb.Error as error:
                    raise translate(error, self.folder) from error
                finally:
                    self._drop()
        finally:
            self._resume()
