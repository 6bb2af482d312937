"""Debian packages made by hand, as `dpkg-deb` would make them, and an apt that serves them."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

SQLITE = "usr/share/doc/sqlite3"
POSTGRESQL = "usr/share/doc/postgresql-doc-15/html"
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")

APT_CACHE = """#!/bin/sh
cat {offers}
"""

# Serves what lies in its folder; "apt-get download --quiet=2 name=version".
APT_GET = """#!/bin/sh
for wanted; do :; done
name=${{wanted%%=*}}
version=${{wanted#*=}}
file={folder}/${{name}}_${{version}}_all.deb
if [ -e "$file" ]; then cp "$file" .; exit 0; fi
echo "E: Version '$version' for '$name' was not found" >&2
exit 100
"""


def link(target: str) -> tuple[str, str]:
    """A symbolic link, among the files of a package."""
    return ("symlink", target)


def hard_link(target: str) -> tuple[str, str]:
    """A second name of a file that came before."""
    return ("hard link", target)


def tar(files: Mapping[str, bytes | tuple[str, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            if isinstance(content, tuple):
                kind, target = content
                member.type = tarfile.SYMTYPE if kind == "symlink" else tarfile.LNKTYPE
                member.linkname = target if kind == "symlink" else f"./{target}"
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def ar(members: Mapping[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return out


def deb(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | tuple[str, str]],
    *,
    packed: str = "xz",
) -> Path:
    """Write a package with these files into a folder."""
    pack = {"xz": lzma.compress, "gz": gzip.compress}[packed]
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": gzip.compress(tar({"control": b"Package: x\n"})),
        f"data.tar.{packed}": pack(tar(files)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}_{version.replace(':', '%3a')}_all.deb"
    file.write_bytes(ar(members))
    return file


def fake_apt(folder: Path, offers: str, debs: Path) -> str:
    """Programs that answer like apt; returns a PATH that finds them before all others."""
    folder.mkdir()
    (folder / "offers").write_text(offers)
    for name, script in (("apt-cache", APT_CACHE), ("apt-get", APT_GET)):
        (folder / name).write_text(script.format(offers=folder / "offers", folder=debs))
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def prose(topic: str, sentences: int = 6) -> bytes:
    """A page with running text that has no like, a link, and a generator's date."""
    paragraphs = "".join(
        f"<p>Chapter {topic} explains in part {n} how the {topic} {number} store keeps every "
        f"written value until readers of item {topic}-{n} have finished with it.</p>"
        for n, number in enumerate(NUMBERS[:sentences])
    )
    return (
        f"<!doctype html><html><head><title>{topic}</title></head><body>{paragraphs}"
        f'<a href="index.html">up</a></body></html>'
    ).encode()


def two_packages(folder: Path) -> Path:
    """SQLite's documents in one version, PostgreSQL's in two: what changes there is below."""
    sqlite = {f"{SQLITE}/s{n}.html": prose(f"sqlite{n}") for n in range(60)}
    deb(folder, "sqlite3-doc", "3.40-1", {f"{SQLITE}/index.html": prose("sqlite"), **sqlite})
    old: dict[str, bytes | tuple[str, str]] = {
        f"{POSTGRESQL}/p{n}.html": prose(f"postgresql{n}") for n in range(30)
    }
    new = {
        **old,
        # A date that changes with every build, a text that changed, a page that is new.
        f"{POSTGRESQL}/p1.html": prose("postgresql1") + b"<!-- built on Tuesday -->",
        f"{POSTGRESQL}/p2.html": prose("postgresql2", sentences=8),
        f"{POSTGRESQL}/new.html": prose("brandnew"),
    }
    old[f"{POSTGRESQL}/old.html"] = prose("outdated")
    old[f"{POSTGRESQL}/alias.html"] = new[f"{POSTGRESQL}/alias.html"] = link("p3.html")
    deb(folder, "postgresql-doc-15", "15.9-1", old)
    deb(folder, "postgresql-doc-15", "15.10-1", new)
    return folder


def quiet(what: str, done: int, of: int) -> None:
    """Nobody looks at the progress."""


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a corpus that was built."""
    return {one.name: one.read_bytes() for one in folder.glob("*.warc.gz")}
