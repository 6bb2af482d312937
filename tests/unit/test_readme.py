"""The programs that the documents show run as they are shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def percola(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "percola.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_the_first_program_of_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    [output] = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (tmp_path / "first.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", output)

    commands = re.findall(r"`percola (--repo \./first-repo (?:scan|history) [^`]+)`", text)
    assert len(commands) == 2
    for command in commands:
        shown = percola(tmp_path, *command.split())
        assert shown.returncode == 0, shown.stderr
        assert "same" in shown.stdout


def test_the_worker_that_the_readme_shows_runs_the_observer_and_not_the_program(
    tmp_path: Path,
) -> None:
    text = (ROOT / "README.md").read_text()
    program = tmp_path / "first.py"
    program.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    [words] = re.findall(r"`percola (--repo \./first-repo worker first:\w+)`", text)

    subprocess.run([sys.executable, program.name], cwd=tmp_path, check=True, timeout=180)
    before = json.loads(percola(tmp_path, "--repo", "first-repo", "status", "--json").stdout)[
        "last_ts"
    ]
    done = percola(tmp_path, *words.split(), "--until-idle")
    assert (done.returncode, done.stderr) == (0, "") and "docs.contents: cluster" in done.stdout
    after = json.loads(percola(tmp_path, "--repo", "first-repo", "status", "--json").stdout)[
        "last_ts"
    ]
    assert after == before, "it has written nothing again"
