"""Time and chance, passed in wherever the protocol needs them, so that a test can own both."""

from __future__ import annotations

import functools
import os
import random
import time
from pathlib import Path
from typing import Final

_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The system's clocks. A simulation puts its own in their place."""

    def monotonic(self) -> float:
        """Seconds since some moment; only differences mean anything."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; never compared with another machine's (rule P8)."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Milliseconds by `monotonic`: comparable with those of other clocks of one `machine`."""
        return int(self.monotonic() * 1000)

    @property
    def machine(self) -> str:
        """Whose steady clock it is: the machine, since it was last started."""
        return _machine()

    def sleep(self, seconds: float) -> None:
        """Let others go on for about so long."""
        time.sleep(seconds)


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Where it is set apart for a container, the steady clock is as well.
        space = os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return ""
    return f"{boot}/{space}"


def backoff(random_: random.Random, attempt: int, *, first: float, most: float) -> float:
    """Seconds to wait before attempt `attempt` (from 1): exponential, with full jitter."""
    ceiling = min(most, first * 2.0 ** min(attempt - 1, 30))
    return ceiling * (0.1 + 0.9 * random_.random())


def elapsed() -> float:
    """Seconds by a clock that never goes back and goes on while the machine sleeps."""
    return time.clock_gettime(_ELAPSED)
