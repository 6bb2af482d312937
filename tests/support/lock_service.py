"""The lock service on a server of its own, and processes that use it.

`percola oracle` serves it beside the timestamps.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Final

from children import hear, say

from percola.coordination.lock_service.client import LockServiceClient
from percola.coordination.lock_service.server import LockServiceServer
from percola.coordination.memory import MemoryCoordination
from percola.coordination.wake_ups import Place
from percola.rpc.server import FrameServer, Peer

LOCK_SECONDS: Final = 10.0
"""Seconds that `try_lock` waits where a test is about locks, and not about what it does without a
service: the machine may be busy."""


class Server:
    """A process of the service, without an oracle."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self._server = FrameServer(address, self)
        self.address = self._server.address
        self.service = LockServiceServer(self._server)
        self._server.start()

    def received(self, peer: Peer, kind: int, number: int, body: bytes) -> bytes:
        """Handle a frame."""
        return self.service.received(peer, kind, number, body)

    def ended(self, peer: Peer) -> None:
        """A connection has ended."""
        self.service.drop(peer)

    def tick(self) -> float:
        """Do what is due."""
        return self.service.tick()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it."""
        self._server.stop()


class Networked(MemoryCoordination):
    """A process whose locks and wake-ups are those of the service; the rest it knows alone.

    Attributes:
        told: the wake-ups that have come.
    """

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.told: list[bytes] = []
        self.client = LockServiceClient(addresses, lock_seconds=LOCK_SECONDS)

    def try_lock(self, table: str, row: bytes) -> bool:
        return self.client.try_lock(table, row)

    def unlock(self, table: str, row: bytes) -> None:
        self.client.unlock(table, row)

    def keep_lock(self, table: str, row: bytes) -> bool:
        return self.client.keep_lock(table, row)

    def wake(self, places: Iterable[Place] | None = None) -> None:
        self.client.wake(places)

    def on_wake(self, callback: Callable[[bytes], None]) -> Callable[[], None]:
        def told(wake_up: bytes) -> None:
            self.told.append(wake_up)
            callback(wake_up)

        return self.client.on_wake(told)

    def idle(self, pool: bytes) -> None:
        self.client.idle(pool)

    def close(self) -> None:
        self.client.close()


def serve(pipe: Connection, address: str = "127.0.0.1:0") -> None:
    """A process that serves until it is killed."""
    with Server(address) as server:
        say(pipe, server.address)
        hear_forever(pipe)


def hear_forever(pipe: Connection) -> None:
    with contextlib.suppress(EOFError):
        pipe.recv()


def live(pipe: Connection, *addresses: str) -> None:
    """A process that does what it is told, and answers."""
    lock_service = LockServiceClient(addresses, lock_seconds=LOCK_SECONDS)
    woken = threading.Event()
    while True:
        word, *arguments = hear(pipe)
        if word == "listen":
            lock_service.on_wake(lambda _: woken.set())
            # The first wake-up reports that the session is open.
            say(pipe, woken.wait(30))
            woken.clear()
        elif word == "await wake-up":
            say(pipe, "waiting")
            woken.wait(*arguments or (30,))
            say(pipe, time.monotonic() if woken.is_set() else None)
            woken.clear()
        elif word == "forget":
            woken.clear()
            say(pipe, None)
        elif word == "attended":
            say(pipe, len(lock_service.sessions))
        else:
            say(pipe, getattr(lock_service, word)(*arguments))
