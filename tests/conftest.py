"""What every test may use, and the lines that open and close a run."""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import effort
import hypothesis
import needs
import pytest
import spark_classes

from percola.devcluster import jars

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
INTEGRATION = "tests/integration/"
SPARK = INTEGRATION + "test_spark_"
JAVA_WITHIN = INTEGRATION + "test_store_hbase"
TOGETHER = (SPARK, INTEGRATION, JAVA_WITHIN)
T = TypeVar("T")

BUSY = 3
"""How much longer things may take beside other tests."""

GRACE = 120
"""Seconds that a test which took too long may take to clean up."""

# Processes that live for minutes: what compiles well and collects garbage beside takes longer. The
# classes are those of releases; to verify them takes a tenth of the processor time of a start.
_SHORT_LIVED_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_JAVA_OPTIONS = (
    "PERCOLA_HBASE_JVM_OPTIONS",
    "PERCOLA_HBASE_SERVER_JVM_OPTIONS",
    "SPARK_SUBMIT_OPTS",  # Of every driver.
)

# No deadline for an example: how long one takes on a busy machine says nothing about the code.
hypothesis.settings.register_profile("percola", deadline=None)
if not os.environ.get("CI"):  # there Hypothesis has a profile of its own, with a fixed seed
    hypothesis.settings.load_profile("percola")


