"""§2.1, §2.5: one LMDB environment per process: reads, group commit, the map, and `fork`.

With LMDB many processes use one file without a server, and readers never wait. This module does
what LMDB leaves to its users.

Group commit. Only one writer of all processes runs at a time, and each waits for the disk. So
threads put their operations in a queue; one thread leads and runs all queued operations in one LMDB
transaction, so that many commits share one fsync. If an operation raises, the transaction is rolled
back and run again without it: the operation leaves nothing behind and does not affect the others.
If the map is full, the transaction is rolled back, the map grows, and it runs again. A thread that
finds no other one writing may leave its commit to native code as a whole (`write_at_once`). With
durability "relaxed" no commit waits for the disk: `BackgroundSync` syncs once a second.

The map. LMDB maps its file into memory at a size fixed when it is opened. When another process
has grown it, or a writer of this one needs more, the map is enlarged after the running
transactions of this process's threads have ended.

Turns. Writers of all processes queue for a kernel lock on `turn.lock` before they begin LMDB's own
write transaction. LMDB's mutex alone would suffice but for one gap: if a process is killed just as
it is woken for the mutex, the wake-up is lost, and another process sleeps for ever although the
mutex is free. The kernel's file lock has no such gap.

fork. No environment may be inherited: LMDB could neither use nor close it in the child, nor
open another on the same file. So it is closed just before a fork, once its running transactions
have ended, and parent and child each open one when they next need it, which takes milliseconds. If
the file at that path is another one by then, they refuse it.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

import lmdb

from percola.errors import (
    ConflictingOptionsError,
    RepositoryClosedError,
    RepositoryError,
    StoreError,
    StoreFullError,
)
from percola.platform import fork_safety as forks
from percola.platform.file_locks import TurnLock
from percola.platform.files import PRIVATE_FOLDER, allocate, open_file
from percola.store.lmdb import driver
from percola.store.lmdb.background_sync import BackgroundSync
from percola.store.lmdb.driver import OpenEnvironment, Txn, open_environment, translate

if TYPE_CHECKING:
    import percola._native as _native

T = TypeVar("T")

Operation = Callable[[Txn], T]

FIRST_MAP_BYTES: Final = 1 << 36
"""Initial address space (64 GiB). It costs neither memory nor disk."""

DURABILITIES: Final = ("full", "relaxed")

_GROUP: Final = 512

_CARE_SECONDS: Final = 60.0
"""How often, in seconds, writers free the slots of killed readers, and see whether the file is the
one at its path; relaxed, a thread does."""

_LOST_SECONDS: Final = 1.0
"""How often, in seconds, a thread that waits to be woken sees whether anybody writes: of two
interrupts (Ctrl-C) at once, the second may come before the first has led to a wake-up."""

_UNMADE: Final = 4
"""How often it is tried again to open a store whose `lock.mdb` was not begun."""

_UNMADE_SECONDS: Final = 0.01
"""After how many seconds; after twice as many the second time, and so on."""

_MAX_READERS: Final = 2048
_LEAST_MAP_BYTES: Final = 1 << 20

_LOCK_BYTES: Final = _MAX_READERS * 64 + 4096
"""The size of `lock.mdb` for so many readers, or a little more: LMDB uses the file's size."""

_TIMEOUT_SECONDS: Final = 5.0
"""How long, in seconds, to wait for LMDB transactions of this process to end, before relying on
py-lmdb's own checks. They are short; a Ctrl-C at a bad moment can make their count wrong."""

log = logging.getLogger("percola.store")

_environments: Final[WeakValueDictionary[tuple[int, int], Environment]] = WeakValueDictionary()
"""The environments that were opened last, by their file."""


