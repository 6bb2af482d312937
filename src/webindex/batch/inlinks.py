"""Links grouped by target: who links to a page, and what these links add to its document.

A page's links are shuffled to their targets together with the cluster that the page is in. The
target knows the cluster that it represents, as a member or as a redirect to one. So a link
counts for a document if it leads into the cluster and does not come from it: each link is counted
once, and no tally is summed up or corrected. Of a target's texts only the `MOST_TEXTS` most
frequent ones count, by all links that vouch for it.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pyspark.core.rdd import RDD

from webindex import tables
from webindex.batch.facts import Facts
from webindex.page.sitemaps import urls_in
from webindex.page.urls import page_id, page_row

MOST_TEXTS: Final = 64
"""Different texts of the links to one page that count; not that of `tables`, which this judges."""


class Sent(NamedTuple):
    """A link, keyed for its target."""

    source: str
    cluster: str
    anchors: list[str]
    rel: str


class Row(NamedTuple):
    """Cells of one row: values by column."""

    table: str
    row: str
    values: dict[str, Any]


Total = tuple[int, Counter[str]]
"""Links, and how many of them have each text."""


class Target(NamedTuple):
    """A page that is linked to.

    Attributes:
        url: the page.
        links: all links to it.
        captured: whether there is a capture of it.
        counted: whether they may count at all: it is live, a redirect, or not captured.
        cluster: the cluster that it represents, if there is one.
    """

    url: str
    links: list[Sent]
    captured: bool
    counted: bool
    cluster: str | None


def targets(
    facts: RDD[Facts], clusters: RDD[tuple[str, str]], redirects: RDD[tuple[str, str]], parts: int
) -> RDD[Target]:
    """Every page that is linked to.

    `clusters` has the cluster of each live page, by URL; `redirects` that of each redirect to one.
    """
    standing: RDD[tuple[str, str | None]] = facts.context.union(
        [facts.flatMap(_captured), clusters, redirects]
    )
    linking: RDD[tuple[str, list[Any]]] = facts.filter(lambda page: bool(page.links)).map(
        lambda page: (page.name, page.links)
    )
    sent: RDD[tuple[str, Sent]] = linking.join(clusters, parts).flatMap(_send)
    return sent.cogroup(standing, parts).flatMap(_receive)


def _send(page: tuple[str, tuple[list[Any], str]]) -> Iterator[tuple[str, Sent]]:
    url, (links, cluster) = page
    for target, anchors, rel in links:
        yield target, Sent(url, cluster, anchors, rel)


_GONE: Final = ""
"""In place of a cluster: the page has a capture, and is neither live nor a redirect."""


def _captured(page: Facts) -> Iterator[tuple[str, str | None]]:
    if page.url is not None:
        redirects = page.pointer is not None and page.pointer[0] == "redirect"
        yield page.url, None if page.live or redirects else _GONE


def _receive(
    target: tuple[str, tuple[Iterable[Sent], Iterable[str | None]]],
) -> Iterator[Target]:
    url, (sent, standing) = target
    links, known = list(sent), list(standing)
    if links:
        cluster = next((one for one in known if one), None)
        yield Target(url, links, bool(known), _GONE not in known, cluster)


def rows_of(target: Target) -> Iterator[Row]:
    """The row of `inlinks` of a page that is linked to, and that of `frontier`."""
    values: dict[str, Any] = {}
    for one in target.links:
        values[f"source:{page_id(one.source)}"] = {
            "url": one.source,
            "anchors": one.anchors,
            "rel": one.rel,
        }
    count, anchors = _total(one for one in target.links if one.rel == "follow")
    if count and target.counted:
        values["tally"] = {"links": count, "anchors": dict(_most_frequent(anchors))}
        if not target.captured:
            yield Row("frontier", _entry_row(target.url, count), {"url": target.url})
    yield Row("inlinks", page_row(target.url), values)


def _entry_row(url: str, links: int) -> str:
    """The row in `frontier`: levels begin at 1, 2, 3, 4, 6, 8, 12, 16, 24, … links."""
    level, least, step = 0, 2, 1
    while links >= least:
        level += 1
        least += step
        step = least // 3 if least % 3 == 0 else least // 2
    row = page_row(url)
    return f"{99 - level:02}/{row[0]}/{row[3:]}"


def share_of(target: Target) -> Iterator[tuple[str, Total]]:
    """What a target adds to the document of its cluster: links that come from elsewhere."""
    here = target.cluster
    if here is not None:
        follow = [one for one in target.links if one.rel == "follow"]
        _, texts = _total(follow)
        count, own = _total(one for one in follow if one.cluster == here)
        anchors = Counter(dict(_most_frequent(texts)))
        anchors.subtract(own)
        if follow:
            yield here, (len(follow) - count, anchors)


def added(one: Total, other: Total) -> Total:
    """The sum of two totals."""
    anchors = one[1].copy()
    anchors.update(other[1])
    return one[0] + other[0], anchors


def _total(links: Iterable[Sent]) -> Total:
    count, anchors = 0, Counter[str]()
    for one in links:
        count += 1
        anchors.update(one.anchors)
    return count, anchors


def _most_frequent(texts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(texts.items(), key=lambda one: (-one[1], one[0]))[:MOST_TEXTS]


# --- Sitemaps -------------------------------------------------------------------------------


def listed_rows(
    sitemaps: RDD[tuple[str, dict[str, Any]]], captured: RDD[tuple[str, dict[str, Any]]], parts: int
) -> RDD[Row]:
    """What sitemaps list, from their captures: their rows, and those of `listed` and `frontier`.

    Both arguments have the cells of a row, by its row: `captured` of pages.
    """
    dates: RDD[tuple[str, str]] = captured.flatMap(_date_of)
    rows: RDD[Row] = sitemaps.leftOuterJoin(dates, parts).flatMap(_of_sitemap)
    urls: RDD[tuple[str, str]] = rows.filter(lambda row: row.table == "listed").map(_url_of_listed)
    pages: RDD[tuple[str, dict[str, Any]]] = captured.filter(lambda page: "capture" in page[1])
    entries: RDD[Row] = (
        urls.distinct(parts)
        .subtractByKey(pages, parts)
        .map(lambda one: Row("frontier", f"ls/{one[0][0]}/{one[0][3:]}", {"url": one[1]}))
    )
    return rows.union(entries)


def _url_of_listed(row: Row) -> tuple[str, str]:
    return row.row, next(iter(row.values.values()))["url"]


def _date_of(page: tuple[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    if "capture" in page[1]:
        yield page[0], page[1]["capture"]["date"]


def _of_sitemap(found: tuple[str, tuple[dict[str, Any], str | None]]) -> Iterator[Row]:
    row, (cells, page) = found
    # A newer capture of its URL is no sitemap: it is gone, redirects, or is a page.
    if "capture" not in cells or (page is not None and page > cells["capture"]["date"]):
        return
    sitemap, kind = cells["capture"]["url"], cells["capture"]["kind"]
    entered: dict[str, Any] = {}
    for url, modified in urls_in(kind, sitemap, zlib.decompress(cells["body"])).items():
        part = entered.setdefault(f"entered:{page_id(url)[:2]}", {"sitemap": sitemap, "urls": {}})
        part["urls"][url] = modified
        value = {"url": url, "sitemap": sitemap, "modified": modified}
        yield Row("listed", page_row(url), {f"by:{page_id(sitemap)}": value})
    if entered:
        yield Row("sitemaps", row, entered)


# --- Interim ranks --------------------------------------------------------------------------

_READ_WHOLE: Final = 128
"""Links to a page whose pages all count for its interim rank."""


def interim_ranks(facts: RDD[Facts], parts: int) -> RDD[Row]:
    """The ranks of live pages that no run has ranked yet, from the ranks that a run has written.

    A page gives each page that it links to its share of them (`Facts.share`). Where more than 128
    pages link to one, those whose ids begin with a zero count for all, or with two, and so on.
    """
    waiting: RDD[tuple[str, str]] = facts.filter(lambda page: page.live and page.interim).map(
        lambda page: (page.name, page.row)
    )
    given: RDD[tuple[str, tuple[str, float]]] = facts.flatMap(_give)
    return waiting.cogroup(given, parts).flatMap(_interim_rank)


def _give(page: Facts) -> Iterator[tuple[str, tuple[str, float]]]:
    for target, _, rel in page.links:
        if rel == "follow":
            yield target, (page_id(page.name), page.share or 0.0)


def _interim_rank(
    target: tuple[str, tuple[Iterable[str], Iterable[tuple[str, float]]]],
) -> Iterator[Row]:
    waiting, given = target[1][0], list(target[1][1])
    for row in waiting:
        shares, zeros = dict(given), ""
        while len(given) > _READ_WHOLE * 16 ** len(zeros):
            zeros += "0"
            shares = {page: share for page, share in given if page.startswith(zeros)}
        mean = math.fsum(shares.values()) / len(shares) if shares else 0.0
        yield Row("pages", row, {"rank": round(0.15 + 0.85 * (len(given) * mean), 6)})


# --- Large pages ----------------------------------------------------------------------------


def for_large(found: Row) -> Iterator[Row]:
    """What the row of a large page in `inlinks` has to have besides, and its row in `anchors`.

    When a page becomes large depends on when its links were counted, so that it is large, and
    that its texts are in `anchors`, is taken from the row. Both follow from its in-links, which are
    compared themselves.
    """
    large = found.values.get("large")
    if large is None or "tally" not in found.values:
        return
    texts = Counter[str]()
    for column, link in found.values.items():
        if column.startswith("source:") and link["rel"] == "follow":
            texts.update(link["anchors"])
    if len(texts) > MOST_TEXTS:
        large = tables.IN_ANCHORS
    yield Row("inlinks", found.row, {"large": large})
    if large == tables.IN_ANCHORS:
        yield Row("anchors", found.row, _in_anchors(texts))


def _in_anchors(texts: Mapping[str, int]) -> dict[str, Any]:
    """The cells of a page in `anchors`."""
    shown = {text for text, _ in _most_frequent(texts)}
    values: dict[str, Any] = {}
    best: dict[str, Any] = {}
    for text, number in texts.items():
        part = hashlib.blake2b(text.encode(), digest_size=1).hexdigest()
        values.setdefault(f"texts:{part}", {})[text] = number
        if text not in shown:
            best[part] = min(best.get(part, [0, ""]), [-number, text])
    if best:
        values["best"] = best
    return values
