"""The piece of a text that is shown under a hit, with the words of the query marked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from webindex.serving.base import Runner

CHARACTERS = 200

Words = Callable[[str], list[str]]
"""The index's tokenizer: splits a text into words."""


_LETTERS = re.compile(r"[^\W_]+")
_AROUND = 600
"""Characters before and after the place that `part` chooses."""


def beginning(text: str, starts: Iterable[str]) -> list[str]:
    """The distinct words of a text, in lower case, that may begin as one of these does."""
    firsts = {start[:1] for start in starts}
    found = set(_LETTERS.findall(text.lower()))
    return [word for word in found if word[0] in firsts or not word[0].isascii()]


def part(text: str, words: Iterable[str]) -> str:
    """The part of a text with most of these words near each other; all of it if it has none.

    Splitting and scoring all of a long text takes a library longer than finding ten hits.
    """
    low = text.lower()
    if len(text) <= 2 * _AROUND or len(low) != len(text):
        return text
    either = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    recent: dict[str, int] = {}
    best, chosen = 0, -1
    for found in re.finditer(rf"(?<![^\W_])(?:{either})(?![^\W_])", low) if either else ():
        recent[found[0]] = found.start()
        near = sum(found.start() - at < CHARACTERS for at in recent.values())
        if near > best:
            best, chosen = near, found.start()
    if chosen < 0:
        return text
    start = max(0, chosen - _AROUND)
    # Not within a word.
    start = text.find(" ", start) + 1 if start else 0
    return text[start : chosen + _AROUND]


def opening(text: str) -> Runner:
    """Return the beginning of a text, shown when the query matched elsewhere."""
    return ((text[:CHARACTERS], False),) if text else ()


def mark(
    fragment: str,
    places: Sequence[tuple[int, int]],
    sought: Sequence[Sequence[str]],
    words: Words,
) -> Runner:
    """Cut a fragment into runs.

    A search library marks each word of a phrase wherever it occurs. In a script that is indexed
    letter by letter that is nearly every letter, so only whole phrases are kept.

    Args:
        fragment: the text to show.
        places: the positions of the query's words in it, as (start, end) in bytes of UTF-8.
        sought: each clause of the query as words.
        words: splits a text into words as the index does.
    """
    encoded = fragment.encode()
    places = sorted(set(places))
    found = ["".join(words(encoded[start:end].decode())) for start, end in places]
    joined = [
        not words(encoded[end:start].decode())
        for (_, end), (start, _) in itertools.pairwise(places)
    ]
    spans = []
    for phrase in map(list, sought):
        for first in range(len(places) - len(phrase) + 1):
            last = first + len(phrase) - 1
            if found[first : last + 1] == phrase and all(joined[first:last]):
                spans.append((places[first][0], places[last][1]))

    runs: list[tuple[bytes, bool]] = []
    done = 0
    for span_start, end in sorted(spans):
        if end <= done:
            continue
        start = max(span_start, done)
        if start > done:
            runs.append((encoded[done:start], False))
            runs.append((encoded[start:end], True))
        elif runs:
            runs[-1] = (runs[-1][0] + encoded[start:end], True)
        else:
            runs.append((encoded[start:end], True))
        done = end
    if done < len(encoded):
        runs.append((encoded[done:], False))
    return tuple((run.decode(), matched) for run, matched in runs)
