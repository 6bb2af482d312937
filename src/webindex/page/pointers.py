"""Which page a page names as its replacement, and whether it can be read itself.

A page points to another one in two ways. A *redirect* sends every visitor there: by its status and
`Location`, or by a refresh (`Page.refresh`). A *canonical* page is named by a page that can be read
itself, as its preferred address. A redirect may lead anywhere; a canonical page must be in the
registrable domain of the page that names it.

Everything here is a pure function of one capture. Observers find where a pointer leads in the end,
through other redirects: they follow at most `MAX_HOPS` of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import can_ada

from webindex.page.pages import Page
from webindex.page.urls import registrable_domain, resolve

__all__ = [
    "MAX_HOPS",
    "REDIRECTS",
    "Kind",
    "Pointer",
    "is_live",
    "is_respelling",
    "pointer_of",
    "pointer_of_capture",
]

MAX_HOPS: Final = 10
"""Redirects that are followed after a page's own pointer; a longer chain leads nowhere."""

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
"""The statuses whose `Location` is followed. 300 offers a choice, 304 says that nothing changed,
305 named a proxy and 306 is unused: none of them names a page instead of this one."""

Kind = Literal["redirect", "canonical"]


@dataclass(frozen=True, slots=True)
class Pointer:
    """The replacement that a page names: `url` is normalised and never the page's own."""

    kind: Kind
    url: str


def pointer_of(
    url: str, status: int, location: str | None, refresh: str | None, canonical: str | None
) -> Pointer | None:
    """Return what the page `url` points to, or None.

    Args:
        url: normalised URL of the page.
        status: of the response, 200 to 999.
        location: value of the `Location` header: relative or absolute, with or without a
            fragment, repeated headers joined by newlines. One that is malformed, contradicts
            itself or leads to another scheme points nowhere, and so does one to the page itself.
        refresh: normalised target of a refresh (`Page.refresh`).
        canonical: normalised canonical URL (`Page.canonical`), on any host; one outside the
            page's own registrable domain is no pointer.

    Raises:
        BadUrlError: `url` or `canonical` is not normalised.
    """
    if status in REDIRECTS:
        target = _target(url, location or "")
        return Pointer("redirect", target) if target is not None and target != url else None
    if not 200 <= status < 300:
        return None
    if refresh is not None:
        return Pointer("redirect", refresh) if refresh != url else None
    if canonical is None or canonical == url:
        return None
    if registrable_domain(canonical) != registrable_domain(url):
        return None
    return Pointer("canonical", canonical)


def pointer_of_capture(capture: Mapping[str, Any], page: Page | None) -> dict[str, str] | None:
    """Return the value of `pages.pointer`, or None if the page has no pointer.

    `capture` is the value of `pages.capture`; `page` is its parsed body, used only for a status
    200 to 299.
    """
    pointer = pointer_of(
        capture["url"],
        capture["status"],
        capture.get("location"),
        page.refresh if page is not None else None,
        page.canonical if page is not None else None,
    )
    return None if pointer is None else {"kind": pointer.kind, "url": pointer.url}


def is_live(capture: Mapping[str, Any], page: Page | None) -> bool:
    """Whether the page can be read: status 200 to 299, and no redirect."""
    return 200 <= capture["status"] < 300 and page is not None and page.refresh is None


def is_respelling(written: str, url: str, status: int, location: str | None) -> bool:
    """Whether a response only redirects from one spelling of its page's URL to another.

    As `/page?utm_source=mail` to `/page`, which are one page: it says nothing about that. A
    redirect to the very URL that was asked for is a circle, and no respelling.

    Args:
        written: URL of the response, as the crawler wrote it.
        url: the same, normalised.
        status, location: as for `pointer_of`.
    """
    if status not in REDIRECTS or not location or _target(url, location) != url:
        return False
    asked = can_ada.parse(written)
    named = {str(asked + line.strip()) for line in location.splitlines() if line.strip()}
    return any(_whole(one) != _whole(asked.href) for one in named)


def _whole(url: str) -> str:
    return url.partition("#")[0]


def _target(url: str, location: str) -> str | None:
    said = {line.strip() for line in location.splitlines()} - {""}
    named = {resolve(url, one) for one in said}
    return named.pop() if len(named) == 1 else None
