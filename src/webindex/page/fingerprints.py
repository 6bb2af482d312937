"""Fingerprints of a page's text: whether two pages are the same, or nearly the same.

`text_hash` decides exact duplicates, `heading` and `Sketch` near-duplicates. A page of fewer than
`MIN_TOKENS` tokens has too few words to be compared by them: hundreds of unrelated pages read
"Not found" or "Next Previous". Such a page equals only pages of the very same bytes.

Pages that a program generates from one template share most of their words but are different
pages; a mirror of a page has the same title and words but another menu around them. So two pages
are near-duplicates if all of this holds, regardless of the other pages of their sites:

    the same heading          their titles, without dates and the version of the site
    no other name             the words that a main heading adds to the title, where both pages
                              have such words
    no other subject          not each of them repeats a word that the other one does not have:
                              generated pages name what they describe more than once
    no other identifier       not each of them has a program identifier that the other one
                              does not have, and neither repeats one that the other lacks;
                              none at all if nothing else differs. A short page repeats no word
                              and has no identifier that the other one lacks
    few other words           in one of them hardly any distinct words that the other one lacks,
                              in the other one not many: see `Sketch.is_near`

All values are the same on every machine and in every run: they are stored and compared for years.
"""

import itertools
import re
import struct
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import xxhash

__all__ = ["MIN_TOKENS", "Sketch", "heading", "sketch", "text_hash", "tokens"]

MIN_TOKENS: Final = 30
"""Pages with fewer tokens are compared by their bytes only."""

MOST_WORDS: Final = 1024
"""Distinct words that a sketch keeps: of a longer list, those with the smallest hashes."""

MOST_RENAMED: Final = 9
"""If each page has words that the other lacks and one of these is repeated, this many words must be
shared for each that is not: a class copied into another package names that package throughout."""

FEW_WORDS: Final = 30
"""Pages with fewer distinct words must have the same ones: a list of functions and the list of
their types have."""

FEW_TO_NAME: Final = 40
"""In pages with fewer distinct words, a repeated word or an identifier is what they describe."""

LEAST_FRAME: Final = 3
"""A menu or a sentence has at least this many words: an identifier among fewer is the subject."""

BANDS: Final = 6
_ROWS: Final = 2
_HEAD: Final = struct.Struct("<II?")
_MONTHS: Final = frozenset(
    """january february march april may june july august september october november december
    jan feb mar apr jun jul aug sep sept oct nov dec monday tuesday wednesday thursday friday
    saturday sunday mon tue wed thu fri sat sun""".split()  # noqa: SIM905
)
# In a title: versions of three parts or after the word, and years.
_NUMBERED: Final = re.compile(r"\bv?\d+(?:\.\d+){2,}[\w.+~-]*|(?<=version )\d[\w.]*")
_DATED: Final = re.compile(r"\b(?:19|20)\d\d(?:-\d\d){0,2}\b")
# Part of a version, not a name.
_PRERELEASE: Final = re.compile(r"(?:v|r|a|b|p|rc|alpha|beta|rev)\d+")
# The end of a version such as 1.4.0b2: it counts as a number.
_VERSION: Final = re.compile(r"\d+(?:a|b|rc|alpha|beta)\d+")
# Chinese and Japanese are written without spaces: each character counts as a token there.
_TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W\u3040-\u9fff]+")
# In lower case, and a space for each ASCII character that no word contains. Bytes of multi-byte
# UTF-8 characters are unchanged.
_WORDS = bytes(
    byte if byte >= 0x80 else ord(chr(byte).lower()) if re.match(r"\w", chr(byte)) else 0x20
    for byte in range(256)
)

# The same for ASCII alone, without lower-casing.
_CASED = bytes(byte if re.match(r"\w", chr(byte)) and byte < 0x80 else 0x20 for byte in range(256))


class _Hashes(dict[str, int]):
    """Hashes of words, computed on demand: pages share most of their words.

    The two lowest bits are free. The two bits above classify the word: a number or part
    of a version, or too short to name anything.
    """

    def __missing__(self, word: str) -> int:
        found = xxhash.xxh3_64_intdigest(word.encode("utf-8", "replace")) & _HASH
        found |= _NUMBER if word.isdigit() or _VERSION.fullmatch(word) else 0
        found |= _SHORT if len(word) < 3 else 0
        if len(word) <= _LONGEST_WORD and len(self) < _KNOWN_WORDS:
            self[word] = found
        return found


