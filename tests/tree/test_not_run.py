"""A run that could not do everything says what, and fails unless it was asked for less."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from needs import NEEDS

from tests.tree.files import ROOT

SECONDS: Final = 180

_LACKS: Final = """
from needs import lack, need

def test_passes():
    pass

def test_on_hbase():
    need("hbase")
    lack("hbase", "There is no Maven here.")
"""
_SKIPS: Final = """
import pytest

def test_a():
    pytest.skip("no time")

@pytest.mark.skip("no wish")
def test_b():
    pass

@pytest.mark.xfail
def test_c():
    assert False
"""
_SKIPPED: Final = "import pytest\npytest.skip('no use', allow_module_level=True)\n"
_INTERRUPTS: Final = """
import signal, subprocess, sys

PROGRAM = "import sys; print('on', flush=True); sys.stdin.read()"

def test_ctrl_c_reaches_a_process_of_the_test():
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"on\\n"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT

def test_ctrl_c_reaches_the_test():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return
    raise AssertionError
"""

_LONG: Final = """
import pytest

@pytest.mark.long
@pytest.mark.parametrize("number", [1, 2])
def test_long(number):
    assert False

def test_short():
    pass
"""

_HANGS: Final = """
import threading

import conftest

conftest.GRACE = 1

def test_hangs():
    lock = threading.Lock()
    lock.acquire()
    try:
        lock.acquire()
    finally:
        lock.acquire()

def test_passes():
    pass
