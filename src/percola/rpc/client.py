"""§2.3 on the wire, client side: one connection to one server.

Every failure ends the connection, also an interrupt: an answer that was not read could otherwise be
taken for that of a later request.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from percola.errors import UsageError
from percola.rpc import frames
from percola.rpc.frames import Code, Frame, FrameError
from percola.rpc.tls import client_context

_SETTINGS: Final = b"\4\0\0\0\0\0"
"""What the first frame of HTTP/2, and so of gRPC, has behind its length."""
_OLDER: Final = (
    "it speaks gRPC, as Percola 0.1 does: upgrade the oracles first, and the other processes after "
    "them"
)
_STRANGER: Final = "what listens there is not a 'percola oracle'"


class LostError(Exception):
    """No answer came and the connection has ended; the message is the reason.

    Args:
        is_late: whether the server did not answer in time.
    """

    def __init__(self, why: str, *, is_late: bool = False) -> None:
        super().__init__(why)
        self.is_late = is_late


class RefusedError(Exception):
    """The server refuses; the message is its reason."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True)
class Access:
    """What a client shows to a server and requires of it.

    Args:
        token: the token that the servers require; empty: none.
        roots: PEM certificates of the authorities that sign the servers' certificates; enables TLS.
            None: no TLS. Empty: TLS with the authorities of the system.
        certificate: the client's (chain, key) in PEM, if the servers require one.
    """

    token: str = field(default="", repr=False)
    roots: bytes | None = None
    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)

    def context(self) -> ssl.SSLContext | None:
        """The settings of TLS; None for none. Raises UsageError for PEM that cannot be used."""
        return None if self.roots is None else client_context(self.roots, self.certificate)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; UsageError."""
    host, colon, port = address.rpartition(":")
    if not (colon and is_host(host) and is_port(port) and int(port)):
        raise UsageError(f"An oracle's address is HOST:PORT, not {address!r}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_port(text: str) -> bool:
    """Whether this is the number of a port, or 0."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 2**16


def is_host(text: str) -> bool:
    """Whether this can be looked up as a host: it cannot with an empty part, as in `a..b`."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


class Connection:
    """A connection that the server has accepted.

    `ask` is for one thread at a time. `send` and `receive` may be called by two threads at once,
    and `end` by any.

    Args:
        address: `HOST:PORT`.
        access: the token and the certificates.
        context: of `access.context`.
        seconds: the longest wait until it is accepted, from when the host's name was looked up.

    Raises LostError, and RefusedError.
    """

    def __init__(
        self, address: str, access: Access, context: ssl.SSLContext | None, seconds: float
    ) -> None:
        self._guard = threading.Lock()  # An SSL object is for one thread at a time.
        self._rest = b""
        self._found: list[Frame] = []
        self._has_ended = False
        host, found = _look_up(address, seconds)
        deadline = time.monotonic() + seconds
        self._socket = _connect(host, found, context, seconds)
        try:
            self._seconds = max(0.001, deadline - time.monotonic())
            self._socket.settimeout(self._seconds)
            self._socket.sendall(frames.hello(access.token))
            self._greeted()
            self._limit(seconds)
        except BaseException as error:
            self.end()
            _translate(error, seconds)
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def _greeted(self) -> None:
        """Read the server's greeting."""
        while True:
            try:
                found, rest = frames.split(self._rest)
            except FrameError:
                raise LostError(_what_speaks(self._rest)) from None
            if found:
                break
            # Nothing is sent behind it before the first request.
            more = self._socket.recv(4096)
            if not more:
                raise LostError(_what_speaks(rest))
            self._rest = rest + more
        self._found, self._rest = found[1:], rest
        if found[0].kind == frames.REFUSED:
            raise RefusedError(*frames.read_refused(found[0].body))
        if found[0].kind != frames.WELCOME:
            raise LostError(_STRANGER)

    # --- One request after the other ------------------------------------------------------

    def ask(self, request: bytes, number: int, kind: int, seconds: float) -> bytes:
        """Send a request and wait for its answer, which has this number and kind; its body.

        Raises LostError after `seconds` or if the connection ended, and RefusedError.
        """
        try:
            with self._guard:
                if seconds != self._seconds:
                    self._limit(seconds)
                if self._found or self._rest:
                    raise LostError("it sent something that it was not asked for")
                self._socket.sendall(request)
                raw = self._socket.recv(2048)
                found, rest = frames.split(raw)
                while not found and raw:
                    raw = self._socket.recv(2048)
                    found, rest = frames.split(rest + raw)
                if not found:
                    raise LostError("it has closed the connection")
                answer, self._rest = found[0], rest
                if len(found) > 1:
                    self._found = found[1:]
            if answer.number != number or answer.kind not in (kind, frames.REFUSED):
                if answer.kind == frames.REFUSED and not answer.number:
                    raise RefusedError(*frames.read_refused(answer.body))
                raise LostError("it sent something other than the answer")
        except BaseException as error:
            self.end()
            _translate(error, seconds)
            raise
        if answer.kind == frames.REFUSED:
            raise RefusedError(*frames.read_refused(answer.body))
        return answer.body

    def _limit(self, seconds: float) -> None:
        """Set the longest wait for bytes."""
        self._seconds = seconds
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(seconds)
            return
        # By the kernel: Python would make another call before each one, to wait.
        self._socket.settimeout(None)
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6) or 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    # --- Requests of several threads ------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Send a frame; LostError."""
        try:
            with self._guard:
                self._socket.sendall(message)
        except BaseException as error:
            self.end()
            _translate(error, self._seconds)
            raise

    def receive(self, seconds: float) -> Frame:
        """The next frame; LostError after `seconds` without one, or if the connection ended."""
        try:
            while not self._found:
                if not self._has_pending() and not self._poll.poll(1000 * seconds):
                    raise TimeoutError
                with self._guard:
                    more = self._socket.recv(4096)
                if not more:
                    raise LostError("it has closed the connection")
                self._found, self._rest = frames.split(self._rest + more)
        except BaseException as error:
            self.end()
            _translate(error, seconds)
            raise
        return self._found.pop(0)

    def _has_pending(self) -> bool:
        """Whether TLS has decrypted bytes that no poll shows."""
        with self._guard:
            return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    # --- The end --------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether it was ended."""
        return self._has_ended

    def end(self) -> None:
        """End the connection; a pending request fails. Idempotent; may be called by any thread."""
        self._has_ended = True
        with suppress(OSError):  # It may not be connected any more.
            # Not that of an SSLSocket, which must not be changed while another thread uses it.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        # A thread that waits for bytes has just been woken. Closed under the guard, as the number
        # of the descriptor may be another file's at once.
        with self._guard:
            self._socket.close()

    def leave_to_parent(self) -> None:
        """In a child of a fork: close the inherited descriptor, and say nothing to the server."""
        self._has_ended = True
        self._socket.close()