_HASH: Final = 0xFFFF_FFF0
_SHORT: Final = 8
_NUMBER: Final = 4
_IDENTIFIER: Final = 2
_REPEATED: Final = 1
_BITS: Final = 4
_KNOWN_WORDS: Final = 1 << 16
_LONGEST_WORD: Final = 32
_hashes = _Hashes()


def tokens(text: str) -> list[str]:
    """Return the words of `text` in lower case; each Chinese or Japanese character is a word."""
    # Most words are ASCII even in non-ASCII texts: those need no regular expression.
    if text.isascii():
        return text.encode("ascii").translate(_WORDS).decode("ascii").split()
    plain = text.lower().encode("utf-8", "surrogatepass").translate(_WORDS)
    found: list[str] = []
    for words in plain.decode("utf-8", "surrogatepass").split():
        if words.isascii():
            found.append(words)
        else:
            found += _TOKEN.findall(words)
    return found


def text_hash(text: str, words: list[str], body: bytes, name: str = "") -> str:
    """Return the key of pages with exactly this text: a tag, a colon and 32 hex digits.

    ``text:…`` is the XXH3-128 of `text`, whose whitespace is already normalised, and of `name`.
    Pages that have fewer than `MIN_TOKENS` of `words` get ``bytes:…``, the hash of `body` as it
    was served.
    """
    if len(words) < MIN_TOKENS:
        return "bytes:" + xxhash.xxh3_128_hexdigest(body)
    whole = f"{name}\0{text}" if name else text
    return "text:" + xxhash.xxh3_128_hexdigest(whole.encode("utf-8", "replace"))


def heading(title: str) -> str:
    """Return a title in lower case, its dates and its version as `#`: near-duplicates share it.

    Of several versions only the last one is that of the site or the documentation. The others are
    what the page is about: "Tea 1.4.3 release notes — Tea 3.2.25 documentation". Other characters
    than letters count as well: they distinguish the entries "<" and ">" of an index.
    """
    plain = title.lower()
    if versions := list(_NUMBERED.finditer(plain)):
        start, end = versions[-1].span()
        plain = f"{plain[:start]}#{plain[end:]}"
    return _undated(plain)


def _undated(plain: str) -> str:
    words = _DATED.sub("#", plain).split()
    return " ".join("#" if word.strip(".,()") in _MONTHS else word for word in words)


def own_name(main_heading: str, heading: str) -> str:
    """Return the words of a page's main heading that are not in its title (`heading`).

    Dates and versions do not count.
    """
    known = set(tokens(heading))
    plain = _undated(_NUMBERED.sub("#", main_heading.lower()))
    return " ".join(word for word in tokens(plain) if word not in known)


