"""§2.4: Ctrl-C in a program that uses Spark: when it acts, and that it does not get lost.

Py4J and Spark both stand in its way. Py4J writes a traceback when it is interrupted in a call; what
is raised in its callbacks, which run whenever a Java object is collected, Python swallows; and
Spark replaces the handler of the signal for good.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_AGAIN_SECONDS: Final = 0.02
_CALLBACKS: Final = os.path.join("py4j", "java_gateway.py")


@contextlib.contextmanager
def interrupts_held() -> Iterator[threading.Event]:
    """Hold Ctrl-C back until the end of the block; the event says that it has come.

    Py4J writes a traceback when it is interrupted in a call, and Spark replaces the handler of the
    signal for good: both end here. A second Ctrl-C acts at once.
    """
    interrupted = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread can set handlers, and only Python's can be put back.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield interrupted
        return

    def hold(number: int, frame: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, hold)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted.is_set():
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """For the length of the block, let no Ctrl-C be swallowed by a callback of Py4J.

    One that comes there comes again a moment later. Does nothing outside of the main thread.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if _is_collecting(frame):
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, before)


def _is_collecting(frame: FrameType | None) -> bool:
    """Whether what is interrupted runs in a callback of Py4J for a Java object that has gone."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_CALLBACKS) and code.co_name in (
            "<lambda>",
            "_garbage_collect_object",
        ):
            return True
        frame = frame.f_back
    return False