"""

BOTH: Final = pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="one process"),
        pytest.param(("-n", "1"), id="several processes", marks=pytest.mark.long),
    ],
)


def run(
    folder: Path, text: str, *options: str, ignored: bool = False, **variables: str
) -> tuple[int, list[str]]:
    """Run a file of tests as this project's are run; the exit status and the lines printed."""
    (folder / "test_some.py").write_text(text)
    own = ("CI", "WITHOUT", "LONG_WITHIN")
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    # A shell ignores the signal, since Python code between fork and exec would run gRPC's handlers
    # of forks, which may abort the child where tests before have used gRPC in this process.
    ignoring = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh") if ignored else ()
    done = subprocess.run(
        [*ignoring, sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider",
         "--rootdir", folder, "-c", os.devnull, *options, "test_some.py"],
        cwd=folder,
        env={**inherited, "PYTHONPATH": f"{ROOT}/tests:{ROOT}/tests/support", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip
    lines = (done.stdout + done.stderr).splitlines()
    return done.returncode, [line for line in lines if line.strip()]


@BOTH
def test_a_run_that_lacks_something_fails_and_says_what_and_why(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    status, lines = run(tmp_path, _LACKS, *options)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"1 passed, 1 skipped in ", lines[-1]), "pytest's own line is the last"
    assert lines[-3].split() == ["1", "hbase", *["There", "is", "no", "Maven", "here."]]
    assert lines[-2] == 'So this run has failed: make test WITHOUT="hbase" runs the others.'


@pytest.mark.long
def test_what_the_caller_leaves_out_is_no_failure(tmp_path: Path) -> None:
    for options, variables in ((("--without", "kerberos hbase"), {}), ((), {"WITHOUT": "hbase"})):
        status, lines = run(tmp_path, _LACKS, *options, **variables)
        assert status == pytest.ExitCode.OK
        assert lines[-2].split() == ["1", "hbase", "left", "out"]


def test_what_is_left_out_excuses_nothing_else(tmp_path: Path) -> None:
    status, lines = run(tmp_path, _LACKS, "-n", "1", "--without", "bigtable")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert 'WITHOUT="bigtable hbase"' in lines[-2]


def test_in_ci_a_test_that_cannot_run_fails(tmp_path: Path) -> None:
    status, lines = run(tmp_path, _LACKS, CI="true")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"1 failed, 1 passed in ", lines[-1])


@BOTH
def test_no_skip_of_another_kind_hides(tmp_path: Path, options: tuple[str, ...]) -> None:
    everything = ("--without", " ".join(NEEDS))
    status, lines = run(tmp_path, _SKIPS, *options, *everything)
    assert status == pytest.ExitCode.TESTS_FAILED
    told = [line for line in lines if line.split()[0] == "1" and "test_some.py" in line]
    assert [line.partition(": ")[2] for line in told] == ["no time", "no wish"], "not what xfails"
    status, lines = run(tmp_path, _SKIPPED, *options, *everything)
    assert status != pytest.ExitCode.OK
    assert any(line.endswith("test_some.py: no use") for line in lines)


@pytest.mark.long
@BOTH
def test_long_tests_that_are_deselected_are_counted(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    status, lines = run(tmp_path, _LONG, *options, "-m", "not long")
    assert status == pytest.ExitCode.OK
    assert lines[-2] == "2 long tests not run: make test-all runs them"
    status, lines = run(tmp_path, _LONG, *options)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert not any("not run" in line for line in lines)


@pytest.mark.long
@BOTH
def test_long_tests_that_would_begin_late_are_left_out_and_named(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    status, lines = run(tmp_path, _LONG, *options, "--long-within", "0")
    assert status == pytest.ExitCode.OK
    assert re.search(r"1 passed, 2 skipped in ", lines[-1])
    assert lines[-2].split()[:5] == ["2", "late", "long", "tests", "that"]
    status, lines = run(tmp_path, _LONG, *options, "--long-within", "60")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"2 failed, 1 passed in ", lines[-1])


def test_where_long_tests_are_left_out_those_with_servers_begin_last(tmp_path: Path) -> None:
    files = {
        "integration/test_oracle_a.py": "def test_it():\n    pass\n",
        "integration/test_oracle_b.py": "@pytest.mark.timeout(900)\ndef test_it():\n    pass\n",
        "integration/test_spark_a.py": "def test_it(spark: SparkSession):\n    pass\n",
        "unit/test_a.py": "def test_it():\n    pass\n",
    }
    for name, text in files.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"from __future__ import annotations\nimport pytest\nSparkSession = object\n{text}"
        )
    names = list(files)
    for options, order in (([], [0, 1, 2, 3]), (["--long-within", "40"], [2, 3, 1, 0])):
        _, lines = run(tmp_path, "", "--collect-only", "-q", *options, "tests")
        found = [line.partition("::")[0] for line in lines if line.endswith("::test_it")]
        assert found == [f"tests/{names[at]}" for at in order], lines


@pytest.mark.long
def test_a_name_that_stands_for_nothing_is_refused(tmp_path: Path) -> None:
    status, lines = run(tmp_path, _LACKS, "--without", "hbse")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert any("no 'hbse' to leave out" in line and "kerberos" in line for line in lines)


def test_every_name_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [listed] = re.findall(r'^test: .*WITHOUT="([a-z ]+)"', makefile, re.MULTILINE)
    assert listed.split() == [*NEEDS]
    table = re.findall(
        r"^\| `([a-z]+)` \| ", (ROOT / "tests" / "README.md").read_text(), re.MULTILINE
    )
    assert table == [*NEEDS]
    assert "make test-all WITHOUT= ||" in (ROOT / ".ci" / "run").read_text(), (
        "CI leaves nothing out"
    )


@pytest.mark.long
@BOTH
def test_ctrl_c_arrives_where_the_run_was_started_with_sigint_ignored(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    status, lines = run(tmp_path, _INTERRUPTS, *options, ignored=True)
    assert status == pytest.ExitCode.OK, lines


@pytest.mark.long
def test_a_test_that_hangs_as_it_cleans_up_fails_and_the_others_run(tmp_path: Path) -> None:
    status, lines = run(tmp_path, _HANGS, "-n", "1", "-o", "timeout=1")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert any("in test_hangs" in line for line in lines), "the stack of every thread"
    assert any("1 failed, 1 passed in " in line for line in lines), lines
