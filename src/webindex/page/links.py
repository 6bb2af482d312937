"""The links of a page: their targets, their anchor texts, and whether the author vouches for them.

`a` and `area` elements with an `href` count. A link from a page to itself carries no information
and is left out. Several links to the same page become one with all their distinct anchor texts. The
versions of a page in other languages, which its head declares, are links as well, without anchors.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from selectolax.lexbor import LexborHTMLParser, LexborNode

from webindex.page.markup import MAX_BODY
from webindex.page.text import collapse
from webindex.page.urls import in_charset, resolve

__all__ = [
    "MAX_ANCHOR",
    "MAX_ANCHORS",
    "MAX_LINKS",
    "Link",
    "Rel",
    "base_of",
    "extract_links",
    "plain_links",
]

Rel = Literal["follow", "ugc", "sponsored", "nofollow", "alternate"]
"""How the author marks a link: not at all, written by users, paid for, not vouched for; or as
the same page in another language, which recommends nothing."""

MAX_LINKS: Final = 2000
"""Distinct targets kept from one page, in document order; more is a list made for robots.
Alternates come last: they use the room that visible links leave."""

MAX_ANCHOR: Final = 100
"""Characters kept of an anchor text."""

MAX_ANCHORS: Final = 8
"""Distinct anchor texts kept for one target of a page, in document order."""

# The frames of a frameset are all that such a page has; an iframe is often another site's.
_ALL = "a[href], area[href], frame[src]"
_ELSEWHERE = 'a[href]:not([href^="#"]), area[href]:not([href^="#"]), frame[src]'

_HOST_ALONE: Final = re.compile(r"www\.[^./?#]+\.[^/?#]", re.IGNORECASE)

_TRUST: Final[dict[Rel, int]] = {"follow": 0, "ugc": 1, "sponsored": 2, "nofollow": 3}


@dataclass(frozen=True, slots=True)
class Link:
    """All links of a page to one target."""

    url: str
    """Normalised URL of the target."""

    anchors: tuple[str, ...]
    """Distinct anchor texts in document order, whitespace normalised; empty texts are left out."""

    rel: Rel
    """The most trusting of the merged links: one plain link outweighs any number of marked ones.
    "alternate" only if the page has no other link to the target."""


@dataclass(slots=True)
class _Target:
    anchors: dict[str, None]
    rel: Rel


def base_of(tree: LexborHTMLParser, url: str, codec: str) -> str:
    """Return what the relative references of a page refer to: its own URL, unless it names another.

    `codec` is the charset of the page.
    """
    node = tree.css_first("base[href]")
    href = node.attributes.get("href") if node is not None else None
    return (resolve(url, in_charset(href, codec)) if href else None) or url


def extract_links(
    tree: LexborHTMLParser,
    base: str,
    page_url: str,
    *,
    nofollow: bool = False,
    alternates: Iterable[str] = (),
    codec: str = "utf-8",
) -> tuple[Link, ...]:
    """Return the links of a parsed page in document order, at most `MAX_LINKS`.

    `base` is what relative links refer to, `page_url` the page itself (normalised). With
    `nofollow`, the page's own robots directive, every link is marked nofollow. `alternates` are
    the normalised URLs of the page's versions in other languages; they follow the links. `codec` is
    the charset of the page.
    """
    found: dict[str, _Target] = {}
    resolved: dict[str, str | None] = {}
    read = 0
    # Most pages have many links into the page itself; the parser skips them fastest.
    for node in tree.css(_ELSEWHERE if base == page_url else _ALL):
        attributes = node.attributes
        href = (attributes.get("href" if node.tag != "frame" else "src") or "").partition("#")[0]
        if href not in resolved:
            resolved[href] = resolve(base, in_charset(href, codec))
        url = resolved[href]
        if url is None or url == page_url:
            continue
        rel: Rel = "nofollow" if nofollow else _rel(attributes.get("rel"))
        target = found.get(url)
        if target is None:
            if len(found) == MAX_LINKS:
                continue
            target = found[url] = _Target({}, rel)
        elif _TRUST[rel] < _TRUST[target.rel]:
            target.rel = rel
        # Of links within each other, each has the text of all that it holds.
        if len(target.anchors) < MAX_ANCHORS and read <= MAX_BODY:
            # Without the space the texts of adjacent blocks would run together.
            words = node.text(separator=" ")
            read += len(words)
            if anchor := _anchor(node, words, attributes):
                target.anchors[anchor] = None
    for url in alternates:
        if len(found) == MAX_LINKS:
            break
        if url != page_url:
            found.setdefault(url, _Target({}, "alternate"))
    return tuple(Link(url, tuple(t.anchors), t.rel) for url, t in found.items())


def plain_links(
    references: Iterable[str], page_url: str, *, nofollow: bool = False
) -> tuple[Link, ...]:
    """Return links that have no markup, in their order: at most `MAX_LINKS`, without anchors.

    As readers of such documents do, they take "www.example.org" for a host, not for a file.
    """
    found: dict[str, Link] = {}
    for reference in references:
        href = reference.partition("#")[0].strip()
        url = resolve(page_url, f"http://{href}" if _HOST_ALONE.match(href) else href)
        if url is not None and url != page_url and url not in found:
            found[url] = Link(url, (), "nofollow" if nofollow else "follow")
            if len(found) == MAX_LINKS:
                break
    return tuple(found.values())


def _rel(value: str | None) -> Rel:
    if not value:
        return "follow"
    said = value.lower().split()
    if "nofollow" in said:
        return "nofollow"
    if "sponsored" in said:
        return "sponsored"
    return "ugc" if "ugc" in said else "follow"


def _anchor(node: LexborNode, text: str, attributes: dict[str, str | None]) -> str:
    words = collapse(text)
    if not words:
        images = [image.attributes.get("alt") for image in node.css("img[alt]")]
        words = collapse(" ".join(alt for alt in images if alt) or attributes.get("alt") or "")
    return words[:MAX_ANCHOR].rstrip()
