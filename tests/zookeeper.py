"""A real ZooKeeper for tests, from the jars that come with pyspark, ended by its process id.

    with ZooKeeper(folder, java_home) as server:
        server.kill(); server.start()      # on the same port and data
        server.pause(); server.resume()

A tick is a second, so sessions last from 2 to 20 seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

import pyspark

TICK_SECONDS: Final = 1.0
DEADLINE: Final = 90.0

_JARS: Final = (
    "audience-annotations-*",
    "commons-io-*",
    "log4j-api-*",
    "log4j-core-*",
    "log4j-slf4j2-impl-*",
    "metrics-core-*",
    "netty-*",
    "slf4j-api-*",
    "snappy-java-*",
    "zookeeper-*",
)


class ZooKeeper:
    """One server that runs.

    Args:
        folder: for its data and what it prints.
        java_home: of the Java that runs it.
        absent: how many other servers its ensemble is said to have. They are never started, so
            with any the server listens and serves nobody.
    """

    def __init__(self, folder: Path, java_home: Path, *, absent: int = 0) -> None:
        self._folder = folder
        self._java = java_home / "bin" / "java"
        self._absent = absent
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> ZooKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it on the data that it has, on the port that it had before if there was one."""
        for _ in range(5):
            port = self.port or free_port()
            with (self._folder / "printed").open("ab") as printed:
                self._process = subprocess.Popen(
                    self._command(port),
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                )
            if self._listens(port):
                self.port = port
                return
            self.kill()
        printed_text = (self._folder / "printed").read_text(errors="replace")
        raise AssertionError(f"ZooKeeper does not start:\n{printed_text[-3000:]}")

    def _command(self, port: int) -> list[str]:
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        lines = [
            f"tickTime={int(TICK_SECONDS * 1000)}",
            f"dataDir={data}",
            "clientPortAddress=127.0.0.1",
            f"clientPort={port}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok",
            "maxClientCnxns=0",
            "initLimit=5",
            "syncLimit=2",
        ]
        if self._absent:
            (data / "myid").write_text("1\n")
            lines += [
                f"server.{one}=127.0.0.1:{free_port()}:{free_port()}"
                for one in range(1, self._absent + 2)
            ]
        config = self._folder / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n")
        jars = Path(pyspark.__file__).parent / "jars"
        found = [str(jar) for pattern in _JARS for jar in sorted(jars.glob(f"{pattern}.jar"))]
        return [
            str(self._java),
            "-Xmx128m",
            # What a killed server has written stands in the page cache; a busy disk takes seconds.
            "-Dzookeeper.forceSync=no",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            ":".join(found),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]

    def _listens(self, port: int) -> bool:
        """Whether it answers before the deadline; False as soon as it has ended."""
        process = self._process
        assert process is not None
        end = time.monotonic() + DEADLINE
        ended = os.pidfd_open(process.pid)
        try:
            while time.monotonic() < end:
                with contextlib.suppress(OSError), _connect(port) as asked:
                    asked.sendall(b"ruok")
                    if asked.recv(4) == b"imok":
                        return True
                if select.select([ended], [], [], 0.05)[0]:
                    return False
        finally:
            os.close(ended)
        return False

    def kill(self) -> None:
        """kill -9; harmless if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE)
            self._process = None

    def forget(self) -> None:
        """Remove its data; only while it does not run."""
        assert self._process is None
        shutil.rmtree(self._folder / "data")

    def pause(self) -> None:
        """Let it hang: it keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on after a pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=2)


def free_port() -> int:
    """A port on which nothing listens just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
