"""The programs and commands of docs/guide.md run as they are shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide.md"


def test_the_programs_and_then_the_commands_of_the_guide_run_as_shown(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    # Each block keeps its line, so that a traceback points into the page.
    lines = [""] * page.count("\n")
    for found in re.finditer(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        first = page[: found.start(1)].count("\n")
        block = found[1].splitlines()
        lines[first : first + len(block)] = block
    (tmp_path / "guide.py.md").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "guide.py.md"], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "balance 5\nfollows:bob 1\nname Ann\n" in done.stdout
    assert re.search(r"^a\.org \d+ .*title.* A$", done.stdout, re.MULTILINE)

    commands = [
        line.partition("#")[0].split()
        for block in re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    assert [words[3] for words in commands] == ["gc", "check", "backup", "restore", "copy"]
    # The page copies to servers; here the target is another folder.
    commands[-1][-1] = "./copied"
    for words in commands:
        words[0:3] = [words[0], words[1], words[2].replace("R", "./repo")]
        done = subprocess.run(
            [sys.executable, "-m", "percola.cli", *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, (words, done.stderr)
