"""The program of docs/recipes.md runs and prints what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"


def test_the_program_of_the_page_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "page.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert (done.returncode, done.stderr) == (0, "")
    (shown,) = re.findall(r"^It prints:\n\n```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert done.stdout == shown
