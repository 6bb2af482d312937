"""Which responses are sitemaps or robots.txt, and how much of them is read."""

from __future__ import annotations

import re
import zlib
from typing import Final

__all__ = ["MAX_SITEMAP", "gunzipped", "is_robots", "may_be_compressed"]

MAX_SITEMAP: Final = 4 << 20
"""Bytes of a sitemap, decompressed; of a longer one, the beginning counts."""

GZIP: Final = b"\x1f\x8b"
"""How a file begins that is compressed by gzip."""

# Some servers declare what is in the file.
_TYPES: Final = {
    *("application/gzip", "application/x-gzip", "application/octet-stream"),
    *("application/xml", "text/xml"),
}
_NAME: Final = re.compile(r"[^?#]*(?:\.xml\.gz|sitemap[^/?#]*\.gz)(?:[?#].*)?", re.IGNORECASE)
_PIECE: Final = 4096
_ROBOTS: Final = re.compile(r"https?://[^/?#]+/robots\.txt")


def is_robots(url: str) -> bool:
    """Whether this is the robots.txt of a host."""
    return _ROBOTS.fullmatch(url) is not None


def may_be_compressed(url: str, content_type: str | None) -> bool:
    """Whether this may be a sitemap that is a file compressed by gzip."""
    return content_type in _TYPES and _NAME.fullmatch(url) is not None


def gunzipped(body: bytes) -> bytes:
    """At most `MAX_SITEMAP` bytes of a body, decompressed if it is compressed by gzip.

    A file may be several compressed ones in a row; those count that are before a damaged one.
    """
    if not body.startswith(GZIP):
        return body[:MAX_SITEMAP]
    found = bytearray()
    at = whole = 0
    try:
        while body.startswith(GZIP, at) and len(found) < MAX_SITEMAP:
            whole = len(found)
            inflate = zlib.decompressobj(wbits=31)
            while at < len(body) and not inflate.eof and len(found) < MAX_SITEMAP:
                # In small pieces, of which what follows the end of a file is copied.
                piece = body[at : at + _PIECE]
                found += inflate.decompress(piece, MAX_SITEMAP - len(found))
                at += len(piece) - len(inflate.unused_data)
    except zlib.error:
        del found[whole:]
    return bytes(found)
