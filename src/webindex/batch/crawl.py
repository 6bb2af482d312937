"""What WARC files say of each page in the end: its newest capture, whatever order they were in."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark import SparkContext
from pyspark.core.rdd import RDD

from webindex.load_tasks import Part, plan_parts
from webindex.loading import age, describe, is_conclusive
from webindex.urls import BadUrlError, normalise, page_row
from webindex.warc import Capture, Rejected, Revisit, read_captures

_PART_BYTES: Final = 8 << 20


class Said(NamedTuple):
    """One record: a capture, as its column has it, with its body; or a revisit."""

    capture: dict[str, Any] | None
    body: bytes
    revisited: dict[str, Any] | None


class Newest(NamedTuple):
    """What there is to be known of a page: values of the columns of its row."""

    capture: dict[str, Any] | None
    body: bytes
    revisited: dict[str, Any] | None


def newest(
    context: SparkContext,
    files: list[str],
    parts: int,
    *,
    bodies: bool = False,
    revisited: RDD[tuple[str, dict[str, Any]]] | None = None,
) -> RDD[tuple[str, Newest]]:
    """The newest conclusive capture of each page, and its newest revisit, by row.

    Bodies are compressed as in the repository, and empty without `bodies`. With `revisited`, by
    row, those count instead of the revisits in the files, which may not be all of them.
    """
    tasks = plan_parts(files, _PART_BYTES)
    said: RDD[tuple[str, Said]] = context.parallelize(tasks, len(tasks)).mapPartitions(
        partial(_read, bodies)
    )
    if revisited is None:
        return said.groupByKey(parts).mapValues(_newest)
    return said.cogroup(revisited, parts).flatMapValues(_newest_given)


def _read(bodies: bool, parts: Iterable[Part]) -> Iterator[tuple[str, Said]]:
    for split in (split for part in parts for split in part):
        for record in read_captures(split.path, start=split.start, end=split.end):
            if isinstance(record, Rejected):
                continue
            if isinstance(record, Capture) and not is_conclusive(record.status):
                continue
            try:
                url = normalise(record.url)
            except BadUrlError:
                continue
            if isinstance(record, Revisit):
                date = record.date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                revisited = {"date": date, "payload": record.payload_digest}
                yield page_row(url), Said(None, b"", revisited)
            else:
                body = zlib.compress(record.body, 6) if bodies else b""
                yield page_row(url), Said(describe(record, url, split.path), body, None)


def _newest(records: Iterable[Said]) -> Newest:
    said = list(records)
    revisited = max(
        (one.revisited for one in said if one.revisited is not None),
        # A report that says what the page was tells more than any number of others.
        key=lambda one: (one["payload"] is not None, one["date"], one["payload"] or ""),
        default=None,
    )
    return _best(said, revisited)


def _newest_given(page: tuple[Iterable[Said], Iterable[dict[str, Any]]]) -> Iterator[Newest]:
    said, revisited = page
    known = list(said)
    if known:
        yield _best(known, next(iter(revisited), None))


def _best(said: Iterable[Said], revisited: dict[str, Any] | None) -> Newest:
    """The record whose capture counts, and the newest revisit of the page."""
    best, best_age = Newest(None, b"", revisited), tuple[str, ...]()
    for one in said:
        if one.capture is not None and (here := age(one.capture)) > best_age:
            best, best_age = Newest(one.capture, one.body, revisited), here
    return best
