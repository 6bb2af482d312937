"""Clocks and randomness, injected wherever the protocol needs them, so that tests control both."""

from __future__ import annotations

import functools
import os
import random
import time
from pathlib import Path
from typing import Final

_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The system's clocks. The simulation replaces them with its own."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; only differences are meaningful."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; never compared with another machine's (rule P8)."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Milliseconds by `monotonic`; comparable between processes of one `machine`."""
        return int(self.monotonic() * 1000)

    @property
    def machine(self) -> str:
        """The identity of the steady clock: the machine and its current boot."""
        return _machine()

    def sleep(self, seconds: float) -> None:
        """Sleep for about `seconds`."""
        time.sleep(seconds)


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # A container with its own time namespace has its own steady clock.
        space = os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return ""
    return f"{boot}/{space}"


def backoff(random_: random.Random, attempt: int, *, first: float, most: float) -> float:
    """Seconds to wait before attempt `attempt` (from 1): exponential, with full jitter."""
    ceiling = min(most, first * 2.0 ** min(attempt - 1, 30))
    return ceiling * (0.1 + 0.9 * random_.random())


def elapsed() -> float:
    """Seconds by a monotonic clock that also runs while the machine is suspended."""
    return time.clock_gettime(_ELAPSED)
