"""§1, §2.4: the observer that renders pages which are due, from what the repository has.

A run is one transaction. Everything that the browser asks for is answered from its snapshot: the
page and its resources as they were at one timestamp. What was asked for is kept with the image, and
entered in `uses`; so a page is rendered only if one of the answers would be another today, or the
browser is another. Missing resources are kept as such, and count in the same way.

The observer has a process of its own (`render_here`), with one browser: no other observer waits for
it, and what a page does to the browser harms no other work. A page that cannot be rendered is tried
twice, and is dead-lettered with the reason; its last image stays. While the browser does not start,
pages wait.

When a resource of thousands of pages changes, all of them are due at once. Those that matter most
are rendered first (`most_linked`), and an operator may limit how many are a second: meanwhile each
page waits as one notification, whatever else of it changes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from percola import Observer, Snapshot, Transaction, TransientError, observer
from webindex import tables
from webindex.errors import NoBrowserError, RenderError
from webindex.page.urls import BadUrlError, normalise, page_row
from webindex.rendering import tables as rendering
from webindex.rendering.browser import Answer, Browser
from webindex.rendering.dependencies import (
    Current,
    answer_now,
    body_of,
    current,
    enter_seen,
    forget_image,
)

__all__ = [
    "ATTEMPTS",
    "MOST_HISTORY",
    "answers_at",
    "inputs_of",
    "most_linked",
    "render_page",
    "render_url",
    "render_with",
]

ATTEMPTS: Final = 2
"""How often a page may fail before it is dead-lettered: most causes lie in the page."""

MOST_HISTORY: Final = 10
"""Earlier images of a page of which the thumbnail is kept, and why they were made."""

_MOST_CAUSES: Final = 20

_WAIT: Final = 5.0
"""Seconds before a browser that does not start is tried again."""

log = logging.getLogger("webindex.rendering")


def render_with(browser: Browser, rate: float = math.inf) -> Observer[str]:
    """The observer, with the browser of its process; it renders at most `rate` pages a second."""

    # A run takes seconds.
    @observer(rendering.render_due, name="render", batch=1, order=most_linked, rate=rate)
    def render(t: Transaction, row: str) -> None:
        try:
            render_page(t, row, browser)
        except NoBrowserError as error:
            # While a browser is replaced by another version, say, or for lack of memory.
            log.warning("Pages wait to be rendered, next attempt in %g s: %s", _WAIT, error)
            time.sleep(_WAIT)
            # The worker runs this again, and counts no failure of the page.
            raise TransientError(str(error)) from error

    return render


def most_linked(t: Snapshot, rows: Sequence[str]) -> list[str]:
    """These pages, those with the highest rank first, then those with most links that vouch."""
    ranks = [one["value"] if one else 0.0 for one in t.get_many((tables.rank, r) for r in rows)]
    tallies = t.get_many((tables.tally, row) for row in rows)
    links = [one["links"] if one else 0 for one in tallies]
    order = sorted(range(len(rows)), key=lambda at: (-ranks[at], -links[at]))
    return [rows[at] for at in order]


def render_page(t: Transaction, row: str, browser: Browser) -> bool:
    """Bring the image of a page up to date; return whether it was rendered.

    Raises RenderError if it cannot be.
    """
    page = current(t, row)
    before = t.get(rendering.about, row)
    if page is None or not page.is_page:
        if before is not None:
            forget_image(t, row)
        return False
    version, causes = browser.version, None
    if before is not None:
        causes = _causes(t, page, before, version)
        if not causes:
            return False
    began = time.monotonic()
    url = str(page.capture["url"])
    done = browser.render(url, answers_at(t))
    about: dict[str, Any] = {
        "url": url,
        "date": page.capture["date"],
        "page": page.digest,
        "version": version,
        "inputs": inputs_of(page.digest, done.asked, version),
        "asked": done.asked,
        "refused": done.refused,
        "width": done.width,
        "height": done.height,
        "cut": done.cut,
        "because": causes or [],
        "at_ms": time.time_ns() // 1_000_000,
        "seconds": round(time.monotonic() - began, 3),
        "history": _history(before),
    }
    if before is not None:
        _keep_thumbnail(t, row, before)
    t.set(rendering.about, row, about)
    t.set(rendering.image, row, done.image)
    t.set(rendering.thumbnail, row, done.thumbnail)
    enter_seen(t, url, before["asked"] if before is not None else (), done.asked)
    return True


def inputs_of(page: str, asked: Mapping[str, str | None], version: str) -> str:
    """A digest of everything that a picture depends on."""
    lines = [page, version, *(f"{url} {digest}" for url, digest in sorted(asked.items()))]
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def answers_at(t: Snapshot) -> Callable[[str], tuple[str | None, Answer | None]]:
    """The answers to a browser's requests: what was captured of each URL, at this timestamp."""

    def answer(asked: str) -> tuple[str | None, Answer | None]:
        try:
            url = normalise(asked)
        except BadUrlError:
            return None, None
        url, found = _find(t, url)
        digest = None if found is None else found.answer
        if found is None or digest is None:
            return url, None
        capture = found.capture
        if found.location is not None:
            return url, Answer(capture["status"], {"location": found.location}, b"", digest)
        headers = {"content-type": found.content_type}
        return url, Answer(200, headers, body_of(t, page_row(url), found), digest)

    return answer


