"""The HTTP server around an application: its socket, its settings, and its end."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from percola.errors import UsageError

REQUEST_TIMEOUT: Final = 20.0
"""Seconds for which a connection may send no request, or part of one."""

MOST_CONNECTIONS: Final = 1_000
"""Connections at a time, where a process may have four times as many files open, or more."""

_BACKLOG: Final = 128

_Protocol: Any = AutoHTTPProtocol


class ServeError(UsageError):
    """The server could not be started."""


def make_server(
    app: ASGIApp,
    *,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    proxies: Sequence[str] = (),
) -> uvicorn.Server:
    """The HTTP server around an application; `run(sockets=[…])` serves until it is told to stop.

    With the files of a certificate chain and its key it speaks TLS. What a connection from one of
    `proxies`, addresses or networks, says in X-Forwarded-Proto and X-Forwarded-For is taken for the
    browser's scheme and address. Raises ServeError if one of these cannot be used.
    """
    for one in proxies:
        try:
            ipaddress.ip_network(one)
        except ValueError as error:
            raise ServeError(
                f"{one!r} is no address of a proxy ({error}): write 10.0.0.5 or 10.0.0.0/24."
            ) from None
    if tls_cert is not None and tls_key is not None:
        try:  # Else the server fails only when it begins to serve.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # An encrypted key must not make a service wait for a password at a terminal.
            context.load_cert_chain(tls_cert, tls_key, password="")
        except OSError as error:
            why = getattr(error, "reason", None) or error.strerror or error
            raise ServeError(
                f"The certificate {tls_cert} and the key {tls_key} cannot be used ({why}): TLS "
                "takes a chain and its key, in PEM, the key without a password."
            ) from error
    return uvicorn.Server(
        uvicorn.Config(
            _ending_quietly(app),
            http=_Connection,
            # The other one that uvicorn knows accepts by itself, and not by what `listen` returns.
            loop="asyncio",
            backlog=_BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            ws="none",
            timeout_graceful_shutdown=2,
            workers=1,  # Whatever WEB_CONCURRENCY says to other servers.
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        )
    )


class _Connection(_Protocol):  # type: ignore[misc]
    """A connection that is closed if it sends no request; uvicorn waits for the first for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._seen: Any = None
        self._look = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT, self._has_asked)

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def _has_asked(self) -> None:
        """Close the connection unless there is a request, or was one since the last look."""
        last = self.cycle
        is_idle = last is None or last.response_complete or last.more_body
        if last is self._seen and is_idle:
            self.transport.close()
            return
        self._seen = last
        self._look = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT, self._has_asked)


class _Listening(socket.socket):
    """A listening socket of which at most so many connections are open; others are closed.

    Otherwise some that say nothing use up the files of the process: it then answers nobody, and
    asyncio logs that without end. They are counted here, as no protocol knows of those whose TLS
    has yet to begin.
    """

    most: int
    _accepted: list[socket.socket] | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        made, address = super().accept()
        self._accepted = [one for one in self._accepted or () if one.fileno() >= 0]
        if len(self._accepted) >= self.most:
            made.close()
            raise BlockingIOError  # Others have a turn before the next one.
        self._accepted.append(made)
        return made, address


def _ending_quietly(app: ASGIApp) -> ASGIApp:
    """An application of which a request that outlives the server is told so.

    After `timeout_graceful_shutdown` uvicorn cancels it, and logs that with a traceback otherwise;
    and so it does if a client goes in the middle of a request.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await app(scope, receive, sending)
        except ClientDisconnect:
            pass  # It has gone before its request was whole.
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not started:
                await PlainTextResponse("This server has ended.\n", 503)(scope, receive, send)

    return run


def address(listening: socket.socket, host: str, *, scheme: str = "http") -> str:
    """Where a listening socket is reached, as a URL."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listening.getsockname()[1]}/"


def run(server: uvicorn.Server, listening: socket.socket, *, level: int = logging.WARNING) -> None:
    """Serve until SIGINT or SIGTERM, and log to standard error."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    logging.getLogger("percola.serve").setLevel(level)
    with _ends_quietly():
        server.run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ServeError with what to do if that is not possible."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With an explicit protocol asyncio disables Nagle's algorithm; otherwise each response on
        # a persistent connection takes 40 ms longer.
        listening = _Listening(family, kind, protocol)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        listening.most = min(MOST_CONNECTIONS, files // 4)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:  # The latter for a name that no host can have.
        hint = "name another with --port, or take any free one with --port 0"
        if isinstance(error, UnicodeError):
            reason = "no host has such a name"
        else:
            reason = error.strerror or str(error)
        if isinstance(error, socket.gaierror | UnicodeError):
            hint = "name an address of this machine with --host"
        raise ServeError(f"Port {port} of {host} cannot be had ({reason}): {hint}.") from error
    return listening


@contextmanager
def _ends_quietly() -> Iterator[None]:
    """Ignore the signal that uvicorn sends itself again after its orderly end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ended(number: int, frame: FrameType | None) -> None:
        pass

    before = {one: signal.signal(one, ended) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
