"""A real ZooKeeper for tests, from the jars that come with pyspark, ended by its process id.

    with ZooKeeper(folder, java_home) as server:
        server.kill(); server.start()      # on the same port and data
        server.pause(); server.resume()

A tick is a second, so sessions last from 2 to 20 seconds.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

import pyspark
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from server_process import ServerProcess, free_port

TICK_SECONDS: Final = 1.0

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


class ZooKeeper(ServerProcess):
    """One server that runs.

    Args:
        folder: for its data and what it prints.
        java_home: of the Java that runs it.
        absent: how many other servers its ensemble is said to have. They are never started, so
            with any the server listens and serves nobody.
    """

    deadline = 90.0

    def __init__(self, folder: Path, java_home: Path, *, absent: int = 0) -> None:
        self._folder = folder
        self._java = java_home / "bin" / "java"
        self._absent = absent
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        with (self._folder / "printed").open("ab") as printed:
            return subprocess.Popen(
                self._command(port),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )

    def _is_ready(self, connection: socket.socket) -> bool:
        connection.sendall(b"ruok")
        return connection.recv(4) == b"imok" and (self._absent > 0 or _serves_clients(connection))

    def _printed(self) -> str:
        return (self._folder / "printed").read_text(errors="replace")

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

    def forget(self) -> None:
        """Remove its data; only while it does not run."""
        assert self._process is None
        shutil.rmtree(self._folder / "data")


def _serves_clients(connection: socket.socket) -> bool:
    """Whether a session can be opened and can write.

    A server answers `ruok` before it has loaded the classes that serve a session. On a busy
    machine its first session took up to 4 seconds, the second one 0.3.
    """
    host, port = connection.getpeername()
    client = KazooClient(f"{host}:{port}", timeout=10.0)
    try:
        client.start(timeout=20.0)
        client.create("/warm-up", ephemeral=True)
        client.delete("/warm-up")
    except (KazooTimeoutError, KazooException):
        return False
    finally:
        client.stop()
        client.close()
    return True
