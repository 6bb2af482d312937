"""Translates what a user's query asks for (`webindex.serving.reading`) to Tantivy's queries."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import tantivy
from tantivy import Occur, Query

from webindex.serving.reading import (
    ADDRESS_SCORE,
    BESIDE,
    EVERYTHING,
    FIELDS,
    IDENTIFIER,
    LITTLE,
    NAME_SCORE,
    PARTS,
    SLOP,
    STEMMED,
    TIE,
    TYPED,
    Asked,
    Filters,
    Sought,
    Words,
)


def build(
    schema: tantivy.Schema,
    asked: Asked,
    filters: Filters = EVERYTHING,
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
        stems = Query.disjunction_max_query(fields, tie_breaker=TIE)
        found = [stems, Query.boost_query(found[0], TYPED), *found[1:]]
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


def most_frequent(found: Iterable[tuple[str, int]], most: int) -> list[str]:
    """The words with the most documents, from (word, number of documents) of several fields."""
    documents: dict[str, int] = {}
    for word, count in found:
        documents[word] = max(count, documents.get(word, 0))
    return sorted(documents, key=lambda word: (-documents[word], word))[:most]
