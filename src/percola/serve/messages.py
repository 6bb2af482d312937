"""Pages of a single sentence: what is answered to requests that cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from percola.platform.text import printable
from percola.serve.page import render

_TITLES: Final = {
    404: "There is no such page",
    414: "The address is too long",
    421: "Wrong name",
    500: "Something went wrong here",
}

Handler = Callable[[Request, Exception], Response]


class Messages:
    """The error handlers of a site.

    Args:
        environment: has the templates.
        template: gets `title` and `sentence`.
        titles: by status, beside those that all sites share.
        elsewhere: the sentence below "There is no such page": where to go from there.
        log: for what a browser is told and an operator has to know.
    """

    def __init__(
        self,
        environment: Environment,
        template: str,
        *,
        titles: Mapping[int, str],
        elsewhere: str,
        log: logging.Logger,
    ) -> None:
        self._environment = environment
        self._template = template
        self._titles = {**_TITLES, **titles}
        self._elsewhere = elsewhere
        self._log = log

    def page(self, status: int, sentence: str) -> Response:
        """A page with a sentence."""
        title = self._titles.get(status, "That did not work")
        return render(self._environment, self._template, status, title=title, sentence=sentence)

    def refuse(self, scope: Scope, status: int, sentence: str) -> ASGIApp:
        """The answer to a request that a `Guard` refuses."""
        return self.page(status, sentence)

    def handlers(
        self, *, wrong: tuple[type[Exception], ...], unreadable: tuple[type[Exception], ...]
    ) -> dict[type[Exception], Handler]:
        """The handlers of exceptions, for Starlette.

        Args:
            wrong: errors of requests that cannot be understood; their text says why.
            unreadable: errors of the repository, or of what else is read.
        """
        return {
            **dict.fromkeys(wrong, self._asked_wrongly),
            **dict.fromkeys(unreadable, self._unreadable),
            HTTPException: self._http_error,
            Exception: self._failed,
        }

    def _asked_wrongly(self, request: Request, error: Exception) -> Response:
        return self.page(400, str(error))

    def _unreadable(self, request: Request, error: Exception) -> Response:
        self._log.error("%s %s: %s", request.method, request.url.path, printable(str(error)))
        return self.page(503, str(error))

    def _http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return self.page(status, self._elsewhere)

    def _failed(self, request: Request, error: Exception) -> Response:
        # The browser is told no details.
        return self.page(
            500, "The page could not be made. What happened stands in the server's output."
        )
