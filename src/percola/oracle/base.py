"""§2.3 Timestamps: one source of strictly increasing numbers.

Rule P1: every timestamp of a repository comes from one linearizable source. A request may join only
a call to it that has not been sent yet; no client reserves a range for later use; timestamps keep
increasing after a restart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

_LOOKS: Final = 1_000


class Oracle(ABC):
    """Hands out timestamps: integers from 1 up, unique to the repository."""

    @abstractmethod
    def timestamp(self) -> int:
        """A fresh timestamp, above every one handed out before this call began.

        Raises StoreError if the source cannot be reached.
        """

    @abstractmethod
    def read_timestamp(self) -> int:
        """A timestamp to read at: every commit acknowledged before this call is visible.

        It need not be unique. A transaction that starts at it can only commit in one step. On an
        embedded store it stays the same until a timestamp is drawn.
        """

    def advance(self, ts: int) -> None:
        """Have every timestamp that is handed out after this call be above `ts`.

        Uses up the timestamps up to it: it costs calls in proportion to what is missing.
        """
        while self.read_timestamp() < ts:
            self.timestamp()

    def at_one_moment(self, looks_so: Callable[[], bool]) -> bool:
        """Whether a condition that takes several reads to check held at one moment.

        Work that moves from one table to another can be missed in both: it may leave a table before
        the check reads it, and arrive in one that the check has read already. So the condition must
        hold twice, with no timestamp drawn in between: work that was moved before then is in its
        new place, where the second check sees it; moving it later draws a timestamp. If timestamps
        are drawn continually, the check is repeated up to 1,000 times; then the answer is False.
        """
        for _ in range(_LOOKS):
            before = self.read_timestamp()
            if not (looks_so() and looks_so()):
                return False
            if self.read_timestamp() == before:
                return True
        return False
