"""Near-copies of a page, made from a seed: what the same page looks like elsewhere, or later.

    same bytes            on another host
    banner                on another host, which puts a banner above the page and a line below it
    other navigation      on another host, whose header, menu and footer have taken the place of
                          the page's own: only the element with the content is still there
    other template        so, and the content stands in an element of that host's as well
    dates and versions    other dates and version numbers, wherever the page has them
    words                 one word replaced, or one in a hundred up to three
    sentence added        in running text
    sentence removed      from running text
    paragraph moved       two paragraphs have changed places
    mirror and dates      banner or other navigation, and other dates and version numbers
    mirror and edit       banner or other navigation, other dates, and a sentence or words

Where no host is named, half of the copies stand on the page's own host under another path, half
on another one. Edits are made in running text only, never in titles, names or code, and change at
most `SHARE` of the words. Pages of fewer than `SHORTEST` words have no near-copies: there a word
more or less may well be another page.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from benchmarks.main_text import Main, Paragraph, Piece
from webindex.corpus.edits import WORDS

__all__ = ["KINDS", "SHARE", "SHORTEST", "near_copy", "without_dates"]

SHORTEST: Final = 50
"""Words that a page has at least of which near-copies are made."""

SHARE: Final = 0.05
"""The largest share of a page's words that an edit changes."""

_MONTHS: Final = (
    "January|February|March|April|May|June|July|August|September|October|November|December"
)
_MONTH: Final = rf"(?:{_MONTHS}|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec)\.?"
_DATE: Final = re.compile(
    r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?\b"
    rf"|\b{_MONTH} \d{{1,2}},? (?:\d{{2}}:\d{{2}}:\d{{2}} )?\d{{4}}\b"
    rf"|\b\d{{1,2}} {_MONTH} \d{{4}}\b"
)
_VERSION: Final = re.compile(
    r"\bv?\d+\.\d+(?:\.\d+)+(?:[-+~]\w+)*\b"
    r"|(?<=[Vv]ersion )\d+(?:\.\d+)*|(?<=[Ss]ince )\d+(?:\.\d+)+"
)
_BETWEEN_TAGS: Final = re.compile(r">[^<>]+<")
_WORD: Final = re.compile(r"(?<= )[a-z]{4,}(?= )")
_SENTENCE: Final = re.compile(r"(?<=[.!?] )[A-Z][^.!?<>]{15,}[.!?](?=\s|$)")
_STOP: Final = re.compile(r"[a-z][.!?](?=\s|$)")
_BODY: Final = re.compile(r"<body\b[^>]*>", re.IGNORECASE)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_MIRRORS: Final = 3

Change = tuple[int, int, str]
"""From, to, and what stands there instead."""


def without_dates(text: str) -> str:
    """A text in which every date and every version number is the same."""
    return _VERSION.sub("#", _DATE.sub("#", text))


def near_copy(
    kind: str, url: str, markup: str, main: Main, rng: random.Random
) -> tuple[str, str] | None:
    """A near-copy of a page: its URL and markup; None if the page has no place for such an edit.

    `url` is the page's own; `main` its content.
    """
    if main.words < SHORTEST:
        return None
    changes: list[Change] = []
    for edit in KINDS[kind]:
        made = edit(markup, main, rng)
        if made is None:
            return None
        # Where two edits would change the same place, the first one stays.
        changes += [
            one
            for one in made
            if all(one[1] <= start or one[0] >= end for start, end, _ in changes)
        ]
    mirror = 1 + rng.randrange(_MIRRORS)
    frame = FRAMES.get(kind)
    if kind.startswith("mirror"):
        frame = rng.choice((_banner, _other_navigation))
    parts = urlsplit(url)
    if frame is not None or rng.random() < 0.5:
        copy = f"https://mirror-{mirror}.example/{parts.netloc}{parts.path}"
    else:
        copy = f"{parts.scheme}://{parts.netloc}/archive-{mirror}{parts.path}"
    return copy, (frame or _same)(markup, main, changes, mirror)


