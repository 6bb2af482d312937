"""The programs that the documents show run as they are shown."""

from __future__ import annotations

import json
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


def test_the_worker_that_the_readme_shows_runs_the_observer_and_not_the_program(
    tmp_path: Path,
) -> None:
    text = (ROOT / "README.md").read_text()
    program = tmp_path / "first.py"
    program.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    [words] = re.findall(r"`percola (--repo \./first-repo worker first:\w+)`", text)

    def percola(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "percola.cli", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=180,
        )

    subprocess.run([sys.executable, program.name], cwd=tmp_path, check=True, timeout=180)
    before = json.loads(percola("--repo", "first-repo", "status", "--json").stdout)["last_ts"]
    done = percola(*words.split(), "--until-idle")
    assert (done.returncode, done.stderr) == (0, "") and "docs.contents: cluster" in done.stdout
    after = json.loads(percola("--repo", "first-repo", "status", "--json").stdout)["last_ts"]
    assert after == before, "it has written nothing again"
