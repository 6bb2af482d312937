"""The lock service on a small gRPC server, and processes that use it.

`percola oracle` serves it beside the timestamps; here its lease can be taken away.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Final

import grpc
from children import hear, say

from percola.coordination.lock_service import wire
from percola.coordination.lock_service.client import LockServiceClient
from percola.coordination.lock_service.server import LockServiceServer

LOCK_SECONDS: Final = 10.0
"""Seconds that `try_lock` waits where a test is about locks, and not about what it does without a
service: the machine may be busy."""


class Server:
    """The service on a gRPC server of its own, whose lease can be taken away."""

    def __init__(self, address: str = "127.0.0.1:0", *, threads: int = 4, token: str = "") -> None:
        self.holds = True
        self.service = LockServiceServer(lambda: self.holds, self._admit)
        self._token = token
        self._server = grpc.server(
            ThreadPoolExecutor(threads), options=[("grpc.so_reuseport", 0), *wire.SERVER_OPTIONS]
        )
        self._server.add_generic_rpc_handlers((self.service.handlers(),))
        host = address.rpartition(":")[0]
        self.address = f"{host}:{self._server.add_insecure_port(address)}"
        self._server.start()

    def _admit(self, context: Any) -> None:
        shown = dict(context.invocation_metadata()).get("authorization", "")
        if self._token and shown != f"Bearer {self._token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "The token is missing or wrong.")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.stop(None).wait(10)


def serve(pipe: Connection, address: str = "127.0.0.1:0") -> None:
    """A process that serves until it is killed."""
    server = grpc.server(
        ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0), *wire.SERVER_OPTIONS]
    )
    server.add_generic_rpc_handlers((LockServiceServer(lambda: True).handlers(),))
    port = server.add_insecure_port(address)
    server.start()
    say(pipe, f"127.0.0.1:{port}")
    hear_forever(pipe)


def hear_forever(pipe: Connection) -> None:
    with contextlib.suppress(EOFError):
        pipe.recv()


def live(pipe: Connection, address: str) -> None:
    """A process that does what it is told, and answers."""
    lock_service = LockServiceClient([address], lock_seconds=LOCK_SECONDS)
    woken = threading.Event()
    while True:
        word, *arguments = hear(pipe)
        if word == "listen":
            lock_service.on_wake(woken.set)
            # The first wake-up reports that the session is open.
            say(pipe, woken.wait(30))
            woken.clear()
        elif word == "await wake-up":
            say(pipe, "waiting")
            woken.wait(30)
            say(pipe, time.monotonic() if woken.is_set() else None)
            woken.clear()
        elif word == "attended":
            say(pipe, lock_service.has_session)
        else:
            say(pipe, getattr(lock_service, word)(*arguments))
