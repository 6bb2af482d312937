"""Reads the captures of a crawl from WARC files: pages, redirects, missing and unchanged pages.

`read_captures` never raises for damage inside a file. Unusable parts are yielded as `Rejected`,
with the reason and the byte offset, and reading continues with the next record. Records that do not
describe a page (requests, metadata, ...) are only counted.

    skipped: Counter[str] = Counter()
    for record in read_captures("crawl.warc.gz", skipped=skipped):
        match record:
            case Capture(): ...
            case Revisit(): ...
            case Rejected(): ...

A file can be shared by many tasks: `plan_splits` cuts it between records, and `read_captures` with
`start` and `end` reads one part. Every record is read by exactly one part, wherever it was cut.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal

import can_ada
from fastwarc.warc import HeaderMap, WarcRecord, WarcRecordType

from webindex.crawl.framing import (
    READ_AHEAD,
    Frame,
    Gap,
    Limit,
    NotAWarcError,
    cuts,
    frames,
    open_warc,
    readable,
)
from webindex.crawl.http_body import (
    cut_at_character,
    decode_leniently,
    decoded,
    has_chunks,
    is_text,
)
from webindex.crawl.resources import Kind, kind_of
from webindex.crawl.sitemaps import MAX_SITEMAP, gunzipped, is_robots, may_be_compressed
from webindex.pdf.process import can_read
from webindex.pdf.reading import MAX_PDF, PDF, SIGNATURE

__all__ = [
    "MAX_BODY",
    "Capture",
    "NotAWarcError",
    "Rejected",
    "Rejection",
    "Resource",
    "Revisit",
    "Sitemap",
    "plan_splits",
    "read_captures",
]

MAX_BODY = 2 << 20
"""Bytes of a decoded body that are kept by default. The rest is rarely readable text."""

# The size of what surrounds a record's body: WARC and HTTP headers.
_ROOM_FOR_HEADERS = 256 << 10
_HTML = {"text/html", "application/xhtml+xml"}
_XML = {"text/xml", "application/xml"}
_PAGES = _HTML | _XML | {"text/plain"}
# What is no type ("html"), or names none, is as if there were no header, as in browsers (MIME
# Sniffing, §4.4 and §7).
_TYPE = re.compile(r"[\w!#$%&'*+.^`|~-]+/[\w!#$%&'*+.^`|~-]+", re.ASCII)
_UNKNOWN = {"unknown/unknown", "application/unknown", "*/*"}
# A browser goes on showing the page that it is on (RFC 9110, §15.3.5 and §15.3.6).
_WITHOUT_BODY = (204, 205)
# In a record of which more is read than of others.
_MAYBE_PDF = re.compile(rb"application/(?:x-)?pdf\b|\r?\n\r?\n%PDF-", re.IGNORECASE)
_PDF = {PDF, "application/x-pdf"}
# What servers declare that do not know the type of a file, or want browsers to save it.
_ANY = frozenset(
    f"{kind}/{name}"
    for kind in ("application", "binary")
    for name in ("octet-stream", "download", "force-download", "x-download", "x-octet-stream")
)
# XML that is made for programs: sitemaps, feeds, images, descriptions of search engines.
_FOR_PROGRAMS = re.compile(
    rb"(?:[\s\xef\xbb\xbf]|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*>)*+"
    rb"<(?:\w+:)?(urlset|sitemapindex|rss|feed|RDF|svg|OpenSearchDescription|opml)\b",
    re.DOTALL,
)
# Each with what joins repeated ones. Lines of X-Robots-Tag may be for one robot each, and of
# Location and Refresh only one can be meant: those must stay separate.
_KEPT_HEADERS = {
    "content-type": ", ",
    "content-language": ", ",
    "link": ", ",
    "location": "\n",
    "refresh": "\n",
    "x-robots-tag": "\n",
}
_LISTS = (b"urlset", b"sitemapindex")
# Some servers call these HTML. Browsers take such feeds for what they are (MIME Sniffing, §7.3).
_SERVED_AS_HTML = (*_LISTS, b"rss", b"feed", b"RDF")
# As browsers do (MIME Sniffing, §7.1).
_SNIFFED_HTML = re.compile(
    rb"[\s\xef\xbb\xbf]*<(?:!--|(?:!doctype\s+html|html|head|script|iframe|h1|div|font|table|a"
    rb"|style|title|b|body|br|p)[\s>])",
    re.IGNORECASE,
)
_SNIFFED_MARKUP = re.compile(rb"(?:\xef\xbb\xbf)?\s*<")
# What servers call every file whose type they do not know. As browsers do (MIME Sniffing, §7.2), it
# is believed only if no byte of the beginning is one that no text has.
_BY_DEFAULT = re.compile(r"text/plain(?:; *charset=(?:iso-8859-1|utf-8))?", re.IGNORECASE)
_BINARY = re.compile(
    rb"(?!\xfe\xff|\xff\xfe|\xef\xbb\xbf).{0,1444}?[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]", re.DOTALL
)
# How files of other formats begin that are served as pages by mistake. Browsers show their bytes.
_IMAGES_AND_FONTS = (
    rb"\x89PNG\r\n|GIF8[79]a|\xff\xd8\xff|RIFF.{4}WEBP|.{4}ftyp|wOF[F2]|\x00\x00\x01\x00"
)
_OF_IMAGES_AND_FONTS = re.compile(_IMAGES_AND_FONTS, re.DOTALL)
_OF_FILES = re.compile(
    _IMAGES_AND_FONTS + rb"|ID3[\x02-\x04]|OggS\x00"
    rb"|PK\x03\x04|\x1f\x8b\x08|7z\xbc\xaf\x27|Rar!\x1a|BZh[1-9]1AY|\xd0\xcf\x11\xe0\xa1",
    re.DOTALL,
)
_USUAL_DIGEST = re.compile(
    r"sha1:(?:[A-Z2-7]{32}|[0-9a-f]{40})|sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WARC_HEADER = re.compile(rb".*?\r?\n\r?\n", re.DOTALL)
# FastWARC knows these by this spelling only, but to the standard small letters are the same.
_SPELT = {
    name.lower(): name
    for name in (
        b"WARC-Type:",
        b"Content-Type: application/http",
        b"Content-Type:",
        b"Content-Length:",
    )
}
# Of a part of a page, which is not all of it: its first and last byte, and how many there are.
_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+)", re.IGNORECASE)
_TO_SPELL = re.compile(b"|".join(rb"^" + name for name in _SPELT), re.IGNORECASE | re.MULTILINE)
# Four digits, as captures are ordered by their dates' text, and a year left for when they are due.
_YEARS = range(1000, 9999)
_LEAP_SECOND = re.compile(r"(?<=T23:59:)60")


class Rejection(StrEnum):
    """Why a record could not be used. The values are shown to users."""

    DAMAGED = "damaged"
    TRUNCATED = "cut off by the end of the file"
    NOT_HTTP = "not an HTTP response"
    NOT_A_PAGE = "not a page"
    NO_URL = "no URL"
    BAD_URL = "unusable URL"
    BAD_DATE = "unusable date"
    UNDECODABLE = "body cannot be decoded"
    TOO_LARGE = "resource too large"
    INCOMPLETE = "resource not complete"
    NO_PDF_READER = "PDF without pypdf to read it"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that was not used, or a range of `length` bytes with no record in it."""

    reason: Rejection
    offset: int
    length: int
    url: str | None
    detail: str

    def __str__(self) -> str:
        page = f" ({self.url})" if self.url else ""
        return f"at byte {self.offset:,}{page}: {self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Capture:
    """What a server answered for one URL at one time.

    Responses of every status are captures. Those of status 200 to 299 are HTML, XHTML, XML, plain
    text or PDF and have a `body`, free of transfer and content encodings, in the charset that it
    came in; for redirects and errors it is empty. `url` is as the crawler wrote it, but for spaces.
    `date` is in UTC, with microseconds. `headers` has those that an index needs, in lower case:
    content-type, content-language and link, repeated ones joined by a comma; location and
    x-robots-tag, joined by a newline. `offset` and `length` address the record in its file.
    `truncated` says that the crawler did not keep the whole body, `cut` that only so many bytes of
    a longer one were taken.
    """

    url: str
    date: datetime
    status: int
    content_type: str | None
    headers: Mapping[str, str]
    body: bytes
    offset: int
    length: int
    payload_digest: str | None
    truncated: bool
    cut: int | None = None

    @property
    def is_pdf(self) -> bool:
        """Whether the body is that of a PDF document."""
        return self.content_type == PDF and self.status < 300

    @property
    def charset(self) -> str | None:
        """The charset that the server declared, in lower case."""
        match = re.search(
            r";\s*charset\s*=\s*[\"']?([^\s\"';,]+)",
            self.headers.get("content-type", ""),
            re.IGNORECASE,
        )
        return match[1].lower() if match else None


