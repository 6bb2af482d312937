"""An oracle's service in this process, a client of it, and what holds back its answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stores import DEADLINE

from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer
from percola.store.memory import MemoryStore

WaitUntil = Callable[..., object]
HERE = "127.0.0.1:0"


@pytest.fixture
def server(wait_until: WaitUntil) -> Iterator[OracleServer]:
    with OracleServer(MemoryStore(), HERE) as running:
        wait_until(lambda: running.ranges.holds)
        yield running


@pytest.fixture
def oracle(server: OracleServer) -> Iterator[NetworkOracle]:
    made = NetworkOracle([server.address])
    yield made
    made.close()


class Held:
    """Holds back the draws of a server until it is told to let them go."""

    def __init__(self, server: OracleServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        self.came = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        draw = server.ranges.draw

        def held(count: int, timeout: float = 0.0) -> Any:
            self.counts.append(count)
            self.came.release()
            assert self.go.acquire(timeout=DEADLINE)
            return draw(count, timeout)

        monkeypatch.setattr(server.ranges, "draw", held)
