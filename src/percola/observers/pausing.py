"""§2.4: which observers of a worker are paused at the moment (`Repository.pause_observer`).

A worker reads them when it starts, when another process wakes it, which a pause does, and in any
case before a run if its last read began more than a second ago (`WorkerOptions.rescan`). So no run
begins later than that after a pause, in any process, even if a wake-up is lost.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import Final

from percola.observers.observer import Observers
from percola.paused import PausedObserver, paused_observers
from percola.transactions.context import TransactionContext

log = logging.getLogger("percola.worker")

NOBODY: Final[frozenset[str]] = frozenset()
"""The names if no observer is paused."""


class PausedNames:
    """The names of a worker's observers that are paused, shared by all of its threads.

    Args:
        every: seconds after which a read of them is too old to begin a run.
    """

    def __init__(self, context: TransactionContext, observers: Observers, every: float) -> None:
        self._context = context
        self._own = {one.name for one in observers}
        self._every = every
        self._guard = threading.Lock()
        self._read = -math.inf
        self._names = NOBODY

    @property
    def known(self) -> frozenset[str]:
        """Those that were paused by the last read, however old it is."""
        return self._names

    def names(self, *, anew: bool = False) -> frozenset[str]:
        """Those that are paused by a read that is not too old; `anew`: by one that begins now.

        Raises StoreError.
        """
        began = self._context.clock.monotonic()
        if not anew and began - self._read < self._every:
            return self._names
        # No lock meanwhile: a slow store would hold up all threads. They may read twice.
        found = paused_observers(self._context.store)
        with self._guard:
            if began >= self._read:  # Else another thread has read it since.
                before, self._read = self._names, began
                self._names = frozenset(found.keys() & self._own) or NOBODY
                _log_changes(before, self._names, found)
        return self._names


def _log_changes(
    before: frozenset[str], now: frozenset[str], found: dict[str, PausedObserver]
) -> None:
    for name in sorted(now - before):
        reason = f": {found[name].reason}" if found[name].reason else ""
        log.warning("observer %s is paused, and its changes wait%s", name, reason)
    for name in sorted(before - now):
        log.warning("observer %s is resumed", name)
