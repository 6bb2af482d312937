"""Oracles on one store in seeded schedules: slow ones, lost replies, late writes, clocks apart.

Everything runs in one thread. Where a real process may be stopped or overtaken (when it reads its
clock, before and after each call of the store) the schedule lets time pass and other oracles act,
nested to some depth: the call that was stopped goes on when they are done. What was handed out is
then held against rule P1, by the order in which calls began and ended.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from percola.cells import Cell, Kind
from percola.errors import OutcomeUnknownError, StoreError
from percola.oracle.ranges import RATE, Ranges
from percola.oracle.record import ORACLE_TABLE
from percola.store.base import RowMutation
from percola.store.memory import MemoryStore

LEASE: Final = 1.0
SIZE: Final = 8
DEPTH: Final = 3


class Event(NamedTuple):
    """A call that was answered: its beginning and end in the order of all of them."""

    began: int
    ended: int
    low: int
    high: int
    drawn: bool
    oracle: int


class FaultyStore(MemoryStore):
    """A process's way to the shared store: overtaken at each call, and answers get lost."""

    def __init__(self, schedule: Schedule, number: int) -> None:
        super().__init__()
        self._schedule = schedule
        self._number = number

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        schedule = self._schedule
        schedule.interrupt()
        schedule.maybe_down()
        found = schedule.shared.entries(cell, kind, low, high, limit)
        schedule.interrupt()
        return found

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        schedule = self._schedule
        schedule.interrupt()
        fault = schedule.rng.random()
        if fault < schedule.trouble:
            schedule.counts["lost"] += 1
            raise OutcomeUnknownError("the request was lost")
        if fault < 2 * schedule.trouble:
            schedule.counts["late"] += 1
            schedule.late.append(list(batch))
            raise OutcomeUnknownError("the request is late")
        done = schedule.shared.mutate(batch)
        schedule.interrupt()
        if fault < 4 * schedule.trouble:
            schedule.counts["unanswered"] += 1
            raise OutcomeUnknownError("the reply was lost")
        return done


class Schedule:
    """One run: `steps` actions drawn from a seed, of a few oracles of the class given."""

    def __init__(self, seed: int, kind: type[Ranges] = Ranges, trouble: float = 0.05) -> None:
        self.rng = random.Random(seed)
        self.trouble = trouble
        self.shared = MemoryStore()
        self.shared.create_tables([ORACLE_TABLE])
        self.late: list[list[RowMutation]] = []
        self.events: list[Event] = []
        self.counts = {"lost": 0, "late": 0, "unanswered": 0, "overtaken": 0, "takeovers": 0}
        self._kind = kind
        self._order = 0
        self._time = 1000.0
        # Whose keeper, and whose calls, are stopped half-way: a thread does one thing at a time.
        self._keeping: set[int] = set()
        self._asked: set[int] = set()
        self._depth = 0
        # As far apart as is allowed, but for rounding.
        self._rates = [1.0, 1.0001 / RATE, RATE**-0.5]
        self.oracles: list[Ranges] = []
        for number in range(3):
            self.oracles.append(self._make(number))

    def _make(self, number: int) -> Ranges:
        rng = self.rng
        rate, offset = self._rates[number], rng.uniform(-500, 500)

        def clock() -> float:
            now: float = self._time * rate + offset
            self.interrupt()  # The process is stopped right after it looked.
            return now

        store: Any = FaultyStore(self, number)
        lease = LEASE * rng.choice((1.0, 1.0, 0.6))
        return self._kind(store, name=f"o{number}", lease=lease, size=SIZE, clock=clock)

    def maybe_down(self) -> None:
        if self.rng.random() < self.trouble / 2:
            raise StoreError("the store is down")

    def interrupt(self) -> None:
        """Whatever calls this is overtaken by others, or not."""
        if self._depth >= DEPTH or self.rng.random() > 0.15:
            return
        self._depth += 1
        self.counts["overtaken"] += 1
        for _ in range(self.rng.randint(1, 12)):
            self.act()
        self._depth -= 1

    def act(self) -> None:
        rng = self.rng
        pick = rng.random()
        number = rng.randrange(len(self.oracles))
        if pick < 0.30:
            self._time += rng.choice((0.01, 0.1, 0.2, 0.5, 1.2))
        elif pick < 0.33 and self.late:
            self.shared.mutate(self.late.pop(rng.randrange(len(self.late))))
        elif number in self._asked:
            return
        elif pick < 0.60:
            if number not in self._keeping:
                self._keeping.add(number)
                with contextlib.suppress(StoreError):
                    self._end(number) if pick < 0.34 else self.oracles[number].step()
                self._keeping.discard(number)
        else:
            # Also while its keeper waits for the store.
            self._asked.add(number)
            self._ask(number, drawing=pick < 0.85)
            self._asked.discard(number)

    def _end(self, number: int) -> None:
        """The process is killed, or stops cleanly; another one is started in its place."""
        old = self.oracles[number]
        try:
            if self.rng.random() < 0.5:
                old.release()
        finally:
            self.counts["takeovers"] += old.takeovers
            self.oracles[number] = self._make(number)

    def _ask(self, number: int, *, drawing: bool) -> None:
        oracle = self.oracles[number]
        began = self._tick()
        if drawing:
            count = self.rng.randint(1, 3)
            first = oracle.draw(count)
            if isinstance(first, int):
                last = first + count - 1
                self.events.append(Event(began, self._tick(), first, last, True, number))
        else:
            found = oracle.last()
            if isinstance(found, int):
                self.events.append(Event(began, self._tick(), found, found, False, number))

    def _tick(self) -> int:
        self._order += 1
        return self._order

    def run(self, steps: int = 250) -> Schedule:
        for _ in range(steps):
            self.act()
        self.counts["takeovers"] += sum(one.takeovers for one in self.oracles)
        return self


def broken_promises(events: Sequence[Event]) -> list[str]:
    """What rule P1 forbids in what was handed out; empty if all is well."""
    problems = []
    taken: dict[int, Event] = {}
    for event in events:
        for ts in range(event.low, event.high + 1) if event.drawn else ():
            if ts in taken:
                problems.append(f"{ts} was handed out twice: {taken[ts]} and {event}")
            taken[ts] = event
    # Calls in the order of their beginnings, each after those that had ended by then.
    by_end = sorted(events, key=lambda event: event.ended)
    at, floor_draw, floor_last = 0, 0, 0
    for event in sorted(events, key=lambda event: event.began):
        while at < len(by_end) and by_end[at].ended < event.began:
            ended = by_end[at]
            if ended.drawn:
                floor_draw = max(floor_draw, ended.high)
            else:
                floor_last = max(floor_last, ended.high)
            at += 1
        floor = max(floor_draw, floor_last)
        if event.low < floor or (event.drawn and event.low == floor):
            problems.append(f"{floor} was known before {event} began")
    return problems
