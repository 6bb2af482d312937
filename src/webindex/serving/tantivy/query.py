"""What a user's query means to Tantivy: the words of it in any field, and a URL as itself.

Every clause of the query has to be found in some field, where BM25 says what it is worth. The
best of the fields counts in full and the others for three tenths, so that a word that is repeated
in title and anchors is not paid twice over. What a page calls itself says more than its body does.
Anchors and URLs need no bonus: they are so short that BM25 pays well for a word of theirs.

A query that looks like a URL is looked for as one first, among canonical URLs, duplicates and
redirects, with and without `https:`, `www.` and the last slash. What it finds comes before what
the URL's words find.

The last word of a query stands for all words that begin with it if no document has it as it is,
for then it is more likely unfinished: `postg`. A word that exists is never stretched.
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
"""The fields that words are looked for in, and how much a match is worth there."""

_TIE: Final = 0.3
# Above any sum of word scores: a URL's page comes first.
_ADDRESS_SCORE: Final = 1e6
_SHORTEST_START: Final = 3
_WORDS_A_START: Final = 16

Words = Sequence[str]
"""Words that stand side by side; mostly one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A query as Tantivy's words.

    Attributes:
        sought: for each clause, what may stand for it; every clause has to be found.
        excluded: clauses of which none may be found.
        addresses: URLs that the query may be, the likeliest first.
    """

    sought: Sequence[Sequence[Words]]
    excluded: Sequence[Words]
    addresses: Sequence[str]

    @property
    def phrases(self) -> list[Words]:
        """Everything that is to be marked where it is found."""
        return [words for clause in self.sought for words in clause]


def read(
    query: str,
    analyze: Callable[[str], list[str]],
    known: Callable[[str], bool],
    begins: Callable[[str, int], list[str]],
) -> Asked:
    """Read a user's query. It asks for nothing if `sought` is empty.

    Args:
        query: as it was typed.
        analyze: takes a text apart as the index does.
        known: whether any document has a word.
        begins: the most frequent words that begin with some letters, so many at most.
    """
    clauses = parse_query(query)
    addresses = _addresses(query)
    sought: list[list[Words]] = []
    for clause in clauses:
        words = analyze(_without_scheme(clause.text) if addresses else clause.text)
        if words and not clause.excluded:
            sought.append([words])
    excluded = [analyze(clause.text) for clause in clauses if clause.excluded]
    if sought and not clauses[-1].excluded and not clauses[-1].quoted:
        [last] = sought[-1]
        if len(last) == 1 and len(last[0]) >= _SHORTEST_START and not known(last[0]):
            sought[-1] += [[word] for word in begins(last[0], _WORDS_A_START)]
    return Asked(sought, [words for words in excluded if words], addresses)


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
    schema: tantivy.Schema, asked: Asked, *, host: str | None = None, language: str | None = None
) -> Query:
    """The query for documents that hold what was asked for, within one host and language."""
    parts = [(Occur.Must, _any([_in_fields(schema, w) for w in clause])) for clause in asked.sought]
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
    """Documents that one of the queries finds; the best one counts."""
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
    """The words with the most documents, of words with numbers of documents by field."""
    documents: dict[str, int] = {}
    for word, count in found:
        documents[word] = max(count, documents.get(word, 0))
    return sorted(documents, key=lambda word: (-documents[word], word))[:most]
