"""Throttles a bulk load to the pace of the workers.

A loader writes pages ten times as fast as workers process them. If it ran ahead, a page
that changes meanwhile would wait behind everything it has written. So, while workers are active,
a load pauses before it writes more, until the backlog is small. This costs no time: the workers are
the bottleneck, and they always have work. Without workers, or if they make no progress, the load
goes ahead: after it has waited in vain, as for an observer that is paused, it does not look at them
again for a minute.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from percola import Repository, inspection
from webindex import tables

BACKLOG: Final = 32
"""Dirty cells of pages up to which a load writes more: enough to keep some workers busy."""

_POLL_SECONDS: Final = 0.03
_LOOK_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 5.0
_IN_VAIN_SECONDS: Final = 60.0


class Pace:
    """Pauses a loader while workers have a backlog; for one thread."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._waiting = threading.Event()  # Never set: for timed waits.
        self._looked = float("-inf")
        self._workers = False
        self._ahead_until = float("-inf")

    def keep(self) -> None:
        """Return once the loader may write more.

        Raises StoreError if the store cannot be read.
        """
        if time.monotonic() < self._ahead_until or not self._has_workers():
            return
        since, least = time.monotonic(), self._backlog()
        while least > BACKLOG and self._has_workers():
            began = time.monotonic()
            left = self._backlog()
            now = time.monotonic()
            if left < least:
                since = now
            elif now - since > _TIMEOUT_SECONDS:
                self._ahead_until = now + _IN_VAIN_SECONDS
                return
            least = min(least, left)
            # Counting reads every dirty cell: the more there are, the less often it is done.
            self._waiting.wait(max(_POLL_SECONDS, 10 * (now - began)))

    def _backlog(self) -> int:
        """How many cells of pages are dirty."""
        return sum(1 for _ in inspection.notifications(self._repo, table=tables.pages))

    def _has_workers(self) -> bool:
        """Whether a live process parses captures; looked up once a second."""
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._workers = any(
                repr(tables.capture) in one.observers for one in inspection.processes(self._repo)
            )
        return self._workers
