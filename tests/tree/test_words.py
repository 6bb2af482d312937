"""Nothing ties the project to one registry, tracker or machine; words are the field's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.tree.files import ROOT, project_texts

Tree = Callable[[Mapping[str, str]], Path]

# A bracket in each keeps this file from matching itself.
REGISTRY_HOSTS: Final = (
    r"ana[c]onda\.org",
    r"archive\.ubunt[u]\.com",
    r"crate[s]\.io",
    r"deb\.debia[n]\.org",
    r"mave[n]\.org",
    r"maven\.apach[e]\.org",
    r"npm[j]s\.",
    r"nu[g]et\.org",
    r"proxy\.golan[g]\.org",
    r"py[p]i\.org",
    r"python[h]osted\.org",
    r"ruby[g]ems\.org",
    r"security\.debia[n]\.org",
    r"sum\.golan[g]\.org",
    r"yarn[p]kg\.com",
)

FORBIDDEN: Final = {
    "a registry's host": "|".join(REGISTRY_HOSTS),
    "a reference to a tracker": (
        r"\b(?:issues?|bugs?|pr|pull request|gh|tickets?|close[sd]?|fix(?:es|ed)?|resolve[sd]?)"
        r"[\s-]?#\s?\d"
    ),
    "a folder of one machine": r"(?<![\w.])/wor[k]/(?:main|shared|\.\w)",
}

# Words of this project alone, each with the term that the field uses.
PRIVATE: Final = {
    r"set(?:s|ting)?[ _-]asid[e]": "dead-lettered",
    r"\bpatienc[e]\b": "timeout",
    r"\bimpatien[t]\b": "force",
}

SLEEP: Final = r"\btime\.sle[e]p\b|\bfrom time import\b.*\bsle[e]p\b|\basyncio\.sle[e]p\b"

# Others' words, shipped as they are. In its lock file, cargo calls every index by one name,
# whatever mirror it uses.
NOT_OURS: Final = ("LICENSE", "native/Cargo.lock", "src/webindex/sample/licences/")


def forbidden_words(root: Path) -> list[str]:
    """Lines of the project's texts that tie it to something outside."""
    return [
        f"{file}:{number}: {found[0]!r} is {what}"
        for file, text in project_texts(root)
        if not file.startswith(NOT_OURS)
        for what, pattern in FORBIDDEN.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if (found := re.search(pattern, line, re.IGNORECASE))
    ]


def private_words(root: Path) -> list[str]:
    """Uses of a private word where the field has a term."""
    return [
        f"{file}:{number}: {found[0]!r}: write {term!r}"
        for file, text in project_texts(root)
        if not file.startswith((*NOT_OURS, "CHANGELOG.md"))
        for pattern, term in PRIVATE.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if (found := re.search(pattern, line, re.IGNORECASE))
    ]


def sleeps(root: Path) -> list[str]:
    """Tests that wait for luck, also in the programs that they start."""
    return [
        f"{file}:{number}: wait for the thing instead, with a deadline: {line.strip()}"
        for file, text in project_texts(root, ".py")
        if file.startswith("tests/")
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(SLEEP, line)
    ]


def test_no_file_names_a_registry_a_tracker_or_a_machine() -> None:
    problems = forbidden_words(ROOT)
    assert not problems, "\n".join(problems)


def test_words_are_the_fields() -> None:
    problems = private_words(ROOT)
    assert not problems, "\n".join(problems)


def test_no_test_sleeps() -> None:
    problems = sleeps(ROOT)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "line",
    [
        *(f"https://x.{re.sub(r'[^a-z.]', '', host)}/simple" for host in REGISTRY_HOSTS),
        *(words.format("#") for words in ("as in issue {}2", "Fixes {}31", "see GH-{}4", "bug{}5")),
        *(f"cd /{'work'}/{folder}" for folder in ("main", "shared/notes", ".library")),
    ],
)
def test_the_words_check_sees(tree_of: Tree, line: str) -> None:
    problems = forbidden_words(tree_of({"docs/guide.md": f"first\n{line}\n", "LICENSE": line}))
    assert [problem.split(": ")[0] for problem in problems] == ["docs/guide.md:2"]


def test_the_words_check_accepts_ordinary_sentences(tree_of: Tree) -> None:
    text = f"An issue with pip: #1 in a list. /work done. https://example.org/{'work'}/main #fff"
    assert forbidden_words(tree_of({"docs/guide.md": text})) == []


@pytest.mark.parametrize(
    "line",
    [
        "time.{}(1)",
        "from time import monotonic, {}",
        "run('import time; time.{}(60)')",
        "await asyncio.{}(0.1)",
    ],
)
def test_the_sleep_check_sees(tree_of: Tree, line: str) -> None:
    line = line.format("sleep")
    root = tree_of({"tests/unit/test_x.py": f"x = 1\n{line}\n", "src/percola/clock.py": line})
    assert [problem.split(": ")[0] for problem in sleeps(root)] == ["tests/unit/test_x.py:2"]
