"""The sample crawl, several times over: as many real pages as a measurement needs.

Each copy has the sample's pages on hosts of its own (`copy03.www.sqlite.org`) and one more
sentence on each page, which names the copy. So the pages differ between copies, and within a copy
everything is as in the sample: sizes, languages, links and duplicates. What a larger crawl would
have besides, pages that very many others link to, it does not have.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from webindex.sample import sample_path
from webindex.warc import Capture, read_captures

_BODY: Final = re.compile(rb"<body\b[^>]*>", re.IGNORECASE)


def sample() -> list[Capture]:
    """The captures of the sample crawl; its damaged record is left out."""
    return [one for one in read_captures(sample_path()) if isinstance(one, Capture)]


def multiplied(captures: Sequence[Capture], copies: int) -> Iterator[Capture]:
    """The captures `copies` times, each time on other hosts and with other texts."""
    hosts = sorted({urlsplit(one.url).netloc for one in captures})
    for number in range(copies):
        prefix = f"copy{number:02}."
        for one in captures:
            moved = replace(
                one,
                url=_moved(one.url.encode(), hosts, prefix).decode(),
                headers={
                    name: _moved(value.encode(), hosts, prefix).decode()
                    for name, value in one.headers.items()
                },
                body=_moved(one.body, hosts, prefix),
            )
            yield with_sentence(moved, f"This page belongs to copy {number} of the crawl.")


def with_sentence(capture: Capture, sentence: str) -> Capture:
    """The capture with a sentence more at the beginning of its page."""
    paragraph = b"<p>" + sentence.encode("ascii") + b"</p>"
    return replace(capture, body=_BODY.sub(lambda tag: tag[0] + paragraph, capture.body, count=1))


def recaptured(capture: Capture, sentence: str, hours: int = 1) -> Capture:
    """A later capture of the page, changed by one sentence."""
    later = capture.date + timedelta(hours=hours)
    return replace(with_sentence(capture, sentence), date=later)


def write_warc(path: Path, captures: Sequence[Capture]) -> None:
    """Write captures as responses into a WARC file, compressed record by record."""
    with path.open("wb") as out:
        writer = WARCWriter(out, gzip=True)
        for one in captures:
            http = StatusAndHeaders(
                f"{one.status} -", list(one.headers.items()), protocol="HTTP/1.1"
            )
            record = writer.create_warc_record(
                one.url,
                "response",
                payload=io.BytesIO(one.body),
                http_headers=http,
                warc_headers_dict={"WARC-Date": one.date.strftime("%Y-%m-%dT%H:%M:%SZ")},
            )
            writer.write_record(record)


def _moved(text: bytes, hosts: Sequence[str], prefix: str) -> bytes:
    """Text whose URLs of these hosts lead to the copy's hosts instead."""
    for host in hosts:
        text = text.replace(f"//{host}".encode(), f"//{prefix}{host}".encode())
    return text
