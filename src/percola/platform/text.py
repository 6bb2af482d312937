"""Text for people: names and numbers in the output of commands and on pages."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """`text` with everything that is not printable written out as Python does, but for `keep`.

    That is control characters, line and paragraph separators, marks that change the direction of
    writing, and lone surrogates: whatever could move, hide or reorder the text beside it.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def count(number: int, noun: str) -> str:
    """`1 lock`, `2,000 locks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
