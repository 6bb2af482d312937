"""The exporter of the web index, killed at every boundary: two stores that know nothing of each
other, the repository's outbox and the search index.

The index is written inside the export's transaction, before its commit. Killed in between, the
same documents are exported again by the next worker, which the index takes for what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from percola import Observer, Repository, Worker
from tests.crash.boundaries import Death, Scenario
from tests.crash.killing import KillingStore
from tests.webindex.from_scratch import check, sample
from webindex import tables
from webindex.load.transaction import load_captures
from webindex.observers import export as exporting
from webindex.serving import TantivyIndex
from webindex.serving.base import ServingDocument, ServingIndex
from webindex.workers.processes import build_observers, open_index

BATCH = 1
CAPTURES = list(sample()[:2])


class KillingIndex:
    """A search index whose process may die before and after each commit of it."""

    exporters = 1

    def __init__(self, inner: ServingIndex, boundary: Callable[[str], None]) -> None:
        self._inner = inner
        self._boundary = boundary

    def apply(
        self, puts: Sequence[ServingDocument], deletes: Sequence[tuple[str, int]] = ()
    ) -> int:
        self._boundary("before index commit")
        applied = self._inner.apply(puts, deletes)
        self._boundary("after index commit")
        return applied


def _work(repo: Repository, chain: Sequence[Observer[Any]]) -> None:
    Worker(repo, chain, threads=1, first_wait=0.001, rescan=0.05).run_until_idle()


def load_and_assemble(repo: Repository, _: KillingStore) -> None:
    """Some pages go through the whole chain, up to the outbox."""
    load_captures(repo, CAPTURES, "crawl.warc.gz")
    with open_index(repo, create=True) as index:
        _work(repo, [one for one in build_observers(index) if one.name != "export"])


def export(repo: Repository, store: KillingStore) -> None:
    """The exporter, in batches so small that there are several."""
    exporting.EXPORT_BATCH = BATCH  # type: ignore[misc]  # this process's own
    with open_index(repo, create=True) as index:
        dying: Any = KillingIndex(index, store.boundary)
        _work(repo, [exporting.export_to(dying)])


def index_is_exact(repo: Repository, death: Death) -> None:
    """The next worker ends with what a computation from scratch makes of the pages.

    What has left the outbox by now is in the index: nothing was taken for exported too early.
    """
    with TantivyIndex(Path(repo.address) / "serving") as index:
        now = repo.snapshot()
        for table in tables.SCHEMA:  # Whoever reads a cell deals with the dead one's lock on it.
            for _ in now.scan(table):
                pass
        waiting = {row.key.split("/")[1] for row in now.scan(tables.outbox)}
        for row in now.scan(tables.clusters, columns=[tables.document]):
            assert row.key in waiting or index.get(row.key) is not None, row.key
        _work(repo, build_observers(index))
        check(repo, index, CAPTURES)


EXPORTS = [
    Scenario(
        f"an exporter in {how}",
        tables.SCHEMA,
        export,
        index_is_exact,
        frozenset(["index commit", *phases]),
        [(load_and_assemble, None)],
        one_step=how == "one step",
    )
    for how, phases in {
        "one step": ["one step acknowledging"],
        "two phases": [
            "prewrite primary",
            "prewrite secondary",
            "weak notify",
            "commit primary",
            "commit secondary",
        ],
    }.items()
]
