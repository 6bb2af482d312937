"""Revisits as crawlers write them, loaded by Spark in parts: the index is that of `verify`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from linked_crawl import html, load, words, work
from pyspark.sql import SparkSession
from revisit_crawl import A2, FIRST, RECORDS, SECOND, SITE, A, Fetched, texts, written

import percola
from webindex import tables
from webindex.batch.rebuild import rebuild
from webindex.batch.verify import verify
from webindex.cli.main import cli
from webindex.load import job as pipeline
from webindex.page.urls import page_row
from webindex.workers.processes import open_repository

pytestmark = pytest.mark.timeout(900)

EXPECTED = {
    "/a": FIRST,
    "/b": SECOND,
    "/c": RECORDS[6].body,
    "/d": RECORDS[8].body,
    "/only-a-revisit": FIRST,
}


@pytest.mark.long
def test_revisits_of_all_crawlers_in_several_files_and_loads_make_the_index_of_verify(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The newest come first: `test_takedown` loads them as they were crawled."""
    files = [written(tmp_path / f"{n}.warc.gz", RECORDS[::-1][n::3]) for n in range(3)]
    address = tmp_path / "repo"
    reports = [
        pipeline.load(address, some, spark=spark, part_bytes=300, quiet=True)
        for some in (files[:2], files[2:])
    ]
    assert sum(one.loaded.unchanged for one in reports) == 5
    assert sum(one.loaded.unresolved for one in reports) >= 1
    with open_repository(str(address)) as repo:
        work(repo)
        assert texts(repo) == EXPECTED
        assert repo.snapshot().get(tables.unresolved, page_row(f"{SITE}/d")) == 1
    for given in (files, []):
        verdict = verify(address, spark=spark, crawl=given, quiet=True)
        assert verdict.sentences() == [] and verdict.holds

    lost = written(tmp_path / "lost.warc.gz", [Fetched("/lost", 1, html("Lost", words(12)))])
    pipeline.load(address, [lost], spark=spark, quiet=True)
    with open_repository(str(address)) as repo:
        work(repo)
        assert texts(repo)["/d"] == html("Lost", words(12))
        assert repo.snapshot().get(tables.unresolved, page_row(f"{SITE}/d")) is None
    verdict = verify(address, spark=spark, crawl=[*files, lost], quiet=True)
    assert verdict.sentences() == [] and verdict.holds


@pytest.mark.long
def test_verify_finds_a_page_that_is_not_what_its_revisit_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    crawl = written(tmp_path / "crawl.warc.gz", RECORDS)
    with percola.open(tmp_path / "repo", schema=tables.SCHEMA) as repo:
        load(repo, crawl)
        work(repo)
        with repo.transaction() as t:
            row = page_row(f"{SITE}/b")
            found = t.get(tables.capture, row)
            assert found is not None
            t.set(tables.capture, row, {**found, "date": "2024-03-02T10:00:00.000000Z"})
        work(repo)
    verdict = verify(tmp_path / "repo", spark=spark, crawl=[crawl], quiet=True)
    assert verdict.broken and set(verdict.broken) <= {1, 12}


@pytest.mark.long
def test_a_rebuilt_index_resolves_revisits_and_those_that_come_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    crawl = written(tmp_path / "crawl.warc.gz", RECORDS)
    rebuild(tmp_path / "repo", [crawl], spark=spark, quiet=True)
    lost = written(tmp_path / "lost.warc.gz", [Fetched("/lost", 1, html("Lost", words(12)))])
    back = written(tmp_path / "back.warc.gz", [Fetched("/a", 9, b"", A2, "wget")])
    with open_repository(str(tmp_path / "repo")) as repo:
        assert texts(repo) == EXPECTED
        load(repo, lost)
        load(repo, back)
        work(repo)
        assert texts(repo) == {**EXPECTED, "/d": html("Lost", words(12)), "/a": SECOND}
    verdict = verify(tmp_path / "repo", spark=spark, crawl=[crawl, lost, back], quiet=True)
    assert verdict.sentences() == [] and verdict.holds


def test_a_long_page_is_cut_where_the_command_says_and_verify_knows(
    spark: SparkSession, tmp_path: Path
) -> None:
    long = Fetched("/long", 1, html("A long page", words(5, 3000)))
    crawl = written(tmp_path / "crawl.warc.gz", [long, A])
    report = pipeline.load(tmp_path / "repo", [crawl], spark=spark, max_page_bytes=5000, quiet=True)
    assert report.loaded.cut == 1
    assert dict(report.rows())["Cut off"] == "1 page longer than 5,000 bytes"
    with open_repository(str(tmp_path / "repo")) as repo:
        work(repo)
        now = repo.snapshot()
        found = now.get(tables.capture, page_row(long.url))
        assert found is not None and found["cut"] == 5000
        assert now.get(tables.fingerprint, page_row(long.url)) is not None
    verdict = verify(tmp_path / "repo", spark=spark, quiet=True)
    assert verdict.sentences() == [] and verdict.holds
    told = CliRunner().invoke(cli, ["explain", "--repo", str(tmp_path / "repo"), long.url])
    assert told.exit_code == 0, told.output
    assert "Only its first 5,000 bytes were taken" in " ".join(told.output.split())


def test_verify_knows_where_each_load_has_cut_its_pages(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A user has more of the long pages of one crawl, and loads the next one as usual."""
    repo = tmp_path / "repo"
    long, longer, other = (
        Fetched(path, day, html(path, words(seed, 3000)))
        for path, day, seed in (("/long", 1, 5), ("/longer", 2, 6), ("/other", 3, 7))
    )
    for one, limit in ((long, 5000), (longer, 1 << 20), (other, 6000)):
        crawl = written(tmp_path / f"{one.path[1:]}.warc.gz", [one])
        pipeline.load(repo, [crawl], spark=spark, max_page_bytes=limit, quiet=True)
    with open_repository(str(repo)) as opened:
        work(opened)
        found = [
            opened.snapshot().get(tables.capture, page_row(one.url))
            for one in (long, longer, other)
        ]
        assert [one and one["cut"] for one in found] == [5000, None, 6000]
    verdict = verify(repo, spark=spark, quiet=True)
    assert verdict.sentences() == [] and verdict.holds
