"""A page of search results: hits, counts by host and language, the time taken.

Of the hits of one page, the third and further ones of a host are folded under its second one, if
there are hits of other hosts: paging stays that of all hits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from webindex.serving.base import MAX_OFFSET, Facet, SearchHit, ServingIndex
from webindex.serving.query import BadQueryError, check_length, hint_for
from webindex.serving.spelling import search_respelt
from webindex.site.shown import address

HITS: Final = 10
"""Hits on one page."""

FACETS: Final = 12
"""Hosts and languages that are offered as filters."""

UNFOLDED: Final = 2
"""Hits of one host that a page of results shows whole."""

PERIODS: Final = {"week": 7, "month": 30, "year": 365}
"""Days within which a page may have to have changed."""

_PAGES_AROUND: Final = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter that can be set or removed; `count` is None where hits are not counted."""

    name: str
    count: int | None
    chosen: bool
    link: str


@dataclass(slots=True)
class Search:
    """One page of results.

    Attributes:
        query, host, language, page: the request; page counts from 1.
        since: only documents that changed on this day or later.
        newest: by date, and not by how well they match.
        exactly: the query as it is, even if it looks misspelt.
        total: how many documents match; 0 also if the query has no word.
        words, matched: how many words and phrases are sought, and how many of them each hit has.
        seconds: how long it took to search, count and make the snippets.
        steps: links to other pages of results, as (label, link); the link is empty for this one
            and for a gap.
        respelt: the query that these are the results of, if nothing has all the words of the one
            that was typed.
        meant: a query that may have been meant, if no document has all the words.
        folded: the hits that are folded under another one, by the cluster of that.
        hint: what to do, if there is no word in the query, or the whole index is empty.
    """

    query: str
    host: str | None = None
    language: str | None = None
    page: int = 1
    since: date | None = None
    newest: bool = False
    exactly: bool = False
    total: int = 0
    words: int = 0
    matched: int = 0
    seconds: float = 0.0
    hits: tuple[SearchHit, ...] = ()
    hosts: list[Choice] = field(default_factory=list)
    languages: list[Choice] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)
    periods: list[Choice] = field(default_factory=list)
    folded: dict[str, list[SearchHit]] = field(default_factory=dict)
    respelt: str | None = None
    meant: str | None = None
    hint: str | None = None

    @property
    def first(self) -> int:
        """The number of the first hit of this page."""
        return (self.page - 1) * HITS + 1

    def link(self, **changes: str | int | None) -> str:
        """The link to this search with other parameters; without a page it is the first page."""
        asked: dict[str, str | int | None] = {
            "q": self.query,
            "host": self.host,
            "lang": self.language,
            "since": self.since.isoformat() if self.since else None,
            "sort": "date" if self.newest else None,
            "exactly": 1 if self.exactly else None,
        }
        return address("/", **{**asked, **changes})

    def fold(self) -> None:
        """Fold hits of a host under its last one that is shown."""
        by_host: dict[str, list[SearchHit]] = {}
        for hit in self.hits:
            by_host.setdefault(hit.host, []).append(hit)
        if len(by_host) == 1:
            return
        for hits in by_host.values():
            # A single one takes no more room than the line that would unfold it.
            if len(hits) > UNFOLDED + 1:
                self.folded[hits[UNFOLDED - 1].cluster] = hits[UNFOLDED:]
        hidden = {hit.cluster for hits in self.folded.values() for hit in hits}
        self.hits = tuple(hit for hit in self.hits if hit.cluster not in hidden)

    @property
    def filtered(self) -> bool:
        """Whether a filter is set."""
        return bool(self.host or self.language or self.since)


