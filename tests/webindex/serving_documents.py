"""Documents for tests of the search index."""

from __future__ import annotations

from typing import Any

from webindex.serving import ServingDocument


def document(
    cluster: str, text: str = "", *, host: str = "example.org", **fields: Any
) -> ServingDocument:
    """A document that has nothing but its text; `fields` are what it has besides."""
    usual: dict[str, Any] = {
        "cluster": cluster,
        "epoch": 1,
        "url": f"https://{host}/{cluster}",
        "title": "",
        "text": text,
        "language": "en",
        "host": host,
        "anchors": (),
        "duplicates": (),
        "inlinks": 0,
    }
    return ServingDocument(**{**usual, **fields})


def version(cluster: str, epoch: int = 1, text: str = "word") -> ServingDocument:
    """A document as it is after some change."""
    return document(cluster, text, epoch=epoch)
