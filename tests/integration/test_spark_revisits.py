"""Revisits as crawlers write them, loaded by Spark in parts: the index is that of `verify`."""

from __future__ import annotations

import io
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from linked_crawl import html, load, words, work
from pyspark.sql import SparkSession
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

import percola
from percola import Repository
from webindex import tables
from webindex.batch.rebuild import rebuild
from webindex.batch.verify import verify
from webindex.load import job as pipeline
from webindex.page.urls import page_row
from webindex.workers.processes import open_repository

pytestmark = pytest.mark.timeout(900)

SITE = "https://crawled.example"
FIRST, SECOND, THIRD = (html(f"Title {n}", words(n)) for n in (1, 2, 3))


@dataclass(frozen=True)
class Fetched:
    """One record: with a body, or the one whose body it repeats."""

    path: str
    day: int
    body: bytes
    same: Fetched | None = None
    crawler: str = "warcio"

    @property
    def url(self) -> str:
        return SITE + self.path

    @property
    def date(self) -> str:
        return f"2024-03-{self.day:02}T10:00:00Z"


A = Fetched("/a", 1, FIRST)
A2 = Fetched("/a", 2, SECOND)
RECORDS = [
    A,
    A2,
    # (c) Heritrix found /a as it had been at first, by an If-Modified-Since.
    Fetched("/a", 3, b"", A, "heritrix-304"),
    # (a) Browsertrix had fetched these bytes from another URL.
    Fetched("/only-a-revisit", 4, b"", A, "browsertrix"),
    # (b) wget found the bytes of another page, and names that record by its id only.
    Fetched("/b", 1, THIRD),
    Fetched("/b", 5, b"", A2, "wget"),
    # The usual one: nothing new.
    Fetched("/c", 1, html("Title c", words(9), [("/only-a-revisit", "see there")])),
    Fetched("/c", 2, b"", Fetched("/c", 1, html("Title c", words(9))), "heritrix"),
    # Its original is not in this crawl.
    Fetched("/d", 1, html("Title d", words(11))),
    Fetched("/d", 6, b"", Fetched("/lost", 1, html("Lost", words(12))), "browsertrix"),
]


def written(path: Path, records: Sequence[Fetched]) -> Path:
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for one in records:
            _write(writer, one)
    return path


def _digest(writer: WARCWriter, body: bytes) -> str:
    headers = StatusAndHeaders("200 OK", [], protocol="HTTP/1.1")
    record = writer.create_warc_record(
        SITE, "response", payload=io.BytesIO(body), http_headers=headers
    )
    writer.ensure_digest(record, block=False, payload=True)
    found: str = record.rec_headers.get_header("WARC-Payload-Digest")
    return found


def _write(writer: WARCWriter, one: Fetched) -> None:
    http = [("Content-Type", "text/html; charset=utf-8"), ("Server", "x")]
    answer = StatusAndHeaders("200 OK", http, protocol="HTTP/1.1")
    dated = {"WARC-Date": one.date}
    if one.same is None:
        writer.write_record(
            writer.create_warc_record(
                one.url,
                "response",
                payload=io.BytesIO(one.body),
                http_headers=answer,
                warc_headers_dict=dated,
            )
        )
        return
    profile = "http://netpreserve.org/warc/1.0/revisit/identical-payload-digest"
    refers = {
        "WARC-Refers-To-Target-URI": one.same.url,
        "WARC-Refers-To-Date": one.same.date,
    }
    digest = {"WARC-Payload-Digest": _digest(writer, one.same.body)}
    headers: dict[str, str] = {**dated, "WARC-Profile": profile}
    if one.crawler == "heritrix-304":
        headers["WARC-Profile"] = profile.replace("identical-payload-digest", "server-not-modified")
        headers |= {**refers, "WARC-Truncated": "length"}
        answer = StatusAndHeaders("304 Not Modified", [("Server", "x")], protocol="HTTP/1.1")
    elif one.crawler == "wget":
        headers |= {**digest, "WARC-Refers-To": "<urn:uuid:1>", "WARC-Truncated": "length"}
    else:
        headers |= {**digest, **refers}
    writer.write_record(
        writer.create_warc_record(
            one.url, "revisit", http_headers=answer, warc_headers_dict=headers
        )
    )


def texts(repo: Repository) -> dict[str, Any]:
    """The beginning of the body of each page."""
    found = {}
    for path in ("/a", "/b", "/c", "/d", "/only-a-revisit"):
        body = repo.snapshot().get(tables.body, page_row(SITE + path))
        found[path] = None if body is None else zlib.decompress(body)
    return found


EXPECTED = {
    "/a": FIRST,
    "/b": SECOND,
    "/c": RECORDS[6].body,
    "/d": RECORDS[8].body,
    "/only-a-revisit": FIRST,
}


@pytest.mark.parametrize("backwards", [False, True])
def test_revisits_of_all_crawlers_in_several_files_and_loads_make_the_index_of_verify(
    spark: SparkSession, tmp_path: Path, backwards: bool
) -> None:
    records = RECORDS[::-1] if backwards else RECORDS
    files = [written(tmp_path / f"{n}.warc.gz", records[n::3]) for n in range(3)]
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
    told = subprocess.run(
        [
            sys.executable,
            "-m",
            "webindex.cli.main",
            "explain",
            "--repo",
            tmp_path / "repo",
            long.url,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Only its first 5,000 bytes were taken" in " ".join(told.stdout.split())
