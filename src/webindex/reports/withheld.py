"""What a page asks not to be shown of it: `nosnippet` its text, `noarchive` its image, a copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from percola import Snapshot
from webindex import tables
from webindex.page.urls import page_row
from webindex.serving.base import SearchHit

__all__ = ["asking", "asks", "without_snippets"]


def asks(fingerprint: Mapping[str, Any] | None, directive: str) -> bool:
    """Whether a live page, by its `pages.fingerprint`, asks for `noarchive` or `nosnippet`."""
    return fingerprint is not None and directive in fingerprint


def asking(now: Snapshot, urls: Iterable[str], directive: str) -> set[str]:
    """Those of some normalised URLs of pages that ask for `noarchive` or `nosnippet`."""
    wanted = list(urls)
    found = now.get_many((tables.fingerprint, page_row(url)) for url in wanted)
    return {url for url, one in zip(wanted, found, strict=True) if asks(one, directive)}


def without_snippets(now: Snapshot, hits: Sequence[SearchHit]) -> tuple[SearchHit, ...]:
    """Hits of a search, without the snippets of pages that ask for `nosnippet`."""
    hidden = asking(now, (hit.url for hit in hits), "nosnippet")
    return tuple(replace(hit, snippet=()) if hit.url in hidden else hit for hit in hits)
