"""The piece of a text that is shown under a hit, with the words of the query marked.

Made here for every index: a library's own marks know of no phrases, and its search for other forms
of a word grows with the words of a text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from webindex.serving.base import Runner, ServingDocument
from webindex.serving.content import Analyzers, folded
from webindex.serving.reading import STARTS, Asked

CHARACTERS = 200

_SOURCE_CHARACTERS = 100_000
"""How much of a text is looked at: marking words takes time in proportion to it."""
_MOST_ENDINGS = 100
"""The most words of a text that begin as an unfinished one does."""
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


def excerpt(document: ServingDocument, asked: Asked, analyzers: Analyzers) -> Runner:
    """What to show of a document's text; its beginning if the query matched elsewhere."""
    whole = document.text[:_SOURCE_CHARACTERS]
    text, place_in_whole = folded(whole)
    sought = _sought(text, document.language, asked, analyzers)
    start, end = part(text, sought, analyzers)
    found = analyzers.places(text[start:end], (words[0] for words in sought))
    spans = [
        (place_in_whole(start + first), place_in_whole(start + last), clause)
        for first, last, clause in spans_of(found, sought)
    ]
    if not spans:
        return opening(whole)
    first, last = around(whole, spans)
    inside = [
        (one - first, other - first) for one, other, _ in spans if first <= one < other <= last
    ]
    return runs_of(whole[first:last], inside)


def _sought(
    text: str, language: str | None, asked: Asked, analyzers: Analyzers
) -> dict[tuple[str, ...], int]:
    """The words to mark in a text, each with the number of its clause.

    Those of the query, and the words of the text that are other forms of them or begin like them.
    """
    sought: dict[tuple[str, ...], int] = {}
    stems: dict[str, int] = {}
    starts: dict[str, int] = {}
    for clause, one in enumerate(asked.sought):
        stems |= dict.fromkeys(one.stems, clause)
        for words in one.words:
            if words[-1].endswith(STARTS):
                starts[words[-1].removesuffix(STARTS)] = clause
            else:
                sought[tuple(words)] = clause
    if stems or starts:
        likely = " ".join(beginning(text, [*stems, *starts], analyzers))
        there = analyzers.words(likely)
        forms = analyzers.stems(analyzers.split(likely), language)
        for word, stem in zip(there, forms, strict=True):
            if stem in stems:
                sought.setdefault((word,), stems[stem])
        for start, clause in starts.items():
            alike = sorted(one for one in there if one.startswith(start))
            for word in alike[:_MOST_ENDINGS]:
                sought.setdefault((word,), clause)
    return sought


def beginning(text: str, starts: Iterable[str], analyzers: Analyzers) -> list[str]:
    """The distinct words of a text, in lower case, that may begin as one of these does."""
    firsts = {start[:1] for start in starts}
    found = set(analyzers.split(text.lower()))
    return [word for word in found if word[0] in firsts or not word[0].isascii()]


def part(text: str, sought: Mapping[tuple[str, ...], int], analyzers: Analyzers) -> tuple[int, int]:
    """Where most clauses of a query are near each other in a text, with some text around.

    All of a text in which none is found, as it may be written in another way; nothing of it if none
    of the words could be. Splitting and scoring all of a long text takes a library longer than
    finding ten hits.

    Args:
        text: the text.
        sought: words side by side, each with the number of the clause that they are found by.
        analyzers: say what a word is.
    """

    def goes_on(before: str, after: str) -> bool:
        """Whether two characters side by side are of one word; not at an end of the text."""
        return bool(before and after) and analyzers.split(before + after) == [before + after]

    low = text.lower()
    if len(text) <= 2 * _AROUND or len(low) != len(text):
        return 0, len(text)
    if not low.isascii():
        low = _ACCENTED.sub(lambda found: _BASES.get(found[0], found[0]), low)
    number = len({*sought.values()})
    longest_first = sorted(sought, key=lambda words: -sum(map(len, words)))
    # With a group or a look around each, the search would take several times as long.
    either = "|".join(r"[\W_]*".join(map(re.escape, words)) for words in longest_first)
    clauses: dict[str, int | None] = {}
    recent: dict[int, int] = {}
    best, chosen = 0, -1
    for found in re.finditer(either, low) if either else ():
        start, end = found.span()
        if (written := found[0]) not in clauses:
            # None for "filename", which is not "file name".
            clauses[written] = sought.get(tuple(analyzers.words(written)))
        clause = clauses[written]
        before, after = low[max(0, start - 1) : start], low[end : end + 1]
        if clause is None or goes_on(before, written[0]) or goes_on(written[-1], after):
            continue
        recent[clause] = start
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


def opening(text: str) -> Runner:
    """Return the beginning of a text, shown when the query matched elsewhere."""
    if len(text) <= CHARACTERS:
        return ((text, False),) if text else ()
    # Not within a word, in scripts that have spaces.
    end = max(text.rfind(mark, CHARACTERS // 2, CHARACTERS + 1) for mark in " \n")
    return ((text[: end if end > 0 else CHARACTERS], False),)


def spans_of(
    found: Sequence[tuple[int, int, str]], sought: Mapping[tuple[str, ...], int]
) -> list[tuple[int, int, int]]:
    """What to mark in a text: from which character to which, and which clause it is.

    Args:
        found: the words of the text as the index has them, each with its beginning and end.
        sought: words side by side, each with the number of the clause that they are found by.
    """
    by_first: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for words, clause in sought.items():
        by_first.setdefault(words[0], []).append((words, clause))
    spans: list[tuple[int, int, int]] = []
    for at, (start, _, word) in enumerate(found):
        for words, clause in by_first.get(word, ()):
            beside = found[at : at + len(words)]
            if tuple(word for _, _, word in beside) == words:
                spans.append((start, beside[-1][1], clause))
        if len(spans) >= _PLACES:
            break
    return spans


def around(text: str, spans: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """What to show of a text: the place where most clauses of the query are near each other.

    Args:
        text: the text.
        spans: what to mark, in characters, in order, each with the number of its clause.
    """
    best, first, last = 0, 0, 0
    for at, (start, _, _) in enumerate(spans):
        near = [one for one in islice(spans, at, at + _NEAR) if one[1] - start <= CHARACTERS]
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
