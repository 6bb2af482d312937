"""What CI tries a second time, and what it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tree.files import ROOT

PASSES = "def test_one() -> None:\n    assert True\n"
FAILS = "def test_one() -> None:\n    assert not True\n"


def tried_again(
    folder: Path, tests: dict[str, str], *, outcomes: Sequence[str] = ("failure",), more: int = 0
) -> tuple[int, list[str]]:
    """The exit status and the lines of `.ci/alone` after a run in which these tests failed.

    Args:
        outcomes: the entries of each of them in the report.
        more: how many others the report says to have failed.
    """
    for path, text in tests.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    cache = folder / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({f"{path}::test_one": True for path in tests}))
    report = folder / "tests.xml"
    modules = [*tests, *(f"tests/unit/test_more_{n}.py" for n in range(more))]
    cases = [
        f'<testcase classname="{module}" name="test_one"><{outcome}/></testcase>'
        for module in modules
        for outcome in outcomes
    ]
    cases.append('<testcase classname="tests/unit/test_passed.py" name="test_one"/>')
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "alone", report],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def integration(*texts: str) -> dict[str, str]:
    return {f"tests/integration/test_{n}.py": text for n, text in enumerate(texts)}


@pytest.mark.parametrize("outcomes", [("failure",), ("error",), ("failure", "error")])
def test_a_test_that_passes_alone_is_named(tmp_path: Path, outcomes: Sequence[str]) -> None:
    tests = integration(PASSES) | {"tests/unit/test_1.py": PASSES}
    status, lines = tried_again(tmp_path, tests, outcomes=outcomes)
    assert status == 0
    assert [one.split(": ")[-1] for one in lines[-2:]] == [
        "tests/integration/test_0.py::test_one",
        "tests/unit/test_1.py::test_one",
    ]


@pytest.mark.parametrize(
    "tests",
    [
        integration(PASSES, FAILS),
        integration(PASSES, PASSES, PASSES, PASSES),
        integration(PASSES) | {"tests/simulation/test_one.py": PASSES},
        {},
    ],
    ids=["fails alone too", "four of them", "a simulation", "none"],
)
def test_any_other_failure_is_final(tmp_path: Path, tests: dict[str, str]) -> None:
    status, _ = tried_again(tmp_path, tests)
    assert status == 1


def test_a_run_that_says_more_than_its_failed_tests_is_final(tmp_path: Path) -> None:
    status, _ = tried_again(tmp_path, integration(PASSES), more=1)
    assert status == 1
