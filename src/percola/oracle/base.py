"""§2.3 Timestamps: one source of strictly increasing numbers.

Rule P1: every timestamp of a repository comes from one linearizable source. A request may
join only a call to it that has not been sent yet; no client reserves a range for later use;
after a restart they only go up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


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

        It need not be unique. A transaction that starts at it can only commit in one step.
        """
