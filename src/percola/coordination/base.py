"""§2.2 liveness tokens, §2.4 the lightweight lock service, and a bell.

Nothing here is needed for safety. A token that is lost or lies makes clean-up earlier or
later, never wrong (rule P8); an advisory lock that is lost makes two workers look at one row;
a bell that is not heard is made up for by scanning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Coordination(ABC):
    """What the processes of one repository know of each other."""

    @property
    @abstractmethod
    def token(self) -> str:
        """This process's liveness token, held from its first use until the process ends."""

    @abstractmethod
    def is_alive(self, token: str) -> bool:
        """Whether the process that holds the token still runs (§2.2).

        The empty token is that of no one process, and always alive: what carries it lives by
        being refreshed, whoever does that.
        """

    @abstractmethod
    def try_lock(self, table: str, row: bytes) -> bool:
        """Take the advisory lock of a row for this thread's scan; False if another has it."""

    @abstractmethod
    def unlock(self, table: str, row: bytes) -> None:
        """Give the advisory lock back."""

    @abstractmethod
    def ring(self) -> None:
        """Tell every worker of the repository that there may be work. Never raises."""

    @abstractmethod
    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` (from any thread) whenever a worker should look; returns how to stop."""

    @abstractmethod
    def hold_back(self, ts: int) -> None:
        """Say that this process still reads at `ts` and later; 0: that it reads nothing.

        Garbage collection respects it while the process lives. It is a courtesy: a reader
        whose word gets lost sees an error, never a wrong answer (rule P12). Never raises.
        """

    @abstractmethod
    def oldest_held(self) -> int | None:
        """The oldest timestamp that a live process holds back, this one included, or None."""

    @abstractmethod
    def announce_observers(self, observers: dict[str, list[str]]) -> None:
        """Publish which observers this process runs, by column.

        Raises ObserverMismatchError if a live process runs others on one of the columns:
        each would take the other's notifications for answered.
        """

    @abstractmethod
    def processes(self) -> list[dict[str, object]]:
        """The live processes that hold a token: `token`, `pid` and what they announced."""

    @abstractmethod
    def close(self) -> None:
        """Give the token back."""
