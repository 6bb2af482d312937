"""Translates a user's query to Tantivy: its words in any field, and a URL as a URL.

Every clause of the query has to match in some field, scored by BM25. The
best of the fields counts in full and the others for three tenths, so that a word that is repeated
in title and anchors is not counted twice. A match in the title weighs more than one in the body.
Anchors and URLs need no bonus: they are so short that BM25 scores a match in them highly.

A query that looks like a URL is first searched as a URL, among canonical URLs, duplicates and
redirects, with and without `https:`, `www.` and the last slash. These hits come before the hits of
the URL's words.

If no document has all the words, those count that have the most of them (`build`'s `least`), and at
least half. Words typed as a phrase stay required: who types quotes means them.

The last word of a query stands for all words that begin with it if no document contains it as
typed, because then it is probably unfinished: `postg`. A word that exists is never extended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import tantivy
from tantivy import Occur, Query

from webindex.page.urls import BadUrlError, normalise
from webindex.serving.query import parse_query

FIELDS: Final = {"title": 3.0, "anchors": 1.0, "text": 1.0, "url": 1.0}
"""The fields in which words are searched, and the weight of a match there."""

_TIE: Final = 0.3
# Above any sum of word scores: a URL's page comes first.
_ADDRESS_SCORE: Final = 1e6
_SHORTEST_START: Final = 3
_WORDS_A_START: Final = 16

Words = Sequence[str]
"""Words side by side; usually one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A query in the index's words.

    Attributes:
        sought: for each clause, its alternatives; every clause has to match.
        phrases: the numbers of the clauses that were typed as a phrase.
        excluded: clauses of which none may match.
        addresses: URLs that the query may be, the likeliest first.
    """

    sought: Sequence[Sequence[Words]]
    excluded: Sequence[Words]
    addresses: Sequence[str]
    phrases: frozenset[int] = frozenset()

    @property
    def marked(self) -> list[Words]:
        """The words to mark where they match."""
        return [words for clause in self.sought for words in clause]


def read(
    query: str,
    analyze: Callable[[str], list[str]],
    known: Callable[[str], bool],
    begins: Callable[[str, int], list[str]],
) -> Asked:
    """Parse a user's query. It matches nothing if `sought` is empty.

    Args:
        query: as it was typed.
        analyze: splits a text into words as the index does.
        known: whether any document has a word.
        begins: the most frequent words that begin with some letters, at most a given number.
    """
    clauses = parse_query(query)
    addresses = _addresses(query)
    sought: list[list[Words]] = []
    phrases = set()
    for clause in clauses:
        words = analyze(_without_scheme(clause.text) if addresses else clause.text)
        if words and not clause.excluded:
            if clause.quoted:
                phrases.add(len(sought))
            sought.append([words])
    excluded = [analyze(clause.text) for clause in clauses if clause.excluded]
    if sought and not clauses[-1].excluded and not clauses[-1].quoted:
        [last] = sought[-1]
        if len(last) == 1 and len(last[0]) >= _SHORTEST_START and not known(last[0]):
            sought[-1] += [[word] for word in begins(last[0], _WORDS_A_START)]
    return Asked(sought, [words for words in excluded if words], addresses, frozenset(phrases))


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


def build(
    schema: tantivy.Schema,
    asked: Asked,
    *,
    host: str | None = None,
    language: str | None = None,
    least: int | None = None,
) -> Query:
    """The Tantivy query for the documents that match, within one host and language.

    With `least`, so many of the clauses that are no phrases have to match; all of them without.
    """
    clauses = [_any([_in_fields(schema, words) for words in clause]) for clause in asked.sought]
    parts = [
        (Occur.Must, clause)
        for number, clause in enumerate(clauses)
        if least is None or number in asked.phrases
    ]
    if least is not None:
        some = [
            (Occur.Should, clause)
            for number, clause in enumerate(clauses)
            if number not in asked.phrases
        ]
        parts.append((Occur.Must, Query.boolean_query(some, least)))
    parts += [(Occur.MustNot, _in_fields(schema, words)) for words in asked.excluded]
    if asked.addresses:
        terms = [
            Query.const_score_query(
                Query.term_query(schema, "address", url, "basic"), _ADDRESS_SCORE / 4**place
            )
            for place, url in enumerate(asked.addresses)
        ]
        parts = [(Occur.Must, _any([*terms, Query.boolean_query(parts)]))]
    for field, value in (("host", host), ("language", language)):
        if value is not None:
            term = Query.term_query(schema, field, value, "basic")
            parts.append((Occur.Must, Query.const_score_query(term, 0.0)))
    return Query.boolean_query(parts)


def _any(queries: list[Query]) -> Query:
    """Documents that match one of the queries; the best score counts."""
    return queries[0] if len(queries) == 1 else Query.disjunction_max_query(queries)


def _in_fields(schema: tantivy.Schema, words: Words) -> Query:
    fields = []
    for field, boost in FIELDS.items():
        if len(words) == 1:
            query = Query.term_query(schema, field, words[0])
        else:
            query = Query.phrase_query(schema, field, list(words))
        fields.append(Query.boost_query(query, boost))
    return Query.disjunction_max_query(fields, tie_breaker=_TIE)


def most_frequent(found: Iterable[tuple[str, int]], most: int) -> list[str]:
    """The words with the most documents, from (word, number of documents) of several fields."""
    documents: dict[str, int] = {}
    for word, count in found:
        documents[word] = max(count, documents.get(word, 0))
    return sorted(documents, key=lambda word: (-documents[word], word))[:most]
