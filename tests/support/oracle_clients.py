"""Clients of an oracle in processes of their own, which note what they were answered and when.

Nothing of a store is imported here: such a process starts quickly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

from children import Child, hear, say
from oracle_schedules import Event

from percola.oracle.client import NetworkOracle

SOON: Final = 45.0
"""Seconds in which clients are answered, also while oracles take over."""


def counts(clients: Sequence[Child]) -> list[int]:
    """How much each client, a process of `run_client`, has noted."""
    for client in clients:
        client.tell("how many")
    return [int(client.hear()) for client in clients]


def await_progress(clients: Sequence[Child], more: int) -> None:
    """Wait until every client has been answered so often again."""
    end = time.monotonic() + SOON
    pause = threading.Event()
    goals = [count + more for count in counts(clients)]
    while any(count < goal for count, goal in zip(counts(clients), goals, strict=True)):
        assert time.monotonic() < end, "the clients are not served any more"
        pause.wait(0.01)


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
