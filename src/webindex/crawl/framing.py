"""Finds where the records of a WARC file begin and end, even in damaged files.

A WARC file is a sequence of records, either uncompressed or each in a gzip member of its own.
Readers made for speed stop at the first damaged byte: fastwarc raises and cannot continue, and for
a file truncated within a member it yields an empty record. Crawls of years contain damaged files,
so this module only finds records; each one is then passed to fastwarc alone
(`webindex.crawl.warc`).

Four rules:

- *gzip*: a member is inflated to its end, so that its checksum is tested. After damage, reading
  continues at the next byte where a gzip member starts whose content starts like a WARC record.
- *plain*: a record ends where its Content-Length says, if the blank line that must follow is
  there. After damage, reading continues at the next line that starts like a WARC record.
- *wrong lengths*: if a record's Content-Length is wrong, but the next record or the end of the
  gzip member follows blank lines as it must, everything before these is the record.
- *splits*: both ends of a split are computed by the same function, `first_record`. Whatever it
  returns, neighbouring splits meet at one point: no record is read twice or left out.

A file that was compressed as one single member is read too (it is unpacked into a temporary file),
but no record in it has its own offset, so it is one split.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

_GZIP = b"\x1f\x8b\x08"
_RECORD = re.compile(rb"WARC/\d\.\d{1,2}\r?\n")
# A page may well hold the words "WARC/1.0" on a line of their own; a header line below is rarer.
_RECORD_LINES = re.compile(rb"WARC/\d\.\d{1,2}\r?\n[A-Za-z][A-Za-z-]*:")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_TRAILER = b"\r\n\r\n"
_HTTP_END = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"HTTP/1\.\d 1\d\d\b[^\n]*+\n(?:[^\r\n][^\n]*+\n)*+\r?\n(?=HTTP/)")
_LINE_END = re.compile(rb"\r?\n")
_CONTENT_LENGTH = re.compile(rb"\nContent-Length:[ \t]*(\d{1,18})[ \t]*\r?\n", re.IGNORECASE)

READ_AHEAD = 256 << 10
_CHUNK = 16 << 10
_PIECE = 1 << 20
_SEARCH = 1 << 20
_MAX_HEADER = 64 << 10
# Deflate stores at most this many bytes in one piece. See `first_record`.
_LONGEST_STORED = 0xFFFF
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive: of a WACZ, unpack the WARC files in its folder archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstandard",
    b"\x2a\x4d\x18": "compressed with zstandard and a dictionary",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF document",
    b" CDX ": "a CDX index of a WARC file",
    b"filedesc:": "an ARC file, the format before WARC",
}


class NotAWarcError(ValueError):
    """The file holds no WARC record at all. The message reports what was found and what to do."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes of a record that are kept: `usual`, or `longer` if its headers have `sign`."""

    usual: int
    sign: re.Pattern[bytes] | None = None
    longer: int = 0

    def of(self, beginning: bytes | bytearray, length: int) -> int:
        """The limit for a record of this length, or longer, that begins with these bytes."""
        if length <= self.usual:
            return self.usual  # The search takes longer than reading a usual record.
        if self.sign is not None and self.sign.search(beginning, 0, _MAX_HEADER):
            return max(self.usual, self.longer)
        return self.usual


_NOTHING = Limit(0)


