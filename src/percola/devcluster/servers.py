"""The development cluster's servers: started by name, killed, stopped, resumed, started again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from percola.devcluster import pids, settings
from percola.devcluster.pids import ProcessId
from percola.devcluster.settings import ClusterError, Layout

GRACE: Final = 12.0
"""Seconds that a server has to end by itself in, before it is killed."""

_LITTLE: Final = 1024 * 1024
"""Bytes of a disk that is full: a process may not even have had room to say why it ended."""


class State(NamedTuple):
    """The state of a server.

    Attributes:
        name: which one.
        pid: its process id; None if it does not run.
        port: where its clients reach it.
        resident: bytes of memory that it has.
        stopped: whether it is paused (`Server.stop`).
    """

    name: str
    pid: int | None
    port: int
    resident: int
    stopped: bool


class Processes:
    """The processes of the cluster in a folder, as this program starts and ends them.

    Args:
        folder: the cluster's.
        layout: which processes there are, and on which ports.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder = folder
        self.layout = layout
        self.logs = folder / "logs"
        # The processes that this program started, and so must wait for.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()

    def id(self, name: str) -> ProcessId | None:
        """The process of this name, if it runs."""
        return pids.noted(self.folder, name)

    def log(self, name: str) -> Path:
        """The file that the process of this name logs to."""
        return self.logs / f"{name}.log"

    def start(self, name: str) -> None:
        """Start the process of this name, which does not run.

        Raises:
            ClusterError: no Java, no jars, or something else listens on one of its ports.
        """
        java, jars = settings.find_java(), settings.find_jars()
        self.check_ports([name])
        settings.write_files(self.folder, self.layout, name)
        self.note_end(name)
        out = self.log(name).with_suffix(".out")
        for file in (self.log(name), out):
            if file.exists():  # what it says from now on is looked for in these
                file.replace(file.with_name(f"{file.name}.before"))
        with self._lock, open(out, "wb") as said:
            child = self._children[name] = subprocess.Popen(
                settings.command(self.folder, self.layout, name, java),
                env=settings.environment(self.folder, name, jars),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a shell is for whoever started the servers, not for them.
                start_new_session=True,
            )
            try:
                pids.note(self.folder, name, ProcessId.of_child(child.pid))
            except BaseException:  # As on a full disk: nobody would know of it.
                child.kill()
                child.wait()
                raise

    def finish(self, name: str, seconds: float) -> bool:
        """Wait for the end of a process that this program started; whether all went well."""
        try:
            return self._children[name].wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.kill(name)

    def kill(self, name: str) -> None:
        """End a process as kill -9 does, and return once it is gone; harmless if it is."""
        process = self.id(name)
        if process is not None:
            process.signal(signal.SIGKILL)
            process.wait(None)
        self.note_end(name)

    def kill_all(self) -> None:
        """The same with every process of the cluster, whoever started it; the guard stays."""
        pids.end_all(self.folder)
        for name in (*self.layout.names, "format"):
            self.note_end(name)

    def note_end(self, name: str) -> None:
        """Take note that a process has ended; harmless if it runs."""
        with self._lock:
            child = self._children.get(name)
            if child is not None and child.poll() is not None:
                del self._children[name]
            if self.id(name) is None:
                pids.forget(self.folder, name)

    def check_ports(self, names: Iterable[str]) -> None:
        """Raise ClusterError if a process of these could not listen on its ports."""
        host = self.layout.host
        if host == "0.0.0.0":
            raise ClusterError(
                f"The cluster in {self.folder} cannot listen at 0.0.0.0: HBase's servers tell "
                "their clients where they listen, and to clients on other machines that would mean "
                "their own. Name the address by which they reach this machine."
            )
        try:
            socket.create_server((host, 0)).close()
        except OSError as error:
            raise ClusterError(
                f"The cluster in {self.folder} cannot listen at {host} "
                f"({error.strerror or error}): name an IPv4 address of this machine."
            ) from error
        for name in names:
            if name in self.layout.away:
                continue  # Its ports are those of another network.
            for port in self.layout.ports(name):
                if not settings.becomes_free(port, host=self.layout.host):
                    raise ClusterError(
                        f"Port {port}, on which {name} of the cluster in {self.folder} listens, "
                        f"is taken by another process: end that (`ss -ltnp 'sport = {port}'` "
                        "names it), or make a cluster in another folder."
                    )

    def last_words(self, name: str) -> str:
        """The line that explains why a process ended, and the path of its log."""
        log = self.log(name)
        out = log.with_suffix(".out")
        lines = [line for file in (out, log) if file.exists() for line in _lines(file)]
        telling = [line for line in lines if re.search(r" (ERROR|FATAL) |^Error|Exception", line)]
        last = (telling or lines or ["it said nothing"])[-1].strip()
        if shutil.disk_usage(self.folder).free < _LITTLE:
            last = f"the disk is full; {last}"
        return f"{last[:500]}\nIts log: {log if log.exists() else out}"

    def start_guard(self) -> None:
        """Start the guard, which stops the cluster when this program ends, for whatever reason.

        Raises:
            ClusterError: the guard does not start.
        """
        own = ProcessId.of(os.getpid())
        assert own is not None, "this process runs"
        self.logs.mkdir(parents=True, exist_ok=True)
        errors = self.logs / "guard.out"
        with open(errors, "wb") as said:
            guard = self._children[pids.GUARD] = subprocess.Popen(
                [sys.executable, "-I", pids.__file__, self.folder, str(own.pid), str(own.began)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
        assert guard.stdout is not None
        with guard.stdout as answer:
            watching = answer.readline()
        pids.note(self.folder, pids.GUARD, ProcessId.of_child(guard.pid))
        if not watching:
            self.kill(pids.GUARD)
            raise ClusterError(
                f"The guard of the cluster in {self.folder} did not start: {errors} says why."
            )

    def end_guard(self) -> None:
        """End the guard; harmless if there is none."""
        guard = self._children.get(pids.GUARD)
        if guard is not None:
            guard.kill()
            guard.wait()
        self.note_end(pids.GUARD)


class Server:
    """One process of a cluster, by name; it may have ended, and may be started again."""

    def __init__(self, processes: Processes, name: str) -> None:
        self._processes = processes
        self.name = name

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            ClusterError: it does not run.
        """
        return self._running().pid

    @property
    def runs(self) -> bool:
        """Whether it runs; also while it is stopped."""
        return self._processes.id(self.name) is not None

    @property
    def port(self) -> int:
        """Where its clients reach it, on its address."""
        return self._processes.layout.ports(self.name)[0]

    @property
    def log(self) -> Path:
        """The file that it logs to."""
        return self._processes.log(self.name)

    @property
    def state(self) -> State:
        """What it does now."""
        process = self._processes.id(self.name)
        if process is None:
            return State(self.name, None, self.port, 0, stopped=False)
        return State(self.name, process.pid, self.port, process.resident, process.stopped)

    def start(self) -> None:
        """Start it, with the settings and the data that it had; harmless if it runs.

        It then needs some seconds: `Cluster.await_ready` waits for that.

        Raises:
            ClusterError: no Java, no jars, or something else listens on one of its ports.
        """
        if not self.runs:
            self._processes.start(self.name)

    def kill(self) -> None:
        """End it as kill -9 does, and return once it is gone; harmless if it does not run."""
        self._processes.kill(self.name)

    def end(self, seconds: float = GRACE) -> None:
        """Ask it to end, as an operator does, and kill it if it has not done so in time."""
        if (process := self._processes.id(self.name)) is not None:
            ask_to_end(process)
            process.wait(seconds)
        self.kill()

    def stop(self) -> None:
        """Pause it: it keeps its connections and answers nothing, until `resume`.

        Raises:
            ClusterError: it does not run.
        """
        process = self._running()
        process.signal(signal.SIGSTOP)
        while process.runs and not process.stopped:
            time.sleep(0.001)

    def resume(self) -> None:
        """Resume it after `stop`.

        Raises:
            ClusterError: it does not run.
        """
        self._running().signal(signal.SIGCONT)

    def _running(self) -> ProcessId:
        process = self._processes.id(self.name)
        if process is None:
            raise ClusterError(
                f"{self.name} of the cluster in {self._processes.folder} does not run."
            )
        return process


def ask_to_end(process: ProcessId) -> None:
    """Send SIGTERM, also to a stopped process, which receives it once it resumes."""
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGCONT)


def _lines(file: Path) -> Iterator[str]:
    with open(file, errors="replace") as text:
        yield from (line for line in text if line.strip())
