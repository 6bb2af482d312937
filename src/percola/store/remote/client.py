"""§2.1: what all calls to a database on servers have: a time limit, retries, an end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from typing import Final

from percola.clock import backoff
from percola.errors import RepositoryClosedError, UsageError
from percola.platform import fork_safety as forks

REQUEST_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 30.0

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_RNG: Final = forks.new_random()


class RemoteCalls(ABC):
    """The calls of one store; safe to use from many threads.

    Args:
        request_seconds: how long a single call may take, up to 60.
        timeout_seconds: how long a call that may be retried is retried without an answer.

    Attributes:
        made: the number of calls made, by name.
    """

    def __init__(self, *, request_seconds: float, timeout_seconds: float) -> None:
        if not 0 < request_seconds <= 60:
            raise UsageError(
                f"A call may take from 0 to 60 s, not {request_seconds}: for longer than that a "
                "call that was given up could take effect when nobody expects it."
            )
        self.request_seconds = request_seconds
        self.timeout_seconds = timeout_seconds
        self.made: Counter[str] = Counter()
        self._closed = False

    def check_open(self) -> None:
        """Raise RepositoryClosedError if it has been closed."""
        if self._closed:
            raise RepositoryClosedError("This repository has been closed; open it again.")

    @abstractmethod
    def close(self) -> None:
        """Close the connection; calls under way fail. May be called again."""


class Retries:
    """The time limit of one call's retries, and the pauses between them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.progressed()

    def progressed(self) -> None:
        """Restart the time limit, because part of an answer has arrived."""
        self._since = time.monotonic()
        self._count = 0

    def wait(self) -> bool:
        """Wait before the next try; False if the time limit is reached."""
        left = self._since + self._seconds - time.monotonic()
        if left <= 0:
            return False
        self._count += 1
        pause = backoff(_RNG, self._count, first=_FIRST_PAUSE, most=_LONGEST_PAUSE)
        time.sleep(min(pause, left))  # There is no event for a server's return.
        return True