def _changed(markup: str, changes: Iterable[Change], spans: Iterable[tuple[int, int]]) -> str:
    """The spans of the markup, with the changes that are inside of them."""
    ordered = sorted(changes)
    parts = []
    for start, end in spans:
        at = start
        for first, last, text in ordered:
            if at <= first and last <= end:
                parts += [markup[at:first], text]
                at = last
        parts.append(markup[at:end])
    return "".join(parts)


# --- Edits ----------------------------------------------------------------------------------

Edit = Callable[[str, Main, random.Random], list[Change] | None]


def _dates(markup: str, main: Main, rng: random.Random) -> list[Change] | None:
    """Other dates and versions; where the content has none, a line with a date at its end."""
    found: dict[str, str] = {}
    changes: list[Change] = []
    for between in _BETWEEN_TAGS.finditer(markup):
        for pattern in (_DATE, _VERSION):
            for one in pattern.finditer(markup, between.start() + 1, between.end() - 1):
                if one[0] not in found:
                    found[one[0]] = _other(one[0], rng)
                changes.append((*one.span(), found[one[0]]))
    inside = sum(
        start <= first and last <= end for first, last, _ in changes for start, end in main.spans
    )
    if not inside:
        at = main.spans[-1][1]
        changes.append((at, at, f"<p>Last updated: {_date(rng)}</p>"))
        inside = 5
    return changes if inside <= SHARE * main.words else None


def _other(text: str, rng: random.Random) -> str:
    """Another date, or another version of as many digits."""
    if _DATE.fullmatch(text):
        return _date(rng)
    return re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + rng.randint(1, 9)) % 10), text)


def _date(rng: random.Random) -> str:
    month = rng.choice(_MONTHS.split("|"))
    return f"{rng.randint(1, 28)} {month} {rng.randint(2005, 2024)}"


