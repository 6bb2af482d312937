"""The development cluster's processes by id: only those, all of those, and none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from children import Child, hear, say

from percola.devcluster import pids
from percola.devcluster.pids import ProcessId
from percola.devcluster.servers import Processes
from percola.devcluster.settings import Layout

WaitUntil = Callable[..., Any]
IDLE = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts idle processes of a cluster in a folder; ends them with the test."""
    started = []

    def make(folder: Path | None = None, name: str = "x") -> subprocess.Popen[bytes]:
        marks = [] if folder is None else pids.marks(folder, name)
        started.append(subprocess.Popen([*IDLE, *marks]))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait()


Start = Callable[..., subprocess.Popen[bytes]]


def test_a_process_is_known_until_it_ends(start: Start) -> None:
    child = start()
    process = ProcessId.of(child.pid)
    assert process is not None
    assert process == ProcessId.of(child.pid)
    assert process.runs and not process.stopped and process.resident > 0
    assert not process.wait(0.01)
    assert process.signal(signal.SIGKILL)
    assert process.wait(10)
    # It has not been waited for, so that its id is still taken.
    assert not process.runs and process.resident == 0
    assert ProcessId.of(child.pid) is None
    assert not process.signal(signal.SIGKILL)


def test_a_process_with_the_id_of_another_is_left_alone(tmp_path: Path, start: Start) -> None:
    child = start()
    process = ProcessId.of(child.pid)
    assert process is not None
    earlier = ProcessId(process.pid, process.began - 1)
    assert not earlier.runs
    assert not earlier.signal(signal.SIGKILL)
    assert earlier.wait(0)
    pids.note(tmp_path, "master", earlier)
    assert pids.noted(tmp_path, "master") is None
    pids.end_all(tmp_path)
    assert process.runs


@pytest.mark.parametrize("text", ["", "12", "x y", "1 2 3"])
def test_a_torn_note_is_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "pids" / "master").write_text(text)
    assert pids.noted(tmp_path, "master") is None
    assert pids.running(tmp_path) == {}


def test_every_process_of_the_folder_is_ended_and_of_no_other(tmp_path: Path, start: Start) -> None:
    here, there = tmp_path / "here", tmp_path / "here-too"
    noted, unnoted, other = start(), start(here, "master"), start(there, "master")
    process = ProcessId.of(noted.pid)
    assert process is not None
    pids.note(here, "zookeeper", process)
    found = pids.running(here)
    assert {name: one.pid for name, one in found.items()} == {
        "zookeeper": noted.pid,
        "master": unnoted.pid,
    }
    pids.end_all(here)
    assert noted.wait(10) == unnoted.wait(10) == -signal.SIGKILL
    assert other.poll() is None
    assert list((here / "pids").iterdir()) == []


def hold(pipe: Any, folder: Path) -> None:
    """A program with a guard and a process that nobody noted; it ends when it is killed."""
    Processes(folder, Layout(1, 1, 21_000)).start_guard()
    child = subprocess.Popen([*IDLE, *pids.marks(folder, "master")])
    say(pipe, child.pid)
    hear(pipe)


def test_a_guard_ends_what_a_killed_program_started(tmp_path: Path, wait_until: WaitUntil) -> None:
    with Child(hold, tmp_path) as child:
        left = ProcessId.of(child.hear())
        guard = pids.noted(tmp_path, pids.GUARD)
        assert left is not None and guard is not None
        child.kill()
        wait_until(lambda: not left.runs, what="the end of the process that was left")
        wait_until(lambda: not guard.runs, what="the end of the guard")
        assert list((tmp_path / "pids").iterdir()) == []


def test_a_guard_does_not_end_with_its_programs_signals(tmp_path: Path) -> None:
    processes = Processes(tmp_path, Layout(1, 1, 21_000))
    processes.start_guard()
    guard = pids.noted(tmp_path, pids.GUARD)
    try:
        assert guard is not None
        for number in (signal.SIGINT, signal.SIGHUP):
            assert guard.signal(number)
        assert not guard.wait(0.2)
        assert os.getsid(guard.pid) == guard.pid
    finally:
        processes.end_guard()
    assert not guard.runs
    assert list((tmp_path / "pids").iterdir()) == []
