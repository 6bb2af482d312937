"""The final state of each page according to WARC files, independent of their order.

A page is what its newest record says: a capture, or a revisit whose original is in the files. Here
all captures are available at once, so each revisit is joined with all its possible originals, and
the best is taken; that is the definition, which loaders and observers reach step by step
(`webindex.load.settling`). Only the parsing and description of single records is shared with
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark import SparkContext, StorageLevel
from pyspark.core.rdd import RDD

from webindex.crawl.http_body import cut_at_character
from webindex.crawl.warc import (
    MAX_BODY,
    Capture,
    Rejected,
    Rejection,
    Resource,
    Revisit,
    Sitemap,
    read_captures,
)
from webindex.load import revisits
from webindex.load.bodies import kept_body, reading_documents
from webindex.load.removals import Rules
from webindex.load.revisits import age, as_capture, packed, payload_id, says_the_same
from webindex.load.tasks import Part, plan_parts
from webindex.load.transaction import describe, is_conclusive, reports_in
from webindex.page.pointers import is_respelling
from webindex.page.urls import BadUrlError, normalise, page_id, page_row
from webindex.pdf.process import NoReaderError

_PART_BYTES: Final = 8 << 20

NO_RULES: Final = Rules()

Cuts = Mapping[tuple[str, str], int]
"""The bytes after which a capture was cut off, by its URL and date."""

NO_CUTS: Final[Cuts] = {}


class Said(NamedTuple):
    """One record: a capture, as its column stores it, with its body; or the report of a revisit."""

    capture: dict[str, Any] | None
    body: bytes
    report: dict[str, Any] | None


class Known(NamedTuple):
    """The records of one page.

    Attributes:
        captures: with their bodies, the newest first; of those of one payload the newest only,
            with the dates of the others.
        reports: those newer than the newest capture that are kept, the newest first.
        seen: when it was last seen unchanged, by a record that names no original.
    """

    captures: list[tuple[dict[str, Any], bytes]]
    reports: list[dict[str, Any]]
    seen: str | None


class Newest(NamedTuple):
    """The final state of a page: values of the columns of its row.

    `others` are its captures other than its state, the newest first, with their bodies;
    `unresolved` is the number of its reports that are newer than that and have no original.
    """

    capture: dict[str, Any] | None
    body: bytes
    reports: list[dict[str, Any]]
    seen: str | None
    unresolved: int = 0
    others: tuple[tuple[dict[str, Any], bytes], ...] = ()

    @property
    def revisited(self) -> dict[str, Any] | None:
        """The value of `pages.revisited`."""
        if not self.reports and self.seen is None:
            return None
        return {"seen": self.seen, "reports": self.reports}


Candidate = tuple[int, str, dict[str, Any]]
"""The preference for an original (less is better), the id of its page, and its capture."""


def newest(
    context: SparkContext,
    files: list[str],
    parts: int,
    *,
    bodies: bool = False,
    max_body: int = MAX_BODY,
    cuts: Cuts = NO_CUTS,
    revisited: RDD[tuple[str, dict[str, Any]]] | None = None,
    rules: Rules = NO_RULES,
    copies: RDD[tuple[str, dict[str, Any]]] | None = None,
) -> RDD[tuple[str, Newest]]:
    """The final state of each page, by row.

    Bodies are cut off after `max_body` bytes, and those in `cuts` as it says. Records that `rules`
    refuse are left out. `copies` are values of `pages.capture` that were made from originals which
    were removed since, by row: their pages keep them.

    Bodies are compressed as in the repository, and empty without `bodies`. With `revisited`, by
    row, those reports are used instead of the revisits in the files, which may not be all of them.
    The input is persisted in Spark's storage: the caller frees it.
    """
    tasks = plan_parts(files, _PART_BYTES)
    said: RDD[tuple[str, Said]] = context.parallelize(tasks, len(tasks)).mapPartitions(
        partial(_read, bodies, max_body, rules, cuts=cuts)
    )
    if revisited is None:
        known: RDD[tuple[str, Known]] = said.groupByKey(parts).mapValues(_known)
    else:
        known = said.cogroup(revisited, parts).mapValues(_known_given)
    known.persist(StorageLevel.DISK_ONLY)
    asked: RDD[tuple[str, str]] = known.flatMap(_asked).distinct(parts)
    offered: RDD[tuple[str, tuple[str, dict[str, Any]]]] = known.flatMap(_offered)
    found: RDD[tuple[str, tuple[str, dict[str, Any]]]] = asked.cogroup(offered, parts).flatMap(
        _answers
    )
    if copies is not None:
        found = found.union(copies.map(lambda one: (one[0], (page_id(one[1]["url"]), one[1]))))
    decided = known.cogroup(found, parts).flatMap(_decided)
    if not bodies:
        return decided.mapValues(lambda one: one[0])
    decided.persist(StorageLevel.DISK_ONLY)
    copied: RDD[tuple[str, bytes]] = (
        decided.flatMap(_body_wanted).join(known, parts).map(_body_found)
    )
    return decided.leftOuterJoin(copied, parts).mapValues(_with_body)


def _read(
    bodies: bool, max_body: int, rules: Rules, parts: Iterable[Part], cuts: Cuts = NO_CUTS
) -> Iterator[tuple[str, Said]]:
    with reading_documents():
        for split in (split for part in parts for split in part):
            for record in read_captures(
                split.path, start=split.start, end=split.end, max_body=max_body
            ):
                if isinstance(record, Rejected) and record.reason is Rejection.NO_PDF_READER:
                    raise NoReaderError(
                        f"{split.path} has PDF documents, but pypdf is not there: {record.detail}."
                    )
                if isinstance(record, Rejected | Resource | Sitemap):
                    continue
                if isinstance(record, Capture) and not is_conclusive(record.status):
                    continue
                try:
                    url = normalise(record.url)
                except BadUrlError:
                    continue
                if isinstance(record, Capture) and is_respelling(
                    record.url, url, record.status, record.headers.get("location")
                ):
                    continue
                if rules.refuses(url, revisits.date_text(record.date)):
                    continue
                if isinstance(record, Revisit):
                    report = revisits.report_of(record, url, split.path)
                    yield page_row(url), Said(None, b"", report)
                else:
                    cut = cuts.get((url, revisits.date_text(record.date)))
                    if cut is not None and len(record.body) > cut:
                        record = replace(record, body=cut_at_character(record.body, cut), cut=cut)
                    capture = describe(record, url, split.path)
                    body = kept_body(record, capture["digest"])[0] if bodies else b""
                    yield page_row(url), Said(capture, body, None)


# --- One page by itself ---------------------------------------------------------------------


def _known(records: Iterable[Said]) -> Known:
    said = list(records)
    reports = [one.report for one in said if one.report is not None]
    seen = max((one["date"] for one in reports if not _refers(one)), default=None)
    captures: dict[str, tuple[dict[str, Any], bytes]] = {}
    for one in said:
        if one.capture is not None:
            content = payload_id(one.capture["payload"]) or one.capture["digest"]
            found, body = captures.get(content, (None, b""))
            if found is None or age(found) < age(one.capture):
                body = one.body
            captures[content] = revisits.with_identical(one.capture, found), body
    ordered = sorted(captures.values(), key=lambda one: age(one[0]), reverse=True)
    after = ordered[0][0]["date"] if ordered else ""
    kept = revisits.newest_reports(filter(_refers, reports), after)
    return Known(ordered, [dict(one) for one in kept], seen)


def _known_given(page: tuple[Iterable[Said], Iterable[dict[str, Any]]]) -> Known:
    said, revisited = page
    known = _known(one for one in said if one.report is None)
    seen, reports = reports_in(next(iter(revisited), None))
    after = known.captures[0][0]["date"] if known.captures else ""
    kept = revisits.newest_reports(reports, after)
    return Known(known.captures, [dict(one) for one in kept], seen)


def _refers(report: Mapping[str, Any]) -> bool:
    return report["payload"] is not None or report["refers"] is not None


# --- Originals ------------------------------------------------------------------------------


def _asked(page: tuple[str, Known]) -> Iterator[tuple[str, str]]:
    """(key that is looked up, row of the page that looks it up)."""
    row, known = page
    for report in known.reports:
        if report["payload"] is not None:
            yield f"payload {report['payload']}", row
        if report["refers"] is not None:
            yield f"page {page_row(report['refers'][0])}", row


def _offered(page: tuple[str, Known]) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """(key that is offered, (id of the page, capture))."""
    row, known = page
    for capture, _ in known.captures:
        whose = page_id(capture["url"]), capture
        yield f"page {row}", whose
        payload = payload_id(capture["payload"])
        if payload is not None and 200 <= capture["status"] < 300:
            yield f"payload {payload}", whose


def _answers(
    key: tuple[str, tuple[Iterable[str], Iterable[tuple[str, dict[str, Any]]]]],
) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """(row of a page that looks something up, (id of a page, capture of it))."""
    name, (asking, offered) = key
    rows = list(asking)
    if not rows:
        return
    # Only one page answers for a payload, however many have it.
    if name.startswith("payload "):
        first = min(offered, key=lambda one: one[0], default=None)
        offers = [] if first is None else [first]
    else:
        offers = list(offered)
    for row in rows:
        for one in offers:
            yield row, one


def _rank(report: Mapping[str, Any], whose: str, capture: Mapping[str, Any]) -> int | None:
    """The preference for a capture as original (less is better); None if it is none."""
    if revisits.is_synthetic(capture):
        return None if revisits.copy_of(report, capture) is None else 4
    if report["status"] is not None and not 200 <= capture["status"] < 300:
        return None
    payload = payload_id(capture["payload"])
    same = payload is not None and payload == report["payload"]
    if not same and report["payload"] is not None and payload is not None:
        return None
    refers = report["refers"]
    if refers is not None and revisits.as_referred(capture, refers) is not None:
        return 0
    if not same:
        return None
    if capture["url"] == report["url"]:
        return 1
    return 2 if refers is not None and capture["url"] == refers[0] else 3


def _decided(
    page: tuple[str, tuple[Iterable[Known], Iterable[tuple[str, dict[str, Any]]]]],
) -> Iterator[tuple[str, tuple[Newest, tuple[str, str] | None]]]:
    """(row, (state of the page, whose capture has its body: (row, digest), if another one))."""
    row, (pages, found) = page
    known = next(iter(pages), None)
    if known is None:
        return
    own = [(page_id(one["url"]), one) for one, _ in known.captures]
    candidates = [*own, *found]
    captures = known.captures
    capture, body = captures[0] if captures else (None, b"")
    others = captures[1:]
    elsewhere = None
    unresolved = 0
    for report in known.reports:
        original = _original(report, candidates)
        if original is None:
            unresolved += 1
            continue
        made = as_capture(report, original)
        if capture is None or not says_the_same(made, capture):
            capture, others = made, captures
            if original["digest"] != revisits.NOTHING:
                elsewhere = page_row(original["url"]), original["digest"]
            body = packed(b"")
        break
    value = Newest(capture, body, known.reports, known.seen, unresolved, tuple(others))
    yield row, (value, elsewhere)


def _original(
    report: Mapping[str, Any], candidates: Iterable[tuple[str, dict[str, Any]]]
) -> dict[str, Any] | None:
    if report["payload"] in revisits.EMPTY and report["status"] is not None:
        return {"digest": revisits.NOTHING, "url": report["url"], "date": report["date"]}
    ranked: list[tuple[int, str, int, dict[str, Any]]] = []
    for number, (whose, capture) in enumerate(candidates):
        rank = _rank(report, whose, capture)
        if rank is not None:
            ranked.append((rank, whose, number, capture))
    if not ranked:
        return None
    rank, _, _, capture = min(ranked)
    return (
        dict(revisits.as_referred(capture, report["refers"]) or capture) if rank == 0 else capture
    )


# --- Bodies ---------------------------------------------------------------------------------


def _body_wanted(
    page: tuple[str, tuple[Newest, tuple[str, str] | None]],
) -> Iterator[tuple[str, tuple[str, str]]]:
    """(row that has a body, (its digest, row that wants it))."""
    row, (_, elsewhere) = page
    if elsewhere is not None:
        yield elsewhere[0], (elsewhere[1], row)


def _body_found(one: tuple[str, tuple[tuple[str, str], Known]]) -> tuple[str, bytes]:
    _, ((digest, row), known) = one
    return row, next(body for capture, body in known.captures if capture["digest"] == digest)


def _with_body(one: tuple[tuple[Newest, tuple[str, str] | None], bytes | None]) -> Newest:
    (value, _), copied = one
    return value if copied is None else value._replace(body=copied)
