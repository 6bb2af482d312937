"""Finds the available versions of a package, and gets their .deb files.

A version comes from the folder of packages downloaded before (the cache) or from `apt-get
download`, which needs no rights and installs nothing. Without apt, .deb files that were put into
the cache by hand are used. Versions that apt no longer offers stay usable while they are cached.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cmp_to_key
from itertools import zip_longest
from pathlib import Path
from typing import Final
from urllib.parse import unquote

__all__ = ["Apt", "UnavailableError", "compare_versions"]

LONGEST_DOWNLOAD: Final = 900.0
"""Seconds that apt may take for one package."""

_FILE = re.compile(r"([^_]+)_([^_]+)_[^_]+\.deb")
_RUNS = re.compile(r"([^0-9]*)([0-9]*)")


class UnavailableError(Exception):
    """A package, or one version of it, is not available; the message gives the reason."""


class Apt:
    """The packages available on this machine, and a cache of downloaded ones."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        cache.mkdir(parents=True, exist_ok=True)
        self._offered: dict[str, list[str]] = {}
        self.trouble: str | None = None
        """Why apt cannot be used here, with what to do; None if it can."""

    def look_up(self, names: Iterable[str]) -> None:
        """Ask apt once for the versions of all these packages."""
        if shutil.which("apt-cache") is None or shutil.which("apt-get") is None:
            self.trouble = (
                "There is no apt-get here. Run this on Debian or a system derived from it, or put "
                f"the packages' .deb files into {self._cache} and try again."
            )
            return
        done = _run(["apt-cache", "madison", *names])
        for line in done.stdout.splitlines():
            name, *rest = (part.strip() for part in line.split("|"))
            # Source packages are listed too, with "Sources" at the end of the last column.
            if len(rest) >= 2 and rest[0] and not rest[1].endswith("Sources"):
                self._offered.setdefault(name, []).append(rest[0])
        if not self._offered:
            self.trouble = (
                "apt knows none of the packages. Run 'apt-get update' (as root), with the main "
                "section of a Debian release among apt's sources, and try again."
            )

    def versions(self, name: str) -> list[str]:
        """The versions of a package, newest first, those in the cache among them."""
        cached = [version for other, version in map(_parts, self._files()) if other == name]
        found = {*self._offered.get(name, ()), *cached}
        return sorted(found, key=cmp_to_key(compare_versions), reverse=True)

    def get(self, name: str, version: str) -> Path:
        """The .deb file of a version, from the cache or else by apt.

        Raises UnavailableError.
        """
        for file in self._files():
            if _parts(file) == (name, version):
                return file
        if self.trouble is not None:
            raise UnavailableError(self.trouble)
        with tempfile.TemporaryDirectory(dir=self._cache, prefix=".getting-") as folder:
            try:
                done = _run(
                    ["apt-get", "download", "--quiet=2", f"{name}={version}"],
                    folder=folder,
                    seconds=LONGEST_DOWNLOAD,
                )
            except subprocess.TimeoutExpired:
                raise UnavailableError(
                    f"apt-get did not end within {LONGEST_DOWNLOAD:.0f} seconds"
                ) from None
            files = list(Path(folder).glob("*.deb"))
            if done.returncode or len(files) != 1:
                raise UnavailableError(_reason(done))
            # Our own name, so that cached files are found whatever apt calls them.
            shown = version.replace(":", "%3a")
            return files[0].rename(self._cache / f"{name}_{shown}_{_architecture(files[0])}.deb")

    def _files(self) -> list[Path]:
        return sorted(file for file in self._cache.glob("*.deb") if _FILE.fullmatch(file.name))


def _run(
    command: list[str], *, folder: str | None = None, seconds: float = 120.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """The error of apt in one line: its first error message, without addresses."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
    if not lines:
        return f"apt-get ended with exit code {done.returncode} and no package"
    return re.sub(r"\S+://\S+", "(address)", lines[0].removeprefix("E:")).strip()


def _parts(file: Path) -> tuple[str, str]:
    match = _FILE.fullmatch(file.name)
    assert match is not None
    return match[1], unquote(match[2])


def _architecture(file: Path) -> str:
    return file.stem.rpartition("_")[2]


def compare_versions(one: str, other: str) -> int:
    """Compare two Debian versions: below, equal to or above zero (Debian Policy §5.6.12)."""
    for left, right in zip(_split(one), _split(other), strict=True):
        if left != right and (order := _compare_part(left, right)):
            return order
    return 0


def _split(version: str) -> tuple[str, str, str]:
    """Epoch, upstream version and Debian revision."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    return (epoch, upstream, revision) if dash else (epoch, rest, "0")


def _compare_part(one: str, other: str) -> int:
    pairs = zip_longest(_RUNS.findall(one), _RUNS.findall(other), fillvalue=("", ""))
    for (word, number), (other_word, other_number) in pairs:
        left, right = [_weight(c) for c in word], [_weight(c) for c in other_word]
        # The end of a word sorts like a digit: after a tilde, before everything else.
        for a, b in zip_longest(left, right, fillvalue=0):
            if a != b:
                return -1 if a < b else 1
        if (difference := int(number or 0) - int(other_number or 0)) != 0:
            return -1 if difference < 0 else 1
    return 0


def _weight(character: str) -> int:
    """A tilde sorts before the end, letters come before everything else that is no digit."""
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256
