"""What follows from one page alone: its own cells, from its capture and its bytes."""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from webindex.batch.digest import brief
from webindex.page.outer_blocks import kept
from webindex.page.pages import parse_capture
from webindex.page.pointers import is_live, pointer_of_capture
from webindex.page.urls import BadUrlError, normalise, page_row
from webindex.pdf.reading import digest_of

Links = list[list[Any]]
"""[URL, [anchor, …], rel] for each page that is linked to, in the order of the page."""


class Facts(NamedTuple):
    """A captured page.

    Attributes:
        row: the row of its capture.
        url: its URL; None if the row is not that of a page: then nothing is expected of it.
        live: whether it can be read. All other attributes below, but for `pointer`, are only
            there if it is.
        text: the visible text.
        served: the same in the form in which the search index keeps it.
        parts: of `shortened` facts, both of each part of the text that may be shown.
        hash: of the text, or of the bytes of a page with little text.
        heading: of its title; None for such a page.
        sketch: for near-duplicate detection, as it is stored; None for such a page.
        outline: its headings, and how much of it is links.
        blocks: the value of `blocks.outer`, if there is one.
        changed: the date of the capture.
        title, language, indexable: what a document shows.
        withheld: of "noarchive" and "nosnippet" what the page asks for.
        links: its outgoing links.
        pointer: (kind, URL) of the page that it names as its replacement.
        rank: the value of PageRank that the repository has, or None.
        share: what of that the page gives along each edge, if a run of the job has written it.
        interim: whether the rank is an estimate, by observers.
        loaded_ms: when the capture was loaded.
        digest: of the bytes that are stored in the repository; or of the document, if they are what
            was read from one.
        captured: the digest that the capture records; empty if `url` is None.
    """

    row: str
    url: str | None
    live: bool
    text: str
    served: str
    hash: str
    heading: str | None
    sketch: bytes | None
    title: str
    language: str | None
    indexable: bool
    links: Links
    pointer: tuple[str, str] | None
    rank: float | None
    loaded_ms: int
    digest: str
    captured: str
    withheld: tuple[str, ...] = ()
    outline: Mapping[str, Any] = {}
    changed: str = ""
    share: float | None = None
    interim: bool = False
    blocks: Mapping[str, Any] | None = None
    parts: Mapping[tuple[int, int], tuple[str, str]] = {}

    def shown(self, repeated: Collection[str]) -> tuple[str, str]:
        """The text without repeated blocks, and the same in the form of the search index."""
        return self._part(kept(self.blocks, repeated))

    def _part(self, part: slice) -> tuple[str, str]:
        if part.stop is None:
            return self.text, self.served
        if self.parts:
            return self.parts[part.start, part.stop]
        return self.text[part], unicodedata.normalize("NFC", self.text[part])

    def shortened(self) -> Facts:
        """The same with `brief` texts, and those of all parts that may be shown."""
        parts = {}
        if self.blocks is not None:
            for first in range(len(self.blocks["first"]) + 1):
                for last in range(len(self.blocks["last"]) + 1):
                    ends = self.blocks["first"][:first] + self.blocks["last"][:last]
                    part = kept(self.blocks, {digest for digest, _ in ends})
                    if part.stop is not None:
                        text, served = self._part(part)
                        parts[part.start, part.stop] = brief(text), brief(served)
        return self._replace(text=brief(self.text), served=brief(self.served), parts=parts)

    @property
    def content(self) -> str:
        """The row of `keys` that all pages of this content share."""
        if self.heading is None:
            return f"text/{self.hash}"
        return f"near/{self.heading}/{self.hash.removeprefix('text:')}"

    @property
    def name(self) -> str:
        """The URL; only for a page that has one."""
        assert self.url is not None
        return self.url


def facts_of(
    row: str, capture: Mapping[str, Any] | None, body: bytes | None, rank: Mapping[str, Any] | None
) -> Facts:
    """Parse one page. `body` is compressed, as in the repository."""
    whole = zlib.decompress(body) if body else b""
    digest = digest_of(whole)
    value = float(rank["value"]) if rank is not None else None
    nothing = Facts(
        row, None, False, "", "", "", None, None, "", None, False, [], None, value, 0, digest, ""
    )
    if rank is not None and rank.get("links"):
        nothing = nothing._replace(share=rank["value"] / rank["links"])
    elif rank is not None and rank.get("interim"):
        nothing = nothing._replace(interim=True)
    if capture is None:
        return nothing
    url = str(capture["url"])
    try:
        if normalise(url) != url or page_row(url) != row:
            return nothing
    except BadUrlError:
        return nothing
    # As `load` does; a capture without usable bytes is not parsed.
    page = parse_capture(capture, whole) if 200 <= capture["status"] < 300 else None
    pointer = pointer_of_capture(capture, page)
    known = nothing._replace(
        url=url,
        pointer=(pointer["kind"], pointer["url"]) if pointer is not None else None,
        loaded_ms=int(capture["loaded_ms"]),
        captured=str(capture["digest"]),
    )
    if page is None or not is_live(capture, page):
        return known
    return known._replace(
        live=True,
        text=page.text,
        served=unicodedata.normalize("NFC", page.text),
        hash=page.text_hash,
        heading=page.heading,
        sketch=page.sketch.pack() if page.sketch is not None else None,
        title=page.title,
        language=page.language,
        indexable=not page.noindex,
        withheld=tuple(name for name in ("noarchive", "nosnippet") if getattr(page, name)),
        outline=page.outline,
        changed=str(capture["date"]),
        blocks={**page.outer_blocks, "url": url} if page.outer_blocks else None,
        links=[[link.url, list(link.anchors), link.rel] for link in page.links],
    )


def fingerprint_of(page: Facts) -> dict[str, Any]:
    """The value of `pages.fingerprint`."""
    return {
        "url": page.name,
        "hash": page.hash,
        "heading": page.heading,
        "title": page.title,
        "language": page.language,
        "indexable": page.indexable,
        "loaded_ms": page.loaded_ms,
        "changed": page.changed,
        **dict.fromkeys(page.withheld, True),
    }
