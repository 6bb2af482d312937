"""§2.1, §2.5: the parts of a batch that may be under way together."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from percola.platform import fork_safety as forks

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE: Final = 4
"""How many parts of a backlog are under way together."""

_THREADS: Final = 32
"""The most threads of all backlogs of a process."""


def waves(addresses: Iterable[Sequence[tuple[str, bytes]]]) -> list[list[int]]:
    """Split a batch into waves, to be sent one after the other: no row is in one twice.

    Args:
        addresses: (table, row) of the rows that each item of the batch touches.

    Returns the indexes of the items of each wave. The items that touch a row stay in their order.
    """
    found: list[list[int]] = []
    following: dict[tuple[str, bytes], int] = {}
    for at, touched in enumerate(addresses):
        wave = max((following.get(one, 0) for one in touched), default=0)
        if wave == len(found):
            found.append([])
        found[wave].append(at)
        following.update((one, wave + 1) for one in touched)
    return found


def overlapped(act: Callable[[S], T], things: Iterable[S]) -> Iterator[T]:
    """Act on things, on AT_ONCE at a time, each in a thread; yields the results in their order.

    A thing that is the only one needs no thread. What is acted on must not call this in turn.
    """
    things = iter(things)
    first = list(itertools.islice(things, 2)) if AT_ONCE > 1 else []
    if len(first) < 2:
        yield from map(act, itertools.chain(first, things))
        return
    pool = _pool.threads
    under_way: deque[Future[T]] = deque()
    try:
        for one in itertools.chain(first, things):
            under_way.append(pool.submit(act, one))
            if len(under_way) > AT_ONCE:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        wait([future for future in under_way if not future.cancel()])


class _Pool:
    """The threads of this process. They are kept: JPype keeps something of each that has ended."""

    def __init__(self) -> None:
        self._start_afresh()
        forks.at_fork(self._leave_parent)

    def _start_afresh(self) -> None:
        self.threads = ThreadPoolExecutor(_THREADS, "percola-overlapped")

    def _leave_parent(self) -> None:
        forks.keep_inherited(self.threads)
        self._start_afresh()


_pool: Final = _Pool()
