"""How a serving document, or the tombstone of a deleted one, is stored in a Tantivy index."""

from __future__ import annotations

import json
import math
import zlib
from typing import Any, Final

import tantivy

from webindex.serving.base import ServingDocument
from webindex.serving.content import (
    LEAST_SHARE,
    Analyzers,
    authority,
    own_share,
    seconds,
    url_words,
)
from webindex.serving.naming import names, telling

FORMAT: Final = 6
"""The version of everything in this module. An index of another version is refused."""

# `clusters` reads the index slice by slice, to hold few of its rows at a time.
SLICES = 64


def analyzers_of_fields(analyzers: Analyzers) -> dict[str, tantivy.TextAnalyzer]:
    """The analyzers of an index's fields for what `to_stored` returns, by the names in `schema`."""
    return {
        "words": analyzers.of_words,
        "stems": analyzers.of_stems,
        "names": analyzers.of_names,
    }


def schema() -> tantivy.Schema:
    """The fields. Changing one, or its content, requires another `FORMAT`: users then rebuild.

    Tantivy compares the fields of an index with these: so one of them names the format.
    """
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field(f"format_{FORMAT}")
    builder.add_text_field("cluster", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("epoch", stored=True, fast=True)
    builder.add_boolean_field("deleted", indexed=True, fast=True)
    builder.add_unsigned_field("slice", indexed=True)
    builder.add_float_field("authority", fast=True)
    builder.add_unsigned_field("changed", fast=True, indexed=True)
    builder.add_text_field("title", tokenizer_name="words")
    builder.add_text_field("text", tokenizer_name="words")
    builder.add_text_field("headings", tokenizer_name="words")
    builder.add_text_field("anchors", tokenizer_name="words")
    builder.add_text_field("url", tokenizer_name="words")
    # The same in stems: what scores a word. Phrases are sought above, where words have positions.
    for field in ("title", "text", "headings", "anchors"):
        builder.add_text_field(f"{field}_stems", tokenizer_name="stems", index_option="freq")
    builder.add_text_field("identifiers", tokenizer_name="names", index_option="freq")
    builder.add_text_field("names", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("called", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("address", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("host", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("language", tokenizer_name="raw", index_option="basic")
    # Data for display only, as JSON; stored bytes are neither searched nor counted.
    builder.add_bytes_field("shown", stored=True)
    return builder.build()


def tombstone(cluster: str, epoch: int) -> tantivy.Document:
    """Return the document that keeps the epoch of a deleted cluster."""
    stored = tantivy.Document()
    stored.add_text("cluster", cluster)
    stored.add_unsigned("epoch", epoch)
    stored.add_boolean("deleted", True)
    return stored


def to_stored(document: ServingDocument, analyzers: Analyzers) -> tantivy.Document:
    """Return the form in which a document is indexed."""

    def add(field: str, text: str, times: int = 1) -> None:
        words = analyzers.split(text)
        stems = analyzers.stems(words, document.language)
        for name, some in ((field, words), (f"{field}_stems", stems)):
            joined = " ".join(some)
            for _ in range(times):
                stored.add_text(name, joined)

    stored = tantivy.Document()
    stored.add_text("cluster", document.cluster)
    stored.add_unsigned("epoch", document.epoch)
    stored.add_boolean("deleted", False)
    stored.add_unsigned("slice", zlib.crc32(document.cluster.encode()) % SLICES)
    worth = authority(document.rank, document.inlinks)
    worth *= own_share(document.linked, len(document.text))
    # Tantivy multiplies a score by log2(2 + field), and so by no less than 1.
    stored.add_float("authority", math.exp2(worth / LEAST_SHARE) - 2)
    stored.add_unsigned("changed", seconds(document.changed))
    anchors = telling(document.anchors)
    add("title", document.title)
    add("text", document.text)
    add("headings", "\n".join(document.headings))
    for text, count in anchors:
        # An anchor's weight grows with its links, but ten thousand are not a thousand times ten.
        add("anchors", text, max(1, count).bit_length())
    for text in (document.title, *document.headings, document.text):
        stored.add_text("identifiers", " ".join(analyzers.identifiers(text)))
    for field, called in (
        ("names", names(document.title)),
        ("called", [*document.headings, *(text for text, _ in anchors)]),
    ):
        for name in {analyzers.name(text) for text in called} - {""}:
            stored.add_text(field, name)
    stored.add_text("url", " ".join(analyzers.split(url_words(document.url))))
    for url in (document.url, *document.duplicates, *document.aliases):
        stored.add_text("address", url)
    stored.add_text("host", document.host)
    if document.language is not None:
        stored.add_text("language", document.language)
    shown = {
        "title": document.title,
        "text": document.text,
        "url": document.url,
        "host": document.host,
        "language": document.language,
        "anchors": document.anchors,
        "duplicates": document.duplicates,
        "inlinks": document.inlinks,
        "rank": document.rank,
        "aliases": document.aliases,
        "headings": document.headings,
        "linked": document.linked,
        "changed": document.changed,
        "more": document.more,
    }
    stored.add_bytes("shown", json.dumps(shown, ensure_ascii=False).encode())
    return stored


def from_stored(stored: tantivy.Document) -> ServingDocument:
    """Return the document that `to_stored` was given."""
    shown = json.loads(bytes(first(stored, "shown")))
    return ServingDocument(
        cluster=first(stored, "cluster"),
        epoch=first(stored, "epoch"),
        url=shown["url"],
        title=shown["title"],
        text=shown["text"],
        language=shown["language"],
        host=shown["host"],
        anchors=tuple((text, count) for text, count in shown["anchors"]),
        duplicates=tuple(shown["duplicates"]),
        inlinks=shown["inlinks"],
        rank=shown["rank"],
        aliases=tuple(shown["aliases"]),
        headings=tuple(shown["headings"]),
        linked=shown["linked"],
        changed=shown["changed"],
        more=shown.get("more", 0),
    )


def first(stored: tantivy.Document, field: str) -> Any:
    """Return a stored field's value."""
    return stored.get_first(field)
