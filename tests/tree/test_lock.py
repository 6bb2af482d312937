"""requirements.lock pins, by hash, everything that pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tree.files import ROOT

Tree = Callable[[Mapping[str, str]], Path]


def declared(root: Path) -> list[Requirement]:
    """What pyproject.toml asks for: to run, in every extra, to develop and to build."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    lists = [
        project["project"]["dependencies"],
        *project["project"].get("optional-dependencies", {}).values(),
        *project.get("dependency-groups", {}).values(),
        project["build-system"]["requires"],
    ]
    asked = [Requirement(line) for requirements in lists for line in requirements]
    return [one for one in asked if one.name != project["project"]["name"]]


def stale(root: Path) -> list[str]:
    """Where the lock file does not fit pyproject.toml, or pins without a hash."""
    pins: dict[str, list[str]] = {}
    problems = []
    for entry in re.split(r"\n(?=\S)", (root / "requirements.lock").read_text(encoding="utf-8")):
        pin = re.match(r"([\w.-]+)==([^\s;\\]+)", entry)
        if not pin or "--hash=sha256:" not in entry:
            problems.append(f"requirements.lock: no version or no hash: {entry.splitlines()[0]}")
        else:
            pins.setdefault(canonicalize_name(pin[1]), []).append(pin[2])
    for wanted in declared(root):
        versions = pins.get(canonicalize_name(wanted.name), [])
        if not versions or not all(wanted.specifier.contains(version) for version in versions):
            found = ", ".join(versions) or "nothing"
            problems.append(f"pyproject.toml wants {wanted}, requirements.lock has {found}")
    return problems


def test_the_lock_file_pins_everything_that_is_declared() -> None:
    problems = stale(ROOT)
    assert not problems, "\n".join(problems) + "\nRun `make lock`."


PROJECT = """
[build-system]
requires = ["hatchling"]
[project]
name = "percola"
dependencies = ["click>=8", "Can_Ada"]
[project.optional-dependencies]
all = ["percola[x]", "numpy>=2"]
[dependency-groups]
dev = ["pytest>=9"]
"""
LOCK = {
    "hatchling": "1.0",
    "click": "8.1",
    "can-ada": "3.0",
    "numpy": "2.4 ; python_full_version < '3.12'",
    "pytest": "9.0",
}


def lock_of(pins: Mapping[str, str]) -> str:
    return "".join(f"{name}=={pin} \\\n    --hash=sha256:00\n" for name, pin in pins.items())


@pytest.mark.parametrize(
    "pins",
    [
        {name: pin for name, pin in LOCK.items() if name != "hatchling"},
        {name: pin for name, pin in LOCK.items() if name != "can-ada"},
        LOCK | {"numpy": "1.26"},
        LOCK | {"pytest": "8.4"},
    ],
)
def test_the_lock_check_sees_what_is_missing_or_too_old(
    tree_of: Tree, pins: Mapping[str, str]
) -> None:
    root = tree_of({"pyproject.toml": PROJECT, "requirements.lock": lock_of(pins)})
    assert len(stale(root)) == 1


def test_the_lock_check_sees_a_pin_without_a_hash_and_accepts_a_fitting_file(tree_of: Tree) -> None:
    root = tree_of({"pyproject.toml": PROJECT, "requirements.lock": lock_of(LOCK)})
    assert stale(root) == []
    (root / "requirements.lock").write_text(lock_of(LOCK) + "rich==15.0\n", encoding="utf-8")
    assert len(stale(root)) == 1
