"""What a document or a query consists of for every serving index: words, stems, names, weights.

The analysers are those of Tantivy, which needs no index for them.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Final
from urllib.parse import unquote

import tantivy

MOST_AUTHORITY: Final = 3.0
"""The largest factor for a page's score."""

LEAST_SHARE: Final = 0.2
"""The least factor for a long list of links."""

LONGEST_WORD_BYTES: Final = 80
"""Longer words are not indexed."""

# The technology of a page is not its subject.
_EXTENSION = re.compile(r"\.(?:[sx]?html?|php|aspx?|jsp|cgi)(?=$|\?)", re.IGNORECASE)

# Scripts written without spaces, and Korean, which glues particles to its words, are indexed
# letter by letter; a query's run of such letters is searched as a phrase, thus as a substring.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Bopomofo}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
)
_WORD = rf"[{_UNSPACED}]|[\p{{L}}\p{{M}}\p{{N}}&&[^{_UNSPACED}]]+"

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
        .filter(tantivy.Filter.remove_long(LONGEST_WORD_BYTES))
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
    return 1 - (1 - LEAST_SHARE) * share * length


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
