"""Fuzz targets of webindex: WARC files, URLs and pages. What the web sends is never trusted."""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tests.fuzz.input import Input
from webindex.crawl.warc import Capture, NotAWarcError, plan_splits, read_captures
from webindex.page.links import MAX_ANCHOR, MAX_ANCHORS, MAX_LINKS
from webindex.page.markup import decode
from webindex.page.pages import MAX_TITLE, parse
from webindex.page.urls import (
    MAX_ROW_BYTES,
    MAX_URL_BYTES,
    BadUrlError,
    host,
    normalise,
    page_id,
    page_row,
    registrable_domain,
    resolve,
    surt,
)

_MEMORY = "/dev/shm"
_MAX_BODY = 1 << 16


def warc(data: bytes) -> None:
    """A WARC file, as it is and compressed: read whole and in splits, it says the same."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
        path = Path(folder, "crawl")
        path.write_bytes(data)
        _read_in_every_way(path, len(data))
        path.write_bytes(packed := gzip.compress(data, 1, mtime=0))
        _read_in_every_way(path, len(packed))


def _read_in_every_way(path: Path, size: int) -> None:
    skipped: Counter[str] = Counter()
    try:
        whole = list(read_captures(path, max_body=_MAX_BODY, skipped=skipped))
    except NotAWarcError:
        return
    assert all(0 <= one.offset < one.offset + one.length <= size for one in whole)
    assert all(one.offset <= other.offset for one, other in pairwise(whole))
    for one in whole:
        if isinstance(one, Capture):
            assert 200 <= one.status <= 999 and one.date.utcoffset() is not None
            assert len(one.body) <= _MAX_BODY
            one.charset  # noqa: B018
        str(one)
    for target in (1, max(1, size // 3)):
        parts = plan_splits(path, target)
        assert parts[0][0] == 0 and parts[-1][1] == size
        assert all(one[1] == other[0] for one, other in pairwise(parts))
        in_parts: Counter[str] = Counter()
        pieces = [
            one
            for start, end in parts
            for one in read_captures(
                path, start=start, end=end, max_body=_MAX_BODY, skipped=in_parts
            )
        ]
        assert pieces == whole and in_parts == skipped


def urls(data: bytes) -> None:
    """URLs: one spelling each, and rows, ids and sort keys that no two of them share."""
    first, _, second = data.partition(b"\n")
    found = []
    for raw in (first, second):
        text = raw.decode("utf-8", "surrogateescape")
        try:
            url = normalise(text)
        except BadUrlError:
            continue
        assert_normalised(url)
        found.append(url)
        assert url.isascii() and len(url) <= MAX_URL_BYTES
        assert host(url) and host(url).endswith(registrable_domain(url))
        row = page_row(url)
        assert len(row) <= MAX_ROW_BYTES and row.startswith(page_id(url)[:2] + "/")
        assert len(page_row(url, 64)) <= 64
    if found:
        href = second.decode("utf-8", "surrogateescape")
        target = resolve(found[0], href)
        if target is not None:
            assert_normalised(target)
        assert resolve(found[0], "") == found[0].partition("#")[0]
    # The same page of the other scheme, of another port and of another host.
    for old, new in (("://", "s://"), ("s://", "://"), ("/", ":8443/"), ("://", "://x.")):
        with contextlib.suppress(BadUrlError):
            found += [normalise(url.replace(old, new, 1)) for url in found[:1]]
    different = sorted(set(found))
    for key in (surt, page_id, page_row, lambda url: page_row(url, 64)):
        assert len({key(url) for url in different}) == len(different), different


def assert_normalised(url: str) -> None:
    """Assert that `normalise` leaves a URL as it is."""
    assert normalise(url) == url, url


_TYPES = (
    "text/html",
    None,
    "text/html; charset=latin1",
    "text/plain; charset=utf-8",
    "application/octet-stream",
    "text/html; charset=utf-16",
    "application/xhtml+xml; charset=shift_jis",
)
_ROBOTS = (None, "noindex", "googlebot: nofollow", "none\nbing: all, x: y")


def html(data: bytes) -> None:
    """A page: parsed whatever it is, with nothing in it that a row could not hold."""
    given = Input(data)
    kind, robots = given.choice(_TYPES), given.choice(_ROBOTS)
    body = given.rest()
    for text in (decode(body, kind), decode(body, None)):
        assert_clean(text)
    page = parse(body, "https://example.org/a/b?c=d", kind, robots)
    for text in (page.title, page.text):
        assert_clean(text)
    assert len(page.title) <= MAX_TITLE
    assert len(page.links) <= MAX_LINKS
    assert len({link.url for link in page.links}) == len(page.links)
    for link in page.links:
        assert_normalised(link.url)
        assert link.url != page.url
        assert len(link.anchors) <= MAX_ANCHORS
        assert all(0 < len(anchor) <= MAX_ANCHOR for anchor in link.anchors)
        for anchor in link.anchors:
            assert_clean(anchor)
    for url in (page.canonical, page.refresh, *(one.url for one in page.links)):
        if url is not None:
            assert_normalised(url)
    assert page.language is None or 2 <= len(page.language) <= 3
    assert parse(body, page.url, kind, robots) == page


def assert_clean(text: str) -> None:
    """Assert that a text has neither NUL characters nor halves of surrogate pairs."""
    assert "\0" not in text
    text.encode()
