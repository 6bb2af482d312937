"""The site's routes, and how responses are rendered from templates."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from jinja2 import PackageLoader
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from percola import PercolaError, Repository
from percola.serve import (
    PARTS,
    Guard,
    LivePage,
    Messages,
    Names,
    Presence,
    render,
    static_files,
    templates,
)
from webindex import reports as story
from webindex import tables
from webindex.page.urls import BadUrlError, normalise, page_row
from webindex.rendering import tables as rendering
from webindex.serving import ServingError, ServingIndex
from webindex.serving.located import nothing_exported
from webindex.serving.naming import telling
from webindex.serving.query import BadQueryError
from webindex.site import shown
from webindex.site.live import Pipeline
from webindex.site.neighbourhood import NARROW, WIDE, draw
from webindex.site.searching import Search, pages, search
from webindex.text_format import count, date, harmless

LINKS: Final = 25
"""Links on one page of a list."""

POINTING: Final = 50
"""The most pages to list that point to the page."""

URLS: Final = 10
"""The most URLs of a document to list with the number of their links."""

THREADS: Final = 8
"""Concurrent requests that ask the search index, and as many others; more of them wait."""

# The query of a URL may have another one in it.
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

log = logging.getLogger("webindex.site")

_DETAILS: Final = frozenset({"letters", "details"})
"""The parts of the live view that only this machine is shown."""

_TITLES: Final = {
    400: "That cannot be asked",
    405: "This site can only be read",
    503: "The index cannot be read",
}


class Site:
    """The request handlers and their state. Each method answers a request, in a thread."""

    def __init__(self, repo: Repository, index: ServingIndex, *, shows_details: bool) -> None:
        self.repo = repo
        self.index = index
        self.pipeline = Pipeline(repo, index)
        self._templates = templates(
            PackageLoader("webindex.site"),
            finalize=shown.finalize,
            address=shown.address,
            count=count,
            crumbs=shown.crumbs,
            language=shown.language,
            rounded=shown.rounded,
            shows_details=shows_details,
            telling=telling,
            web_link=shown.web_link,
        )
        self._templates.filters.update(date=date, pieces=shown.pieces)
        self.messages = Messages(
            self._templates,
            "message.html",
            titles=_TITLES,
            elsewhere="Search for it, or look at what the pipeline does.",
            log=log,
        )
        self._live = LivePage(
            self.pipeline,
            self._templates,
            template="live.html",
            parts={
                "index": "live_index.html",
                **{name: PARTS[name] for name in PARTS if shows_details or name not in _DETAILS},
            },
            start_command="webindex work",
            notes=self.pipeline.notes,
        )

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """A response rendered from a template."""
        return render(self._templates, template, status, **values)

    def search(self, request: Request) -> Response:
        """`/`: the search field, and the results."""
        try:
            found = search(self.index, request.query_params)
        except BadQueryError as error:
            # With the query in its field, to be changed.
            query = request.query_params.get("q", "").strip()
            asked = Search(query, hint=str(error))
            return self.page("search.html", 400, search=asked, documents=None, pictured=())
        documents = self.index.count() if not found.query else None
        if not (found.total or documents):
            found.hint = nothing_exported(self.repo, self.index) or found.hint
        with self.repo.snapshot() as now:
            found.hits = story.without_snippets(now, found.hits)
            found.fold()
            pictured = story.thumbnails_of(now, (hit.url for hit in found.hits))
        return self.page("search.html", search=found, documents=documents, pictured=pictured)

    def complete(self, request: Request) -> Response:
        """`/complete.json`: queries that begin as the one that is being typed."""
        return JSONResponse(
            [harmless(one) for one in self.index.complete(request.query_params.get("q", ""))],
            headers={"Cache-Control": "private, max-age=60"},
        )

    def story(self, request: Request) -> Response:
        """`/page`: the report of one URL."""
        asked = request.query_params
        url = asked.get("url", "").strip()
        if not url:
            return self.page("which.html", url="")
        whole = _SCHEME.match(url)
        told = story.tell(self.repo, self.index, url if whole else f"https://{url}")
        if not (whole or told.known):
            plain = story.tell(self.repo, self.index, f"http://{url}")
            told = plain if plain.known else told
        incoming = _slice("in", told.in_links, told.url, asked) | {"more": told.in_links_more}
        outgoing = _slice("out", told.out_links, told.url, asked) | {"more": False}
        known = story.places(self.repo, [one.url for one in outgoing["links"]])
        return self.page(
            "story.html",
            200 if told.known or told.in_links or told.pointing else 404,
            story=told,
            query=asked.get("q", ""),
            incoming=incoming,
            outgoing=outgoing,
            counted=_counted(told),
            pointing={"total": len(told.pointing), "first": told.pointing[:POINTING]},
            places=known,
            drawings=[draw(told, WIDE), draw(told, NARROW)],
            order=story.ORDER,
            called=story.KINDS,
        )

    def image(self, request: Request) -> Response:
        """`/image`: the image of a page as a PNG, or with `small` its thumbnail.

        With `made`, the thumbnail of the earlier image that was made at that time.
        """
        column = rendering.thumbnail if "small" in request.query_params else rendering.image
        earlier = re.fullmatch(r"[0-9]{1,20}", request.query_params.get("made", ""))
        made = earlier[0] if earlier else ""
        missing = partial(self.messages.page, 404)
        if made:
            column = rendering.earlier[made]
        row = page_row(normalise(request.query_params.get("url", "")))
        with self.repo.snapshot() as now:
            about, png = now.get_many(((rendering.about, row), (column, row)))
            known = now.get(tables.fingerprint, row)
            if story.asks(known, "noarchive"):
                return missing("This page asks that no copy is shown (noarchive).")
        if known is None or about is None or png is None:
            return missing("This page has no image: 'webindex work --render' makes it.")
        # The same inputs give the same bytes, so a browser that has them need not load them again.
        headers = {"ETag": f'"{about["inputs"]}{made}"', "Cache-Control": "private, no-cache"}
        has = request.headers.get("if-none-match", "").split(",")
        # A proxy may have made it a weak one.
        if headers["ETag"] in [one.strip().removeprefix("W/") for one in has]:
            return Response(status_code=304, headers=headers)
        return Response(png, media_type="image/png", headers=headers)

    def live(self, request: Request) -> Response:
        """`/live`: the current state of the pipeline; the plots are drawn by a script."""
        return self._live.html()

    def samples(self, request: Request) -> Response:
        """`/live.json`: what the script of `/live` asks for."""
        return self._live.json(request)


def make_app(repo: Repository, index: ServingIndex, names: Names) -> ASGIApp:
    """The site of an open repository and its search index; both must outlive it.

    Other machines are shown no tracebacks, processes and locks: the site has no login.
    """
    site = Site(repo, index, shows_details=names.is_loopback)
    # While the search index does not answer, what is going on is shown all the same.
    asking = anyio.CapacityLimiter(THREADS)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        site.pipeline.start()
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(site.pipeline.stop)

    app = Starlette(
        routes=[
            *(
                Route(path, _within(asking, handler))
                for path, handler in (
                    ("/", site.search),
                    ("/complete.json", site.complete),
                    ("/page", site.story),
                )
            ),
            Route("/image", site.image),
            Route("/live", site.live),
            Route("/live.json", site.samples),
            static_files("/static/percola"),
            Mount("/static", StaticFiles(packages=[("webindex.site", "static")])),
        ],
        exception_handlers=site.messages.handlers(
            wrong=(BadUrlError,), unreadable=(PercolaError, ServingError)
        ),
        lifespan=lifespan,
    )
    # Around everything: the handler of unforeseen errors is outside of any middleware.
    trouble, refuse = Presence(repo.address).trouble, site.messages.refuse
    return Guard(app, names, trouble, refuse, command="webindex serve")


def _within(
    limiter: anyio.CapacityLimiter, handler: Callable[[Request], Response]
) -> Callable[[Request], Awaitable[Response]]:
    """A handler that runs in a thread of a limited number of them."""

    async def handle(request: Request) -> Response:
        return await anyio.to_thread.run_sync(handler, request, limiter=limiter)

    return handle


def _counted(told: story.Story) -> dict[str, Any]:
    """The URLs with the most links, this one among them; `more` links name `urls` others."""
    linked = [one for one in told.counted if one.links or one.url == told.url]
    shown = [one for place, one in enumerate(linked) if place < URLS or one.url == told.url]
    rest = [one for one in linked if one not in shown]
    return {"shown": shown, "more": sum(one.links for one in rest), "urls": len(rest)}


def _slice(name: str, links: list[story.Link], url: str, asked: Any) -> dict[str, Any]:
    """One page of a list of links; `asked` names it, and keeps the position in the other list."""
    last = max(1, (len(links) + LINKS - 1) // LINKS)
    text = asked.get(name, "1")
    page = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
    page = min(max(page, 1), last)
    other = "out" if name == "in" else "in"

    def link(number: int) -> str:
        kept = {"url": url, "q": asked.get("q"), other: asked.get(other)}
        return shown.address("/page", **kept, **{name: number}) + f"#{name}-links"

    return {
        "links": links[(page - 1) * LINKS : page * LINKS],
        "total": len(links),
        "kinds": story.kinds(links),
        "steps": pages(page, last, link),
    }
