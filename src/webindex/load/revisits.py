"""Revisit records: which capture one refers to, and the resulting state of the page.

A crawler that fetches an unchanged page again does not store it again: it writes a *revisit*
record, which refers to its *original*, a capture of any URL and of any time. So a revisit is a
capture whose body is stored elsewhere, and takes part in the order of captures by its own date:

- The **original** is the capture of `WARC-Refers-To-Target-URI` at `WARC-Refers-To-Date`, unless
  its payload digest differs from that of the revisit; else the capture with that payload digest of
  the page itself, of the page that is referred to, and of the page with the smallest id.
- Of a page's captures of one payload only the newest is kept. It lists the dates of the others
  (`with_identical`), so that a revisit may refer to any of them.
- The newest of the page's captures and its revisits with a known original decides what the page
  is. A revisit that agrees with the newest capture changes nothing: the page was seen again.
- A revisit whose original is not known is unresolved. It counts as soon as the original is loaded.

The content of a revisit record is stored as a *report* (`report_of`). A 304 without a reference,
and a revisit without a digest and a reference, name no original: they only show when the page was
seen.
"""

from __future__ import annotations

import base64
import re
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from percola import Snapshot
from webindex import tables
from webindex.crawl.warc import Revisit
from webindex.page.link_header import names_canonical
from webindex.page.urls import BadUrlError, normalise, page_id, page_row
from webindex.pdf.reading import PDF

__all__ = [
    "EMPTY",
    "MOST_EARLIER",
    "MOST_IDENTICAL",
    "MOST_REPORTS",
    "NOTHING",
    "Found",
    "age",
    "as_capture",
    "as_referred",
    "body_at",
    "captures_in",
    "copy_of",
    "date_text",
    "earlier_key",
    "find",
    "is_report_of",
    "is_synthetic",
    "key_of",
    "names_original",
    "newest_reports",
    "offered_keys",
    "packed",
    "payload_id",
    "report_of",
    "says_the_same",
    "shares",
    "waits_at",
    "with_identical",
]

MOST_REPORTS: Final = 4
"""Reports that are kept of a page, each of another payload."""

MOST_EARLIER: Final = 4
"""Captures before the newest that are kept of a page with their bodies, each of another payload."""

MOST_IDENTICAL: Final = 16
"""Dates that are kept of a page's older captures of one payload, the newest of them."""

_HEADERS: Final = ("content_type", "robots", "link", "language", "refresh")
_COMPARED: Final = (
    *("digest", "status", "content_type", "robots", "location", "link", "language", "refresh"),
)
EMPTY: Final = frozenset(
    {
        "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ",
        "md5:d41d8cd98f00b204e9800998ecf8427e",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    }
)
"""Payload digests of an empty body: records with one of them need no original."""
NOTHING: Final = blake2b(b"", digest_size=16).hexdigest()
"""The `digest` of an empty body."""
_HEX_SHA1: Final = re.compile(r"[0-9a-fA-F]{40}")

Described = Mapping[str, Any]
"""A value of `pages.capture`, or a report."""


class Found(NamedTuple):
    """An original: the metadata in its page's row, and the cell that holds its body.

    `row` and `key` are the row and the qualifier in the family `earlier_body`; no qualifier means
    `pages.body`, no row an empty body.
    """

    capture: Described
    row: str | None
    key: str | None


def packed(body: bytes) -> bytes:
    """A body as the repository stores it."""
    # Against level 6, a fifth less time for 1.6 % more bytes.
    return zlib.compress(body, 4)


def date_text(date: datetime) -> str:
    """A date as captures and reports store it: in UTC, to the microsecond."""
    return date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def age(capture: Described) -> tuple[str, ...]:
    """Sort key of a page's captures: the largest key counts. Equal captures are the same."""
    # A server may answer twice in a second: with a cookie and a redirect to the same URL, then with
    # the page, which counts. All fields that observers read: both answers may be without a body.
    # Captures that earlier versions stored lack some of the fields. Of two that differ in nothing
    # else, one with a payload digest counts: revisits find it by that. A record that is loaded
    # again with a larger limit for pages has more of its body, or all of it.
    cut = capture.get("cut")
    most = "whole" if cut is None else f"{cut:020}"
    payload = str(payload_id(capture.get("payload")))
    return (
        capture["date"],
        str(200 <= capture["status"] < 300),  # "False" is less.
        most,
        *(str(capture.get(name)) for name in _COMPARED),
        payload,
    )


def payload_id(digest: str | None) -> str | None:
    """A payload digest in one spelling: SHA-1 may be written in base 32 or in hexadecimal."""
    if digest is None:
        return None
    algorithm, colon, value = digest.strip().partition(":")
    if not colon or not value:
        return None
    algorithm = algorithm.lower()
    if algorithm == "sha1":
        if _HEX_SHA1.fullmatch(value):
            value = base64.b32encode(bytes.fromhex(value)).decode()
        return f"sha1:{value.upper()}" if value.isascii() else f"sha1:{value}"
    hexadecimal = re.fullmatch(r"(?:[0-9a-fA-F]{2})+", value) is not None
    return f"{algorithm}:{value.lower() if hexadecimal else value}"


