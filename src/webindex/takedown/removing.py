"""The program behind `webindex remove`: enters removals, then erases what they cover.

    removals ─▶ committed ─▶ scan of their rows ─▶ erased, some pages a transaction ─▶ …
                    └ from here on, no loader that begins loads a removed page

Each page is erased as a whole in one transaction, so it is either as it was or gone. If the program
is killed, the removals stand and the rest of the pages is still there: the same command continues.
Search follows as it follows any change, when workers have exported the documents that changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from percola import Repository, Snapshot, Transaction, inspection
from webindex import tables
from webindex.incomplete import refuse_half_built
from webindex.load.removals import Scope, lift, put
from webindex.load.revisits import date_text
from webindex.page.urls import host, url_of_row
from webindex.rendering import tables as rendering
from webindex.serving.base import ServingDocument, ServingIndex
from webindex.takedown.erasing import Stored, erase_refused, stored_at

__all__ = ["MOST_ALIKE", "Removed", "remove", "unblock"]

PAGES: Final = 64
"""Pages that one transaction erases: a conflict with a worker repeats no more than these."""

MOST_ALIKE: Final = 100
"""Pages like the removed ones that are named."""

_RULES: Final = 500
_LOOK_SECONDS: Final = 0.1


@dataclass(slots=True)
class Removed:
    """What a removal has erased, or would erase.

    Attributes:
        scopes: the URLs, hosts and prefixes, by kind.
        blocked: whether no later capture of them is loaded.
        dry_run: whether nothing was changed.
        pages: URLs of which a capture, or the report of a crawler, was there.
        captures: their captures, with the earlier ones that were kept.
        links: their links to other pages.
        resources: stylesheets, images, fonts and scripts.
        sitemaps: sitemaps and robots.txt.
        images: pages of which an image was there.
        documents: documents of search that showed some of the pages.
        pending: those of them that search still shows in their old form.
        missing: URLs, hosts and prefixes of which nothing was there.
        alike: pages that stay, and were one document with removed ones: `MOST_ALIKE` at most.
    """

    scopes: dict[str, list[str]]
    blocked: bool
    dry_run: bool = False
    pages: int = 0
    captures: int = 0
    links: int = 0
    resources: int = 0
    sitemaps: int = 0
    images: int = 0
    documents: int = 0
    pending: int = 0
    missing: list[str] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)


def remove(
    repo: Repository,
    index: ServingIndex,
    scopes: Iterable[Scope],
    *,
    block: bool = False,
    dry_run: bool = False,
    wait: float = 0.0,
    note: Callable[[int], None] = lambda pages: None,
) -> Removed:
    """Erase pages, resources and sitemaps, and refuse the records of them that were made so far.

    Safe at any time, beside loaders and workers, and to repeat. Old versions are removed by garbage
    collection, once they are older than its retention.

    Args:
        repo: the repository.
        index: its search index, in which the removed pages are looked up at the end.
        scopes: what to remove; see `webindex.load.removals.scope_of`.
        block: refuse later records as well.
        dry_run: change nothing, only count.
        wait: seconds to wait for workers to export the documents that change.
        note: called with the number of URLs erased so far.

    Raises:
        RebuildError: the index is only half built.
        RetriesExhaustedError: a transaction conflicted again and again; repeat the call.
    """
    refuse_half_built(repo)
    wanted = list(dict.fromkeys(scopes))
    cover = _Cover(wanted)
    names: dict[str, list[str]] = {}
    for one in wanted:
        names.setdefault(one.kind, []).append(one.name)
    removed = Removed(names, block, dry_run)
    found: set[Scope] = set()
    clusters: set[str] = set()
    if not dry_run:
        _enter(repo, wanted, block=block)
    # After that, so that it shows what loaders have committed that did not see the removals.
    with repo.snapshot() as now:
        for some in _groups(_rows(now, cover.scopes), PAGES):
            done = _covered(now, cover, some) if dry_run else repo.run(partial(_erase, cover, some))
            for _, scope, stored in done:
                found.add(scope)
                _add(removed, stored)
                clusters |= stored.clusters
            note(removed.pages + removed.resources + removed.sitemaps)
        # As it was before: without a page, those that it joined may be several documents.
        removed.alike = sorted(islice(_alike(now, clusters, cover), MOST_ALIKE))
    removed.missing = [one.name for one in cover.scopes if one not in found]
    removed.documents = len(clusters)
    if not dry_run:
        _retry_dead_letters(repo, cover)
        # Of pages that an earlier removal has erased, search may still show some.
        clusters.update(_changing(repo))
        removed.pending = _await_export(index, clusters, cover, wait)
    return removed


def unblock(repo: Repository, scopes: Iterable[Scope]) -> list[Scope]:
    """Forget removals, so that their pages can be loaded again; returns those that there were."""
    lifted: list[Scope] = []
    for some in _groups(scopes, _RULES):
        lifted += repo.run(partial(_lift, some))
    return lifted


def _lift(scopes: Sequence[Scope], t: Transaction) -> list[Scope]:
    return [one for one in scopes if lift(t, one)]


def _enter(repo: Repository, scopes: Sequence[Scope], *, block: bool) -> None:
    until = None if block else date_text(datetime.now(UTC))
    at_ms = time.time_ns() // 1_000_000

    def enter(some: Sequence[Scope], t: Transaction) -> None:
        for one in some:
            put(t, one, until, at_ms)

    for some in _groups(scopes, _RULES):
        repo.run(partial(enter, some))


class _Cover:
    """Finds the removal that covers a URL.

    Attributes:
        scopes: the removals, without those that another one covers.
    """

    def __init__(self, scopes: Sequence[Scope]) -> None:
        self._scopes = set(scopes)
        self._prefixes = tuple(one.name for one in scopes if one.kind == "prefix")
        self.scopes = [one for one in scopes if one.kind == "host" or not self._has_wider(one)]

    def scope_of(self, url: str) -> Scope | None:
        """The widest one."""
        whole = Scope("host", host(url))
        if whole in self._scopes:
            return whole
        if url.startswith(self._prefixes):
            return Scope("prefix", min((p for p in self._prefixes if url.startswith(p)), key=len))
        page = Scope("url", url)
        return page if page in self._scopes else None

    def _has_wider(self, scope: Scope) -> bool:
        return self.scope_of(scope.name) != scope


def _rows(now: Snapshot, scopes: Iterable[Scope]) -> Iterator[str]:
    """The rows of pages, resources and sitemaps that removals may cover, each once."""
    for scope in scopes:
        if scope.kind == "url":
            yield from scope.row_prefixes()
            continue
        for prefix in scope.row_prefixes():
            pages = now.scan(
                tables.pages, prefix=prefix, columns=[tables.capture, tables.revisited]
            )
            resources = now.scan(rendering.resources, prefix=prefix, columns=[rendering.capture])
            sitemaps = now.scan(tables.sitemaps, prefix=prefix, columns=[tables.sitemap])
            # A URL may be several of these, and is then erased at once.
            yield from dict.fromkeys(
                one.key for found in (pages, resources, sitemaps) for one in found
            )


def _covered(
    t: Snapshot, cover: _Cover, rows: Sequence[str]
) -> Iterator[tuple[str, Scope, Stored]]:
    """What there is of removed URLs in some rows, and the removal of each."""
    for row in rows:
        stored = stored_at(t, row)
        scope = None if stored.url is None else cover.scope_of(stored.url)
        if scope is not None and stored.newest:
            yield row, scope, stored


def _erase(cover: _Cover, rows: Sequence[str], t: Transaction) -> list[tuple[str, Scope, Stored]]:
    """Erase some pages in one transaction."""
    done = list(_covered(t, cover, rows))
    for row, scope, stored in done:
        column, at = scope.cell()
        rule = t.get(column, at)
        # It may have been loaded since the removal was entered, or have a date in the future. That
        # is no reason to refuse what is captured of other pages until then.
        if rule is not None and rule["until"] is not None and rule["until"] < stored.newest:
            put(t, Scope("url", str(stored.url)), stored.newest, rule["at_ms"])
        erase_refused(t, row, stored)
    return done


T = TypeVar("T")


def _groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    every = iter(items)
    while some := list(islice(every, size)):
        yield some


def _add(removed: Removed, stored: Stored) -> None:
    removed.pages += stored.is_page
    removed.captures += len(stored.captures)
    removed.links += stored.links
    removed.resources += stored.resource is not None
    removed.sitemaps += stored.sitemap is not None
    removed.images += stored.image


def _alike(now: Snapshot, clusters: Iterable[str], cover: _Cover) -> Iterator[str]:
    """The pages of these clusters that removals do not cover."""
    for some in _groups(sorted(clusters), PAGES):
        for row in now.get_rows(tables.clusters, some, [tables.member]):
            urls = (one["url"] for one in row.family(tables.member).values())
            yield from (url for url in urls if cover.scope_of(url) is None)


def _retry_dead_letters(repo: Repository, cover: _Cover) -> None:
    """Drop the dead letters of erased pages, whose tracebacks may quote them.

    Their observers run again, and find nothing there.
    """
    for table in (tables.pages, rendering.resources, tables.sitemaps):
        for failure in list(inspection.failures(repo, table=table)):
            row = failure.cell.row.decode()
            url = url_of_row(row)
            if url is not None and cover.scope_of(url) is not None:
                inspection.retry_failures(repo, table=table, row=row)


def _changing(repo: Repository) -> Iterator[str]:
    """The clusters whose documents wait to be assembled or exported."""
    # In the order of the chain: one that goes on meanwhile is met later.
    for table in (tables.clusters, tables.summaries):
        for one in inspection.notifications(repo, table=table):
            yield one.cell.row.decode().partition("/")[0]
    with repo.snapshot() as now:
        for row in now.scan(tables.outbox, columns=[tables.exports.entry]):
            yield row.key.split("/")[1]


def _await_export(
    index: ServingIndex, clusters: Iterable[str], cover: _Cover, seconds: float
) -> int:
    """How many of these documents show a removed page in search, after at most so many seconds."""
    left = list(clusters)
    deadline = time.monotonic() + seconds
    while True:
        left = [one.cluster for one in index.get_many(left) if _shows(one, cover)]
        if not left or time.monotonic() >= deadline:
            return len(left)
        time.sleep(_LOOK_SECONDS)


def _shows(document: ServingDocument, cover: _Cover) -> bool:
    urls = (document.url, *document.duplicates, *document.aliases)
    return any(cover.scope_of(url) is not None for url in urls)
