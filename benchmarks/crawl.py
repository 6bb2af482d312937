"""The sample crawl, several times over: as many real pages as a measurement needs.

Each copy has the sample's pages on hosts of its own (`copy03.www.sqlite.org`), with one more
sentence on each page, which names the copy, and one in five words spelt in a way of the copy's own:
else the same page of two copies would be nearly the same. So the pages differ between copies, and
within a copy everything is as in the sample: languages, links and duplicates, and nearly the
sizes. What a larger crawl would have besides, pages that very many others link to, it does not
have.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from webindex.crawl.warc import Capture, read_captures
from webindex.sample import sample_path

# Text between tags, and words in it, in any charset that extends ASCII; no character references.
_TEXT: Final = re.compile(rb">[^<>]+<")
_WORD: Final = re.compile(rb"(?<![&\w#])[A-Za-z\x80-\xff]{3,}(?![;\w])")
_RESPELT: Final = 5
_BODY: Final = re.compile(rb"<body\b[^>]*>", re.IGNORECASE)


def sample() -> list[Capture]:
    """The captures of the sample crawl; its damaged record is left out."""
    return [one for one in read_captures(sample_path()) if isinstance(one, Capture)]


def multiplied(captures: Sequence[Capture], copies: int, first: int = 0) -> Iterator[Capture]:
    """The captures `copies` times, each time on other hosts and with other texts.

    The copies are numbered from `first`: those of other numbers have other hosts and texts again.
    """
    hosts = sorted({urlsplit(one.url).netloc for one in captures})
    for number in range(first, first + copies):
        prefix = f"copy{number:02}."
        for one in captures:
            moved = replace(
                one,
                url=_moved(one.url.encode(), hosts, prefix).decode(),
                headers={
                    name: _moved(value.encode(), hosts, prefix).decode()
                    for name, value in one.headers.items()
                },
                body=_respelt(_moved(one.body, hosts, prefix), number),
            )
            yield with_sentence(moved, f"This page belongs to copy {number} of the crawl.")


def _respelt(body: bytes, number: int) -> bytes:
    """A page with one in five words spelt otherwise: the same words on all pages."""
    ending = b"q" + bytes([97 + number // 26 % 26, 97 + number % 26])

    def respell(word: re.Match[bytes]) -> bytes:
        return word[0] + ending if zlib.crc32(word[0]) % _RESPELT == 0 else word[0]

    return _TEXT.sub(lambda text: _WORD.sub(respell, text[0]), body)


def with_sentence(capture: Capture, sentence: str) -> Capture:
    """The capture with a sentence more at the beginning of its page."""
    paragraph = b"<p>" + sentence.encode("ascii") + b"</p>"
    return replace(capture, body=_BODY.sub(lambda tag: tag[0] + paragraph, capture.body, count=1))


def recaptured(capture: Capture, sentence: str, hours: int = 1) -> Capture:
    """A later capture of the page, changed by one sentence."""
    later = capture.date + timedelta(hours=hours)
    return replace(with_sentence(capture, sentence), date=later)


def crawled_again(captures: Iterable[Capture], changed: int) -> Iterator[Capture]:
    """A later crawl of live pages: the bytes of all have changed, and the text of every so many."""
    for number, one in enumerate(captures):
        if 200 <= one.status < 300:
            later = replace(one, date=one.date + timedelta(days=30))
            if number % changed:
                yield replace(later, body=later.body + b"<!-- crawled again -->")
            else:
                yield with_sentence(later, f"This page was page {number} and has changed.")


def write_warc(path: Path, captures: Iterable[Capture]) -> None:
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
