"""The crawls that the scenarios load: the sample that comes with the package, or a made corpus.

Of either there is a first crawl, a recrawl and a crawl that finds pages gone. The files of a made
corpus are those of `webindex crawl-docs`; for the sample, the later crawls are made here. Records
go from file to file as they are, gzip member by gzip member: what a test sorts or shuffles is
byte by byte what the crawler wrote.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

from tests.scenarios.writing import Answer, answer_of, unchanged, write_answers
from webindex.corpus.edits import Comment, Paragraph, Reword, apply
from webindex.crawl.warc import Capture, Rejected, Revisit, read_captures
from webindex.sample import recrawl_path, sample_path

CHANGED: Final = 0.1
"""The share of the sample's pages whose text is another one in its recrawl."""
_GONE: Final = 0.1


@dataclass(frozen=True)
class Crawl:
    """What there is to load, in the order in which it was crawled.

    Attributes:
        name: what a report calls it.
        first: WARC files of the first crawl.
        recrawl: of the second one: most pages show the same text as before.
        removals: of the third one, which finds pages gone, or moved elsewhere.
    """

    name: str
    first: tuple[Path, ...]
    recrawl: tuple[Path, ...]
    removals: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        """All of its files."""
        return self.first + self.recrawl + self.removals


def made_crawl(folder: Path) -> Crawl:
    """The corpus that `webindex crawl-docs` has made in a folder.

    Raises OSError if there is none.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {
        crawl["name"]: tuple(folder / file["name"] for file in crawl["files"])
        for crawl in manifest["crawls"]
    }
    captures = sum(crawl["captures"] for crawl in manifest["crawls"])
    return Crawl(
        f"{folder.name} ({captures:,} captures)",
        files["crawl"],
        files["recrawl"],
        files["seeded-recrawl"],
    )


def sample_crawl(folder: Path, seed: int) -> Crawl:
    """The package's sample; the later crawls are made in a folder."""
    rng = random.Random(f"sample {seed}")
    pages = [one for one in captures([sample_path()]) if one.status == 200]
    rng.shuffle(pages)
    gone, changed = int(_GONE * len(pages)), int(CHANGED * len(pages))
    again = folder / "recrawl.warc.gz"
    write_answers(again, _crawled_again(pages, changed, timedelta(days=30)))
    removals = folder / "removals.warc.gz"
    write_answers(removals, _removed(pages, gone, timedelta(days=60)))
    return Crawl("the sample", (sample_path(),), (again, recrawl_path()), (removals,))


def _crawled_again(pages: Sequence[Capture], changed: int, later: timedelta) -> Iterable[Answer]:
    """Every page once more: some rewritten, most with other bytes, the rest as they were."""
    for number, page in enumerate(pages):
        mark = f"{number:04}"
        if number < changed:
            edits = (Reword(6, mark), Paragraph(f"This page was revised; see note {mark}."))
            yield answer_of(page, later, body=apply(edits, page.body))
        elif number % 3 == 0 and page.payload_digest is not None:
            yield unchanged(page, later)
        else:
            yield answer_of(page, later, body=apply([Comment(f"made {mark}")], page.body))


def _removed(pages: Sequence[Capture], gone: int, later: timedelta) -> Iterable[Answer]:
    """Some pages are missing, gone for good, or have moved to another page."""
    for number, page in enumerate(pages[:gone]):
        if number % 3 == 2:
            moved = {"Location": pages[-1 - number].url}
            yield answer_of(page, later, status=301, headers=moved)
        else:
            yield answer_of(page, later, status=(404, 410)[number % 3])


def captures(files: Iterable[Path]) -> list[Capture]:
    """The captures of some files, in order."""
    return [one for file in files for one in read_captures(file) if isinstance(one, Capture)]


# --- Records as they are ------------------------------------------------------------------


class Place(NamedTuple):
    """Where a record stands: a gzip member of its own."""

    file: Path
    offset: int
    length: int


def places(files: Iterable[Path]) -> list[tuple[Place, Capture | Revisit]]:
    """Every capture and revisit, with the place where it stands; without bodies.

    A list of a whole corpus has to fit into memory, and bodies do not matter here.
    """
    return [
        (
            Place(file, one.offset, one.length),
            replace(one, body=b"") if isinstance(one, Capture) else one,
        )
        for file in files
        for one in read_captures(file)
        if not isinstance(one, Rejected)
    ]


def copy_records(found: Iterable[Place], into: Path) -> Path:
    """Write records into a file, byte by byte as they are, in this order."""
    opened = {}
    try:
        with into.open("wb") as out:
            for file, offset, length in found:
                if file not in opened:
                    opened[file] = file.open("rb")
                opened[file].seek(offset)
                out.write(opened[file].read(length))
    finally:
        for source in opened.values():
            source.close()
    return into


def shuffled(files: Iterable[Path], folder: Path, parts: int, rng: random.Random) -> list[Path]:
    """All captures of some files, dealt out to `parts` files in a random order."""
    found = [place for place, _ in places(files)]
    rng.shuffle(found)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        copy_records(found[part::parts], folder / f"shuffled-{part}.warc.gz")
        for part in range(parts)
    ]


def in_pieces(files: Sequence[Path], folder: Path, parts: int) -> list[Path]:
    """The captures of some files, cut into at least `parts` files, in their order."""
    if len(files) >= parts:
        return list(files)
    found = [place for place, _ in places(files)]
    size = -(-len(found) // parts)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        copy_records(found[at : at + size], folder / f"piece-{at // size}.warc.gz")
        for at in range(0, len(found), size)
    ]
