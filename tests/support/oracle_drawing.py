"""Clients of oracles in threads of a test, which note what they were answered and when."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from oracle_schedules import Event

from percola import StoreError
from percola.connect.cluster import credentials
from percola.oracle.client import NetworkOracle


class Drawing:
    """Draws from some oracles without end in a thread of its own, and notes what was answered."""

    def __init__(self, stack: ExitStack, number: int, *addresses: str) -> None:
        self.events: list[Event] = []
        self.refused: list[str] = []
        self.longest = 0.0
        self._number = number
        self._oracle = NetworkOracle(
            addresses, timeout_seconds=2.0, request_seconds=0.5, **credentials()
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._draw)
        self._thread.start()
        stack.callback(self._oracle.close)
        stack.callback(self.stop)

    def _draw(self) -> None:
        # Who goes on while leases run out leaves the cores to whom that is a test of.
        while not self._stop.wait(0.002):
            began = time.monotonic_ns()
            try:
                ts = self._oracle.timestamp()
            except StoreError as error:
                self.refused.append(str(error))
            else:
                self.events.append(Event(began, time.monotonic_ns(), ts, ts, True, self._number))
            self.longest = max(self.longest, (time.monotonic_ns() - began) / 1e9)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
