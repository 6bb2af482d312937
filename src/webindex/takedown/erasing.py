"""Erases a page: one transaction takes it out of every table, as if it had never been captured.

A page's cells are in its own row, and, derived from them, in rows that it shares with others: the
in-links of the pages that it links to, its cluster, the counters of its host. The observers know
how to take those back when a capture finds a page gone, and each of them is a function of the
transaction and the row. So `erase` withdraws the page, calls them in the order in which they would
have run, and deletes the row. What follows for other pages and documents follows by notifications.

Every cell of the row is deleted, also those that are not there: an observer that has read the page,
and is about to write something derived from it, then conflicts with this transaction. It would
otherwise leave cells of a page without a capture behind (write skew).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from percola import Column, Snapshot, Transaction, observer
from webindex import tables
from webindex.load.recrawls import forget, plan
from webindex.load.removals import Rules, rules_for
from webindex.load.resources import keeps_resources, let_go
from webindex.load.revisits import (
    is_synthetic,
    key_of,
    offered_keys,
    shares,
    waits_at,
)
from webindex.load.transaction import reports_in
from webindex.observers import frontier
from webindex.observers.clustering import join
from webindex.observers.inlinks import invert
from webindex.observers.parse import withdraw
from webindex.observers.redirects import resolve
from webindex.observers.summaries import share
from webindex.page.urls import page_id, page_row, url_of_row
from webindex.rendering import tables as rendering
from webindex.rendering.dependencies import enter, forget_image, spread_from

__all__ = ["Stored", "erase", "erase_refused", "stored_at"]

_CELLS: Final[list[Column[str, Any]]] = [
    one for one in tables.pages.members if isinstance(one, Column)
]


@dataclass(frozen=True, slots=True)
class Stored:
    """What the repository has of one URL.

    Attributes:
        url: the URL; None if the row was cut and nothing in it has the URL.
        current: its `pages.capture`.
        earlier: its `pages.earlier`.
        seen, reports: what its `pages.revisited` has.
        links: how many links it has.
        clusters: the clusters whose documents show it, as a page or as a redirect.
        resource: its `resources.capture`.
        sitemap: its `sitemaps.capture`.
        image: whether there is an image of it.
    """

    url: str | None
    current: Mapping[str, Any] | None
    earlier: Mapping[str, Mapping[str, Any]]
    seen: str | None
    reports: list[Mapping[str, Any]]
    links: int
    clusters: frozenset[str]
    resource: Mapping[str, Any] | None
    sitemap: Mapping[str, Any] | None
    image: bool

    @property
    def is_page(self) -> bool:
        """Whether a record of it as a page is there."""
        return bool(self.current or self.earlier or self.reports or self.seen)

    @property
    def captures(self) -> list[Mapping[str, Any]]:
        """Its captures as a page, without one that was made from a revisit."""
        current = self.current
        own = [] if current is None or is_synthetic(current) else [current]
        return [*own, *self.earlier.values()]

    @property
    def newest(self) -> str:
        """The date of its newest record; empty if there is none."""
        others = (self.resource, self.sitemap)
        records = [self.current, *self.earlier.values(), *self.reports, *others]
        return max([self.seen or "", *(str(one["date"]) for one in records if one is not None)])


def stored_at(t: Snapshot, row: str) -> Stored:
    """What the repository has of the URL of a row of `pages`."""
    page = t.get_row(
        tables.pages,
        row,
        [
            *(tables.capture, tables.earlier, tables.revisited, tables.inverted),
            *(tables.joined, tables.resolved),
        ],
    )
    current = page.get(tables.capture)
    seen, reports = reports_in(page.get(tables.revisited))
    resource, about, sitemap = t.get_many(
        [(rendering.capture, row), (rendering.about, row), (tables.sitemap, row)]
    )
    known = [one["url"] for one in (current, *reports, resource, sitemap) if one is not None]
    joined, resolved = page.get(tables.joined), page.get(tables.resolved)
    clusters = {joined["cluster"]} if joined is not None else set()
    if joined is None and resolved is not None:
        shown = t.get(tables.joined, page_row(resolved["url"]))
        clusters = {shown["cluster"]} if shown is not None else set()
    return Stored(
        known[0] if known else url_of_row(row),
        current,
        page.get(tables.earlier) or {},
        seen,
        reports,
        len(page.get(tables.inverted) or []),
        frozenset(clusters),
        resource,
        sitemap,
        about is not None,
    )


@observer(tables.erase_due, batch=16)
def erase(t: Transaction, row: str) -> None:
    """Erase what a loader has written of a page that was removed while it ran."""
    erase_refused(t, row, stored_at(t, row))


def erase_refused(t: Transaction, row: str, stored: Stored) -> None:
    """Erase the records of a URL that a removal refuses, and whatever was made from them.

    `stored` is what this transaction finds at the row.
    """
    if stored.url is None:
        return
    rules = rules_for(t, [stored.url])
    current, resource = stored.current, stored.resource
    if current is not None and not rules.refuses(stored.url, current["date"]):
        _drop_earlier(t, row, stored, rules)
    elif stored.is_page:
        _erase_page(t, row, stored, rules)
    if stored.sitemap is not None and rules.refuses(stored.url, stored.sitemap["date"]):
        # Its observer takes back what it lists.
        t.delete(tables.sitemap, row)
        t.delete(tables.sitemap_body, row)
    if resource is not None and rules.refuses(stored.url, resource["date"]):
        let_go(t, resource)
        t.delete(rendering.capture, row)
        _forget_uses(t, row, stored.url)


def _erase_page(t: Transaction, row: str, stored: Stored, rules: Rules) -> None:
    url = str(stored.url)
    refused = [one for one in stored.reports if rules.refuses(url, one["date"])]
    kept = [one for one in stored.reports if one not in refused]
    seen = None if rules.refuses(url, stored.seen or "") else stored.seen
    if stored.current is None and not stored.earlier and not refused and seen == stored.seen:
        return
    _let_go_of_payloads(t, url, stored.captures)
    waits = {key for one in refused for key in waits_at(one)}
    for key in waits - {key for one in kept for key in waits_at(one)}:
        t.delete(tables.waits_for, f"{key}/{page_id(url)}")
    if stored.current is not None:
        withdraw(t, row, url)
        resolve(t, row)
        invert(t, row)
        joined = t.get(tables.joined, row)
        join(t, row)
        # It may have shared in a cluster that it has left, or that is not large any more.
        if t.get(tables.shared, row) is not None or (
            joined is not None and t.get(tables.size, joined["cluster"]) is not None
        ):
            share(t, row)
    forget(t, row)
    for column in _CELLS:
        t.delete(column, row)
    for key in stored.earlier:
        t.delete(tables.earlier_body[key], row)
    if stored.current is not None:
        tally = t.get_for_update(tables.tally, row)
        if tally is not None:
            frontier.enter(t, row, url, tally)
        else:
            t.notify(tables.inlinks_changed, row)
        t.notify(tables.listed_changed, row)
    if kept or seen is not None:
        t.set(tables.revisited, row, {"seen": seen, "reports": kept})
        t.notify(tables.settle_due, row)
    if keeps_resources(t):
        _erase_image(t, row, url)


def _erase_image(t: Transaction, row: str, url: str) -> None:
    forget_image(t, row)
    _forget_uses(t, row, url)


def _forget_uses(t: Transaction, row: str, url: str) -> None:
    """Take back what a document asks for, and have those that ask for it rendered again."""
    enter(t, row, url, "part", [])
    t.delete(rendering.entered, row)
    spread_from(t, url)


def _drop_earlier(t: Transaction, row: str, stored: Stored, rules: Rules) -> None:
    """Erase removed captures of a page that was captured again since."""
    url = str(stored.url)
    refused = {k: one for k, one in stored.earlier.items() if rules.refuses(url, one["date"])}
    if not refused:
        return
    _let_go_of_payloads(t, url, refused.values())
    kept = {key: one for key, one in stored.earlier.items() if key not in refused}
    tables.set_or_delete(t, tables.earlier, row, kept)
    for key in refused:
        t.delete(tables.earlier_body[key], row)
    # As loaders of the page do.
    t.get_for_update(tables.capture, row)
    plan(t, row)
    if stored.reports:
        t.notify(tables.settle_due, row)


def _let_go_of_payloads(t: Transaction, url: str, captures: Iterable[Mapping[str, Any]]) -> None:
    """Take captures of a page back from `payloads`, and have pages that found them there settle."""
    gone = list(captures)
    for payload in {shares(one) for one in gone} - {None}:
        t.delete(tables.held, f"{key_of(str(payload))}/{page_id(url)}")
    for key in offered_keys(gone):
        if t.get(tables.wanted, key) is not None:
            t.notify(tables.wake_due, key)
