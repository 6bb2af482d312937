"""Spelling suggestions: replaces a misspelt word of a query by the nearest word of the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from webindex.serving.base import SearchResults, ServingIndex
from webindex.serving.query import Clause, with_replaced

_SHORTEST = 4
"""Least length of a word to correct: nearly every shorter word is one letter from another word."""


def respell(
    query: str,
    words: Callable[[str], list[str]],
    better: Callable[[str], str | None],
) -> str | None:
    """Replace the words of a query that the index does not know; None if there is nothing to do.

    Args:
        query: as a user typed it. Phrases and excluded words are unchanged.
        words: splits a text into words as the index does.
        better: for a word that no document has, the nearest that one has; else None.
    """

    def corrected(clause: Clause) -> str | None:
        typed = words(clause.text)
        if clause.excluded or clause.quoted or len(typed) != 1 or len(typed[0]) < _SHORTEST:
            return None
        return better(typed[0])

    return with_replaced(query, corrected)


def nearest(
    word: str,
    begins: Callable[[str], list[tuple[str, int]]],
    is_there: Callable[[str], bool] = lambda word: True,
) -> str | None:
    """The word with the fewest differences, the most frequent among equals; None if all are far.

    `begins` has words of the index that begin with some letters, and how many documents have them.
    `is_there` says which of them are more than remains of deleted documents.
    """
    # People seldom get the first letter wrong, but they swap the first two.
    found = dict([*begins(word[:2]), *begins(word[1] + word[0]), *begins(word[0])])
    while (best := best_of(word, found)) is not None and not is_there(best):
        del found[best]
    return best


def most_differences(word: str) -> int:
    """How many letters of a word may be wrong."""
    return 1 if len(word) < 7 else 2


def best_of(word: str, found: Mapping[str, int]) -> str | None:
    """The nearest of these words, with how many documents have each; None if all are far."""
    most = most_differences(word)
    best = min(
        (
            (steps, -documents, other)
            for other, documents in found.items()
            if abs(len(other) - len(word)) <= most
            and 0 < (steps := differences(word, other)) <= most
        ),
        default=None,
    )
    return None if best is None else best[2]


def differences(one: str, other: str) -> int:
    """How many letters to insert, delete, replace, or swap with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, above, row = row, before, [i]
        for j, theirs in enumerate(other, 1):
            steps = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != theirs))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == theirs:
                steps = min(steps, above[j - 2] + 1)
            row.append(steps)
    return row[-1]


class Respelt(NamedTuple):
    """The results of a search, and the query that they are of if it is not the one typed.

    If they are of the one typed, and none of them has all its words, `meant` is the suggestion.
    """

    results: SearchResults
    query: str | None = None
    meant: str | None = None


def search_respelt(index: ServingIndex, query: str, **options: Any) -> Respelt:
    """Search; if no document has all the words, and all of those of the suggestion, for that one.

    Takes the options of `ServingIndex.search` and raises what it raises.
    """
    results = index.search(query, partly=True, **options)
    if results.total and results.matched >= results.words:
        return Respelt(results)
    meant = index.suggest(query)
    if meant is None:
        return Respelt(results)
    better = index.search(meant, partly=True, **options)
    whole = better.total and better.matched >= better.words
    return Respelt(better, meant) if whole else Respelt(results, meant=meant)
