"""What a site answers besides its pages: the stylesheets, images and fonts that pages show.

Only what the chosen pages ask for is crawled, as a crawler with a browser would, and what that asks
for in turn: a stylesheet's images, fonts and further stylesheets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from webindex.corpus.mounting import Document, Site
from webindex.page.urls import normalise
from webindex.rendering.references import references_of_page, references_of_style

__all__ = ["asked_for", "most_used_style"]

_STYLE = "text/css"


def asked_for(site: Site, pages: Iterable[Document]) -> list[Document]:
    """The resources of these pages, in the order of their URLs."""
    there = _by_url(site)
    found: dict[str, Document] = {}
    waiting = list(_of_pages(site, pages))
    while waiting:
        url = waiting.pop()
        resource = there.get(url)
        if resource is None or url in found:
            continue
        found[url] = resource
        content_type = site.content_type(resource)
        if content_type == _STYLE:
            waiting += references_of_style(url, content_type, site.read(resource))
    return [found[url] for url in sorted(found)]


def most_used_style(site: Site, pages: Iterable[Document]) -> tuple[Document, int] | None:
    """The stylesheet that most of these pages name, and how many do; None if none names any."""
    there = _by_url(site)
    counts = Counter(
        url
        for url in _of_pages(site, pages)
        if url in there and site.content_type(there[url]) == _STYLE
    )
    if not counts:
        return None
    count = max(counts.values())
    return there[min(url for url, times in counts.items() if times == count)], count


def _by_url(site: Site) -> dict[str, Document]:
    """The resources that a site has, by their URLs as references name them."""
    return {normalise(url): document for url, document in site.resources.items()}


def _of_pages(site: Site, pages: Iterable[Document]) -> Iterable[str]:
    for page in pages:
        capture = {"url": page.url, "content_type": site.content_type(page)}
        yield from references_of_page(capture, site.read(page))
