"""The programs of docs/spark.md, run one after the other as they are shown.

A program whose first line is a comment with a file's name is a module that the others import. A
line that ends with a comment such as `# PySpark 4.2 or newer` is left out with an older one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
_NEWER: Final = re.compile(r"# PySpark (\d+)\.(\d+) or newer$")


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python programs of a page, each with the number of its first line."""
    return [
        (page[: found.start(1)].count("\n") + 1, found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    ]


def run_page(
    folder: Path,
    java_home: Path,
    python: str | Path = sys.executable,
    version: str = "",
    end: str = "",
) -> str:
    """Run them all in one process in the folder; returns what they print.

    Args:
        python: the interpreter.
        version: that of its PySpark, if it is not the one that the page is written for.
        end: a program to run after those of the page, in the same session.
    """
    page = PAGE.read_text()
    found = blocks(page)
    assert found and len(found) == page.count("```python\n")
    # Each keeps its line, so that a traceback points into the page.
    lines = [""] * page.count("\n")
    for first, text in found:
        if module := re.match(r"# (\w+\.py)\n", text):
            (folder / module[1]).write_text(text)
            continue
        for at, line in enumerate(text.splitlines()):
            lines[first - 1 + at] = line if _has(line, version) else ""
    program = folder / "spark.py.md"
    program.write_text("\n".join([*lines, end, "session.__exit__(None, None, None)\n"]))
    environment = {**os.environ, "JAVA_HOME": str(java_home)}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, program], cwd=folder, env=environment, capture_output=True, text=True, timeout=880
    )
    assert done.returncode == 0, done.stderr
    assert "|-- row: string" in done.stdout
    return done.stdout


def _has(line: str, version: str) -> bool:
    newer = _NEWER.search(line)
    return not (newer and version) or [*map(int, version.split(".")[:2])] >= [
        *map(int, newer.groups())
    ]
