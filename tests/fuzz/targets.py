"""The fuzz targets by name, and what their corpora begin with."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from percola.cells import Cell, LockRecord, Op, encode_lock, encode_write
from percola.maintenance.backup import Backup, encode_header
from percola.rpc import frames
from tests.fuzz import codecs, web
from webindex.crawl.warc import Capture, read_captures
from webindex.sample import sample_path

SCHEMA = {
    "tables": [
        {
            "name": "docs",
            "rows": "str",
            "columns": [
                {"column": "contents", "type": "bytes", "observed": True},
                {"family": "member", "type": "int"},
                {"weak": "recluster"},
            ],
        },
        {"name": "raw", "rows": "bytes", "columns": []},
    ]
}


@dataclass(frozen=True)
class Target:
    """A function of bytes that may not fail, and inputs to begin with."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    max_bytes: int = 4096


def _records() -> Iterator[bytes]:
    for op in Op:
        yield encode_write(op, 7, b"value" if op is Op.PUT else None)
        for observed in (False, True):
            cell = Cell("docs", b"com,example)/", b"contents")
            yield encode_lock(LockRecord(op, cell, "4711-abc", 1, 10_000, observed, b"v"))
    yield b"4711"


def _values() -> Iterator[bytes]:
    yield from (b"12", b"-1.5e300", b"nan", b"true", b'{"a": [1, null, "\\u00e4"]}', b"text")


def _backups() -> Iterator[bytes]:
    yield encode_header(Backup(1, "full", 7, 8, 9)) + b"\0\0\0\3abc\0\0\0\0" + bytes(32)


def _calls() -> Iterator[bytes]:
    locks = [frames.frame(kind, 7, b"k" * 16) for kind in (frames.LOCK, frames.UNLOCK)]
    yield frames.hello("token")[len(frames.MAGIC) :]
    yield frames.draw(1, 3) + frames.frame(frames.ATTEND, 2) + b"".join(locks)
    yield frames.frame(frames.WAKE, 9) + locks[0] * 3 + frames.frame(frames.PONG)
    yield frames.welcome() + frames.drawn(1, 2**53, 3, b"5e" * 8) + frames.pause(2, 10)
    yield frames.refused(frames.Code.STANDBY, "It is on standby.", 4)


def _captures() -> Iterator[Capture]:
    for one in read_captures(sample_path()):
        if isinstance(one, Capture):
            yield one


def _warcs() -> Iterator[bytes]:
    with gzip.open(sample_path()) as file:
        records = re.split(rb"(?=WARC/1\.[01]\r\n)", file.read(400_000))[1:]
    for i in range(0, 12, 3):
        yield b"".join(record[:3000] for record in records[i : i + 3])
    short = [record for record in records if len(record) < 3000]
    yield from short[:6]
    yield b"".join(short[:4])


def _urls() -> Iterator[bytes]:
    for i, one in enumerate(_captures()):
        if i < 40:
            yield one.url.encode() + b"\n../a%7Eb?utm_source=x&y=1#z"
    yield "http://user@bücher.example.:80/%zz/%c3?#\nHTTPS://[::1]:8443/".encode()


def _pages() -> Iterator[bytes]:
    for i, one in enumerate(_captures()):
        if i % 12 == 0 and one.body:
            yield bytes([i % 7, i % 4]) + one.body[:3000]
    yield b"\0\0<title>a\0b</title><p>c\0d\xff" + "é\ud800".encode("utf-8", "surrogatepass")
    yield b'\0\0<meta http-equiv=refresh content="0;url=/x"><a href="//b/" rel=ugc>b</a>'


TARGETS = {
    "cells": Target(codecs.cells, _records),
    "keys": Target(codecs.keys, _records),
    "schema": Target(codecs.schema, lambda: iter([json.dumps(SCHEMA).encode()])),
    "values": Target(codecs.values, _values),
    "backup": Target(codecs.backup, _backups),
    "rpc": Target(codecs.rpc, _calls),
    "warc": Target(web.warc, _warcs, 16_384),
    "urls": Target(web.urls, _urls),
    "html": Target(web.html, _pages, 8192),
}
