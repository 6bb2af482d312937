"""§3.1: contents that are nearly the same, kept in groups as contents come and go.

A content is a title and a text; many pages may have it. In the order of their keys, a content is a
leader unless an earlier leader is near to it; then the first such leads it
(`webindex.observers.components` explains why). So a content's leader depends only on the contents
before it. When one comes or goes, the decisions to repeat are found from there on: the contents
near to it, and the contents near to those that become or cease to be leaders, each once. Usually
there are none.

Two transactions that decide about contents that are near conflict. Contents that are near share a
band, `keys.near`, one cell with all contents in it, and a transaction that adds a
content, removes one, or changes its leader writes or locks all of its bands.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from percola import Column, Snapshot, Transaction
from webindex import tables
from webindex.observers.components import (
    LONG,
    PACKED,
    band_rows,
    content_in,
    packed_key,
    similar,
)
from webindex.page.fingerprints import Sketch

__all__ = ["bands_of", "leader_of_new", "leads_others", "replace"]

_CHUNK = 16
"""Contents that are read at a time: of many, the first that leads is mostly among the first."""


def bands_of(content: str, sketch: bytes | None) -> list[tuple[Column[str, Any], str]]:
    """The cells in which a content is listed; none for that of a short page."""
    if sketch is None:
        return []
    return [(tables.near, row) for row in band_rows(content, Sketch.unpack(sketch))]


def leader_of_new(t: Snapshot, content: str, sketch: bytes | None) -> str:
    """The leader that a new content would get; reads what `replace` will read first."""
    return content if sketch is None else _Deciding(t).leader(content, sketch)


def leads_others(t: Snapshot, content: str, sketch: bytes) -> bool:
    """Whether a content is the leader of another one."""
    return _Deciding(t).leads_any(content, sketch)


def replace(
    t: Transaction, gone: str | None, come: str | None, sketch: bytes | None
) -> dict[str, str]:
    """Remove a content whose last page has gone, add one that gets its first page, or both.

    Writes the bands and `keys.sketch`; leaves `keys.owner` to the caller, except for reading it:
    the row of `gone` must be as before.

    Returns:
        The new leader of each content whose leader changes, `come` among them.
    """
    deciding = _Deciding(t)
    due: list[str] = []
    if gone is not None and gone.startswith(LONG):
        packed = t.get(tables.sketch_of, gone)
        assert packed is not None, gone
        _list(t, gone, packed, there=False)
        if deciding.leads(gone):
            due += [one for one in deciding.near(gone, packed) if deciding.led_by(one) == gone]
        t.delete(tables.sketch_of, gone)
    if come is not None and sketch is not None:
        _list(t, come, sketch, there=True)
        t.set(tables.sketch_of, come, sketch)
        due.append(come)
    led = deciding.decide(due, come)
    return led if come is None or sketch is not None else {**led, come: come}


def _list(t: Transaction, content: str, sketch: bytes, *, there: bool) -> None:
    """Add a content to its bands, or remove it."""
    one = packed_key(content)
    cells = bands_of(content, sketch)
    for (column, row), stored in zip(cells, t.get_many(cells), strict=True):
        before = stored or b""
        at = _place(before, one)
        rest = at + PACKED if before[at : at + PACKED] == one else at
        after = before[:at] + (one if there else b"") + before[rest:]
        tables.set_or_delete(t, column, row, after)


def _place(listed: bytes, one: bytes) -> int:
    """The position at which a band lists, or would list, a content."""
    low, high = 0, len(listed) // PACKED
    while low < high:
        middle = (low + high) // 2
        if listed[middle * PACKED : (middle + 1) * PACKED] < one:
            low = middle + 1
        else:
            high = middle
    return low * PACKED


class _Deciding:
    """Recomputes leaders, from the smallest affected content upwards."""

    def __init__(self, t: Snapshot) -> None:
        self._t = t
        self._changed: dict[str, str] = {}

    def led_by(self, content: str) -> str | None:
        """The current leader of a content; None for one that has just been added."""
        if content in self._changed:
            return self._changed[content]
        owner = self._t.get(tables.owner, content)
        return None if owner is None else str(owner["leader"])

    def leads(self, content: str) -> bool:
        return self.led_by(content) == content

    def decide(self, due: list[str], come: str | None) -> dict[str, str]:
        waiting = set(due)
        heapq.heapify(due)
        while due:
            content = heapq.heappop(due)
            before = self.led_by(content)
            packed = self._t.get(tables.sketch_of, content)
            assert packed is not None, content
            after = self.leader(content, packed)
            if after == before:
                continue
            self._changed[content] = after
            if content != come:
                assert isinstance(self._t, Transaction)
                for column, row in bands_of(content, packed):
                    self._t.get_for_update(column, row)
            if content in (before, after):
                # It has become or ceased to be a leader: contents after it may be affected.
                for one in self._concerned(content, packed, begins=after == content):
                    if one not in waiting:
                        waiting.add(one)
                        heapq.heappush(due, one)
        return self._changed

    def leader(self, content: str, packed: bytes) -> str:
        """The first earlier leader that is near to a content; otherwise the content itself."""
        for chunk in _chunks(self._listed(content, packed, before=True)):
            self._t.get_many((tables.owner, one) for one in chunk)
            for one in chunk:
                if self.leads(one) and self._is_near(packed, one):
                    return one
        return content

    def leads_any(self, content: str, packed: bytes) -> bool:
        """Whether a content leads one after it."""
        for chunk in _chunks(self._listed(content, packed, before=False)):
            self._t.get_many((tables.owner, one) for one in chunk)
            if any(self.led_by(one) == content for one in chunk):
                return True
        return False

    def near(self, content: str, packed: bytes) -> Iterator[str]:
        """The contents after this one that are near to it."""
        return (
            one for one in self._listed(content, packed, before=False) if self._is_near(packed, one)
        )

    def _concerned(self, content: str, packed: bytes, *, begins: bool) -> Iterator[str]:
        for chunk in _chunks(self._listed(content, packed, before=False)):
            self._t.get_many((tables.owner, one) for one in chunk)
            for one in chunk:
                led_by = self.led_by(one)
                if led_by is None or (led_by <= content if begins else led_by != content):
                    continue
                if self._is_near(packed, one):
                    yield one

    def _is_near(self, packed: bytes, other: str) -> bool:
        its = self._t.get(tables.sketch_of, other)
        return its is not None and similar(packed, its)

    def _listed(self, content: str, packed: bytes, *, before: bool) -> list[str]:
        """The contents before or after this one that share a band with it, in order."""
        one = packed_key(content)
        cells = bands_of(content, packed)
        found = set()
        for (_, row), stored in zip(cells, self._t.get_many(cells), strict=True):
            listed = stored or b""
            at = _place(listed, one)
            part = listed[:at] if before else listed[at:]
            found |= {
                content_in(row, part[start : start + PACKED])
                for start in range(0, len(part), PACKED)
            }
        return sorted(found - {content})


def _chunks(contents: list[str]) -> Iterator[list[str]]:
    return (contents[at : at + _CHUNK] for at in range(0, len(contents), _CHUNK))
