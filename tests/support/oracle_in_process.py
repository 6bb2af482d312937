"""An oracle's service in this process, a client of it, and what holds back its answers."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from children import wait_in_child

from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer
from percola.store.base import Store
from percola.store.memory import MemoryStore

HERE = "127.0.0.1:0"


@contextmanager
def leading(
    listen: str = HERE, store: Store | None = None, **options: Any
) -> Iterator[OracleServer]:
    """An oracle's service that hands out timestamps, on a store of its own if none is named."""
    with OracleServer(store or MemoryStore(), listen, **options) as running:
        wait_in_child(lambda: running.ranges.holds, what="the oracle's lease")
        yield running


@pytest.fixture
def server() -> Iterator[OracleServer]:
    with leading() as running:
        yield running


@pytest.fixture
def oracle(server: OracleServer) -> Iterator[NetworkOracle]:
    made = NetworkOracle([server.address])
    yield made
    made.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with server.pem, server.key, client.pem and client.key, each signed by itself."""
    folder = tmp_path_factory.mktemp("certificates")
    fresh = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for name in ("server", "client"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2")
        named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
        command = ("openssl", *fresh, *files, *named)
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


class Held:
    """Holds back the draws of a server until it is told to let them go."""

    def __init__(self, server: OracleServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        self.came = threading.Semaphore(0)
        self._may_go = threading.Semaphore(0)
        self._server = server
        answer = server._answer

        def held(number: int, count: int, **waited: bool) -> Any:
            if not waited:
                self.counts.append(count)
                self.came.release()
            # Unanswered it waits with those for which the range is too short.
            return answer(number, count) if self._may_go.acquire(blocking=False) else None

        monkeypatch.setattr(server, "_answer", held)

    def release(self, number: int = 1) -> None:
        """Let so many draws go, those that come later among them."""
        self._may_go.release(number)
        self._server._server.wake()
