"""WARC files for tests, written by warcio, and a short way to look at what was read from them."""

from __future__ import annotations

import gzip
import io
import itertools
import random
from collections.abc import Iterable

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from webindex.crawl.warc import Capture, Record, Rejected, Revisit

DATE = "2024-01-02T03:04:05.123456Z"
HTML = [("Content-Type", "text/html; charset=utf-8")]


class Crawl:
    """A WARC file in memory, with the offset of each of its records."""

    def __init__(self, *, gzip: bool = True) -> None:
        self._out = io.BytesIO()
        self._writer = WARCWriter(self._out, gzip=gzip)
        self.offsets: list[int] = []

    def add(
        self,
        url: str,
        body: bytes,
        *,
        http: list[tuple[str, str]] | None = None,
        status: str = "200 OK",
        kind: str = "response",
        **warc: str,
    ) -> Crawl:
        self.offsets.append(self._out.tell())
        line = "GET / HTTP/1.1" if kind == "request" else status
        protocol = "" if kind == "request" else "HTTP/1.1"
        headers = StatusAndHeaders(line, HTML if http is None else http, protocol=protocol)
        extra = {name.replace("_", "-"): value for name, value in warc.items()}
        self._writer.write_record(
            self._writer.create_warc_record(
                url,
                kind,
                payload=io.BytesIO(body),
                http_headers=headers,
                warc_headers_dict={"WARC-Date": DATE, "WARC-Record-ID": "<urn:x:1>", **extra},
            )
        )
        return self

    def raw(self, header: str, block: bytes, *, gzip: bool = True) -> Crawl:
        """A record that warcio would not write."""
        self.offsets.append(self._out.tell())
        head = f"WARC/1.0\r\n{header}\r\nContent-Length: {len(block)}\r\n\r\n".encode()
        record = head + block + b"\r\n\r\n"
        self._out.write(packed(record) if gzip else record)
        return self

    @property
    def data(self) -> bytes:
        return self._out.getvalue()

    @property
    def records(self) -> list[bytes]:
        return [self.data[a:b] for a, b in itertools.pairwise([*self.offsets, len(self.data)])]


def packed(data: bytes, level: int = 9) -> bytes:
    return gzip.compress(data, level, mtime=0)


def page(n: int, size: int = 900) -> bytes:
    words = random.Random(n).choices(["store", "lock", "write", "notify", "row", "column"], k=size)
    return b"<html><title>%d</title>" % n + " ".join(words)[:size].encode() + b"</html>"


def pages(count: int, *, gzip: bool = True, size: int = 900) -> Crawl:
    crawl = Crawl(gzip=gzip)
    for n in range(count):
        crawl.add(f"https://example.org/{n}", page(n, size))
    return crawl


def captures(found: Iterable[Record]) -> list[Capture]:
    return [one for one in found if isinstance(one, Capture)]


def revisits(found: Iterable[Record]) -> list[Revisit]:
    return [one for one in found if isinstance(one, Revisit)]


def rejections(found: Iterable[Record]) -> list[Rejected]:
    return [one for one in found if isinstance(one, Rejected)]


def only(found: Iterable[Record]) -> Capture:
    """The one capture, if there is nothing else."""
    [one] = found
    assert isinstance(one, Capture)
    return one
