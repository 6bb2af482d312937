"""A module names its section of the paper, is one idea long, and documents what it offers."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import percola
from tests.tree.files import ROOT, project_texts
from tests.tree.imports import module_of, modules

Tree = Callable[[Mapping[str, str]], Path]

# The section that opens the docstring of a module, or of every module of a package. A part that
# is not named here has no counterpart in the paper.
SECTIONS: Final = {
    "cells": {"2.1"},
    "store": {"2.1", "2.5"},
    "oracle": {"2.3"},
    "coordination": {"2.2", "2.4"},
    "transactions": {"2.2", "2.5"},
    "observers": {"2.4"},
    "gc": {"2.1"},
}

LINES: Final = 800


def missing_sections(root: Path) -> list[str]:
    """Modules whose docstring does not open with their section of the paper."""
    problems = []
    for file, tree in modules(root).items():
        part = module_of(file).removeprefix("percola.").split(".")[0]
        if not file.startswith("src/percola/") or part not in SECTIONS or not tree.body:
            continue
        opening = re.match(r"§(\d+(?:\.\d+)?)", ast.get_docstring(tree) or "")
        if not opening or opening[1] not in SECTIONS[part]:
            expected = " or ".join(f"§{section}" for section in sorted(SECTIONS[part]))
            problems.append(f"{file}: the docstring does not open with {expected}")
    return problems


def long_files(root: Path) -> list[str]:
    """Python files that are long enough to be two ideas."""
    return [
        f"{file} has {lines} lines, more than {LINES}: cut it along a section of the paper"
        for file, text in project_texts(root, ".py")
        if (lines := len(text.splitlines())) > LINES
    ]


def undocumented(module: ModuleType) -> list[str]:
    """Names in the module's `__all__` that lead nowhere or to something without a docstring."""
    problems = []
    for name in module.__all__:
        if not hasattr(module, name):
            problems.append(f"{module.__name__}.{name} does not exist")
            continue
        thing = getattr(module, name)
        text = inspect.getdoc(thing) if not isinstance(thing, type) else thing.__dict__["__doc__"]
        # Dataclasses and named tuples without a docstring are given their signature as one.
        if not text or text.startswith(f"{name}("):
            problems.append(f"{module.__name__}.{name} has no docstring")
    return problems


def test_every_core_module_opens_with_its_section_of_the_paper() -> None:
    problems = missing_sections(ROOT)
    assert not problems, "\n".join(problems)


def test_every_part_with_a_section_exists() -> None:
    parts = {module_of(file).removeprefix("percola.").split(".")[0] for file in modules(ROOT)}
    assert set(SECTIONS) <= parts


def test_no_python_file_is_two_ideas_long() -> None:
    problems = long_files(ROOT)
    assert not problems, "\n".join(problems)


def test_every_public_name_exists_and_is_documented() -> None:
    problems = undocumented(percola)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        '"""Cells, and §2.1 is mentioned later."""',
        '"""§2.4: another section."""',
        '"""§2: too coarse."""',
        '"""§2.10: no such section."""',
    ],
)
def test_the_section_check_sees(tree_of: Tree, text: str) -> None:
    assert missing_sections(tree_of({"src/percola/cells.py": text}))


def test_the_section_check_accepts_packages_and_modules_without_a_section(tree_of: Tree) -> None:
    root = tree_of(
        {
            "src/percola/cells.py": '"""§2.1, figure 5: what a column looks like."""',
            "src/percola/store/__init__.py": "",
            "src/percola/store/lmdb/store.py": '"""§2.5 Batching in one environment."""',
            "src/percola/errors.py": '"""Every error."""',
            "src/webindex/cells.py": '"""Another package\'s cells."""',
        }
    )
    assert missing_sections(root) == []


def test_the_length_check_counts_untracked_files_but_not_ignored_ones(tree_of: Tree) -> None:
    root = tree_of(
        {
            ".gitignore": "build/",
            "build/long.py": "x = 1\n" * 801,
            "src/just.py": "x = 1\n" * 800,
            "scripts/long.py": "x = 1\n" * 801,
        }
    )
    assert [problem.split()[0] for problem in long_files(root)] == ["scripts/long.py"]


def test_the_documentation_check_sees_gaps_and_made_up_docstrings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("sample")
    monkeypatch.setitem(sys.modules, "sample", module)  # dataclasses look there
    source = '''
from dataclasses import dataclass
from typing import NamedTuple
__all__ = ["Missing", "Bare", "Child", "Data", "Pair", "bare", "Good", "good", "constant"]
class Bare: pass
class Child(ValueError): pass
@dataclass
class Data:
    x: int
class Pair(NamedTuple):
    x: int
def bare(): pass
class Good:
    """Documented."""
def good():
    """Documented."""
constant = Good()
'''
    exec(source, module.__dict__)
    assert [problem.split()[0].split(".")[1] for problem in undocumented(module)] == [
        "Missing",
        "Bare",
        "Child",
        "Data",
        "Pair",
        "bare",
    ]