@dataclass(frozen=True, slots=True)
class Revisit:
    """A crawler's report that a page at `date` was as in an earlier capture; there is no body.

    `payload_digest` is that of the capture, which may be of another page and is not always the
    newest. None means that the server answered 304. `refers_to` and `refers_date` name the capture
    by its URL and date, if the crawler recorded them. `status` and `headers` are those of this
    response, as in a `Capture`; None if the record has no HTTP headers, or those of a 304. A
    content-type that names no type is left out: that of the capture counts. A record with the
    headers of a redirect or an error is no revisit but a `Capture`: only the headers of
    such a page matter, and two of them with the same empty body may differ in them.
    """

    url: str
    date: datetime
    payload_digest: str | None
    offset: int
    length: int
    refers_to: str | None = None
    refers_date: datetime | None = None
    status: int | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """A stylesheet, image, font or script, as a server answered it at one time.

    `body` is whole, and free of transfer and content encodings; None means a revisit, which reports
    that it was as in the capture that `refers_to` and `payload_digest` name. `content_type` is the
    value of the header.
    """

    url: str
    date: datetime
    kind: Kind
    content_type: str
    body: bytes | None
    offset: int
    length: int
    payload_digest: str | None
    refers_to: str | None = None


@dataclass(frozen=True, slots=True)
class Sitemap:
    """A sitemap, an index of sitemaps, or the robots.txt of a host.

    `body` is free of transfer and content encodings, and of compression by gzip; of a long one it
    is the beginning.
    """

    url: str
    date: datetime
    kind: Literal["sitemap", "robots"]
    body: bytes
    offset: int
    length: int


