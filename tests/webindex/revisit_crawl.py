"""A small crawl of revisit records as crawlers write them, and of what they refer to."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linked_crawl import html, words
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from percola import Repository
from webindex import tables
from webindex.page.urls import page_row

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
