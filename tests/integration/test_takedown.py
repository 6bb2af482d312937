"""After pages were removed, `webindex verify` and `webindex rebuild` know them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from linked_crawl import ELSEWHERE, SITE, crawl, html, load, words, work
from pyspark.sql import SparkSession
from revisit_crawl import RECORDS, A, Fetched, texts, written
from revisit_crawl import SITE as REVISITED

from percola import Repository
from webindex import tables
from webindex.batch.rebuild import rebuild
from webindex.batch.verify import verify
from webindex.load import job as pipeline
from webindex.load.removals import Scope, scope_of
from webindex.page.urls import page_row
from webindex.takedown import removing
from webindex.takedown.removing import remove
from webindex.workers.processes import open_index, open_repository

pytestmark = pytest.mark.timeout(900)


def take_down(repo: Repository, scopes: Sequence[Scope], *, block: bool = False) -> int:
    with open_index(repo) as index:
        return remove(repo, index, scopes, block=block).pages


@pytest.mark.long
def test_verify_is_clean_after_removals_and_after_the_same_crawl_was_loaded_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "repo"
    files = [tmp_path / "linked.warc.gz", written(tmp_path / "revisits.warc.gz", RECORDS)]
    files[0].write_bytes(crawl().data)
    pipeline.load(address, files, spark=spark, quiet=True)
    with open_repository(str(address)) as repo:
        work(repo)
        before = texts(repo)
        # The pages that repeat it keep its content: /b and /only-a-revisit.
        assert take_down(repo, [scope_of("url", A.url)]) == 1
        scopes = [scope_of("prefix", f"{SITE}/hop-"), scope_of("url", f"{SITE}/p1")]
        assert take_down(repo, [*scopes, scope_of("url", f"{SITE}/p3")]) == 15
        assert take_down(repo, [scope_of("host", ELSEWHERE[8:])], block=True) == 1
        work(repo)
        assert texts(repo) == before | {"/a": None}
    late = Fetched("/late", 7, b"", A, "browsertrix")
    later = [late, Fetched("/new", 8, html("New", words(100)))]
    files.append(written(tmp_path / "later.warc.gz", later))
    for given in (files[:2], []):
        verdict = verify(address, spark=spark, crawl=given, quiet=True)
        assert verdict.sentences() == [] and verdict.holds

    report = pipeline.load(address, files, spark=spark, quiet=True)
    assert report.loaded.refused == 20 and report.loaded.written == 1
    assert dict(report.rows())["Removed or blocked, not loaded"] == "20"
    with open_repository(str(address)) as repo:
        work(repo)
        # What it repeats was removed before.
        assert repo.snapshot().get(tables.unresolved, page_row(late.url)) == 1
        assert repo.snapshot().get(tables.capture, page_row(A.url)) is None
    verdict = verify(address, spark=spark, crawl=files, quiet=True)
    assert verdict.sentences() == [] and verdict.holds

    # A removal that was interrupted before it erased anything.
    with open_repository(str(address)) as repo, monkeypatch.context() as patched:
        patched.setattr(removing, "_rows", lambda now, scopes: iter(()))
        take_down(repo, [scope_of("url", f"{REVISITED}/c")])
    for name in files:
        name.rename(name.with_suffix(".away"))
    verdict = verify(address, spark=spark, quiet=True)
    assert verdict.broken == [1]
    [sentence] = verdict.sentences()
    assert "removed should not be there" in sentence and f"{REVISITED}/c" in sentence


@pytest.mark.long
def test_a_rebuild_leaves_out_what_was_blocked_before(spark: SparkSession, tmp_path: Path) -> None:
    address = tmp_path / "repo"
    path = tmp_path / "linked.warc.gz"
    path.write_bytes(crawl().data)
    with open_repository(str(address), create=True) as repo, open_index(repo, create=True) as index:
        remove(repo, index, [scope_of("url", f"{SITE}/p1")], block=True)
    rebuild(address, [path], spark=spark, quiet=True)
    with open_repository(str(address)) as repo:
        load(repo, path)
        assert repo.is_idle()
        assert repo.snapshot().get(tables.capture, page_row(f"{SITE}/p1")) is None
        assert repo.snapshot().get(tables.capture, page_row(f"{SITE}/p0")) is not None
    verdict = verify(address, spark=spark, crawl=[path], quiet=True)
    assert verdict.sentences() == [] and verdict.holds
