"""docs/walkthrough.md is a notebook that runs as shown."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from commands import answer_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 580


def notebook(text: str) -> tuple[str, dict[str, str]]:
    """The page's Python in its order, and the modules that it tells its reader to save.

    A block whose first line is a comment with a file's name is such a module.
    """
    cells: list[str] = []
    saved: dict[str, str] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if named := re.match(r"# (\w+\.py)\n", block):
            saved[named[1]] = block
        else:
            cells.append(block)
    return "\n".join(cells), saved


@pytest.mark.long
def test_the_walkthrough_runs_as_it_is_written(tmp_path: Path, java_home: Path) -> None:
    program, modules = notebook((ROOT / "docs" / "walkthrough.md").read_text())
    assert program.count("assert ") == 4 and list(modules) == ["shop.py"]
    for name, text in {"notebook.py": program, **modules}.items():
        (tmp_path / name).write_text(text)
    # Run by the path of its Python, as a timer does: the environment is not activated.
    variables = {"PATH": os.defpath, "JAVA_HOME": str(java_home)}
    line = [sys.executable, "notebook.py"]
    done = answer_of(line, cwd=tmp_path, seconds=SECONDS, **variables)
    assert done.code == 0, done.err
    output = done.out
    assert re.search(r"^worker 0: working on \S+, process \d+; ", output, re.MULTILINE)
    # c001 has nine orders of a price as before, and one with a higher price.
    euros = sum(number % 90 + 10 for number in range(1, 4_000, 400)) - 11 + 1_000
    assert re.search(rf"\|\s*c001\|\s*{euros}\|\s*10\|", output)
    assert re.search(r"\|\s*c777\|\s*17\|\s*2\|", output)
    assert "c777 has spent 12\n" in output
    assert re.search(r"\|c003\s*\|554\s*\|10\s*\|\[[^|]*spent\]\s*\|\d+\s*\|", output)
