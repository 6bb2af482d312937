"""The most frequent texts of the links to a page, where all of them are too many for its tally.

    anchors['…'] texts:3a    {"Home": 9312, …}     the texts whose hash begins with 3a
                 texts:3b    …
                 best        {"3a": [-12, "To the start"], …}

The tally has the first `MOST_TEXTS` texts, by number and then by name. Of the others, only the
first one of each part is a candidate for a place there, and `best` has these. So a change reads and
writes the part of its text, `best`, and the parts of texts that enter the tally: two or three cells
of 257. Each part grows with the number of texts divided by 256.

Large clusters have theirs in `summaries`, in the same form, with `totals` in place of the tally.

Only runs that write the page's tally, or the totals, come here, so they conflict with each other,
and no cell here needs a guard of its own.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from percola import Column, Family, Transaction
from webindex import tables

__all__ = ["PARTS", "SUMMARY", "Texts", "first", "part_of", "plant"]

PARTS: Final = 256
"""The number of cells of one page into which its texts are divided."""


class Cells(NamedTuple):
    """Where the texts of a row are: the parts, and the first text of each that is not shown."""

    texts: Family[str, Any]
    best: Column[str, Any]


PAGE: Final = Cells(tables.texts, tables.best)
SUMMARY: Final = Cells(tables.summary_texts, tables.summary_best)
"""Those of a page, and those of a large cluster (`webindex.observers.summaries`)."""

_Item = list[Any]
"""[-number, text]: in this order, the most frequent text comes first, and equals by text."""


def part_of(text: str) -> str:
    """The part of a text: two hex digits of its hash."""
    return hashlib.blake2b(text.encode(), digest_size=1).hexdigest()


def first(numbers: Mapping[str, int]) -> dict[str, int]:
    """The texts that a tally shows of these."""
    if len(numbers) <= tables.MOST_TEXTS:
        return dict(numbers)
    return {text: -n for n, text in heapq.nsmallest(tables.MOST_TEXTS, _items(numbers))}


def _items(numbers: Mapping[str, int]) -> Iterable[_Item]:
    return ([-number, text] for text, number in numbers.items())


def plant(t: Transaction, row: str, numbers: Mapping[str, int]) -> None:
    """Make these all of the texts of a page; nothing else that it has in `anchors` stays."""
    shown = first(numbers)
    parts: dict[str, dict[str, int]] = {}
    for text, number in sorted(numbers.items()):
        parts.setdefault(part_of(text), {})[text] = number
    best = {part: item for part in sorted(parts) if (item := _best(parts[part], shown))}
    found = t.get_row(tables.anchors, row, [tables.texts, tables.best])
    there = found.family(tables.texts)
    for part in sorted(there.keys() | parts.keys()):
        if part not in parts:
            t.delete(tables.texts[part], row)
        elif there.get(part) != parts[part]:
            t.set(tables.texts[part], row, parts[part])
    if best:
        t.set(tables.best, row, best)
    elif tables.best in found:
        t.delete(tables.best, row)


def _best(texts: Mapping[str, int], shown: Mapping[str, int]) -> _Item | None:
    """The first text of a part that is not shown."""
    return min(
        ([-n, text] for text, n in texts.items() if n > 0 and text not in shown), default=None
    )


class Texts:
    """All texts of the links to a page that is large and has more than `MOST_TEXTS`.

    Args:
        t: the transaction; it must write or lock the page's tally.
        row: the page.
        shown: the texts in its tally.
        cells: where its texts are.

    A number may be less than none, until the links arrive from which it was subtracted.
    """

    def __init__(
        self, t: Transaction, row: str, shown: Mapping[str, int], cells: Cells = PAGE
    ) -> None:
        self._t: Final = t
        self._row: Final = row
        self._cells: Final = cells
        self._shown = dict(shown)
        self._parts: dict[str, dict[str, int]] = {}
        self._found: dict[str, _Item] | None = None
        self._best: dict[str, _Item] = {}

    def add(self, changes: Mapping[str, int]) -> dict[str, int]:
        """Add to the numbers of some texts, and return those that the tally has to show."""
        for text, change in changes.items():
            self._change(text, change)
        for part in sorted({part_of(text) for text in changes}):
            tables.set_or_delete(self._t, self._cells.texts[part], self._row, self._parts[part])
        if self._best != (self._found or {}):
            tables.set_or_delete(self._t, self._cells.best, self._row, self._best)
        return self._shown

    def _change(self, text: str, change: int) -> None:
        part = part_of(text)
        texts = self._part(part)
        number = texts.pop(text, 0) + change
        if number:
            texts[text] = number
        if 0 < self._shown.get(text, 0) <= number:
            self._shown[text] = number
            return
        if self._found is None:
            self._found = self._t.get(self._cells.best, self._row) or {}
            self._best = dict(self._found)
        self._shown.pop(text, None)
        self._look_for_best(part)
        # The first of the texts that are not shown enters, while there is room or it goes before
        # the last one that is shown.
        while self._best:
            part, entering = min(self._best.items(), key=lambda one: one[1])
            if len(self._shown) >= tables.MOST_TEXTS:
                last = max(_items(self._shown))
                if last < entering:
                    break
                del self._shown[last[1]]
                # It goes before all that were not shown.
                self._best[part_of(last[1])] = last
            self._shown[entering[1]] = -entering[0]
            self._look_for_best(part)

    def _look_for_best(self, part: str) -> None:
        found = _best(self._part(part), self._shown)
        if found is None:
            self._best.pop(part, None)
        else:
            self._best[part] = found

    def _part(self, part: str) -> dict[str, int]:
        if part not in self._parts:
            self._parts[part] = dict(self._t.get(self._cells.texts[part], self._row) or {})
        return self._parts[part]
