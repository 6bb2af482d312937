"""The state that the child of a fork inherits, and how it is reset or refused.

A child has a copy of the parent's memory and of its descriptors, and of its threads only the one
that forked. A lock that another thread held stays locked forever in the child, the state it
protected may be half changed, and state that belonged to the parent alone (a token, a connection, a
random state) is now in two processes. So every object with such state sets it in one method,
`_start_afresh`, which it calls when it is created and registers with `at_fork`; it runs again in
each child, before anything else does. Nothing is checked later: a read or a commit does not check
the process id.

    inherited by the child                       in the child
    -------------------------------------------  ------------------------------------------------
    LMDB's environment, its turn lock, readers   closed before the fork, once its transactions have
                                                 ended; reopened when needed (`lmdb.environment`)
    LMDB's commit queue and its lock             recreated: the requests are the parent's threads'
    LMDB's background sync                       recreated: the parent's thread syncs its commits
    the memory store                             held during the fork, so the copy is consistent
    the mapped safe point                        stays: parent and child share it
    liveness token, row locks, wake-up FIFO,     closed, recreated when needed; the kernel's
    slot of active reads (`leases` file)         record locks have stayed with the parent
    row locks, listeners (memory, lock service)  none
    ZooKeeper session                            its sockets are closed unused; a new
                                                 session begins when it is needed
    connections to oracles                       closed unused; opened when they are needed
    gRPC channels, Java                          never used or released; refused (`Unforkable`)
    threads for calls to HBase                   a new pool; never used if Java was
    timestamps that are read at (`ActiveSnapshots`)  none: the parent's are the parent's to protect
    snapshots and transactions                   refused with TransactionUsedUpError
    readers of single columns                    recreated; this identifies inherited snapshots
    change counts, call counts, read habits      empty
    fates and ages of locks (`LockResolver`)     discarded, and read again
    open repositories (`percola.connect.shared`)  stay, with their users; only their locks are new
    random states                                reseeded, or both would retry in step
    a worker                                     as before its start: its threads are gone
    an oracle's service                          its sockets are closed; nothing serves
    prometheus metrics of a worker               the parent's; a child's worker makes its own
    locks of `functools.lru_cache`               there are none in CPython; `cached_property` has
                                                 one in Python 3.11, and so is not used
    Python's locks of modules that another       a fork waits until Percola's modules, some of which
    thread imports                               are imported when they are used, are whole

Libraries that do not survive a fork are refused in the child. With gRPC and an idle connection two
children in a hundred crashed or hung, with all connections closed before the fork one in four
hundred; gRPC's own fork support does not change that. A JVM always hangs. A process that has used
such a library and forks may continue to use it; its descendants may not.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import itertools
import os
import random
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Final, NamedTuple, TypeAlias

from percola.errors import StoreError

_Hook: TypeAlias = Callable[[], None]


class _Hooks(NamedTuple):
    """The hooks of one object at a fork; each is called to get the function, or None."""

    in_child: Callable[[], _Hook | None]
    before: Callable[[], _Hook | None]
    in_parent: Callable[[], _Hook | None]


_numbers: Final = itertools.count()
_registered: Final[dict[int, _Hooks]] = {}
_paused: Final[list[_Hook | None]] = []
_IMPORT_SECONDS: Final = 5.0
"""For how long, in seconds, a fork waits for modules that other threads import."""
_OURS: Final = __name__.partition(".")[0] + "."
# One fork at a time: a second one would find everything paused and resume it too early.
_forking = threading.Lock()


def at_fork(
    in_child: _Hook, *, before: _Hook | None = None, in_parent: _Hook | None = None
) -> None:
    """Register what to do at every fork; methods do not keep their object alive.

    Args:
        in_child: resets all state that belongs to one process, locks included, as if nothing had
            been used yet. It must take no lock: a thread that does not exist in the child may hold
            it.
        before: called in the parent before the fork. If it raises, it must leave nothing held.
        in_parent: called in the parent after the fork, if `before` did not raise.

    Hooks run in the order of their registration.
    """
    number = next(_numbers)

    def forget(_: object, registered: dict[int, _Hooks] = _registered) -> None:
        registered.pop(number, None)

    def weakly(hook: _Hook | None) -> Callable[[], _Hook | None]:
        if not isinstance(hook, MethodType):
            return lambda: hook
        # Not a WeakMethod: at the end of the process it may report an error in its own callback.
        owner, function = weakref.ref(hook.__self__, forget), hook.__func__

        def method() -> _Hook | None:
            alive = owner()
            return None if alive is None else MethodType(function, alive)

        return method

    _registered[number] = _Hooks(weakly(in_child), weakly(before), weakly(in_parent))


def keep_inherited(*things: object) -> None:
    """In a child: never release these objects, not even at exit.

    Their destructors would wait for threads that only the parent has.
    """
    for one in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def new_random() -> random.Random:
    """A random number generator that a child does not share with its parent."""
    made = random.Random()
    at_fork(made.seed)
    return made


def _start_afresh() -> None:
    global _forking
    _forking = threading.Lock()
    _paused.clear()


def _before() -> None:
    _forking.acquire()
    for hooks in list(_registered.values()):
        before = hooks.before()
        if before is not None:
            in_parent = hooks.in_parent()  # It may not be the last reference to its object.
            try:
                before()
            except BaseException:
                _report(before)
            else:
                _paused.append(in_parent)
    # Last: what comes before it may let other threads go on.
    _await_imports()


def _await_imports() -> None:
    """Wait until no other thread imports a module of Percola's.

    Python does not free its lock on the module in the child, which would wait for it for ever.
    """
    deadline = time.monotonic() + _IMPORT_SECONDS
    while _is_imported_elsewhere() and time.monotonic() < deadline:
        time.sleep(0.0001)


def _is_imported_elsewhere() -> bool:
    """Whether a thread other than this one imports a module of Percola's."""
    locks = getattr(importlib._bootstrap, "_module_locks", {})
    found = (lock() for name, lock in list(locks.items()) if name.startswith(_OURS))
    me = threading.get_ident()
    return any(lock is not None and getattr(lock, "owner", None) != me for lock in found)


