"""The outbox: what waits for the search index, and what it costs to take it from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import percola
from percola import Repository, Snapshot, Transaction, Worker
from webindex import tables
from webindex.observers import export as exporting
from webindex.observers import outbox
from webindex.serving import ServingDocument

BATCH = 100


class Exports:
    """A search index that keeps the clusters whose documents have gone."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def apply(
        self, puts: Sequence[ServingDocument], deletes: Sequence[tuple[str, int]] = ()
    ) -> int:
        self.batches.append(sorted(cluster for cluster, _ in deletes))
        return len(deletes)


@pytest.fixture
def repo(monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setattr(exporting, "EXPORT_BATCH", BATCH)
    return percola.open("memory:", schema=tables.SCHEMA)


def enter(repo: Repository, clusters: Sequence[str]) -> str:
    def put(t: Transaction) -> str:
        for cluster in clusters:
            outbox.enter(t, cluster)
        return outbox.window_of(t.start_ts)

    return repo.run(put)


def waiting(repo: Repository, window: str, after: str = "") -> list[str]:
    with repo.snapshot() as now:
        return [one.entry.cluster for one in outbox.entries(now, window, after=after)]


def export_all(repo: Repository, index: Any) -> None:
    Worker(repo, [exporting.export_to(index)], retention=None).run_until_idle()


def test_a_window_is_gone_through_from_an_entry_on_and_then_from_its_beginning(
    repo: Repository,
) -> None:
    window = enter(repo, ["a", "b", "c"])
    with repo.snapshot() as now:
        middle = list(outbox.entries(now, window))[1].entry.key
    assert waiting(repo, window) == ["a", "b", "c"]
    assert waiting(repo, window, middle) == ["b", "c", "a"]


def test_exporting_does_not_pass_over_what_it_has_just_deleted(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many cells are looked at for the last batch of a window as for the first one."""
    window = enter(repo, [f"{n:06}" for n in range(10 * BATCH)])
    begun: list[str] = []
    scan = Snapshot.scan

    def noting(self: Any, table: Any, **options: Any) -> Any:
        if table is tables.outbox:
            begun.append(options.get("start") or options["prefix"])
        return scan(self, table, **options)

    monkeypatch.setattr(Snapshot, "scan", noting)
    index = Exports()
    export_all(repo, index)
    assert [len(batch) for batch in index.batches] == [BATCH] * 10
    # Where each began: at the last entry of the one before.
    ends = [f"{window}/{batch[-1]}/" for batch in index.batches]
    assert [one[: len(ends[0])] for one in begun if not one.endswith("/")][:9] == ends[:9]


def test_what_enters_a_window_before_the_exporters_place_in_it_is_exported_as_well(
    repo: Repository,
) -> None:
    class Late(Exports):
        def apply(
            self, puts: Sequence[ServingDocument], deletes: Sequence[tuple[str, int]] = ()
        ) -> int:
            if len(self.batches) == 1:
                assert enter(repo, ["000000-late"]) == window
            return super().apply(puts, deletes)

    window = enter(repo, [f"{n:06}" for n in range(3 * BATCH)])
    index = Late()
    export_all(repo, index)
    exported = {cluster for batch in index.batches for cluster in batch}
    assert "000000-late" in exported
    assert len(exported) == 3 * BATCH + 1
    assert waiting(repo, window) == []
