"""The programs that the documents show run as they are shown."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from commands import Answer, answer_of, call, run

ROOT = Path(__file__).resolve().parents[2]


def test_the_first_program_of_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    [output] = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (tmp_path / "first.py").write_text(program)
    assert answer_of([sys.executable, "first.py"], cwd=tmp_path) == Answer(0, output, "")

    commands = re.findall(r"`percola (--repo \./first-repo (?:scan|history) [^`]+)`", text)
    assert len(commands) == 2
    for command in commands:
        shown = run(*command.split(), cwd=tmp_path)
        assert shown.code == 0 and "same" in shown.out, shown


def test_the_worker_that_the_readme_shows_runs_the_observer_and_not_the_program(
    tmp_path: Path,
) -> None:
    text = (ROOT / "README.md").read_text()
    (tmp_path / "first.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    [words] = re.findall(r"`percola (--repo \./first-repo worker first:\w+)`", text)

    assert answer_of([sys.executable, "first.py"], cwd=tmp_path).code == 0
    status = ("--repo", tmp_path / "first-repo", "status", "--json")
    before = call(*status).json["last_ts"]
    done = run(*words.split(), "--until-idle", cwd=tmp_path)
    assert (done.code, done.err) == (0, "") and "docs.contents: cluster" in done.out
    assert call(*status).json["last_ts"] == before, "it has written nothing again"