Record = Capture | Revisit | Resource | Sitemap | Rejected
"""The items that a WARC file is read as."""


class _UnusableError(Exception):
    def __init__(self, reason: Rejection, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_captures(
    path: str | Path,
    *,
    start: int = 0,
    end: int | None = None,
    max_body: int = MAX_BODY,
    max_resource: int | None = None,
    sitemaps: bool = False,
    skipped: Counter[str] | None = None,
) -> Iterator[Record]:
    """The captures of a WARC file that belong to the split from byte `start` to byte `end`.

    `max_body` is in bytes, after decoding; of a longer body the beginning is kept, and the
    rest is never held in memory. With `max_resource`, resources of at most so many bytes are read
    as well; without it they are rejected, and so are sitemaps and robots.txt without `sitemaps`.
    `skipped` counts the records that do not describe a page,
    by their WARC type.

    Raises NotAWarcError, immediately, for a file that is missing, empty or not a WARC file.
    """
    # The iterator opens the file itself: an unused iterator must not keep it open.
    file, gzip = open_warc(path)
    file.close()
    counter: Counter[str] = Counter() if skipped is None else skipped
    return _read(path, gzip, start, end, max_body, max_resource, sitemaps, counter)


def plan_splits(path: str | Path, target_bytes: int) -> list[tuple[int, int]]:
    """Cut a WARC file between records into parts of about `target_bytes` as stored.

    Returns (start, end) pairs for `read_captures` that follow one another from 0 to the file's
    size. A file compressed as one member cannot be cut: it is one part. Raises NotAWarcError as
    `read_captures` does, ValueError for a target below 1.
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes is {target_bytes}; a split needs at least 1 byte.")
    file, gzip = open_warc(path)
    with file:
        starts = cuts(file, gzip, target_bytes)
        return list(zip(starts, [*starts[1:], file.seek(0, 2)], strict=True))


def _read(
    path: str | Path,
    gzip: bool,
    start: int,
    end: int | None,
    max_body: int,
    max_resource: int | None,
    sitemaps: bool,
    skipped: Counter[str],
) -> Iterator[Record]:
    largest = max(max_body, max_resource or 0, MAX_SITEMAP if sitemaps else 0)
    limit = Limit(largest + _ROOM_FOR_HEADERS, _MAYBE_PDF, MAX_PDF + _ROOM_FOR_HEADERS)
    with Path(path).open("rb", buffering=READ_AHEAD) as file:
        for frame in frames(file, gzip, start, end, limit):
            if isinstance(frame, Gap):
                reason = Rejection.TRUNCATED if frame.truncated else Rejection.DAMAGED
                yield Rejected(reason, frame.offset, frame.length, None, frame.why)
                continue
            found = _capture(frame, max_body, max_resource, sitemaps=sitemaps)
            if isinstance(found, str):
                skipped[found] += 1
            else:
                yield found


def _capture(
    frame: Frame, max_body: int, max_resource: int | None = None, *, sitemaps: bool = False
) -> Record | str:
    """Parse one record, or return the name of a kind that is skipped."""
    url: str | None = None
    frame = _spelt(frame)
    try:
        record = _open(frame.data)
        kind = record.record_type
        if kind not in (WarcRecordType.response, WarcRecordType.revisit):
            return str(kind)
        if not frame.checked and frame.whole:
            _check_digest(record)
        url = _url(record)
        date = _date(record)
        digest = record.headers.get("WARC-Payload-Digest") or None
        revisit = kind == WarcRecordType.revisit
        if revisit and not record.content_length:
            if is_robots(url):
                return str(kind)  # What it refers to is no page.
            # Its HTTP headers may be omitted.
            if _is_not_modified(record):
                digest = None
            return Revisit(url, date, digest, frame.offset, frame.length, *_refers_to(record))
        # Not before: the digest is that of the bytes as they are.
        if (spelt := readable(frame.data)) is not frame.data:
            frame = replace(frame, data=spelt)
            record = _open(spelt)
        http = _http_headers(record)
        status = http.status_code
        if status is None or not 200 <= status <= 999:
            raise _UnusableError(Rejection.NOT_HTTP, f"its status line is {http.status_line!r}")
        if status == 304:
            if is_robots(url):
                return str(kind)
            # A digest, if there is one, may be that of this response's own empty body.
            return Revisit(url, date, None, frame.offset, frame.length, *_refers_to(record))
        if status == 206 and (part := _part(http)) is not None:
            raise _UnusableError(Rejection.NOT_A_PAGE, f"it is a part of one: {part}")
        if status in _WITHOUT_BODY:
            raise _UnusableError(Rejection.NOT_A_PAGE, f"an answer {status} has no content")
        headers = _kept_headers(http)
        content_type = _content_type(headers, record)
        body, cut = b"", None
        if status < 300:
            kind_of_resource = kind_of(content_type) if max_resource is not None else None
            if kind_of_resource is not None and max_resource is not None:
                whole = None if revisit else _resource_body(frame, record, http, max_resource)
                return Resource(
                    url=url,
                    date=date,
                    kind=kind_of_resource,
                    content_type=headers.get("content-type") or content_type or "",
                    body=whole,
                    offset=frame.offset,
                    length=frame.length,
                    payload_digest=digest,
                    refers_to=_refers_to(record)[0],
                )
            if sitemaps and not revisit and may_be_compressed(url, content_type):
                unpacked = gunzipped(_body(frame, http, MAX_SITEMAP, None)[0])
                listing = _FOR_PROGRAMS.match(unpacked[:4096])
                if listing is not None and listing[1] in _LISTS:
                    return Sitemap(url, date, "sitemap", unpacked, frame.offset, frame.length)
            if content_type in _PDF or (
                content_type in _ANY and not revisit and _begins_a_pdf(frame, http)
            ):
                content_type = PDF
            elif content_type is not None and content_type not in _PAGES:
                raise _UnusableError(Rejection.NOT_A_PAGE, f"it is {content_type}")
            if content_type == PDF:
                _need_reader()
            if revisit and content_type in (None, "text/plain") and is_robots(url):
                return str(kind)
            if revisit:
                if _type_in(headers.get("content-type")) is None:
                    headers.pop("content-type", None)  # That of its original counts.
                refers = _refers_to(record)
                return Revisit(
                    url, date, digest, frame.offset, frame.length, *refers, status, headers
                )
            if url.endswith("/robots.txt") and (
                content_type == "text/plain" or (content_type in _HTML and _is_plain(frame, http))
            ):
                if sitemaps and is_robots(url):
                    whole, _ = _body(frame, http, MAX_SITEMAP, content_type)
                    return Sitemap(url, date, "robots", whole, frame.offset, frame.length)
                raise _UnusableError(Rejection.NOT_A_PAGE, "it is a robots.txt")
            most = MAX_PDF if content_type == PDF else max_body
            body, cut = _body(frame, http, most, content_type)
            if not body and _is_short(frame.data, http):
                # As of a HEAD request, or where a crawler has reached its limit.
                raise _UnusableError(Rejection.NOT_A_PAGE, "nothing of its body was kept")
            if content_type != PDF and body.startswith(SIGNATURE):
                _need_reader()
                content_type = PDF
                body, cut = _body(frame, http, MAX_PDF, content_type)
            if (
                content_type == "text/plain"
                and _BY_DEFAULT.fullmatch(headers.get("content-type", ""))
                and _BINARY.match(body)
            ):
                raise _UnusableError(Rejection.NOT_A_PAGE, "it is called text/plain, and is binary")
            if content_type is None:
                if not _SNIFFED_HTML.match(body):
                    raise _UnusableError(Rejection.NOT_A_PAGE, "it has no usable Content-Type")
                content_type = "text/html"
            if content_type in _PAGES and _OF_FILES.match(body):
                raise _UnusableError(
                    Rejection.NOT_A_PAGE, f"it is called {content_type}, and is another file"
                )
            root = _FOR_PROGRAMS.match(body[:4096])
            program = b"" if root is None else root[1]
            if content_type in _XML or (content_type == "text/html" and program in _SERVED_AS_HTML):
                if sitemaps and program in _LISTS:
                    whole, _ = _body(frame, http, MAX_SITEMAP, content_type)
                    return Sitemap(url, date, "sitemap", whole, frame.offset, frame.length)
                if program:
                    raise _UnusableError(Rejection.NOT_A_PAGE, f"it is XML: <{program.decode()}>")
        return Capture(
            url=url,
            date=date,
            status=status,
            content_type=content_type,
            headers=headers,
            body=body,
            offset=frame.offset,
            length=frame.length,
            payload_digest=digest,
            truncated="WARC-Truncated" in record.headers or _is_short(frame.data, http),
            cut=cut,
        )
    except _UnusableError as problem:
        return Rejected(problem.reason, frame.offset, frame.length, url, str(problem))


def _open(data: bytes) -> WarcRecord:
    try:
        return WarcRecord.from_bytes(data)
    except OSError as error:
        raise _UnusableError(Rejection.DAMAGED, str(error)) from error


def _spelt(frame: Frame) -> Frame:
    """The frame with its WARC header as FastWARC reads it: names of fields, and ends of lines."""
    header = _WARC_HEADER.match(frame.data)
    if header is None:
        return frame
    spelt = _TO_SPELL.sub(lambda name: _SPELT[name[0].lower()], header[0])
    if spelt.count(b"\n") != spelt.count(b"\r\n"):
        spelt = b"\r\n".join(line.removesuffix(b"\r") for line in spelt.split(b"\n"))
    if spelt == header[0]:
        return frame
    return replace(frame, data=spelt + frame.data[header.end() :])


def _check_digest(record: WarcRecord) -> None:
    """For records that no checksum has covered. Unusual forms of digests prove nothing."""
    digest = record.headers.get("WARC-Block-Digest")
    if digest and _USUAL_DIGEST.fullmatch(digest) and not record.verify_block_digest():
        raise _UnusableError(Rejection.DAMAGED, "its bytes do not match its WARC-Block-Digest")


def _url(record: WarcRecord, header: str = "WARC-Target-URI") -> str:
    # Old versions of wget put the URL in angle brackets, as the standard was once read.
    url = (record.headers.get(header) or "").strip().removeprefix("<").removesuffix(">")
    # Some crawlers write the URL as a page has it.
    url = url.replace(" ", "%20")
    if not url:
        raise _UnusableError(Rejection.NO_URL, f"the record has no {header}")
    scheme = url.partition(":")[0].lower()
    if scheme not in ("http", "https"):
        raise _UnusableError(Rejection.NOT_HTTP, f"its URL is {url[:200]!r}")
    if _CONTROL.search(url) or not can_ada.can_parse(url):
        raise _UnusableError(Rejection.BAD_URL, f"{url[:200]!r}")
    return url


def _is_not_modified(record: WarcRecord) -> bool:
    profile = record.headers.get("WARC-Profile") or ""
    return profile.strip().rstrip("/").endswith("revisit/server-not-modified")


def _refers_to(record: WarcRecord) -> tuple[str | None, datetime | None]:
    """The capture that a revisit refers to, if it names URL and date and both can be read."""
    if record.record_type != WarcRecordType.revisit:
        return None, None
    try:
        return _url(record, "WARC-Refers-To-Target-URI"), _date(record, "WARC-Refers-To-Date")
    except _UnusableError:
        return None, None


def _date(record: WarcRecord, header: str = "WARC-Date") -> datetime:
    text = record.headers.get(header) or ""
    try:
        if "T" not in text:
            raise ValueError
        date = datetime.fromisoformat(_LEAP_SECOND.sub("59", text.strip()))
        # The standard knows UTC only; a date that leaves its zone out means that.
        date = date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
        if date.year not in _YEARS:
            raise ValueError
        return date
    except (ValueError, OverflowError):
        raise _UnusableError(Rejection.BAD_DATE, f"its {header} is {text[:60]!r}") from None


def _http_headers(record: WarcRecord) -> HeaderMap:
    if record.is_http:
        try:
            record.parse_http("none", max_header_len=_ROOM_FOR_HEADERS)
        except OSError as error:
            raise _UnusableError(Rejection.NOT_HTTP, str(error)) from error
        if record.is_http_parsed:
            return record.http_headers
    kind = record.headers.get("Content-Type")
    raise _UnusableError(Rejection.NOT_HTTP, f"its Content-Type is {kind!r}")


def _part(http: HeaderMap) -> str | None:
    """Which part of a page a response has, if it does not have all of it."""
    said = (http.get("Content-Range") or "").strip()
    found = _RANGE.fullmatch(said)
    if found is None:
        return None
    first, last, size = map(int, found.groups())
    return None if first == 0 and last + 1 == size else said


def _kept_headers(http: HeaderMap) -> dict[str, str]:
    kept = {}
    for name, joint in _KEPT_HEADERS.items():
        values = http.get_bytes_multiple(name.encode())
        if values:
            kept[name] = joint.join(_header_text(value).strip() for value in values)
    return kept


def _header_text(value: bytes) -> str:
    # As browsers read a Location that is not ASCII.
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _content_type(headers: Mapping[str, str], record: WarcRecord) -> str | None:
    for declared in (
        headers.get("content-type"),
        record.headers.get("WARC-Identified-Payload-Type"),
    ):
        if (found := _type_in(declared)) is not None:
            return found
    return None


def _type_in(declared: str | None) -> str | None:
    """The media type that is declared there; None if that is no type, or says nothing."""
    # As `webindex.page.markup.media_type`.
    found = re.split(r"[;,\s]", (declared or "").strip(), maxsplit=1)[0].lower()
    return found if _TYPE.fullmatch(found) and found not in _UNKNOWN else None


def _body(
    frame: Frame, http: HeaderMap, max_body: int, content_type: str | None
) -> tuple[bytes, int | None]:
    """The body; and the number of bytes kept, if it was longer."""
    try:
        body = _decoded(frame.data, max_body, http)
    except OSError as error:
        body = _as_it_came(frame, http, max_body, content_type, str(error))
    if len(body) <= max_body and frame.whole:
        return body, None
    taken = cut_at_character(body, max_body)
    return taken, len(taken)


def _need_reader() -> None:
    if not can_read():
        raise _UnusableError(Rejection.NO_PDF_READER, "pip install 'percola[webindex]'")


def _begins_a_pdf(frame: Frame, http: HeaderMap) -> bool:
    return _beginning(frame, http, len(SIGNATURE)).startswith(SIGNATURE)


def _is_plain(frame: Frame, http: HeaderMap) -> bool:
    """Whether what is called HTML has no markup at its beginning."""
    return not _SNIFFED_MARKUP.match(_beginning(frame, http, 256))


def _beginning(frame: Frame, http: HeaderMap, size: int) -> bytes:
    try:
        return _decoded(frame.data, size, http)
    except OSError:
        return _decoded(frame.data, size)


def _resource_body(frame: Frame, record: WarcRecord, http: HeaderMap, most: int) -> bytes:
    """The body of a resource; it is used only if it is whole."""
    if "WARC-Truncated" in record.headers or (frame.whole and _is_short(frame.data, http)):
        raise _UnusableError(Rejection.INCOMPLETE, "the crawler did not keep all of it")
    try:
        body = _decoded(frame.data, most, http)
    except OSError as error:
        raw = _decoded(frame.data, most + _ROOM_FOR_HEADERS)
        body_or_none = _leniently(raw, http, most)
        if body_or_none is None:
            # As of pages: the crawler may have decoded it, and kept the header.
            if not (is_text(raw) or _OF_IMAGES_AND_FONTS.match(raw)):
                raise _UnusableError(Rejection.UNDECODABLE, str(error)[:200]) from error
            body_or_none = raw
        body = body_or_none
    if len(body) > most or not frame.whole:
        raise _UnusableError(Rejection.TOO_LARGE, f"it has more than {most:,} bytes")
    return body


def _as_it_came(
    frame: Frame, http: HeaderMap, max_body: int, content_type: str | None, problem: str
) -> bytes:
    """A body whose encoding differs from its headers, or that is truncated."""
    raw = _decoded(frame.data, max_body + _ROOM_FOR_HEADERS)
    # Many crawlers write the decoded body but keep the header of its encoding.
    if _SNIFFED_MARKUP.match(raw) or raw.startswith(SIGNATURE):
        return raw
    body = _leniently(raw, http, max_body)
    if body is None and content_type in _PAGES and is_text(raw):
        body = raw
    if body is None:
        raise _UnusableError(Rejection.UNDECODABLE, problem[:200])
    return body


def _leniently(raw: bytes, http: HeaderMap, most: int) -> bytes | None:
    """A body that is not encoded as its headers say; None if it cannot be decoded."""
    transfer, content = _encodings(http)
    if "chunked" in transfer.lower() and content and not has_chunks(raw):
        # The crawler has put the chunks together, and kept the header.
        transfer = ""
        with suppress(OSError):
            return decoded(io.BytesIO(raw), transfer, content, most + 1)
    return decode_leniently(raw, transfer, content, most + 1)


def _encodings(http: HeaderMap) -> tuple[str, str]:
    return http.get("Transfer-Encoding") or "", http.get("Content-Encoding") or ""


def _decoded(data: bytes, max_body: int, http: HeaderMap | None = None) -> bytes:
    """The beginning of a body; with `http`, free of the encodings that these headers name."""
    record = WarcRecord.from_bytes(data)
    record.parse_http("none", max_header_len=_ROOM_FOR_HEADERS)
    # Read no more than needed: a body of a few kilobytes can unpack to gigabytes.
    encodings = ("", "") if http is None else _encodings(http)
    return decoded(record.reader, *encodings, max_body + 1)


def _is_short(data: bytes, http: HeaderMap) -> bool:
    """Whether the body has fewer bytes than the server announced."""
    announced = http.get("Content-Length") or ""
    if not announced.isascii() or not announced.isdigit():
        return False
    block = data.partition(b"\r\n\r\n")[2]
    body = block.partition(b"\r\n\r\n")[2]
    return len(body) < int(announced[:18])
