"""The piece of a text that is shown under a hit, with the words of the query marked."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from webindex.serving.base import Runner

CHARACTERS = 200

Words = Callable[[str], list[str]]
"""The index's tokenizer: splits a text into words."""


_LETTERS = re.compile(r"[^\W_]+")
_AROUND = 600
"""Characters before and after the place that `part` chooses."""
_NEAR = 50
"""The most places of words that may be shown together."""
_PLACES = 500
"""The most words to mark: in a long text that is not cut to a part there may be thousands."""
_ACCENTED = re.compile("[\u00e0-\u024f\u1e00-\u1eff]")
_BASES = {
    one: base
    for one in map(chr, chain(range(0xE0, 0x250), range(0x1E00, 0x1F00)))
    if (base := unicodedata.normalize("NFD", one)[0]).isascii()
}
"""Accented letters without their accents."""
_UNSPACED = "\u0e00"
"""From Thai on, most scripts have no spaces between words."""


def beginning(text: str, starts: Iterable[str]) -> list[str]:
    """The distinct words of a text, in lower case, that may begin as one of these does."""
    firsts = {start[:1] for start in starts}
    found = set(_LETTERS.findall(text.lower()))
    return [word for word in found if word[0] in firsts or not word[0].isascii()]


def part(text: str, sought: Mapping[tuple[str, ...], int]) -> tuple[int, int]:
    """Where most clauses of a query are near each other in a text, with some text around.

    All of a text in which none is found, as it may be written in another way; nothing of it if none
    of the words could be. Splitting and scoring all of a long text takes a library longer than
    finding ten hits.

    Args:
        text: the text.
        sought: words side by side, each with the number of the clause that they are found by.
    """
    low = text.lower()
    if len(text) <= 2 * _AROUND or len(low) != len(text):
        return 0, len(text)
    if not low.isascii():
        low = _ACCENTED.sub(lambda found: _BASES.get(found[0], found[0]), low)
    clauses = {mark.join(words): sought[words] for words in sought for mark in ("", " ")}
    number = len({*sought.values()})
    longest_first = sorted(sought, key=lambda words: -sum(map(len, words)))
    # With a group or a look around each, the search would take several times as long.
    either = "|".join(r"[\W_]*".join(map(re.escape, words)) for words in longest_first)
    recent: dict[int | str, int] = {}
    best, chosen = 0, -1
    for found in re.finditer(either, low) if either else ():
        start, end = found.span()
        if _goes_on(low, start) or _goes_on(low, end):
            continue
        # A phrase with something else between its words counts for itself.
        recent[clauses.get(found[0], found[0])] = start
        near = sum(start - at < CHARACTERS for at in recent.values())
        if near > best:
            best, chosen = near, start
            if near >= number:
                break
    if chosen < 0:
        return 0, len(text) if any(map(str.isascii, chain.from_iterable(sought))) else 0
    start = max(0, chosen - _AROUND)
    # Not within a word.
    start = text.find(" ", start, chosen) + 1 or start
    return start, min(len(text), chosen + _AROUND)


def _goes_on(text: str, at: int) -> bool:
    """Whether there is a word on both sides of a place; never where letters are words."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    return before.isalnum() and after.isalnum() and max(before, after) < _UNSPACED


def opening(text: str) -> Runner:
    """Return the beginning of a text, shown when the query matched elsewhere."""
    return ((text[:CHARACTERS], False),) if text else ()


def mark(
    fragment: str,
    places: Sequence[tuple[int, int]],
    sought: Sequence[Sequence[str]],
    words: Words,
) -> Runner:
    """Cut a fragment into runs; see `spans_of`."""
    spans = spans_of(fragment, places, sought, words)
    return runs_of(fragment, ((start, end) for start, end, _ in spans))


def spans_of(
    fragment: str,
    places: Sequence[tuple[int, int]],
    sought: Sequence[Sequence[str]],
    words: Words,
) -> list[tuple[int, int, int]]:
    """What to mark in a fragment: from which character to which, and which of `sought` it is.

    A search library marks each word of a phrase wherever it occurs. In a script that is indexed
    letter by letter that is nearly every letter, so only whole phrases are kept.

    Args:
        fragment: the text to show.
        places: the positions of the query's words in it, as (start, end) in bytes of UTF-8.
        sought: each clause of the query as words.
        words: splits a text into words as the index does.
    """
    encoded = fragment.encode()
    places = sorted(set(places))[:_PLACES]
    found = ["".join(words(encoded[start:end].decode())) for start, end in places]
    joined = [
        not words(encoded[end:start].decode())
        for (_, end), (start, _) in itertools.pairwise(places)
    ]
    before, characters, at = 0, {}, 0
    for place in sorted(chain.from_iterable(places)):
        at += len(encoded[before:place].decode())
        before, characters[place] = place, at
    spans = []
    for number, phrase in enumerate(map(list, sought)):
        for first in range(len(places) - len(phrase) + 1):
            last = first + len(phrase) - 1
            if found[first : last + 1] == phrase and all(joined[first:last]):
                spans.append((characters[places[first][0]], characters[places[last][1]], number))
    return sorted(spans)


def around(text: str, spans: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """What to show of a text: the place where most clauses of the query are near each other.

    Args:
        text: the text.
        spans: what to mark, in characters, in order, each with the number of its clause.
    """
    best, first, last = 0, 0, 0
    for at, (start, _, _) in enumerate(spans):
        near = [
            one for one in itertools.islice(spans, at, at + _NEAR) if one[1] - start <= CHARACTERS
        ]
        clauses = len({clause for _, _, clause in near})
        if clauses > best or not at:
            best, first, last = clauses, start, max((end for _, end, _ in near), default=start)
    start = max(0, first - max(0, CHARACTERS - (last - first)) // 2)
    end = min(len(text), start + CHARACTERS)
    start = max(0, min(start, end - CHARACTERS))
    # Not within a word.
    if start:
        start = text.find(" ", start, first) + 1 or start
    if end < len(text):
        space = text.rfind(" ", last, end)
        end = space if space > 0 else end
    return start, end


def runs_of(text: str, spans: Iterable[tuple[int, int]]) -> Runner:
    """A text in runs, those in these spans marked; spans may overlap."""
    runs: list[tuple[str, bool]] = []
    done = 0
    for span_start, end in sorted(spans):
        if end <= done:
            continue
        start = max(span_start, done)
        if start > done:
            runs.append((text[done:start], False))
            runs.append((text[start:end], True))
        elif runs:
            runs[-1] = (runs[-1][0] + text[start:end], True)
        else:
            runs.append((text[start:end], True))
        done = end
    if done < len(text):
        runs.append((text[done:], False))
    return tuple(runs)
