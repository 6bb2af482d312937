"""Ctrl-C while a command line loads its modules: the process ends at once, without a traceback.

A `KeyboardInterrupt` that is raised inside an import prints a traceback, or is lost if it is raised
in a callback. So until the command line can catch it, SIGINT has the system's own action.
"""

from __future__ import annotations

import signal


def begin() -> None:
    """Have Ctrl-C end the process, unless it is ignored or handled otherwise already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def end() -> None:
    """Have Ctrl-C raise `KeyboardInterrupt` again; call it where that is caught."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
