"""How a serving document, or the tombstone of a deleted one, is stored on OpenSearch.

The analyzers of Tantivy split texts into words, and find stems and names of programs; fields get
these with blanks between them: OpenSearch's own tokenizer for the same words takes more time than
all the rest of indexing a text. What is only displayed, and the text as it is, is not indexed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from webindex.serving.base import ServingDocument
from webindex.serving.content import (
    Analyzers,
    authority,
    own_share,
    seconds,
    url_words,
)
from webindex.serving.naming import names, telling
from webindex.serving.reading import STEMMED

FORMAT: Final = 4
"""The version of everything in this module. An index of another version is refused."""

MOST_BYTES_OF_A_TERM: Final = 32_766
"""Lucene's limit; a longer URL is displayed, and not found by itself."""

_KEYWORD: Final = {"type": "keyword", "ignore_above": MOST_BYTES_OF_A_TERM // 4}
_WORDS: Final = {"type": "text", "analyzer": "words"}
_TEXT: Final = {"type": "text", "index": False}
_STEMS: Final = {"type": "text", "analyzer": "whitespace", "index_options": "freqs"}


def index_body(shards: int | None, replicas: int | None) -> dict[str, Any]:
    """Settings and mappings of a new index."""
    numbers = {"number_of_shards": shards, "number_of_replicas": replicas}
    folded = ["not_long", "lowercase", "asciifolding"]
    return {
        "settings": {
            "analysis": {
                "filter": {"not_long": {"type": "length", "max": 80}},
                "analyzer": {
                    "words": {"tokenizer": "whitespace", "filter": folded},
                    "names": {"tokenizer": "whitespace", "filter": ["not_long", "lowercase"]},
                },
            },
            "index": {name: number for name, number in numbers.items() if number is not None},
        },
        "mappings": {
            "dynamic": "strict",
            "_meta": {"webindex": FORMAT},
            "properties": {
                "deleted": {"type": "boolean"},
                "authority": {"type": "float"},
                "title": _WORDS,
                "text": _WORDS,
                "original": _TEXT,
                "headings": _WORDS,
                "anchors": _WORDS,
                "url": _WORDS,
                **{f"{field}_stems": _STEMS for field in STEMMED},
                "identifiers": {"type": "text", "analyzer": "names", "index_options": "freqs"},
                "names": _KEYWORD,
                "called": _KEYWORD,
                "changed": {"type": "long"},
                "address": _KEYWORD,
                "host": _KEYWORD,
                "language": _KEYWORD,
                "shown": {"type": "object", "enabled": False},
            },
        },
    }


def tombstone() -> dict[str, Any]:
    """The document that keeps the epoch of a deleted cluster, as its version."""
    return {"deleted": True}


def to_stored(document: ServingDocument, analyzers: Analyzers) -> dict[str, Any]:
    """The form in which a document is indexed; its cluster is the id, its epoch the version."""
    stored: dict[str, Any] = {}

    def add(field: str, text: str, times: int = 1) -> None:
        words = analyzers.split(text)
        stems = analyzers.stems(words, document.language)
        for name, some in ((field, words), (f"{field}_stems", stems)):
            stored.setdefault(name, []).extend([" ".join(some)] * times)

    add("title", document.title)
    add("text", document.text)
    for text in document.headings:
        add("headings", text)
    anchors = telling(document.anchors)
    for text, count in anchors:
        add("anchors", text, max(1, count).bit_length())
    called = [*document.headings, *(text for text, _ in anchors)]
    worth = authority(document.rank, document.inlinks)
    stored |= {
        "deleted": False,
        "authority": worth * own_share(document.linked, len(document.text)),
        "original": document.text,
        "identifiers": [
            " ".join(analyzers.identifiers(text))
            for text in (document.title, *document.headings, document.text)
        ],
        "names": sorted({analyzers.name(text) for text in names(document.title)} - {""}),
        "called": sorted({analyzers.name(text) for text in called} - {""}),
        "changed": seconds(document.changed),
        "url": " ".join(analyzers.split(url_words(document.url))),
        "address": [document.url, *document.duplicates, *document.aliases],
        "host": document.host,
        "shown": {
            "title": document.title,
            "url": document.url,
            "anchors": document.anchors,
            "duplicates": document.duplicates,
            "inlinks": document.inlinks,
            "rank": document.rank,
            "aliases": document.aliases,
            "more": document.more,
            "headings": document.headings,
            "linked": document.linked,
            "changed": document.changed,
        },
    }
    if document.language is not None:
        stored["language"] = document.language
    return stored


def from_stored(cluster: str, epoch: int, stored: Mapping[str, Any]) -> ServingDocument:
    """Return the document that `to_stored` was given; without a text if that was not read."""
    shown = stored["shown"]
    return ServingDocument(
        cluster=cluster,
        epoch=epoch,
        url=shown["url"],
        title=shown["title"],
        text=stored.get("original", ""),
        language=stored.get("language"),
        host=stored["host"],
        anchors=tuple((text, count) for text, count in shown["anchors"]),
        duplicates=tuple(shown["duplicates"]),
        inlinks=shown["inlinks"],
        rank=shown["rank"],
        aliases=tuple(shown["aliases"]),
        more=shown.get("more", 0),
        headings=tuple(shown["headings"]),
        linked=shown["linked"],
        changed=shown["changed"],
    )
