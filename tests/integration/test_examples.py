"""The examples run as their READMEs say, and print what these show."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import answer_of
from needs import lack, need

from benchmarks import postgres as peers
from benchmarks.tpch import GENERATOR

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(page.parent.name for page in (ROOT / "examples").glob("*/README.md"))
ON_SPARK = {"catalogue", "tpch"}


def steps(page: str) -> Iterator[tuple[str, str | None]]:
    """The commands of a page, block by block, and the output that it shows below them, if any."""
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert {kind for kind, _ in fences} <= {"sh", "text"}
    for number, (kind, text) in enumerate(fences):
        after = fences[number + 1] if number + 1 < len(fences) else ("", "")
        if kind == "sh":
            yield text, after[1] if after[0] == "text" else None
        else:
            assert fences[number - 1][0] == "sh", "an output without commands"


def run_page(example: str, folder: Path, environment: dict[str, str]) -> int:
    """Run an example's commands in a copy of its folder; returns how many outputs it compared."""
    shutil.copytree(ROOT / "examples" / example, folder)
    compared = 0
    for commands, shown in steps((folder / "README.md").read_text(encoding="utf-8")):
        done = answer_of(["bash", "-euc", commands], cwd=folder, seconds=840, **environment)
        assert done.code == 0, f"{commands}\n{done.out}\n{done.err}"
        if shown is not None:
            assert done.out == shown, commands
            compared += 1
    return compared


def environment() -> dict[str, str]:
    """With the commands of the Python that runs the tests."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("example", [one for one in EXAMPLES if one not in ON_SPARK])
def test_the_example_prints_what_its_readme_shows(example: str, tmp_path: Path) -> None:
    assert run_page(example, tmp_path / example, environment()) >= 2


def said(folder: Path, *commands: str) -> str:
    """What the last of some commands prints in an example's folder."""
    done = answer_of(["bash", "-euc", "\n".join(commands)], cwd=folder, **environment())
    assert done.code == 0, done
    return done.out


def test_the_search_engine_finds_words_with_its_own_signs_in_them(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ROOT / "examples" / "search", tmp_path / "search"))
    found = said(
        folder,
        """python write.py n1 Garden 'It rains in "Baden-Baden".'""",
        "percola --repo ./notebook worker notes:export --until-idle >worker.log",
        """python find.py baden-baden '"rains' """,
    )
    assert found.endswith("\n1 found\n")


def test_the_catalogue_says_that_a_category_has_no_products(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ROOT / "examples" / "catalogue", tmp_path / "catalogue"))
    begin = "percola --repo ./shop init --schema catalogue:SCHEMA >/dev/null"
    assert said(folder, begin, "python show.py toys") == "toys: no products\n"


@pytest.mark.long
@pytest.mark.timeout(900)  # Three Spark sessions, one after the other.
@pytest.mark.parametrize("example", sorted(ON_SPARK))
def test_the_example_on_spark_prints_what_its_readme_shows(
    example: str, tmp_path: Path, java_home: Path
) -> None:
    with_java = environment() | {"JAVA_HOME": str(java_home)}
    if example == "tpch":
        need("index")
        try:
            generator = peers.environment("tpch", [GENERATOR]).parent
        except peers.PeerError as error:
            lack("index", str(error))
        with_java["PATH"] += f"{os.pathsep}{generator}"
    assert run_page(example, tmp_path / example, with_java) >= 4


def test_the_overview_lists_every_example() -> None:
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((\w+)/README\.md\)", page)) == EXAMPLES
    assert len(EXAMPLES) >= 5
