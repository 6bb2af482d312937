"""Formatting of numbers, timestamps and crawled text for display."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

__all__ = ["apart", "count", "date", "harmless", "moment", "pdf_documents"]

# C0 and C1 controls but tab and newline; line and paragraph separators; embeddings, overrides and
# isolates of the writing direction; the byte order mark; lone surrogates, which have no encoding.
_HARMFUL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 page`, `2,000 pages`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def pdf_documents(read: int, unread: int) -> str:
    """How many PDF documents were read, and how many of them have no text."""
    return f"{read:,}{f', {unread:,} of them without text' if unread else ''}"


def apart(one: float, other: float) -> tuple[str, str]:
    """Two different numbers with enough digits to see which is greater."""
    for digits in range(3, 17):
        found = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if found[0] != found[1]:
            return found
    return repr(one), repr(other)


def moment(milliseconds: int) -> str:
    """A timestamp in milliseconds since the epoch, formatted in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def date(text: str) -> str:
    """A WARC date to the minute; unchanged if it cannot be parsed."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return text


def harmless(text: str) -> str:
    """Text with every invisible character made visible; it cannot reorder the text around it."""
    return _HARMFUL.sub("\ufffd", text)