@functools.cache
def _java(question: str) -> str:
    answer = subprocess.run(
        [SCRIPTS / "java.sh", question], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()


class AtOnce:
    """A line for each failure when it happens: of a run that is ended early there is no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(crash.message if crash else report.longrepr).strip().split("\n")[0][:300]
            terminal.ensure_newline()
            terminal.write_line(
                f"{report.nodeid}, {report.when}, {report.duration:.0f} s: {said}", red=True
            )


class NoTestHangs:
    """Ends a process of tests that hangs, with the stack of every thread.

    pytest-timeout interrupts a test once. If the test then hangs again, in what it does to clean
    up, nothing would ever end it; pytest-xdist reports a process that has ended, and goes on.
    """

    def __init__(self) -> None:
        self._stderr = os.dup(2)  # Not what a test's output is captured in.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        own = item.get_closest_marker("timeout")
        if seconds := float(own.args[0] if own else item.config.getini("timeout") or 0):
            faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without",
        default=os.environ.get("WITHOUT", ""),
        metavar="NAMES",
        help=f"leave out tests that need one of these: {', '.join(needs.NEEDS)}",
    )
    parser.addoption(
        "--long-within",
        type=float,
        default=os.environ.get("LONG_WITHIN"),
        metavar="MINUTES",
        help="leave out long tests that would begin later than this after the start",
    )


def pytest_configure(config: pytest.Config) -> None:
    without = config.getoption("--without")
    needs.leave_out(without)
    effort.be_short(config.getoption("markexpr"))
    config.addinivalue_line("markers", "long: runs in `make test-all`, not in `make test`")
    config.pluginmanager.register(needs.LongTests(config))
    config.pluginmanager.register(NoTestHangs())
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.pluginmanager.register(AtOnce(config))
        config.pluginmanager.register(needs.NotRun(without))
    # A shell that is not interactive has its background jobs ignore SIGINT, and what they start
    # inherits that. Tests send it. The process that only distributes them may go on ignoring it.
    runs_tests = is_worker or not config.getoption("numprocesses", None)
    if runs_tests and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Spark takes its Java from here; one of 17 or later need not be the first on PATH.
    java = _java("describe")
    if java:
        os.environ["JAVA_HOME"] = java.partition(" in ")[2]
    for options in _JAVA_OPTIONS:
        os.environ.setdefault(options, _SHORT_LIVED_JAVA)
    archive = spark_classes.options(java)
    if archive not in os.environ["SPARK_SUBMIT_OPTS"]:  # A worker inherits them.
        os.environ["SPARK_SUBMIT_OPTS"] += f" {archive}"


def scope_of(root: Path, nodeid: str) -> str:
    """What a test stays together with: its file, or all files that share a session or Java."""
    file = nodeid.partition("::")[0]
    if file.startswith(JAVA_WITHIN):
        return JAVA_WITHIN
    if not file.startswith(INTEGRATION) or not _shares_session(root / file):
        return file
    return SPARK if file.startswith(SPARK) else INTEGRATION


@functools.cache
def _shares_session(file: Path) -> bool:
    """Whether tests of a file are given Spark's session, or claim on servers what such ones do."""
    text = file.read_text()
    return "spark: SparkSession" in text or ("test_spark_" in file.name and "borrow(" in text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where long tests that would begin late are left out, begin those last that take the longest.

    A minute with servers is that of a hundred other long tests. Of files with servers those begin
    first that may take the longest: otherwise all would wait for them in the end.
    """
    if config.getoption("--long-within") is None:
        return
    allowed: dict[str, float] = {}
    for item in items:
        if mark := item.get_closest_marker("timeout"):
            scope = scope_of(config.rootpath, item.nodeid)
            allowed[scope] = max(allowed.get(scope, 0), mark.args[0])

    def turn(item: pytest.Item) -> tuple[int, float]:
        scope = scope_of(config.rootpath, item.nodeid)
        if scope in TOGETHER:
            return 0, 0
        return (2, -allowed.get(scope, 0)) if scope.startswith(INTEGRATION) else (1, 0)

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A few processes (`make test`). What shares Spark's session stays together: it starts slowly.

    Percola's own tests on Spark are one piece, the index's the other. The store on HBase has a JVM
    in its process: one process runs nothing else, and mostly waits. All the rest goes by files to
    whichever process is free.
    """
    from xdist.scheduler import LoadScopeScheduling

    class FilesAndSessions(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(config.rootpath, nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            had = self.assigned_work[node]
            if self.numnodes > 1 and (
                JAVA_WITHIN in had or (had and {*self.workqueue} == {JAVA_WITHIN})
            ):
                node.shutdown()
                return
            if JAVA_WITHIN in self.workqueue:
                self.workqueue.move_to_end(JAVA_WITHIN, last=bool(had))
            super()._assign_work_unit(node)

        def remove_node(self, node: Any) -> Any:
            # pytest-xdist would give the test that ended its process to the next one as well.
            left = [
                (unit, test)
                for unit in self.assigned_work[node].values()
                for test, done in unit.items()
                if not done
            ]
            if not left:
                return super().remove_node(node)
            unit, test = left[0]
            unit[test] = True
            if len(left) > 1:
                super().remove_node(node)
            else:
                del self.assigned_work[node]
            return test

    return FilesAndSessions(config, log)


def pytest_report_header() -> list[str]:
    return [
        _java("describe") or "Java: none of version 17 or later. The tests on it do not run.",
        _found("Bigtable's emulator", SCRIPTS / "bigtable_emulator.sh", "find"),
        _found("HBase", jars.SCRIPT, "find", "server"),
    ]


def _found(what: str, script: Path, *asked: str) -> str:
    answer = subprocess.run(["bash", script, *asked], capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return f"{what}: {answer.stdout.strip()}"
    why = answer.stderr.strip() or f"{what} is not here: `make setup` fetches it where it can."
    return f"{why} The tests on it do not run."


@pytest.fixture(scope="session")
def java_home() -> Path:
    """The folder of a Java runtime; whatever starts Spark asks for this first."""
    needs.need("java")
    home = _java("home")
    if not home:
        needs.lack(
            "java",
            "This test needs a Java runtime of version 17 or later: `make setup` installs one or "
            "says how to get one.",
        )
    return Path(home)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., object]:
    """`wait_until(condition, seconds=30, what="…")`: the condition's first true answer.

    Fails when the time is up: three times what is said, which is for a machine with nothing else
    to do. It looks every few milliseconds and so replaces every sleep.
    """

    def wait(condition: Callable[[], T], *, seconds: float = 30, what: str = "") -> T:
        deadline = time.monotonic() + BUSY * seconds
        pause = threading.Event()
        while not (answer := condition()):
            if time.monotonic() > deadline:
                what_for = what or getattr(condition, "__name__", "the condition")
                pytest.fail(f"waited {BUSY * seconds:g} s in vain for {what_for}")
            pause.wait(0.005)
        return answer

    return wait
