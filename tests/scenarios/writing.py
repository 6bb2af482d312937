"""Answers of servers as records of WARC files: what `webindex load` reads."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from webindex.crawl.warc import Capture

HTML = "text/html; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """What a server said of a URL at a moment; with `same`, that it is what a digest says."""

    url: str
    date: datetime
    status: int = 200
    body: bytes = b""
    content_type: str = HTML
    headers: Mapping[str, str] = field(default_factory=dict)
    same: str | None = None


def answer_of(
    page: Capture,
    later: timedelta,
    *,
    url: str | None = None,
    status: int = 200,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """A later answer for a page that was captured, or for `url`, in the page's charset."""
    kind = page.headers.get("content-type", HTML)
    return Answer(url or page.url, page.date + later, status, body, kind, headers or {})


def unchanged(page: Capture, later: timedelta) -> Answer:
    """A crawler's later report that a page is what it was.

    It leaves out the body only. Its headers count for the page, so they are those of the capture.
    """
    assert page.payload_digest is not None
    headers = {name: value for name, value in page.headers.items() if name != "content-type"}
    return replace(answer_of(page, later, headers=headers), same=page.payload_digest)


def payload_digest(body: bytes) -> str:
    """The digest of a body as WARC records have it."""
    return f"sha1:{base64.b32encode(hashlib.sha1(body).digest()).decode()}"


def write_answers(path: Path, answers: Iterable[Answer]) -> int:
    """Write a WARC file, each record a gzip member of its own; how many there are."""
    written = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        writer = WARCWriter(out, gzip=True)
        for one in answers:
            writer.write_record(_record(writer, one))
            written += 1
    return written


def _record(writer: WARCWriter, one: Answer) -> object:
    line = f"{one.status} {HTTPStatus(one.status).phrase}"
    http = StatusAndHeaders(
        line, [*one.headers.items(), ("Content-Type", one.content_type)], protocol="HTTP/1.1"
    )
    date = one.date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if one.same is not None:
        return writer.create_revisit_record(
            one.url,
            digest=one.same,
            refers_to_uri=one.url,
            refers_to_date=date,
            http_headers=http,
            warc_headers_dict={"WARC-Date": date},
        )
    return writer.create_warc_record(
        one.url,
        "response",
        payload=io.BytesIO(one.body),
        http_headers=http,
        warc_headers_dict={"WARC-Date": date, "WARC-Payload-Digest": payload_digest(one.body)},
    )
