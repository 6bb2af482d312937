"""Loads sitemaps and robots.txt: the newest capture of each, in whatever order they arrive."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from percola import Transaction
from webindex import tables
from webindex.crawl.warc import Sitemap
from webindex.load.revisits import date_text

__all__ = ["load_sitemap"]


def load_sitemap(t: Transaction, one: Sitemap, url: str, row: str, file: str) -> bool:
    """Write a capture; return whether it is now the newest one."""
    new = {
        "url": url,
        "date": date_text(one.date),
        "kind": one.kind,
        "digest": blake2b(one.body, digest_size=16).hexdigest(),
        "file": file,
        "offset": one.offset,
        "length": one.length,
        "loaded_ms": time.time_ns() // 1_000_000,
    }
    current = t.get(tables.sitemap, row)
    if current is not None and _age(current) >= _age(new):
        return False
    t.set(tables.sitemap, row, new)
    t.set(tables.sitemap_body, row, zlib.compress(one.body))
    return True


def _age(capture: Mapping[str, Any]) -> tuple[str, str]:
    return capture["date"], capture["digest"]
