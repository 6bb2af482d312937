"""§2.2: which snapshots this process reads, so that garbage collection waits for them (P12).

Every snapshot and transaction is registered here from its beginning to its end. The process
publishes the oldest timestamp (`Coordination.hold_back`).

Publishing for each would often cost more than the reads, so the process publishes when the first
begins, when one begins that reads older than all others (`snapshot(at=…)`), and when the oldest has
ended. A value may be published a moment too late: then the store refuses reads below the safe
point, and the transaction runs again. Two threads may publish at once, which can leave too old a
value for a while: then more versions are kept than necessary. Correctness never depends on it.

There is no lock: Python's garbage collection may drop a snapshot at any point of any thread, which
could then wait for a lock that its own thread holds. So threads may publish concurrently, in any
order. Each checks again after it has published, so the last one leaves the right value.

With the native engine of LMDB this is native code (`native/src/active.rs`), which does the same; a
begin and an end then call nothing of Python's.

A forked child begins with none. The parent protects its own reads, and the child could never end
most of them: they belong to threads that the child does not have.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final, TypeAlias

from percola.coordination.base import Coordination
from percola.platform import fork_safety as forks
from percola.store.lmdb import driver

_RENEWED: Final = 256
"""How many snapshots may begin before the oldest is published again, in case it is wrong."""


HoldBack: TypeAlias = Callable[[int], Callable[[int], object] | None]


class ActiveSnapshots:
    """The timestamps that this process reads at; for all of its threads.

    Args:
        hold_back: publishes the oldest of them to the other processes, 0 for none
            (`Coordination.hold_back`).
    """

    def __init__(self, hold_back: HoldBack = lambda ts: None) -> None:
        self._hold_back = hold_back
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        # `_hold_back`, or the faster function that it has returned.
        self._tell: Callable[[int], object] = self._tell_at_first
        self._active: dict[int, int] = {}
        # What was published last.
        self._held = 0
        self._since = 0

    def _tell_at_first(self, ts: int) -> None:
        self._tell = self._hold_back(ts) or self._tell_at_first

    def add(self, key: int, ts: int) -> None:
        """Register a snapshot, identified by `key`, that reads at `ts`."""
        self._active[key] = ts
        if not self._held:
            self._held = ts
            try:
                self._tell(ts)
            except ValueError:
                self._tell_at_first(ts)
            if len(self._active) != 1:
                self._publish()  # Another thread has begun in the meantime, and may read older.
            return
        self._since += 1
        if ts < self._held or self._since >= _RENEWED:
            self._publish()

    def drop(self, key: int) -> None:
        """Unregister a snapshot; harmless if it is not registered."""
        active = self._active
        ts = active.pop(key, None)
        if ts is None:
            return
        if not active:
            self._held = 0
            try:
                self._tell(0)
            except ValueError:
                self._tell_at_first(0)
            if active:
                # Another thread has begun in the meantime, and this 0 may have come after what it
                # published, whatever `_held` says.
                self._publish()
        elif ts == self._held and self.oldest() != ts:
            self._publish()

    def oldest(self) -> int | None:
        """The oldest timestamp that is read at, or None. Not 0, which says that nothing is."""
        # A list first: copying is atomic, while other threads add and drop.
        return min(filter(None, list(self._active.values())), default=None)

    def _publish(self) -> None:
        self._since = 0
        while True:
            # 0 where nothing is read but at timestamp 0, at which a repository is empty.
            oldest = self.oldest() or 0
            self._held = oldest
            self._tell_at_first(oldest)
            # Since `oldest` was read, threads may have begun, ended, or published older values.
            if self._held == oldest == (self.oldest() or 0):
                return


_class: type[ActiveSnapshots] = (
    ActiveSnapshots if driver.native is None else driver.native.ActiveSnapshots
)
_of: weakref.WeakKeyDictionary[Coordination, ActiveSnapshots] = weakref.WeakKeyDictionary()


def leases_of(coordination: Coordination) -> ActiveSnapshots:
    """The active snapshots, shared by all repository objects on the same coordination.

    One timestamp is published for all of them: if each object published its own, an idle one would
    overwrite the timestamp of another.
    """
    found = _of.get(coordination)
    if found is None:
        weakly = weakref.ref(coordination)  # Else the dictionary would keep it alive.

        def hold_back(ts: int) -> Callable[[int], object] | None:
            alive = weakly()
            return None if alive is None else alive.hold_back(ts)

        # If two threads create one at once, the first wins.
        made = _class(hold_back)
        found = _of.setdefault(coordination, made)
    return found
