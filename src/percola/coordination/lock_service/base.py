"""§2.4 advisory row locks and wake-ups among the threads of one process.

`percola.coordination.lock_service.client` extends both to other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from percola.coordination.wake_ups import Place, wake_up_of
from percola.errors import RepositoryClosedError
from percola.platform import fork_safety as forks


class LockService:
    """Advisory row locks and wake-ups; neither is needed for safety.

    Safe to use from many threads. A child after a fork begins with no locks and no callbacks.
    """

    def __init__(self) -> None:
        self._closed = False
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        """Discard the parent's state that a fork has copied."""
        self._guard = threading.Lock()
        self._rows: set[tuple[str, bytes]] = set()
        self._callbacks: list[Callable[[bytes], float | None]] = []

    def try_lock(self, table: str, row: bytes) -> bool:
        """Take the lock of a row; False if another thread or process has it.

        Raises RepositoryClosedError after `close`.
        """
        return self.try_lock_many([(table, row)])[0]

    def unlock(self, table: str, row: bytes) -> None:
        """Release the lock of a row; no effect if it is not held."""
        self.unlock_many([(table, row)])

    def try_lock_many(self, rows: Sequence[tuple[str, bytes]]) -> list[bool]:
        """`try_lock` for several rows, each given once by table and row; which were taken."""
        with self._guard:
            if self._closed:
                raise RepositoryClosedError("This repository has been closed; open it again.")
            taken = [row not in self._rows for row in rows]
            self._rows.update(rows)
            return taken

    def unlock_many(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """`unlock` for several rows."""
        with self._guard:
            self._rows.difference_update(rows)

    def keep_lock(self, table: str, row: bytes) -> bool:
        """Whether this process still has a lock; see `Coordination.keep_lock`."""
        return (table, row) in self._rows

    def wake(self, places: Iterable[Place] | None = None) -> None:
        """Wake all workers: there may be work in these tables, or in any.

        Never raises; waits for the callbacks of this process only.
        """
        self._run_callbacks(wake_up_of(places))

    def _run_callbacks(self, wake_up: bytes) -> None:
        for callback in self._callbacks:
            callback(wake_up)

    def on_wake(self, callback: Callable[[bytes], float | None]) -> Callable[[], None]:
        """Call `callback`, from any thread, at each wake-up; returns a function that stops it.

        It is given the wake-up (`percola.coordination.wake_ups`).
        """
        with self._guard:
            # A new list each time: `wake` iterates without the guard.
            self._callbacks = [*self._callbacks, callback]

        def stop() -> None:
            with self._guard:
                self._callbacks = [other for other in self._callbacks if other is not callback]

        return stop

    def idle(self, pool: bytes) -> None:
        """See `Coordination.idle`; threads of one process are all told of everything."""

    def close(self) -> None:
        """Release all locks and remove all callbacks. Idempotent."""
        with self._guard:
            self._closed = True
            self._rows = set()
            self._callbacks = []
