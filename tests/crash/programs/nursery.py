"""Starts processes for crash tests: forks of an interpreter that has everything imported.

    test ──start, kill, end──▶ nursery ──fork──▶ child: function(say, *arguments)
    test ◀──said, ended─────── nursery ◀───────── what it says, until it ends or is killed

Each child is a process of its own, which opens its repository itself; only the imports are
shared, so that one costs milliseconds. Argument: the number of the socket to the test. When
that closes, the children are killed and the nursery ends. A child's own end does not depend on
the nursery either: the kernel kills it with its parent, where it can.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def live(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """In the child: run the function; its result, or its traceback, is the last thing said."""
    try:
        result = function(lambda what: pipe.send(("said", what)), *arguments)
        pipe.send(("returned", result))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
        return 1
    return 0


@dataclass
class Child:
    """A process that was started: the test's number for it, its pid, pipe, and deadline."""

    key: int
    pid: int
    pipe: Connection
    deadline: float | None
    seconds: float


class Nursery:
    """The children of one test process."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._children: dict[int, Child] = {}

    def run(self) -> None:
        """Do what the test says until it is gone."""
        try:
            while True:
                pipes = {one.pipe: one for one in self._children.values()}
                dues = [one.deadline for one in self._children.values() if one.deadline]
                due = min(dues, default=None)
                timeout = None if due is None else max(0.0, due - time.monotonic())
                for ready in wait([self._parent, *pipes], timeout):
                    if ready is self._parent:
                        self._obey(*self._parent.recv())
                    else:
                        self._hear(pipes[ready])  # type: ignore[index]
                for late in self._late():
                    self._end_late(late)
        except (EOFError, OSError):
            pass  # The test is gone.
        finally:
            for child in self._children.values():
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)

    def _obey(self, what: str, key: int, *rest: Any) -> None:
        if what == "start":
            self._start(key, *rest)
        elif key in self._children:  # Not if it has ended by itself meanwhile.
            os.kill(self._children[key].pid, rest[0])

    def _start(
        self, key: int, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float
    ) -> None:
        reading, writing = os.pipe()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                die_with_parent(me)
                os.close(reading)
                self._parent.close()
                for other in self._children.values():
                    other.pipe.close()
                with Connection(writing, readable=False) as pipe:
                    code = live(pipe, function, arguments)
            finally:
                os._exit(code)
        os.close(writing)
        pipe = Connection(reading, writable=False)
        self._children[key] = Child(key, pid, pipe, time.monotonic() + seconds, seconds)

    def _hear(self, child: Child) -> None:
        try:
            word, what = child.pipe.recv()
        except (EOFError, OSError):  # It has ended, perhaps in the middle of a word.
            _, status = os.waitpid(child.pid, 0)
            child.pipe.close()
            del self._children[child.key]
            self._parent.send(("ended", child.key, os.waitstatus_to_exitcode(status)))
        else:
            self._parent.send((word, child.key, what))

    def _late(self) -> list[Child]:
        now = time.monotonic()
        return [one for one in self._children.values() if one.deadline and one.deadline < now]

    def _end_late(self, child: Child) -> None:
        story = f"It did not end within {child.seconds:g} s, and was killed."
        self._parent.send(("failed", child.key, story))
        os.kill(child.pid, signal.SIGKILL)
        child.deadline = None


def main(fd: int) -> None:
    die_with_parent(os.getppid())
    # Ctrl-C is for the test, which ends this by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    with Connection(fd) as parent, contextlib.suppress(BrokenPipeError):
        Nursery(parent).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
