"""The live view: what `percola serve` shows of a repository, and what the web index adds to it.

searchable   pages that exports reported since the last sample, and how long those took from
             their load
documents    those that search can find
pages        live pages, from the counters of their hosts
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from percola import PercolaError, Repository, Snapshot, Transaction, observer
from percola.inspection import Failure
from percola.serve import Letter, Sampler
from webindex import tables
from webindex.load.resources import keeps_resources
from webindex.page.urls import url_of_row
from webindex.rendering import tables as rendering
from webindex.reports import STEPS
from webindex.serving import ServingError, ServingIndex
from webindex.site.exports import ExportLog
from webindex.site.shown import address
from webindex.workers.processes import build_observers

LATENCY_WINDOW_MS: Final = 60_000

_NAMED_AS_PAGES: Final = {
    one.name
    for one in (
        *(tables.pages, tables.aliases, tables.inlinks, tables.sitemaps, tables.listed),
        *(rendering.resources, rendering.renders),
    )
}
"""Tables whose rows are named after URLs."""

_COUNTING_SHARE: Final = 50
_COUNTING: Final = 5.0


@observer(rendering.render_due, name="render")
def _render(t: Transaction, row: str) -> None:
    """The observer that renders, by its name and column: the real one has a browser."""
    raise NotImplementedError


class Pipeline(Sampler):
    """Samples of a web index.

    Attributes:
        notes: what the changes that wait for an observer wait for, by its name.
    """

    expected = (PercolaError, ServingError)

    def __init__(self, repo: Repository, index: ServingIndex) -> None:
        resources = keeps_resources(repo)
        observers = build_observers(index, resources=resources)
        if resources:
            observers.append(_render)
        super().__init__(repo, observers)
        self.notes = {
            one.name: " or ".join(STEPS[repr(column)] for column in one.columns)
            for one in observers
        }
        if resources:
            self.notes["ask_page"] = STEPS[repr(rendering.capture)]
        self._index = index
        self._exports = ExportLog()
        self._pages: int | None = None
        self._counted_ts = -1
        self._count_again = 0.0

    def measure(self, at_ms: int, seconds: float | None) -> Mapping[str, float | None]:
        """The documents, the live pages, and the throughput and latencies of exports."""
        with self._repo.snapshot() as now:
            fresh = self._exports.read(now, at_ms)
            speed = self._exports.latency(at_ms, LATENCY_WINDOW_MS)
            return {
                "documents": self._index.count(),
                "pages": self._count_pages(now),
                "searchable": round(fresh / seconds, 2) if seconds else None,
                "export_p50": speed.p50 if speed else None,
                "export_p95": speed.p95 if speed else None,
                "export_p99": speed.p99 if speed else None,
                "newest_export_ms": self._exports.newest_ms(),
            }

    def letter(self, failure: Failure, row: str) -> Letter:
        """A dead letter under the URL that it concerns, with a link to that page's report."""
        url, table = "", failure.cell.table
        with self._repo.snapshot() as now:
            if table in _NAMED_AS_PAGES:
                capture = now.get(tables.capture, row)
                url = capture["url"] if capture else url_of_row(row) or ""
            elif table == tables.clusters.name:
                members = now.get_row(tables.clusters, row, [tables.member]).family(tables.member)
                url = min((member["url"] for member in members.values()), default="")
        return Letter(failure, url or row, address("/page", url=url) if url else "")

    def _count_pages(self, now: Snapshot) -> int | None:
        """Count the live pages from the counters of their hosts: 256 rows for a large host."""
        began = time.monotonic()
        if now.start_ts != self._counted_ts and began >= self._count_again and self.is_looked_at:
            counters = now.scan(tables.hosts, columns=[tables.live])
            self._pages = sum(row[tables.live]["pages"] for row in counters)
            self._counted_ts = now.start_ts
            cost = time.monotonic() - began
            self._count_again = time.monotonic() + max(_COUNTING, _COUNTING_SHARE * cost)
        return self._pages
