"""Translates a user's query to Tantivy: its words in any field, and a URL as a URL.

Every clause of the query has to match in some field, scored by BM25. A single word is sought by its
stems in the languages that the index has: each document was indexed by the stems of its own
language. Several words side by side, a phrase or a word that the index splits, are sought as they
are. The best of the fields counts in full and the others for three tenths, so that a word that is
repeated in title and anchors is not counted twice.

What the words of a query do not say is added to the score of the documents that match: the whole
query is a name of the page, or a heading, or the text of a link to it; two of its words stand near
each other in order; little words are there as well.

A query that looks like a URL is first searched as a URL, among canonical URLs, duplicates and
redirects, with and without `https:`, `www.` and the last slash. These hits come before the hits of
the URL's words.

If no document has all the words, those count that have the most of them (`build`'s `least`), and at
least half. Words typed as a phrase stay required: who types quotes means them.

The last word of a query stands for all words that begin with it if no document contains it as
typed, because then it is probably unfinished: `postg`. A word that exists is never extended.

The weights were chosen by the queries of `benchmarks/search_queries.txt` that are not held out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import tantivy
from tantivy import Occur, Query

from webindex.page.urls import BadUrlError, normalise
from webindex.serving.query import parse_query

FIELDS: Final = {"title": 2.0, "headings": 1.5, "anchors": 1.0, "text": 1.0, "url": 1.0}
"""The fields in which words are searched, and the weight of a match there."""

STEMMED: Final = ("title", "headings", "anchors", "text")
"""Those that have a field of stems beside them, `…_stems`."""

TIE: Final = 0.3
# Above any sum of word scores: a URL's page comes first.
ADDRESS_SCORE: Final = 1e6
# A word that is on a tenth of all pages scores about 3 in a title.
NAME_SCORE: Final = {"names": 8.0, "called": 8.0}
IDENTIFIER: Final = 2.0
PARTS: Final = 0.5
LITTLE: Final = 0.1
# Two words of the query with at most `SLOP` others between them, by field.
BESIDE: Final = {"title": 0.5, "headings": 0.5, "text": 1.0}
SLOP: Final = 3
SHORTEST_START: Final = 3
_WORDS_A_START: Final = 16

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
        """The most frequent words that begin with some letters."""
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
    return Asked(
        sought, excluded, addresses, little, "" if excluded or addresses else " ".join(named)
    )


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


def build(
    schema: tantivy.Schema,
    asked: Asked,
    filters: Filters = Filters(),
    *,
    least: int | None = None,
) -> Query:
    """The Tantivy query for the documents that match.

    With `least`, so many of the clauses that are no phrases have to match; all of them without.
    """
    clauses = [_clause(schema, one) for one in asked.sought]
    must = [
        clause
        for clause, one in zip(clauses, asked.sought, strict=True)
        if least is None or one.quoted
    ]
    parts = [(Occur.Must, clause) for clause in must]
    if least is not None:
        some = [
            (Occur.Should, clause)
            for clause, one in zip(clauses, asked.sought, strict=True)
            if not one.quoted
        ]
        parts.append((Occur.Must, Query.boolean_query(some, least)))
    parts += [
        (Occur.Should, Query.boost_query(_clause(schema, one), LITTLE)) for one in asked.little
    ]
    parts += [(Occur.Should, better) for better in _better(schema, asked)]
    parts += [(Occur.MustNot, _in_fields(schema, words)) for words in asked.excluded]
    if asked.addresses:
        terms = [
            Query.const_score_query(
                Query.term_query(schema, "address", url, "basic"), ADDRESS_SCORE / 4**place
            )
            for place, url in enumerate(asked.addresses)
        ]
        parts = [(Occur.Must, _any([*terms, Query.boolean_query(parts)]))]
    for field, value in (("host", filters.host), ("language", filters.language)):
        if value is not None:
            term = Query.term_query(schema, field, value, "basic")
            parts.append((Occur.Must, Query.const_score_query(term, 0.0)))
    if filters.since is not None:
        recent = Query.range_query(
            schema, "changed", tantivy.FieldType.Unsigned, lower_bound=filters.since
        )
        parts.append((Occur.Must, Query.const_score_query(recent, 0.0)))
    return Query.boolean_query(parts)


def _better(schema: tantivy.Schema, asked: Asked) -> list[Query]:
    """What puts a hit before others: it is called so, and its words stand side by side."""
    if not asked.name:
        return []
    found = [
        Query.const_score_query(Query.term_query(schema, field, asked.name, "basic"), score)
        for field, score in NAME_SCORE.items()
    ]
    words = [one.words[0] for one in asked.sought]
    for first, second in itertools.pairwise(words):
        beside: list[str | tuple[int, str]] = [*first, *second]
        near = [
            Query.boost_query(Query.phrase_query(schema, field, beside, SLOP), weight)
            for field, weight in BESIDE.items()
        ]
        found.append(Query.disjunction_max_query(near, tie_breaker=TIE))
    return found


def _any(queries: list[Query]) -> Query:
    """Documents that match one of the queries; the best score counts."""
    return queries[0] if len(queries) == 1 else Query.disjunction_max_query(queries)


def _clause(schema: tantivy.Schema, one: Sought) -> Query:
    found = [_in_fields(schema, words) for words in one.words]
    if one.stems:
        fields = [
            Query.boost_query(Query.term_query(schema, f"{field}_stems", stem), FIELDS[field])
            for stem in sorted(one.stems)
            for field in STEMMED
        ]
        fields.append(Query.term_query(schema, "url", one.words[0][0]))
        found = [Query.disjunction_max_query(fields, tie_breaker=TIE), *found[1:]]
    if one.identifier is not None:
        term = Query.term_query(schema, "identifiers", one.identifier)
        found = [Query.boost_query(_any(found), PARTS), Query.boost_query(term, IDENTIFIER)]
    return _any(found)


def _in_fields(schema: tantivy.Schema, words: Words) -> Query:
    fields = []
    for field, boost in FIELDS.items():
        if len(words) == 1:
            query = Query.term_query(schema, field, words[0])
        else:
            query = Query.phrase_query(schema, field, list(words))
        fields.append(Query.boost_query(query, boost))
    return Query.disjunction_max_query(fields, tie_breaker=TIE)


def in_text(schema: tantivy.Schema, words: Words) -> Query:
    """Words side by side in the text alone."""
    if len(words) == 1:
        return Query.term_query(schema, "text", words[0])
    return Query.phrase_query(schema, "text", list(words))


def most_frequent(found: Iterable[tuple[str, int]], most: int) -> list[str]:
    """The words with the most documents, from (word, number of documents) of several fields."""
    documents: dict[str, int] = {}
    for word, count in found:
        documents[word] = max(count, documents.get(word, 0))
    return sorted(documents, key=lambda word: (-documents[word], word))[:most]
