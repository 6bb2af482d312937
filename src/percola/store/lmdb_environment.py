"""§2.1: one LMDB environment a process: group commit, a map that grows, and `fork`.

LMDB lets many processes work on one file without a server: readers never wait, writers take
turns. What it leaves to its user is done here, once:

Group commit. Threads put their operation in a queue; one of them leads and runs all that is
queued by then in one LMDB transaction, so that many commits share one fsync. If an operation
raises, the transaction is undone and runs again without it: it leaves nothing behind, and the
others alone.

The map. LMDB maps its file into memory at a size fixed when it is opened. When it is full,
the transaction is undone, the threads of this process finish what they read, the map is
enlarged and the transaction runs again; other processes notice and follow.

fork. No environment may be inherited: LMDB could neither use nor close it in the child, nor
open another on the same file. So it is closed just before a fork, once what runs in it has
ended, and parent and child each open one when they next need it: a fraction of a millisecond.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from percola.errors import (
    ConflictingOptionsError,
    RepositoryClosedError,
    RepositoryError,
    StoreError,
    StoreFullError,
)
from percola.store.lmdb_driver import Txn, translate

T = TypeVar("T")


Operation = Callable[[Txn], T]

FIRST_MAP_BYTES: Final = 1 << 36
"""Address space to begin with (64 GiB). It costs neither memory nor disk."""

_GROUP: Final = 512
_MAX_READERS: Final = 2048
_LEAST_MAP_BYTES: Final = 1 << 20
_CARE_SECONDS: Final = {True: 60.0, False: 1.0}
"""How often a writer looks after the environment, with and without sync."""

_PATIENCE: Final = 5.0
"""How long, in seconds, to wait for LMDB transactions of this process to end, before leaving
the rest to py-lmdb's own checks. They are short; a Ctrl-C at a bad moment can lose the count."""

DURABILITIES: Final = ("full", "relaxed")

log = logging.getLogger("percola.store")

_environments: weakref.WeakSet[Environment] = weakref.WeakSet()


