"""§2.3 Timestamps: one source of strictly increasing numbers.

Rule P1: every timestamp of a repository comes from one linearizable source. A request may
join only a call to it that has not been sent yet; no client reserves a range for later use;
after a restart they only go up.
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
        embedded store it is the same for as long as no timestamp is drawn.
        """

    def at_one_moment(self, looks_so: Callable[[], bool]) -> bool:
        """Whether something that takes several looks to see was so at one moment.

        Work that is handed from table to table may be missed in each: it has just left the one, and
        come to the other where the look has been already. So it has to look so twice, with no
        timestamp drawn in between: whoever handed something on before that has also put it where it
        is, and the second look sees it; whoever does it later draws one. Where timestamps are drawn
        all the time, looks are repeated for a while, and then it counts as not so.
        """
        for _ in range(_LOOKS):
            before = self.read_timestamp()
            if not (looks_so() and looks_so()):
                return False
            if self.read_timestamp() == before:
                return True
        return False
