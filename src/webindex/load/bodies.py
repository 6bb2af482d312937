"""The body that the repository keeps of a capture; of a PDF document, what was read from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from webindex.crawl.warc import Capture
from webindex.load.revisits import packed
from webindex.pdf.process import Reader
from webindex.pdf.reading import Reading

__all__ = ["kept_body", "reading_documents"]

_of_thread = threading.local()


@contextmanager
def reading_documents() -> Iterator[None]:
    """End the process that reads documents for this thread, if there is one by then."""
    try:
        yield
    finally:
        if (reader := _reader()) is not None:
            reader.close()


def kept_body(one: Capture, digest: str) -> tuple[bytes, Reading | None]:
    """The body as it is stored, compressed; and what was read, if it is that of a document."""
    if not one.is_pdf:
        return packed(one.body), None
    reader = _reader() or Reader()
    _of_thread.reader = reader
    reading = reader.read(one.body, digest, one.cut)
    return packed(reading.body(digest)), reading


def _reader() -> Reader | None:
    return getattr(_of_thread, "reader", None)
