"""An application behind Percola's HTTP server, on a port of its own, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx
from starlette.types import ASGIApp

from percola.serve import listen, make_server


@contextmanager
def running(app: ASGIApp, **options: Any) -> Iterator[httpx.Client]:
    """Serve until the block ends; the client's `base_url` is the server's address."""
    server = make_server(app, **options)
    listening = listen("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        # A kept connection may be closed by the server, idle for 5 s, while a request goes out.
        fresh = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=address, timeout=60, trust_env=False, limits=fresh) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