class Environment:
    """An LMDB environment with named databases, used by all threads of this process.

    Args:
        folder: where `data.mdb` and `lock.mdb` stand.
        names: the named databases, opened in this order.
        durability: "full" makes every commit wait until it is on disk. "relaxed" does not
            wait: a killed process loses nothing, a power cut or a crash of the system may
            lose or damage the repository.
        map_bytes: address space to begin with; it grows by itself.

    Raises:
        StoreError: the file is damaged, of another format, or not accessible.

    Attributes:
        databases: the handles of the databases, in the order of `names`; valid in a transaction.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[bytes],
        *,
        durability: str = "full",
        map_bytes: int = FIRST_MAP_BYTES,
    ) -> None:
        if durability not in DURABILITIES:
            raise ConflictingOptionsError(
                f"The durability {durability!r} is not known: use 'full' or 'relaxed'."
            )
        self.folder = folder
        self._names = names
        self._sync = durability == "full"
        self._map_bytes = map_bytes
        self._closed = False
        self._start_afresh()
        _environments.add(self)
        self._open()

    def _start_afresh(self) -> None:
        """Set every field that belongs to one process; run again in the child of a fork."""
        self._env: lmdb.Environment | None = None
        self.databases: list[Any] = []
        # A request: [operation, or None once it is done with; result; error; bell].
        self._queue: deque[list[Any]] = deque()
        self._writing = threading.Lock()
        # Held while the environment is opened, remapped or closed.
        self._changing = threading.Lock()
        # append and pop of a deque are atomic: a counter of running LMDB transactions.
        self._running: deque[None] = deque()
        # While the map grows, at a fork and at the end, nobody may begin a transaction.
        self._paused = False
        self._care_at = time.monotonic() + _CARE_SECONDS[self._sync]

    def _open(self) -> None:
        """Open the environment, unless it is open; in a pause, wait for its end.

        Not for what counts as running: a pause waits for that.
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
                    mode=0o644,
                )
            except lmdb.MemoryError:
                # Where address space is limited (ulimit -v), begin with less: the map grows.
                if size // 2 < max(used, _LEAST_MAP_BYTES):
                    raise
                size //= 2
                continue
            try:
                with env.begin(write=True) as txn:
                    self.databases = [env.open_db(name, txn=txn) for name in self._names]
                env.reader_check()
            except lmdb.MapResizedError:  # Another process has grown it just now.
                env.close()
                size *= 2
            except BaseException:
                env.close()
                raise
            else:
                return env

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
            # Processes that were killed while they read may have left their slots behind.
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

    # --- Writing ------------------------------------------------------------------------

    def write(self, operation: Operation[T]) -> T:
        """Run `operation` in a write transaction, together with those of other threads.

        It may run more than once (when the map grows, when another one fails), but only one
        run is committed. What it raises is raised here, and then nothing of it is written.
        """
        request: list[Any] = [operation, None, None, None]
        try:
            if self._sync:
                self._share(request)
            else:
                self._queue.append(request)
                with self._writing:
                    while request[0] is not None:
                        self._commit_group()
        except BaseException:
            # Ctrl-C: what nobody waits for any more need not run.
            request[0] = None
            self._promote()
            raise
        error = request[2]
        if error is not None:
            raise error
        result: T = request[1]
        return result

    def _share(self, request: list[Any]) -> None:
        """Have the request run together with those of all who wait while the disk is written.

        Were they to wait for `_writing`, each would have to get it only to learn that its request
        is done, and whoever gave it back would be the first to have it again. Without sync that
        costs less than being woken.
        """
        if self._writing.locked():
            bell = request[3] = threading.Lock()
            bell.acquire()
        self._queue.append(request)
        while request[0] is not None:
            if request[3] is not None and self._writing.locked():
                bell.acquire()
            else:
                with self._writing:
                    while request[0] is not None:
                        self._commit_group()
        if self._queue:
            self._promote()

    def _promote(self) -> None:
        """Wake the first in the queue: nobody may be leading any more."""
        with contextlib.suppress(IndexError):
            _ring(self._queue[0])

    def _commit_group(self) -> None:
        """Run what is queued in one LMDB transaction; requires the lock `_writing`."""
        queue = self._queue
        running = self._running
        group: list[list[Any]] = []
        txn: Txn | None = None
        in_operation = False
        try:
            running.append(None)
            env = self._env
            if env is not None and not self._paused:
                # While another process writes, this waits without the GIL: the group grows.
                begun: Txn = env.begin(write=True)  # type: ignore[assignment]
                txn = begun
                in_operation = True
                while queue and len(group) < _GROUP:
                    request = queue[0]
                    group.append(request)
                    queue.popleft()
                    operation = request[0]
                    if operation is not None:
                        request[1] = operation(begun)
                in_operation = False
                begun.commit()
                for request in group:
                    request[0] = None
                    if request[3] is not None:
                        _ring(request)
        except BaseException as error:
            over = txn is not None and _is_over(txn)
            try:
                if txn is not None and not over:
                    self._abort(txn)
            finally:
                running.pop()
            if isinstance(error, Exception):
                self._recover(group, error, in_operation)
            else:
                # An interrupt (Ctrl-C). The threads that wait with us go on without us.
                if over:
                    for request in group:
                        request[0] = None
                        _ring(request)
                queue.extendleft(request for request in reversed(group) if request not in queue)
                raise
            return
        running.pop()
        if txn is None:
            try:
                self._open()
            except RepositoryError as error:
                self._recover(group, error, in_operation)
        elif time.monotonic() > self._care_at:
            self._care()

    def _abort(self, txn: Txn) -> None:
        """Undo a write transaction of this thread, which counts as running.

        py-lmdb waits for a moment at which no thread is inside LMDB. Among busy readers it may
        never come, so they are kept out.
        """
        mine = False
        # Somebody else who pauses waits for us, and keeps the readers out as well.
        while not (mine or self._paused):
            mine = self._changing.acquire(timeout=0.001)
        if mine:
            self._paused = True
        try:
            self._drain(1)
            txn.abort()
        finally:
            if mine:
                self._resume()

    def _recover(self, group: list[list[Any]], error: Exception, in_operation: bool) -> None:
        """After a group that was undone: who is told, and who runs again."""
        queue = self._queue
        failed = group
        if isinstance(error, lmdb.MapFullError | lmdb.MapResizedError):
            try:
                self._grow(2 if isinstance(error, lmdb.MapFullError) else 0)
                failed = []
            except StoreError as why:
                error = why
        elif isinstance(error, lmdb.PanicError):
            # LMDB refuses everything until the file is opened anew.
            self._pause()
            try:
                self._drop()
            finally:
                self._resume()
        elif in_operation:
            failed = group[-1:]
        if not group and failed is group:
            # It could not even begin: that concerns everybody.
            while queue:
                failed.append(queue.popleft())
        for request in failed:
            request[2] = self._explain(error)
            request[0] = None
            _ring(request)
        queue.extendleft(request for request in reversed(group) if request[0] is not None)

    def _explain(self, error: Exception) -> Exception:
        """The error to raise in one of several threads: each needs an instance of its own."""
        if isinstance(error, lmdb.Error):
            told: Exception = translate(error, self.folder)
            told.__cause__ = error
        elif isinstance(error, RepositoryError):
            told = type(error)(*error.args)
            told.__cause__ = error.__cause__
        else:
            told = error
        return told

    def _care(self) -> None:
        """From time to time: free what killed readers hold; without sync, write to disk."""
        self._care_at = time.monotonic() + _CARE_SECONDS[self._sync]
        try:
            txn = self.begin_read()
            try:
                if self._env is not None:
                    # A reader that was killed keeps old pages from being used again.
                    self._env.reader_check()
                    if not self._sync:
                        self._env.sync(True)
            finally:
                self.end_read(txn)
        except (lmdb.Error, RepositoryError):
            # Whatever was asked of us has been done, and nobody waits for this.
            log.warning("The store in %s could not be looked after.", self.folder, exc_info=True)

    # --- The map, a fork, the end -------------------------------------------------------

    def _pause(self) -> None:
        """Keep this process's threads out of LMDB until `_resume`; not for whoever is in it."""
        self._changing.acquire()
        self._paused = True
        self._drain(0)

    def _drain(self, rest: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while len(self._running) > rest and time.monotonic() < deadline:
            time.sleep(0.0001)

    def _resume(self) -> None:
        self._paused = False
        self._changing.release()

    def _drop(self) -> None:
        """Close LMDB's environment, in a pause: whoever needs it next opens it again."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _grow(self, factor: int) -> None:
        """Enlarge the map by `factor`, or adopt the size another process gave it (0)."""
        self._pause()
        try:
            env = self._env
            if env is not None:
                # LMDB forbids it while a transaction runs in this process; ours are short.
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

    def close(self) -> None:
        """Close the environment; everything committed is on disk afterwards.

        What runs in other threads ends first; what comes later raises RepositoryClosedError.
        """
        self._pause()
        try:
            self._closed = True
            _environments.discard(self)
            if self._env is not None:
                try:
                    self._env.sync(True)
                except lmdb.Error as error:
                    raise translate(error, self.folder) from error
                finally:
                    self._drop()
        finally:
            self._resume()


def _ring(request: list[Any]) -> None:
    """Wake whoever waits for the request, if anybody does; ringing twice is fine."""
    bell = request[3]
    if bell is not None:
        with contextlib.suppress(RuntimeError):
            bell.release()


def _is_over(txn: Txn) -> bool:
    """Whether a transaction has been committed (or aborted)."""
    try:
        txn.id()
    except lmdb.Error:
        return True
    return False


# --- fork -------------------------------------------------------------------------------

_forking = threading.Lock()
_held: list[Environment] = []


def _before_fork() -> None:
    _forking.acquire()
    for environment in list(_environments):
        environment._pause()
        _held.append(environment)
        environment._drop()


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop()._resume()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking
    _forking = threading.Lock()
    for environment in _held:
        environment._start_afresh()
    _held.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
