"""Checks that apply to every request, and headers of every response.

Any web site can make a browser on this machine request our pages. It cannot read
the responses, unless its name resolves to this machine (DNS rebinding): so the Host header has
to be one of our names. Nor may it have anything changed here: a POST is answered only at the paths
that take one, and not if the browser says that another site sent it. Behind these checks stands the
key in each form (`percola.serve.login`).
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from percola.errors import UsageError

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: with that, browsers send our own forms with the origin null.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}

MAX_TARGET: Final = 16_384
"""Limit for the bytes of path and query: more than the longest URL, encoded, takes."""

_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")

Refusal = tuple[int, str]
"""A status and a message."""


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Names:
    """The host names that a server accepts.

    `is_loopback` says whether the server can be reached only from this machine. If so, the names
    are loopback's. Else also this machine's own names, every IP address (a literal
    address involves no DNS name, so it cannot be rebound), and `more`.

    Raises UsageError if one of `more` is no name.
    """

    def __init__(self, host: str, more: tuple[str, ...] = ()) -> None:
        self.is_loopback = is_loopback(host)
        self._any_address = not self.is_loopback
        self._names = {*_LOOPBACK_NAMES, host.lower()}
        for one in more:
            if (name := _name_of(one)) is None:
                raise UsageError(
                    f"{one!r} is no name of a host: write it as browsers send it, such as "
                    "shop.example.org, without https:// before it."
                )
            self._names.add(name)
        if self._any_address:
            own = socket.gethostname().lower()
            self._names |= {own, own.partition(".")[0], socket.getfqdn().lower()}

    def allow(self, header: str | None) -> bool:
        """Whether a Host header contains one of the names; the port is ignored."""
        name = _name_of(header or "")
        if name is None:
            return False
        if name in self._names:
            return True
        if self._any_address:
            try:
                ipaddress.ip_address(name)
            except ValueError:
                return False
            return True
        return False


def _name_of(text: str) -> str | None:
    """The name in a Host header, without its port; None if it is none."""
    found = _HOST.fullmatch(text)
    return None if found is None else (found[1] or found[2]).lower().removesuffix(".")


class Presence:
    """Whether the repository's folder is still the one that was opened; always, if it has none.

    A removed folder stays readable to processes that have it open: without this check the site
    would go on showing it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known = self._identity()

    def _identity(self) -> tuple[int, int] | None:
        try:
            state = os.stat(os.path.join(self._folder, "percola.json"))
        except OSError:
            return None
        return state.st_dev, state.st_ino

    def trouble(self) -> str | None:
        """An error message if the folder is gone or has been replaced."""
        found = self._identity()
        if found == self._known:
            return None
        if found is None:
            return (
                f"The repository {self._folder} is gone: it was there when this server started. "
                "Put it back, or stop the server and start it on another one."
            )
        return (
            f"The repository {self._folder} has been replaced by another one since this server "
            "started. Stop this server and start it again."
        )


class Guard:
    """The ASGI layer around everything, static files included.

    Args:
        app: the application to guard.
        names: the names that the server answers to.
        trouble: returns an error message if nothing can be shown at the moment.
        refuse: makes the response to a refused request.
        command: the command that started the server, for error messages.
        posts: the paths that take a POST.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Names,
        trouble: Callable[[], str | None],
        refuse: Callable[[Scope, int, str], ASGIApp],
        *,
        command: str,
        posts: Collection[str] = (),
    ) -> None:
        self._app = app
        self._names = names
        self._trouble = trouble
        self._refuse = refuse
        self._command = command
        self._posts = frozenset(posts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._judge(scope)
        app = self._app if refusal is None else self._refuse(scope, *refusal)
        methods = "POST" if scope.get("path") in self._posts else "GET, HEAD"
        await app(scope, receive, _with_headers(send, methods))

    def _judge(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        if not self._names.allow(headers.get("host")):
            return 421, (
                "This server does not answer to the name that you called it by. Use the address "
                f"that '{self._command}' printed, or start it with --name."
            )
        if scope["path"] in self._posts:
            if scope["method"] != "POST":
                return 405, "This address only takes what a form of this site sends."
            if not _is_of_this_site(headers):
                return 403, "Another site has sent this, so nothing was done."
        elif scope["method"] not in ("GET", "HEAD"):
            return 405, "This address can only be read: it answers GET and nothing else."
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET:
            return 414, f"The address is longer than {MAX_TARGET:,} bytes, so it was not read."
        if scope["path"].startswith("/static/"):
            return None
        trouble = self._trouble()
        return None if trouble is None else (503, trouble)


def _is_of_this_site(headers: Headers) -> bool:
    """Whether a request was sent by a page of this server, or not by a page at all.

    Browsers say who sends a POST, in one of two headers at least.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == headers["host"].lower()
    except ValueError:  # As for "http://[".
        return False


def _with_headers(send: Send, methods: str) -> Callable[[Message], Awaitable[None]]:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                if name != "Cache-Control":
                    headers[name] = value
            # What an answer says of itself counts.
            headers.setdefault("Cache-Control", HEADERS["Cache-Control"])
            if message["status"] == 405:
                headers["Allow"] = methods
        await send(message)

    return sending
