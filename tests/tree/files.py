"""The files of the project: those that Git has or would take."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def project_files(root: Path, suffix: str = "") -> list[Path]:
    """Every file below `root` that Git tracks or would add, in order, as absolute paths."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard", "--deduplicate"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = sorted(name for name in listing.split("\0") if name.endswith(suffix))
    # A file that was deleted but not yet from the index is still listed.
    return [root / name for name in names if name and (root / name).is_file()]


def project_texts(root: Path, suffix: str = "") -> Iterator[tuple[str, str]]:
    """The path below `root` and the text of every file that is one."""
    for path in project_files(root, suffix):
        try:
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
