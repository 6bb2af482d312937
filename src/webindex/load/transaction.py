"""§2.4's loader: a transaction that writes a crawled page and so starts the chain of observers.

The newest capture of a page wins, in whatever order captures arrive: dates are compared, and for
equal dates the captured content, so that any order ends in the same repository. A revisit takes
part in that order as soon as the capture that it refers to is known (`webindex.load.revisits`).

All transactions that load records of a page write its `capture`, or lock it: of two loaders of
one page the second sees the result of the first. Effects on several pages are left to
observers (`webindex.load.settling`): a revisit that does not simply report the newest capture is
registered under what it waits for, and a capture that is not parsed is offered to waiting pages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from percola import Repository, Transaction
from webindex import tables
from webindex.crawl.warc import Capture, Resource, Revisit, Sitemap
from webindex.load.bodies import kept_body
from webindex.load.recrawls import plan
from webindex.load.removals import rules_for
from webindex.load.resources import LoadedResources, is_no_page, load_resources
from webindex.load.revisits import (
    MOST_EARLIER,
    age,
    as_capture,
    captures_in,
    date_text,
    earlier_key,
    find,
    is_report_of,
    is_synthetic,
    key_of,
    names_original,
    newest_reports,
    report_of,
    says_the_same,
    shares,
    waits_at,
    with_identical,
)
from webindex.load.sitemaps import load_sitemap
from webindex.page.link_header import names_canonical
from webindex.page.markup import media_type
from webindex.page.pointers import is_respelling
from webindex.page.urls import BadUrlError, normalise, page_id, page_row
from webindex.pdf.reading import PDF

__all__ = ["Loaded", "age", "describe", "is_conclusive", "last_seen", "load_captures", "load_from"]


@dataclass(slots=True)
class Loaded:
    """Outcome counts of captures and revisits.

    Attributes:
        written: captures that are now the repository's state of their page.
        older: captures that are older than the stored one.
        same: captures that are stored already.
        bad_urls: captures and revisits whose URL cannot be a row.
        unavailable: captures that say nothing about their page: see `is_conclusive`, and
            `webindex.page.pointers.is_respelling`.
        unchanged: revisits.
        unresolved: those of them that refer to a capture that was not known when they were
            loaded: they count as soon as it is. Of sitemaps and resources there are none.
        refused: captures, revisits, resources and sitemaps that were removed or blocked.
        cut: captures of which only the beginning of the body was taken.
        pdfs: PDF documents that were read and are kept.
        unread_pdfs: those of them that have no text, because they could not be read or are scans.
        sitemaps: sitemaps and robots.txt that are now the newest capture of theirs.
        resources: the same of stylesheets, images, fonts and scripts.
    """

    written: int = 0
    older: int = 0
    same: int = 0
    bad_urls: int = 0
    unavailable: int = 0
    unchanged: int = 0
    unresolved: int = 0
    refused: int = 0
    cut: int = 0
    pdfs: int = 0
    unread_pdfs: int = 0
    sitemaps: int = 0
    resources: LoadedResources = field(default_factory=LoadedResources)

    def add(self, other: Loaded) -> None:
        """Add another's counts to these."""
        self.written += other.written
        self.older += other.older
        self.same += other.same
        self.bad_urls += other.bad_urls
        self.unavailable += other.unavailable
        self.unchanged += other.unchanged
        self.unresolved += other.unresolved
        self.refused += other.refused
        self.cut += other.cut
        self.pdfs += other.pdfs
        self.unread_pdfs += other.unread_pdfs
        self.sitemaps += other.sitemaps
        self.resources.add(other.resources)


def is_conclusive(status: int) -> bool:
    """Whether a response of this status says something about its page.

    A server error (500 to 599), overload (429) or timeout (408) does not, nor does the answer to
    who asked for a part that the page does not have (416): the page stays as it was.
    """
    return not (500 <= status <= 599 or status in (408, 416, 429))


def load_captures(
    repo: Repository, records: Sequence[Capture | Revisit | Resource | Sitemap], file: str
) -> Loaded:
    """Write records in one transaction, retried as a whole if it conflicts."""
    return repo.run(lambda t: load_from(t, [(file, one) for one in records]))


