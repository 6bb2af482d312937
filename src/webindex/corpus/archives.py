"""Extracts the documents of a .deb file, without unpacking the rest.

A .deb is an `ar` archive with a tar archive in it. Both are read from front to back, once: HTML
documents are appended to one spool file, and only their positions stay in memory; so are the
resources of pages, if they are asked for. Names in the archive are only used as keys, never as
paths on this machine, so no archive can write elsewhere.
"""

from __future__ import annotations

import gzip
import io
import lzma
import posixpath
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, cast

from webindex.corpus.debian import UnavailableError

__all__ = ["LARGEST", "RESOURCES", "Archive", "Place", "read_archive"]

LARGEST: Final = 32 << 20
"""Bytes of the largest document to extract; no documentation page is that long."""

RESOURCES: Final = {
    ".css": "text/css",
    ".gif": "image/gif",
    ".ico": "image/x-icon",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".otf": "font/otf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}
"""Media types of what pages show besides their text, by the ending of a file's name."""

_HTML = re.compile(r"\.x?html?(\.gz)?", re.IGNORECASE)
_MAGIC = b"!<arch>\n"
_HEADER = 60
_MOST_LINKS = 20


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a document in the spool file: first byte and length."""

    at: int
    size: int


@dataclass(slots=True)
class Archive:
    """The documents of one package version, by their path in it (`usr/share/doc/…`).

    `resources` are the files with the endings in `RESOURCES`, empty unless they were asked for.
    `links` are the symbolic links, with their targets as paths in the package. A document that is
    packed with gzip is unpacked, and its path has no `.gz`.
    """

    spool: Path
    documents: dict[str, Place] = field(default_factory=dict)
    resources: dict[str, Place] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    too_large: list[str] = field(default_factory=list)

    def read(self, place: Place) -> bytes:
        """The bytes of a document."""
        with self.spool.open("rb") as file:
            file.seek(place.at)
            return file.read(place.size)

    def follow(self, path: str) -> str | None:
        """The file at the end of a chain of links, also through linked folders, or None."""
        for _ in range(_MOST_LINKS):
            if path in self.documents or path in self.resources:
                return path
            parts = path.split("/")
            for depth in range(len(parts), 0, -1):
                target = self.links.get("/".join(parts[:depth]))
                if target is not None:
                    path = "/".join([target, *parts[depth:]])
                    break
            else:
                return None
        return None


def read_archive(file: Path, spool: Path, *, resources: bool = False) -> Archive:
    """Extract the HTML documents of a .deb file into `spool`, and with `resources` these as well.

    Raises UnavailableError for a file that is damaged or no .deb.
    """
    found = Archive(spool)
    try:
        with spool.open("wb") as out, _tar(file) as tar:
            for member in tar:
                _take(tar, member, found, out, resources=resources)
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError) as error:
        raise UnavailableError(f"{file.name} is damaged or no Debian package: {error}") from error
    return found


def _take(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    found: Archive,
    out: BinaryIO,
    *,
    resources: bool,
) -> None:
    path = posixpath.normpath(member.name).lstrip("/")
    if member.issym():
        target = posixpath.join("/", posixpath.dirname(path), member.linkname)
        found.links[path] = posixpath.normpath(target).lstrip("/")
        return
    ending = posixpath.splitext(path.removesuffix(".gz"))[1]
    if _HTML.fullmatch(ending):
        taken = found.documents
    elif resources and ending.lower() in RESOURCES:
        taken = found.resources
    else:
        return
    if member.islnk():
        # A hard link: another name of an earlier file.
        first = taken.get(posixpath.normpath(member.linkname).lstrip("/"))
        if first is not None:
            taken[path] = first
        return
    if not member.isfile():
        return
    data = tar.extractfile(member)
    assert data is not None
    packed = path.endswith(".gz")
    body = (gzip.GzipFile(fileobj=data) if packed else data).read(LARGEST + 1)
    if len(body) > LARGEST:
        found.too_large.append(path)
        return
    at = out.tell()
    out.write(body)
    taken[path.removesuffix(".gz")] = Place(at, len(body))


@contextmanager
def _tar(file: Path) -> Iterator[tarfile.TarFile]:
    """The tar archive with the files of a package, as a stream."""
    with file.open("rb") as archive:
        name, size = _find_data(archive)
        if not name.endswith(".zst"):
            # tarfile detects the compression.
            part = cast(BinaryIO, _Part(archive, size))
            with tarfile.open(fileobj=part, mode="r|*") as tar:
                yield tar
            return
    if shutil.which("dpkg-deb") is None:
        raise ValueError("it is packed with zstandard, which needs dpkg-deb")
    command = ["dpkg-deb", "--fsys-tarfile", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as unpacking:
        assert unpacking.stdout is not None
        with tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar:
            yield tar


def _find_data(archive: BinaryIO) -> tuple[str, int]:
    """Go to the member `data.tar.*`; returns its name and length."""
    if archive.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not start as an ar archive")
    while len(header := archive.read(_HEADER)) == _HEADER:
        name = header[:16].decode("ascii", "replace").strip().rstrip("/")
        size = int(header[48:58])
        if name.startswith("data.tar"):
            return name, size
        archive.seek(size + size % 2, io.SEEK_CUR)
    raise ValueError("it has no member data.tar")


class _Part:
    """The next `size` bytes of a file, as a file that only tarfile's streams read."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data
