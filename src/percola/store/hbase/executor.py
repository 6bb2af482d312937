"""§2.1: several calls to HBase at a time: HBase's client waits for each, so each has a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from percola.platform import fork_safety as forks

T = TypeVar("T")

_MOST: Final = 32
"""As many as HBase's client has threads of its own (`hbase.hconnection.threads.max`)."""


class Threads:
    """The threads of one store; they begin when they are first needed."""

    def __init__(self) -> None:
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        # A child would wait for threads that it does not have.
        self._pool = ThreadPoolExecutor(_MOST, "percola-hbase")

    def at_once(self, acts: Sequence[Callable[[], T]]) -> list[T]:
        """Do several things at the same time, none of which does so itself; what each came to.

        All have ended when this returns, and when it raises what one of them did.
        """
        others = [self._begin(act) for act in acts[1:]]
        try:
            first = acts[0]()
        finally:
            wait(others)
        return [first, *(one.result() for one in others)]

    def _begin(self, act: Callable[[], T]) -> Future[T]:
        try:
            return self._pool.submit(act)
        except RuntimeError:
            # The store has been closed, or the program ends: no thread begins any more.
            done: Future[T] = Future()
            try:
                done.set_result(act())
            except Exception as error:
                done.set_exception(error)
            return done

    def close(self) -> None:
        """Let the threads end, once they have done what they have begun."""
        self._pool.shutdown(wait=False)
