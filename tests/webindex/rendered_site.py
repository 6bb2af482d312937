"""A small site of WARC records with stylesheets, images and redirects, for rendering tests."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from warc_files import HTML, Crawl

from percola import Observer, Repository, Worker
from webindex.crawl.warc import Rejected, read_captures
from webindex.load.resources import keep_resources
from webindex.load.transaction import load_captures
from webindex.page.urls import page_row
from webindex.rendering import tables as rendering
from webindex.rendering.dependencies import dependency_observers

SITE = "https://example.org/"
CSS = [("Content-Type", "text/css")]
PNG = [("Content-Type", "image/png")]
SVG = [("Content-Type", "image/svg+xml")]
TYPES = {".css": CSS, ".png": PNG, ".svg": SVG}


def png(red: int, green: int, blue: int, size: int = 16) -> bytes:
    """A square of one colour."""
    rows = (b"\0" + bytes((red, green, blue)) * size) * size

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    ends = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(ends)


def address(name: str) -> str:
    return name if "://" in name else SITE + name


def load_site(repo: Repository, folder: Path, files: dict[str, Any], day: int = 1) -> None:
    """Load captures of one day: names with their bodies, or the URL that one redirects to."""
    crawl = Crawl()
    date = f"2024-01-{day:02}T00:00:00Z"
    for name, body in files.items():
        if body is None:
            crawl.add(address(name), b"", status="404 Not Found", http=HTML, WARC_Date=date)
        elif isinstance(body, str) and body.startswith("->"):
            location = [("Location", body.removeprefix("->"))]
            crawl.add(address(name), b"", status="301 Moved", http=location, WARC_Date=date)
        else:
            data = body.encode() if isinstance(body, str) else body
            kind = TYPES.get(name[name.rfind(".") :], HTML)
            crawl.add(address(name), data, http=kind, WARC_Date=date)
    path = folder / "site.warc.gz"
    path.write_bytes(crawl.data)
    found = list(read_captures(path, max_resource=4 << 20))
    assert not [one for one in found if isinstance(one, Rejected)]
    keep_resources(repo)
    load_captures(repo, [one for one in found if not isinstance(one, Rejected)], str(path))


def follow(repo: Repository, threads: int = 1) -> None:
    """Run the observers of dependencies until nothing is left for them."""
    observers = dependency_observers()
    Worker(repo, observers, threads=threads, warn_unobserved=False).run_until_idle()


def made_due(repo: Repository) -> set[str]:
    """Follow all changes; answer the pages that are to be rendered then, and return their rows."""
    follow(repo)
    found: set[str] = set()
    render = Observer(rendering.render_due, lambda t, row: found.add(row), "render")
    Worker(repo, [render], threads=1, warn_unobserved=False).run_until_idle()
    return found


def rows(names: Iterable[str]) -> set[str]:
    return {page_row(address(name)) for name in names}
