"""§2.2 liveness tokens, §2.4 the lightweight lock service, and wake-ups for workers.

Nothing here is needed for safety. A liveness token that is lost or wrong makes clean-up earlier or
later, never wrong (rule P8). If an advisory lock is lost, two workers scan one row. Periodic
scanning makes up for a wake-up that is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from percola.coordination.wake_ups import Place

_NAMED: Final = 3
"""The most processes that a message names."""


class Coordination(ABC):
    """What the processes of one repository know of each other."""

    @property
    @abstractmethod
    def token(self) -> str:
        """This process's liveness token, held from its first use until the process ends."""

    @abstractmethod
    def is_alive(self, token: str) -> bool:
        """Whether the process that holds the token still runs (§2.2).

        The empty token belongs to no single process and is always alive: a lock with it lives for
        as long as any process refreshes it.
        """

    @abstractmethod
    def try_lock(self, table: str, row: bytes) -> bool:
        """Take the advisory lock of a row for this thread's scan; False if it is taken."""

    @abstractmethod
    def unlock(self, table: str, row: bytes) -> None:
        """Release the advisory lock of a row."""

    def try_lock_many(self, rows: Sequence[tuple[str, bytes]]) -> list[bool]:
        """`try_lock` for several rows, each given once by table and row; which were taken."""
        return [self.try_lock(table, row) for table, row in rows]

    def unlock_many(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """`unlock` for several rows."""
        for table, row in rows:
            self.unlock(table, row)

    def keep_lock(self, table: str, row: bytes) -> bool:
        """Whether this process still has an advisory lock that it took and has not released.

        For locks that are held for long: they may be lost with a session. Then it is taken again
        if nobody has it; if another process does, it is released here.
        """
        return True

    @abstractmethod
    def wake(self, places: Iterable[Place] | None = None) -> None:
        """Wake all workers of the repository: there may be work in these places, or anywhere.

        Never raises.
        """

    @abstractmethod
    def on_wake(self, callback: Callable[[bytes], float | None]) -> Callable[[], None]:
        """Call `callback`, from any thread, at each wake-up; returns a function that stops it.

        It is given the wake-up (`percola.coordination.wake_ups`). It may return for how many
        seconds no other wake-up matters to it: those of other processes may come later, as one.
        """

    def idle(self, pool: bytes) -> None:  # noqa: B027
        """A worker of this process has nothing to do. Never raises.

        Of each row in the tables of its pool (`percola.coordination.wake_ups.pool_of`) one idle
        process of the pool may be told, instead of all.
        """

    @abstractmethod
    def hold_back(self, ts: int) -> Callable[[int], object] | None:
        """Publish that this process still reads at `ts` and later; 0: that it reads nothing.

        Garbage collection respects it while the process lives. It is best effort: if it is lost,
        reads below the safe point fail, and never return wrong data. Never raises.

        May return what does the same faster, in this process, until this is closed: from then on it
        raises ValueError.
        """

    @abstractmethod
    def oldest_held(self) -> int | None:
        """The oldest timestamp that a live process, including this one, reads at; or None."""

    def readers(self, ts: int) -> list[str]:
        """The live processes that hold `ts` back, as far as they are known, for messages."""
        return []

    def named_readers(self, ts: int) -> str:
        """The first few of `readers` in words; empty if none is known."""
        return ", ".join(self.readers(ts)[:_NAMED])

    @abstractmethod
    def announce_observers(self, observers: dict[str, list[str]]) -> None:
        """Publish which observers this process runs, by column.

        Raises ObserverMismatchError if a live process runs other observers on one of the columns:
        each process would treat the other's notifications as acknowledged.
        """

    @abstractmethod
    def processes(self) -> list[dict[str, object]]:
        """The live processes that hold a token: `token`, `pid` and what they announced.

        Also `since_ms`, when the process took its first token or connected to take one, by its wall
        clock; and where processes of several machines are known, `host`.
        """

    def check_place(self) -> None:  # noqa: B027
        """Raise RepositoryError if no other process finds this one any more.

        A worker asks about once a second, and ends. What is not a folder cannot be removed.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up the liveness token."""
