"""What a document or a query consists of for every serving index: words, stems, names, weights.

The analysers are those of Tantivy, which needs no index for them.
"""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import unquote

import tantivy

MOST_AUTHORITY: Final = 3.0
"""The largest factor for a page's score."""

LEAST_SHARE: Final = 0.2
"""The least factor for a long list of links."""

LONGEST_WORD_BYTES: Final = 80
"""Words of so many bytes, and longer ones, are not indexed."""

# The technology of a page is not its subject.
_EXTENSION = re.compile(r"\.(?:[sx]?html?|php|aspx?|jsp|cgi)(?=$|\?)", re.IGNORECASE)

# Scripts written without spaces, and Korean, which glues particles to its words, are indexed
# letter by letter; a query's run of such letters is searched as a phrase, thus as a substring.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Bopomofo}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
)
_WORD = rf"[{_UNSPACED}]|[\p{{L}}\p{{M}}\p{{N}}&&[^{_UNSPACED}]]+"

# A word with the signs that names of programs have, and such a name: a digit or a sign is in it.
_NAMED = r"[\p{L}\p{M}\p{N}_$]+"
_NAME = r"[\p{L}\p{M}]*[\p{N}_$][\p{L}\p{M}\p{N}_$]*"

# Tantivy's regular expressions take three times as long as Python's. In texts without these
# characters (marks, and letters from Armenian on) Python's classes mean the same as the above.
_OTHERS = re.compile(
    r"[\u02ea\u02eb\u0300-\u036f\u0483-\u0489\u0530-\u1dff\u20d0-\u20ff\u2c00-\U0010ffff]"
)


def _foldings() -> dict[str, str]:
    # Marks that most writers of Arabic and Hebrew leave out, and that stretch a line; and those
    # that no letter is composed of, as the stress in "Росси\u0301я".
    marks = (
        "\u0640\u064b-\u065f\u0670\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0300-\u036f"
    )
    found = {one: "" for one in map(chr, range(0x300, 0x680)) if re.match(f"[{marks}]", one)}
    # Letters that Tantivy's lower case leaves apart: "İstanbul" from "istanbul".
    found |= {"\u0130": "I", "\u03c2": "\u03c3"}
    # Capitals have no accents in Greek, "ΟΔΟΣ" beside "οδός"; and most write "е" for "ё".
    for one in map(chr, (0x401, 0x451, *range(0x386, 0x3CF), *range(0x1F00, 0x2000))):
        base = unicodedata.normalize("NFD", one)[0]
        if base != one and base.isalpha():
            found[one] = base
    return found


FOLDED: Final = _foldings()
"""What the words of a text have in place of characters; nothing in place of marks."""
_FOLDED = re.compile(f"[{''.join(FOLDED)}]")
_PLAIN_WORD = re.compile(r"[^\W_]+")
_PLAIN_NAMED = re.compile(r"[\w$]+")

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


def _builder(tokenizer: tantivy.Tokenizer) -> tantivy.TextAnalyzerBuilder:
    return tantivy.TextAnalyzerBuilder(tokenizer).filter(
        tantivy.Filter.remove_long(LONGEST_WORD_BYTES)
    )


def _analyzer(tokenizer: tantivy.Tokenizer, language: str | None = None) -> tantivy.TextAnalyzer:
    builder = _builder(tokenizer).filter(tantivy.Filter.lowercase())
    if language is not None:
        builder = builder.filter(tantivy.Filter.stemmer(_STEMMED[language]))
    return builder.filter(tantivy.Filter.ascii_fold()).build()


def _splitting(pattern: str) -> tantivy.TextAnalyzer:
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(pattern)).build()


def _folded(text: str) -> str:
    """A text without marks and letters that say nothing about which word it is."""
    if text.isascii():
        return text
    return _FOLDED.sub(lambda found: FOLDED[found[0]], text)


def folded(text: str) -> tuple[str, Callable[[int], int]]:
    """A text as words are found in it, and where a place in it is in the text as it was."""
    if text.isascii() or _FOLDED.search(text) is None:
        return text, lambda place: place
    gone = (found.start() for found in _FOLDED.finditer(text) if not FOLDED[found[0]])
    # How long the folded text is at each mark that is left out.
    lengths = [place - before for before, place in enumerate(gone)]
    return _folded(text), lambda place: place + bisect_right(lengths, place)


def _found(text: str, plain: re.Pattern[str], other: tantivy.TextAnalyzer) -> list[str]:
    """What a pattern finds in a text: by Python if that means the same, else by Tantivy."""
    return plain.findall(text) if _OTHERS.search(text) is None else other.analyze(text)


class Analyzers:
    """The analyzers of an index; for any thread.

    Attributes:
        of_words: words between blanks, in lower case and without accents.
        of_stems: stems between blanks, as they are.
        of_names: names between blanks, in lower case.
    """

    def __init__(self) -> None:
        blanks = tantivy.Tokenizer.whitespace()
        self.of_words = _analyzer(blanks)
        self.of_stems = _builder(blanks).build()
        self.of_names = _builder(blanks).filter(tantivy.Filter.lowercase()).build()
        self._word, self._name, self._named = map(_splitting, (_WORD, _NAME, _NAMED))
        self._stemming = {language: _analyzer(blanks, language) for language in _STEMMED}
        self._folding = (
            tantivy.TextAnalyzerBuilder(blanks)
            .filter(tantivy.Filter.lowercase())
            .filter(tantivy.Filter.ascii_fold())
            .build()
        )

    def split(self, text: str) -> list[str]:
        """The words of a text, as they are but for marks that most writers leave out."""
        return _found(_folded(text), _PLAIN_WORD, self._word)

    def words(self, text: str) -> list[str]:
        """The words of a text, in lower case and without accents."""
        return self.of_words.analyze(" ".join(self.split(text)))

    def places(self, text: str, sought: Iterable[str]) -> list[tuple[int, int, str]]:
        """The words of a text that `folded` returned: where each begins and ends, and the word.

        None of them if the text has none of those that are sought.
        """
        split = self.split(text)
        # As of all that is indexed.
        short = [one for one in dict.fromkeys(split) if len(one.encode()) < LONGEST_WORD_BYTES]
        words = dict(zip(short, self.of_words.analyze(" ".join(short)), strict=True))
        found: list[tuple[int, int, str]] = []
        if not {*sought}.isdisjoint(words.values()):
            end = 0
            for one in split:
                start = text.index(one, end)
                end = start + len(one)
                if one in words:
                    found.append((start, end, words[one]))
        return found

    def stems(self, words: list[str], language: str | None) -> list[str]:
        """The stems of the words that `split` returned, in lower case and without accents.

        As many as `words` returns, in the same order; those words in a language without a stemmer.
        """
        return self._stemming.get(language or "", self.of_words).analyze(" ".join(words))

    def identifiers(self, text: str) -> list[str]:
        """The names of programs in a text, such as `pg_dump`, as they are."""
        if _OTHERS.search(text) is None:
            return [word for word in _PLAIN_NAMED.findall(text) if not word.isalpha()]
        return self._name.analyze(text)

    def name(self, text: str) -> str:
        """The words of a text in a row, by which it is sought as a whole.

        It keeps its identifiers: `pg_dump` is not "pg dump".
        """
        words = _found(_folded(text), _PLAIN_NAMED, self._named)
        return " ".join(self._folding.analyze(" ".join(words)))


def is_word(text: str) -> bool:
    """Whether a text consists of the letters, marks and digits of words."""
    return bool(text) and all(unicodedata.category(one)[0] in "LMN" for one in text)


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