def _in_parent() -> None:
    try:
        while _paused:
            resume = _paused.pop()
            if resume is not None:
                try:
                    resume()
                except BaseException:
                    _report(resume)
    finally:
        _forking.release()


def _in_child() -> None:
    # A garbage collection could end snapshots here, which use state that is not reset yet.
    collects = gc.isenabled()
    gc.disable()
    try:
        for hooks in list(_registered.values()):
            in_child = hooks.in_child()
            if in_child is not None:
                try:
                    in_child()
                except BaseException:
                    _report(in_child)
    finally:
        if collects:
            gc.enable()


def _report(hook: _Hook) -> None:
    """Print an error and continue: no caller can catch it, and the other hooks must run."""
    print(f"Percola could not prepare {hook} for a fork:", file=sys.stderr)
    traceback.print_exc()


at_fork(_start_afresh)
os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


class Unforkable:
    """A library that does not survive a fork, and whether this process uses it.

    Args:
        described: its name in the error raised in a child.

    Attributes:
        is_used: whether this process has used it.
        is_barred: whether this process was forked from one that had used it.
    """

    def __init__(self, described: str) -> None:
        self._described = described
        self.is_used = False
        self.is_barred = False
        at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self.is_barred = self.is_barred or self.is_used
        self.is_used = False

    def refuse_child(self, what: str) -> None:
        """StoreError in a child of a process that has used it; `what` names the object in use."""
        if self.is_barred:
            raise StoreError(
                f"{what} was in use in this process's parent before it forked, and "
                f"{self._described} does not survive a fork. Start processes with 'spawn' or "
                "'forkserver', or open the repository first in the child."
            )

    def begin_use(self, what: str) -> None:
        """Call before creating any object of the library; raises as `refuse_child` does."""
        self.refuse_child(what)
        self.is_used = True


GRPC: Final = Unforkable("gRPC, by which it is reached,")

JAVA: Final = Unforkable("Java")
