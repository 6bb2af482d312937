"""The exporter: what becomes of documents that the search index does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from percola import Repository, Worker
from webindex import tables
from webindex.batch.idle import judge_rest
from webindex.cli.reindex import reindex
from webindex.observers import export as exporting
from webindex.serving import (
    IndexUnavailableError,
    IndexWriteError,
    RefusedDocumentsError,
    ServingDocument,
    ServingError,
)

NOTHING: dict[str, Any] = {"title": "", "text": "", "language": None, "inlinks": 0, "rank": 0.0}
SHOWN = NOTHING | {"epoch": 1, "url": "https://example.org/"}
SHOWN |= {name: [] for name in ("anchors", "duplicates", "aliases")}


class Index:
    """A search index that is not available for some calls, and refuses some clusters."""

    error: type[ServingError] = IndexUnavailableError

    exporters = 1

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.unavailable = 0
        self.refuses: set[str] = set()

    def apply(
        self, puts: Sequence[ServingDocument], deletes: Sequence[tuple[str, int]] = ()
    ) -> int:
        if self.unavailable:
            self.unavailable -= 1
            raise self.error("It is away.")
        clusters = {one.cluster for one in puts}
        self.held |= clusters - self.refuses
        if refused := clusters & self.refuses:
            raise RefusedDocumentsError("here", dict.fromkeys(refused, "it is too long."))
        return len(clusters)


@pytest.fixture
def repo(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setattr(exporting, "LONGEST_WAIT", 0.001)
    with repo.transaction() as t:
        for cluster in ("a", "b"):
            t.set(tables.document, cluster, SHOWN)
            tables.exports.enter(t, cluster, [])
    return repo


def export(repo: Repository, index: Any) -> None:
    exporter = exporting.export_to(index)
    Worker(repo, [exporter], threads=1, attempts=2, retention=None).run_until_idle()


@pytest.mark.parametrize("error", [IndexUnavailableError, IndexWriteError])
def test_an_index_that_takes_nothing_is_waited_for_without_dead_letters(
    repo: Repository, error: type[ServingError]
) -> None:
    index = Index()
    index.error, index.unavailable = error, 50
    export(repo, index)
    assert (index.held, index.unavailable, repo.dead_lettered()) == ({"a", "b"}, 0, 0)


def test_what_an_earlier_version_has_entered_is_exported(repo: Repository) -> None:
    with repo.transaction() as t:
        t.set(tables.document, "old", SHOWN)
        window = tables.exports.window_of(t.start_ts, "old")
        t.set(tables.exports.entry, f"{window}/old/{t.start_ts:020}", {"loaded_ms": [1]})
        t.notify(tables.outbox_ready, window)
    index = Index()
    export(repo, index)
    assert index.held == {"a", "b", "old"}


def test_a_document_that_the_index_refuses_holds_up_no_other_and_is_told_of(
    repo: Repository,
) -> None:
    index = Index()
    index.refuses = {"a"}
    export(repo, index)
    assert index.held == {"b"}
    judged, sentences = judge_rest(repo)
    assert judged.differing == 1
    [sentence] = sentences
    assert sentence.startswith("The search index refuses 1 document ('webindex reindex' tries")
    assert sentence.endswith("it is too long.")
    index.refuses = set()
    assert reindex(repo) == 2
    export(repo, index)
    assert index.held == {"a", "b"}
    assert judge_rest(repo)[1] == []
