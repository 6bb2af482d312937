"""Which responses are sitemaps or robots.txt, and how much of them is read."""

from __future__ import annotations

import re
import zlib
from typing import Final

__all__ = ["MAX_SITEMAP", "gunzipped", "is_robots", "may_be_compressed"]

MAX_SITEMAP: Final = 4 << 20
"""Bytes of a sitemap, decompressed; of a longer one, the beginning counts."""

_GZIP: Final = {"application/gzip", "application/x-gzip", "application/octet-stream"}
_NAME: Final = re.compile(r"[^?#]*(?:\.xml\.gz|sitemap[^/?#]*\.gz)(?:[?#].*)?", re.IGNORECASE)
_ROBOTS: Final = re.compile(r"https?://[^/?#]+/robots\.txt")


def is_robots(url: str) -> bool:
    """Whether this is the robots.txt of a host."""
    return _ROBOTS.fullmatch(url) is not None


def may_be_compressed(url: str, content_type: str | None) -> bool:
    """Whether this may be a sitemap that is a file compressed by gzip."""
    return content_type in _GZIP and _NAME.fullmatch(url) is not None


def gunzipped(body: bytes) -> bytes:
    """At most `MAX_SITEMAP` bytes of a body, decompressed if it is compressed by gzip."""
    if not body.startswith(b"\x1f\x8b"):
        return body[:MAX_SITEMAP]
    try:
        return zlib.decompressobj(wbits=31).decompress(body, MAX_SITEMAP)
    except zlib.error:
        return b""
