"""Programs and commands of the README, docs/guide.md and docs/recipes.md run as they are shown."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from commands import answer_of, call, run

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str) -> list[re.Match[str]]:
    """The blocks of a page in a language."""
    return list(re.finditer(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))


def output_of(folder: Path, name: str) -> str:
    """What a program in a folder prints; it must print no error."""
    answer = answer_of([sys.executable, name], cwd=folder)
    assert (answer.code, answer.err) == (0, "")
    return answer.out


def test_the_first_program_of_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    [program], [output] = blocks(text, "python"), blocks(text, "text")
    (tmp_path / "first.py").write_text(program[1])
    assert output_of(tmp_path, "first.py") == output[1]

    commands = re.findall(r"`percola (--repo \./first-repo (?:scan|history) [^`]+)`", text)
    assert len(commands) == 2
    for command in commands:
        shown = run(*command.split(), cwd=tmp_path)
        assert shown.code == 0 and "same" in shown.out, shown


def test_the_readmes_worker_runs_the_observer_and_not_the_program(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (tmp_path / "first.py").write_text(blocks(text, "python")[0][1])
    [words] = re.findall(r"`percola (--repo \./first-repo worker first:\w+)`", text)

    output_of(tmp_path, "first.py")
    status = ("--repo", tmp_path / "first-repo", "status", "--json")
    before = call(*status).json["last_ts"]
    done = run(*words.split(), "--until-idle", cwd=tmp_path)
    assert (done.code, done.err) == (0, "") and "docs.contents: cluster" in done.out
    assert call(*status).json["last_ts"] == before, "it has written nothing again"


def test_the_programs_and_then_the_commands_of_the_guide_run_as_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    # Each block keeps its line, so that a traceback points into the page.
    lines = [""] * page.count("\n")
    for found in blocks(page, "python"):
        first = page[: found.start(1)].count("\n")
        block = found[1].splitlines()
        lines[first : first + len(block)] = block
    (tmp_path / "guide.py.md").write_text("\n".join(lines))
    out = output_of(tmp_path, "guide.py.md")
    assert "balance 5\nfollows:bob 1\nname Ann\n" in out
    assert re.search(r"^a\.org \d+ .*title.* A$", out, re.MULTILINE)

    shown = "".join(block[1] for block in blocks(page, "sh"))
    commands = [line.partition("#")[0].split() for line in shown.splitlines()]
    assert [words[3] for words in commands] == ["gc", "check", "backup", "restore", "copy"]
    # The page copies to servers; here the target is another folder.
    commands[-1][-1] = "./copied"
    for _, option, repo, *words in commands:
        answer = run(option, repo.replace("R", "./repo"), *words, cwd=tmp_path)
        assert answer.code == 0, (words, answer)


def test_the_program_of_the_page_on_recipes_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    program = "\n".join(block[1] for block in blocks(page, "python"))
    (tmp_path / "page.py").write_text(program)
    (shown,) = re.findall(r"^It prints:\n\n```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert output_of(tmp_path, "page.py") == shown
