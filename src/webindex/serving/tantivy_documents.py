"""How a serving document, or the tombstone of a deleted one, lies in a Tantivy index."""

from __future__ import annotations

import json
import math
import zlib
from typing import Any

import tantivy

from webindex.serving.base import ServingDocument

_LONGEST_WORD_BYTES = 80

# `clusters` reads one slice of the index after the other, to hold few of its rows at a time.
SLICES = 64

# Scripts written without spaces, and Korean, which glues particles to its words, are indexed
# letter by letter; a query's run of such letters is looked for as a phrase, thus as a substring.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Bopomofo}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
)
_WORD = rf"[{_UNSPACED}]|[\p{{L}}\p{{M}}\p{{N}}&&[^{_UNSPACED}]]+"


def analyzer() -> tantivy.TextAnalyzer:
    """How texts and queries are taken apart: words in lower case, without accents."""
    return (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_WORD))
        .filter(tantivy.Filter.remove_long(_LONGEST_WORD_BYTES))
        .filter(tantivy.Filter.lowercase())
        .filter(tantivy.Filter.ascii_fold())
        .build()
    )


def schema() -> tantivy.Schema:
    """The fields. Changing one makes the indexes of users unreadable: they rebuild."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("cluster", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("epoch", stored=True, fast=True)
    builder.add_boolean_field("deleted", indexed=True, fast=True)
    builder.add_unsigned_field("slice", indexed=True)
    builder.add_float_field("authority", fast=True)
    builder.add_text_field("title", stored=True, tokenizer_name="words")
    builder.add_text_field("text", stored=True, tokenizer_name="words")
    builder.add_text_field("anchors", tokenizer_name="words")
    builder.add_text_field("url", tokenizer_name="words")
    builder.add_text_field("host", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("language", tokenizer_name="raw", index_option="basic")
    # What is only shown, as JSON; stored bytes are neither searched nor counted.
    builder.add_bytes_field("shown", stored=True)
    return builder.build()


def tombstone(cluster: str, epoch: int) -> tantivy.Document:
    """Return what keeps the epoch of a deleted cluster."""
    stored = tantivy.Document()
    stored.add_text("cluster", cluster)
    stored.add_unsigned("epoch", epoch)
    stored.add_boolean("deleted", True)
    return stored


def to_stored(document: ServingDocument) -> tantivy.Document:
    """Return the form in which a document is indexed."""
    stored = tantivy.Document()
    stored.add_text("cluster", document.cluster)
    stored.add_unsigned("epoch", document.epoch)
    stored.add_boolean("deleted", False)
    stored.add_unsigned("slice", zlib.crc32(document.cluster.encode()) % SLICES)
    stored.add_float("authority", _authority(document))
    stored.add_text("title", document.title)
    stored.add_text("text", document.text)
    for text, count in document.anchors:
        # An anchor's weight grows with its links, but ten thousand are not a thousand times ten.
        for _ in range(max(1, count).bit_length()):
            stored.add_text("anchors", text)
    stored.add_text("url", document.url)
    stored.add_text("host", document.host)
    if document.language is not None:
        stored.add_text("language", document.language)
    shown = {
        "url": document.url,
        "host": document.host,
        "language": document.language,
        "anchors": document.anchors,
        "duplicates": document.duplicates,
        "inlinks": document.inlinks,
        "rank": document.rank,
    }
    stored.add_bytes("shown", json.dumps(shown, ensure_ascii=False).encode())
    return stored


def _authority(document: ServingDocument) -> float:
    factor = 1 + 0.1 * math.log1p(document.inlinks) + 0.1 * math.log1p(document.rank)
    # Tantivy multiplies a score by log2(2 + field).
    return math.exp2(factor) - 2


def from_stored(stored: tantivy.Document) -> ServingDocument:
    """Return the document that `to_stored` was given."""
    shown = json.loads(bytes(first(stored, "shown")))
    return ServingDocument(
        cluster=first(stored, "cluster"),
        epoch=first(stored, "epoch"),
        url=shown["url"],
        title=first(stored, "title"),
        text=first(stored, "text"),
        language=shown["language"],
        host=shown["host"],
        anchors=tuple((text, count) for text, count in shown["anchors"]),
        duplicates=tuple(shown["duplicates"]),
        inlinks=shown["inlinks"],
        rank=shown["rank"],
    )


def first(stored: tantivy.Document, field: str) -> Any:
    """Return a stored field's value."""
    return stored.get_first(field)
