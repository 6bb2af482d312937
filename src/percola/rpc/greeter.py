"""§2.3 on the wire, server side: finds out who connects, and says in words why one is refused.

    TCP ──► TLS, if there is any ──► "percola\\n" and HELLO ──► accepted, or refused with a frame
                                 ├─► HTTP/2: a client of release 0.1
                                 └─► anything else: told in plain text what it has reached

All of it is in one thread, and none in that which answers clients. A peer that is refused may read
the sentence for a moment before its connection ends: a reset would discard it.
"""

from __future__ import annotations

import errno
import hmac
import logging
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from percola.rpc import frames
from percola.rpc.client import keep_alive
from percola.rpc.frames import Code, FrameError

log = logging.getLogger("percola.oracle")

GREETING_SECONDS: Final = 10.0
"""Seconds within which a peer must have said who it is."""
STRANGERS: Final = 1000
"""Peers that have not said yet who they are; one more ends the oldest."""
_FAREWELL_SECONDS: Final = 2.0
_QUIET_SECONDS: Final = 60.0
"""Seconds for which strangers of one kind are logged once."""
_TLS_HANDSHAKE: Final = b"\x16"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""How HTTP/2, and so a client of release 0.1, begins."""
_READ: Final = 4096
_LOOK_SECONDS: Final = 0.5


class _Stranger:
    """A connection that has not been accepted, or is being ended."""

    __slots__ = ("farewell", "is_tls", "later", "name", "number", "raw", "socket", "until")

    def __init__(self, connected: socket.socket, name: str, until: float) -> None:
        self.socket = connected
        self.number = connected.fileno()
        self.name = name
        self.until = until
        self.raw = b""
        self.is_tls = False
        self.farewell = False
        self.later = b""
        """What is said when `until` has come."""


class Greeter:
    """The thread that accepts connections and finds out who they are.

    Args:
        listening: where peers connect.
        token: the token that clients must show; empty: none.
        context: the settings of TLS; None: without.
        former: see `percola.rpc.server.FrameServer`.
        accept: takes a peer that was greeted: its connection, its address, and what it sent since.
        make_room: ends another connection, as the system permits no more.
    """

    def __init__(
        self,
        listening: Iterable[socket.socket],
        token: bytes,
        context: ssl.SSLContext | None,
        former: Callable[[socket.socket, bytes], str] | None,
        accept: Callable[[socket.socket, str, bytes], None],
        make_room: Callable[[], None],
    ) -> None:
        self.refused = 0
        """Connections that were refused before they were accepted."""
        self._accept_peer = accept
        self._make_room = make_room
        self._stopping = threading.Event()
        self._token = token
        self._context = context
        self._former = former
        self._listening = {one.fileno(): one for one in listening}
        self._strangers: dict[int, _Stranger] = {}
        self._told: dict[str, float] = {}
        self._check_at = 0.0
        self._leaving: deque[tuple[socket.socket, bytes]] = deque()
        self._waker, self._wakes = socket.socketpair()
        self._waker.setblocking(False)
        self._wakes.setblocking(False)
        self._poll = select.epoll()
        for number in (*self._listening, self._wakes.fileno()):
            self._poll.register(number, select.EPOLLIN)

    def sockets(self) -> list[socket.socket]:
        """What a child of a fork must close."""
        return [self._waker, self._wakes, *(one.socket for one in list(self._strangers.values()))]

    def close_all(self) -> None:
        """End what is left, after `run`."""
        for one in self.sockets():
            one.close()
        while self._leaving:
            self._leaving.popleft()[0].close()
        self._poll.close()

    def stop(self) -> None:
        """Let `run` return."""
        self._stopping.set()
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")

    def farewell(self, connected: socket.socket, message: bytes) -> None:
        """Send a last message and end the connection once the peer has had time to read it."""
        self._leaving.append((connected, message))
        self._wake()

    def run(self) -> None:
        """Serve until `stop`; for a thread of its own."""
        while not self._stopping.is_set():
            found = self._poll.poll(_LOOK_SECONDS)
            for number, _ in found:
                try:
                    if number in self._listening:
                        self._accept(self._listening[number])
                    elif (stranger := self._strangers.get(number)) is not None:
                        self._look(stranger)
                    elif number == self._wakes.fileno():
                        self._say_farewells()
                except Exception:
                    log.exception("a connection could not be accepted")
                    if number in self._strangers:
                        self._drop(self._strangers[number])
            now = time.monotonic()
            if now < self._check_at:
                continue
            self._check_at = now + _LOOK_SECONDS / 2
            for one in list(self._strangers.values()):
                if one.until <= now and one.later:
                    message, one.later = one.later, b""
                    self._end(one, message)
                elif one.until <= now:
                    self._drop(one)

    def _say_farewells(self) -> None:
        with suppress(BlockingIOError):
            self._wakes.recv(_READ)
        while self._leaving:
            connected, message = self._leaving.popleft()
            stranger = _Stranger(connected, "", 0.0)
            stranger.is_tls = isinstance(connected, ssl.SSLSocket)
            self._add(stranger)
            self._end(stranger, message)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connected, address = listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._log("no more connections can be accepted: %s", error)
                if self._strangers:
                    self._drop(next(iter(self._strangers.values())))
                else:
                    self._make_room()
                    time.sleep(0.01)  # The connection stays in the queue, and so the poll returns.
            return
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connected)
        until = time.monotonic() + GREETING_SECONDS
        self._add(_Stranger(connected, str(address[0]), until))

    def _add(self, stranger: _Stranger) -> None:
        if len(self._strangers) >= STRANGERS:
            self._drop(next(iter(self._strangers.values())))
        self._strangers[stranger.number] = stranger
        self._poll.register(stranger.number, select.EPOLLIN)

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.number]
        with suppress(OSError):  # It is closed, and so unregistered: see `_wrap`.
            self._poll.unregister(stranger.number)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.socket.close()

    def _look(self, stranger: _Stranger) -> None:
        """Read what a peer has sent, and decide as soon as it is known what it is."""
        try:
            if stranger.later:
                self._drop(stranger)  # It has hung up: nothing else is looked for.
                return
            if stranger.farewell:
                # Of the system, and not of TLS, which may have failed.
                if not socket.socket.recv(stranger.socket, _READ):
                    self._drop(stranger)
                return
            if self._context is not None and not stranger.is_tls:
                first = stranger.socket.recv(1, socket.MSG_PEEK)
                if first == _TLS_HANDSHAKE:
                    stranger.is_tls = True
                    self._wrap(stranger, self._context)
            if isinstance(stranger.socket, ssl.SSLSocket) and not stranger.socket.version():
                stranger.socket.do_handshake()
            while True:
                raw = stranger.socket.recv(_READ)
                stranger.raw += raw
                if self._judge(stranger, is_all=not raw):
                    return
        except (BlockingIOError, ssl.SSLWantReadError):
            self._watch(stranger, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._watch(stranger, select.EPOLLOUT)
        except ssl.SSLError as error:
            self._log("TLS with %s failed: %s", stranger.name, error.reason or error)
            self.refused += 1
            self._end(stranger, b"")
        except OSError:
            self._drop(stranger)

    def _wrap(self, stranger: _Stranger, context: ssl.SSLContext) -> None:
        # The socket object is another one; its descriptor stays and so does its registration.
        # Of a peer that has hung up already, this closes the descriptor and raises OSError.
        stranger.socket = context.wrap_socket(
            stranger.socket, server_side=True, do_handshake_on_connect=False
        )
        assert stranger.socket.fileno() == stranger.number

    def _watch(self, stranger: _Stranger, event: int) -> None:
        self._poll.modify(stranger.socket.fileno(), event)

    def _judge(self, stranger: _Stranger, *, is_all: bool) -> bool:
        """Accept or refuse a peer; False while too little is known."""
        raw = stranger.raw
        magic = frames.MAGIC
        if raw[: len(magic)] == magic:
            if self._context is not None and not stranger.is_tls:
                self._refuse(
                    stranger,
                    Code.TLS,
                    "This oracle serves with TLS: set PERCOLA_ORACLE_CA to the authority that "
                    "signed its certificate.",
                )
                return True
            return self._greet(stranger, raw[len(magic) :]) or self._cut_off(stranger, is_all)
        if raw[: len(PREFACE)] == PREFACE:
            self._give_to_former(stranger)
            return True
        if not is_all and (magic.startswith(raw) or PREFACE.startswith(raw)):
            return False
        if not raw:
            self._drop(stranger)
        elif raw[:1] == _TLS_HANDSHAKE:
            self._turn_away(stranger, "speaks TLS, which this oracle does not serve")
        else:
            self._turn_away(stranger, "does not speak as a client of Percola")
        return True

    def _cut_off(self, stranger: _Stranger, is_all: bool) -> bool:
        if is_all:
            self._drop(stranger)
        return is_all

    def _greet(self, stranger: _Stranger, raw: bytes) -> bool:
        """Answer a HELLO; False if it has not come whole."""
        try:
            found, rest = frames.split(raw)
            if not found:
                return False
            first = found[0]
            if first.kind != frames.HELLO:
                raise FrameError("something other than a greeting")
            version, token = frames.read_hello(first.body)
        except FrameError as error:
            self._refuse(stranger, Code.MALFORMED, f"The client sent {error}.")
            return True
        if version != frames.VERSION:
            self._refuse(
                stranger,
                Code.VERSION,
                f"This oracle speaks version {frames.VERSION} of the protocol, and the client "
                f"version {version}: upgrade all oracles first, and then their clients.",
            )
        elif self._token and not hmac.compare_digest(token, self._token):
            self._refuse(stranger, Code.TOKEN, "The token is missing or wrong.")
        else:
            self._forget(stranger)
            # What came behind the greeting is for the loop.
            behind = raw[len(raw) - len(rest) :] if len(found) == 1 else _behind(raw)
            try:
                stranger.socket.send(frames.welcome())  # The first bytes: there is room for them.
            except OSError:
                stranger.socket.close()
                return True
            self._accept_peer(stranger.socket, stranger.name, behind)
        return True

    def _give_to_former(self, stranger: _Stranger) -> None:
        connected = stranger.socket
        if self._context is not None and not stranger.is_tls:
            why = "This oracle serves with TLS: set PERCOLA_ORACLE_CA"
        elif self._former is None:
            why = "This oracle does not serve clients of Percola 0.1"
        else:
            self._forget(stranger)
            why = self._former(connected, stranger.raw)
            if not why:
                return
            self._add(stranger)
        self._log("refused a client of Percola 0.1 at %s: %s", stranger.name, why)
        self.refused += 1
        # Its first call comes when it has the settings. Not at once, since gRPC would come back
        # without a pause.
        with suppress(OSError):
            stranger.socket.send(_SETTINGS)
        stranger.later = refusal_of_grpc(why)
        stranger.until = time.monotonic() + _LOOK_SECONDS
        self._watch(stranger, 0)

    def _refuse(self, stranger: _Stranger, code: Code, why: str) -> None:
        self._log("refused a client at %s: %s", stranger.name, why)
        self.refused += 1
        self._end(stranger, frames.refused(code, why))

    def _turn_away(self, stranger: _Stranger, what: str) -> None:
        self._log("ended a connection of %s, which %s", stranger.name, what)
        self.refused += 1
        self._end(
            stranger, f"This is a timestamp oracle of Percola; your program {what}.\n".encode()
        )

    def _end(self, stranger: _Stranger, message: bytes) -> None:
        """Say a last thing, and end once the peer has read it: a reset would discard it."""
        stranger.farewell = True
        stranger.until = time.monotonic() + _FAREWELL_SECONDS
        try:
            if message:
                stranger.socket.send(message)
            socket.socket.shutdown(stranger.socket, socket.SHUT_WR)
            self._watch(stranger, select.EPOLLIN)
        except OSError:
            self._drop(stranger)

    def _log(self, message: str, *arguments: object) -> None:
        """Log a warning, one of each kind a minute: a peer may come again and again."""
        now = time.monotonic()
        if now >= self._told.get(message, 0.0):
            self._told[message] = now + _QUIET_SECONDS
            log.warning(message, *arguments)


def _behind(raw: bytes) -> bytes:
    """What follows the first frame."""
    return raw[4 + int.from_bytes(raw[:4], "big") :]


_SETTINGS: Final = bytes.fromhex("000000040000000000")


def refusal_of_grpc(why: str) -> bytes:
    """What refuses the first call on a connection of gRPC with UNIMPLEMENTED and a sentence."""
    headers = b"\x88"  # :status 200
    for name, value in (
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"12"),
        (b"grpc-message", why.encode("ascii", "replace")[:120]),
    ):
        headers += bytes((0, len(name))) + name + bytes((len(value),)) + value
    # HEADERS of stream 1, which end it; and GOAWAY.
    call = len(headers).to_bytes(3, "big") + b"\1\5" + (1).to_bytes(4, "big") + headers
    last = (1).to_bytes(4, "big") + bytes(4)
    return call + len(last).to_bytes(3, "big") + b"\7\0" + bytes(4) + last