def _find(t: Snapshot, url: str) -> tuple[str, Current | None]:
    """What a URL is that Chromium asks for, and its name in the crawl.

    In a path, Chromium writes "%7C" and "%5E" for "|" and "^", which the standard leaves alone.
    """
    path, mark, query = url.partition("?")
    written = path.replace("%7C", "|").replace("%5E", "^") + mark + query
    for one in dict.fromkeys((url, written)):
        if (found := current(t, page_row(one))) is not None:
            return one, found
    return url, None


def _causes(
    t: Snapshot, page: Current, before: Mapping[str, Any], version: str
) -> list[dict[str, Any]]:
    """What has changed since an image was made: each URL, and the date of its capture now."""
    causes = []
    if before["version"] != version:
        causes.append({"url": None, "date": None})
    if before["page"] != answer_now(before["page"], page):
        causes.append({"url": page.capture["url"], "date": page.capture["date"]})
    for url, digest in before["asked"].items():
        _, found = _find(t, url)
        if answer_now(digest, found) != digest:
            date = None if found is None else found.capture["date"]
            causes.append({"url": url, "date": date})
    return causes[:_MOST_CAUSES]


def _history(before: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Why earlier images were made, the newest first."""
    if before is None:
        return []
    last = {name: before[name] for name in ("at_ms", "date", "because")}
    return [last, *before["history"]][:MOST_HISTORY]


def _keep_thumbnail(t: Transaction, row: str, before: Mapping[str, Any]) -> None:
    """Keep the thumbnail of an image that is about to be replaced, as long as its history."""
    kept = t.get(rendering.thumbnail, row)
    if kept is not None:
        t.set(rendering.earlier[str(before["at_ms"])], row, kept)
    for one in before["history"][MOST_HISTORY - 1 :]:
        t.delete(rendering.earlier[str(one["at_ms"])], row)


def render_url(t: Transaction, url: str, browser: Browser) -> tuple[dict[str, Any], bytes, bytes]:
    """Render one page now, if its image is not up to date: what it shows, image and thumbnail.

    Raises RenderError if there is no such page, BadUrlError if it is no URL.
    """
    row = page_row(normalise(url))
    page = current(t, row)
    if page is None:
        raise RenderError(f"There is no capture of {normalise(url)}.")
    if page.is_pdf:
        raise RenderError(f"{normalise(url)} is a PDF document, of which only the text is kept.")
    if not page.is_page:
        what = "a resource" if page.resource else f"an answer of status {page.capture['status']}"
        raise RenderError(f"{normalise(url)} is {what}, which is not rendered by itself.")
    render_page(t, row, browser)
    about = t.get(rendering.about, row)
    image, thumbnail = t.get(rendering.image, row), t.get(rendering.thumbnail, row)
    assert about is not None and image is not None and thumbnail is not None
    return about, image, thumbnail
