"""Clients of an oracle in processes of their own, which note what they were answered and when.

Nothing of a store is imported here: such a process starts quickly.
"""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import Connection

from children import hear, say
from oracle_schedules import Event

from percola.oracle.client import NetworkOracle


def run_client(
    pipe: Connection, addresses: list[str], threads: int, relay: str = ""
) -> list[Event]:
    """Draws and reads in several threads until it is told to stop; what was answered when."""
    oracle = NetworkOracle(addresses, request_seconds=0.5, relay=relay)
    stop = threading.Event()
    notes: list[Event] = []

    def draw(thread: int) -> None:
        step = 0
        # Who goes on while leases run out leaves the cores to whom that is a test of.
        while not stop.wait(0.002):
            step += 1
            is_drawn = step % 4 != 0
            began = time.monotonic_ns()
            ts = oracle.timestamp() if is_drawn else oracle.read_timestamp()
            notes.append(Event(began, time.monotonic_ns(), ts, ts, is_drawn, thread))

    running = [threading.Thread(target=draw, args=(one,)) for one in range(threads)]
    for thread in running:
        thread.start()
    try:
        # Each word from the test is answered with how much was noted by then.
        while hear(pipe) != "stop":
            say(pipe, len(notes))
    finally:
        stop.set()
        for thread in running:
            thread.join()
    return notes
