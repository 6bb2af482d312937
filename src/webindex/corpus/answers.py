"""A server's response for one URL: a page, a redirect, or that there is none."""

from __future__ import annotations

import html
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from webindex.corpus.edits import Edit, apply
from webindex.corpus.mounting import Document, Site

__all__ = ["Answer", "missing", "page", "redirect", "refresh"]

_PLAIN: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """One response. Its bytes are generated on demand, and never kept.

    A page has a `document` of a `site`, with `edits`; any other response has its `markup`.
    """

    url: str
    status: int = 200
    site: Site | None = None
    document: Document | None = None
    edits: tuple[Edit, ...] = ()
    markup: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def body(self) -> bytes:
        """The payload."""
        if self.site is None or self.document is None:
            return self.markup.encode()
        return apply(self.edits, self.site.read(self.document))

    @property
    def status_line(self) -> str:
        """`301 Moved Permanently`."""
        return f"{self.status} {HTTPStatus(self.status).phrase}"

    @property
    def content_type(self) -> str:
        """The value of the header."""
        if self.site is None or self.document is None:
            return _PLAIN
        return self.site.content_type(self.document)

    @property
    def server(self) -> str:
        """The value of the header."""
        return "nginx" if self.site is None else self.site.package.server


def page(
    site: Site,
    document: Document,
    *edits: Edit,
    url: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> Answer:
    """A document, under its own URL or another."""
    return Answer(url or document.url, site=site, document=document, edits=edits, headers=headers)


def redirect(url: str, status: int, location: str) -> Answer:
    """A redirect; `location` may be relative, as servers do it."""
    return Answer(url, status, markup=_short(status), headers=(("Location", location),))


def refresh(url: str, target: str) -> Answer:
    """A page that sends its readers on by a meta tag."""
    escaped = html.escape(target)
    markup = (
        f'<!doctype html><html><head><meta http-equiv="refresh" content="0; url={escaped}">'
        f'<title>Moved</title></head><body><a href="{escaped}">Moved</a></body></html>\n'
    )
    return Answer(url, markup=markup)


def missing(url: str, status: int = 404) -> Answer:
    """A missing page (404), or a page that was removed (410)."""
    return Answer(url, status, markup=_short(status))


def _short(status: int) -> str:
    phrase = f"{status} {HTTPStatus(status).phrase}"
    return f"<html><head><title>{phrase}</title></head><body><h1>{phrase}</h1></body></html>\n"
