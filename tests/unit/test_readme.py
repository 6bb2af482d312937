"""The programs that the documents show run as they are shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_first_program_of_the_readme_runs_as_shown(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = tmp_path / "first.py"
    program.write_text(blocks[0])
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert (done.returncode, done.stderr) == (0, "")
    # Two texts, so two groups; which of a.org and b.org came first is a matter of chance.
    urls = sorted(line.split()[0] for line in done.stdout.splitlines())
    assert urls in (["a.org", "c.org"], ["b.org", "c.org"])

    shown = subprocess.run(
        [sys.executable, "-m", "percola.cli", "--repo", "first-repo", "scan", "docs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert shown.returncode == 0, shown.stderr
    assert all(url in shown.stdout for url in ("a.org", "b.org", "c.org"))
