"""Google's emulator of Cloud Bigtable for tests: started on a free port, ended by its process.

    with Emulator() as emulator:
        store = emulator.store()

One emulator serves a whole test module; every call of `store` without a name makes an instance
that nobody else has. `Relay` stands between a store and the emulator and cuts connections at
chosen moments: that is how a test loses a reply. `StandIn` answers what no emulator does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
from needs import lack, need
from server_process import ServerProcess

from percola import Repository, Table
from percola.coordination.memory import MemoryCoordination
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import Store
from percola.store.bigtable.client import Place
from percola.store.bigtable.store import BigtableStore
from percola.store.memory import MemoryStore

ROOT: Final = Path(__file__).parents[2]
DEADLINE: Final = 60.0

_instances = itertools.count(1)


def emulator_program() -> str:
    """The path of the emulator."""
    need("bigtable")
    script = ROOT / "scripts" / "bigtable_emulator.sh"
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    if done.returncode:
        lack("bigtable", done.stderr)
    return done.stdout.strip()


class Emulator(ServerProcess):
    """A running emulator; everything in it is gone when it ends."""

    def __init__(self, port: int = 0) -> None:
        self._program = emulator_program()
        super().__init__(port)

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._program, "-host", "127.0.0.1", "-port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def place(self, instance: str = "", address: str = "") -> Place:
        """Where a store finds this emulator (or a relay to it)."""
        return Place(
            "percola-test",
            instance or f"instance-{os.getpid()}-{next(_instances)}",
            emulator=address or self.address,
        )

    def store(
        self, instance: str = "", address: str = "", *, tables: Iterable[str] = (), **options: Any
    ) -> BigtableStore:
        """A store with these tables in the instance of this name; without one in its own."""
        store = BigtableStore(self.place(instance, address), **options)
        if tables:
            store.create_tables(tables)
        return store


class Relay:
    """Passes bytes on between clients and the emulator, until it is told to cut.

    What a client asks for always reaches the server. `cut_answer(n)` has the connection closed
    instead of passing on the piece number n (from 0) of what the server answers from then on.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._guard = threading.Lock()
        self._left: int | None = None
        self._open: set[socket.socket] = set()
        self._closed = False
        self.cut = 0
        """How many connections were cut."""
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            ends, self._open = self._open, set()
        for end in ends:
            _close(end)

    def cut_answer(self, after: int = 0) -> None:
        """Cut the connection at a piece of an answer, `after` pieces from now."""
        with self._guard:
            self._left = after

    def disarm(self) -> None:
        """Pass everything on from now on."""
        with self._guard:
            self._left = None

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, timeout=DEADLINE)
            except OSError:
                continue
            server.settimeout(None)
            with self._guard:
                self._open |= {client, server}
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pump, args=(source, sink, answers), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self._cuts(data):
                    break
                sink.sendall(data)
        for end in (source, sink):
            _close(end)
        with self._guard:
            self._open -= {source, sink}

    def _cuts(self, data: bytes) -> bool:
        # Pings and window updates of the protocol are no answers; they are short, and what comes in
        # one piece with others may begin in the middle of a frame.
        with self._guard:
            if self._left is None or not (
                len(data) > 1000 or any(kind in (0, 1) for kind in _frames(data))
            ):
                return False
            self._left -= 1
            if self._left >= 0:
                return False
            self._left = None
            self.cut += 1
            return True


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _frames(data: bytes) -> Iterator[int]:
    """The types of the HTTP/2 frames that begin in a piece of a connection."""
    at = 0
    while at + 9 <= len(data):
        yield data[at + 3]
        at += 9 + int.from_bytes(data[at : at + 3], "big")


class StandIn:
    """A server in Google's place that answers as it is told, and that nothing else is there.

    Args:
        answers: by the method's full name, the message to answer with or the status to fail with,
            alone or with what is said of it; or an iterator of such answers.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self.asked: list[str] = []
        self.requests: list[bytes] = []
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait(DEADLINE)

    def service(self, details: Any) -> Any:
        """gRPC asks who handles a method."""
        answer = self._answers.get(details.method, grpc.StatusCode.NOT_FOUND)
        answer = next(answer) if isinstance(answer, Iterator) else answer
        streams = details.method.endswith(("ReadRows", "MutateRows", "SampleRowKeys"))

        def respond(request: bytes, context: grpc.ServicerContext) -> Any:
            self.asked.append(details.method.rpartition("/")[2])
            self.requests.append(request)
            if isinstance(answer, tuple):
                context.abort(*answer)
            if isinstance(answer, grpc.StatusCode):
                context.abort(answer, "the stand-in says so")
            data = answer.SerializeToString()
            return iter([data]) if streams else data

        make = (
            grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        )
        return make(respond)


def repository(
    store: Store, tables: Iterable[Table[Any]], oracle: Oracle | None = None
) -> Repository:
    """A repository on a store in an emulator; its timestamps come from memory."""
    oracle = oracle or EmbeddedOracle(MemoryStore())
    return Repository("bigtable", store, oracle, MemoryCoordination(), tables, one_step=False)
