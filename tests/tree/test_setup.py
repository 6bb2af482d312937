"""`make` tells what it can do, and set-up says in a sentence what it cannot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree.files import ROOT


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def fake_java(home: Path, release: str) -> str:
    settings = f"    java.home = {home}\n    java.version = {release}.0.1\n"
    program(
        home / "bin" / "java",
        f"cat >&2 <<'END'\n{settings}    java.specification.version = {release}\nEND",
    )
    return str(home)


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    status, listed, _ = run("make")
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert status == 0
    assert targets
    for target in set(targets[1].split()) - {"help", "venv"}:
        assert re.search(rf"^make {target} +\S.* \S", listed, re.MULTILINE), target


@pytest.mark.parametrize(
    "module",
    sorted(
        {*re.findall(r"python -m (tests[\w.]*|benchmarks)", (ROOT / "Makefile").read_text("utf-8"))}
    ),
)
def test_what_make_starts_finds_its_modules_without_the_paths_of_pytest(module: str) -> None:
    """A program that is a package is its `__main__`."""
    program = f"""
import importlib, importlib.util
found = importlib.util.find_spec("{module}")
main = ".__main__" if found.submodule_search_locations else ""
importlib.import_module("{module}" + main)
"""
    status, _, said = run(sys.executable, "-c", program, PYTHONPATH="")
    assert (status, said) == (0, "")


@pytest.mark.parametrize("wrong", ["absent", "too old"])
def test_setup_refuses_a_python_it_cannot_use_and_leaves_no_venv(
    tmp_path: Path, wrong: str
) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python3"
    if wrong == "too old":
        program(python, "echo 3.10; exit 1")
    status, _, said = run(tmp_path / "scripts" / "install.sh", folder=tmp_path, PYTHON=str(python))
    assert status == 1
    assert said.startswith(f"setup: PYTHON={python} is not a Python 3.11 or later that runs")
    assert said.count("\n") == 1
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("release", ["17", "25"])
def test_java_home_is_taken_first_when_it_is_recent_enough(tmp_path: Path, release: str) -> None:
    home = fake_java(tmp_path, release)
    answer = run(ROOT / "scripts" / "java.sh", "describe", JAVA_HOME=home)
    assert answer == (0, f"Java {release}.0.1 in {home}\n", "")


@pytest.mark.parametrize("release", ["1.8", "11", "16"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, release: str) -> None:
    home = fake_java(tmp_path, release)
    _, found, _ = run(ROOT / "scripts" / "java.sh", "home", JAVA_HOME=home)
    assert found.strip() != home
