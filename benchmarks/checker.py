"""How fast the history checkers are: transactions a second of processor time, on one core.

The history is a correct one, made here: 4 operations a transaction, half of them reads, over
100,000 keys, 64 clients at work at a time. A run of an hour leaves about a million transactions.
The check of appends takes lists of up to ten elements, as runs that change keys now and then have.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.lockstep import child
from benchmarks.measure import Usage, conditions, output_name, write_json
from percola.testing.histories.appends import check_appends
from percola.testing.histories.recorder import Outcome, Recorded
from percola.testing.histories.timestamps import Violation, check

KEYS: Final = 100_000
CLIENTS: Final = 64
ELEMENTS: Final = 10
FULL: Final = 1_000_000
QUICK: Final = 100_000


def registers(count: int, seed: int = 1) -> list[Recorded]:
    """A history of transactions that each read two keys and write two others."""
    rng = random.Random(seed)
    names = [f"t.register/{number}" for number in range(KEYS)]
    values: dict[str, object] = {}
    changed: dict[str, int] = {}
    running: list[Recorded] = []
    history: list[Recorded] = []
    drawn = now = 0
    while len(history) < count:
        now += 1
        if len(running) < CLIENTS:
            keys = list({names[int(rng.random() * KEYS)] for _ in range(4)})
            number = len(history) + len(running) + 1
            running.append(
                Recorded(
                    number,
                    f"p{number % CLIENTS}",
                    drawn,
                    None,
                    Outcome.ABORTED,
                    [(key, values.get(key)) for key in keys[:2]],
                    [(key, number * 4 + at) for at, key in enumerate(keys[2:])],
                    now,
                    None,
                )
            )
            continue
        record = running.pop(int(rng.random() * CLIENTS))
        if all(changed.get(key, 0) <= record.start_ts for key, _ in record.writes):
            drawn += 1
            record.commit_ts, record.outcome = drawn, Outcome.COMMITTED
            for key, value in record.writes:
                values[key], changed[key] = value, drawn
        record.ended = now
        history.append(record)
    return history


def appends(count: int, seed: int = 1) -> list[Recorded]:
    """A history of transactions that each read two lists and append to one or both."""
    rng = random.Random(seed)
    lists: dict[str, list[object]] = {}
    history: list[Recorded] = []
    keys = [f"t.list/{number}" for number in range(64)]
    for number in range(1, count + 1):
        reads: list[tuple[str, object]] = []
        writes: list[tuple[str, object]] = []
        for place in {int(rng.random() * 64) for _ in range(2)}:
            key = keys[place]
            before = lists.get(key, [])
            if len(before) >= ELEMENTS:
                key, before = f"t.list/{place}-{number}", []
                keys[place] = key
            reads.append((key, before or None))
            lists[key] = [*before, number]
            writes.append((key, lists[key]))
        history.append(
            Recorded(
                number,
                f"p{number % CLIENTS}",
                number - 1,
                number,
                Outcome.COMMITTED,
                reads,
                writes,
                2 * number,
                2 * number + 1,
            )
        )
    return history


CASES: Final[
    dict[str, tuple[Callable[[int], list[Recorded]], Callable[[list[Recorded]], list[Violation]]]]
] = {
    "by timestamps": (registers, check),
    "by timestamps, lists": (appends, check),
    "by cycles, lists": (appends, check_appends),
}
"""How a history is made, and how it is checked."""


def _judge(pipe: Connection, name: str, count: int) -> None:
    """Check a history; send the seconds of processor time, and this process's peak in megabytes."""
    pipe.send("ready")
    make, judge = CASES[name]
    history = make(count)
    begun = time.process_time()
    found = judge(history)
    seconds = time.process_time() - begun
    assert not found, found[0]
    usage = Usage()
    usage.look(os.getpid())
    pipe.send((seconds, usage.resident / 1e6))
    pipe.recv()


def run(console: Console, *, quick: bool) -> None:
    """Check a history of each kind, and print and keep the figures."""
    count = QUICK if quick else FULL
    where = conditions()
    table = Table("checker", "transactions", "seconds", "a second", "memory at most")
    figures: dict[str, dict[str, float]] = {}
    for name in CASES:
        # In a process of its own: in this one, peaks are those of all that was done before.
        with child(_judge, name, count) as pipe:
            seconds, memory = pipe.recv()
        figures[name] = {"transactions": count, "seconds": seconds, "megabytes": memory}
        table.add_row(
            name, f"{count:,}", f"{seconds:.1f}", f"{count / seconds:,.0f}", f"{memory:,.0f} MB"
        )
    console.print(table)
    write_json(output_name("checker", quick=quick), {"conditions": where, "figures": figures})
