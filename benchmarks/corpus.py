"""The crawl that the benchmark `index` measures with: a given one, or the sample several times.

A given one is a folder as `webindex crawl-docs` leaves it: `crawl-*.warc.gz` is the crawl, and
`recrawl-*.warc.gz` what a crawler found a month later, made of newer versions of the packages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.crawl import crawled_again, multiplied, sample, write_warc
from percola import PercolaError
from webindex.crawl.framing import NotAWarcError
from webindex.crawl.warc import Capture, read_captures

SMALL: Final = 3000
"""Captures of the part of a crawl whose cost a page that of the whole is compared with."""

_RUN: Final = 500
"""Captures that follow each other in the part: most links lead to neighbours, and a part of pages
from all over would be one whose links lead nowhere, and cost less."""

_BESIDE: Final = 50


class CorpusError(PercolaError):
    """No crawl is available to measure with."""


@dataclass(slots=True)
class Corpus:
    """The WARC files of a crawl, and what else is loaded after it.

    Attributes:
        name: its name in the tables.
        crawl: the crawl.
        small: runs of captures, evenly chosen; None if the whole is small itself.
        recrawl: a later crawl of pages of it.
        real: whether the later crawl is one that sites really had.
        beside: another crawl, of hosts that the first one does not have.
    """

    name: str
    crawl: list[Path]
    beside: Path
    small: Path | None = None
    recrawl: list[Path] = field(default_factory=list)
    real: bool = False


def given(crawl: Path, folder: Path) -> Corpus:
    """The crawl of a folder; what is made of it is written to another.

    Raises CorpusError if there is none.
    """
    files = sorted(crawl.glob("crawl-*.warc.gz"))
    recrawl = sorted(crawl.glob("recrawl-*.warc.gz"))
    if not files:
        raise CorpusError(
            f"The folder {crawl} holds no crawl-*.warc.gz: 'webindex crawl-docs' makes them."
        )
    if not recrawl:
        raise CorpusError(
            f"The folder {crawl} holds no recrawl-*.warc.gz, the crawl of newer versions of the "
            "packages: 'webindex crawl-docs' makes it where an older version of one can be had."
        )
    captures = _captures(files)
    small = folder / "small.warc.gz"
    step = max(1, captures // SMALL)
    write_warc(
        small,
        (
            one
            for number, one in enumerate(record for file in files for record in read_captures(file))
            if number // _RUN % step == 0 and isinstance(one, Capture)
        ),
    )
    return Corpus(f"crawl {crawl.name}", files, _beside(folder, 15), small, recrawl, real=True)


def _captures(files: list[Path]) -> int:
    try:
        return sum(isinstance(one, Capture) for file in files for one in read_captures(file))
    except NotAWarcError as error:
        raise CorpusError(str(error)) from error


def made(folder: Path, *, quick: bool) -> Corpus:
    """The sample crawl 15 times over, or 3; the later crawl of it is made up."""
    pages = sample()
    copies = 3 if quick else 15
    crawl, recrawl = folder / "crawl.warc.gz", folder / "recrawl.warc.gz"
    write_warc(crawl, multiplied(pages, copies))
    write_warc(recrawl, crawled_again(multiplied(pages, copies), changed=20))
    name = f"sample crawl, {copies} times"
    return Corpus(name, [crawl], _beside(folder, copies), recrawl=[recrawl])


def _beside(folder: Path, copies: int) -> Path:
    path = folder / "beside.warc.gz"
    write_warc(path, multiplied(sample(), copies, first=_BESIDE))
    return path
