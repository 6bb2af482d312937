"""§2.2: which snapshots this process reads, so that garbage collection waits for them (P12).

Every snapshot and transaction stands here from its beginning to its end. The oldest of them is
what the process tells the others (`Coordination.hold_back`).

Saying so for each would cost more than many a read, so it is said when the first begins and
when the oldest has ended. It may come a moment too late, or be said twice at once and be older
than the truth for a while: then the store refuses to read below the safe point and the
transaction runs again, or a little more is kept. Leases are a courtesy, never a proof.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final

from percola.coordination.base import Coordination

_RENEWED: Final = 256
"""How many may begin before the oldest is looked up anew, in case that went wrong."""


class Leases:
    """The timestamps that this process reads at; for all of its threads.

    Args:
        hold_back: tells the other processes the oldest of them, 0 for none.
    """

    def __init__(self, hold_back: Callable[[int], None] = lambda ts: None) -> None:
        self._hold_back = hold_back
        self._active: dict[int, int] = {}
        self._held = 0
        self._since = 0

    def add(self, key: int, ts: int) -> None:
        """Whoever is known by `key` reads at `ts` from now on."""
        self._active[key] = ts
        if not self._held:
            self._held = ts
            self._hold_back(ts)
            return
        self._since += 1
        if self._since >= _RENEWED:
            self._tell()

    def drop(self, key: int) -> None:
        """It has ended; harmless if it has not begun."""
        active = self._active
        ts = active.pop(key, None)
        if ts is None:
            return
        if not active:
            self._held = 0
            self._hold_back(0)
            if active:  # Somebody has begun just now, and found that something was held.
                self._tell()
        elif ts == self._held:
            self._tell()

    def oldest(self) -> int | None:
        """The oldest timestamp that is read at, or None."""
        # A list first: it is made in one piece, while threads come and go.
        return min(list(self._active.values()), default=None)

    def _tell(self) -> None:
        self._since = 0
        while True:
            oldest = self.oldest()
            # At 0 there is nothing that could be removed.
            held = oldest or 0
            if held != self._held:
                self._held = held
                self._hold_back(held)
            # Somebody may have begun between the look and the word.
            if oldest is not None or not self._active:
                return


_guard = threading.Lock()
_of: weakref.WeakKeyDictionary[Coordination, Leases] = weakref.WeakKeyDictionary()


def leases_of(coordination: Coordination) -> Leases:
    """The leases that all repository objects on the same coordination share.

    It tells the other processes one timestamp for all of them: were each to speak for itself,
    one that has nothing to read would take back what another has said.
    """
    with _guard:
        found = _of.get(coordination)
        if found is None:
            weakly = weakref.ref(coordination)  # Else the dictionary would keep it.

            def hold_back(ts: int) -> None:
                if (alive := weakly()) is not None:
                    alive.hold_back(ts)

            found = _of[coordination] = Leases(hold_back)
        return found
