"""§2.3 Clients of release 0.1, which speak gRPC: timestamps for them during a rolling upgrade.

    an oracle of this release
      port 7070 ── "percola\\n" ─► the loop
               └── HTTP/2 ──────► a socket in a private folder ─► gRPC's server ─► the same ranges

Oracles are upgraded first, then their clients: those of this release speak no gRPC. Until then the
former ones get timestamps here; without the lock service they work as if it were down, so that
their workers find what others write by scanning. What is here leaves with the next release.

It takes the package grpcio, which an installation of 0.1 has. It is loaded when the first such
client comes.
"""

from __future__ import annotations

import hmac
import importlib.util
import logging
import select
import shutil
import socket
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from percola.oracle.ranges import Ranges, Refused
from percola.platform.fork_safety import GRPC

log = logging.getLogger("percola.oracle")

_STREAMS: Final = 2000
"""Client processes; each has a stream, which takes a thread that mostly waits."""
_DRAW_TIMEOUT: Final = 1.0
_READ: Final = 65_536
_LACKS: Final = (
    "This oracle is newer: upgrade this process, or pip install grpcio where the oracle runs"
)
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", 1024),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
]


class FormerClients:
    """Serves clients of release 0.1. Nothing runs before the first one comes.

    Args:
        ranges: what hands out timestamps.
        token: the token that clients must show; empty: none.
        count: called for each answered request with the number of timestamps.
    """

    def __init__(self, ranges: Ranges, token: str, count: Callable[[int], object]) -> None:
        self._ranges = ranges
        self._expected = f"Bearer {token}".encode() if token else b""
        self._count = count
        self._guard = threading.Lock()
        self._server: Any = None
        self._relay: _Relay | None = None
        self._folder = ""
        self._is_stopped = False

    def take(self, connected: socket.socket, raw: bytes) -> str:
        """Serve a connection of which `raw` was read; a sentence if it is not served."""
        if importlib.util.find_spec("grpc") is None:
            return _LACKS
        # It takes a moment to load, during which others are greeted.
        threading.Thread(
            target=self._take, args=(connected, raw), name="oracle-former", daemon=True
        ).start()
        return ""

    def _take(self, connected: socket.socket, raw: bytes) -> None:
        try:
            with self._guard:
                if self._is_stopped:
                    connected.close()
                    return
                if self._relay is None:
                    log.warning(
                        "clients of Percola 0.1 are connected: upgrade them once all oracles are"
                    )
                    path = self._start()
                    self._relay = _Relay(path)
                self._relay.add(connected, raw)
        except Exception:
            log.exception("a client of Percola 0.1 cannot be served")
            connected.close()

    def _start(self) -> str:
        GRPC.begin_use("An oracle's service for clients of Percola 0.1")
        import grpc

        self._folder = tempfile.mkdtemp(prefix="percola-oracle-")  # Only this user may enter it.
        path = str(Path(self._folder) / "socket")
        server = grpc.server(
            ThreadPoolExecutor(_STREAMS), options=_OPTIONS, maximum_concurrent_rpcs=_STREAMS
        )
        draw = grpc.stream_stream_rpc_method_handler(
            self._draw, request_deserializer=_count, response_serializer=_reply
        )
        handler = grpc.method_handlers_generic_handler("percola.Oracle", {"Draw": draw})
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._server = server
        return path

    def _draw(self, counts: Iterator[int], context: Any) -> Iterator[tuple[int, int, str]]:
        from grpc import StatusCode

        shown = dict(context.invocation_metadata()).get("authorization", "")
        if self._expected and not hmac.compare_digest(shown.encode(), self._expected):
            context.abort(StatusCode.UNAUTHENTICATED, "The token is missing or wrong.")
        for asked in counts:
            count = min(asked, self._ranges.size)
            found = self._ranges.draw(count, _DRAW_TIMEOUT) if count else self._ranges.last()
            if isinstance(found, Refused):
                code = StatusCode.FAILED_PRECONDITION if found.elsewhere else StatusCode.UNAVAILABLE
                context.abort(code, found.why)
                raise AssertionError("abort raises")
            self._count(count)
            yield found, count, self._ranges.source

    def stop(self) -> None:
        """End all connections. Idempotent."""
        with self._guard:
            self._is_stopped = True
            server, relay, folder = self._server, self._relay, self._folder
            self._server = self._relay = None
        if relay is not None:
            relay.stop()
        if server is not None:
            server.stop(None).wait(2)
            shutil.rmtree(folder, ignore_errors=True)