def search(index: ServingIndex, parameters: Mapping[str, str]) -> Search:
    """Run the search of a request's parameters.

    Raises BadQueryError for a query that is too long or a page that cannot exist, and
    ServingError if the index cannot be read.
    """
    query = parameters.get("q", "").strip()
    check_length(query)
    asked = Search(
        query,
        parameters.get("host") or None,
        parameters.get("lang") or None,
        _page(parameters),
        _since(parameters),
        parameters.get("sort") == "date",
        bool(parameters.get("exactly")),
    )
    if not query:
        return asked
    offset = (asked.page - 1) * HITS
    options: dict[str, Any] = {
        "limit": HITS,
        "offset": offset,
        "host": asked.host,
        "language": asked.language,
        "since": asked.since,
        "newest": asked.newest,
    }
    began = time.perf_counter()
    if asked.exactly:
        found = index.search(query, partly=True, **options)
    else:
        found, asked.respelt, asked.meant = search_respelt(index, query, **options)
    asked.seconds = time.perf_counter() - began
    asked.hits, asked.total = found.hits, found.total
    asked.words, asked.matched = found.words, found.matched
    asked.hosts = _choices(index, asked, "host")
    asked.languages = _choices(index, asked, "language")
    asked.periods = _periods(asked)
    asked.steps = _steps(asked)
    if asked.exactly and (not found.total or found.matched < found.words):
        asked.meant = index.suggest(query)
    if not found.total:
        asked.hint = hint_for(query, found.words)
    return asked


def _page(parameters: Mapping[str, str]) -> int:
    text = parameters.get("page", "1")
    last = MAX_OFFSET // HITS + 1
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= last:
        raise BadQueryError(
            f"There is no page {text[:20]!r} of results: pages go from 1 to {last}."
        )
    return int(text)


def _choices(index: ServingIndex, asked: Search, facet: Facet) -> list[Choice]:
    """The values by which the hits could be filtered if this one filter were not set."""
    chosen = asked.host if facet == "host" else asked.language
    counts = dict(
        index.facet(
            facet,
            asked.respelt or asked.query,
            limit=FACETS,
            host=None if facet == "host" else asked.host,
            language=None if facet == "language" else asked.language,
            since=asked.since,
            partly=True,
        )
    )
    if chosen is not None:
        counts.setdefault(chosen, asked.total)
    parameter = "host" if facet == "host" else "lang"
    choices = [
        Choice(
            name,
            number,
            name == chosen,
            asked.link(**{parameter: None if name == chosen else name}),
        )
        for name, number in counts.items()
    ]
    return _chosen_first(choices)


def _periods(asked: Search) -> list[Choice]:
    """The filters by date."""
    today = datetime.now(UTC).date()
    choices = []
    for name, days in PERIODS.items():
        since = today - timedelta(days=days)
        chosen = since == asked.since
        link = asked.link(since=None if chosen else since.isoformat())
        choices.append(Choice(f"in the last {name}", None, chosen, link))
    if asked.since is not None and not any(one.chosen for one in choices):
        # As of a link of yesterday.
        choices.append(Choice(f"since {asked.since}", None, True, asked.link(since=None)))
    return _chosen_first(choices)


def _chosen_first(choices: list[Choice]) -> list[Choice]:
    """The choices with the one that is set first: narrow windows show the first ones."""
    return sorted(choices, key=lambda one: not one.chosen)


def _since(parameters: Mapping[str, str]) -> date | None:
    text = parameters.get("since")
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadQueryError(
            f"{text[:20]!r} is no date: write the year, the month and the day, as in 2024-05-31."
        ) from None


def _steps(asked: Search) -> list[tuple[str, str]]:
    last = min((asked.total + HITS - 1) // HITS, MAX_OFFSET // HITS + 1)
    return pages(asked.page, last, lambda page: asked.link(page=page if page > 1 else None))


def pages(page: int, last: int, link: Callable[[int], str]) -> list[tuple[str, str]]:
    """Labels and links: the first page, the last one, and those around this one."""
    if last <= 1:
        return []
    near = range(page - _PAGES_AROUND, page + _PAGES_AROUND + 1)
    shown = sorted({1, last, *(number for number in near if 1 <= number <= last)})
    steps: list[tuple[str, str]] = []
    before = 0
    for number in shown:
        if number > before + 1:
            steps.append(("…", ""))
        steps.append((f"{number:,}", "" if number == page else link(number)))
        before = number
    return steps
