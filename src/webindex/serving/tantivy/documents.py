"""How a serving document, or the tombstone of a deleted one, is stored in a Tantivy index."""

from __future__ import annotations

import json
import math
import re
import zlib
from typing import Any, Final
from urllib.parse import unquote

import tantivy

from webindex.serving.base import ServingDocument

FORMAT: Final = 2
"""The version of everything in this module. An index of another version is refused."""

MOST_AUTHORITY: Final = 3.0
"""The largest factor for a page's score."""

_LONGEST_WORD_BYTES = 80

# The technology of a page is not its subject.
_EXTENSION = re.compile(r"\.(?:[sx]?html?|php|aspx?|jsp|cgi)(?=$|\?)", re.IGNORECASE)

# `clusters` reads the index slice by slice, to hold few of its rows at a time.
SLICES = 64

# Scripts written without spaces, and Korean, which glues particles to its words, are indexed
# letter by letter; a query's run of such letters is searched as a phrase, thus as a substring.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Bopomofo}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
)
_WORD = rf"[{_UNSPACED}]|[\p{{L}}\p{{M}}\p{{N}}&&[^{_UNSPACED}]]+"


def analyzer() -> tantivy.TextAnalyzer:
    """The analyzer of texts and queries: words in lower case, without accents."""
    return (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_WORD))
        .filter(tantivy.Filter.remove_long(_LONGEST_WORD_BYTES))
        .filter(tantivy.Filter.lowercase())
        .filter(tantivy.Filter.ascii_fold())
        .build()
    )


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
    builder.add_text_field("title", stored=True, tokenizer_name="words")
    builder.add_text_field("text", stored=True, tokenizer_name="words")
    builder.add_text_field("anchors", tokenizer_name="words")
    builder.add_text_field("url", tokenizer_name="words")
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


def to_stored(document: ServingDocument) -> tantivy.Document:
    """Return the form in which a document is indexed."""
    stored = tantivy.Document()
    stored.add_text("cluster", document.cluster)
    stored.add_unsigned("epoch", document.epoch)
    stored.add_boolean("deleted", False)
    stored.add_unsigned("slice", zlib.crc32(document.cluster.encode()) % SLICES)
    # Tantivy multiplies a score by log2(2 + field).
    stored.add_float("authority", math.exp2(authority(document.rank, document.inlinks)) - 2)
    stored.add_text("title", document.title)
    stored.add_text("text", document.text)
    for text, count in document.anchors:
        # An anchor's weight grows with its links, but ten thousand are not a thousand times ten.
        for _ in range(max(1, count).bit_length()):
            stored.add_text("anchors", text)
    stored.add_text("url", url_words(document.url))
    for url in (document.url, *document.duplicates, *document.aliases):
        stored.add_text("address", url)
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
        "aliases": document.aliases,
    }
    stored.add_bytes("shown", json.dumps(shown, ensure_ascii=False).encode())
    return stored


def authority(rank: float, inlinks: int) -> float:
    """The factor for a document's score: 1 for a page without links, at most 3.

        1 + 0.3 · ln(1 + rank), but no more than 3

    PageRank is spread over orders of magnitude, so its logarithm counts: a page of
    average rank gets 1.2, one of ten times that 1.7. It is bounded, because a page that everyone
    links to is still not the answer to every query that shares a word with it; and it is a
    factor, not a summand, since the size of BM25's scores depends on how many and how rare the
    words of the query are.

    A page whose rank is not known yet, because it is new or `webindex rank` has never run, is
    treated as having a rank of a tenth of its in-links, and of 10 at most. Once there is a rank,
    it alone counts: it includes the in-links already.
    """
    known = rank if rank > 0 else min(10.0, inlinks / 10)
    return min(MOST_AUTHORITY, 1 + 0.3 * math.log1p(known))


def url_words(url: str) -> str:
    """The words of a URL's host, path and query, without those that all URLs have."""
    place = url.partition("://")[2] or url
    host, slash, path = place.partition("/")
    labels = [_decoded(label) for label in host.removeprefix("www.").split(".")]
    return f"{'.'.join(labels)}{slash}{_EXTENSION.sub('', unquote(path))}"


def _decoded(label: str) -> str:
    if not label.startswith("xn--"):
        return label
    try:
        return label.encode("ascii").decode("idna")
    except UnicodeError:
        return label


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
        aliases=tuple(shown["aliases"]),
    )


def first(stored: tantivy.Document, field: str) -> Any:
    """Return a stored field's value."""
    return stored.get_first(field)
