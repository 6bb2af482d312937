"""The routes of `percola serve`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final
from urllib.parse import parse_qsl

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from percola.errors import PercolaError, UsageError
from percola.observers.observer import Observer
from percola.repository import Repository
from percola.serve.actions import Actions
from percola.serve.guard import Guard, Names, Presence
from percola.serve.login import Login
from percola.serve.messages import Messages
from percola.serve.page import LivePage, render, templates
from percola.serve.sampler import Sampler

COMMAND: Final = "percola serve"
THREADS: Final = 8
"""Concurrent requests; others wait."""

MAX_FORM: Final = 65_536
"""Limit for the bytes of a form: more than the longest row key, encoded, takes."""

MAX_FIELDS: Final = 1_000

log = logging.getLogger("percola.serve")

_TITLES: Final = {
    400: "That cannot be done",
    401: "Log in",
    403: "That was not done",
    405: "That cannot be asked",
    413: "The form is too long",
    503: "The repository cannot be read",
}


class Pages:
    """The request handlers and their state. Each handler of a GET runs in a thread."""

    def __init__(self, repo: Repository, observers: Iterable[Observer[Any]], login: Login) -> None:
        observers = list(observers)
        self.sampler = Sampler(repo, observers)
        self.actions = Actions(repo, observers)
        self._login = login
        self._templates = templates(address_of=repo.address)
        self.messages = Messages(
            self._templates,
            "percola/message.html",
            titles=_TITLES,
            elsewhere="There is one page here.",
            log=log,
        )
        self._live = LivePage(
            self.sampler, self._templates, actions=self.actions if login.is_needed else None
        )

    def _form_for_token(self, status: int = 401, wrong: str = "") -> Response:
        return render(self._templates, "percola/login.html", status, wrong=wrong)

    # --- Looking ------------------------------------------------------------------------------

    def live(self, request: Request) -> Response:
        """`/`: the page; or, without a session, the form that asks for the token."""
        if not self._login.may_read(request):
            return self._form_for_token()
        session = self._login.session(request)
        return self._live.html(key=session.key if session is not None else "")

    def samples(self, request: Request) -> Response:
        """`/live.json`: what the page's script asks for."""
        if not self._login.may_read(request):
            return self.messages.page(401, "Log in first.")
        return self._live.json(request)

    # --- Acting -------------------------------------------------------------------------------

    async def log_in(self, request: Request) -> Response:
        """`/login`: takes the token."""
        form = await _form(request)
        response = RedirectResponse("/", 303)
        if self._login.begin(form.get("token", ""), request, response):
            log.info("%s logged in", _asker(request))
            return response
        log.warning("%s showed a wrong token", _asker(request))
        return self._form_for_token(403, "This is not the token.")

    async def act(self, request: Request) -> Response:
        """`/act`: does what a button of the page asks for."""
        form = await _form(request)
        if not self._login.may_act(request, form):
            return self.messages.page(
                403, "The form was not of a session that is open. Open the page again, and log in."
            )
        if "logout" in form:
            response = RedirectResponse("/", 303)
            self._login.end(request, response)
            return response
        await anyio.to_thread.run_sync(self.actions.ask, form, _asker(request))
        self.sampler.look_again()
        return RedirectResponse("/#actions", 303)


def make_app(
    repo: Repository, observers: Iterable[Observer[Any]], names: Names, login: Login
) -> ASGIApp:
    """The page of an open repository, which must outlive it."""
    pages = Pages(repo, observers, login)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        pages.sampler.start()
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(pages.sampler.stop)
            await anyio.to_thread.run_sync(pages.actions.stop)

    app = Starlette(
        routes=[
            Route("/", pages.live),
            Route("/live.json", pages.samples),
            Route("/login", pages.log_in, methods=["POST"]),
            Route("/act", pages.act, methods=["POST"]),
            static_files("/static/percola"),
        ],
        exception_handlers=pages.messages.handlers(wrong=(UsageError,), unreadable=(PercolaError,)),
        lifespan=lifespan,
    )
    # Around everything: the handler of unforeseen errors is outside of any middleware.
    trouble = Presence(repo.address).trouble
    refuse = pages.messages.refuse
    return Guard(app, names, trouble, refuse, command=COMMAND, posts=("/login", "/act"))


def static_files(path: str) -> Mount:
    """The style sheet, the script and the icon, to be served below `/static/percola`."""
    return Mount(path, StaticFiles(packages=[("percola.serve", "static")]))


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, of those of one name the first."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            raise HTTPException(413)
    text = body.decode("utf-8", "replace")
    found: dict[str, str] = {}
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise HTTPException(413) from None
    for name, value in fields:
        found.setdefault(name, value)
    return found


def _asker(request: Request) -> str:
    return request.client.host if request.client is not None else "an unknown address"
