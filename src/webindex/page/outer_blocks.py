"""The first and last blocks of a page's text: what a host may repeat around it.

Cookie notes, lines of copyright and notes about a site stand at the beginning or the end of a text,
on many pages of one host, and often no markup tells them from the text. Here a page's own
blocks are found, and cut off; `webindex.observers.repeated` decides which of them are repeated.

A block is a line of the text as it was extracted: a paragraph, a heading, an item of a list. Those
of fewer than `LEAST_WORDS` words are no candidates, but are left out with a block farther inside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import xxhash

from webindex.page.fingerprints import tokens
from webindex.page.text import collapse

__all__ = ["FIRST", "LAST", "LEAST_LEFT", "LEAST_WORDS", "digests", "kept", "outer_blocks"]

FIRST: Final = 2
LAST: Final = 3
"""Blocks at the beginning and the end of a text that may be repeated."""

LEAST_WORDS: Final = 3
"""Words of a block: "Next" and "Contents" are on many pages, in many places."""

LEAST_LEFT: Final = 40
"""If fewer characters would be left of a text, nothing is left out."""

_LOOKED_AT: Final = 20
"""Lines at either end that are looked at: a text may consist of thousands of short ones."""


def outer_blocks(extracted: str, text: str) -> dict[str, Any] | None:
    """Find the first and last blocks of a text; None if it has none.

    Args:
        extracted: the text with one block a line.
        text: the same in one line: `collapse(extracted)`.

    Returns:
        `first`: [digest, where it ends in `text`] of at most `FIRST` blocks, from the beginning.
        `last`: [digest, where it begins] of at most `LAST` others, from the end.
        `text`: a digest of the whole; `size`: its characters.
    """
    lines = extracted.split("\n")
    first: list[list[Any]] = []
    end = 0
    for line in _some(lines):
        end += len(line) + (end > 0)
        if len(first) == FIRST:
            break
        if _is_block(line):
            first.append([_digest(line), end])
    inner = first[-1][1] if first else 0
    last: list[list[Any]] = []
    start = len(text) + 1
    for line in _some(reversed(lines)):
        start -= len(line) + 1
        if len(last) == LAST or start < inner:
            break
        if _is_block(line):
            last.append([_digest(line), start])
    if not first and not last:
        return None
    return {"first": first, "last": last, "text": _digest(text), "size": len(text)}


def _some(lines: Iterable[str]) -> Iterator[str]:
    """The first lines with a text, each without whitespace around it."""
    number = 0
    for line in lines:
        if words := collapse(line):
            yield words
            number += 1
            if number == _LOOKED_AT:
                return


def _is_block(line: str) -> bool:
    return len(tokens(line[:1000])) >= LEAST_WORDS


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "replace"))[:12]


def digests(blocks: Mapping[str, Any]) -> set[str]:
    """The digests of a page's outer blocks."""
    return {digest for side in ("first", "last") for digest, _ in blocks[side]}


def kept(blocks: Mapping[str, Any] | None, repeated: Collection[str] | None) -> slice:
    """The part of a text that is left without what its host repeats.

    Blocks are left out from the outside inwards, up to the first that is not repeated.

    Args:
        blocks: what `outer_blocks` found in the text.
        repeated: digests of its repeated blocks; those of blocks that it has no longer are ignored.
    """
    if blocks is None or not repeated:
        return slice(0, None)
    start, end = 0, int(blocks["size"])
    for digest, after in blocks["first"]:
        if digest not in repeated:
            break
        start = after + 1
    for digest, before in blocks["last"]:
        if digest not in repeated:
            break
        end = before - 1
    return slice(start, end) if end - start >= LEAST_LEFT else slice(0, None)
