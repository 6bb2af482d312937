"""Decodes bodies of HTTP responses whose encodings violate the standard.

fastwarc decodes what is correct. What it refuses is decoded here as browsers do: `deflate`
without its zlib header, `x-gzip`, and chunks or compressed data that end too early, of which the
beginning is taken. Nothing here raises for anything that a server sent.
"""

from __future__ import annotations

import zlib

__all__ = ["cut_at_character", "decode_leniently", "has_chunks"]

_MOST_LINE = 1024


def decode_leniently(
    payload: bytes, transfer_encoding: str, content_encoding: str, limit: int
) -> bytes | None:
    """The body, or its beginning: at most `limit` bytes. None if it cannot be decoded.

    `payload` is what follows the HTTP headers; the encodings are the values of their headers.
    """
    found = payload
    if "chunked" in _names(transfer_encoding):
        found = _unchunked(found, limit)
    for name in reversed(_names(content_encoding)):
        if name in ("gzip", "x-gzip"):
            windows: tuple[int, ...] = (31,)
        elif name == "deflate":
            windows = (15, -15)
        elif name in ("identity", ""):
            continue
        else:
            return None
        unpacked = next((one for w in windows if (one := _inflated(found, w, limit))), None)
        if unpacked is None:
            return None
        found = unpacked
    return found[:limit] or None


def has_chunks(payload: bytes) -> bool:
    """Whether a payload begins with a chunk, as its `Transfer-Encoding` says."""
    return _unchunked(payload, 0) is not payload


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
    return [name.strip().lower() for name in header.split(",")]


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
    left = data
    try:
        while left and not inflate.eof and len(found) <= limit:
            # Small pieces: everything before the damaged one is kept.
            found += inflate.decompress(left[:4096], limit + 1 - len(found))
            left = inflate.unconsumed_tail + left[4096:]
    except zlib.error:
        pass
    return bytes(found) or None