@dataclass(frozen=True, slots=True)
class Frame:
    """The bytes of one record.

    `offset` and `length` address it in the file as it is stored: for gzip they are those of the
    member. `data` is the WARC header and the block, without the blank lines after it; it is cut off
    when the record is longer than the limit (`whole` is false). `checked` says that a gzip
    checksum has covered the bytes.
    """

    offset: int
    length: int
    data: bytes
    whole: bool
    checked: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes in which no whole record was found. `truncated`: the file ends within a record."""

    offset: int
    length: int
    truncated: bool
    why: str


def open_warc(path: str | Path) -> tuple[BinaryIO, bool]:
    """Open a WARC file; the flag says whether it is gzip. Raises NotAWarcError."""
    advice = "Give a WARC file, as written by a crawler: plain (.warc) or gzip (.warc.gz)."
    try:
        file = Path(path).open("rb", buffering=READ_AHEAD)  # noqa: SIM115 (the caller closes it)
    except IsADirectoryError:
        raise NotAWarcError(
            f"{path} is a folder, not a WARC file. Give the files in it, e.g. {path}/*.warc.gz"
        ) from None
    except FileNotFoundError:
        raise NotAWarcError(f"There is no file {path}. {advice}") from None
    except OSError as error:
        raise NotAWarcError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not file.seekable():
        file.close()
        raise NotAWarcError(
            f"{path} is a pipe or a terminal, and records are looked for in several places at a "
            f"time: save what it says in a file. {advice}"
        )
    try:
        return file, _is_gzip(file)
    except NotAWarcError as error:
        file.close()
        raise NotAWarcError(f"{path} is not a WARC file: {error} {advice}") from None
    except BaseException:
        file.close()
        raise


def first_record(file: BinaryIO, gzip: bool, start: int) -> int:
    """The offset at which a split that starts at byte `start` begins to read.

    In a plain file that is the first record at or after `start`, found by skipping all the
    records before it.

    In a gzip file it is the first member at or after `start` from which whole members follow one
    another for 64 KiB or to the end of the file. Checking one member is not enough: a crawl
    that fetched a `.warc.gz` contains that file's members, byte for byte, within its own member.
    But deflate stores at most 65,535 bytes in one piece and then inserts other bytes, so a chain
    of members longer than that is not nested.
    """
    size = _size(file)
    if start <= 0:
        return 0
    if start >= size:
        return size
    if not gzip:
        return next((f.offset for f in _plain_frames(file, _NOTHING) if f.offset >= start), size)
    candidate = _next_member(file, start)
    while candidate < size and not _chain_holds(file, candidate, size):
        candidate = _next_member(file, candidate + 1)
    return candidate


def cuts(file: BinaryIO, gzip: bool, target_bytes: int) -> list[int]:
    """Where to cut a file into splits of about `target_bytes`: record offsets, 0 the first."""
    found = [0]
    if not gzip:
        for frame in _plain_frames(file, _NOTHING):
            if frame.offset >= found[-1] + target_bytes:
                found.append(frame.offset)
        return found
    size = _size(file)
    while (aim := found[-1] + target_bytes) < size:
        cut = first_record(file, gzip, aim)
        if cut == size:
            break
        found.append(cut)
    return found


def frames(
    file: BinaryIO, gzip: bool, start: int, end: int | None, limit: Limit
) -> Iterator[Frame | Gap]:
    """All records that a split from `start` to `end` has to read, and the gaps between them.

    At most `limit` of a record is kept in memory, however long it is.
    """
    if gzip:
        stop = _size(file) if end is None else first_record(file, gzip, end)
        yield from _gzip_frames(file, first_record(file, gzip, start), stop, limit)
        return
    for frame in _plain_frames(file, limit, keep_from=start):
        if end is not None and frame.offset >= end:
            return
        if frame.offset >= start:
            yield frame


# --- gzip ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Member:
    """One gzip member, inflated in pieces of bounded size."""

    file: BinaryIO
    offset: int
    end: int = -1

    def pieces(self) -> Iterator[bytes]:
        """Its content. Sets `end`; raises zlib.error for damage, EOFError if the file ends."""
        self.file.seek(self.offset)
        inflate = zlib.decompressobj(wbits=31)
        stored = b""
        while not inflate.eof:
            stored = stored or self.file.read(_CHUNK)
            if not stored:
                raise EOFError
            yield inflate.decompress(stored, _PIECE)
            stored = inflate.unconsumed_tail
        self.end = self.file.tell() - len(inflate.unused_data)


def _gzip_frames(file: BinaryIO, start: int, stop: int, limit: Limit) -> Iterator[Frame | Gap]:
    at = start
    while at < stop:
        member = _Member(file, at)
        kept = bytearray()
        total = 0
        problem = ""
        room = limit.usual
        try:
            for piece in member.pieces():
                if total <= limit.usual < total + len(piece):
                    room = limit.of(kept + piece[: limit.usual - total], total + len(piece))
                kept += piece[: max(0, room - len(kept))]
                total += len(piece)
        except EOFError:
            problem = "the file ends within this record"
        except zlib.error as error:
            problem = f"its compressed bytes are damaged ({_reason(error)})"
            if not _starts_with(file, at, _GZIP):
                problem = "these bytes are not a gzip member"

        extent = _extent(kept)
        several = extent is not None and _holds_more(kept, total, extent)
        if problem:
            after = _next_member(file, at + 1)
            if several:
                yield from _records_of_member(file, at, after - at, limit, checked=False)
            # Damaged bytes can inflate to the end of the file without an error, so the file counts
            # as truncated only if no record follows.
            cut_off = problem.startswith("the file ends") and after == _size(file)
            if not _only_zeros(file, at, after):
                yield Gap(at, after - at, cut_off, problem)
            at = after
            continue

        length = member.end - at
        if total == 0:
            pass  # some compressors close a file with an empty member
        elif extent is None:
            yield Gap(at, length, False, "it is compressed data without a usable WARC header")
        elif several:
            yield from _records_of_member(file, at, length, limit, checked=True)
        elif extent > total:
            whole = total <= len(kept)
            block = bytes(kept[: -len(_TRAILER)] if whole else kept)
            ends = not whole or kept.endswith(_TRAILER)
            # The blank line behind the header is not the one behind the record.
            if ends and _BLANK_LINE.search(block, 0, _MAX_HEADER):
                data = _with_length(block, total - len(_TRAILER))
                yield Frame(at, length, data, whole, checked=True)
            else:
                yield Gap(at, length, False, "it is shorter than its Content-Length says")
        else:
            yield Frame(at, length, bytes(kept[:extent]), extent <= len(kept), checked=True)
        at = member.end


def _holds_more(kept: bytes | bytearray, total: int, extent: int) -> bool:
    """Whether a member goes on after its first record."""
    if total <= extent:
        return False
    if extent < len(kept):
        return bool(kept[extent : extent + 64].strip())
    return total - extent > 64


def _records_of_member(
    file: BinaryIO, offset: int, length: int, limit: Limit, *, checked: bool
) -> Iterator[Frame | Gap]:
    unpacked, broken = _unpacked(file, offset)
    with unpacked:
        for frame in _plain_frames(unpacked, limit):
            # The end of a broken member is reported as a gap of its own.
            if isinstance(frame, Frame):
                yield replace(frame, offset=offset, length=length, checked=checked)
            elif not broken:
                yield replace(frame, offset=offset, length=length)


def _unpacked(file: BinaryIO, offset: int) -> tuple[BinaryIO, bool]:
    """A temporary file with the content of a member, and whether its end is missing."""
    unpacked: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    broken = False
    try:
        try:
            for piece in _Member(file, offset).pieces():
                with _told_where(file):
                    unpacked.write(piece)
        except (EOFError, zlib.error):
            broken = True
        with _told_where(file):
            unpacked.flush()
    except BaseException:
        with suppress(OSError):  # It writes the rest once more.
            unpacked.close()
        raise
    return unpacked, broken


@contextmanager
def _told_where(file: BinaryIO) -> Iterator[None]:
    """Have an error name the folder of temporary files, and what is written there."""
    try:
        yield
    except OSError as error:
        said = (
            f"{error.strerror}. {file.name} was compressed as a whole, and is unpacked there: set "
            "TMPDIR to a folder with more room, or compress its records one by one"
        )
        raise OSError(error.errno, said, tempfile.gettempdir()) from error


def _next_member(file: BinaryIO, start: int) -> int:
    """The first offset from `start` on where a member begins like a WARC record, else the end."""
    for at in _find(file, re.compile(re.escape(_GZIP)), start):
        if _opens_record(file, at):
            return at
    return _size(file)


def _opens_record(file: BinaryIO, at: int) -> bool:
    file.seek(at)
    try:
        head = zlib.decompressobj(wbits=31).decompress(file.read(_CHUNK), 16)
    except zlib.error:
        return False
    return _RECORD.match(head) is not None


def _chain_holds(file: BinaryIO, start: int, size: int) -> bool:
    at = start
    while at < size and at - start <= _LONGEST_STORED:
        member = _Member(file, at)
        try:
            for _ in member.pieces():
                pass
        except (EOFError, zlib.error):
            return False
        at = member.end
    return True


# --- plain ---------------------------------------------------------------------------------------


def _plain_frames(file: BinaryIO, limit: Limit, keep_from: int = 0) -> Iterator[Frame | Gap]:
    size = _size(file)
    at = 0
    while at < size:
        file.seek(at)
        head = file.read(_MAX_HEADER)
        blank = len(head) - len(head.lstrip(b"\r\n"))
        if blank:
            at += blank
            continue
        extent = _extent(head)
        why = ""
        cut_off = False
        if extent is None:
            why = "these bytes are not a WARC record"
            cut_off = len(head) == size - at and _RECORD.match(head) is not None
        elif at + extent > size:
            why = "the file ends within this record"
            cut_off = True
        else:
            file.seek(at + extent)
            tail = file.read(4)
            if not (
                _BLANK_LINE.match(tail) or (at + extent + len(tail) == size and not tail.strip())
            ):
                why = "its Content-Length is wrong, or bytes of it are missing"
        if why or extent is None:
            after = next(_find(file, _RECORD_LINES, at + 1), size)
            if extent is not None and (found := _misjudged(file, at, after, limit, keep_from)):
                yield found
                at = after
                continue
            if not _only_zeros(file, at, after):
                yield Gap(at, after - at, cut_off and after == size, why)
            at = after
            continue
        data = b""
        room = limit.of(head, extent)
        if at >= keep_from:
            file.seek(at)
            data = file.read(min(extent, room))
        yield Frame(at, extent, data, extent <= room, checked=False)
        at += extent


def _misjudged(file: BinaryIO, at: int, after: int, limit: Limit, keep_from: int) -> Frame | None:
    """The record from `at` to `after`, if only its Content-Length is wrong."""
    length = after - at - len(_TRAILER)
    if length <= 0 or not _starts_with(file, after - len(_TRAILER), _TRAILER):
        return None
    file.seek(at)
    # The blank line behind the header is not the one behind the record.
    head = file.read(min(length, _MAX_HEADER))
    if _BLANK_LINE.search(head) is None:
        return None
    data = b""
    room = limit.of(head, length)
    if at >= keep_from:
        file.seek(at)
        data = _with_length(file.read(min(length, room)), length)
    return Frame(at, length, data, length <= room, checked=False)


def _with_length(data: bytes, length: int) -> bytes:
    """The beginning of a record of this length, with the Content-Length that it should have."""
    blank_line = _BLANK_LINE.search(data, 0, _MAX_HEADER)
    field = _CONTENT_LENGTH.search(data, 0, blank_line.end()) if blank_line is not None else None
    if blank_line is None or field is None:
        return data
    number = str(length - blank_line.end()).encode()
    return data[: field.start(1)] + number + data[field.end(1) :]


def readable(data: bytes) -> bytes:
    """The beginning of a record, with its HTTP response as FastWARC reads it.

    It begins with the final status, behind interim ones such as "100 Continue", and CRLF ends each
    line of its headers: some servers send LF alone, which browsers read as well, and FastWARC would
    look for the end of the headers in the body.
    """
    extent, blank_line = _extent(data), _BLANK_LINE.search(data, 0, _MAX_HEADER)
    if extent is None or blank_line is None:
        return data
    begin = start = blank_line.end()
    while interim := _INTERIM.match(data, start, begin + _MAX_HEADER):
        start = interim.end()
    end = _HTTP_END.search(data, start)
    head = b"" if end is None else data[start : end.end()]
    if start == begin and head.count(b"\n") == head.count(b"\r\n"):
        return data
    spelt = _LINE_END.sub(b"\r\n", head)
    longer = begin - start + len(spelt) - len(head)
    return _with_length(data[:begin] + spelt + data[start + len(head) :], extent + longer)


def _extent(head: bytes | bytearray) -> int | None:
    """Length of the record at the start of `head`: its header and what its Content-Length says."""
    if not _RECORD.match(head):
        return None
    blank_line = _BLANK_LINE.search(head, 0, _MAX_HEADER)
    if blank_line is None:
        return None
    length = _CONTENT_LENGTH.search(head, 0, blank_line.end())
    return None if length is None else blank_line.end() + int(length[1])


# --- both ----------------------------------------------------------------------------------------


def _is_gzip(file: BinaryIO) -> bool:
    size = _size(file)
    file.seek(0)
    head = file.read(512)
    if not head:
        raise NotAWarcError("it is empty.")
    if _RECORD.match(head):
        return False
    if head.startswith(_GZIP) and _opens_record(file, 0):
        return True
    # Only the beginning may be damaged: one record anywhere makes it a WARC file.
    if _next_member(file, 0) < size:
        return True
    if next(_find(file, _RECORD_LINES, 0), size) < size and not _is_markup(head):
        return False
    raise NotAWarcError(_what_it_is(file, head))


def _is_markup(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def _what_it_is(file: BinaryIO, head: bytes) -> str:
    for magic, name in _OTHER_FORMATS.items():
        if magic in head[:16]:
            return f"it is {name}."
    if head.startswith(_GZIP):
        file.seek(0)
        try:
            inside = zlib.decompressobj(wbits=31).decompress(file.read(_CHUNK), 40)
        except zlib.error:
            return "it starts as gzip does, but nothing in it can be unpacked."
        for magic, name in _OTHER_FORMATS.items():
            if magic in inside[:16]:
                return f"it is gzip, and in it is {name.removeprefix('it is ')}."
        if not inside:
            return "it is gzip, but nothing is in it: it may have been cut off."
        return f"it is gzip, but what it holds starts with {inside!r}."
    if _is_markup(head):
        return f"it is a page or other markup and starts with {head.strip()[:40]!r}."
    return f"it holds no WARC record and starts with {head[:40]!r}."


def _find(file: BinaryIO, pattern: re.Pattern[bytes], start: int) -> Iterator[int]:
    """Offsets of `pattern` (of less than 256 bytes) in the file, from `start` on."""
    at = start
    while True:
        file.seek(at)
        window = file.read(_SEARCH + 256)
        for match in pattern.finditer(window):
            if match.start() >= _SEARCH:
                break
            yield at + match.start()
        at += _SEARCH
        if len(window) <= _SEARCH:
            return


def _starts_with(file: BinaryIO, at: int, magic: bytes) -> bool:
    file.seek(at)
    return file.read(len(magic)) == magic


def _only_zeros(file: BinaryIO, start: int, end: int) -> bool:
    """Whether these bytes are zero padding, as tapes and some file systems leave it."""
    file.seek(start)
    left = end - start
    while left > 0:
        window = file.read(min(left, _SEARCH))
        if not window or window.strip(b"\0"):
            return False
        left -= len(window)
    return True


def _size(file: BinaryIO) -> int:
    return file.seek(0, 2)


def _reason(error: zlib.error) -> str:
    """zlib's message, without its function and number."""
    return str(error).rpartition(": ")[2]
