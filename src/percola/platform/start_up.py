"""Ctrl-C while a command line loads its modules: the process ends at once, without a traceback.

A `KeyboardInterrupt` that is raised inside an import prints a traceback, or is lost if it is raised
in a callback. So until the command line can catch it, SIGINT has the system's own action.

A SIGTERM waits until the command that it ends has begun, so that a worker can say that it ended.

A SIGCHLD that whoever started the command ignores, which commands inherit, would keep from it how
its own processes end.
"""

from __future__ import annotations

import signal


def begin() -> None:
    """Have Ctrl-C end the process, unless it is ignored or handled otherwise already.

    Also learn how child processes end.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def hold_sigterm() -> None:
    """Have SIGTERM wait for `release_sigterm`, also in processes that are started until then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def release_sigterm() -> None:
    """Let SIGTERM act, also one that has come already."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def end() -> None:
    """Have Ctrl-C raise `KeyboardInterrupt` again; call it where that is caught."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