def heading_key(heading: str) -> str:
    """Return a heading as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(heading.encode("utf-8", "replace"))


@dataclass(frozen=True)
class Sketch:
    """The distinct words of a page, as used to detect near-duplicates.

    Attributes:
        tokens: how many words the text has, repeated ones included.
        name: a hash of the page's own name beside its title; 0 if it has none.
        titled: whether the title, or that name, is about this very page. A title of which hardly
            a word occurs in the text is the site's: such pages must be more alike.
        values: the smallest hashes of its words in ascending order, each with its class.
    """

    tokens: int
    name: int
    titled: bool
    values: tuple[int, ...]

    def pack(self) -> bytes:
        """The bytes in which it is stored."""
        packed = struct.pack(f"<{len(self.values)}I", *self.values)
        return _HEAD.pack(self.tokens, self.name, self.titled) + packed

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The sketch that `pack` stored."""
        size = _HEAD.size
        values = struct.unpack(f"<{(len(packed) - size) // 4}I", packed[size:])
        words, name, titled = _HEAD.unpack_from(packed)
        return cls(words, name, titled, values)

    @cached_property
    def bands(self) -> list[str]:
        """Keys of which two sketches that are near share at least one, but for rare cases.

        The words are distributed to `BANDS` × 2 places by their hashes, and each place keeps its
        smallest word (one permutation hashing, Li, Owen and Zhang 2012). The probability that two
        pages have the same word in a place is the fraction of all their words that both have.
        """
        places = BANDS * _ROWS
        smallest = [0xFFFF_FFFF] * places
        missing = places
        for value in self.values:
            if not value & _NUMBER:
                word = value >> _BITS
                if smallest[word % places] == 0xFFFF_FFFF:
                    smallest[word % places] = word
                    missing -= 1
                    if not missing:
                        break
        return [
            f"{number}/{smallest[at]:08x}{smallest[at + 1]:08x}"
            for number, at in enumerate(range(0, places, _ROWS))
        ]

    def is_near(self, other: "Sketch") -> bool:
        """Whether two pages of the same heading are near-duplicates; symmetric.

        A mirror or an editor of prose never changes an identifier. A page that repeats one
        which the other lacks describes something else, unless it is long.

        The bounds: of one page, one word in fifty and two more may be missing in the other
        (changed words), but no more than a sixteenth of the distinct ones. The other one may have
        a fourth more, or 28 words if they share half as many again: a menu that the parser did
        not recognise as navigation, a banner, a sentence. Under a title that says nothing about the
        page, a sixtieth and a thirtieth, or a fifteenth if nothing was changed.
        Dates make numbers differ; numbers are counted separately.
        """
        if self.name and other.name and self.name != other.name:
            return False
        mine, its = self._words(other), other._words(self)
        left = [value for word, value in mine.items() if word not in its]
        right = [value for word, value in its.items() if word not in mine]
        if any(map(_names, left)) and any(map(_names, right)):
            return False
        words = len(mine) + len(right)
        identifiers = [[v for v in values if v & _IDENTIFIER] for values in (left, right)]
        if all(identifiers):
            return False
        if sum(v & _REPEATED for v in itertools.chain(*identifiers)) > words // 200:
            return False
        repeated = any(map(_names, itertools.chain(left, right)))
        if min(len(mine), len(its)) < FEW_TO_NAME and (repeated or any(identifiers)):
            return False
        fewer, more = sorted(
            sum(not value & _NUMBER for value in values) for values in (left, right)
        )
        if any(identifiers) and fewer + more < LEAST_FRAME:
            return False
        if left and right and repeated and len(left) + len(right) > words / MOST_RENAMED:
            return False
        numbers = sum(bool(value & _NUMBER) for value in left + right)
        if min(len(mine), len(its)) < FEW_WORDS:
            changed, most = 0.0, 0.0
        elif self.titled and other.titled:
            changed = min(2 + min(self.tokens, other.tokens) / 50, max(2.0, words / 16))
            most = min(max(28.0, words / 4), (len(mine) - len(left)) * 2 / 3)
        else:
            changed = max(1.0, words / 60)
            most = max(1.0, words / 30) if fewer else max(6.0, words / 15)
        return fewer <= changed and more <= most and numbers <= max(16, words / 8)

    def likeness(self, other: "Sketch") -> float:
        """The fraction of the words of both pages that each of them has."""
        mine, its = self._words(other), other._words(self)
        return len(mine.keys() & its.keys()) / max(1, len(mine.keys() | its.keys()))

    def _words(self, other: "Sketch") -> dict[int, int]:
        """Its words up to the value where both lists are complete."""
        last = min(
            (one.values[-1] >> _BITS for one in (self, other) if len(one.values) == MOST_WORDS),
            default=0xFFFF_FFFF,
        )
        return {value >> _BITS: value for value in self.values if value >> _BITS <= last}


def _names(value: int) -> bool:
    """Whether a word may be the subject of a page: it is repeated."""
    return value & ~_IDENTIFIER & 15 == _REPEATED


def _identifiers(text: str) -> set[str]:
    """The words of a text, in lower case, that are written like program identifiers."""
    ascii_only = text.encode("ascii", "replace").translate(_CASED).decode("ascii")
    return {word.lower() for word in set(ascii_only.split()) if _is_identifier(word)}


def _is_identifier(word: str) -> bool:
    """Whether a word has letters of both cases mixed, an underscore, or a digit after a letter."""
    if word.isalpha():
        return not (word.islower() or word.istitle() or word.isupper())
    return not word[0].isdigit() and _PRERELEASE.fullmatch(word.lower()) is None


def sketch(text: str, words: list[str], heading: str, name: str) -> Sketch | None:
    """Return the sketch of a text, or None if it has fewer than `MIN_TOKENS` words."""
    if len(words) < MIN_TOKENS:
        return None
    if len(_hashes) >= _KNOWN_WORDS:
        _hashes.clear()
    counts = Counter(words)
    identifiers = _identifiers(text)
    values = sorted(
        _hashes[word] | (_IDENTIFIER if word in identifiers else 0) | (count > 1)
        for word, count in counts.items()
        if word not in _MONTHS
    )
    plain = text.lower()
    titled = bool(name) or any(word in plain for word in tokens(heading) if len(word) > 3)
    named = xxhash.xxh32_intdigest(name.encode("utf-8", "replace")) if name else 0
    return Sketch(len(words), named, titled, tuple(values[:MOST_WORDS]))
