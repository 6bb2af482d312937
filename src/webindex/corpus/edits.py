"""Small changes to a page's bytes, in any ASCII-compatible charset.

Each edit is a pure function from bytes to bytes, so that the same edits on the same document give
the same page in every crawl.
"""

from __future__ import annotations

import html
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = [
    "Canonical",
    "Comment",
    "CrossLinks",
    "Edit",
    "NoIndex",
    "Paragraph",
    "Reword",
    "apply",
]

_HEAD = re.compile(rb"<head(?:\s[^>]*)?>", re.IGNORECASE)
_BODY_END = re.compile(rb"</body\s*>", re.IGNORECASE)
_CANONICAL = re.compile(rb"<link\b[^>]*\brel\s*=\s*[\"']?canonical\b[^>]*>", re.IGNORECASE)
# Running text: the beginning of a paragraph, an item or a cell, too long to be a label.
_PROSE = re.compile(rb"<(?:p|li|dd|td|div)(?:\s[^>]*)?>\s*([^<]{40,})<", re.IGNORECASE)
_WORD = re.compile(rb"(?<= )[A-Za-z]{4,}(?= )")
WORDS: Final = (
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "island",
    "juniper",
    "lantern",
    "meadow",
    "orchard",
    "pebble",
    "quarry",
    "saddle",
    "timber",
    "valley",
    "willow",
    "zephyr",
)
"""Replacements of changed words."""


class Edit(Protocol):
    """A change to a page's bytes."""

    def __call__(self, body: bytes) -> bytes:
        """The changed page; the same bytes where there is nothing to change."""


def apply(edits: Iterable[Edit], body: bytes) -> bytes:
    """Apply edits in their order."""
    for edit in edits:
        body = edit(body)
    return body


def _in_head(body: bytes, markup: str) -> bytes:
    """Insert markup at the start of the head, or at the very start if there is no head tag.

    A parser moves markup at the start into the head as well, unless text comes first.
    """
    head = _HEAD.search(body)
    at = head.end() if head else 0
    if not head and (doctype := re.match(rb"\s*(?:<\?xml[^>]*>\s*)?<!doctype[^>]*>", body, re.I)):
        at = doctype.end()
    return body[:at] + markup.encode() + body[at:]


def _at_end(body: bytes, markup: str) -> bytes:
    ends = list(_BODY_END.finditer(body))
    at = ends[-1].start() if ends else len(body)
    return body[:at] + markup.encode() + body[at:]


@dataclass(frozen=True, slots=True)
class Canonical:
    """Declares another page as the original; the page's own declaration is removed."""

    url: str

    def __call__(self, body: bytes) -> bytes:
        """See `Edit`."""
        tag = f'<link rel="canonical" href="{html.escape(self.url)}">'
        return _in_head(_CANONICAL.sub(b"", body), tag)


@dataclass(frozen=True, slots=True)
class NoIndex:
    """Asks search engines to leave the page out."""

    def __call__(self, body: bytes) -> bytes:
        """See `Edit`."""
        return _in_head(body, '<meta name="robots" content="noindex">')


@dataclass(frozen=True, slots=True)
class CrossLinks:
    """Links to pages of other hosts, as (URL, words) pairs, in a paragraph at the end."""

    links: tuple[tuple[str, str], ...]

    def __call__(self, body: bytes) -> bytes:
        """See `Edit`."""
        linked = ", ".join(
            f'<a href="{html.escape(url)}">{html.escape(words)}</a>' for url, words in self.links
        )
        return _at_end(body, f"<p>See also elsewhere: {linked}.</p>\n")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of plain text at the end."""

    text: str

    def __call__(self, body: bytes) -> bytes:
        """See `Edit`."""
        return _at_end(body, f"<p>{html.escape(self.text)}</p>\n")


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment at the end: other bytes, the same text."""

    text: str

    def __call__(self, body: bytes) -> bytes:
        """See `Edit`."""
        return body + f"\n<!-- {self.text} -->\n".encode()


@dataclass(frozen=True, slots=True)
class Rule:
    """Another rule at the end of a stylesheet, which colours headings."""

    color: str

    def __call__(self, body: bytes) -> bytes:
        """See `Edit`."""
        return body + f"\nh1, h2, h3 {{ color: #{self.color}; }}\n".encode()


@dataclass(frozen=True, slots=True)
class Reword:
    """Changes up to `words` words of running text, each in a separate passage."""

    words: int
    seed: str

    def __call__(self, body: bytes) -> bytes:
        """See `Edit`."""
        rng = random.Random(self.seed)
        found = (_WORD.search(body, *one.span(1)) for one in _PROSE.finditer(body))
        places = [word.span() for word in found if word]
        for start, end in sorted(rng.sample(places, min(self.words, len(places))), reverse=True):
            body = body[:start] + rng.choice(WORDS).encode() + body[end:]
        return body
