"""Processes that crash tests start, and that never outlive them.

A `Nursery` runs functions in fresh processes, quickly (`programs/nursery.py`); a `Program` is a
program of `programs/` with an interpreter and an environment of its own. Whatever ends the test
ends them: leaving the `with` block kills them; should the test itself be killed, its end of the
pipe closes, and they end by themselves.
"""

from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Self

DEADLINE = 240.0
"""Seconds that a process may take for what has to happen."""

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"


def environment(**more: str) -> dict[str, str]:
    """What a child needs to find the same modules as its parent."""
    path = [str(ROOT), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **more}


_IN_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for repositories, in memory where there is room: many are made, and killed."""
    roomy = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _ROOM
    where = _IN_MEMORY if roomy and os.access(_IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="percola-crash-", dir=where) as folder:
        yield Path(folder).resolve()


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said before.

    Attributes:
        status: its exit status; minus the signal that killed it.
        said: what it said, in order.
        result: what its function returned, if it did.
        failure: the traceback of what it raised, if it did.
    """

    status: int
    said: list[Any]
    result: Any = None
    failure: str = ""

    @property
    def killed(self) -> bool:
        """Whether it ended by kill -9."""
        return self.status == -signal.SIGKILL and not self.failure


class Child:
    """A process that a nursery has started: what is known of it by now."""

    def __init__(self, nursery: Nursery, key: int, name: str) -> None:
        self._nursery, self._key, self._name = nursery, key, name
        self.said: list[Any] = []
        self.result: Any = None
        self.failures: list[str] = []
        self.status: int | None = None

    def take(self, word: str, what: Any) -> None:
        """Take what the nursery tells of it."""
        if word == "said":
            self.said.append(what)
        elif word == "returned":
            self.result = what
        elif word == "failed":
            self.failures.append(what)
        else:
            self.status = what

    def kill(self) -> None:
        """End it by kill -9, if it runs; `wait` returns once it is gone."""
        self._nursery.signal(self._key, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Send it SIGTERM."""
        self._nursery.signal(self._key, signal.SIGTERM)

    def wait(self, seconds: float = DEADLINE) -> Ended:
        """How it ended, once it has."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            left = deadline - time.monotonic()
            assert left > 0, f"{self._name} has not ended within {seconds:g} s"
            self._nursery.hear(left)
        return Ended(self.status, self.said, self.result, "\n".join(self.failures))


class Nursery:
    """Runs functions in processes of their own; for the length of a `with` block."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._keys = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "nursery.py"), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        # Its children end with it: see the program.
        self._pipe.close()
        try:
            self._process.wait(DEADLINE)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        """The process id of the one that forks."""
        return self._process.pid

    def start(
        self, function: Callable[..., object], *arguments: object, seconds: float = DEADLINE
    ) -> Child:
        """Start `function(say, *arguments)` of a module in a new process.

        It is killed, and has failed, if it does not end within so many seconds.
        """
        key = next(self._keys)
        child = self._children[key] = Child(self, key, function.__qualname__)
        self._pipe.send(("start", key, function, arguments, seconds))
        return child

    def run(
        self, function: Callable[..., object], *arguments: object, seconds: float = DEADLINE
    ) -> Ended:
        """Start it, and wait for its end."""
        return self.start(function, *arguments, seconds=seconds).wait(seconds + DEADLINE)

    def must(self, function: Callable[..., object], *arguments: object) -> Any:
        """Run it and return its result; AssertionError if it fails or is killed."""
        ended = self.run(function, *arguments)
        assert not ended.failure, f"{function.__qualname__} failed:\n{ended.failure}"
        assert ended.status == 0, f"{function.__qualname__} ended with status {ended.status}"
        return ended.result

    def signal(self, key: int, number: int) -> None:
        """Send a child a signal, if it runs."""
        self._pipe.send(("signal", key, number))

    def hear(self, seconds: float) -> bool:
        """Take one thing that a child says; False if none says anything for so many seconds."""
        if not self._pipe.poll(seconds):
            return False
        word, key, what = self._pipe.recv()
        self._children[key].take(word, what)
        if word == "ended":
            del self._children[key]
        return True


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process by kill -9, if it runs, and let go of it."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


class Program:
    """A program of `programs/` in a process of its own, which ends when its input does."""

    def __init__(self, name: str, *arguments: object, **more: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / name), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(**more),
            bufsize=0,
        )
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it by kill -9, if it runs, and let go of it."""
        end(self._process)

    def wait(self, seconds: float = DEADLINE) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait(seconds)

    def expect(self, line: str, seconds: float = DEADLINE) -> None:
        """Return once it has printed this line; AssertionError if it does not."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while True:
            while b"\n" in self._rest:
                first, _, self._rest = self._rest.partition(b"\n")
                if first.decode() == line:
                    return
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([descriptor], [], [], left)
            assert ready, f"{line!r} was not printed within {seconds:g} s"
            more = os.read(descriptor, 65536)
            assert more, f"the program ended without {line!r}"
            self._rest += more


def end_with_input(stop: Callable[[], object]) -> None:
    """In a program: call `stop` once standard input ends, which it does with the test."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        stop()

    threading.Thread(target=watch, daemon=True).start()
