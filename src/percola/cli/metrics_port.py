"""The port on which a worker or an oracle serves its metrics to Prometheus.

It has no authentication, so it listens on loopback by default. Each connection takes a thread: one
that sends no request is closed after some seconds, and above a limit the oldest one is closed, so
that idle connections neither exhaust memory nor lock Prometheus out.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
from contextlib import suppress
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import click
from prometheus_client import CollectorRegistry, make_wsgi_app

from percola.cli.session import F
from percola.errors import UsageError

log = logging.getLogger("percola.metrics")

_CONNECTIONS: Final = 32
_SECONDS: Final = 10.0
"""Seconds after which a silent connection is closed."""


def metrics_options(command: F) -> F:
    """`--metrics-port` and `--metrics-host`."""
    port = click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve Prometheus metrics (0: any free port).",
    )
    host = click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS",
        help="Where to serve them; there is no password.",
    )
    return port(host(command))


def serve_metrics(registry: CollectorRegistry, host: str, port: int | None) -> int | None:
    """Serve a registry's metrics in a thread; returns the port, None if none was requested.

    Raises UsageError if it cannot listen on that address.
    """
    if port is None:
        return None
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = _Server(family, host, port)
    except (OSError, UnicodeError) as error:  # The latter for a name that no host can have.
        why = error.strerror if isinstance(error, OSError) else "no host has such a name"
        raise UsageError(
            f"Metrics cannot be served on {host}:{port}: {why or error}. Choose "
            "another --metrics-port or --metrics-host."
        ) from error
    server.set_app(make_wsgi_app(registry))
    threading.Thread(target=server.serve_forever, name="percola-metrics", daemon=True).start()
    return server.server_port


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, family: socket.AddressFamily, host: str, port: int) -> None:
        self.address_family = family
        self._guard = threading.Lock()
        self._open: dict[socket.socket, None] = {}
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        oldest = None
        with self._guard:
            if len(self._open) >= _CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
            self._open[request] = None
        if oldest is not None:
            # Its thread reads the end of the stream and exits.
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection from %s failed: %r", client_address, sys.exception())
