"""Reads a user's query: what every serving index looks for, and the weights of what it finds.

Every clause of the query has to match in some field, scored by BM25. A single word is sought by its
stems in the languages that the index has: each document was indexed by the stems of its own
language. It is also sought as it was typed: without an accent, a word may have another stem.
Several words side by side, a phrase or a word that the index splits, are sought as they are. The
best of the fields counts in full and the others for a seventh, so that a word that is repeated in
title and anchors is not counted twice.

What the words of a query do not say is added to the score of the documents that match: the whole
query is a name of the page, or a heading, or the text of a link to it; two of its words stand near
each other in order; little words are there as well.

A query that looks like a URL is first searched as a URL, among canonical URLs, duplicates and
redirects, with and without `https:`, `www.` and the last slash. These hits come before the hits of
the URL's words.

If no document has all the words, those count that have the most of them (`least` of an index's
`build`), and at least half. Words typed as a phrase stay required: who types quotes means them.

The last word of a query matches all words that begin with it if no document contains it as
typed, because then it is probably unfinished: `postg`. A word that exists is never extended.

The weights were chosen by the queries of `benchmarks/search_queries.txt` that are not held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from webindex.page.urls import BadUrlError, normalise
from webindex.serving.query import parse_query

FIELDS: Final = {"title": 2.0, "headings": 1.2, "anchors": 1.0, "text": 1.0, "url": 1.0}
"""The fields in which words are searched, and the weight of a match there."""

STEMMED: Final = ("title", "headings", "anchors", "text")
"""Those that have a field of stems beside them, `…_stems`."""

TIE: Final = 0.15
# Above any sum of word scores: a URL's page comes first.
ADDRESS_SCORE: Final = 1e6
# A word that is on a tenth of all pages scores about 3 in a title.
NAME_SCORE: Final = {"names": 12.0, "called": 12.0}
IDENTIFIER: Final = 2.0
PARTS: Final = 0.5
# A word as it was typed, beside its stems: less, so that the stems decide about the order.
TYPED: Final = 0.5
LITTLE: Final = 0.1
# Two words of the query with at most `SLOP` others between them, by field.
BESIDE: Final = {"title": 0.5, "headings": 0.5, "text": 1.0}
SLOP: Final = 8
SHORTEST_START: Final = 3
_WORDS_A_START: Final = 16

STARTS: Final = "*"
"""The last character of a word that stands for all words beginning with it, and of no other."""

Words = Sequence[str]
"""Words side by side; usually one."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A clause of a query in the index's words.

    Attributes:
        words: alternatives; the first one is as it was typed.
        stems: of a single word, its stems in the languages of the index.
        identifier: an identifier that the index has.
        quoted: whether it was typed as a phrase.
    """

    words: Sequence[Words]
    stems: frozenset[str] = frozenset()
    identifier: str | None = None
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A query in the index's words.

    Attributes:
        sought: what has to match, all of it.
        excluded: clauses of which none may match.
        addresses: URLs that the query may be, the likeliest first.
        little: what makes a hit better, and need not match.
        name: the query as the name of a page; empty if it cannot be one.
    """

    sought: Sequence[Sought]
    excluded: Sequence[Words] = ()
    addresses: Sequence[str] = ()
    little: Sequence[Sought] = ()
    name: str = ""

    @property
    def phrases(self) -> int:
        """How many clauses were typed as a phrase."""
        return sum(one.quoted for one in self.sought)


class Vocabulary(Protocol):
    """What `read` asks of an index."""

    def analyze(self, text: str) -> list[str]:
        """Split a text into words as the index does."""
        ...

    def name(self, text: str) -> str:
        """A text as names of pages are sought."""
        ...

    def stems(self, word: str) -> frozenset[str]:
        """The stems of a word, in each of the languages that the index has."""
        ...

    def known(self, word: str) -> bool:
        """Whether any document has a word, or another form of it."""
        ...

    def has_identifier(self, name: str) -> bool:
        """Whether any document has an identifier."""
        ...

    def begins(self, start: str, most: int) -> list[str]:
        """The most frequent words that begin with some letters, or these with `STARTS`."""
        ...


def read(query: str, index: Vocabulary) -> Asked:
    """Parse a user's query. It matches nothing if `sought` is empty."""
    clauses = parse_query(query)
    addresses = _addresses(query)
    sought: list[Sought] = []
    little: list[Sought] = []
    excluded: list[Words] = []
    named: list[str] = []
    for place, clause in enumerate(clauses):
        words = index.analyze(_without_scheme(clause.text) if addresses else clause.text)
        if not words:
            continue
        if clause.excluded:
            excluded.append(words)
            continue
        named.append(index.name(clause.text))
        alternatives: list[Words] = [words]
        single = len(words) == 1 and not clause.quoted
        if (
            single
            and place == len(clauses) - 1
            and len(words[0]) >= SHORTEST_START
            and not index.known(clause.text)
        ):
            alternatives += [[word] for word in index.begins(words[0], _WORDS_A_START)]
        name = clause.name
        found = Sought(
            alternatives,
            index.stems(clause.text) if single else frozenset(),
            name if name is not None and index.has_identifier(name) else None,
            clause.quoted,
        )
        (little if clause.little else sought).append(found)
    if not sought:
        # The others have no word: "the who ?".
        sought, little = little, []
    return Asked(sought, excluded, addresses, little, "" if excluded else " ".join(named))


def _without_scheme(text: str) -> str:
    return text.partition("://")[2] or text


def _addresses(query: str) -> list[str]:
    """The URLs that a query may be: a single word with a dot in it or a scheme before it."""
    typed = query.strip()
    if len(typed.split()) != 1 or not ("." in typed or "://" in typed):
        return []
    scheme, mark, rest = typed.partition("://")
    if not mark:
        scheme, rest = "https", typed
    other = "http" if scheme.lower() == "https" else "https"
    www = rest.removeprefix("www.") if rest.startswith("www.") else f"www.{rest}"
    found: dict[str, None] = {}
    for start, end in ((scheme, rest), (other, rest), (scheme, www), (other, www)):
        for slash in ("", "/"):
            try:
                found[normalise(f"{start}://{end}{slash}")] = None
            except BadUrlError:
                return []
    return list(found)


@dataclass(frozen=True, slots=True)
class Filters:
    """Which documents may be hits: those of a host, in a language, changed since a day."""

    host: str | None = None
    language: str | None = None
    since: int | None = None


EVERYTHING: Final = Filters()
"""All documents may be hits."""
