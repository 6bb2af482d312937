"""A server of a test's own: a process on a free port, which is killed, paused and started again."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Self


class ServerProcess(ABC):
    """A server that runs; a context manager that ends it.

    Args:
        port: where it listens; 0 for a free port.
    """

    deadline: ClassVar[float] = 60.0
    """Seconds until it answers after its start, and until it has ended."""

    def __init__(self, port: int = 0) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port
        self.start()

    @abstractmethod
    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        """Start the process."""

    def _is_ready(self, connection: socket.socket) -> bool:
        """Whether a server that takes connections answers too."""
        return True

    def _printed(self) -> str:
        """What it has said of why it does not start."""
        return ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it does not run"
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, on the port that it had before if there was one."""
        for _ in range(5):
            port = self.port or free_port()
            self._process = self._launch(port)
            if self._answers(port):
                self.port = port
                return
            self.kill()
        raise AssertionError(f"{type(self).__name__} does not start:\n{self._printed()[-3000:]}")

    def _answers(self, port: int) -> bool:
        """Whether it answers before the deadline; False as soon as it has ended."""
        end = time.monotonic() + self.deadline
        ended = os.pidfd_open(self.process.pid)
        try:
            while time.monotonic() < end:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=2) as connection,
                ):
                    if self._is_ready(connection):
                        return True
                if select.select([ended], [], [], 0.02)[0]:
                    return False
        finally:
            os.close(ended)
        return False

    def kill(self) -> None:
        """kill -9; harmless if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(self.deadline)
            self._process = None

    def pause(self) -> None:
        """Let it hang: it keeps its connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on after a pause."""
        self.process.send_signal(signal.SIGCONT)


def free_port() -> int:
    """A port on which nothing listens just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port of 127.0.0.1 where connections are neither taken nor refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port: int = full.getsockname()[1]
        # What fits into the backlog; the kernel drops the SYN of any connection after that.
        with socket.create_connection(("127.0.0.1", port)):
            yield port
