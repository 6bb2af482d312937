"""Processes that run the same operation at the same time, block after block.

They are fresh interpreters, not forks: each opens the stores for itself, as separate programs
would. A block begins when all of them stand at a barrier, and lasts for a time, not for a number
of operations, so that none is alone at its end. `throughput` says what they did together.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.measure import Comparison, compare, throughput

Measured = tuple[int, float, float]
"""Operations done, and when they began and ended, by the clock that all processes share."""

Player = Callable[[str, float], Measured]
"""What a process offers: run a task of this name for about so many seconds."""

_TIMEOUT: Final = 60.0
_spawn = multiprocessing.get_context("spawn")


class LockstepError(RuntimeError):
    """A process of a measurement failed; its output is above."""


class Lockstep:
    """`count` processes, each a `Player` that `make(number, count, *arguments)` opens.

    Raises LockstepError if one of them fails.
    """

    def __init__(
        self,
        count: int,
        make: Callable[..., AbstractContextManager[Player]],
        *arguments: Any,
    ) -> None:
        # Kept: its semaphores go with the last reference here, however many processes use them.
        self._barrier = _spawn.Barrier(count)
        self._ends: list[Connection] = []
        self._processes = []
        for number in range(count):
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(
                target=_play,
                args=(theirs, self._barrier, make, (number, count, *arguments)),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            # Closing the pipe asks them to end; what has failed or hangs is not waited for.
            process.join(_TIMEOUT if kind is None else 1)
            if process.is_alive():
                process.terminate()
                process.join()

    @property
    def pids(self) -> list[int]:
        """The processes, in order."""
        return [one.pid for one in self._processes if one.pid is not None]

    def run(self, task: str, seconds: float) -> list[Measured]:
        """Run a task in all processes at once; return the result of each."""
        try:
            for end in self._ends:
                end.send((task, seconds))
            return [end.recv() for end in self._ends]
        except (EOFError, OSError):
            raise LockstepError(f"A process failed in the block {task!r}.") from None

    def compare(self, raw: str, ours: str, pairs: int, seconds: float, into: Comparison) -> None:
        """Measure two tasks in turn, after a short block of each to warm up."""

        def rate(task: str, length: float = seconds) -> float:
            return throughput(self.run(task, length))

        for task in (raw, ours):
            rate(task, seconds / 4)
        compare(pairs, lambda: rate(raw), lambda: rate(ours), into)


@contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """A process that runs `target(pipe, *arguments)`, once it has sent "ready"; its pipe.

    At the end it is told to stop, and killed if it has not ended a minute later. Raises
    LockstepError if it fails before.
    """
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=target, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "ready"
        yield ours
        ours.send("stop")
        process.join(_TIMEOUT)
    except (EOFError, ConnectionError):
        words = f"A process of {target.__name__!r} failed; its error is above."
        raise LockstepError(words) from None
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        ours.close()


def _play(
    end: Connection,
    barrier: Barrier,
    make: Callable[..., AbstractContextManager[Player]],
    arguments: tuple[Any, ...],
) -> None:
    try:
        with make(*arguments) as player:
            while True:
                try:
                    task, seconds = end.recv()
                except EOFError:
                    return
                barrier.wait(_TIMEOUT)
                measured = player(task, seconds)
                try:
                    end.send(measured)
                except BrokenPipeError:
                    return  # It was interrupted, and nobody waits for this.
    except threading.BrokenBarrierError:
        return  # Another one failed, and has said why.
    except KeyboardInterrupt:
        return
    except BaseException:
        barrier.abort()
        raise
