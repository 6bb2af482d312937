"""Pages of which it is known which are the same and which are not, from documentation packages.

Pages come from the Debian packages below, got by `apt-get download` and never installed; their
labels from their main text (`main_text`), found without any rule of `webindex`:

    distinct   the main texts of two pages differ
    alike      they differ in dates and version numbers alone: nothing is claimed about these
    the same   the main texts are equal, whitespace aside
    near-copy  made from one page by a small edit: see `near_copies`

What pages declare about each other goes (`rel=canonical`), so that their text alone decides.
Redirecting pages, pages without main text and pages of more than `LARGEST` bytes are left out.
"""

from __future__ import annotations

import html
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from benchmarks.main_text import GENERATORS, Generator, main_text
from benchmarks.near_copies import KINDS, near_copy, without_dates
from percola import PercolaError
from webindex.corpus.archives import read_archive
from webindex.corpus.choosing import choose
from webindex.corpus.debian import Apt, UnavailableError
from webindex.corpus.mounting import Kind, mount
from webindex.corpus.packages import Mount, Package

__all__ = ["DOCUMENTATION", "Copy", "Documentation", "Labelled", "Original", "collect", "label"]

LARGEST: Final = 300_000
"""Bytes of the largest page that is taken: no rule depends on such pages, and they take long."""

_CANONICAL: Final = re.compile(r"<link\b[^>]*\brel\s*=\s*[\"']?canonical\b[^>]*>", re.IGNORECASE)
_REFRESH: Final = re.compile(r"<meta\b[^>]*http-equiv\s*=\s*[\"']?refresh", re.IGNORECASE)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)


class LabelsError(PercolaError):
    """No labelled pages can be had."""


@dataclass(frozen=True, slots=True)
class Documentation:
    """A package with generated pages, in one or several folders.

    Pages of a package that is `held_out` are measured, but no threshold may be chosen by them.
    """

    name: str
    generator: str
    folders: tuple[str, ...]
    held_out: bool = False

    @property
    def package(self) -> Package:
        """The package as `webindex.corpus` knows packages, under a host of its own."""
        mounts = tuple(
            Mount(folder, f"https://{self.name}.example/{folder.rpartition('/')[2]}/")
            for folder in self.folders
        )
        return Package(self.name, mounts, "text/html; charset=utf-8", "nginx", "")


_DOC: Final = "usr/share/doc"

DOCUMENTATION: Final = (
    Documentation("libcommons-math3-java-doc", "Javadoc", (f"{_DOC}/libcommons-math3-java/api",)),
    Documentation("libcommons-lang3-java-doc", "Javadoc", (f"{_DOC}/libcommons-lang3-java/api",)),
    Documentation("wx3.2-doc", "Doxygen", (f"{_DOC}/wx3.2-doc/html",)),
    Documentation("libsfml-doc", "Doxygen", (f"{_DOC}/libsfml-dev/html",)),
    Documentation("libeigen3-doc", "Doxygen", (f"{_DOC}/libeigen3-dev/html",)),
    Documentation("python-scipy-doc", "Sphinx", (f"{_DOC}/python-scipy-doc/html",)),
    Documentation("python-django-doc", "Sphinx", (f"{_DOC}/python-django-doc/html",)),
    Documentation(
        "rust-doc",
        "rustdoc",
        (f"{_DOC}/rust-doc/html/std", f"{_DOC}/rust-doc/html/core/arch/x86_64"),
    ),
    Documentation("libgtk-4-doc", "gi-docgen", (f"{_DOC}/libgtk-4-doc/gtk4",)),
    Documentation("libsoup-3.0-doc", "gi-docgen", (f"{_DOC}/libsoup-3.0",)),
    Documentation("octave-doc", "Texinfo", (f"{_DOC}/octave/octave.html",)),
    Documentation("ghc-doc", "Haddock", (f"{_DOC}/ghc-doc/html/libraries",)),
    Documentation(
        "libjfreechart-java-doc",
        "Javadoc",
        (f"{_DOC}/libjfreechart-java/javadoc",),
        held_out=True,
    ),
    Documentation(
        "libxerces-c-doc", "Doxygen", (f"{_DOC}/libxerces-c-doc/html/apiDocs-3",), held_out=True
    ),
    Documentation("twisted-doc", "pydoctor", (f"{_DOC}/twisted-doc/html/api",), held_out=True),
    Documentation(
        "libbatteries-ocaml-doc",
        "OCamldoc",
        (f"{_DOC}/libbatteries-ocaml-doc/html/api",),
        held_out=True,
    ),
    Documentation(
        "libpango1.0-doc", "gi-docgen", (f"{_DOC}/libpango1.0-doc/reference/Pango",), held_out=True
    ),
    Documentation("qtbase5-doc-html", "QDoc", ("usr/share/qt5/doc",), held_out=True),
)
"""What is measured: the packages to choose thresholds by, and those that are held out."""


