"""What a document asks for when it is shown: a page by its markup and styles, a stylesheet.

These are the requests of a browser with scripts off, as far as they can be told without one. Some
are not made (an image in a rule that matches nothing), and a browser may make others; once a page
has been rendered, what was asked for is known (`renders.about`), and both count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

from webindex.page.links import base_of
from webindex.page.markup import markup_of, media_type, xml_markup_of
from webindex.page.urls import in_charset, resolve
from webindex.rendering.css import decode_css, references_in

__all__ = ["MOST_REFERENCES", "references_of_page", "references_of_style"]

MOST_REFERENCES: Final = 1000
"""Distinct URLs that are kept of one document, in its order."""

_XML: Final = ("application/xhtml+xml", "application/xml", "text/xml")
_HTML: Final = ("text/html", *_XML)
# Elements with the attributes that make a browser fetch something.
_ATTRIBUTES: Final = {
    "img": ("src",),
    "iframe": ("src",),
    "frame": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "video": ("poster",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
    "feimage": ("href", "xlink:href"),
    "body": ("background",),
    "table": ("background",),
    "td": ("background",),
    "th": ("background",),
}
_ASKING: Final = ", ".join(
    [
        *_ATTRIBUTES,
        "link[rel][href]",
        "input[type][src]",
        "img[srcset]",
        "picture > source[srcset]",
        "style",
        "[style]",
    ]
)

_CANDIDATE: Final = re.compile(r"[\s,]*+(\S++)")
_DESCRIPTORS: Final = re.compile(r"(?:[^,(]|\([^)]*+\)?)*+")


def references_of_page(capture: Mapping[str, Any], body: bytes) -> list[str]:
    """The normalised URLs that a page asks for, each once, in document order.

    `capture` is the value of `pages.capture`, and `body` its decompressed body.
    """
    url, content_type = str(capture["url"]), capture["content_type"] or "text/html"
    kind = media_type(content_type)
    if kind not in _HTML:
        return []
    markup, codec = (xml_markup_of if kind in _XML else markup_of)(body, content_type)
    tree = LexborHTMLParser(markup, options=LexborDocumentOptions.WO_EVENTS)
    root = base_of(tree, url, codec)
    return _resolved(root, (in_charset(one, codec) for one in _written(tree)), own=url)


def references_of_style(url: str, content_type: str, body: bytes) -> list[str]:
    """The normalised URLs that a stylesheet asks for, each once, in their order."""
    return _resolved(url, references_in(decode_css(body, content_type)), own=url)


def _resolved(base: str, written: Iterator[str], own: str) -> list[str]:
    found: dict[str, None] = {}
    for one in written:
        url = resolve(base, one)
        if url is not None and url != own:
            found[url] = None
            if len(found) == MOST_REFERENCES:
                break
    return list(found)


def _written(tree: LexborHTMLParser) -> Iterator[str]:
    for node in tree.css(_ASKING):
        given = node.attributes
        tag = (node.tag or "").lower()
        for name in _ATTRIBUTES.get(tag, ()):
            if value := given.get(name):
                yield value
        if tag in ("img", "source"):
            yield from _candidates(given.get("srcset") or "")
        elif tag == "link" and "stylesheet" in (given.get("rel") or "").lower().split():
            yield given.get("href") or ""
        elif tag == "input" and (given.get("type") or "").strip().lower() == "image":
            yield given.get("src") or ""
        elif tag == "style":
            yield from references_in(node.text() or "")
        if style := given.get("style"):
            yield from references_in(style)


def _candidates(srcset: str) -> Iterator[str]:
    """The URLs of a `srcset`, as the standard of HTML splits it."""
    at = 0
    while (url := _CANDIDATE.match(srcset, at)) is not None:
        at = url.end()
        if not url[1].endswith(",") and (what := _DESCRIPTORS.match(srcset, at)) is not None:
            at = what.end()
        yield url[1].rstrip(",")
