"""The programs of docs/spark.md run as they are shown, one after the other.

A program whose first line is a comment with a file's name is a module that the others import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "spark.md"


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python programs of a page, each with the number of its first line."""
    return [
        (page[: found.start(1)].count("\n") + 1, found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    ]


@pytest.mark.timeout(900)  # One session, in which everything on the page is done.
def test_the_programs_on_the_page_run_in_order(tmp_path: Path, java_home: Path) -> None:
    page = PAGE.read_text()
    found = blocks(page)
    assert found and len(found) == page.count("```python\n")
    # Each keeps its line, so that a traceback points into the page.
    lines = [""] * page.count("\n")
    for first, text in found:
        if module := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / module[1]).write_text(text)
            continue
        for at, line in enumerate(text.splitlines()):
            lines[first - 1 + at] = line
    program = tmp_path / "spark.py.md"
    program.write_text("\n".join(lines) + "\n\nsession.__exit__(None, None, None)\n")
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env={**os.environ, "JAVA_HOME": str(java_home)},
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stderr
    assert "|-- row: string" in done.stdout
