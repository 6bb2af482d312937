"""A model of snapshot isolation that makes correct histories, by the choices of a `Random`.

Clients begin, read, write, lock, scan, commit, roll back and die in the middle of a commit, one
step of one client at a time. Timestamps are drawn as an embedded store draws them: one-step
transactions start at the last one, which many may share, two-phase ones at one of their own.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from percola.testing.histories.recorder import Outcome, Recorded

KEYS = [f"t.v/{letter}" for letter in "abcde"]


class Model:
    """Runs a random workload; `history` is what its clients recorded."""

    def __init__(
        self,
        rng: random.Random,
        *,
        appends: bool = False,
        clients: int = 3,
        deaths: float = 0.1,
        deletes: float = 0.15,
    ) -> None:
        self.rng = rng
        self.appends = appends
        self.deaths, self.deletes = deaths, deletes
        self.history: list[Recorded] = []
        self.really_committed: set[int] = set()
        self._drawn = 0
        self._now = 0
        self._values = 0
        self._versions: dict[str, list[tuple[int, object]]] = {key: [] for key in KEYS}
        self._lock_versions: dict[str, int] = {}
        self._clients = clients
        self._running: dict[str, Recorded | None] = {f"p{n}": None for n in range(clients)}

    def run(self, steps: int) -> list[Recorded]:
        """Take so many steps, let everybody finish, and read everything at rest."""
        for _ in range(steps):
            client = self.rng.choice(list(self._running))
            record = self._running[client]
            self._now += 1
            if record is None:
                self._begin(client)
            else:
                self._go_on(record)
        for record in list(self._running.values()):
            if record is not None:
                self._end(record)
        last = self._begin("last")
        for key in KEYS:
            self._read(last, key)
        self._end(last)
        return self.history

    # --- One step -----------------------------------------------------------------------

    def _begin(self, client: str) -> Recorded:
        two_phase = self.rng.random() < 0.4
        began = self._tick()
        if two_phase:
            self._drawn += 2
        record = Recorded(
            id=len(self.history) + 1,
            process=client,
            start_ts=self._drawn - 1 if two_phase else self._drawn,
            commit_ts=None,
            outcome=Outcome.UNKNOWN,
            reads=[],
            writes=[],
            began=began,
            ended=None,
            two_phase=two_phase,
        )
        self.history.append(record)
        self._running[client] = record
        return record

    def _go_on(self, record: Recorded) -> None:
        step = self.rng.random()
        key = self.rng.choice(KEYS)
        if step < 0.35:
            self._read(record, key)
        elif step < 0.65:
            self._write(record, key)
        elif step < 0.7 and not self.appends:
            self._lock(record, key)
        elif step < 0.75 and not self.appends:
            self._scan(record)
        elif step < 0.8:
            self._abort(record)
        else:
            self._end(record)

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _at(self, key: str, ts: int) -> object:
        versions = self._versions[key]
        at = bisect_right(versions, ts, key=lambda version: version[0])
        return versions[at - 1][1] if at else None

    def _read(self, record: Recorded, key: str) -> object:
        own = dict(record.writes)
        if key in own:
            record.own_reads.append((key, own[key], own[key]))
            return own[key]
        seen = self._at(key, record.start_ts)
        record.reads.append((key, seen))
        return seen

    def _write(self, record: Recorded, key: str) -> None:
        own = dict(record.writes)
        self._values += 1
        value: object = self._values
        if self.appends:
            before = self._read(record, key)
            value = [*(before if isinstance(before, list) else []), self._values]
        elif self.rng.random() < self.deletes:
            value = None
        elif self.rng.random() < 0.7 and key not in own:
            self._read(record, key)
        if key in own and own[key] != value:
            record.overwritten.append((key, own[key]))
        own[key] = value
        record.writes = list(own.items())
        if key in record.locked:
            record.locked.remove(key)

    def _lock(self, record: Recorded, key: str) -> None:
        self._read(record, key)
        if key not in dict(record.writes) and key not in record.locked:
            record.locked.append(key)

    def _scan(self, record: Recorded) -> None:
        low, high = KEYS[self.rng.randrange(2)], KEYS[self.rng.randrange(3, 5)]
        found = []
        for key in KEYS:
            if low <= key < high and key not in dict(record.writes):
                seen = self._at(key, record.start_ts)
                if seen is not None:
                    found.append(key)
                    record.reads.append((key, seen))
        record.ranges.append((low, high, found))

    def _abort(self, record: Recorded) -> None:
        record.outcome, record.ended = Outcome.ABORTED, self._tick()
        self._running[record.process] = None

    def _end(self, record: Recorded) -> None:
        cells = [key for key, _ in record.writes] + record.locked
        newest = max((self._newest(key) for key in cells), default=0)
        dies = self.rng.random() < self.deaths and record.process != "last"
        if newest > record.start_ts:
            if dies:
                self._die(record)
            else:
                self._abort(record)
            return
        if dies and self.rng.random() < 0.5:
            self._die(record)
            return
        self.really_committed.add(record.id)
        if cells:
            self._drawn += 1
            for key, value in record.writes:
                self._versions[key].append((self._drawn, value))
            for key in record.locked:
                self._lock_versions[key] = self._drawn
        if dies:
            self._die(record)
            return
        record.outcome, record.ended = Outcome.COMMITTED, self._tick()
        record.commit_ts = self._drawn if cells else None
        self._running[record.process] = None

    def _newest(self, key: str) -> int:
        versions = self._versions[key]
        return max(versions[-1][0] if versions else 0, self._lock_versions.get(key, 0))

    def _die(self, record: Recorded) -> None:
        """Nobody hears what became of it; another client takes its place."""
        del self._running[record.process]
        self._clients += 1
        self._running[f"p{self._clients}"] = None


class Story:
    """A history written down line by line."""

    def __init__(self) -> None:
        self.history: list[Recorded] = []

    def add(self, **fields: Any) -> None:
        """A transaction; it is committed, and over before the next begins, unless fields say."""
        number = len(self.history) + 1
        times = {"began": number * 10, "ended": number * 10 + 5}
        usual = {"id": number, "process": f"p{number}", "outcome": Outcome.COMMITTED, **times}
        self.history.append(Recorded(**{**usual, **fields}))


def seeded(
    seed: Callable[[random.Random, list[Recorded]], bool],
    judge: Callable[[list[Recorded]], None],
    **options: Any,
) -> int:
    """Judge histories of the model into which `seed` has put a mistake; how many there were."""
    judged = 0

    @settings(
        max_examples=40,
        database=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(rng=st.randoms(use_true_random=True))
    def look(rng: random.Random) -> None:
        nonlocal judged
        history = Model(rng, clients=4, **options).run(200)
        assume(seed(rng, history))
        judged += 1
        judge(history)

    look()
    return judged


def pick(
    rng: random.Random, history: list[Recorded], fits: Callable[[Recorded], bool]
) -> Recorded | None:
    """One of the transactions that fit, if any does."""
    fitting = [one for one in history if fits(one)]
    return rng.choice(fitting) if fitting else None
