"""§2.1, §2.5: one LMDB environment per process, with group commit.

Only one writer of all processes runs at a time, and each waits for the disk. So threads put their
operations in a queue; one thread leads and runs all queued operations in one LMDB transaction, so
that many commits share one fsync. If an operation raises, the transaction is rolled back and run
again without it: the operation leaves nothing behind and does not affect the others. If the map is
full, the transaction is rolled back, the map grows, and it runs again.

With durability "relaxed" no commit waits for the disk: `BackgroundSync` syncs once a second.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from percola.errors import (
    ConflictingOptionsError,
    RepositoryClosedError,
    RepositoryError,
    StoreError,
)
from percola.platform.file_locks import TurnLock
from percola.store.lmdb.background_sync import BackgroundSync
from percola.store.lmdb.driver import Txn, translate
from percola.store.lmdb.file import MappedFile

T = TypeVar("T")

Operation = Callable[[Txn], T]

FIRST_MAP_BYTES: Final = 1 << 36
"""Initial address space (64 GiB). It costs neither memory nor disk."""

DURABILITIES: Final = ("full", "relaxed")

_GROUP: Final = 512

_CARE_SECONDS: Final = 60.0
"""How often, in seconds, writers free the slots of killed readers; relaxed, a thread does."""

log = logging.getLogger("percola.store")


class Environment(MappedFile):
    """An LMDB environment with named databases, used by all threads of this process.

    Args:
        folder: the folder of `data.mdb` and `lock.mdb`.
        names: the named databases, opened in this order.
        durability: "full" makes every commit wait until it is on disk. "relaxed" does not
            wait: a killed process loses nothing, a power cut or a crash of the system may
            lose or damage the repository. A thread writes to disk once a second.
        map_bytes: initial address space; it grows automatically.

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
        self._background: BackgroundSync | None = None
        super().__init__(folder, names, sync=durability == "full", map_bytes=map_bytes)

    def _start_afresh(self) -> None:
        super()._start_afresh()
        # A request: [operation, or None once it is finished; result; error; wake-up lock].
        self._queue: deque[list[Any]] = deque()
        self._writing = threading.Lock()
        self._care_at = time.monotonic() + _CARE_SECONDS
        inherited, self._background = self._background, None
        if inherited is not None:
            inherited.leave_parent()
        if not self._sync:
            self._background = BackgroundSync(self.folder / "data.mdb", self._care)

    def write(self, operation: Operation[T]) -> T:
        """Run `operation` in a write transaction, together with those of other threads.

        It may run more than once (when the map grows, or another operation fails), but only one
        run is committed. If it raises, the exception is raised here and nothing is written. The
        same holds if earlier commits could not be synced in the background: StoreError tells so.
        """
        background = self._background
        if background is not None and background.failure is not None:
            failure = background.take_failure("Nothing of this write was done. ")
            if failure is not None:
                raise failure
        request: list[Any] = [operation, None, None, None]
        try:
            if background is None:
                self._share(request)
            else:
                self._queue.append(request)
                with self._writing:
                    while request[0] is not None:
                        self._commit_group()
        except BaseException:
            # Ctrl-C: no thread waits for the operation any more, so it need not run.
            request[0] = None
            self._promote()
            raise
        error = request[2]
        if error is not None:
            raise error
        result: T = request[1]
        return result

    def _share(self, request: list[Any]) -> None:
        """Run the request together with those of all threads that wait for the disk.

        If they waited for `_writing`, each would have to acquire it only to see that its request is
        finished, and the thread that released it would often acquire it again first. Without sync
        that costs less than a wake-up.
        """
        bell = None
        if self._writing.locked():
            bell = request[3] = threading.Lock()
            bell.acquire()
        self._queue.append(request)
        while request[0] is not None:
            if bell is not None and self._writing.locked():
                bell.acquire()
            else:
                with self._writing:
                    while request[0] is not None:
                        self._commit_group()
        if self._queue:
            self._promote()

    def _promote(self) -> None:
        """Wake the first waiting thread, as there may be no leader any more."""
        for request in list(self._queue):
            if request[0] is not None:
                _ring(request)
                return

    def _commit_group(self) -> None:
        """Run the queued operations in one LMDB transaction; requires the lock `_writing`."""
        queue = self._queue
        running = self._running
        group: list[list[Any]] = []
        env: lmdb.Environment | None = None
        txn: Txn | None = None
        turn: TurnLock | None = None
        in_operation = False
        try:
            running.append(None)
            env = self._env
            if env is not None and not self._paused:
                # While another process writes, this waits without the GIL: the group grows.
                turn = self._turn
                assert turn is not None
                turn.take()
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
                turn.release()
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
                if turn is not None:
                    with contextlib.suppress(OSError):  # Closed, if a pause timed out.
                        turn.release()
                running.pop()
            if isinstance(error, Exception):
                if txn is not None or env is self._env:
                    self._recover(group, error, in_operation)
                # Else a pause timed out and closed the environment: begin again.
            else:
                # An interrupt (Ctrl-C). The other waiting threads continue without this one.
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
        elif self._background is not None:
            self._background.note_commit()
        elif time.monotonic() > self._care_at:
            self._care_at = time.monotonic() + _CARE_SECONDS
            self._care()

    def _abort(self, txn: Txn) -> None:
        """Undo a write transaction of this thread, which counts as running.

        py-lmdb waits until no thread is inside LMDB, which may never happen among busy readers. So
        they are kept out.
        """
        mine = False
        # Another thread that pauses waits for this one, and keeps the readers out as well.
        while not (mine or self._paused):
            mine = self._changing.acquire(timeout=0.001)
        if mine:
            self._paused = True
        try:
            txn.abort()
        finally:
            if mine:
                self._resume()

    def _recover(self, group: list[list[Any]], error: Exception, in_operation: bool) -> None:
        """After a group was rolled back: report the error to some requests, queue the others."""
        queue = self._queue
        failed = group
        if isinstance(error, lmdb.MapFullError | lmdb.MapResizedError):
            try:
                self._grow(2 if isinstance(error, lmdb.MapFullError) else 0)
                failed = []
            except StoreError as why:
                error = why
        elif isinstance(error, lmdb.PanicError):
            # LMDB refuses all calls until the file is opened again.
            self._pause()
            try:
                self._drop()
            finally:
                self._resume()
        elif in_operation:
            failed = group[-1:]
        if not group and failed is group:
            # The transaction could not begin: all requests fail.
            while queue:
                failed.append(queue.popleft())
        for request in failed:
            request[2] = self._explain(error)
            request[0] = None
            _ring(request)
        queue.extendleft(request for request in reversed(group) if request[0] is not None)

    def _explain(self, error: Exception) -> Exception:
        """The error to raise in one of several threads, each of which needs its own instance."""
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
        """Free the slots of killed readers: they keep old pages from being reused."""
        if self._env is None:
            return  # Closed meanwhile, or to be opened again by the next thread that needs it.
        try:
            txn = self.begin_read()
            try:
                if self._env is not None:
                    self._env.reader_check()
            finally:
                self.end_read(txn)
        except RepositoryClosedError:
            pass
        except (lmdb.Error, RepositoryError):
            # The requested writes are committed, and no caller waits for this.
            log.warning("The store in %s could not be looked after.", self.folder, exc_info=True)

    def close(self) -> None:
        """Close the environment; everything committed is on disk afterwards.

        Running transactions of other threads end first; later ones raise RepositoryClosedError.
        Raises StoreError if the disk refuses, now or in a sync that no caller has been told of.
        """
        background = self._background
        try:
            super().close()
        finally:
            if background is not None:
                background.close()
        if background is not None and (failure := background.take_failure()) is not None:
            raise failure


def _ring(request: list[Any]) -> None:
    """Wake the thread that waits for the request, if one does; may be called twice."""
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
