"""§2.4 advisory row locks and the bell among the threads of one process.

`percola.coordination.lock_service.client` extends both to other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from percola.errors import RepositoryClosedError
from percola.platform import fork_safety as forks


class LockService:
    """Who works on which row, and a bell. Nothing of it is needed for safety.

    Safe to use from many threads. A child after a fork begins with no locks and no listeners.
    """

    def __init__(self) -> None:
        self._closed = False
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        """Forget what was copied by a fork: it is the parent's."""
        self._guard = threading.Lock()
        self._rows: set[tuple[str, bytes]] = set()
        self._listeners: list[Callable[[], None]] = []

    def try_lock(self, table: str, row: bytes) -> bool:
        """Take the lock of a row; False if another thread or process has it.

        Raises RepositoryClosedError after `close`.
        """
        with self._guard:
            if self._closed:
                raise RepositoryClosedError("This repository has been closed; open it again.")
            if (table, row) in self._rows:
                return False
            self._rows.add((table, row))
            return True

    def unlock(self, table: str, row: bytes) -> None:
        """Give the lock of a row back; harmless if it is not held."""
        with self._guard:
            self._rows.discard((table, row))

    def ring(self) -> None:
        """Ring the bell. Never raises, and waits for nothing but the listeners of this process."""
        for heard in self._listeners:
            heard()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard`, from any thread, when the bell rings; returns how to stop."""
        with self._guard:
            # A new list each time: it is gone through without the guard.
            self._listeners = [*self._listeners, heard]

        def stop() -> None:
            with self._guard:
                self._listeners = [one for one in self._listeners if one is not heard]

        return stop

    def close(self) -> None:
        """Give everything back. Idempotent."""
        with self._guard:
            self._closed = True
            self._rows = set()
            self._listeners = []
