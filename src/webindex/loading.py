"""§2.4's loader: a transaction that writes a crawled page and so starts the chain of observers.

The newest capture of a page wins, whatever order captures come in: dates are compared, and where
they are equal what was captured, so that any order ends in the same repository.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from percola import Repository, Transaction
from webindex import tables
from webindex.urls import BadUrlError, normalise, page_row
from webindex.warc import Capture


@dataclass(slots=True)
class Loaded:
    """What became of captures: written, older than what is there, the same as what is there."""

    written: int = 0
    older: int = 0
    same: int = 0
    bad_urls: int = 0

    def add(self, other: Loaded) -> None:
        """Add another's counts to these."""
        self.written += other.written
        self.older += other.older
        self.same += other.same
        self.bad_urls += other.bad_urls


def load_captures(repo: Repository, captures: Sequence[Capture], file: str) -> Loaded:
    """Write captures in one transaction, retried as a whole if it conflicts."""
    return repo.run(lambda t: _load(t, captures, file))


def _load(t: Transaction, captures: Sequence[Capture], file: str) -> Loaded:
    result = Loaded()
    for one in captures:
        try:
            url = normalise(one.url)
        except BadUrlError:
            result.bad_urls += 1
            continue
        row = page_row(url)
        described = describe(one, url, file)
        before = t.get(tables.capture, row)
        if before is not None:
            if _age(before) == _age(described):
                result.same += 1
                continue
            if _age(before) > _age(described):
                result.older += 1
                continue
        t.set(tables.capture, row, described)
        t.set(tables.body, row, zlib.compress(one.body, 6))
        result.written += 1
    return result


def describe(one: Capture, url: str, file: str) -> dict[str, Any]:
    """What the `capture` column says of a capture."""
    return {
        "url": url,
        "date": one.date.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "status": one.status,
        "content_type": one.headers.get("content-type") or one.content_type,
        "robots": one.headers.get("x-robots-tag"),
        "digest": blake2b(one.body, digest_size=16).hexdigest(),
        "file": file,
        "offset": one.offset,
        "length": one.length,
        "loaded_ms": time.time_ns() // 1_000_000,
    }


def _age(capture: dict[str, Any]) -> tuple[str, ...]:
    # All that observers read: a server may answer twice in a second, both times with no body.
    rest = ("digest", "status", "content_type", "robots")
    return capture["date"], *(str(capture[name]) for name in rest)
