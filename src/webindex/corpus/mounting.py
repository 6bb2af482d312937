"""Maps a package's documents to their URLs on the web.

A site answers more URLs than it has files, and so does the corpus: a symbolic link is the
same page under another URL (an untranslated page, for example), a folder with an
`index.html` shows it, and the folder's name without the slash redirects to the folder. Stylesheets,
images and fonts lie beside the pages that show them.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from webindex.corpus.archives import RESOURCES, Archive, Place
from webindex.corpus.packages import Mount, Package

__all__ = ["Document", "Kind", "Site", "mount"]

_SAFE: Final = "/-._~!$&'()*+,;=:@"
_HTML_NAME = re.compile(r".*\.x?html?", re.IGNORECASE)
_INDEX: Final = "index.html"


class Kind(StrEnum):
    """Why a URL has its document."""

    PAGE = "page"
    ALIAS = "alias"
    FOLDER = "folder"
    RESOURCE = "resource"


@dataclass(frozen=True, slots=True)
class Document:
    """A document under one of its URLs. `path` is that of the file that contains it."""

    url: str
    kind: Kind
    path: str
    place: Place


@dataclass(slots=True)
class Site:
    """The responses of one version of a package, by URL in the order of the paths.

    `redirects` leads from a folder's URL without its slash to the one with it. `left_out` counts
    documents that could not be mounted, by reason.
    """

    package: Package
    version: str
    archive: Archive
    documents: dict[str, Document] = field(default_factory=dict)
    resources: dict[str, Document] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def read(self, document: Document) -> bytes:
        """The bytes of a document of this site."""
        return self.archive.read(document.place)

    def content_type(self, document: Document) -> str:
        """The Content-Type with which the site serves a document."""
        if document.kind is Kind.RESOURCE:
            return RESOURCES[_ending(document.path)]
        declared = self.package.content_type
        if document.path.lower().endswith((".xhtml", ".xht")):
            return declared.replace("text/html", "application/xhtml+xml")
        return declared


def mount(package: Package, version: str, archive: Archive) -> Site:
    """Map the documents of a package version to their URLs."""
    site = Site(package, version, archive)
    patterns = [(_pattern(one), one.url) for one in package.mounts]
    for path in sorted({*archive.documents, *archive.resources, *archive.links}):
        url = _url(path, patterns)
        if url is None:
            continue
        target = archive.follow(path)
        if _ending(path) in RESOURCES:
            if target in archive.resources:
                place = archive.resources[target]
                site.resources.setdefault(url, Document(url, Kind.RESOURCE, target, place))
            continue
        if not _HTML_NAME.fullmatch(path):
            continue
        if target not in archive.documents:
            site.left_out["links that lead out of the package"] += 1
            continue
        kind = Kind.PAGE if path in archive.documents else Kind.ALIAS
        document = Document(url, kind, target, archive.documents[target])
        # Of two files for one URL the first is kept.
        if site.documents.setdefault(url, document) is not document:
            site.left_out["second files for the same URL"] += 1
            continue
        if url.endswith("/" + _INDEX):
            folder = url.removesuffix(_INDEX)
            front = Document(folder, Kind.FOLDER, target, document.place)
            site.documents.setdefault(folder, front)
            if folder.count("/") > 3:
                site.redirects[folder.removesuffix("/")] = folder
    if archive.too_large:
        site.left_out["documents that are too large"] = len(archive.too_large)
    return site


def _ending(path: str) -> str:
    return posixpath.splitext(path)[1].lower()


def _pattern(one: Mount) -> re.Pattern[str]:
    folder = re.escape(one.folder).replace(r"\*", "([^/]+)")
    return re.compile(folder + "/(.+)")


def _url(path: str, patterns: list[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, url in patterns:
        match = pattern.fullmatch(path)
        if match is not None:
            *star, rest = match.groups()
            base = url.replace("*", quote(star[0])) if star else url
            return base + quote(rest, safe=_SAFE)
    return None
