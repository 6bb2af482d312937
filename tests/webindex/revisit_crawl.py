"""A small crawl of revisit records as crawlers write them, and of what they refer to."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linked_crawl import html, words
from warc_files import HTML, Crawl

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
    crawl = Crawl()
    for one in records:
        _write(crawl, one)
    path.write_bytes(crawl.data)
    return path


def _write(crawl: Crawl, one: Fetched) -> None:
    http, dated = [*HTML, ("Server", "x")], {"WARC_Date": one.date}
    if one.same is None:
        crawl.add(one.url, one.body, http=http, **dated)
        return
    profile = "http://netpreserve.org/warc/1.0/revisit/identical-payload-digest"
    refers = {"WARC_Refers_To_Target_URI": one.same.url, "WARC_Refers_To_Date": one.same.date}
    sha1 = base64.b32encode(hashlib.sha1(one.same.body).digest()).decode()
    headers = {**dated, "WARC_Profile": profile, "WARC_Payload_Digest": f"sha1:{sha1}", **refers}
    status = "200 OK"
    if one.crawler == "heritrix-304":
        profile = profile.replace("identical-payload-digest", "server-not-modified")
        headers = {**dated, **refers, "WARC_Profile": profile, "WARC_Truncated": "length"}
        http, status = [("Server", "x")], "304 Not Modified"
    elif one.crawler == "wget":
        del headers["WARC_Refers_To_Target_URI"], headers["WARC_Refers_To_Date"]
        headers |= {"WARC_Refers_To": "<urn:uuid:1>", "WARC_Truncated": "length"}
    crawl.add(one.url, b"", kind="revisit", http=http, status=status, **headers)


def texts(repo: Repository) -> dict[str, Any]:
    """The beginning of the body of each page."""
    found = {}
    for path in ("/a", "/b", "/c", "/d", "/only-a-revisit"):
        body = repo.snapshot().get(tables.body, page_row(SITE + path))
        found[path] = None if body is None else zlib.decompress(body)
    return found
