"""A run that is ended early has said what had failed by then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stores import DEADLINE, in_thread

ROOT = Path(__file__).resolve().parents[2]

_TESTS = """
def test_fails():
    assert 1 == 2, "two are not one"

def test_hangs():
    with open("never") as pipe:
        pipe.read()
"""


def test_a_failure_is_told_before_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(_TESTS)
    os.mkfifo(tmp_path / "never")
    never = os.open(tmp_path / "never", os.O_RDWR)
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-n", "1",
         "--rootdir", tmp_path, "-c", os.devnull, "test_some.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
        text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        lines = iter(run.stdout)
        told = in_thread(lambda: next((one for one in lines if "two are not one" in one), ""))
        try:
            said = told.result(DEADLINE)
            assert run.poll() is None, "the other test waits"
        finally:
            os.close(never)  # Lets the other test, and so the run, end.
            run.communicate()
    assert "test_some.py::test_fails, call" in said
