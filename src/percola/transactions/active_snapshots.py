"""§2.2: which snapshots this process reads, so that garbage collection waits for them (P12).

Every snapshot and transaction stands here from its beginning to its end. The oldest of them is
what the process tells the others (`Coordination.hold_back`).

Saying so for each would cost more than many a read, so it is said when the first begins and
when the oldest has ended. It may come a moment too late, or be said twice at once and be older
than the truth for a while: then the store refuses to read below the safe point and the
transaction runs again, or a little more is kept. Leases are a courtesy, never a proof.

There is no lock: a snapshot may be dropped by Python's garbage collection, at any point of any
thread, and would wait for a lock that its own thread holds. Threads may therefore publish at once,
in any order. Each looks again after it has published, so the last one to do so leaves what holds.

A child of a fork begins with none. What the parent reads is for the parent to protect, and most of
it the child could never end: it belongs to threads that the child does not have.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

from percola.coordination.base import Coordination
from percola.platform import fork_safety as forks

_RENEWED: Final = 256
"""How many may begin before the oldest is looked up anew, in case that went wrong."""


class ActiveSnapshots:
    """The timestamps that this process reads at; for all of its threads.

    Args:
        hold_back: tells the other processes the oldest of them, 0 for none.
    """

    def __init__(self, hold_back: Callable[[int], None] = lambda ts: None) -> None:
        self._hold_back = hold_back
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._active: dict[int, int] = {}
        # What was published last.
        self._held = 0
        self._since = 0

    def add(self, key: int, ts: int) -> None:
        """Whoever is known by `key` reads at `ts` from now on."""
        self._active[key] = ts
        if not self._held:
            self._held = ts
            self._hold_back(ts)
            if len(self._active) != 1:
                self._publish()  # Another thread has begun in the meantime, and may read older.
            return
        self._since += 1
        if self._since >= _RENEWED:
            self._publish()

    def drop(self, key: int) -> None:
        """It has ended; harmless if it has not begun."""
        active = self._active
        ts = active.pop(key, None)
        if ts is None:
            return
        if not active:
            self._held = 0
            self._hold_back(0)
            if active:
                # Another thread has begun in the meantime, and this 0 may have come after what it
                # published, whatever `_held` says.
                self._publish()
        elif ts == self._held and self.oldest() != ts:
            self._publish()

    def oldest(self) -> int | None:
        """The oldest timestamp that is read at, or None."""
        # A list first: it is made in one piece, while threads come and go.
        return min(list(self._active.values()), default=None)

    def _publish(self) -> None:
        self._since = 0
        while True:
            # 0 where nothing is read; at timestamp 0 there is nothing that could be removed.
            oldest = self.oldest() or 0
            self._held = oldest
            self._hold_back(oldest)
            # Threads may have begun or ended since the look, or published what they saw before.
            if self._held == oldest == (self.oldest() or 0):
                return


_of: weakref.WeakKeyDictionary[Coordination, ActiveSnapshots] = weakref.WeakKeyDictionary()


def leases_of(coordination: Coordination) -> ActiveSnapshots:
    """The leases that all repository objects on the same coordination share.

    It tells the other processes one timestamp for all of them: were each to speak for itself,
    one that has nothing to read would take back what another has said.
    """
    found = _of.get(coordination)
    if found is None:
        weakly = weakref.ref(coordination)  # Else the dictionary would keep it.

        def hold_back(ts: int) -> None:
            if (alive := weakly()) is not None:
                alive.hold_back(ts)

        # One wins where two threads make one at once.
        found = _of.setdefault(coordination, ActiveSnapshots(hold_back))
    return found
