"""Frees bodies of HTTP responses from their encodings, no further than they are read.

A few hundred bytes may unpack to gigabytes, and a header may name an encoding a thousand times.
`decoded` takes what is correct. What it refuses is decoded by `decode_leniently` as browsers do:
`deflate` without its zlib header, and chunks or compressed data that end too early, of which the
beginning is taken.
"""

from __future__ import annotations

import io
import re
import zlib
from contextlib import suppress
from typing import Final

from fastwarc.stream_io import BrotliReader, ChunkedReader, GzipReader, WarcReader, ZstdReader

__all__ = ["cut_at_character", "decode_leniently", "decoded", "has_chunks", "is_text"]

_MOST_LINE: Final = 1024
_MOST_ENCODINGS: Final = 5
_PIECE: Final = 4096
_GZIP: Final = ("gzip", "x-gzip")
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def decoded(
    payload: WarcReader | io.BytesIO, transfer_encoding: str, content_encoding: str, limit: int
) -> bytes:
    """At most `limit` bytes of the body.

    `payload` reads what follows the HTTP headers; the encodings are the values of their headers.

    Raises:
        OSError: it is not encoded as they say, or in a way that is not known here.
    """
    names = [*_names(content_encoding), *_names(transfer_encoding)]
    if len(names) > _MOST_ENCODINGS:
        raise OSError(f"it is encoded {len(names):,} times")
    found = payload
    for name in reversed(names):
        if name == "chunked":
            found = ChunkedReader(found)
        elif name in _GZIP:
            found = GzipReader(found)
        elif name == "deflate":
            found = GzipReader(found, zlib=True)
        elif name == "br":
            found = BrotliReader(found)
        elif name == "zstd":
            found = ZstdReader(found)
        else:
            raise OSError(f"its encoding {name[:40]!r} is not known")
    return found.read(limit)


def decode_leniently(
    payload: bytes, transfer_encoding: str, content_encoding: str, limit: int
) -> bytes | None:
    """The body, or its beginning: at most `limit` bytes. None if it cannot be decoded.

    `payload` is what follows the HTTP headers; the encodings are the values of their headers.
    """
    found = payload
    if "chunked" in _names(transfer_encoding):
        found = _unchunked(found, limit)
    names = _names(content_encoding)
    if len(names) > _MOST_ENCODINGS or (names and is_text(found)):
        return None
    for name in reversed(names):
        unpacked: bytes | None = None
        if name in _GZIP:
            unpacked = _inflated(found, 31, limit)
        elif name == "deflate":
            unpacked = _inflated(found, 15, limit) or _inflated(found, -15, limit)
        elif name in ("br", "zstd"):
            unpacked = _unpacked(found, BrotliReader if name == "br" else ZstdReader, limit)
        if unpacked is None:
            return None
        found = unpacked
    return found[:limit] or None


def has_chunks(payload: bytes) -> bool:
    """Whether a payload begins with a chunk, as its `Transfer-Encoding` says."""
    return _unchunked(payload, 0) is not payload


def is_text(payload: bytes) -> bool:
    """Whether its beginning has no byte that no text has, and all that is compressed."""
    return not _NO_TEXT.search(payload, 0, 1024)


def cut_at_character(body: bytes, limit: int) -> bytes:
    """At most `limit` bytes of a body, not ending within a character of UTF-8."""
    if len(body) <= limit:
        return body
    end = limit
    while end > max(0, limit - 4) and body[end] & 0xC0 == 0x80:
        end -= 1
    # More than three such bytes in a row are not UTF-8.
    return body[: end if body[end] & 0xC0 != 0x80 else limit]


def _names(header: str) -> list[str]:
    names = (name.strip().lower() for name in header.split(","))
    return [name for name in names if name not in ("", "identity")]


def _unchunked(payload: bytes, limit: int) -> bytes:
    """The content of the chunks up to the first error; the payload itself if it has no chunks."""
    found = bytearray()
    at = 0
    while at < len(payload) and len(found) <= limit:
        end = payload.find(b"\n", at, at + _MOST_LINE)
        try:
            size = int(payload[at:end].partition(b";")[0].strip(), 16) if end >= 0 else -1
        except ValueError:
            size = -1
        if size < 0:
            return payload if at == 0 else bytes(found)
        if size == 0:
            break
        found += payload[end + 1 : end + 1 + size]
        at = end + 1 + size
        if payload[at : at + 2] == b"\r\n":
            at += 2
        elif payload[at : at + 1] == b"\n":
            at += 1
    return bytes(found)


def _inflated(data: bytes, window: int, limit: int) -> bytes | None:
    """The bytes that can be unpacked; None if there are none."""
    inflate = zlib.decompressobj(wbits=window)
    found = bytearray()
    at = 0
    try:
        while at < len(data) and not inflate.eof and len(found) <= limit:
            # Small pieces: everything before the damaged one is kept.
            found += inflate.decompress(data[at : at + _PIECE], limit + 1 - len(found))
            at += _PIECE
    except zlib.error:
        pass
    return bytes(found) or None


def _unpacked(
    data: bytes, reader: type[BrotliReader] | type[ZstdReader], limit: int
) -> bytes | None:
    """The bytes that can be unpacked; None if there are none."""
    found = bytearray()
    unpacking = reader(io.BytesIO(data))
    with suppress(OSError):
        # In small pieces: the one before the damage is lost.
        while len(found) <= limit and (piece := unpacking.read(256)):
            found += piece
    return bytes(found) or None
