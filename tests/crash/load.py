"""Random kills under load: clients of all sorts at work on one repository, killed at any moment.

Writers move money and place orders, in one step and in two phases; workers book the orders;
collectors remove what they may. For some time one of them after the other is killed with -9 and
started anew, while a reader counts the money. What the writers did is recorded. At the end a
worker comes to rest, every derived cell is exact, nothing that was acknowledged is missing, and
the history of all writers is one that snapshot isolation allows.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import percola
from percola.store.lmdb import driver
from percola.testing.histories.recorder import Outcome, Recorder, read_folder
from percola.testing.histories.timestamps import check
from tests.crash import ledger
from tests.crash.clients import ACCOUNTS, MONEY, collector, reader, worker, writer
from tests.crash.processes import Child, Nursery

ROLES: Final[tuple[Callable[..., Any], ...]] = (writer, writer, writer, worker, worker, collector)

_PAUSES: Final = (0.005, 0.2)
"""Seconds between two kills: from … to …"""

_ANYBODY: Final = 0.05
"""How often it may also be one that has not come to work yet."""

_MORE: Final = 60.0
"""Seconds that may be added until the kills are enough."""

_HOURS: Final = 24 * 3600.0


@dataclass
class Load:
    """What was done, and what fired.

    Attributes:
        kills: how many clients of each role were killed while they were at work.
        early: how many were killed before they were.
        samples: how often the reader has counted the money.
        transactions: how many transactions were recorded, by their outcome.
        orders: how many orders were placed, and booked exactly once.
    """

    kills: Counter[str] = field(default_factory=Counter)
    early: int = 0
    samples: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    orders: int = 0

    def is_enough(self) -> bool:
        """Whether every role was killed at work, and writers often enough to be in a commit."""
        return self.kills["writer"] >= 10 and all(self.kills[role.__name__] for role in ROLES)

    def check_fired(self) -> None:
        """AssertionError if a fault never fired, or nothing was at stake."""
        for role in ROLES:
            assert self.kills[role.__name__], f"no {role.__name__} was killed at work"
        assert self.samples, "the reader has read nothing"
        assert self.orders, "no order was placed"
        assert self.transactions["committed"], "nothing was committed"
        assert self.transactions["unknown"], "nobody was killed in a commit"


class Client:
    """One place at the repository: a process, and the next one after it was killed."""

    def __init__(
        self,
        nursery: Nursery,
        role: Callable[..., Any],
        name: str,
        through_py_lmdb: bool,
        *where: Path,
    ) -> None:
        self._through_py_lmdb = through_py_lmdb
        self.role = role.__name__
        self._nursery, self._function, self._name = nursery, role, name
        self._folder, self._histories = where
        self._lives = 0
        self.child = self.start()

    def start(self) -> Child:
        """Begin another life, with a history of its own."""
        self._lives += 1
        history = self._histories / f"{self._name}-{self._lives}.jsonl"
        where = self._folder, history
        self.child = self._nursery.start(
            play, self._through_py_lmdb, self._function, *where, seconds=_HOURS
        )
        return self.child

    def kill(self, load: Load) -> None:
        """End this life; whether it had come to work is known only once it has ended."""
        self.child.kill()
        ended = self.child.wait()
        assert ended.killed, f"a {self.role} failed:\n{ended.failure or ended.status}"
        if "ready" in ended.said:
            load.kills[self.role] += 1
        else:
            load.early += 1


def run_load(
    nursery: Nursery,
    scratch: Path,
    durability: str,
    seconds: float,
    rng: random.Random,
    progress: Callable[[Load], object] = lambda load: None,
    *,
    mixed: bool = False,
) -> Load:
    """Kill at random for some seconds, and check; AssertionError for whatever is wrong.

    With `mixed`, every second client uses py-lmdb.
    """
    folder, histories = scratch / f"load-{durability}", scratch / f"histories-{durability}"
    histories.mkdir()
    nursery.must(prepare, folder, histories, durability)
    load = Load()
    with clients(nursery, folder, histories, mixed) as (all_of_them, counting):
        deadline = time.monotonic() + seconds
        # On a busy machine it goes on until enough was at stake.
        while (now := time.monotonic()) < deadline or (
            not load.is_enough() and now < deadline + _MORE
        ):
            # Not to wait for something: the moment of a kill has to be any.
            until = now + rng.uniform(*_PAUSES)
            while (left := until - time.monotonic()) > 0:
                nursery.hear(left)
            for one in [*(client.child for client in all_of_them), counting]:
                assert one.status is None, f"ended by itself:\n{one.failures or one.status}"
            working = [one for one in all_of_them if one.child.said]
            anybody = rng.random() < _ANYBODY or not working
            # Whoever has been killed the least is as likely as all others together.
            least = min(working, key=lambda one: load.kills[one.role], default=all_of_them[0])
            victim = rng.choice([least, rng.choice(working)] if not anybody else all_of_them)
            victim.kill(load)
            victim.start()
            progress(load)
        for client in all_of_them:
            client.kill(load)
        counting.ask_to_end()
        ended = counting.wait()
        assert ended.status == 0, f"the reader failed:\n{ended.failure or ended.status}"
    load.samples = ended.result
    transactions, load.orders = nursery.must(judge, folder, histories)
    load.transactions.update(transactions)
    return load


@contextmanager
def clients(
    nursery: Nursery, folder: Path, histories: Path, mixed: bool
) -> Iterator[tuple[list[Client], Child]]:
    """All clients and the reader, for the length of a block."""
    counting = nursery.start(reader, folder, seconds=_HOURS)
    made = [
        Client(
            nursery, role, f"{role.__name__}-{place}", mixed and place % 2 == 1, folder, histories
        )
        for place, role in enumerate(ROLES)
    ]
    try:
        yield made, counting
    finally:
        for child in [*(one.child for one in made), counting]:
            if child.status is None:
                child.kill()
                child.wait()


# --- In processes of their own ----------------------------------------------------------


def play(say: object, through_py_lmdb: bool, role: Callable[..., object], *where: Path) -> object:
    """Play a role, with py-lmdb or with the engine that there is."""
    if through_py_lmdb:
        driver.native = None
    return role(say, *where)


def prepare(_: object, folder: Path, histories: Path, durability: str) -> None:
    """Open the accounts."""
    with (
        percola.open(folder, schema=ledger.SCHEMA, durability=durability) as repo,
        Recorder("bank", path=histories / "bank.jsonl") as recorder,
        recorder.transaction(repo) as t,
    ):
        for number in range(ACCOUNTS):
            t.set(ledger.balance, f"a{number:02}", MONEY // ACCOUNTS)


def judge(_: object, folder: Path, histories: Path) -> tuple[dict[str, int], int]:
    """Bring the repository to rest and check everything; how many of what there were."""
    with percola.open(folder, schema=ledger.SCHEMA) as repo:
        ledger.work(repo, threads=2)
        ledger.check_at_rest(repo)
        found = ledger.balances(repo)
        assert len(found) == ACCOUNTS and sum(found.values()) == MONEY, found
        placed = {row.key: row[ledger.amount] for row in repo.snapshot().scan(ledger.orders)}
        known = read_folder(histories)
        for record in known:
            for key, _value in record.writes:
                row = key.partition("/")[2]
                if key.startswith("orders") and record.outcome is Outcome.COMMITTED:
                    assert row in placed, f"{record} placed {row}, and it is not there"
        # The last reader of the history: what was acknowledged, it has to have seen.
        with (
            Recorder("judge", path=histories / "judge.jsonl") as recorder,
            recorder.transaction(repo) as t,
        ):
            for name in found:
                t.get(ledger.balance, name)
            for order in placed:
                t.get(ledger.amount, order)
        violations = check(read_folder(histories))
        assert not violations, "\n\n".join(map(str, violations))
    return dict(Counter(one.outcome.value for one in known)), len(placed)
