"""The repositories that this process has open: one store and one coordination for each.

Repository objects of one address share them. LMDB forbids a second environment on a file in a
process, the kernel's record locks could not tell two tokens of one process apart, and one session
of ZooKeeper and one pending call to the oracle serve all threads.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar, cast

from percola.platform import fork_safety as forks


class Connection(ABC):
    """What a process has open of a repository."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """The same for all addresses of one repository."""

    @abstractmethod
    def close(self) -> None:
        """Close it; called when its last user has released it."""

    def release(self) -> None:
        """End the use that `acquire` began; the last one closes the connection."""
        _registry.release(self.key)


C = TypeVar("C", bound=Connection)


def acquire(
    key: Hashable, connect: Callable[[], C], check: Callable[[C], None] = lambda _: None
) -> C:
    """The connection of this key: the open one, after `check`, or a new one from `connect`."""
    return cast(C, _registry.acquire(key, connect, check))


class _Slot:
    """The connection of one key, and its users. Locked while it is opened or closed."""

    def __init__(self) -> None:
        self.users = 0
        self.connection: Connection | None = None
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self.lock = threading.RLock()


class _Registry:
    """The open connections by key. In a child after a fork they stay: its copies are users too."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, _Slot] = {}
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.RLock()

    def acquire(
        self, key: Hashable, connect: Callable[[], Any], check: Callable[[Any], None]
    ) -> Any:
        with self._guard:
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = _Slot()
            slot.users += 1
        try:
            with slot.lock:
                if slot.connection is None:
                    slot.connection = connect()
                else:
                    check(slot.connection)
                return slot.connection
        except BaseException:
            self.release(key)
            raise

    def release(self, key: Hashable) -> None:
        slot = self._slots[key]
        # Closed under the slot's lock: a second LMDB environment must not be opened meanwhile.
        with slot.lock:
            with self._guard:
                slot.users -= 1
                if slot.users:
                    return
            connection, slot.connection = slot.connection, None
            try:
                if connection is not None:
                    connection.close()
            finally:
                with self._guard:
                    if not slot.users and self._slots.get(key) is slot:
                        del self._slots[key]


_registry: Final = _Registry()
