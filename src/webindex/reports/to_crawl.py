"""What to crawl next: URLs that were never captured (the frontier), and pages that are due again.

URLs of the frontier come in the order of the number of links that vouch for them. They are read
level by level (`webindex.observers.frontier`), of one host or of all, and no further than asked
for. Of the URLs of one level, up to `CANDIDATES` are read and sorted: by their links, and for equal
numbers by the highest PageRank of a page that links to them. Behind them come URLs that only
sitemaps list (`webindex.observers.sitemaps`), those first that changed last, by their `lastmod`.

What is listed is as of one timestamp. URLs that were blocked are left out; where a whole host is
blocked, its entries are passed over by one step for each range of them. URLs whose capture was
loaded and waits to be parsed are left out as well, and those that were captured as a resource or a
sitemap.

Pages that are due come in the order of their PageRank, of all hosts by a look at the first rows of
each level (`webindex.load.recrawls`); those of one host by a look at all pages of the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from percola import Column, Repository, Snapshot, Table
from webindex import tables
from webindex.load.recrawls import past_of
from webindex.load.removals import rules_for
from webindex.load.resources import keeps_resources
from webindex.load.transaction import last_seen
from webindex.observers.frontier import LISTED, entry_row, listed_row
from webindex.page.urls import host as host_of
from webindex.page.urls import host_rows, page_row, surt
from webindex.rendering import tables as rendering

__all__ = ["CANDIDATES", "Due", "Uncaptured", "due", "frontier", "is_listed", "links_in_frontier"]

CANDIDATES: Final = 1_000
"""URLs of one level that are read and sorted, if fewer are asked for."""

_SOURCES: Final = 16
"""Pages that link to a URL whose ranks are read."""

_TEXTS: Final = 5
_AT_ONCE: Final = 256
_DIGITS: Final = "0123456789abcdef"
_KEY: Final = len("00/0/")
_LAST: Final = "~"
"""After every date: only a block refuses it."""


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """A URL to crawl.

    Attributes:
        url: the URL.
        links: how many links vouch for it.
        rank: the highest PageRank of the pages that link to it, of at most about 16 of them; None
            if none of these has a rank.
        anchors: the most frequent texts of these links, at most five.
        sitemap: of a URL without such a link, a sitemap or robots.txt that lists it.
        modified: when it changed last, according to that sitemap.
    """

    url: str
    links: int
    rank: float | None
    anchors: list[str]
    sitemap: str | None = None
    modified: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Due:
    """A page to crawl again.

    Attributes:
        url: the page.
        due: since when it is due, in UTC: it has then changed with a probability of one half.
        rank: its PageRank; None if it has none.
        seen: when it was last captured or reported unchanged.
        intervals, changes: of how many known intervals between such dates how many showed a change.
    """

    url: str
    due: str
    rank: float | None
    seen: str
    intervals: int
    changes: int

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)


def due(
    repo: Repository, *, host: str | None = None, limit: int = 100, at: datetime | None = None
) -> list[Due]:
    """The pages that are due for another crawl, at most `limit`, those with the highest rank first.

    Pages of one level of PageRank, two levels for each doubling, come in the order of their rank
    among those that are due longest: up to `CANDIDATES` of a level, or `limit`, are sorted.

    Args:
        repo: the repository.
        host: only pages of this host, by any scheme and port. Reads a cell of each of them.
        limit: how many.
        at: due at this time, in any time zone; now by default.

    Raises:
        BadUrlError: `host` is not the name of a host.
    """
    until = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ~")
    found: list[Due] = []
    with repo.snapshot() as now:
        groups = _due_of_all(now, until) if host is None else [_due_of(now, host, until)]
        for urls in groups:
            if len(found) >= limit:
                break
            most = max(CANDIDATES, limit - len(found))
            found += sorted(_pasts(now, list(islice(urls, most))), key=_by_rank)
    return found[:limit]


def _by_rank(one: Due) -> tuple[float, str, str]:
    return -(one.rank or 0.0), one.due, one.url


def _due_of_all(now: Snapshot, until: str) -> Iterator[Iterator[str]]:
    """The URLs that are due, level by level."""
    for level in _levels(now, tables.recrawls):
        rows = now.scan(tables.recrawls, start=f"{level}/", end=f"{level}/{until}")
        yield (row[tables.recrawl_url] for row in rows)


def _due_of(now: Snapshot, host: str, until: str) -> Iterator[str]:
    """The URLs of a host that are due, by level and date."""
    entries = sorted(
        entry
        for prefix in host_rows(host)
        for row in now.scan(tables.pages, prefix=prefix, columns=[tables.recrawl])
        if (entry := row[tables.recrawl])[3:] < until
    )
    for entry in entries:
        url = now.get(tables.recrawl_url, entry)
        if url is not None:
            yield url


def _pasts(now: Snapshot, urls: Sequence[str]) -> Iterator[Due]:
    columns = (tables.capture, tables.earlier, tables.revisited, tables.rank, tables.recrawl)
    for low in range(0, len(urls), _AT_ONCE):
        some = urls[low : low + _AT_ONCE]
        rules = rules_for(now, some)
        for url, row in zip(
            some, now.get_rows(tables.pages, map(page_row, some), columns), strict=True
        ):
            if rules.refuses(url, _LAST) or tables.capture not in row:
                continue
            past = past_of(row[tables.capture], row.get(tables.earlier), row.get(tables.revisited))
            rank = row.get(tables.rank)
            yield Due(
                url,
                past.due,
                rank["value"] if rank is not None else None,
                last_seen(row[tables.capture], row.get(tables.revisited)),
                past.intervals,
                past.changes,
            )


def frontier(repo: Repository, *, host: str | None = None, limit: int = 100) -> list[Uncaptured]:
    """The URLs with most links that were never captured, at most `limit`.

    Costs in proportion to `limit`, and not to the number of URLs or links: see above.

    Args:
        repo: the repository.
        host: only URLs of this host, by any scheme and port.
        limit: how many.

    Raises:
        BadUrlError: `host` is not the name of a host.
    """
    found: list[Uncaptured] = []
    with repo.snapshot() as now:
        parts = _parts(host)
        for level in _levels(now, tables.frontier):
            if len(found) >= limit:
                break
            urls = (url for part in parts for url in _usable(now, f"{level}/{part}"))
            most = max(CANDIDATES, limit - len(found))
            some = list(islice(urls, most))
            if level == LISTED:
                listed = sorted(_listed(now, some), key=_order)
                found += sorted(listed, key=lambda one: one.modified or "", reverse=True)
            else:
                found += sorted(_described(now, some), key=_order)
    return found[:limit]


def links_in_frontier(now: Snapshot, url: str) -> int:
    """How many links vouch for a URL that is in the frontier; 0 if it is not."""
    row = page_row(url)
    tally = now.get(tables.tally, row)
    if tally is None or now.get(tables.uncaptured, entry_row(row, tally["links"])) is None:
        return 0
    if _captured(now, [url]) or rules_for(now, [url]).refuses(url, _LAST):
        return 0
    return int(tally["links"])


def is_listed(now: Snapshot, url: str) -> bool:
    """Whether a URL is in the frontier because a sitemap lists it."""
    return not (
        now.get(tables.uncaptured, listed_row(page_row(url))) is None
        or _captured(now, [url])
        or rules_for(now, [url]).refuses(url, _LAST)
    )


def _order(one: Uncaptured) -> tuple[int, float, str]:
    return -one.links, -(one.rank or 0.0), one.url


def _levels(now: Snapshot, table: Table[str]) -> Iterator[str]:
    """The first parts of a table's rows, in order."""
    after = ""
    while (first := next(now.scan(table, start=after), None)) is not None:
        level = first.key[:2]
        yield level
        after = _past(f"{level}/")