class Environment:
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

    Attributes:
        databases: the handles of the databases, in the order of `names`; valid in a transaction.
        native: the native engine, or None: py-lmdb.
        reads: with the native engine, what reads single cells without a transaction of Python's. A
            read holds the GIL from its beginning to its end, so it needs not count as running.
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
        self._has_lost_lock_file = False
        # The files that were opened first, and are opened again after a fork.
        self._files: dict[str, tuple[int, int] | None] = {}
        self._background: BackgroundSync | None = None
        self.native = driver.native
        self.reads: _native.Reads | None = None if self.native is None else self.native.Reads()
        self._start_afresh()
        forks.at_fork(self._leave_parent, before=self._close_before_fork, in_parent=self._resume)
        self._open()

    def _start_afresh(self) -> None:
        """Set every field that belongs to one process; run again in the child of a fork."""
        if self.reads is not None:
            self.reads.start_afresh()
        self._env: OpenEnvironment | None = None
        self.databases: list[Any] = []
        self._turn: TurnLock | None = None
        # Held while the environment is opened, remapped or closed.
        self._changing = threading.Lock()
        # append and pop of a deque are atomic: a counter of running LMDB transactions.
        self._running: deque[None] = deque()
        # While the map grows, at a fork and in `close`, no thread may begin a transaction.
        self._paused = False
        # A request: [operation, or None once it is finished; result; error; wake-up lock].
        self._queue: deque[list[Any]] = deque()
        self._writing = threading.Lock()
        self._care_at = time.monotonic() + _CARE_SECONDS
        inherited, self._background = self._background, None
        if inherited is not None:
            inherited.leave_parent()
        if not self._sync:
            self._background = BackgroundSync(self.folder / "data.mdb", self._care)

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
                    env, turn = self._map()
                    self._env, self._turn = env, turn
                    if self.reads is not None:
                        native_env = cast("_native.Environment", env)
                        self.reads.attach(native_env, self.databases, self, turn.fd)
                except (lmdb.Error, OSError) as error:
                    raise translate(error, self.folder) from error

    def _map(self) -> tuple[OpenEnvironment, TurnLock]:
        size = self._map_bytes
        if self._has_lost_lock_file or self._is_replaced():
            # The numbers of tables and the safe point that this process knows are another file's.
            raise RepositoryError(
                f"The store in {self.folder}, its safe-point or its lock.mdb was removed or "
                "replaced while this process had it open: close its Repository objects, and open "
                "it again."
            )
        self._check_alone()
        self._make_files()
        unmade = 0
        while True:
            try:
                used = os.path.getsize(self.folder / "data.mdb")
            except FileNotFoundError:
                used = 0
            while size < used:
                size *= 2
            try:
                env = open_environment(
                    self.folder,
                    self.native,
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
            except lmdb.DiskError:
                if not used:
                    self._undo_beginning()
                raise
            except lmdb.InvalidError:
                # A process that was killed as it began a new `lock.mdb` leaves that to the next one
                # that opens it alone. Of a damaged store the error stays.
                unmade += 1
                if unmade > _UNMADE:
                    raise
                time.sleep(_UNMADE_SECONDS * unmade)
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
                for name in ("data.mdb", "lock.mdb"):
                    self.watch(name)
                if (file := self._files["data.mdb"]) is not None:
                    _environments[file] = self
                return env, turn

    def watch(self, name: str) -> None:
        """From now on, refuse to go on without this file in the folder, which is in use."""
        self._files[name] = file_of(self.folder, name)

    def _is_replaced(self) -> bool:
        """Whether one of the files is no longer the one that was opened, as far as one sees."""
        for name, opened in tuple(self._files.items()):
            if opened is None:
                continue
            try:
                file = os.stat(self.folder / name)
            except (FileNotFoundError, NotADirectoryError):
                return True
            except OSError:
                continue
            if (file.st_dev, file.st_ino) != opened:
                return True
        return False

    def _check_alone(self) -> None:
        """Raise StoreError if this process has the file open by another path.

        LMDB would refuse it as well, but only once `_make_files` has closed `lock.mdb`, and with it
        the record lock by which other processes know that the readers of this one are alive.
        """
        found = file_of(self.folder)
        other = _environments.get(found) if found is not None else None
        if other is not None and other is not self and other._env is not None:
            raise StoreError(
                f"The store in {self.folder} is the one that this process has opened as "
                f"{other.folder}: the folder was renamed, or is mounted twice. Close the "
                "Repository objects of that path first."
            )

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

    def _undo_beginning(self) -> None:
        """Empty a new file for whose first two pages there was no room.

        With a part of them it would be taken for a damaged one, also once there is room.
        """
        path = self.folder / "data.mdb"
        with contextlib.suppress(OSError):
            if path.stat().st_size < 2 * mmap.PAGESIZE:
                os.truncate(path, 0)

    # --- Reading ------------------------------------------------------------------------

    def begin_read(self) -> Txn:
        """Begin a read transaction; `end_read` must follow soon, in every case."""
        env: OpenEnvironment | None = None
        try:
            self._running.append(None)
            env = self._env
            if env is not None and not self._paused:
                txn: Txn = env.begin()
                return txn
        except BaseException as error:
            # Processes killed during a read may have left their slots occupied.
            full = isinstance(error, lmdb.ReadersFullError)
            freed = full and self._env is not None and self._env.reader_check() > 0
            self._running.pop()
            if isinstance(error, lmdb.MapResizedError):
                self._grow(0)
            elif isinstance(error, lmdb.PanicError):
                # A write to disk failed: LMDB refuses all calls until the file is opened again.
                self._close(env)
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

    def write_at_once(self, commit: Callable[..., T | None], *arguments: Any) -> T | None:
        """Have native code do a write as a whole, if no other thread of this process writes.

        `commit` is called with the descriptor of the turn lock and the arguments. It takes the
        turn, and begins and commits a transaction, or returns None: then nothing is written, which
        goes for this method as well. Raises StoreError if LMDB refuses the commit.
        """
        background = self._background
        if self._queue or self._writing.locked():
            return None
        if background is not None and background.failure is not None:
            return None
        found = None
        try:
            with self._writing:
                self._running.append(None)
                try:
                    turn = self._turn
                    if self._env is not None and not self._paused and turn is not None:
                        found = commit(turn.fd, *arguments)
                finally:
                    self._running.pop()
        except (lmdb.MapFullError, lmdb.MapResizedError):
            return None
        except lmdb.Error as error:
            raise translate(error, self.folder) from error
        finally:
            if self._queue:
                self._promote()
        if found is not None:
            self._note_commit()
        return found

    def _share(self, request: list[Any]) -> None:
        """Run the request together with those of all threads that wait for the disk.

        If they waited for `_writing`, each would have to acquire it only to see that its request is
        finished, and the thread that released it would often acquire it again first. Without sync
        that costs less than a wake-up.
        """
        signal = None
        if self._writing.locked():
            signal = request[3] = threading.Lock()
            signal.acquire()
        self._queue.append(request)
        while request[0] is not None:
            if signal is not None and self._writing.locked():
                signal.acquire(timeout=_LOST_SECONDS)
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
                _signal(request)
                return

    def _commit_group(self) -> None:
        """Run the queued operations in one LMDB transaction; requires the lock `_writing`."""
        queue = self._queue
        running = self._running
        group: list[list[Any]] = []
        env: OpenEnvironment | None = None
        txn: Txn | None = None
        turn: TurnLock | None = None
        in_operation = False
        try:
            running.append(None)
            env, free = self._env, self._turn
            if env is not None and free is not None and not self._paused:
                # While another process writes, this waits without the GIL: the group grows.
                turn = free
                turn.take()
                begun: Txn = env.begin(write=True)
                txn = begun
                self._check_lock_file(env, begun)
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
                        _signal(request)
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
            refused = in_operation or _is_refusal(error, over=over)
            if refused and isinstance(error, Exception):
                if txn is not None or env is self._env:
                    self._recover(group, error, in_operation)
                # Else a pause timed out and closed the environment: begin again.
            else:
                # An interrupt (Ctrl-C), or what a signal's handler raises, as for a time limit. The
                # other waiting threads continue without this one.
                if over:
                    for request in group:
                        request[0] = None
                        _signal(request)
                queue.extendleft(request for request in reversed(group) if request not in queue)
                raise
            return
        running.pop()
        if txn is None:
            try:
                self._open()
            except RepositoryError as error:
                self._recover(group, error, in_operation)
        else:
            self._note_commit()

    def _check_lock_file(self, env: OpenEnvironment, txn: Txn) -> None:
        """Raise PanicError if the write transaction does not follow the last one of any process.

        The number of the last one is in `lock.mdb`. If that file was deleted, as something left
        over, the processes that have it open go on from their number, and would write over what
        others have committed by the new file. The other files may be gone as well: nothing is
        opened again.
        """
        if txn.id() != env.info()["last_txnid"] + 1:
            self._has_lost_lock_file = True
            raise lmdb.PanicError("lock.mdb was deleted")

    def _note_commit(self) -> None:
        """See to what a commit leaves to be done from time to time."""
        if self._background is not None:
            self._background.note_commit()
        elif time.monotonic() > self._care_at:
            self._care_at = time.monotonic() + _CARE_SECONDS
            self._care()

    def _abort(self, txn: Txn) -> None:
        """Undo a write transaction of this thread, which counts as running.

        py-lmdb waits until no thread is inside LMDB, which may never happen among busy readers. So
        they are kept out. The native engine does not wait.
        """
        mine = False
        try:
            # Another thread that pauses waits for this one, and keeps the readers out as well.
            while self.native is None and not (mine or self._paused):
                mine = self._changing.acquire(timeout=0.001)
            if mine:
                self._set_paused(True)
        finally:
            # Also if another interrupt comes: until then no process can write.
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
            self._close(self._env)
            if not group:
                return  # None of the requests has been tried.
        elif in_operation:
            failed = group[-1:]
        if not group and failed is group:
            # The transaction could not begin: all requests fail.
            while queue:
                failed.append(queue.popleft())
        for request in failed:
            request[2] = self._explain(error)
            request[0] = None
            _signal(request)
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
        """Free the slots of killed readers: they keep old pages from being reused.

        If the file was removed or replaced, close it: the next call raises RepositoryError, and
        nothing is written that no other process ever sees.
        """
        env = self._env
        if env is None:
            return  # Closed meanwhile, or to be opened again by the next thread that needs it.
        if self._is_replaced():
            self._close(env)
            return
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

    # --- The map, a fork, the end -------------------------------------------------------

    def _pause(self) -> None:
        """Keep this process's threads out of LMDB until `_resume`; not for a thread inside it."""
        self._changing.acquire()
        self._set_paused(True)
        try:
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            while self._is_running() and time.monotonic() < deadline:
                time.sleep(0.0001)
        except BaseException:  # Ctrl-C.
            self._resume()
            raise

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        if self.reads is not None:
            self.reads.paused = paused

    def _is_running(self) -> bool:
        """Whether a thread of this process is in a transaction, single reads excepted."""
        return bool(self._running) or (self.reads is not None and self.reads.is_busy)

    def _resume(self) -> None:
        self._set_paused(False)
        self._changing.release()

    def _drop(self) -> None:
        """Close LMDB's environment, in a pause; the next thread that needs it opens it again."""
        env, self._env = self._env, None
        if env is not None:
            if self.reads is not None:
                self.reads.detach()
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

    def _close(self, env: OpenEnvironment | None) -> None:
        """Close this environment, unless another thread has done so already.

        The next thread that needs it opens the file again.
        """
        self._pause()
        try:
            if self._env is env:
                self._drop()
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
        Raises StoreError if the disk refuses, now or in a sync that no caller has been told of.
        """
        background = self._background
        try:
            self._close_file()
        finally:
            if background is not None:
                background.close()
        if background is not None and (failure := background.take_failure()) is not None:
            raise failure

    def _close_file(self) -> None:
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


def file_of(folder: Path, name: str = "data.mdb") -> tuple[int, int] | None:
    """The device and the inode of one of a store's files; None if there is none."""
    try:
        file = os.stat(folder / name)
    except OSError:
        return None
    return file.st_dev, file.st_ino


def _signal(request: list[Any]) -> None:
    """Wake the thread that waits for the request, if one does; may be called twice."""
    signal = request[3]
    if signal is not None:
        with contextlib.suppress(RuntimeError):
            signal.release()


def _is_refusal(error: BaseException, *, over: bool) -> bool:
    """Whether LMDB or the system has refused a transaction, which may be over."""
    refused = isinstance(error, OSError) and error.errno is not None and not over
    return refused or isinstance(error, lmdb.Error)


def _is_over(txn: Txn) -> bool:
    """Whether a transaction has been committed (or aborted)."""
    try:
        txn.id()
    except lmdb.Error:
        return True
    return False
