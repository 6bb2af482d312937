"""A run that is ended early has said what had failed by then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stores import DEADLINE, in_thread

ROOT = Path(__file__).resolve().parents[2]

_TESTS = """
def test_fails():
    assert 1 == 2, "two are not one"

def test_hangs():
    with open("gate", "rb", buffering=0) as gate:
        gate.read(1)
"""


@pytest.mark.long
def test_a_failure_is_told_before_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(_TESTS)
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-n", "1",
         "--rootdir", tmp_path, "-c", os.devnull, "test_some.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/tests:{ROOT}/tests/support"},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert run.stdout is not None
        lines = iter(run.stdout)
        told = in_thread(lambda: next((one for one in lines if "two are not one" in one), ""))
        said = told.result(3 * DEADLINE)
        assert run.poll() is None, "the other test waits"
        os.write(gate, b".")  # Stays in the pipe if the other test has not come to it yet.
        assert run.wait(3 * DEADLINE) == pytest.ExitCode.TESTS_FAILED
    finally:
        run.kill()
        run.wait()
        os.close(gate)
    assert "test_some.py::test_fails, call" in said