class _End:
    """One of the two connections of a client, and what it has not taken yet."""

    __slots__ = ("other", "socket", "unsent")

    def __init__(self, connected: socket.socket, unsent: bytes) -> None:
        self.socket = connected
        self.unsent = unsent
        self.other: _End


class _Relay:
    """Passes bytes between clients and the server on a socket, in one thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._poll = select.epoll()
        self._ends: dict[int, _End] = {}
        self._new: deque[_End] = deque()
        self._wakes, self._waker = socket.socketpair()
        self._poll.register(self._wakes.fileno(), select.EPOLLIN)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="oracle-former-relay", daemon=True)
        self._thread.start()

    def add(self, client: socket.socket, raw: bytes) -> None:
        """Pass on what a client sends, after `raw`."""
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._path)
        server.setblocking(False)
        one, other = _End(client, b""), _End(server, raw)
        one.other, other.other = other, one
        self._new.append(one)
        self._waker.send(b"\0")

    def stop(self) -> None:
        """End all connections."""
        self._is_stopping = True
        self._waker.send(b"\0")
        self._thread.join()
        for end in [*self._ends.values(), *self._new]:
            end.socket.close()
            end.other.socket.close()
        for one in (self._wakes, self._waker):
            one.close()
        self._poll.close()

    def _run(self) -> None:
        while not self._is_stopping:
            for number, _ in self._poll.poll():
                end = self._ends.get(number)
                if end is not None:
                    # Whichever of the two it is: take what there is, and give what can be given.
                    self._pass(end)
                elif number == self._wakes.fileno():
                    self._wakes.recv(1024)
                    while self._new:
                        end = self._new.popleft()
                        for one in (end, end.other):
                            self._ends[one.socket.fileno()] = one
                            self._poll.register(one.socket.fileno(), select.EPOLLIN)
                        self._pass(end)

    def _pass(self, end: _End) -> None:
        try:
            for one in (end, end.other):
                _give(one.other)
                while not one.other.unsent:
                    try:
                        raw = one.socket.recv(_READ)
                    except (BlockingIOError, ssl.SSLWantReadError):
                        break
                    if not raw:
                        raise ConnectionResetError
                    one.other.unsent = raw
                    _give(one.other)
            for one in (end, end.other):
                self._poll.modify(
                    one.socket.fileno(),
                    (select.EPOLLOUT if one.unsent else 0)
                    | (0 if one.other.unsent else select.EPOLLIN),
                )
        except OSError:
            for one in (end, end.other):
                self._ends.pop(one.socket.fileno(), None)
                one.socket.close()


def _give(end: _End) -> None:
    with suppress(BlockingIOError, ssl.SSLWantWriteError):
        sent = end.socket.send(end.unsent)
        end.unsent = end.unsent[sent:]


# --- The messages of release 0.1, of protobuf ---------------------------------------------


def _count(raw: bytes) -> int:
    """Field 1 of a DrawRequest, a number; 0 if it is missing."""
    if raw[:1] != b"\x08":
        return 0
    value = 0
    for place, byte in enumerate(raw[1:10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return value


def _reply(reply: tuple[int, int, str]) -> bytes:
    """A DrawReply: first, count, source; zeros are left out."""
    first, count, source = reply
    made = b"".join(
        bytes((field << 3,)) + _varint(value) for field, value in ((1, first), (2, count)) if value
    )
    return made + b"\x1a" + _varint(len(source.encode())) + source.encode() if source else made


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