def load_from(
    t: Transaction, records: Iterable[tuple[str, Capture | Revisit | Resource | Sitemap]]
) -> Loaded:
    """Write captures, revisits, resources and sitemaps, each given with its file."""
    result = Loaded()
    usable: list[tuple[str, Capture | Revisit | Resource | Sitemap, str]] = []
    for file, one in records:
        if isinstance(one, Capture) and not is_conclusive(one.status):
            result.unavailable += 1
            continue
        try:
            url = normalise(one.url)
        except BadUrlError:
            if isinstance(one, Resource):
                result.resources.bad_urls += 1
            else:
                result.bad_urls += 1
            continue
        if isinstance(one, Capture) and is_respelling(
            one.url, url, one.status, one.headers.get("location")
        ):
            result.unavailable += 1
            continue
        usable.append((file, one, url))
    rules = rules_for(t, (url for _, _, url in usable))
    resources: list[tuple[str, Resource, str]] = []
    taken: list[tuple[str, Capture | Revisit, str, str]] = []
    for file, one, url in usable:
        if rules.refuses(url, date_text(one.date)):
            result.refused += 1
        elif isinstance(one, Resource):
            resources.append((file, one, url))
        elif isinstance(one, Sitemap):
            result.sitemaps += load_sitemap(t, one, url, page_row(url), file)
        else:
            taken.append((file, one, url, page_row(url)))
    if resources:
        result.resources.add(load_resources(t, resources))
    # The stored state; of two records of a page, the second finds what the first has written.
    rows = list(dict.fromkeys(row for _, _, _, row in taken))
    captures = t.get_many((tables.capture, row) for row in rows)
    revisits = t.get_many((tables.revisited, row) for row in rows)
    pages = {
        row: _Page(t, row, capture, revisited)
        for row, capture, revisited in zip(rows, captures, revisits, strict=True)
    }
    for file, one, url, row in taken:
        page = pages[row]
        if isinstance(one, Revisit):
            page.revisit(report_of(one, url, file), result)
        else:
            result.cut += one.cut is not None
            page.take(describe(one, url, file), one, result)
    for page in pages.values():
        page.replan()
    return result


