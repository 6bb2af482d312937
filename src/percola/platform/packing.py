"""A packed Python environment: an archive with which Spark's executors need no installation.

    bin/python                           starts the machine's Python of the same version
    lib/python3.11/site-packages/…       Percola, and the packages that it and others need

Spark unpacks it on every executor (`--archives environment.tar.gz#environment`). The archive has no
interpreter, which would have to fit each machine's C library; `bin/python` finds one on the PATH
there. It has no PySpark either: executors have that of their Spark, which must be the driver's.

An environment may be moved: nothing in it names its folder. What is packed is what is installed:
versions are those of this environment, and packages in editable mode are packed as they are now.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from percola.errors import PercolaError

EXTRAS: Final = (
    "bigtable",
    "hbase",
    "opensearch",
    "oracle",
    "otel",
    "spark",
    "webindex",
    "zookeeper",
)
"""The extras whose packages tasks may need."""
OF_SPARK: Final = frozenset({"pyspark", "pyspark-client", "pyspark-connect", "py4j"})
"""Packages that executors have from Spark."""

_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_OF_EXTRA: Final = re.compile(r"""\bextra\s*==\s*['"]([^'"]+)['"]""")
_VERSION: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"
_LEVEL: Final = 4
_SCRIPT: Final = """\
#!/bin/sh
# Python {version} with the packages of this folder. Made by 'percola pack-env'.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
export PYTHONNOUSERSITE=1
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/lib/python{version}/site-packages"
for python in {candidates}; do
    # A name on the PATH may be a stub for a version that is not installed: only running it tells.
    if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != ({numbers}))' 2>/dev/null; then
        exec "$python" "$@"
    fi
done
echo "$0 needs Python {version}, and this machine has none: looked for {candidates}." >&2
exit 127
"""


class PackError(PercolaError):
    """The environment cannot be packed."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What has been packed.

    Attributes:
        file: the archive.
        packages: names and versions.
        files: how many.
        size: of the archive, in bytes.
    """

    file: Path
    packages: dict[str, str]
    files: int
    size: int


def pack(
    file: Path,
    packages: Iterable[str] = (),
    python: str | None = None,
    *,
    extras: Sequence[str] = EXTRAS,
) -> Packed:
    """Write an archive with Percola and further installed packages, and what they require.

    Args:
        file: the archive, a `.tar.gz`; replaced if it exists.
        packages: further packages by their names in pip.
        python: the interpreter on the executors' machines; by default the first on their PATH that
            has this interpreter's version.
        extras: the extras of Percola whose packages are packed, where they are installed.

    Raises PackError.
    """
    if not file.name.endswith((".tar.gz", ".tgz")):
        raise PackError(
            f"The archive {str(file)!r} must be called .tar.gz, by which Spark recognises it."
        )
    if not file.parent.is_dir():
        raise PackError(f"There is no folder {str(file.parent)!r} for the archive.")
    needed = _needed([f"percola[{','.join(extras)}]", *packages])
    contents: dict[str, Path] = {}
    for one in needed.values():
        contents.update(_files(one))
    try:
        _write(file, contents, _script(python))
        size = file.stat().st_size
    except OSError as error:
        raise PackError(f"The archive could not be written: {error}.") from error
    versions = {name: one.version for name, one in sorted(needed.items())}
    return Packed(file, versions, len(contents), size)


def _script(python: str | None) -> bytes:
    candidates = [python] if python else [f"python{_VERSION}", "python3", "python"]
    if any(re.search(r"[^\w./+-]", one) for one in candidates):
        raise PackError(f"{python!r} is no path of an interpreter.")
    return _SCRIPT.format(
        version=_VERSION,
        numbers=f"{sys.version_info[0]}, {sys.version_info[1]}",
        candidates=" ".join(candidates),
    ).encode()


# --- Which packages -----------------------------------------------------------------------


def _needed(wanted: Iterable[str]) -> dict[str, Distribution]:
    """Packages and what of their requirements is installed, by normalised name."""
    found: dict[str, Distribution] = {}
    waiting = [_parsed(one) for one in wanted]
    seen: set[tuple[str, str]] = set()
    for name, _ in waiting:
        if name not in OF_SPARK:
            found[name] = _installed(name)
    while waiting:
        name, extras = waiting.pop()
        try:
            one = distribution(name)
        except PackageNotFoundError:
            # Of another platform or Python, or of an extra that is not installed.
            continue
        if name not in OF_SPARK:
            found[name] = one
        for extra in ("", *extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in one.requires or ():
                of = _OF_EXTRA.findall(text)
                if (extra in map(_normal, of)) if of else not extra:
                    waiting.append(_parsed(text))
    return found


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise PackError(
            f"The package {name} is not installed in the environment of {sys.executable}."
        ) from None


def _parsed(requirement: str) -> tuple[str, tuple[str, ...]]:
    """The normalised name and the extras of a requirement, without versions and markers."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        raise PackError(f"{requirement!r} is no name of a package.")
    extras = tuple(_normal(one) for one in (match[2] or "").split(",") if one.strip())
    return _normal(match[1]), extras


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


# --- Which files --------------------------------------------------------------------------


def _files(one: Distribution) -> Iterator[tuple[str, Path]]:
    """A package's files by their place in site-packages."""
    name = one.metadata["Name"]
    if one.files is None:
        raise PackError(
            f"The package {name} was installed without a list of its files: install it with pip."
        )
    editable = _is_editable(one)
    for entry in one.files:
        place = entry.as_posix()
        path = Path(str(one.locate_file(entry)))
        if place.startswith(("..", "/")) or _is_cache(path) or not path.is_file():
            continue  # Commands, and what Python makes anew.
        if editable and path.suffix in (".pth", ".py") and "/" not in place:
            yield from _tree(name, path)
        else:
            yield place, path


def _is_editable(one: Distribution) -> bool:
    try:
        url = json.loads(one.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return bool(url.get("dir_info", {}).get("editable"))


def _tree(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    """The sources that a `.pth` file of a package in editable mode leads to."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.suffix == ".pth" else ():
        folder = Path(line.strip())
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(("import ", "import\t")) or not folder.is_dir():
            raise PackError(
                f"The package {name} is installed in editable mode, in a way that cannot be "
                "packed: install it without --editable."
            )
        for found in sorted(folder.rglob("*")):
            if found.is_file() and not _is_cache(found):
                yield found.relative_to(folder).as_posix(), found


def _is_cache(path: Path) -> bool:
    return "__pycache__" in path.parts or path.suffix == ".pyc"


# --- The archive --------------------------------------------------------------------------


def _write(file: Path, contents: dict[str, Path], script: bytes) -> None:
    """Write the archive beside `file`, then rename it."""
    number, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with (
            os.fdopen(number, "wb") as output,
            tarfile.open(fileobj=output, mode="w:gz", compresslevel=_LEVEL) as archive,
        ):
            entry = tarfile.TarInfo("bin/python")
            entry.size, entry.mode = len(script), 0o755
            archive.addfile(entry, io.BytesIO(script))
            for place, path in sorted(contents.items()):
                entry = archive.gettarinfo(path, f"lib/python{_VERSION}/site-packages/{place}")
                if not entry.isreg():
                    # A link, perhaps to another file of a cache that uv links to: its contents.
                    entry.type, entry.linkname = tarfile.REGTYPE, ""
                    entry.size = path.stat().st_size
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                entry.mode = 0o755 if entry.mode & 0o100 else 0o644
                with path.open("rb") as source:
                    archive.addfile(entry, source)
        # mkstemp's are private; the archive is to be read by who submits it.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
