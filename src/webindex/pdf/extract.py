"""Reads a PDF document with pypdf: the same bytes give the same reading, or no reading at all.

What bounds it here depends on the document alone: its pages, the bytes that they are decompressed
to, the characters of their text. Time and memory are bounded from outside (`process`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pypdf
from pypdf import PasswordType
from pypdf.errors import DependencyError, PyPdfError
from pypdf.generic import PdfObject

from webindex.pdf.reading import SIGNATURE, Reading

__all__ = ["MAX_PAGES", "MAX_TEXT", "extract"]

MAX_PAGES: Final = 2_000
"""Pages that are read of a document."""

MAX_TEXT: Final = 1_000_000
"""Characters that are kept of its text: about 400 printed pages."""

MAX_DECODED: Final = 64 << 20
"""Bytes that the contents of its pages are decompressed to, all together."""

MAX_TITLE: Final = 1_000
MAX_LINKS: Final = 2_000
MAX_URI: Final = 2_000
"""All links together fit into one cell of every store."""

_LIGATURES: Final = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
    | {"\N{SOFT HYPHEN}": "-"}
)
# A word that was divided at the end of a line; "A-\nB" and "-\n2" are none.
_DIVIDED: Final = re.compile("([^\\W\\d_])[-\N{HYPHEN}] *\n *([^\\W\\d_])")
# Programs give a document the name of its file for a title, some with their own before it.
_PROGRAM: Final = re.compile(r"^Microsoft (?:Word|PowerPoint|Excel) - ", re.IGNORECASE)
_NO_TITLE: Final = re.compile(
    r"(?:untitled|document|presentation|powerpoint presentation|slide)[ -]?\d*"
    r"|.*\.(?:docx?|pptx?|xlsx?|rtf|odt|odp|indd|qxd|pub|wpd|fm|tex|dvi|ps|pdf)",
    re.IGNORECASE,
)
_WORD_LINE: Final = re.compile(r"^.*[^\W\d_]{2}.*$", re.MULTILINE)

_FAILURES: Final = (
    *(PyPdfError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, NotImplementedError, AssertionError, OSError, EOFError, DependencyError),
)
"""What pypdf raises for a document that is damaged, or made to do damage; not always on purpose."""

_LIMITS: Final = pypdf.Configuration().with_overwrites(
    zlib_maximum_output_length=MAX_DECODED // 2,
    lzw_maximum_output_length=MAX_DECODED // 2,
    run_length_maximum_output_length=MAX_DECODED // 2,
    array_based_stream_maximum_output_length=MAX_DECODED // 2,
    stream_parsing_work_maximum_count=1_000_000,
    jbig2dec_binary=None,
    disable_legacy_handling=True,
)
_VERSION: Final = f"pypdf {pypdf.__version__}"


class _UnreadableError(Exception):
    """A document of which nothing can be read; the message says why."""


def extract(document: bytes) -> Reading:
    """Read a document. Raises MemoryError; anything else that is wrong with it is a `problem`."""
    with pypdf.apply_configuration(_LIMITS):
        try:
            return _read(document)
        except _UnreadableError as problem:
            return Reading(problem=str(problem), reader=_VERSION)


def _read(document: bytes) -> Reading:
    if SIGNATURE not in document[:1024]:
        raise _UnreadableError("It is no PDF document: it does not begin with %PDF-.")
    try:
        reader = pypdf.PdfReader(io.BytesIO(document))
        locked = reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED
        number = 0 if locked else len(reader.pages)
    except _FAILURES as error:
        raise _UnreadableError(f"It cannot be read as a PDF document{_told(error)}.") from error
    if locked:
        raise _UnreadableError("It is encrypted with a password.")
    pages = _Pages()
    for at in range(min(number, MAX_PAGES)):
        if pages.is_full:
            break
        pages.add(reader, at)
    text = _cleaned("\n".join(pages.texts))[:MAX_TEXT].strip()
    title = _text(lambda: _title(reader))
    return Reading(
        title=(_meant(title) or _first_line(text) or title)[:MAX_TITLE],
        language=_text(lambda: reader.root_object.get("/Lang"))[:100] or None,
        text=text,
        links=tuple(pages.links),
        pages=number,
        problem=pages.problem(number),
        reader=_VERSION,
    )


class _Pages:
    """The pages of a document that were read."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.links: dict[str, None] = {}
        self._number = 0
        self._unreadable = 0
        self._why = ""
        self._room = MAX_TEXT
        self._decoded = 0

    @property
    def is_full(self) -> bool:
        """Whether no further page may be read."""
        return self._room <= 0 or self._decoded > MAX_DECODED

    def add(self, reader: pypdf.PdfReader, at: int) -> None:
        """Read a page; one that cannot be read leaves the others as they are."""
        self._number += 1
        try:
            page = reader.pages[at]
            for uri in _links(page):
                if len(self.links) < MAX_LINKS:
                    self.links[uri] = None
            contents = page.get_contents()
            self._decoded += 0 if contents is None else len(contents.get_data())
            text = "" if contents is None or self.is_full else page.extract_text()
        except _FAILURES as error:
            self._unreadable += 1
            self._why = self._why or _told(error)
            return
        self._room -= len(text)
        self.texts.append(text)

    def problem(self, number: int) -> str | None:
        """A sentence about what is missing of a document of so many pages."""
        found = []
        if self._number < number or self._room < 0 or self._decoded > MAX_DECODED:
            found.append(f"Only the first {self._number:,} of its {number:,} pages were read.")
        if self._unreadable:
            found.append(f"{self._unreadable:,} of its pages cannot be read{self._why}.")
        elif not any(text.strip() for text in self.texts):
            found.append("Its pages have no text, as in a scan.")
        return " ".join(found) or None


