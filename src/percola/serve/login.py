"""Who may look and act: a token, sessions, and the key in each form.

With a token, everything but the form that asks for it needs a session. A session is a random name
in a cookie, which scripts cannot read and which the browser sends with no request that another site
has caused (SameSite=Strict). Each session has a key, too, that every form carries: what another
site makes a browser send cannot have it. Sessions are kept in memory: they end after twelve hours,
and with the server.

Without a token everything can be read and nothing can be changed; only loopback is served like
that.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from percola.clock import Clock
from percola.errors import UsageError
from percola.platform import fork_safety as forks

SHORTEST: Final = 16
"""The fewest characters of a token: nobody has to remember it, and guesses are not slowed."""

_SECONDS: Final = 12 * 3600.0
_SESSIONS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who has shown the token; `key` is what the forms of the session carry."""

    key: str
    until: float


class Login:
    """The token, and the sessions of those who have shown it.

    Args:
        token: what to show; empty: nobody can log in, and everybody may read.

    Where the browser speaks TLS, to this server or to a proxy that it trusts, the cookie is for TLS
    alone.

    Raises UsageError for a token that is too short.
    """

    def __init__(self, token: str, clock: Clock) -> None:
        if token and len(token) < SHORTEST:
            raise UsageError(
                f"The token has {len(token)} characters, and could be guessed: use {SHORTEST} or "
                "more, such as (umask 077; openssl rand -hex 32 > FILE)."
            )
        self._digest = _digest(token) if token else b""
        self._clock = clock
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._sessions: dict[bytes, Session] = {}
        # Browsers keep the cookies of all ports of a host together: two servers need two names.
        self._cookie = f"percola_session_{secrets.token_hex(4)}"

    @property
    def is_needed(self) -> bool:
        """Whether there is a token: without one, nothing can be changed."""
        return bool(self._digest)

    def session(self, request: Request) -> Session | None:
        """The session of a request, or None."""
        name = request.cookies.get(self._cookie, "")
        with self._guard:
            found = self._sessions.get(_digest(name))
        return found if found is not None and found.until > self._clock.monotonic() else None

    def may_read(self, request: Request) -> bool:
        """Whether the request may see pages."""
        return not self.is_needed or self.session(request) is not None

    def may_act(self, request: Request, form: dict[str, str]) -> bool:
        """Whether the request comes from a form of a session of its own."""
        session = self.session(request)
        return session is not None and _same(form.get("key", ""), session.key)

    def begin(self, token: str, request: Request, response: Response) -> bool:
        """Begin a session if the token is right, and return whether it is."""
        if not self.is_needed or not hmac.compare_digest(_digest(token), self._digest):
            return False
        name, now = secrets.token_urlsafe(32), self._clock.monotonic()
        with self._guard:
            self._sessions[_digest(name)] = Session(secrets.token_urlsafe(32), now + _SECONDS)
            while len(self._sessions) > _SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        secure = _is_tls(request)
        response.set_cookie(
            self._cookie, name, httponly=True, samesite="strict", secure=secure, path="/"
        )
        return True

    def end(self, request: Request, response: Response) -> None:
        """End the session of a request."""
        with self._guard:
            self._sessions.pop(_digest(request.cookies.get(self._cookie, "")), None)
        secure = _is_tls(request)
        response.delete_cookie(
            self._cookie, httponly=True, samesite="strict", secure=secure, path="/"
        )


def _is_tls(request: Request) -> bool:
    return request.scope.get("scheme") == "https"


def _digest(text: str) -> bytes:
    # Of one length, so that a comparison tells nothing of the token's.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(_digest(one), _digest(other))