@dataclass(frozen=True, slots=True)
class Original:
    """A page as its package has it.

    `text` is a hash of its main text, `like` one of the same without dates and version numbers.
    """

    url: str
    package: str
    generator: Generator
    title: str
    body: bytes
    words: int
    text: str
    like: str
    held_out: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """A near-copy of an original."""

    url: str
    kind: str
    of: Original
    body: bytes


@dataclass(slots=True)
class Labelled:
    """Pages with their labels; `missing` says of each package why it could not be had."""

    originals: list[Original] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def pages(self, seed: int) -> list[tuple[str, bytes]]:
        """All pages with their bytes, in an order that only the seed decides."""
        found = [(one.url, one.body) for one in self.originals]
        found += [(one.url, one.body) for one in self.copies]
        random.Random(seed).shuffle(found)
        return found


def collect(
    packages: Sequence[Documentation],
    cache: Path,
    spools: Path,
    *,
    pages: int,
    copies: int,
    seed: int,
) -> Labelled:
    """Get the packages, and label up to `pages` of each and `copies` near-copies of each kind.

    Raises LabelsError if no package at all can be had.
    """
    apt = Apt(cache)
    apt.look_up(one.name for one in packages)
    found = Labelled()
    for one in packages:
        versions = apt.versions(one.name)
        if not versions:
            found.missing[one.name] = apt.trouble or "apt does not know it"
            continue
        try:
            archive = read_archive(apt.get(one.name, versions[0]), spools / one.name)
        except UnavailableError as error:
            found.missing[one.name] = str(error)
            continue
        site = mount(one.package, versions[0], archive)
        found.versions[one.name] = versions[0]
        urls = [url for url, document in site.documents.items() if document.kind is Kind.PAGE]
        label(
            one.name,
            GENERATORS[one.generator],
            ((url, site.read(site.documents[url])) for url in sorted(choose(urls, pages, seed))),
            found,
            copies=copies,
            seed=seed,
            held_out=one.held_out,
        )
        archive.spool.unlink()
    if not found.originals:
        raise LabelsError(
            "None of the documentation packages can be had: "
            + "; ".join(f"{name}: {why}" for name, why in found.missing.items())
        )
    return found


def label(
    package: str,
    generator: Generator,
    pages: Iterable[tuple[str, bytes]],
    found: Labelled,
    *,
    copies: int,
    seed: int,
    held_out: bool = False,
) -> None:
    """Add pages, given as URL and bytes, and up to `copies` near-copies of each kind."""
    read = []
    for url, body in pages:
        markup = _CANONICAL.sub("", _decode(body))
        main = None
        if len(body) > LARGEST:
            found.left_out["too large"] += 1
        elif _REFRESH.search(markup):
            found.left_out["redirects"] += 1
        elif (main := main_text(markup, generator)) is None or not main.text:
            found.left_out["without main text"] += 1
        else:
            title = _TITLE.search(markup)
            original = Original(
                url=url,
                package=package,
                generator=generator,
                title=" ".join(html.unescape(title[1]).split()) if title else "",
                body=markup.encode(),
                words=main.words,
                text=_hash(main.text),
                like=_hash(without_dates(main.text)),
                held_out=held_out,
            )
            read.append((original, markup, main))
    found.originals += [original for original, _, _ in read]
    for kind in KINDS:
        rng = random.Random(f"{seed} {package} {kind}")
        made = 0
        for original, markup, main in rng.sample(read, len(read)):
            if made == copies:
                break
            if (copy := near_copy(kind, original.url, markup, main, rng)) is not None:
                url = f"{copy[0]}?{kind.replace(' ', '-')}"
                found.copies.append(Copy(url, kind, original, copy[1].encode()))
                made += 1


def _decode(body: bytes) -> str:
    """A page as text: generated documentation is in UTF-8, and else in what covers all bytes."""
    try:
        return body.decode("utf-8").replace("\0", "")
    except UnicodeDecodeError:
        return body.decode("latin-1").replace("\0", "")


def _hash(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
