"""Sitemaps (sitemaps.org) and robots.txt: the URLs that a site lists, as pure functions.

A sitemap is what a stranger's server answered. It is read by expat, element by element, and may
have no document type: so no entity is declared, expanded or fetched. The crawl's reader bounds its
size (`webindex.crawl.sitemaps`), `MOST_ENTRIES` the URLs that are taken of it, `_MOST_TEXT` the
text of each, and `_DEEPEST` the elements within each other. Of one that is damaged, the entries
before the damage count.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final
from xml.parsers import expat

from webindex.page.urls import BadUrlError, normalise, registrable_domain

__all__ = ["MOST_ENTRIES", "urls_in"]

MOST_ENTRIES: Final = 50_000
"""URLs of one sitemap, the most that sitemaps.org allows."""

_MOST_IN_ROBOTS: Final = 100
_MOST_TEXT: Final = 4096
_DEEPEST: Final = 8
_BEFORE: Final = b" \t\r\n\xef\xbb\xbf"
"""Bytes that may stand before the first tag: of spaces and line ends, and a byte order mark."""
_LINE: Final = re.compile(r"[ \t]*sitemap[ \t]*:[ \t]*([^\s#]+)", re.IGNORECASE)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(?:T[\d:.]{5,15}(?:Z|[+-]\d\d:\d\d)?)?")


def urls_in(kind: str, url: str, body: bytes) -> dict[str, str | None]:
    """The URLs that a captured sitemap or robots.txt lists, normalised, each with its lastmod.

    Each speaks for its own registrable domain: other URLs are left out. What is no date, as
    lastmod, is None.

    Args:
        kind: "sitemap" or "robots".
        url: where it was captured.
        body: its bytes.
    """
    if kind == "robots":
        lines = body.decode("utf-8-sig", "replace").splitlines()
        named = [(found[1], "") for line in lines if (found := _LINE.match(line))]
        entries = named[:_MOST_IN_ROBOTS]
    else:
        entries = _entries(body)
    mine = registrable_domain(url)
    listed: dict[str, str | None] = {}
    for raw, modified in entries:
        one = _usable(raw)
        if one is not None and registrable_domain(one) == mine:
            listed[one] = modified if modified and _DATE.fullmatch(modified) else None
    return listed


def _usable(raw: str) -> str | None:
    try:
        return normalise(raw)
    except BadUrlError:
        return None


class _EndError(Exception):
    """No more of this is read."""


class _Reader:
    """Collects `loc` and `lastmod` of each `url` or `sitemap` that is a child of the root."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []
        self._path: list[str] = []
        self._text: list[str] = []
        self._length = 0
        self._found: dict[str, str] = {}

    def start(self, name: str, _: Any) -> None:
        self._path.append(name.rpartition(":")[2])
        self._text, self._length = [], 0
        if self._path[0] not in ("urlset", "sitemapindex") or len(self._path) > _DEEPEST:
            raise _EndError
        if len(self._path) == 2:
            self._found = {}

    def text(self, piece: str) -> None:
        self._length += len(piece)
        if self._length <= _MOST_TEXT:
            self._text.append(piece)

    def end(self, _: str) -> None:
        depth, name = len(self._path), self._path.pop()
        if depth == 3 and name in ("loc", "lastmod") and self._length <= _MOST_TEXT:
            self._found.setdefault(name, "".join(self._text).strip())
        elif depth == 2 and name in ("url", "sitemap") and self._found.get("loc"):
            self.entries.append((self._found["loc"], self._found.get("lastmod", "")))
            if len(self.entries) >= MOST_ENTRIES:
                raise _EndError

    def refuse(self, *_: Any) -> None:
        raise _EndError


def _entries(body: bytes) -> list[tuple[str, str]]:
    reader = _Reader()
    # Without namespaces: a prefix that is not declared, as of images, would be damage.
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = reader.refuse
    # What was read before the damage counts.
    with contextlib.suppress(expat.ExpatError, _EndError, LookupError, ValueError):
        # Many programs write a blank line first, before which expat would take the rest for damage.
        parser.Parse(body.lstrip(_BEFORE), True)
    return reader.entries