def _words(markup: str, main: Main, rng: random.Random) -> list[Change] | None:
    found = [
        word.span()
        for piece in _prose(markup, main)
        for word in _WORD.finditer(markup, piece.start, piece.end)
    ]
    if not found:
        return None
    count = min(3, max(1, main.words // 100), len(found))
    return [(*span, rng.choice(WORDS)) for span in rng.sample(found, count)]


def _prose(markup: str, main: Main) -> list[Piece]:
    """Pieces of running text."""
    return [
        one for one in main.pieces if one.prose and len(markup[one.start : one.end].split()) >= 8
    ]


def _sentence_added(markup: str, main: Main, rng: random.Random) -> list[Change] | None:
    one, other, third = rng.sample(WORDS, 3)
    sentence = f" This part was revised after a note of the {one} {other} group about the {third}."
    stops = [
        stop.end()
        for piece in _prose(markup, main)
        for stop in _STOP.finditer(markup, piece.start, piece.end)
    ]
    if not stops or len(sentence.split()) > SHARE * main.words:
        return None
    at = rng.choice(stops)
    return [(at, at, sentence)]


def _sentence_removed(markup: str, main: Main, rng: random.Random) -> list[Change] | None:
    found = [
        one.span()
        for piece in _prose(markup, main)
        for one in _SENTENCE.finditer(markup, piece.start, piece.end)
        if 4 <= len(one[0].split()) <= SHARE * main.words
    ]
    return [(*rng.choice(found), "")] if found else None


def _paragraph_moved(markup: str, main: Main, rng: random.Random) -> list[Change] | None:
    def length(one: Paragraph) -> int:
        return len(re.sub(r"<[^>]*>", " ", markup[one.start : one.end]).split())

    # Three-word runs that change are those at the ends of both, so their length matters little.
    found = [one for one in main.paragraphs if 8 <= length(one) <= 0.2 * main.words]
    texts = {markup[one.start : one.end]: one for one in found}
    if len(texts) < 2 or main.words < 2 * SHORTEST:
        return None
    [one, other] = rng.sample(sorted(texts), 2)
    first, second = texts[one], texts[other]
    return [(first.start, first.end, other), (second.start, second.end, one)]


def _an_edit(markup: str, main: Main, rng: random.Random) -> list[Change] | None:
    edits = [_words, _sentence_added, _sentence_removed]
    rng.shuffle(edits)
    return next((made for edit in edits if (made := edit(markup, main, rng))), None)


KINDS: Final[dict[str, tuple[Edit, ...]]] = {
    "same bytes": (),
    "banner": (),
    "other navigation": (),
    "other template": (),
    "dates and versions": (_dates,),
    "words": (_words,),
    "sentence added": (_sentence_added,),
    "sentence removed": (_sentence_removed,),
    "paragraph moved": (_paragraph_moved,),
    "mirror and dates": (_dates,),
    "mirror and edit": (_dates, _an_edit),
}
"""What is done to a page, by the name of the kind; see the beginning of the module."""


# --- Another site around the same content ---------------------------------------------------


def _same(markup: str, main: Main, changes: Iterable[Change], mirror: int) -> str:
    return _changed(markup, changes, [(0, len(markup))])


def _banner(markup: str, main: Main, changes: Iterable[Change], mirror: int) -> str:
    name, top, _, bottom = _site(mirror)
    page = _same(markup, main, changes, mirror)
    above = f'<header class="banner">{top} A copy kept by {name}.</header>'
    page = _BODY.sub(lambda tag: tag[0] + above, page, count=1)
    below = f"<footer>{bottom}</footer>"
    at = page.lower().rfind("</body")
    return page[:at] + below + page[at:] if at >= 0 else page + below


def _other_navigation(markup: str, main: Main, changes: Iterable[Change], mirror: int) -> str:
    tag = re.sub(r"^<body", "<div", main.tag, flags=re.IGNORECASE)
    end = re.sub(r"^<(\w+).*", r"</\1>", tag, flags=re.DOTALL)
    content = tag + _changed(markup, changes, main.spans) + end
    return _framed(f"<div>{content}</div>", markup, mirror)


def _other_template(markup: str, main: Main, changes: Iterable[Change], mirror: int) -> str:
    content = _changed(markup, changes, main.spans)
    if mirror % 2:
        return _framed(f"<main>{content}</main>", markup, mirror)
    return _framed(f'<div id="content">{content}</div>', markup, mirror)


Frame = Callable[[str, Main, Iterable[Change], int], str]

FRAMES: Final[dict[str, Frame]] = {
    "same bytes": _same,
    "banner": _banner,
    "other navigation": _other_navigation,
    "other template": _other_template,
}
"""How the kinds that are always on another host look there."""


def _site(mirror: int) -> tuple[str, str, str, str]:
    """Name, header, menu and footer of a mirror."""
    rng = random.Random(mirror)
    name = " ".join(rng.sample(WORDS, 2)).title()
    links = "".join(
        f'<li><a href="/{one}/{other}">{one.title()} {other}</a></li>'
        for one, other in (rng.sample(WORDS, 2) for _ in range(12))
    )
    top = f'<a href="/">{name} mirror</a> <form action="/find"><input name="q"></form>'
    bottom = (
        f"{name} mirrors documentation of free software. Report a problem, read our terms, "
        f"or see the list of {rng.choice(WORDS)} mirrors. Hosted by {name} Networks."
    )
    return name, top, links, bottom


def _framed(content: str, markup: str, mirror: int) -> str:
    """The content in the page of another site; mirrors differ in their markup."""
    _, top, links, bottom = _site(mirror)
    title = _TITLE.search(markup)
    head = f"<!doctype html>\n<html><head><title>{title[1] if title else ''}</title></head><body>\n"
    if mirror % 2:
        return (
            f"{head}<header>{top}</header><nav><ul>{links}</ul></nav>\n{content}\n"
            f"<footer><p>{bottom}</p></footer></body></html>\n"
        )
    return (
        f'{head}<div id="header">{top}</div><div id="sidebar" class="menu"><ul>{links}</ul></div>\n'
        f'{content}\n<div id="footer"><p>{bottom}</p></div></body></html>\n'
    )
