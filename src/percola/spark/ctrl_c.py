"""§2.4: Ctrl-C in a program that uses Spark: deferring it, and not losing it.

Py4J and Spark both interfere with it. Py4J prints a traceback when a call is interrupted; Python
swallows exceptions raised in Py4J's callbacks, which run whenever a Java object is collected; and
Spark replaces the signal handler permanently.
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
    """Defer Ctrl-C to the end of the block; the event is set when it arrives.

    Prevents Py4J's traceback for an interrupted call, and restores the signal handler that Spark
    replaces. A second Ctrl-C acts at once.
    """
    interrupted = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread can set handlers, and only Python handlers can be restored.
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
    """During the block, keep Py4J's callbacks from swallowing Ctrl-C.

    A Ctrl-C that arrives in a callback is sent again a moment later. Does nothing outside the main
    thread.
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
    """Whether the interrupted frame runs in a Py4J callback for a collected Java object."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_CALLBACKS) and code.co_name in (
            "<lambda>",
            "_garbage_collect_object",
        ):
            return True
        frame = frame.f_back
    return False
