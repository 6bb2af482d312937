"""Translates what a user's query asks for (`webindex.serving.reading`) to OpenSearch's queries.

The last word of a query, if no document contains it as typed, matches all words that begin with
it, not for the sixteen most frequent ones: OpenSearch does not list words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

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
    STARTS,
    STEMMED,
    TIE,
    TYPED,
    Asked,
    Filters,
    Sought,
    Words,
)

Query = dict[str, Any]


def build(asked: Asked, filters: Filters = EVERYTHING, *, least: int | None = None) -> Query:
    """The query for the documents that match, scored with their authority.

    With `least`, so many of the clauses that are no phrases have to match; all of them without.
    """
    must = [_clause(one) for one in asked.sought if least is None or one.quoted]
    if least is not None:
        some = [_clause(one) for one in asked.sought if not one.quoted]
        must.append({"bool": {"should": some, "minimum_should_match": least}})
    little = [_boosted(_clause(one), LITTLE) for one in asked.little]
    wanted: Query = {
        "bool": {
            "must": must,
            "should": little + _better(asked),
            "must_not": [in_fields(words) for words in asked.excluded],
        }
    }
    if asked.addresses:
        urls = [
            _constant({"term": {"address": url}}, ADDRESS_SCORE / 4**place)
            for place, url in enumerate(asked.addresses)
        ]
        wanted = any_of([*urls, wanted])
    only: list[Query] = [
        {"term": {field: value}}
        for field, value in (("host", filters.host), ("language", filters.language))
        if value is not None
    ]
    if filters.since is not None:
        only.append({"range": {"changed": {"gte": filters.since}}})
    return {
        "function_score": {
            "query": {"bool": {"must": [wanted], "filter": only}},
            "field_value_factor": {"field": "authority", "missing": 1.0},
            "boost_mode": "multiply",
        }
    }


def _better(asked: Asked) -> list[Query]:
    """What puts a hit before others: it is called so, and its words stand side by side."""
    if not asked.name:
        return []
    found = [_constant({"term": {field: asked.name}}, score) for field, score in NAME_SCORE.items()]
    words = [one.words[0] for one in asked.sought]
    for first, second in itertools.pairwise(words):
        near = [_phrase(field, [*first, *second], weight, SLOP) for field, weight in BESIDE.items()]
        found.append({"dis_max": {"queries": near, "tie_breaker": TIE}})
    return found


def _clause(one: Sought) -> Query:
    found = [in_fields(words) for words in one.words]
    if one.stems:
        fields: list[Query] = [
            {"term": {f"{field}_stems": {"value": stem, "boost": FIELDS[field]}}}
            for stem in sorted(one.stems)
            for field in STEMMED
        ]
        fields.append({"term": {"url": one.words[0][0]}})
        stems: Query = {"dis_max": {"queries": fields, "tie_breaker": TIE}}
        found = [stems, _boosted(found[0], TYPED), *found[1:]]
    if one.identifier is not None:
        term = {"term": {"identifiers": {"value": one.identifier, "boost": IDENTIFIER}}}
        found = [_boosted(any_of(found), PARTS), term]
    return any_of(found)


def _boosted(query: Query, boost: float) -> Query:
    return {"bool": {"must": [query], "boost": boost}}


def _constant(query: Query, score: float) -> Query:
    return {"constant_score": {"filter": query, "boost": score}}


def any_of(queries: Iterable[Query]) -> Query:
    """Documents that match one of the queries; the best score counts."""
    every = list(queries)
    return every[0] if len(every) == 1 else {"dis_max": {"queries": every}}


def in_fields(words: Words, fields: Sequence[str] = tuple(FIELDS)) -> Query:
    """Documents that have these words side by side in one of the fields."""
    return {
        "dis_max": {
            "queries": [_in_field(field, words, FIELDS[field]) for field in fields],
            "tie_breaker": TIE,
        }
    }


def _in_field(field: str, words: Words, boost: float) -> Query:
    if len(words) > 1:
        return _phrase(field, words, boost)
    [word] = words
    kind = "prefix" if word.endswith(STARTS) else "term"
    return {kind: {field: {"value": word.removesuffix(STARTS), "boost": boost}}}


def _phrase(field: str, words: Words, boost: float, slop: int = 0) -> Query:
    typed = " ".join(words)
    phrase = {"query": typed, "analyzer": "whitespace", "boost": boost, "slop": slop}
    return {"match_phrase": {field: phrase}}


def known(words: Words, stems: Iterable[str]) -> Query:
    """Documents that have a word, or another form of it."""
    forms = [{"term": {f"{field}_stems": stem}} for field in STEMMED for stem in sorted(stems)]
    return any_of([in_fields(words), *forms])


def live() -> Query:
    """All documents, without the tombstones."""
    return {"term": {"deleted": False}}