class _Page:
    """A page while records of it are loaded."""

    def __init__(
        self,
        t: Transaction,
        row: str,
        capture: dict[str, Any] | None,
        revisited: Mapping[str, Any] | None,
    ) -> None:
        self._t = t
        self._row = row
        self._current = capture
        self._seen, self._reports = reports_in(revisited)
        self._kept: dict[str, dict[str, Any]] | None = None
        self._is_new = False
        self._has_other_past = False

    def replan(self) -> None:
        """Note when the page is due for a crawl, if its past has changed; `parse` does it else."""
        if self._has_other_past and not self._is_new:
            plan(self._t, self._row)

    # --- Captures ---------------------------------------------------------------------------

    def take(self, new: dict[str, Any], one: Capture, result: Loaded) -> None:
        """Load a capture."""
        current = self._current
        if current is None and not self._reports:
            self._become(new, _kept(one, new, result))
        elif current is not None and not is_synthetic(current) and age(current) == age(new):
            self._hold_again(current)
            result.same += 1
            return
        elif current is not None and _is_newer(current, new):
            self._take_earlier(new, one, result)
            return
        else:
            if current is not None:
                new = self._overtake(current, new)
            self._become(new, _kept(one, new, result))
            if current is not None:
                self._drop_same_payload(new)
                self._limit()
            self._after_capture()
        result.written += 1

    def _overtake(self, current: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """Keep the newest capture as an earlier one; one of the new payload only in `new`."""
        key = earlier_key(current)
        if not is_synthetic(current):
            current = with_identical(current, self._earlier().get(key))
            if key == earlier_key(new):
                return with_identical(new, current)
            self._keep(current, self._t.get(tables.body, self._row) or b"")
        return with_identical(new, self._earlier().get(earlier_key(new)))

    def _become(self, new: dict[str, Any], compressed: bytes) -> None:
        """Make a capture the page's state."""
        self._t.set(tables.capture, self._row, new)
        self._t.set(tables.body, self._row, compressed)
        self._hold(new)
        self._current = new
        self._is_new = True

    def _take_earlier(self, new: dict[str, Any], one: Capture, result: Loaded) -> None:
        """Keep a capture older than the page's state, as far as revisits can refer to it."""
        t, row, current = self._t, self._row, self._current
        assert current is not None
        key = earlier_key(new)
        there = self._earlier().get(key)
        if there is not None and age(there) == age(new):
            result.same += 1
            return
        result.older += 1
        newest = not is_synthetic(current) and earlier_key(current) == key
        if newest or (there is not None and age(there) > age(new)):
            self._take_identical(new, there, current if newest else {})
            return
        # A revisit that is loaded concurrently must see this one, or be seen here.
        t.get_for_update(tables.capture, row)
        self._keep(with_identical(new, there), _kept(one, new, result))
        self._limit()
        if key in self._earlier():
            t.notify(tables.offer_due, row)
        self._after_capture()

    def _take_identical(
        self,
        new: dict[str, Any],
        there: Mapping[str, Any] | None,
        newest: Mapping[str, Any],
    ) -> None:
        """Keep the date of a capture whose payload a newer one of the page has.

        `there` is in `earlier` at its key; `newest` is the page's capture if it has the payload.
        """
        t, row = self._t, self._row
        noted = with_identical(new, there)
        if noted == there or new["date"] in (newest.get("identical") or {}):
            return
        t.get_for_update(tables.capture, row)
        self._earlier()[earlier_key(new)] = noted
        t.set(tables.earlier, row, self._earlier())
        self._has_other_past = True
        # Of this loader and one of a revisit that refers to this capture, one sees the other.
        if t.get_for_update(tables.wanted, f"at-{page_id(new['url'])}") is not None:
            t.notify(tables.offer_due, row)
        self._after_capture()

    def _after_capture(self) -> None:
        """Drop the reports that a capture has overtaken, and check the remaining ones."""
        if self._reports:
            newest = self._newest_capture()
            assert newest is not None
            self._set_reports(newest_reports(self._reports, newest["date"]))
            self._t.notify(tables.settle_due, self._row)

    # --- Earlier captures -------------------------------------------------------------------

    def _earlier(self) -> dict[str, dict[str, Any]]:
        if self._kept is None:
            self._kept = dict(self._t.get(tables.earlier, self._row) or {})
        return self._kept

    def _keep(self, capture: dict[str, Any], compressed: bytes) -> None:
        key = earlier_key(capture)
        self._has_other_past = True
        self._earlier()[key] = capture
        self._t.set(tables.earlier, self._row, self._earlier())
        self._t.set(tables.earlier_body[key], self._row, compressed)
        self._hold(capture)

    def _drop(self, key: str, *, held: bool) -> None:
        self._has_other_past = True
        capture = self._earlier().pop(key)
        tables.set_or_delete(self._t, tables.earlier, self._row, self._earlier())
        self._t.delete(tables.earlier_body[key], self._row)
        payload = shares(capture)
        if payload is not None and not held:
            self._t.delete(tables.held, f"{key_of(payload)}/{page_id(capture['url'])}")

    def _drop_same_payload(self, new: Mapping[str, Any]) -> None:
        if earlier_key(new) in self._earlier():
            self._drop(earlier_key(new), held=shares(new) is not None)

    def _limit(self) -> None:
        """Keep only the newest earlier captures, and those that revisits wait for."""
        current = self._current
        synthetic = current is not None and is_synthetic(current)
        most = MOST_EARLIER + synthetic
        kept = dict(self._earlier())
        if current is not None and not synthetic:
            kept.pop(earlier_key(current), None)  # For its date only: see `_take_identical`.
        by_age = sorted(kept, key=lambda key: age(kept[key]), reverse=True)
        for key in by_age[most:]:
            if not self._is_waited_for(key):
                self._drop(key, held=False)

    def _is_waited_for(self, key: str) -> bool:
        waiting = self._t.scan(tables.waiting, prefix=f"{key}/", columns=[tables.waits_for])
        return next(waiting, None) is not None

    def _hold(self, capture: Mapping[str, Any]) -> None:
        """Register the page under the payload of this capture."""
        payload = shares(capture)
        if payload is not None:
            holder = f"{key_of(payload)}/{page_id(capture['url'])}"
            self._t.set(tables.held, holder, capture["url"])

    def _hold_again(self, capture: Mapping[str, Any]) -> None:
        """Register a capture that was loaded before the table `payloads` existed."""
        payload = shares(capture)
        if payload is None or is_synthetic(capture):
            return
        if self._t.get(tables.held, f"{key_of(payload)}/{page_id(capture['url'])}") is None:
            self._hold(capture)
            self._t.notify(tables.offer_due, self._row)

    # --- Revisits ---------------------------------------------------------------------------

    def revisit(self, report: dict[str, Any], result: Loaded) -> None:
        """Load a revisit."""
        t, row = self._t, self._row
        result.unchanged += 1
        if not names_original(report):
            if self._seen is None or self._seen < report["date"]:
                self._seen = report["date"]
                self._write()
                if self._current is None:
                    # Nothing else that this writes is observed, and a removal must not miss it.
                    t.notify(tables.settle_due, row)
            return
        current = self._current
        newest = self._newest_capture()
        kept = newest_reports([*self._reports, report], newest["date"] if newest else "")
        if kept == self._reports or report not in kept:
            return
        # Two loaders of one page must not both assume that they are the later one.
        t.get_for_update(tables.capture, row)
        simple = (
            current is not None
            and not is_synthetic(current)
            and all(_repeats(one, current) for one in (*kept, *self._reports))
        )
        self._set_reports(kept)
        if simple:
            return
        for key in waits_at(report):
            t.set(tables.waits_for, f"{key}/{page_id(report['url'])}", report["url"])
            if t.get(tables.wanted, key) is None:
                t.set(tables.wanted, key, 1)
        t.notify(tables.settle_due, row)
        own = captures_in(row, current, self._earlier())
        if find(t, report, own, current) is None and not (current is None and is_no_page(t, row)):
            result.unresolved += 1

    def _newest_capture(self) -> Mapping[str, Any] | None:
        current = self._current
        if current is not None and not is_synthetic(current):
            return current
        return max(self._earlier().values(), key=age, default=None)

    def _set_reports(self, kept: Sequence[Mapping[str, Any]]) -> None:
        """Replace the reports, and remove what dropped ones were waiting for."""
        if list(kept) == self._reports:
            return
        left = {key for one in kept for key in waits_at(one)}
        for one in self._reports:
            for key in waits_at(one):
                place = f"{key}/{page_id(one['url'])}"
                if key not in left and self._t.get(tables.waits_for, place) is not None:
                    self._t.delete(tables.waits_for, place)
        self._reports = list(kept)
        self._write()

    def _write(self) -> None:
        self._has_other_past = True
        if self._seen is None and not self._reports:
            self._t.delete(tables.revisited, self._row)
            return
        value = {"seen": self._seen, "reports": self._reports}
        self._t.set(tables.revisited, self._row, value)


def reports_in(
    revisited: Mapping[str, Any] | None,
) -> tuple[str | None, list[Mapping[str, Any]]]:
    """From a value of `pages.revisited`: when a page was last seen unchanged, and its reports."""
    if revisited is None:
        return None, []
    if "reports" in revisited:
        return revisited["seen"], list(revisited["reports"])
    # Earlier versions kept the newest date and digest only.
    return (revisited["date"] if revisited["payload"] is None else None), []


def _kept(one: Capture, new: Mapping[str, Any], result: Loaded) -> bytes:
    """The body to keep. Reading a document takes time: none is read that is there already."""
    compressed, reading = kept_body(one, new["digest"])
    if reading is not None:
        result.pdfs += 1
        result.unread_pdfs += not reading.text
    return compressed


def _is_newer(current: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the current state stays. For equal dates a capture counts before a revisit."""
    if is_synthetic(current):
        return bool(current["date"] > new["date"])
    return age(current) > age(new)


def _repeats(report: Mapping[str, Any], capture: Mapping[str, Any]) -> bool:
    """Whether a report adds nothing to the newest capture of its page."""
    refers = report["refers"]
    if report["status"] is None and refers is not None and refers[0] != capture["url"]:
        # The headers of that other page count.
        return False
    return is_report_of(report, capture) and says_the_same(as_capture(report, capture), capture)


def describe(one: Capture, url: str, file: str) -> dict[str, Any]:
    """The value of the `capture` column: what observers read of a capture, and where it is stored.

    `date` is in UTC, to the microsecond. `location` is there for a status 300 to 399 and `refresh`
    below that, several joined by newlines as in `robots`; `link` if the `Link` header names a
    canonical page; `payload` is the payload digest of the WARC record; `cut` is the number of
    bytes after which a long body was cut off. `digest` is that of the bytes that were captured, of
    a PDF document too. What is not there is None.
    """
    link = one.headers.get("link")
    return {
        "url": url,
        "date": date_text(one.date),
        "status": one.status,
        "content_type": _content_type(one),
        "robots": one.headers.get("x-robots-tag"),
        "location": one.headers.get("location") if 300 <= one.status < 400 else None,
        "link": link if link and names_canonical(link) else None,
        "refresh": one.headers.get("refresh") if one.status < 300 else None,
        "language": one.headers.get("content-language"),
        "digest": blake2b(one.body, digest_size=16).hexdigest(),
        "cut": one.cut,
        "payload": one.payload_digest,
        "file": file,
        "offset": one.offset,
        "length": one.length,
        "loaded_ms": time.time_ns() // 1_000_000,
    }


def _content_type(one: Capture) -> str | None:
    """What the header says a page is; behind what it was recognised as, if that is no type."""
    said = one.headers.get("content-type")
    if one.is_pdf:
        return PDF
    if said and one.status < 300 and media_type(said) not in ("", one.content_type):
        return f"{one.content_type}; {said}"
    return said or one.content_type


def last_seen(capture: Mapping[str, Any], revisited: Mapping[str, Any] | None) -> str:
    """When the page was last known to match the capture, as `date` of a capture.

    Both arguments are values of the columns of one row.
    """
    seen, reports = reports_in(revisited)
    dates = [str(one["date"]) for one in reports if is_report_of(one, capture)]
    return max(str(capture["date"]), seen or "", *dates)
