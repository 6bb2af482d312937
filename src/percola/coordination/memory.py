"""§2.2, §2.4: coordination inside one process, for the memory store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable

from percola.coordination.base import Coordination
from percola.coordination.wake_ups import Place, wake_up_of
from percola.platform import fork_safety as forks


class MemoryCoordination(Coordination):
    """One process, always alive."""

    def __init__(self) -> None:
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._locked: set[tuple[str, bytes]] = set()
        self._guard = threading.Lock()
        self._callbacks: list[Callable[[bytes], float | None]] = []
        self._observers: dict[str, list[str]] = {}
        self._held = 0
        self._since_ms = time.time_ns() // 1_000_000

    @property
    def token(self) -> str:
        return f"memory-{os.getpid()}"

    def is_alive(self, token: str) -> bool:
        return token in ("", self.token)

    def try_lock(self, table: str, row: bytes) -> bool:
        with self._guard:
            if (table, row) in self._locked:
                return False
            self._locked.add((table, row))
            return True

    def unlock(self, table: str, row: bytes) -> None:
        with self._guard:
            self._locked.discard((table, row))

    def wake(self, places: Iterable[Place] | None = None) -> None:
        wake_up = wake_up_of(places)
        for callback in list(self._callbacks):
            callback(wake_up)

    def on_wake(self, callback: Callable[[bytes], float | None]) -> Callable[[], None]:
        self._callbacks.append(callback)

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    def hold_back(self, ts: int) -> None:
        self._held = ts

    def oldest_held(self) -> int | None:
        return self._held or None

    def announce_observers(self, observers: dict[str, list[str]]) -> None:
        self._observers = observers

    def processes(self) -> list[dict[str, object]]:
        process = {"token": self.token, "pid": os.getpid(), "since_ms": self._since_ms}
        return [{**process, "observers": self._observers}]

    def close(self) -> None:
        self._callbacks.clear()
