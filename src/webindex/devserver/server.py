"""One OpenSearch process of a folder: started, killed and ended by its process id."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from percola.devcluster import choose_ports, find_java, pids
from webindex.errors import WebindexError

SCRIPT: Final = Path(__file__).with_name("opensearch.sh")
HEAP_MB: Final = 512
READY_SECONDS: Final = 120.0
GRACE_SECONDS: Final = 30.0

_NAME: Final = "opensearch"
_PORTS: Final = range(21_000, 31_000, 40)

_SETTINGS: Final = """\
cluster.name: webindex
node.name: one
discovery.type: single-node
network.host: 127.0.0.1
http.port: {http}
transport.port: {transport}
path.data: {folder}/data
path.logs: {folder}/logs
node.store.allow_mmap: false
cluster.routing.allocation.disk.threshold_enabled: false
"""

# Without native code, which only locks memory and drops system calls; it also refuses to run as
# root, which a container often is.
_OPTIONS: Final = (
    "-Djna.nosys=true",
    "-Djna.noclasspath=true",
    "-Djna.boot.library.path=/nonexistent",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dfile.encoding=UTF-8",
    "-Dio.netty.noUnsafe=true",
    "-Dio.netty.noKeySetOptimization=true",
    "-Dio.netty.allocator.numDirectArenas=0",
    "-Dlog4j.shutdownHookEnabled=false",
    "-Dlog4j2.disable.jmx=true",
    "-Djava.locale.providers=SPI,COMPAT",
    "-Dopensearch.distribution.type=zip",
    "-Dopensearch.bundled_jdk=false",
)


class ServerError(WebindexError):
    """OpenSearch cannot be fetched or started; no process is left."""


def install(tell: Callable[[str], object] = lambda line: None) -> Path:
    """Fetch OpenSearch unless it is here; its folder.

    Raises:
        ServerError: no Maven, or it fails; nothing is left half fetched.
    """
    shell = shutil.which("bash")
    if shell is None:
        raise ServerError("Fetching OpenSearch takes bash, which is not here: install it.")
    done = subprocess.run(
        [shell, SCRIPT, "install"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stderr.splitlines():
        tell(line)
    if done.returncode:
        raise ServerError((done.stderr.strip() or "OpenSearch cannot be had.").splitlines()[-1])
    return Path(done.stdout.strip())


class OpenSearchServer:
    """The server of a folder.

    Args:
        folder: where everything of it is.
        port: where it listens; by default what it had before, or a free one.
        heap_mb: memory for Java's heap.
    """

    def __init__(self, folder: Path, *, port: int | None = None, heap_mb: int = HEAP_MB) -> None:
        self.folder = folder.absolute()
        self._file = self.folder / "port"
        self._port = port or self._noted_port() or choose_ports(self.folder, _PORTS)
        self._heap = heap_mb
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The URL of the server; that of an index is `ADDRESS/NAME`."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def log(self) -> Path:
        """What the process has printed."""
        return self.folder / "logs" / "output.txt"

    def pid(self) -> int | None:
        """The id of its process, if it runs."""
        process = pids.noted(self.folder, _NAME)
        return process.pid if process else None

    def start(self, tell: Callable[[str], object] = lambda line: None) -> None:
        """Start it unless it runs, and return once it answers.

        Raises:
            ServerError: it cannot be fetched, or did not answer in time; nothing is left running.
                Or it runs, and listens on another port: it goes on.
            ClusterError: no Java 17, or no free ports.
        """
        noted = self._noted_port()
        if self.pid() is not None and noted != self._port:
            raise ServerError(
                f"OpenSearch runs in {self.folder} already, and listens on port {noted}: end it "
                f"first, with 'webindex dev-opensearch down --folder {self.folder}'."
            )
        home, java = install(tell), find_java()
        if self.pid() is None:
            try:
                self._launch(home, java)
            except OSError as error:
                raise ServerError(
                    f"OpenSearch cannot be started in {self.folder}: {error}."
                ) from error
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if self.pid() is None or time.monotonic() > deadline:
                self.kill()
                raise ServerError(
                    f"OpenSearch did not start: {self._last_line()} Its output is in {self.log}."
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as kill -9 does, and return once it is gone; harmless if it is."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it, and return once it is gone; harmless if it is."""
        self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        self.start()
        me = pids.ProcessId.of(os.getpid())
        assert me is not None
        guard = [sys.executable, pids.__file__, str(self.folder), str(me.pid), str(me.began)]
        self._guard = subprocess.Popen(guard, stdout=subprocess.DEVNULL, start_new_session=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._guard.kill()
        self._guard.wait()
        self.stop()

    def _noted_port(self) -> int | None:
        """Where the server of the folder listens, or did when it ran."""
        try:
            return int(self._file.read_text())
        except (OSError, ValueError):
            return None

    def _launch(self, home: Path, java: Path) -> None:
        conf = self.folder / "conf"
        for needed in (conf, self.folder / "data", self.folder / "logs", self.folder / "tmp"):
            needed.mkdir(parents=True, exist_ok=True)
        shutil.copy(home / "config" / "log4j2.properties", conf)
        (conf / "opensearch.yml").write_text(
            _SETTINGS.format(http=self._port, transport=self._port + 1, folder=self.folder)
        )
        self._file.write_text(f"{self._port}\n")
        command = [
            str(java),
            f"-Xms{self._heap}m",
            f"-Xmx{self._heap}m",
            *_OPTIONS,
            f"-Djava.io.tmpdir={self.folder}/tmp",
            f"-Dopensearch.path.home={home}",
            f"-Dopensearch.path.conf={conf}",
            *pids.marks(self.folder, _NAME),
            *("-cp", f"{home}/lib/*", "org.opensearch.bootstrap.OpenSearch"),
        ]
        with open(self.log, "wb") as said:
            self._child = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a shell is for the program that started it.
                start_new_session=True,
            )
        pids.note(self.folder, _NAME, pids.ProcessId.of_child(self._child.pid))

    def _end(self, number: int) -> None:
        process = pids.noted(self.folder, _NAME)
        if process is not None:
            process.signal(number)
            if not process.wait(GRACE_SECONDS):
                process.signal(signal.SIGKILL)
                process.wait(None)
        if self._child is not None:
            self._child.wait()
            self._child = None
        pids.forget(self.folder, _NAME)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/", timeout=5):
                return self.pid() is not None
        except (urllib.error.URLError, OSError):
            return False

    def _last_line(self) -> str:
        try:
            return self.log.read_text(errors="replace").strip().splitlines()[-1][:300]
        except (OSError, IndexError):
            return "it said nothing."
