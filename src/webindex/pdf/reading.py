"""What was read from a PDF document: the body that the repository keeps of it.

A document is read when it is loaded, by a process that may run out of time or memory. Another run
may end in another way, so the outcome is kept as the body of the capture, like the body that
another page had been decoded to: whatever follows from it is computed from the same bytes by
observers and by `webindex verify`. Its first line is `%PDF-read/1`, the digest of the document,
which is the `digest` of the capture, and a digest of the rest, which is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

__all__ = ["MAX_PDF", "PDF", "SIGNATURE", "Reading", "digest_of", "reading_in"]

PDF: Final = "application/pdf"
"""The media type, and `content_type` of every capture whose body was read as a PDF document."""

SIGNATURE: Final = b"%PDF-"
"""What the file begins with."""

MAX_PDF: Final = 32 << 20
"""Bytes of a document that is read. Of a longer one only the beginning is there; most have their
table of contents at the end, without which the rest is guesswork."""

_HEAD: Final = b"%PDF-read/1 "


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from a document.

    Attributes:
        title: from its metadata, else the first line of its text; maybe empty.
        language: what it declares, such as `de-AT`; None if it does not.
        text: of its pages, one after the other, with the line breaks of the document.
        links: the URIs of its links as they are there, in the order of its pages.
        pages: how many pages it has; 0 if that could not be read.
        problem: a sentence about what could not be read of it, and why; None if all was.
        reader: the version of the library.
    """

    title: str = ""
    language: str | None = None
    text: str = ""
    links: tuple[str, ...] = ()
    pages: int = 0
    problem: str | None = None
    reader: str = ""

    def body(self, digest: str) -> bytes:
        """The body to keep, of a document with this digest: the same bytes for the same reading."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        content = json.dumps(fields, sort_keys=True).encode()
        return _HEAD + f"{digest} {_digest(content)}\n".encode() + content

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Reading:
        """The reading with these fields, of JSON."""
        return cls(**{**fields, "links": tuple(fields["links"])})


def reading_in(body: bytes) -> Reading | None:
    """The reading that is kept as this body; None if it is not one, as it was written."""
    found = _parts(body)
    return None if found is None else Reading.of(json.loads(found[1]))


def digest_of(body: bytes) -> str:
    """The `digest` of the capture that this is the body of: of a reading, that of its document."""
    found = _parts(body)
    return _digest(body) if found is None else found[0]


def _parts(body: bytes) -> tuple[str, bytes] | None:
    """The digest of the document, and the reading as JSON."""
    if not body.startswith(_HEAD):
        return None
    head, _, content = body.partition(b"\n")
    document, _, whole = head[len(_HEAD) :].decode("ascii", "replace").partition(" ")
    return (document, content) if whole == _digest(content) else None


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
