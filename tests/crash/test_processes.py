"""No process that a crash test starts outlives it, not even if the test itself is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.crash.processes import ROOT, Nursery, environment

TEST = """
import sys, threading
from tests.crash.processes import Nursery, Program
from tests.crash.test_processes import wait_for_ever
nursery = Nursery()
child = nursery.start(wait_for_ever)
while not child.said:
    nursery.hear(60)
print(child.said[0], nursery.pid, flush=True)
threading.Event().wait()
"""


def wait_for_ever(say: Callable[[object], None]) -> None:
    say(os.getpid())
    threading.Event().wait()


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie that nobody has waited for yet."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_nursery_that_is_left_leaves_nobody_behind() -> None:
    with Nursery() as nursery:
        child = nursery.start(wait_for_ever)
        while not child.said:
            assert nursery.hear(60)
        assert is_running(child.said[0])
    assert not is_running(child.said[0])


def test_a_test_that_is_killed_leaves_nobody_behind(wait_until: Callable[..., object]) -> None:
    test = subprocess.Popen(
        [sys.executable, "-c", TEST], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert test.stdout is not None
        pids = [int(pid) for pid in test.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_running, pids))
    finally:
        test.kill()
        test.communicate()
    wait_until(lambda: not any(map(is_running, pids)), what="the end of its processes")


def test_a_child_that_hangs_is_killed_and_has_failed(nursery: Nursery) -> None:
    ended = nursery.run(wait_for_ever, seconds=0.5)
    assert not ended.killed and "did not end within 0.5 s" in ended.failure
