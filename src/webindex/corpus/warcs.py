"""Writes responses as records of WARC files, in the manner of Common Crawl.

Each record is a separate gzip member. A file starts with a `warcinfo` record; each capture is a
request and its response, or a `revisit` if the payload is that of an earlier crawl. A crawl
is cut into files of about equal size. Dates and record ids follow from the seed, so that the same
packages give the same bytes (with the same zlib).

Files are written under a name that ends in `.part` and renamed when the whole corpus is done.
"""

from __future__ import annotations

import base64
import hashlib
import io
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from webindex.corpus.answers import Answer

__all__ = ["PART", "Seen", "WarcFile", "write_crawl"]

PART: Final = ".part"
AGENT: Final = "webindex-crawl-docs"

Seen = dict[str, tuple[str, str]]
"""By URL: the payload digest and the WARC date of its newest capture with status 200."""


@dataclass(slots=True)
class WarcFile:
    """A file of a crawl. `path` is its name when it is complete."""

    path: Path
    captures: int = 0
    revisits: int = 0
    bytes: int = 0

    @property
    def part(self) -> Path:
        """Its name until then."""
        return self.path.with_name(self.path.name + PART)


def write_crawl(
    folder: Path,
    name: str,
    answers: Iterable[Answer],
    *,
    about: str,
    started: datetime,
    seed: int,
    split: int,
    seen: Seen,
    written: Callable[[Answer, bytes, bool], None] = lambda answer, body, same: None,
) -> list[WarcFile]:
    """Write responses, a second apart, into `name-000.warc.gz` and so on.

    `split` is the size in bytes at which the next file begins. Pages whose payload digest equals
    the one in `seen` become revisit records; `seen` is updated. `written` is called with
    every response, its body and whether it was the same.
    """
    files: list[WarcFile] = []
    out: BinaryIO | None = None
    writer: _Records | None = None
    try:
        for number, answer in enumerate(answers):
            date = started + timedelta(seconds=number)
            if out is None or writer is None or out.tell() >= split:
                if out is not None:
                    files[-1].bytes = out.tell()
                    out.close()
                files.append(WarcFile(folder / f"{name}-{len(files):03}.warc.gz"))
                out = files[-1].part.open("wb")
                writer = _Records(out, files[-1].path.name, seed)
                writer.info(date, about)
            body = answer.body()
            same = writer.capture(answer, body, date, seen)
            files[-1].captures += 1
            files[-1].revisits += same
            written(answer, body, same)
        if out is not None:
            files[-1].bytes = out.tell()
    finally:
        if out is not None:
            out.close()
    return files


class _Records:
    """The records of one file."""

    def __init__(self, out: BinaryIO, name: str, seed: int) -> None:
        self._writer = WARCWriter(out, gzip=True)
        self._name = name
        self._seed = seed
        self._info = ""

    def info(self, date: datetime, about: str) -> None:
        fields = f"software: {AGENT}\r\nformat: WARC File Format 1.0\r\ndescription: {about}\r\n"
        head = self._head("warcinfo", self._name, date)
        head["WARC-Filename"] = self._name
        self._write(None, "warcinfo", fields.encode(), None, head, "application/warc-fields")
        self._info = head["WARC-Record-ID"]

    def capture(self, answer: Answer, body: bytes, date: datetime, seen: Seen) -> bool:
        """Write a request and its response; returns whether the payload was known already."""
        digest = f"sha1:{base64.b32encode(hashlib.sha1(body).digest()).decode()}"
        head = self._head("response", answer.url, date)
        self._request(answer.url, date, head["WARC-Record-ID"])
        earlier = seen.get(answer.url)
        http = StatusAndHeaders(
            answer.status_line,
            [
                ("Date", format_datetime(date, usegmt=True)),
                ("Server", answer.server),
                *answer.headers,
                ("Content-Type", answer.content_type),
                ("Content-Length", str(len(body))),
            ],
            protocol="HTTP/1.1",
        )
        if answer.status != 200:
            seen.pop(answer.url, None)
        else:
            seen[answer.url] = (digest, head["WARC-Date"])
            if earlier is not None and earlier[0] == digest:
                record = self._writer.create_revisit_record(
                    answer.url,
                    digest=digest,
                    refers_to_uri=answer.url,
                    refers_to_date=earlier[1],
                    http_headers=http,
                    warc_headers_dict=head,
                )
                self._writer.write_record(record)
                return True
        head["WARC-Payload-Digest"] = digest
        head["WARC-Identified-Payload-Type"] = answer.content_type.partition(";")[0]
        self._write(answer.url, "response", body, http, head)
        return False

    def _request(self, url: str, date: datetime, response: str) -> None:
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "") or "/"
        http = StatusAndHeaders(
            f"GET {target} HTTP/1.1",
            [("Host", parts.netloc), ("User-Agent", AGENT), ("Accept", "text/html")],
            is_http_request=True,
        )
        head = {**self._head("request", url, date), "WARC-Concurrent-To": response}
        self._write(url, "request", b"", http, head)

    def _head(self, kind: str, what: str, date: datetime) -> dict[str, str]:
        stamp = date.strftime("%Y-%m-%dT%H:%M:%SZ")
        name = uuid.uuid5(uuid.NAMESPACE_URL, f"{self._seed} {kind} {stamp} {what}")
        head = {"WARC-Date": stamp, "WARC-Record-ID": f"<urn:uuid:{name}>"}
        return {**head, "WARC-Warcinfo-ID": self._info} if self._info else head

    def _write(
        self,
        url: str | None,
        kind: str,
        payload: bytes,
        http: StatusAndHeaders | None,
        head: dict[str, Any],
        content_type: str = "",
    ) -> None:
        record = self._writer.create_warc_record(
            url,
            kind,
            payload=io.BytesIO(payload),
            http_headers=http,
            warc_content_type=content_type,
            warc_headers_dict=head,
            length=len(payload),
        )
        self._writer.write_record(record)
