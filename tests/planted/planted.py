"""A planted mistake: a small wrong edit of the source, and the tests that must fail with it.

The simulation's mutants break rules of the protocol and are found by search. These break code that
the simulation does not reach, or only by chance, and each is caught by tests that name it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tests.planted

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests")
FAILED = 1
"""pytest's exit status if tests ran and at least one failed."""


@dataclass(frozen=True)
class Planted:
    """A mistake in one place.

    Attributes:
        name: what it is called on the command line, in kebab case.
        does: what goes wrong, in a sentence.
        file: the source file, from the root.
        old: the text that is replaced; it occurs once in the file.
        new: the mistake.
        tests: the pytest node ids of which at least one must fail with it.
    """

    name: str
    does: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


def in_file(file: str, tests: str) -> Callable[..., Planted]:
    """Makes mistakes in a source file; a test is named with its file unless that is `tests`."""

    def mistake(name: str, does: str, *found_by: str, old: str, new: str) -> Planted:
        nodes = [one if one.startswith("tests/") else f"{tests}::{one}" for one in found_by]
        return Planted(name, does, file, old, new, nodes)

    return mistake


def planted() -> dict[str, Planted]:
    """All mistakes by name; ValueError if two share one."""
    found: dict[str, Planted] = {}
    for module in pkgutil.iter_modules(tests.planted.__path__):
        for one in getattr(importlib.import_module(f"tests.planted.{module.name}"), "PLANTED", ()):
            if one.name in found:
                raise ValueError(f"two planted mistakes are called {one.name!r}")
            found[one.name] = one
    return found


def why_not_applicable(one: Planted) -> str | None:
    """Why the mistake cannot be planted in today's source; None if it can."""
    text = (ROOT / one.file).read_text()
    count = text.count(one.old)
    if count != 1:
        return f"{one.name}: {one.old!r} occurs {count} times in {one.file}; it must occur once"
    for test in one.tests:
        if not (ROOT / test.partition("::")[0]).is_file():
            return f"{one.name}: there is no {test}"
    return None


def copy_project(folder: Path) -> None:
    """Make `folder` a copy of the project in which source may be broken."""
    for entry in sorted(ROOT.iterdir()):
        if entry.name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
            shutil.copytree(entry, folder / entry.name, ignore=ignored)
        elif not entry.name.startswith(".") or entry.name == ".venv":
            (folder / entry.name).symlink_to(entry)


def run_tests(folder: Path, nodes: Sequence[str]) -> tuple[int, str]:
    """Run tests in a copy of the project; pytest's exit status and what it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        # Mistakes are planted in Python, which the native engine would do without.
        "PERCOLA_NATIVE": "0",
    }
    options = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *nodes],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def survives(one: Planted, folder: Path) -> str | None:
    """Why a mistake counts as not caught when planted in a copy; None if its tests fail."""
    file = folder / one.file
    text = file.read_text()
    file.write_text(text.replace(one.old, one.new))
    try:
        status, output = run_tests(folder, one.tests)
    finally:
        file.write_text(text)
    if status == FAILED:
        return None
    lines = output.strip().splitlines()[-3:]
    return f"{one.name}: pytest ended with {status} instead of {FAILED}: {' / '.join(lines)}"