def _look_up(address: str, seconds: float) -> tuple[str, list[Any]]:
    """The host of an address, and the addresses that this stands for; LostError.

    It takes as long as the system's resolver does, whose own time limits are longer than ours:
    where a name server is down, each look-up takes five seconds, and would leave none to connect.
    """
    host, port = split_address(address)
    try:
        return host, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        _translate(error, seconds)
        raise


def _connect(
    host: str, found: list[Any], context: ssl.SSLContext | None, seconds: float
) -> socket.socket:
    deadline = time.monotonic() + seconds
    try:
        made = _connect_to_any(found, deadline)
    except OSError as error:
        _translate(error, seconds)
        raise
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(made)
        if context is not None:
            made.settimeout(max(0.001, deadline - time.monotonic()))
            return context.wrap_socket(made, server_hostname=host)
    except BaseException as error:
        made.close()
        _translate(error, seconds)
        raise
    return made


def _connect_to_any(found: list[Any], deadline: float) -> socket.socket:
    """A connection to the first of a host's addresses that takes one; OSError.

    Each has a share of the time: one that drops packets leaves the others, and TLS, enough of it.
    """
    problems: list[OSError] = []
    for tried, (family, kind, protocol, _, address) in enumerate(found):
        try:
            made = socket.socket(family, kind, protocol)
            try:
                left = (deadline - time.monotonic()) / (len(found) - tried)
                made.settimeout(max(0.001, left))
                made.connect(address)
            except BaseException:
                made.close()
                raise
            return made
        except OSError as error:
            problems.append(error)
    raise problems[-1]


def keep_alive(connected: socket.socket) -> None:
    """Have the system end the connection if the peer's machine has not answered for a minute."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)


def _what_speaks(raw: bytes) -> str:
    """What a server is that answers the greeting with these bytes, and no frame."""
    if raw[3:9] == _SETTINGS:
        return _OLDER
    if not raw:
        return f"it closed the connection without an answer; perhaps {_OLDER}"
    return f"{_STRANGER}: it answers {frames.printable(raw)!r}"


def _translate(error: BaseException, seconds: float) -> None:
    """Raise LostError with a reason in words for an error of the network."""
    if isinstance(error, FrameError):
        raise LostError(f"{_STRANGER}: it sent {error}") from error
    if isinstance(error, OSError):
        is_late = isinstance(error, (TimeoutError, BlockingIOError))
        raise LostError(_reason(error, seconds), is_late=is_late) from error


def _reason(error: OSError, seconds: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message.rstrip('.')}): is the "
            "authority in PERCOLA_ORACLE_CA, and does the certificate name this host?"
        )
    if isinstance(error, ssl.SSLError):
        if error.reason in (
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
            "PACKET_LENGTH_TOO_LONG",
        ):
            return (
                "it does not serve with TLS: start it with --tls-cert, or unset PERCOLA_ORACLE_CA"
            )
        if any(one in (error.reason or "") for one in ("CERTIFICATE", "UNKNOWN_CA")):
            return (
                "it requires another certificate of its clients: set PERCOLA_ORACLE_CERT and "
                f"PERCOLA_ORACLE_KEY ({error.reason})"
            )
        return f"TLS with it fails ({error.reason or 'it closed the connection'})"
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return f"no answer within {seconds:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "it has closed the connection"
    return (error.strerror or str(error)).lower()


__all__ = ["Access", "Code", "Connection", "LostError", "RefusedError"]
