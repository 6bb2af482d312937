"""The documentation packages: the folders of their pages, their URLs, and their licences.

A mount maps a folder of the package to a URL. A `*` in the folder matches one name, which replaces
the `*` in the URL: the languages of a manual. The first matching mount is used.

The URLs are those at which the projects publish these documents. They are only data: nothing here
or elsewhere in the corpus connects to these hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from webindex.corpus import CorpusError

__all__ = ["PACKAGES", "Mount", "Package", "named"]

_UTF8: Final = "text/html; charset=utf-8"
# Pages that declare their own charset, often not UTF-8: a header would contradict them.
_BARE: Final = "text/html"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of a package and the URL, ending in a slash, of its documents."""

    folder: str
    url: str


@dataclass(frozen=True, slots=True)
class Package:
    """A documentation package and how the site of its project serves the pages.

    `usual` packages make the corpus of about 26,000 pages; the others must be requested.
    """

    name: str
    mounts: tuple[Mount, ...]
    content_type: str
    server: str
    licence: str
    usual: bool = True


def _one(
    name: str,
    folder: str,
    url: str,
    licence: str,
    *,
    content_type: str = _BARE,
    server: str = "nginx",
    usual: bool = True,
) -> Package:
    return Package(name, (Mount(folder, url),), content_type, server, licence, usual)


def _llvm(version: str) -> tuple[Package, Package]:
    """The documents of LLVM and of Clang: near copies from one version to the next."""
    major = version.partition(".")[0]
    licence = "The LLVM project; Apache License 2.0 with LLVM exceptions"
    site = f"https://releases.llvm.org/{version}"
    return (
        _one(
            f"llvm-{major}-doc",
            f"usr/share/doc/llvm-{major}-doc/html",
            f"{site}/docs/",
            licence,
            content_type=_UTF8,
        ),
        _one(
            f"clang-{major}-doc",
            f"usr/share/doc/clang-{major}/html",
            f"{site}/tools/clang/docs/",
            licence,
            content_type=_UTF8,
        ),
    )


def _boost(version: str) -> Package:
    return _one(
        f"libboost{version}-doc",
        f"usr/share/doc/libboost{version}-doc/doc",
        f"https://www.boost.org/doc/libs/{version.replace('.', '_')}_0/doc/",
        "The Boost authors; Boost Software License 1.0",
        server="Apache",
    )


_HANDBOOK: Final = "usr/share/doc/debian-handbook/html"

PACKAGES: Final = (
    _one(
        "apache2-doc",
        "usr/share/doc/apache2-doc/manual",
        "https://httpd.apache.org/docs/2.4/",
        "The Apache Software Foundation; Apache License 2.0",
        server="Apache",
    ),
    _one(
        "postgresql-doc-15",
        "usr/share/doc/postgresql-doc-15/html",
        "https://www.postgresql.org/docs/15/",
        "The PostgreSQL Global Development Group; PostgreSQL License",
        content_type=_UTF8,
    ),
    _one(
        "sqlite3-doc",
        "usr/share/doc/sqlite3",
        "https://www.sqlite.org/",
        "dedicated to the public domain",
        content_type=_UTF8,
        server="althttpd",
    ),
    _one(
        "python3.11-doc",
        "usr/share/doc/python3.11/html",
        "https://docs.python.org/3.11/",
        "The Python Software Foundation; PSF License Agreement",
        content_type=_UTF8,
    ),
    Package(
        "debian-handbook",
        (
            # The site has English without a language in the path, as these pages' own canonical
            # links say.
            Mount(f"{_HANDBOOK}/en-US", "https://debian-handbook.info/browse/stable/"),
            Mount(f"{_HANDBOOK}/*", "https://debian-handbook.info/browse/*/stable/"),
        ),
        _UTF8,
        "Apache",
        "Raphaël Hertzog and Roland Mas; GPL-2+ or CC-BY-SA-3.0",
    ),
    _one(
        "cppreference-doc-en-html",
        # The wiki has the same paths without ".html"; the links of these pages have it.
        "usr/share/cppreference/doc/html/en",
        "https://en.cppreference.com/w/",
        "The authors of cppreference.com; CC-BY-SA-3.0 or GFDL-1.3",
        content_type=_UTF8,
    ),
    _boost("1.74"),
    _boost("1.81"),
    *_llvm("13.0.1"),
    *_llvm("14.0.0"),
    *_llvm("15.0.0"),
    *_llvm("16.0.0"),
    _one(
        "installation-guide-amd64",
        "usr/share/doc/installation-guide-amd64/*",
        "https://d-i.debian.org/manual/*.amd64/",
        "The Debian Installer team; GPL-2+",
        server="Apache",
    ),
    _one(
        "linux-doc-6.1",
        "usr/share/doc/linux-doc-6.1/html",
        "https://www.kernel.org/doc/html/v6.1/",
        "The authors of Linux; GPL-2",
        content_type=_UTF8,
        usual=False,
    ),
    _one(
        "openjdk-17-doc",
        "usr/share/doc/openjdk-17-jre-headless/api",
        "https://docs.oracle.com/en/java/javase/17/docs/api/",
        "Oracle and the OpenJDK project; GPL-2 with Classpath exception",
        content_type=_UTF8,
        server="Oracle",
        usual=False,
    ),
)
"""Every known package, in the order of the manifest."""


def named(names: str | None) -> tuple[Package, ...]:
    """The packages of a comma-separated list; `all` is all of them, None the usual ones.

    `usual` in the list means those. Raises CorpusError for an unknown name.
    """
    if names is None:
        return tuple(one for one in PACKAGES if one.usual)
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    known = {one.name for one in PACKAGES} | {"all", "usual"}
    if unknown := sorted(wanted - known):
        raise CorpusError(
            f"No package {', '.join(unknown)} is known here. "
            f"Known are: {', '.join(one.name for one in PACKAGES)}; and 'all' and 'usual'."
        )
    if not wanted:
        raise CorpusError("--packages names no package: leave it out for the usual ones.")
    return tuple(
        one
        for one in PACKAGES
        if one.name in wanted or "all" in wanted or (one.usual and "usual" in wanted)
    )
