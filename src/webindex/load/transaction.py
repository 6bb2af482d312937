"""§2.4's loader: a transaction that writes a crawled page and so starts the chain of observers.

The newest capture of a page wins, whatever order captures come in: dates are compared, and where
they are equal what was captured, so that any order ends in the same repository.

A *revisit* is a crawler's report that a page was at some time what an earlier capture says. It is
kept in a column of its own, `pages.revisited`, which nobody observes: a page that is unchanged
causes no work. It takes no part in the order of captures. A report that a page is *again* what an
older capture says would have to bring back a body that was overwritten, if it comes last, and not
if it comes first: the index would depend on the order of loads. Such a page is what its newest
capture says until it is captured again.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any

from percola import Repository, Transaction
from webindex import tables
from webindex.link_header import names_canonical
from webindex.urls import BadUrlError, normalise, page_row
from webindex.warc import Capture, Revisit


@dataclass(slots=True)
class Loaded:
    """What became of captures and revisits.

    Attributes:
        written: captures that are now what the repository says of their page.
        older: captures that are older than what is there.
        same: captures that are there already.
        bad_urls: captures and revisits whose URL no row can have.
        unavailable: captures that say nothing of their page: see `is_conclusive`.
        unchanged: revisits.
    """

    written: int = 0
    older: int = 0
    same: int = 0
    bad_urls: int = 0
    unavailable: int = 0
    unchanged: int = 0

    def add(self, other: Loaded) -> None:
        """Add another's counts to these."""
        self.written += other.written
        self.older += other.older
        self.same += other.same
        self.bad_urls += other.bad_urls
        self.unavailable += other.unavailable
        self.unchanged += other.unchanged


def is_conclusive(status: int) -> bool:
    """Whether a response of this status says something of its page.

    A server that is broken (500 to 599), busy (429) or was kept waiting (408) does not: the page
    stays what it was.
    """
    return not (500 <= status <= 599 or status in (408, 429))


def load_captures(repo: Repository, records: Sequence[Capture | Revisit], file: str) -> Loaded:
    """Write captures and revisits in one transaction, retried as a whole if it conflicts."""
    return repo.run(lambda t: load_from(t, [(file, one) for one in records]))


def load_from(t: Transaction, records: Iterable[tuple[str, Capture | Revisit]]) -> Loaded:
    """Write captures and revisits, each given with the file that it stands in."""
    result = Loaded()
    taken: list[tuple[str, Capture | Revisit, str]] = []
    for file, one in records:
        if isinstance(one, Capture) and not is_conclusive(one.status):
            result.unavailable += 1
            continue
        try:
            url = normalise(one.url)
        except BadUrlError:
            result.bad_urls += 1
            continue
        taken.append((file, one, url))
    cells = [
        (tables.revisited if isinstance(one, Revisit) else tables.capture, page_row(url))
        for _, one, url in taken
    ]
    # What stands there; of two captures of a page, the second finds what the first has written.
    standing = dict(zip(cells, t.get_many(cells), strict=True))
    for (file, one, url), cell in zip(taken, cells, strict=True):
        row, before = cell[1], standing[cell]
        if isinstance(one, Revisit):
            standing[cell] = _revisit(t, row, one, before)
            result.unchanged += 1
        else:
            standing[cell] = _capture(t, row, one, describe(one, url, file), before, result)
    return result


def _capture(
    t: Transaction,
    row: str,
    one: Capture,
    described: dict[str, Any],
    before: dict[str, Any] | None,
    result: Loaded,
) -> dict[str, Any]:
    """What stands there afterwards, as `before` is what stood there."""
    if before is not None:
        there, here = age(before), age(described)
        if there == here:
            result.same += 1
            return before
        if there > here:
            result.older += 1
            return before
    t.set(tables.capture, row, described)
    t.set(tables.body, row, zlib.compress(one.body, 6))
    result.written += 1
    return described


def _revisit(
    t: Transaction, row: str, one: Revisit, before: dict[str, Any] | None
) -> dict[str, Any]:
    """What stands there afterwards, as `before` is what stood there."""
    after = {"date": _date(one.date), "payload": one.payload_digest}
    # One with a digest tells more than any number of those without.
    if before is not None and _weight(before) >= _weight(after):
        return before
    t.set(tables.revisited, row, after)
    return after


def _weight(revisited: Mapping[str, Any]) -> tuple[bool, str, str]:
    payload = revisited["payload"]
    return payload is not None, revisited["date"], payload or ""


def describe(one: Capture, url: str, file: str) -> dict[str, Any]:
    """What the `capture` column says of a capture: what observers read, and where it stands.

    `date` is in UTC, to the microsecond. `location` is there for a status 300 to 399 and `refresh`
    below that, several joined by newlines as in `robots`; `link` if the `Link` header names a
    canonical page; `payload` is the payload digest of the WARC record. What is not there is None.
    """
    link = one.headers.get("link")
    return {
        "url": url,
        "date": _date(one.date),
        "status": one.status,
        "content_type": one.headers.get("content-type") or one.content_type,
        "robots": one.headers.get("x-robots-tag"),
        "location": one.headers.get("location") if 300 <= one.status < 400 else None,
        "link": link if link and names_canonical(link) else None,
        "refresh": one.headers.get("refresh") if one.status < 300 else None,
        "language": one.headers.get("content-language"),
        "digest": blake2b(one.body, digest_size=16).hexdigest(),
        "payload": one.payload_digest,
        "file": file,
        "offset": one.offset,
        "length": one.length,
        "loaded_ms": time.time_ns() // 1_000_000,
    }


def last_seen(capture: Mapping[str, Any], revisited: Mapping[str, Any] | None) -> str:
    """When the page was last known to be what the capture says, as `date` of a capture.

    Both arguments are values of the columns of one row.
    """
    date = str(capture["date"])
    if revisited is None or revisited["payload"] not in (None, capture["payload"]):
        return date
    return max(date, str(revisited["date"]))


def age(capture: Mapping[str, Any]) -> tuple[str, ...]:
    """Of two captures of a page, the one with the larger age counts. Equal ones are the same."""
    # All that observers read: a server may answer twice in a second, both times with no body.
    rest = ["digest", "status", "content_type", "robots", "location", "link", "language", "refresh"]
    # Captures of earlier versions were described without some of it.
    return capture["date"], *(str(capture.get(name)) for name in rest)


def _date(date: datetime) -> str:
    return date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
