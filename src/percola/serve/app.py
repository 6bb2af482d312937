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
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from percola.errors import PercolaError, UsageError
from percola.observers.observer import Observer
from percola.platform.text import printable
from percola.repository import Repository
from percola.serve.actions import Actions
from percola.serve.guard import Guard, Names, Presence
from percola.serve.login import Login
from percola.serve.page import LivePage, templates
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
    404: "There is no such page",
    405: "That cannot be asked",
    413: "The form is too long",
    414: "The address is too long",
    421: "Wrong name",
    500: "Something went wrong here",
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
        self._live = LivePage(
            self.sampler, self._templates, actions=self.actions if login.is_needed else None
        )

    def message(self, status: int, sentence: str) -> Response:
        """A page with a single message."""
        title = _TITLES.get(status, "That did not work")
        return self._page("percola/message.html", status, title=title, sentence=sentence)

    def _page(self, template: str, status: int, **values: Any) -> Response:
        text = self._templates.get_template(template).render(values)
        return HTMLResponse(text.encode("utf-8", "replace"), status)

    def _form_for_token(self, status: int = 401, wrong: str = "") -> Response:
        return self._page("percola/login.html", status, wrong=wrong)

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
            return self.message(401, "Log in first.")
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
            return self.message(
                403, "The form was not of a session that is open. Open the page again, and log in."
            )
        if "logout" in form:
            response = RedirectResponse("/", 303)
            self._login.end(request, response)
            return response
        await anyio.to_thread.run_sync(self.actions.ask, form, _asker(request))
        self.sampler.look_again()
        return RedirectResponse("/#actions", 303)

    # --- When there is nothing to show --------------------------------------------------------

    def asked_wrongly(self, request: Request, error: Exception) -> Response:
        """A form or a request that cannot be understood; the error says why."""
        return self.message(400, str(error))

    def unreadable(self, request: Request, error: Exception) -> Response:
        """The repository cannot be read."""
        log.error("%s %s: %s", request.method, request.url.path, printable(str(error)))
        return self.message(503, str(error))

    def http_error(self, request: Request, error: Exception) -> Response:
        """No such route, or another HTTP error."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        return self.message(status, "There is one page here.")

    def failed(self, request: Request, error: Exception) -> Response:
        """An internal error: the browser is told no details."""
        return self.message(
            500, "The page could not be made. What happened stands in the server's output."
        )


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

    def refuse(scope: Scope, status: int, sentence: str) -> ASGIApp:
        return pages.message(status, sentence)

    app = Starlette(
        routes=[
            Route("/", pages.live),
            Route("/live.json", pages.samples),
            Route("/login", pages.log_in, methods=["POST"]),
            Route("/act", pages.act, methods=["POST"]),
            static_files("/static/percola"),
        ],
        exception_handlers={
            UsageError: pages.asked_wrongly,
            PercolaError: pages.unreadable,
            HTTPException: pages.http_error,
            Exception: pages.failed,
        },
        lifespan=lifespan,
    )
    # Around everything: the handler of unforeseen errors is outside of any middleware.
    trouble = Presence(repo.address).trouble
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