# --- Entries of a level ------------------------------------------------------------------------


def _parts(host: str | None) -> list[str]:
    """What follows the level in the rows of all URLs, or of those of a host."""
    if host is None:
        return [f"{digit}/" for digit in _DIGITS]
    rows = host_rows(host)
    names = [row[3:] for row in rows[: len(rows) // 256]]
    return [f"{digit}/{name}" for digit in _DIGITS for name in names]


def _usable(now: Snapshot, prefix: str) -> Iterator[str]:
    """The URLs of the entries that begin with a prefix, as far as they may be crawled."""
    start, end = prefix, _past(prefix)
    while some := list(islice(now.scan(tables.frontier, start=start, end=end), _AT_ONCE)):
        start = some[-1].key + "\0"
        rules = rules_for(now, [one[tables.uncaptured] for one in some])
        captured = _captured(now, [one[tables.uncaptured] for one in some])
        if prefix.startswith(LISTED):
            captured |= _linked(now, [one[tables.uncaptured] for one in some])
        passed = ""
        for row in some:
            url = row[tables.uncaptured]
            if row.key < passed or url in captured:
                continue
            if not rules.refuses(url, _LAST):
                yield url
                continue
            under = rules.hosts.get(host_of(url), ())
            for blocked in (one for one, until in under if until is None and url.startswith(one)):
                range_of = row.key[:_KEY] + surt(blocked or _root(url))
                if row.key.startswith(range_of):
                    passed = max(passed, _past(range_of))
        start = max(start, passed)


def _past(prefix: str) -> str:
    """The first row after all those that begin with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _root(url: str) -> str:
    return url[: url.index("/", len("https://")) + 1]


def _captured(now: Snapshot, urls: Sequence[str]) -> set[str]:
    """Those of these URLs that have a capture, as a page, a sitemap or a resource."""
    rows = [page_row(url) for url in urls]
    columns: list[Column[str, Any]] = [tables.capture, tables.sitemap]
    if keeps_resources(now):
        columns.append(rendering.capture)
    cells = [(column, row) for column in columns for row in rows]
    found = now.get_many(cells)
    return {url for url, one in zip([*urls] * len(columns), found, strict=True) if one is not None}


def _linked(now: Snapshot, urls: Sequence[str]) -> set[str]:
    """Those of these URLs that links vouch for: they are in another level as well."""
    found = now.get_many((tables.tally, page_row(url)) for url in urls)
    return {url for url, tally in zip(urls, found, strict=True) if tally is not None}


def _listed(now: Snapshot, urls: Sequence[str]) -> Iterator[Uncaptured]:
    """The sitemaps that list these URLs: of several, the one that knows the latest change."""
    for low in range(0, len(urls), _AT_ONCE):
        some = urls[low : low + _AT_ONCE]
        rows = now.get_rows(tables.listed, map(page_row, some), [tables.listed_by])
        for url, row in zip(some, rows, strict=True):
            by = row.family(tables.listed_by).values()
            one = max(by, key=lambda one: (one["modified"] or "", one["sitemap"]), default=None)
            if one is not None:
                yield Uncaptured(url, 0, None, [], one["sitemap"], one["modified"])


def _described(now: Snapshot, urls: Sequence[str]) -> Iterator[Uncaptured]:
    """The links to these URLs, and the ranks of some pages that have them."""
    rows = [page_row(url) for url in urls]
    tallies = now.get_many((tables.tally, row) for row in rows)
    for low in range(0, len(urls), _AT_ONCE):
        some = slice(low, low + _AT_ONCE)
        linking = [
            _linking(now, row, tally["links"] if tally is not None else 0)
            for row, tally in zip(rows[some], tallies[some], strict=True)
        ]
        pages = list(dict.fromkeys(page for one in linking for page in one))
        ranks = dict(zip(pages, now.get_many((tables.rank, page) for page in pages), strict=True))
        for url, tally, one in zip(urls[some], tallies[some], linking, strict=True):
            if tally is not None:
                texts = sorted(tally["anchors"].items(), key=lambda text: (-text[1], text[0]))
                values = [rank["value"] for page in one if (rank := ranks[page]) is not None]
                best = max(values, default=None)
                yield Uncaptured(url, tally["links"], best, [words for words, _ in texts[:_TEXTS]])


def _linking(now: Snapshot, row: str, links: int) -> list[str]:
    """The rows of pages whose links vouch for a URL: all of a few, otherwise some, by their ids."""
    part = tables.source
    digits = 0
    while links > _SOURCES * 16**digits:
        digits += 1
    column = part.starting("0" * digits) if digits else part
    found = now.get_row(tables.inlinks, row, [column]).family(part)
    return [page_row(one["url"]) for one in found.values() if one["rel"] == "follow"]
