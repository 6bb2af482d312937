"""One LMDB environment a process: group commit, a map that grows, and `fork`.

LMDB lets many processes work on one file without a server: readers never wait, writers take
turns. What it leaves to its user is done here, once:

Group commit. Threads put their operation in a queue; whoever gets the write lock first runs
everything that is queued by then in one LMDB transaction, so that many commits share one
fsync. An operation checks before it changes: one that refuses leaves the others alone.

The map. LMDB maps its file into memory at a size fixed when it is opened. When it is full,
the transaction is undone, the threads of this process finish what they read, the map is
enlarged and the transaction runs again; other processes notice and follow.

fork. An environment must not be used in a child. The child opens its own when it first needs
one, and keeps the inherited one untouched for ever: closing it could disturb the parent.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import lmdb

from percola.errors import (
    ConflictingOptionsError,
    PercolaError,
    RepositoryClosedError,
    StoreError,
    StoreFullError,
)

T = TypeVar("T")


class Cursor(Protocol):
    """What we use of an LMDB cursor; keys and values are bytes, for buffers are off."""

    def set_range(self, key: bytes) -> bool: ...
    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def next(self) -> bool: ...
    def prev(self) -> bool: ...
    def last(self) -> bool: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...


class Txn(Protocol):
    """What we use of an LMDB transaction."""

    def get(self, key: bytes, default: bytes | None = None, *, db: Any) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, *, db: Any) -> bool: ...
    def delete(self, key: bytes, *, db: Any) -> bool: ...
    def cursor(self, db: Any) -> Cursor: ...
    def stat(self, db: Any) -> dict[str, int]: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...


Operation = Callable[[Txn], T]

FIRST_MAP_BYTES: Final = 1 << 36
"""Address space to begin with (64 GiB). It costs neither memory nor disk."""

_GROUP: Final = 512
_MAX_READERS: Final = 2048
_SYNC_SECONDS: Final = 1.0

DURABILITIES: Final = ("full", "relaxed")

_inherited: list[lmdb.Environment] = []
_environments: weakref.WeakSet[Environment] = weakref.WeakSet()


class Environment:
    """An LMDB environment with named databases, used by all threads of this process.

    Args:
        folder: where `data.mdb` and `lock.mdb` stand.
        names: the named databases, opened in this order: `database(i)`.
        durability: "full" makes every commit wait until it is on disk. "relaxed" does not
            wait: a killed process loses nothing, a power cut or a crash of the system may
            lose or damage the repository.
        map_bytes: address space to begin with; it grows by itself.

    Raises:
        StoreError: the file is damaged, of another format, or not accessible.
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
        self._open()
        _environments.add(self)

    def _start_afresh(self) -> None:
        """Set every field that belongs to one process; run again after a fork."""
        self._env: lmdb.Environment | None = None
        self._queue: deque[list[Any]] = deque()
        self._writing = threading.Lock()
        self._opening = threading.Lock()
        # append and pop of a deque are atomic: a counter of running LMDB transactions.
        self._running: deque[None] = deque()
        self._growing: threading.Event | None = None
        self._last_sync = time.monotonic()

    def _open(self) -> lmdb.Environment:
        with self._opening:
            if self._closed:
                raise RepositoryClosedError("This repository has been closed; open it again.")
            if self._env is not None:
                return self._env
            data = self.folder / "data.mdb"
            size = self._map_bytes
            if data.exists():
                while size < 2 * data.stat().st_size:
                    size *= 2
            try:
                env = self._map(size)
                databases = [env.open_db(name) for name in self._names]
            except lmdb.Error as error:
                raise translate(error, self.folder) from error
            self._databases = databases
            self._env = env
            return env

    def _map(self, size: int) -> lmdb.Environment:
        # Where address space is limited (ulimit -v), begin with less: the map grows anyway.
        while True:
            try:
                return lmdb.open(
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
                if size <= 1 << 24:
                    raise
                size //= 4

    def database(self, index: int) -> Any:
        """The handle of the database at that place of `names`."""
        return self._databases[index]

    # --- Reading ------------------------------------------------------------------------

    def begin_read(self) -> Txn:
        """Begin a read transaction; `end_read` must follow soon, in every case."""
        running = self._running
        while True:
            running.append(None)
            if self._growing is None:
                try:
                    txn: Txn = (self._env or self._open()).begin()  # type: ignore[assignment]
                    return txn
                except lmdb.MapResizedError:
                    running.pop()
                    self._grow(0)
                    continue
                except lmdb.Error as error:
                    running.pop()
                    raise translate(error, self.folder) from error
                except BaseException:
                    running.pop()
                    raise
            running.pop()
            self._wait_for_map()

    def end_read(self, txn: Txn) -> None:
        """End a read transaction."""
        txn.abort()
        self._running.pop()

    # --- Writing ------------------------------------------------------------------------

    def write(self, operation: Operation[T]) -> T:
        """Run `operation` in a write transaction, together with those of other threads.

        It may run more than once (when the map grows), only ever once to a commit. What it
        raises as a PercolaError is raised here and must come before its first change.
        """
        request: list[Any] = [operation, None, None]
        self._queue.append(request)
        with self._writing:
            while request[0] is not None:
                self._commit_group()
        error = request[2]
        if error is not None:
            raise error
        result: T = request[1]
        return result

    def _commit_group(self) -> None:
        queue = self._queue
        group: list[list[Any]] = []
        failure: BaseException | None = None
        txn: Txn | None = None
        running = self._running
        running.append(None)
        try:
            if self._growing is not None:
                return
            # While another process writes, this waits without the GIL, and the group grows.
            begun: Txn = (self._env or self._open()).begin(write=True)  # type: ignore[assignment]
            txn = begun
            while queue and len(group) < _GROUP:
                request = queue.popleft()
                group.append(request)
                try:
                    request[1] = request[0](begun)
                except PercolaError as error:
                    request[2] = error
            begun.commit()
            txn = None
        except (lmdb.MapFullError, lmdb.MapResizedError) as error:
            failure = error
        except lmdb.Error as error:
            failure = translate(error, self.folder)
            failure.__cause__ = error
        except BaseException as error:
            # An interrupt (Ctrl-C): the threads that wait with us must not wait for ever.
            interrupted = StoreError("The write was interrupted; nothing of it was written.")
            interrupted.__cause__ = error
            self._finish([*group, *queue], interrupted)
            queue.clear()
            raise
        finally:
            if txn is not None:
                txn.abort()
            running.pop()
            if self._growing is not None and failure is None and not group:
                self._wait_for_map()
        if isinstance(failure, lmdb.Error):
            for request in group:
                request[1] = request[2] = None
            queue.extendleft(reversed(group))
            self._grow(2 if isinstance(failure, lmdb.MapFullError) else 0)
            return
        if failure is not None and not group:
            group = list(queue)
            queue.clear()
        self._finish(group, failure)
        if not self._sync and time.monotonic() - self._last_sync > _SYNC_SECONDS:
            self.sync()

    def _finish(self, group: list[list[Any]], failure: BaseException | None) -> None:
        for request in group:
            request[0] = None
            if failure is not None:
                request[2] = failure

    def sync(self) -> None:
        """Force everything to disk."""
        self._last_sync = time.monotonic()
        if self._env is not None:
            try:
                self._env.sync(True)
            except lmdb.Error as error:
                raise translate(error, self.folder) from error

    # --- The map ------------------------------------------------------------------------

    def _wait_for_map(self) -> None:
        growing = self._growing
        if growing is not None:
            growing.wait()

    def _grow(self, factor: int) -> None:
        """Enlarge the map by `factor`, or adopt the size another process gave it (0)."""
        with self._opening:
            env = self._env
            if env is None:
                return
            done = threading.Event()
            self._growing = done
            try:
                # LMDB forbids it while a transaction runs in this process; ours are short.
                while self._running:
                    time.sleep(0.0001)
                env.set_mapsize(env.info()["map_size"] * factor)
            except lmdb.Error as error:
                raise StoreFullError(
                    f"The store in {self.folder} has to grow, but the system gives it no more "
                    "address space. Raise the limit (ulimit -v) or use a larger machine."
                ) from error
            finally:
                self._growing = None
                done.set()

    # --- The end ------------------------------------------------------------------------

    def close(self) -> None:
        """Close the environment; everything committed is on disk afterwards."""
        with self._writing, self._opening:
            if self._closed:
                return
            self._closed = True
            env, self._env = self._env, None
            if env is not None:
                while self._running:
                    time.sleep(0.0001)
                try:
                    env.sync(True)
                finally:
                    env.close()

    def _forget_parent(self) -> None:
        if self._env is not None:
            _inherited.append(self._env)
        self._start_afresh()


def translate(error: lmdb.Error, folder: Path) -> StoreError:
    """The error of ours that says what an LMDB error means to a user."""
    text = str(error)
    if isinstance(error, lmdb.DiskError) or any(
        reason in text for reason in ("No space left", "File too large", "Disk quota")
    ):
        return StoreFullError(
            f"There is no room left on the disk for the store in {folder}; nothing of this was "
            "written. Make room and try again: everything committed before is safe."
        )
    if isinstance(error, lmdb.ReadonlyError | lmdb.LockError) or "Permission denied" in text:
        return StoreError(f"The store in {folder} cannot be opened for writing: {text}.")
    if isinstance(error, lmdb.CorruptedError | lmdb.InvalidError | lmdb.VersionMismatchError):
        return StoreError(
            f"The store in {folder} is damaged or is not an LMDB file ({text}). Restore it from "
            "a backup."
        )
    if isinstance(error, lmdb.ReadersFullError):
        return StoreError(
            f"More than {_MAX_READERS} threads read the store in {folder} at once. Run fewer "
            "workers."
        )
    return StoreError(f"The store in {folder} failed: {text}.")


def _after_fork_in_child() -> None:
    for environment in list(_environments):
        environment._forget_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
