"""Fingerprints of a page's text: equal texts get equal hashes, similar texts near ones.

`text_hash` decides exact duplicates, `simhash` near-duplicates (two pages are near-duplicates when
their fingerprints differ in at most `NEAR` of 64 bits). A page of fewer than `MIN_TOKENS` tokens
says too little to be compared by its words: hundreds of unrelated pages read "Not found" or
"Next Previous". Such a page equals only pages of the very same bytes and has no simhash.

All values are the same on every machine and in every run: they are stored and compared for years.
"""

import re
from typing import Final

import numpy as np
import xxhash

__all__ = ["MIN_TOKENS", "NEAR", "bands", "hamming", "simhash", "text_hash", "tokens"]

MIN_TOKENS: Final = 30
"""Pages with fewer tokens are compared by their bytes only."""

NEAR: Final = 3
"""Largest Hamming distance between the simhashes of near-duplicates."""

# Chinese and Japanese are written without spaces: each character counts as a token there.
_TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W\u3040-\u9fff]+")
# In lower case, and a space for each ASCII character that no word has. Bytes that are part of a
# character in UTF-8 stay as they are.
_WORDS = bytes(
    byte if byte >= 0x80 else ord(chr(byte).lower()) if re.match(r"\w", chr(byte)) else 0x20
    for byte in range(256)
)
_MIX_FIRST = np.uint64(0x9E3779B97F4A7C15)
_MIX_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)


class _Hashes(dict[str, int]):
    """Hashes of words, made when they are asked for: pages share most of their words."""

    def __missing__(self, word: str) -> int:
        found = xxhash.xxh3_64_intdigest(word.encode("utf-8", "replace"))
        if len(word) <= _LONGEST_WORD and len(self) < _KNOWN_WORDS:
            self[word] = found
        return found


_KNOWN_WORDS: Final = 1 << 16
_LONGEST_WORD: Final = 32
_hashes = _Hashes()


def tokens(text: str) -> list[str]:
    """Return the words of `text` in lower case; each Chinese or Japanese character is a word."""
    # Most words are ASCII even in texts that are not: those need no regular expression.
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


def text_hash(text: str, words: list[str], body: bytes) -> str:
    """Return the key of pages with exactly this text: a tag, a colon and 32 hex digits.

    ``text:…`` is the XXH3-128 of `text`, whose whitespace is already normalised. Pages that have
    fewer than `MIN_TOKENS` of `words` get ``bytes:…``, the hash of `body` as it was served.
    """
    if len(words) < MIN_TOKENS:
        return "bytes:" + xxhash.xxh3_128_hexdigest(body)
    return "text:" + xxhash.xxh3_128_hexdigest(text.encode("utf-8", "replace"))


def simhash(words: list[str]) -> int | None:
    """Return the 64-bit simhash of a text, or None if it has fewer than `MIN_TOKENS` words.

    Each distinct run of three words votes on each bit (Charikar 2002; Manku, Jain and Das Sarma
    2007 use 64 bits and distance 3 for web pages). The result is in 0 … 2⁶⁴ - 1.
    """
    if len(words) < MIN_TOKENS:
        return None
    if len(_hashes) >= _KNOWN_WORDS:
        _hashes.clear()
    codes = np.fromiter(map(_hashes.__getitem__, words), dtype="<u8", count=len(words))
    runs = codes[:-2] * _MIX_FIRST ^ codes[1:-1] * _MIX_SECOND ^ codes[2:]
    # What np.unique does, in a third of the time.
    runs.sort()
    first = np.empty(len(runs), dtype=bool)
    first[0] = True
    np.not_equal(runs[1:], runs[:-1], out=first[1:])
    runs = runs[first]
    votes = np.unpackbits(runs.astype("<u8").view(np.uint8)).reshape(-1, 64).sum(axis=0)
    return int.from_bytes(np.packbits(votes * 2 > len(runs)).tobytes(), "little")


def bands(fingerprint: int) -> tuple[int, int, int, int]:
    """Return the four 16-bit bands of a simhash, lowest bits first.

    Two simhashes at distance `NEAR` or less agree in at least one band: three differing bits
    cannot touch all four.
    """
    return (
        fingerprint & 0xFFFF,
        fingerprint >> 16 & 0xFFFF,
        fingerprint >> 32 & 0xFFFF,
        fingerprint >> 48,
    )


def hamming(one: int, other: int) -> int:
    """Return in how many bits two simhashes differ."""
    return (one ^ other).bit_count()
