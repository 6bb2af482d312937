"""Captures and revisits of pages that are a few words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from webindex.crawl.warc import Capture, Revisit

Record = Capture | Revisit
START = datetime(2024, 1, 2, tzinfo=UTC)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def captured(url: str, at: float, text: str = "words", **changes: Any) -> Capture:
    """A capture of a day; its payload digest is that of its text."""
    whole = Capture(
        url=url,
        date=day(at),
        status=200,
        content_type="text/html",
        headers={"content-type": "text/html"},
        body=f"<p>{text}".encode(),
        offset=0,
        length=10,
        payload_digest=f"sha1:{text.upper()}",
        truncated=False,
    )
    return replace(whole, **changes)


def revisit(
    url: str, at: float, text: str | None, refers: tuple[str, float] | None = None, **changes: Any
) -> Revisit:
    """A revisit with its own HTTP headers, by payload digest, by reference, or by both."""
    digest = None if text is None else f"sha1:{text.upper()}"
    to, date = (None, None) if refers is None else (refers[0], day(refers[1]))
    whole = Revisit(url, day(at), digest, 0, 10, to, date, 200, {"content-type": "text/html"})
    return replace(whole, **changes)


def bare(one: Revisit) -> Revisit:
    """A revisit record without HTTP headers."""
    return replace(one, status=None, headers=None)


def in_groups(records: Sequence[Record], order: random.Random) -> Iterator[list[Record]]:
    """Records in any order, a few at a time."""
    left = order.sample(records, len(records))
    while left:
        size = order.randint(1, 4)
        yield left[:size]
        left = left[size:]