def _links(page: pypdf.PageObject) -> Iterator[str]:
    """The URIs that the annotations of a page lead to."""
    for reference in _object(page.get("/Annots")) or ():
        annotation = _object(reference)
        action = _object(annotation.get("/A")) if isinstance(annotation, dict) else None
        uri = _object(action.get("/URI")) if isinstance(action, dict) else None
        if isinstance(uri, bytes):
            uri = uri.decode("utf-8", "replace")
        if isinstance(uri, str) and len(uri) <= MAX_URI:
            yield _cleaned(uri)


def _title(reader: pypdf.PdfReader) -> Any:
    information = reader.metadata
    title = information.title if information is not None else None
    if not title and (xmp := reader.xmp_metadata) is not None:
        titles = xmp.dc_title or {}
        title = titles.get("x-default") or next(iter(titles.values()), None)
    return title


def _meant(title: str) -> str:
    """What an author has said in a title; nothing if it is the name of the document's file."""
    said = _PROGRAM.sub("", title)
    return "" if _NO_TITLE.fullmatch(said) else said


def _first_line(text: str) -> str:
    """The first line with a word in it."""
    found = _WORD_LINE.search(text)
    return found[0].strip() if found is not None else ""


def _text(get: Callable[[], Any]) -> str:
    """A text of the document's metadata; empty if it is not there, or cannot be read."""
    try:
        value = _object(get())
    except _FAILURES:
        return ""
    return _cleaned(value).strip() if isinstance(value, str) else ""


def _object(value: Any) -> Any:
    return value.get_object() if isinstance(value, PdfObject) else value


def _cleaned(text: str) -> str:
    """Text with words that are whole, and without lone surrogates."""
    whole = _DIVIDED.sub(_joined, text.translate(_LIGATURES))
    return whole.encode("utf-8", "ignore").decode()


def _joined(divided: re.Match[str]) -> str:
    before, after = divided.groups()
    return before + after if before.islower() and after.islower() else divided[0]


def _told(error: Exception) -> str:
    """What pypdf says about a failure, to follow a statement."""
    said = " ".join(str(error).split()).rstrip(".!")[:200]
    return f": {said}" if said and isinstance(error, PyPdfError) else ""
