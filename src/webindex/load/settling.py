"""Resolves revisits to their originals, in whatever order and by whichever loaders they arrive.

    load ─▶ (settle) ─▶ capture, body ─▶ parse ─▶ …
              ▲
              └─ (wake) ◀─ parse, or (offer), of a capture for which some page waits

A revisit is registered under what it waits for (`waiting`) when it is loaded, and its original is
looked up in a later transaction, `settle`. A capture is entered in `payloads` when it is loaded,
and waiting pages are looked up in a later transaction, `parse` or `offer`. So of a revisit and its
original, the later one sees the other, without a cell that both would have to write: a
payload that a million pages share makes no loader wait for another.

`settle` recomputes what the page is from the known captures and reports. So it
does not matter how often it runs, and a better original may be loaded later (see `revisits.find`
for the order of preference).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from percola import Column, Snapshot, Transaction, observer
from webindex import tables
from webindex.load.removals import rules_for
from webindex.load.revisits import (
    Found,
    age,
    as_capture,
    body_at,
    captures_in,
    earlier_key,
    find,
    is_synthetic,
    offered_keys,
    says_the_same,
    with_identical,
)
from webindex.load.transaction import reports_in
from webindex.page.urls import page_id, page_row, url_of_row

__all__ = ["offer", "offer_captures", "read_ahead", "settle", "wake"]

_PARSED: Final[list[Column[str, Any]]] = [
    *(tables.capture, tables.earlier, tables.revisited, tables.fingerprint, tables.pointer),
    *(tables.rank, tables.recrawl, tables.tally),
]
"""Columns of a page that `parse` reads."""

WAKE_STEP: Final = 500
"""Pages that one run of `wake` notifies: any number of pages may share a payload."""


@observer(tables.settle_due, batch=tables.BATCH)
def settle(t: Transaction, row: str) -> None:
    """Decide what a page is: its newest capture, or a newer revisit whose original is known."""
    page = t.get_row(
        tables.pages,
        row,
        [tables.capture, tables.revisited, tables.unresolved, tables.earlier],
    )
    current = page.get(tables.capture)
    own = captures_in(row, current, page.get(tables.earlier))
    newest = own[0] if own else None
    seen, reports = reports_in(page.get(tables.revisited))
    if _is_refused(t, row, [*(one.capture for one in own), *reports], seen):
        t.notify(tables.erase_due, row)
        return
    unresolved = 0
    chosen: Found | None = newest
    for report in reports:
        if newest is not None and report["date"] <= newest.capture["date"]:
            continue
        original = find(t, report, own, current)
        if original is None:
            unresolved += 1
            continue
        capture = as_capture(report, original.capture)
        if newest is None or not says_the_same(capture, newest.capture):
            chosen = Found(capture, original.row, original.key)
        break
    if chosen is not None and (current is None or not _is_same(chosen.capture, current)):
        _become(t, row, chosen, current, page.get(tables.earlier) or {})
    if unresolved != (page.get(tables.unresolved) or 0):
        t.get_for_update(tables.revisited, row)
        tables.set_or_delete(t, tables.unresolved, row, unresolved)


def _is_refused(
    t: Snapshot, row: str, records: Sequence[Mapping[str, Any]], seen: str | None
) -> bool:
    """Whether the page has a record that was removed; see `webindex.load.removals`."""
    url = records[0]["url"] if records else url_of_row(row)
    if url is None:
        return False
    rules = rules_for(t, [url])
    dates = [str(one["date"]) for one in records]
    return any(rules.refuses(url, date) for date in (dates if seen is None else [*dates, seen]))


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return age(one) == age(other) and one.get("original") == other.get("original")


def _become(
    t: Transaction,
    row: str,
    chosen: Found,
    current: Mapping[str, Any] | None,
    earlier: Mapping[str, Any],
) -> None:
    """Write what the page is. A capture that is not the page's state is kept in `earlier`."""
    body = body_at(t, chosen)
    kept = dict(earlier)
    if current is not None and not is_synthetic(current):
        key = earlier_key(current)
        kept[key] = with_identical(current, kept.get(key))
        t.set(tables.earlier_body[key], row, t.get(tables.body, row) or b"")
    if not is_synthetic(chosen.capture):
        assert chosen.key is not None
        del kept[chosen.key]
        t.delete(tables.earlier_body[chosen.key], row)
    if kept:
        if kept != earlier:
            t.set(tables.earlier, row, kept)
    elif earlier:
        t.delete(tables.earlier, row)
    t.set(tables.capture, row, dict(chosen.capture))
    t.set(tables.body, row, body)


@observer(tables.offer_due, batch=tables.BATCH)
def offer(t: Transaction, row: str) -> None:
    """Notify the pages that wait for one of a page's earlier captures."""
    page = t.get_row(tables.pages, row, [tables.capture, tables.earlier])
    own = captures_in(row, page.get(tables.capture), page.get(tables.earlier))
    offer_captures(t, [one.capture for one in own])


def offer_captures(t: Transaction, captures: Sequence[Mapping[str, Any]]) -> None:
    """Notify the pages that wait for one of these captures of one page."""
    for key in offered_keys(captures):
        if t.get(tables.wanted, key) is not None and _is_first(t, key, captures[0]["url"]):
            t.notify(tables.wake_due, key)


def _is_first(t: Transaction, key: str, url: str) -> bool:
    """Whether lookups of this payload lead to this page: other pages have nothing to offer."""
    if key.startswith("at-"):
        return True
    for holder in t.scan(tables.payloads, prefix=f"{key}/", columns=[tables.held]):
        return holder.key == f"{key}/{page_id(url)}"
    return False


def read_ahead(
    t: Snapshot, rows: Sequence[str], others: Iterable[tuple[Column[str, Any], str]] = ()
) -> None:
    """Prefetch what `parse` reads for each of these pages, `offer_captures` and `plan` included.

    `others` are cells of other rows, which are read in the same call.
    """
    t.get_many([*((column, row) for row in rows for column in _PARSED), *others])
    found = [one for row in rows if (one := t.get(tables.capture, row)) is not None]
    rules_for(t, (one["url"] for one in found))
    t.get_many(
        (tables.wanted, key)
        for one in found
        if not is_synthetic(one)
        for key in offered_keys([one])
    )


@observer(tables.wake_due, batch=tables.BATCH)
def wake(t: Transaction, row: str) -> None:
    """Notify the pages that wait under a key to settle again, a bounded number at a time."""
    key, _, after = row.partition("/")
    start = f"{key}/{after}\0" if after else f"{key}/"
    pages = t.scan(tables.waiting, start=start, end=f"{key}0", columns=[tables.waits_for])
    last = ""
    for page in islice(pages, WAKE_STEP):
        t.notify(tables.settle_due, page_row(page[tables.waits_for]))
        last = page.key
    if next(pages, None) is not None:
        t.notify(tables.wake_due, last)
