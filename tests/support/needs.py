"""What some tests need that not every machine has, and the end of a run that lacks it.

    make test                              fails if anything could not run, and says what and why
    make test WITHOUT="hbase kerberos"     leaves these out on purpose: then that is no failure

In CI nothing is optional: a test that cannot run fails.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any, Final, NoReturn

import pytest

NEEDS: Final = {
    "bigtable": "Google's emulator of Bigtable",
    "browser": "Chromium and its driver",
    "hbase": "the jars of HBase",
    "index": "a package index, for other versions of PySpark and the tools that read deploy/",
    "java": "Java 17 or later, for Spark and ZooKeeper",
    "javac": "a Java compiler, for the catalog's jar",
    "kafka": "the jars of a Kafka broker, and of Spark's connector to it",
    "kerberos": "the jars of a Kerberos server, and those of HBase",
    "opensearch": "the distribution of OpenSearch",
    "networks": "root, to make networks and cut them",
    "root": "root, to act as other users and to mount small disks",
    "rust": "Rust, to build the native engine of the store on LMDB",
    "systemd": "systemd-analyze, to read unit files",
}
"""By the names that WITHOUT takes."""

LATE: Final = "late"
"""Why a long test did not run, beside the needs: `--long-within` was over."""

_left_out: frozenset[str] = frozenset()


def leave_out(names: str) -> None:
    """Begin a run without these needs, which stand with blanks between them.

    Raises pytest.UsageError for a name that is none.
    """
    global _left_out
    asked = frozenset(names.split())
    if wrong := sorted(asked - NEEDS.keys()):
        raise pytest.UsageError(
            f"There is no {', '.join(map(repr, wrong))} to leave out: WITHOUT takes "
            f"{', '.join(NEEDS)}."
        )
    _left_out = asked


def need(name: str) -> None:
    """Skip the test if this need is left out; to be called before it is looked for."""
    assert name in NEEDS
    if name in _left_out:
        pytest.skip(f"{name}: left out")


def lack(name: str, why: str) -> NoReturn:
    """Skip the test, because this need cannot be met; the run fails. In CI the test fails."""
    need(name)
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(f"{name}: {why.strip()}")


class NotRun:
    """Counts the tests that were skipped, tells of them at the end, and fails a run for them."""

    def __init__(self, left_out: str) -> None:
        self._left_out = left_out.split()
        self._skipped: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        reason = " ".join(reason.removeprefix("Skipped: ").split())
        name, _, why = reason.partition(": ")
        known = name in NEEDS or name == LATE
        self._skipped[(name, why) if known else ("", f"{report.nodeid}: {reason}")] += 1

    def _unasked(self) -> list[str]:
        return sorted({name for name, _ in self._skipped} - {*self._left_out, LATE})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unasked() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._skipped:
            return
        unasked = self._unasked()
        terminalreporter.section("tests that did not run", "=", red=bool(unasked))
        for (name, why), number in sorted(self._skipped.items()):
            terminalreporter.line(f"{number:5} {name:9} {why}", red=name in unasked)
        if unasked:
            named = " ".join(one for one in [*self._left_out, *unasked] if one)
            hint = f': make test WITHOUT="{named}" runs the others.' if named else "."
            terminalreporter.line(f"So this run has failed{hint}", red=True)


class LongTests:
    """Counts the tests marked `long` that were deselected and reports the number at the end.

    With `--long-within` it leaves out those that would begin later, so that a slow machine gets
    through all other tests within the time that CI has.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._number = 0
        self._minutes: float | None = config.getoption("--long-within")
        self._start = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._minutes is None or item.get_closest_marker("long") is None:
            return
        if time.monotonic() - self._start >= 60 * self._minutes:
            pytest.skip(f"{LATE}: long tests that would have begun after {self._minutes:g} minutes")

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._number += sum(item.get_closest_marker("long") is not None for item in items)

    def pytest_sessionfinish(self) -> None:
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output["long"] = self._number

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # Each worker collects, and deselects, all tests.
        self._number = max(self._number, getattr(node, "workeroutput", {}).get("long", 0))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._number:
            terminalreporter.ensure_newline()
            tests = "test" if self._number == 1 else "tests"
            terminalreporter.line(f"{self._number} long {tests} not run: make test-all runs them")
