"""Processes that tests start: functions of the test module, run in an interpreter of their own.

A child talks with its test through a pipe. It is ended when its `with` block is left, however
that comes about; a failure in the child fails the test that asks it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from signal import SIGSTOP
from typing import Any, Concatenate, ParamSpec

DEADLINE = 180.0
"""Seconds that a test waits for a child. It fails after them."""

P = ParamSpec("P")
_spawn = multiprocessing.get_context("spawn")


class Child:
    """`function(pipe, *arguments)` in a new process; its result is the last thing it says."""

    def __init__(
        self,
        function: Callable[Concatenate[Connection, P], object],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_run, args=(function, theirs, args, kwargs))
        self._process.start()
        theirs.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._process.pid is not None
        return self._process.pid

    def hear(self) -> Any:
        """The next thing that the child says; AssertionError if it fails or says nothing."""
        assert self._pipe.poll(DEADLINE), f"the child said nothing for {DEADLINE} s"
        try:
            word, what = self._pipe.recv()
        except EOFError:
            raise AssertionError("the child ended and said nothing") from None
        assert word != "failed", f"the child failed:\n{what}"
        return what

    def speaks_within(self, seconds: float) -> bool:
        """Whether the child says something, or ends, within so many seconds."""
        return self._pipe.poll(seconds)

    def tell(self, what: object = None) -> None:
        """Say something to the child, which waits for it with `hear(pipe)`."""
        self._pipe.send(what)

    def kill(self) -> None:
        """End it as kill -9 does; harmless if it has ended."""
        self._process.kill()
        self._process.join()

    def signal(self, number: int) -> None:
        """Send it a signal; one that stops it has stopped it when this returns."""
        os.kill(self.pid, number)
        if number == SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def ask(child: Child, *words: object) -> Any:
    """What a child answers that does what it is told, word by word."""
    child.tell(words)
    return child.hear()


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def say(pipe: Connection, what: object = None) -> None:
    """In the child: say something to the test."""
    pipe.send(("said", what))


def hear(pipe: Connection) -> Any:
    """In the child: wait for what the test says."""
    assert pipe.poll(DEADLINE), "the test said nothing"
    return pipe.recv()


def wait_in_child(condition: Callable[[], object], *, seconds: float = 120, what: str = "") -> None:
    """In the child, which has no fixtures: return once the condition holds."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what or condition}"
        pause.wait(0.02)


def _run(
    function: Callable[..., object], pipe: Connection, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    try:
        pipe.send(("said", function(pipe, *args, **kwargs)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
