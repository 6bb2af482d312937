"""The search index of a repository, wherever it is: in a folder or on OpenSearch.

    journal['search'].report    {"index": "https://search.example.org:9200/pages"}

`webindex reindex --index` records there where it has moved the index, so that all workers and
searchers of the repository find the same one, those that run as well. Without it, the index is in
the repository's folder, or for a repository on servers where `WEBINDEX_SEARCH` says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from percola import Repository, Transaction
from webindex import tables
from webindex.errors import WorkingError
from webindex.serving.base import SearchResults, ServingDocument, ServingIndex
from webindex.serving.opensearch.index import OpenSearchIndex
from webindex.serving.tantivy.index import TantivyIndex

SEARCH_VARIABLE: Final = "WEBINDEX_SEARCH"
SEARCH_ROW: Final = "search"

_LOOK_SECONDS: Final = 1.0
"""A search may still use the index from which another process moved so long ago."""


def open_place(place: str, *, create: bool = True) -> ServingIndex:
    """Open the index of a folder or a URL; raises NotAnIndexError, IndexUnavailableError."""
    if "://" in place:
        return OpenSearchIndex(place, create=create)
    return TantivyIndex(place, create=create)


def search_place(repo: Repository) -> str:
    """The folder or the URL of a repository's search index.

    Raises WorkingError for a repository on servers for which neither is set.
    """
    with repo.snapshot() as now:
        moved = now.get(tables.report, SEARCH_ROW)
    if moved is not None:
        return str(moved["index"])
    if "://" not in repo.address:
        return str(Path(repo.address) / "serving")
    named = os.environ.get(SEARCH_VARIABLE)
    if not named:
        raise WorkingError(
            f"The repository {repo.address} is no folder, so its search index needs a place: set "
            f"{SEARCH_VARIABLE} to a folder that all workers and searchers share or to the URL of "
            "an index on OpenSearch, or name it once with 'webindex reindex --index'."
        )
    return named


def move_to(t: Transaction, place: str) -> None:
    """Record where the index of this repository is from now on."""
    t.set(tables.report, SEARCH_ROW, {"index": place})


def nothing_exported(repo: Repository, index: ServingIndex) -> str | None:
    """A message if the search index is empty but the repository has documents; else None.

    Without it, a search of a lost index would report no hits.
    """
    if index.count():
        return None
    with repo.snapshot() as now:
        if next(iter(now.scan(tables.clusters, columns=[tables.document])), None) is None:
            return None
    return (
        f"The search index in {search_place(repo)} is empty, and the repository has "
        "documents. Workers export what has changed: 'webindex work'. If the index was lost, "
        "'webindex reindex' enters everything anew for them."
    )


class LocatedIndex(ServingIndex):
    """The search index of a repository; follows it when it is moved.

    An index that was moved away from stays open, for calls of other threads that use it.
    """

    def __init__(self, repo: Repository, *, create: bool = True) -> None:
        self._repo = repo
        self._create = create
        place = search_place(repo)
        self._current = (place, open_place(place, create=create))
        self._opened = [self._current[1]]
        self._looked = time.monotonic()

    @property
    def place(self) -> str:
        """The folder or the URL."""
        return self._current[0]

    @property
    def exporters(self) -> int:  # type: ignore[override]
        """As of the index where it is now."""
        return self._current[1].exporters

    def _here(self, *, exactly: bool = False) -> ServingIndex:
        """The index where it is now; or, unless `exactly`, where it was a second ago."""
        at = time.monotonic()
        if exactly or at - self._looked > _LOOK_SECONDS:
            place = search_place(self._repo)
            if place != self._current[0]:
                self._current = (place, open_place(place, create=self._create))
                self._opened.append(self._current[1])
            self._looked = at
        return self._current[1]

    def apply(self, *args: Any, **options: Any) -> int:
        # After the index was moved, what has changed since belongs to the new one: see
        # `webindex.cli.reindex.move`.
        return self._here(exactly=True).apply(*args, **options)

    def search(self, *args: Any, **options: Any) -> SearchResults:
        return self._here().search(*args, **options)

    def facet(self, *args: Any, **options: Any) -> list[tuple[str, int]]:
        return self._here().facet(*args, **options)

    def suggest(self, query: str) -> str | None:
        return self._here().suggest(query)

    def complete(self, query: str, *, limit: int = 8) -> list[str]:
        return self._here().complete(query, limit=limit)

    def get(self, cluster: str) -> ServingDocument | None:
        return self._here().get(cluster)

    def get_many(self, clusters: Iterable[str]) -> Iterator[ServingDocument]:
        return self._here().get_many(clusters)

    def count(self) -> int:
        return self._here().count()

    def clusters(self) -> Iterator[tuple[str, int]]:
        return self._here().clusters()

    def close(self) -> None:
        for index in self._opened:
            index.close()
