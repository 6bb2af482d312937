"""`webindex serve`: serves the site on a port, until it is stopped."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from webindex.cli.reindex import nothing_exported
from webindex.errors import WebindexError
from webindex.incomplete import refuse_half_built
from webindex.site.app import make_app
from webindex.site.guard import Names, is_loopback
from webindex.workers.processes import open_index, open_repository


class ServeError(WebindexError):
    """The site could not be started."""


def serve(
    repo: str, host: str, port: int, *, names: tuple[str, ...] = (), say: Callable[[str], object]
) -> None:
    """Serve on `host` and `port` until SIGINT or SIGTERM; port 0 takes any free port.

    `say` is called with messages for the user.

    Raises:
        NotARepositoryError: there is no web index at `repo`.
        RebuildError: a rebuild of it has not finished.
        ServeError: the port or the host is not available.
    """
    with ExitStack() as open_:
        opened = open_.enter_context(open_repository(repo))
        refuse_half_built(opened)
        index = open_.enter_context(open_index(opened, create=True))
        listening = listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/"
        server = make_server(make_app(opened, index, Names(host, names)))
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
        say(f"Search: {address}   Live view: {address}live   (Ctrl-C ends)")
        if lost := nothing_exported(opened, index):
            say(lost)
        if not is_loopback(host):
            say("Whoever can reach this machine can read the index: there is no password.")
        with _ends_quietly():
            server.run(sockets=[listening])


def make_server(app: ASGIApp) -> uvicorn.Server:
    """The HTTP server around the site; `run(sockets=[…])` serves until it is told to stop."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ServeError with what to do if that is not possible."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With an explicit protocol asyncio disables Nagle's algorithm; otherwise each response on
        # a persistent connection takes 40 ms longer.
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(128)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "name another with --port, or take any free one with --port 0"
        if isinstance(error, socket.gaierror):
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