def report_of(one: Revisit, url: str, file: str) -> dict[str, Any]:
    """The report of a revisit: the value that `pages.revisited` keeps.

    `status` is None for a record without HTTP headers of its own: those of its original count.
    """
    refers = None
    if one.refers_to is not None and one.refers_date is not None:
        try:
            refers = [normalise(one.refers_to), date_text(one.refers_date)]
        except BadUrlError:
            refers = None
    headers = one.headers
    said: dict[str, Any] = {
        "date": date_text(one.date),
        "payload": payload_id(one.payload_digest),
        "refers": refers,
        "status": one.status if headers is not None else None,
    }
    if headers is not None:
        link = headers.get("link")
        said |= {
            "content_type": headers.get("content-type"),
            "robots": headers.get("x-robots-tag"),
            "link": link if link and names_canonical(link) else None,
            "language": headers.get("content-language"),
            "refresh": headers.get("refresh"),
        }
    where = {"file": file, "offset": one.offset, "length": one.length}
    return said | where | {"loaded_ms": time.time_ns() // 1_000_000, "url": url}


def names_original(report: Described) -> bool:
    """Whether a report names the capture that it refers to."""
    return report["payload"] is not None or report["refers"] is not None


def newest_reports(reports: Iterable[Described], after: str) -> list[Described]:
    """The reports that are kept of a page whose newest capture is of the date `after`.

    The newest first; of those of one payload the newest only. Applied to any parts of a set and
    then to the results, it gives what it gives for the whole set.
    """
    best: dict[str, Described] = {}
    for one in reports:
        target = one["payload"] or str(one["refers"])
        if one["date"] > after and (target not in best or _order(best[target]) < _order(one)):
            best[target] = one
    return sorted(best.values(), key=_order, reverse=True)[:MOST_REPORTS]


def _order(report: Described) -> tuple[str, ...]:
    rest = (report.get(name) for name in ("payload", "refers", "status", *_HEADERS))
    return report["date"], *(str(one) for one in rest)


def is_synthetic(capture: Described) -> bool:
    """Whether a value of `pages.capture` was built from a revisit and its original."""
    return capture.get("original") is not None


def as_capture(report: Described, original: Described) -> dict[str, Any]:
    """The value of `pages.capture` for a page whose revisit has this original."""
    own = report["status"] is not None
    headers = {name: (report if own else original).get(name) for name in _HEADERS}
    # Whatever a server declares: the body to be copied is what was read from a PDF document.
    if headers["content_type"] is None or original.get("content_type") == PDF:
        headers["content_type"] = original.get("content_type")
    first = original.get("original") or {
        name: original.get(name) for name in ("url", "date", "file")
    }
    return {
        "url": report["url"],
        "date": report["date"],
        "status": report["status"] if own else original["status"],
        **headers,
        "location": None if own else original.get("location"),
        "digest": original["digest"],
        "cut": original.get("cut"),
        "payload": report["payload"] or original.get("payload"),
        "file": report["file"],
        "offset": report["offset"],
        "length": report["length"],
        "loaded_ms": max(report["loaded_ms"], original.get("loaded_ms", 0)),
        "original": first,
    }


def says_the_same(one: Described, other: Described) -> bool:
    """Whether two captures of a page differ only in their dates."""
    return all(one.get(name) == other.get(name) for name in _COMPARED)


def with_identical(one: Described, other: Described | None) -> dict[str, Any]:
    """The newer of two captures of the same page and payload, which represents the other as well.

    Its field `identical` has the file of each older capture by date. Captures may be added in any
    order, each of them with what was added to it before.
    """
    if other is None:
        return dict(one)
    older, kept = sorted((one, other), key=age)
    dates = {
        **(kept.get("identical") or {}),
        **(older.get("identical") or {}),
        older["date"]: older["file"],
    }
    dates.pop(kept["date"], None)
    newest = sorted(dates)[-MOST_IDENTICAL:]
    return {**kept, "identical": {date: dates[date] for date in newest}} if newest else dict(kept)


def as_referred(capture: Described, refers: Sequence[str]) -> Described | None:
    """The capture that a reference `[url, date]` names, if that is `capture` or identical to it."""
    url, date = refers
    if capture["url"] != url:
        return None
    if _is_date(str(capture["date"]), date):
        return capture
    for there, file in (capture.get("identical") or {}).items():
        if _is_date(there, date):
            return {**capture, "date": there, "file": file}
    return None


def is_report_of(report: Described, capture: Described) -> bool:
    """Whether a capture of the same page is certainly the original of a report."""
    payload = payload_id(capture.get("payload"))
    if report["payload"] is not None and payload is not None:
        same = report["payload"] == payload
    else:
        same = report["refers"] is not None and as_referred(capture, report["refers"]) is not None
    return same and _usable(report, capture)


def shares(capture: Described) -> str | None:
    """The payload digest by which revisits of other pages find a capture; None if they do not.

    An empty payload, which millions of pages share, needs no original.
    """
    payload = payload_id(capture.get("payload"))
    return payload if 200 <= capture["status"] < 300 and payload not in EMPTY else None


def key_of(payload: str) -> str:
    """The prefix of the rows of `payloads` and `waiting` for a payload."""
    return blake2b(payload.encode(), digest_size=16).hexdigest()


def earlier_key(capture: Described) -> str:
    """The qualifier of a capture that is not the newest: one for each payload."""
    return key_of(payload_id(capture.get("payload")) or f"bytes:{capture['digest']}")


def offered_keys(captures: Iterable[Described]) -> list[str]:
    """The keys under which revisits may wait for these captures of one page."""
    keys: dict[str, None] = {}
    for one in captures:
        keys[f"at-{page_id(one['url'])}"] = None
        payload = shares(one)
        if payload is not None:
            keys[key_of(payload)] = None
    return list(keys)


def waits_at(report: Described) -> list[str]:
    """The keys under which a report waits for captures of other pages."""
    keys = []
    if report["refers"] is not None and report["refers"][0] != report["url"]:
        keys.append(f"at-{page_id(report['refers'][0])}")
    if report["payload"] is not None and report["payload"] not in EMPTY:
        keys.append(key_of(report["payload"]))
    return keys


# --- Finding the original -------------------------------------------------------------------


def find(
    t: Snapshot, report: Described, own: Sequence[Found], current: Described | None
) -> Found | None:
    """The original of a report, as far as it is known at this snapshot.

    `own` are the captures of the page itself; `current` is its `pages.capture`.
    """
    if report["payload"] in EMPTY and report["status"] is not None:
        return Found({"digest": NOTHING, "url": report["url"], "date": report["date"]}, None, None)
    refers = report["refers"]
    there = own
    if refers is not None:
        if refers[0] != report["url"]:
            there = captures_of(t, page_row(refers[0]))
        for one in there:
            original = as_referred(one.capture, refers)
            if original is not None and _agrees(report, original):
                return one._replace(capture=original)
    payload = report["payload"]
    copy = copy_of(report, current)
    if payload is None:
        return copy
    for one in (*own, *there):
        if _has(one.capture, payload) and _usable(report, one.capture):
            return one
    for row in t.scan(tables.payloads, prefix=f"{key_of(payload)}/", columns=[tables.held]):
        for one in captures_of(t, page_row(row[tables.held])):
            if _has(one.capture, payload) and _usable(report, one.capture):
                return one
        break
    return copy


def copy_of(report: Described, current: Described | None) -> Found | None:
    """What the page has of a report's original, which itself is no longer there.

    `current` is the page's `pages.capture`, which was made from that original.
    """
    if current is None or not is_synthetic(current):
        return None
    payload, first = report["payload"], current["original"]
    if payload is None:
        same = report["refers"] is not None and as_referred(first, report["refers"]) is not None
    else:
        same = _has(current, payload)
    return Found(current, page_row(report["url"]), None) if same else None


def captures_of(t: Snapshot, row: str) -> list[Found]:
    """The captures that are kept of a page, the newest first."""
    page = t.get_row(tables.pages, row, [tables.capture, tables.earlier])
    return captures_in(row, page.get(tables.capture), page.get(tables.earlier))


def captures_in(
    row: str, capture: Described | None, earlier: Mapping[str, Described] | None
) -> list[Found]:
    """As `captures_of`, from columns of a page that have been read already."""
    kept = dict(earlier or {})
    found = []
    if capture is not None and not is_synthetic(capture):
        # A capture of the payload of the newest one is kept for its date only, without a body.
        same = kept.pop(earlier_key(capture), None)
        found.append(Found(with_identical(capture, same), row, None))
    found += [Found(one, row, key) for key, one in kept.items()]
    return sorted(found, key=lambda one: age(one.capture), reverse=True)


def body_at(t: Snapshot, found: Found) -> bytes:
    """The body of an original, compressed as in the repository."""
    if found.row is None:
        return packed(b"")
    if found.key is None:
        return t.get(tables.body, found.row) or packed(b"")
    return t.get(tables.earlier_body[found.key], found.row) or packed(b"")


def _is_date(there: str, date: str) -> bool:
    """Whether a reference to `date` means a capture of that date. Many refer to whole seconds."""
    whole = ".000000Z" in (date[19:], there[19:])
    return there == date or (whole and there[:19] == date[:19])


def _has(capture: Described, payload: str) -> bool:
    return payload_id(capture.get("payload")) == payload


def _usable(report: Described, capture: Described) -> bool:
    """Whether a capture has the body that a report omits: an error page has none."""
    return report["status"] is None or 200 <= capture["status"] < 300


def _agrees(report: Described, capture: Described) -> bool:
    payload = payload_id(capture.get("payload"))
    differs = report["payload"] is not None and payload not in (None, report["payload"])
    return not differs and _usable(report, capture)
