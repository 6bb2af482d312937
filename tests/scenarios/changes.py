"""Which captures of a later crawl show another page than the one that is known."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from percola import Repository
from tests.scenarios.crawls import Place, copy_records
from webindex import tables
from webindex.crawl.warc import Capture, Rejected, read_captures
from webindex.load.transaction import describe
from webindex.page.pages import Page, parse_capture
from webindex.page.urls import normalise, page_row


@dataclass(frozen=True)
class Sorted:
    """A file with some of the captures of a crawl."""

    file: Path
    captures: int


def sorted_by_change(
    repo: Repository, files: Sequence[Path], folder: Path
) -> tuple[Sorted, Sorted]:
    """The captures of some files that show what the repository has, and the others.

    A page shows the same if all that can be read from its capture is the same; a revisit does so
    by its nature.
    """
    folder.mkdir(parents=True, exist_ok=True)
    same: list[Place] = []
    changed: list[Place] = []
    with repo.snapshot() as now:
        for file in files:
            for one in read_captures(file):
                if isinstance(one, Rejected):
                    continue
                url = normalise(one.url)
                row = page_row(url)
                known = now.get(tables.capture, row)
                body = now.get(tables.body, row)
                shows_same = not isinstance(one, Capture) or (
                    known is not None
                    and body is not None
                    and _shown(known, zlib.decompress(body))
                    == _shown(describe(one, url, ""), one.body)
                )
                (same if shows_same else changed).append(Place(file, one.offset, one.length))
    return (
        Sorted(copy_records(same, folder / "same.warc.gz"), len(same)),
        Sorted(copy_records(changed, folder / "changed.warc.gz"), len(changed)),
    )


def _shown(capture: Mapping[str, Any], body: bytes) -> tuple[Any, Page | None]:
    """All that can be read from a capture: where it redirects to, or the page."""
    if not 200 <= capture["status"] < 300:
        return (capture["status"], capture["location"]), None
    return capture["status"], parse_capture(capture, body)
