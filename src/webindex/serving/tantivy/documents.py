"""How a serving document, or the tombstone of a deleted one, is stored in a Tantivy index."""

from __future__ import annotations

import datetime
import json
import math
import re
import zlib
from typing import Any, Final
from urllib.parse import unquote

import tantivy

from webindex.serving.base import ServingDocument
from webindex.serving.naming import names, telling

FORMAT: Final = 3
"""The version of everything in this module. An index of another version is refused."""

MOST_AUTHORITY: Final = 3.0
"""The largest factor for a page's score."""

_LEAST_SHARE: Final = 0.2
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


# A name of a program: letters with a digit, an underscore or a dollar sign among them.
_NAME = r"[\p{L}\p{M}]*[\p{N}_$][\p{L}\p{M}\p{N}_$]*"

_NAMED = r"[\p{L}\p{M}\p{N}_$]+"

_STEMMED: Final = {
    "ar": "arabic",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "it": "italian",
    "nb": "norwegian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
}
"""The languages whose words are reduced to their stems, by ISO 639 code."""


def analyzer(language: str | None = None) -> tantivy.TextAnalyzer:
    """The analyzer of texts and queries: words in lower case, without accents.

    With a language that has a stemmer, their stems: as many, in the same order.
    """
    builder = (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_WORD))
        .filter(tantivy.Filter.remove_long(_LONGEST_WORD_BYTES))
        .filter(tantivy.Filter.lowercase())
    )
    if language in _STEMMED:
        builder = builder.filter(tantivy.Filter.stemmer(_STEMMED[language]))
    return builder.filter(tantivy.Filter.ascii_fold()).build()


class Analyzers:
    """The analyzers of an index; for any thread."""

    def __init__(self) -> None:
        self.words = analyzer()
        # A name as a whole keeps its identifiers: `pg_dump` is not "pg dump".
        self._named = (
            tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_NAMED))
            .filter(tantivy.Filter.lowercase())
            .filter(tantivy.Filter.ascii_fold())
            .build()
        )
        self._stemming = {language: analyzer(language) for language in _STEMMED}

    def stems(self, text: str, language: str | None) -> list[str]:
        """The words of a text of this language, each reduced to its stem."""
        return self._stemming.get(language or "", self.words).analyze(text)

    def name(self, text: str) -> str:
        """The words of a text in a row, by which it is sought as a whole."""
        return " ".join(self._named.analyze(text))

    def fields(self) -> dict[str, tantivy.TextAnalyzer]:
        """The analyzers by the names that `schema` has for them."""

        def split(pattern: str) -> tantivy.TextAnalyzerBuilder:
            return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(pattern)).filter(
                tantivy.Filter.remove_long(_LONGEST_WORD_BYTES)
            )

        return {
            "words": self.words,
            "stems": split(r"\S+").build(),
            "names": split(_NAME).filter(tantivy.Filter.lowercase()).build(),
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
    builder.add_text_field("title", stored=True, tokenizer_name="words")
    builder.add_text_field("text", stored=True, tokenizer_name="words")
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
        stems = " ".join(analyzers.stems(text, document.language))
        for _ in range(times):
            stored.add_text(field, text)
            stored.add_text(f"{field}_stems", stems)

    stored = tantivy.Document()
    stored.add_text("cluster", document.cluster)
    stored.add_unsigned("epoch", document.epoch)
    stored.add_boolean("deleted", False)
    stored.add_unsigned("slice", zlib.crc32(document.cluster.encode()) % SLICES)
    worth = authority(document.rank, document.inlinks)
    worth *= own_share(document.linked, len(document.text))
    # Tantivy multiplies a score by log2(2 + field), and so by no less than 1.
    stored.add_float("authority", math.exp2(worth / _LEAST_SHARE) - 2)
    stored.add_unsigned("changed", seconds(document.changed))
    anchors = telling(document.anchors)
    add("title", document.title)
    add("text", document.text)
    add("headings", "\n".join(document.headings))
    for text, count in anchors:
        # An anchor's weight grows with its links, but ten thousand are not a thousand times ten.
        add("anchors", text, max(1, count).bit_length())
    for text in (document.title, *document.headings, document.text):
        stored.add_text("identifiers", text)
    for field, called in (
        ("names", names(document.title)),
        ("called", [*document.headings, *(text for text, _ in anchors)]),
    ):
        for name in {analyzers.name(text) for text in called} - {""}:
            stored.add_text(field, name)
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
        "headings": document.headings,
        "linked": document.linked,
        "changed": document.changed,
        "more": document.more,
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


def own_share(linked: float, characters: int) -> float:
    """The factor for a long list of links: 1 if a third of the page is links, 0.2 if all of it is.

    A generated index has the words of all pages that it lists, and answers no question. The front
    page of a site and the contents of a chapter are links as well, but short.
    """
    share = min(1.0, max(0.0, linked - 1 / 3) / 0.5)
    length = min(1.0, max(0.0, linked * characters - 4_000) / 8_000)
    return 1 - (1 - _LEAST_SHARE) * share * length


def seconds(date: str) -> int:
    """Seconds since 1970 of a date in ISO 8601; 0 if it is empty, no date, or earlier."""
    try:
        found = datetime.datetime.fromisoformat(date)
    except ValueError:
        return 0
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return max(0, int(found.timestamp()))


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
        headings=tuple(shown["headings"]),
        linked=shown["linked"],
        changed=shown["changed"],
        more=shown.get("more", 0),
    )


def first(stored: tantivy.Document, field: str) -> Any:
    """Return a stored field's value."""
    return stored.get_first(field)
