"""Children that tests fork, and locks that another thread holds at that moment."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

DEADLINE = 20.0
"""Seconds after which a child counts as hanging, and is ended."""


class Forked:
    """`function(child)` in a forked child, which ends with it. Leave its `with` block to end it."""

    def __init__(self, function: Callable[[Forked], object]) -> None:
        (self._reads, says), (hears, self._tells) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._reads, self._tells = hears, says
            try:
                told = str(function(self))
            except BaseException as error:
                told = f"{type(error).__name__}: {error}"
            try:
                self.say(told)
            finally:
                os._exit(0)
        os.close(says)
        os.close(hears)

    def say(self, what: object = "") -> None:
        """Say something to the other side; a line."""
        os.write(self._tells, str(what).replace("\n", " ").encode() + b"\n")

    def hear(self) -> str:
        """What the other side says next; "hangs" if that takes too long, "" at its end."""
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._reads], [], [], DEADLINE)[0]:
                return "hangs"
            byte = os.read(self._reads, 1)
            if not byte:
                return ""
            line += byte
        return line[:-1].decode()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reads)
        os.close(self._tells)


def in_child(function: Callable[[], object]) -> str:
    """What a function returns in a forked child, as text; its error; or "hangs"."""
    with Forked(lambda child: function()) as child:
        return child.hear()


def open_no_more() -> None:
    """Use up the descriptors of this process, a child: it can open no file any more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
    with contextlib.suppress(OSError):
        while True:
            os.open(os.devnull, os.O_RDONLY)


@contextlib.contextmanager
def held_by_a_thread(lock: Any) -> Iterator[None]:
    """Another thread holds the lock for the length of the block."""
    holds, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            over.wait(DEADLINE * 3)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(DEADLINE)
    try:
        yield
    finally:
        over.set()
        thread.join()
