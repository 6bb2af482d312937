"""PDF documents on a real Spark: loads, rebuilds and `webindex verify` agree on what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from linked_crawl import work
from pdf_files import document, drawn
from pyspark.sql import SparkSession
from warc_files import Crawl

from percola import Repository
from webindex import tables
from webindex.batch.rebuild import rebuild
from webindex.batch.verify import verify
from webindex.load.job import load
from webindex.workers.processes import open_index, open_repository

pytestmark = pytest.mark.timeout(900)

URL = "https://paper.example/pots.pdf"
PDF = [("Content-Type", "application/pdf")]


def kept(repo: Repository) -> dict[str, tuple[str, bytes]]:
    """What the repository keeps of each page."""
    found = repo.snapshot().scan(tables.pages, columns=[tables.capture, tables.body])
    return {row.key: (row[tables.capture]["digest"], row[tables.body]) for row in found}


@pytest.mark.long
def test_documents_are_what_their_captures_say_however_they_came_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    crawl = Crawl()
    first = document(drawn(["A report on earthenware."]), title="Pots", links=["kiln.html"])
    later = document(drawn(["A report on porcelain."]), title="Pots", links=["cup.html"])
    crawl.add(URL, first, http=PDF)
    crawl.add(URL, later, http=PDF, WARC_Date="2025-01-01T00:00:00Z")
    crawl.add("https://paper.example/copy", first, http=[("Content-Type", "text/plain")])
    crawl.add("https://paper.example/broken.pdf", first[:500], http=PDF)
    crawl.add("https://paper.example/", b"<title>Papers</title><a href=/pots.pdf>The pots</a>")
    path = tmp_path / "crawl.warc.gz"
    path.write_bytes(crawl.data)

    loaded, built = tmp_path / "loaded", tmp_path / "built"
    report = load(loaded, [path], spark=spark, quiet=True)
    assert (report.loaded.pdfs, report.loaded.unread_pdfs) == (4, 1)
    assert ("PDF documents read", "4, 1 of them without text") in report.rows()
    rebuild(built, [path], spark=spark, quiet=True)
    with open_repository(str(loaded)) as repo, open_repository(str(built)) as other:
        work(repo)
        assert kept(repo) == kept(other)
        with open_index(repo) as index:
            assert [hit.url for hit in index.search("porcelain").hits] == [URL]
    assert verify(loaded, spark=spark, crawl=[path], quiet=True).sentences() == []
