"""The servers that benchmarks start: oracles, ZooKeeper, Bigtable's emulator, HBase's jars.

Each is a separate process, as a user starts it, and ends with its `with` block.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import percola
from percola import StoreError
from percola.connect.cluster import credentials
from percola.devcluster import Cluster, jars
from percola.oracle.client import NetworkOracle

ROOT: Final = Path(__file__).resolve().parents[1]
_DEADLINE: Final = 180.0


class ServerError(percola.PercolaError):
    """A server that a benchmark needs is missing or does not start."""


def reason(told: Mapping[str, Any]) -> str:
    """Why a command of percola's has ended, by what it printed with `--json`."""
    return str(told.get("error", {}).get("message", "it said nothing."))


class _ServerProcess:
    """A process of a command of percola's that serves at an address; ServerError if it does not.

    Args:
        arguments: of `percola`.
        prefix: what the command begins with: to run it somewhere else.
    """

    def __init__(self, arguments: Sequence[str], prefix: Sequence[str] = ()) -> None:
        source = str(Path(percola.__file__).parents[1])
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "percola.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": source},
            text=True,
        )
        assert self.process.stdout is not None
        try:
            told = json.loads(self.process.stdout.readline() or "{}")
            if "address" not in told:
                raise ServerError(f"'percola {' '.join(arguments)}' ended at once: {reason(told)}")
        except BaseException:
            self.kill()  # Who is interrupted here has nothing yet to end it by.
            raise
        self.address: str = told["address"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as kill -9 does; harmless if it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class OracleProcess(_ServerProcess):
    """A process of `percola oracle`; a context manager that ends it.

    Args:
        store: the address of the store alone.
        listen: HOST:PORT; port 0 for a free one, which `address` then tells. Beyond loopback this
            process's environment has to name a token, as that of a client does.
        lease: seconds.
        prefix: what the command begins with: to run it somewhere else.

    Raises:
        ServerError: it ended at once.
    """

    def __init__(
        self,
        store: str,
        listen: str = "127.0.0.1:0",
        *,
        lease: float = 3.0,
        prefix: tuple[str, ...] = (),
    ) -> None:
        oracle = ["oracle", "--listen", listen, "--lease", str(lease)]
        super().__init__(["--repo", store, "--json", *oracle], prefix)

    @property
    def hands_out(self) -> bool:
        """Whether it is the active oracle and not on standby."""
        oracle = NetworkOracle(
            [self.address], timeout_seconds=0.05, request_seconds=2.0, **credentials()
        )
        try:
            oracle.timestamp()
        except StoreError:
            return False
        finally:
            oracle.close()
        return True


class RelayProcess(_ServerProcess):
    """A process of `percola relay`; a context manager that ends it.

    Args:
        address: the store's, with its oracles.

    Raises:
        ServerError: it ended at once.
    """

    def __init__(self, address: str) -> None:
        super().__init__(["--repo", address, "--json", "relay", "--listen", "127.0.0.1:0"])


def leader(oracles: list[OracleProcess]) -> OracleProcess:
    """The active oracle; waits until there is one."""
    end = time.monotonic() + _DEADLINE
    while time.monotonic() < end:
        for one in oracles:
            if one.process.poll() is None and one.hands_out:
                return one
        time.sleep(0.05)  # Another process's state: there is nothing here to wait on.
    raise ServerError(f"None of the oracles has handed out a timestamp for {_DEADLINE:.0f} s.")


@contextmanager
def small_cluster(folder: Path) -> Iterator[Cluster]:
    """HBase with one region server and one DataNode. Raises ServerError if its jars are missing."""
    try:
        jars.install_all()
    except jars.JarsError as error:
        raise ServerError(str(error)) from error
    with Cluster.small(folder) as cluster:
        yield cluster


@contextmanager
def zookeeper(folder: Path) -> Iterator[str]:
    """ZooKeeper by itself: that of a development cluster of which nothing else runs; HOST:PORT."""
    jars.install_all()
    cluster = Cluster.small(folder)
    folder.mkdir(parents=True, exist_ok=True)
    server = cluster.process("zookeeper")
    server.start()
    try:
        _await_port(f"ZooKeeper, whose log is {server.log},", lambda: server.runs, server.port)
        yield cluster.quorum
    finally:
        server.kill()


@contextmanager
def emulator(host: str = "127.0.0.1") -> Iterator[str]:
    """Bigtable's emulator, named to all clients by the environment; HOST:PORT."""
    script = ROOT / "scripts" / "bigtable_emulator.sh"
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerError(done.stderr.strip() or f"{script} failed.")
    program = done.stdout.strip()
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [program, "-host", host, "-port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    before = os.environ.get("BIGTABLE_EMULATOR_HOST")
    os.environ["BIGTABLE_EMULATOR_HOST"] = f"{host}:{port}"
    try:
        _await_port(program, lambda: process.poll() is None, port, host)
        yield f"{host}:{port}"
    finally:
        if before is None:
            del os.environ["BIGTABLE_EMULATOR_HOST"]
        else:
            os.environ["BIGTABLE_EMULATOR_HOST"] = before
        process.kill()
        process.wait()


def _await_port(what: str, runs: Callable[[], bool], port: int, host: str = "127.0.0.1") -> None:
    """Return once it listens there; ServerError if it does not, or does not run any more."""
    end = time.monotonic() + _DEADLINE
    while True:
        # Asked first: what has ended may have left its port to another program.
        if not runs():
            raise ServerError(f"{what} ended at once instead of listening on port {port}.")
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        if time.monotonic() > end:
            raise ServerError(f"Nothing listens on port {port} after {_DEADLINE:.0f} s.")
        time.sleep(0.02)  # Nothing tells when a server begins to listen.
