"""The clients of a repository under load: what each does in a process of its own until SIGTERM.

Each is called with `say`, the repository's folder, a file for the history of what it does, and
says "ready" when it begins.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import percola
from percola import Repository, TransientError, Worker
from percola.testing.histories.recorder import RecordedTransaction, Recorder
from tests.crash import ledger

ACCOUNTS: Final = 12
MONEY: Final = 1000 * ACCOUNTS

_A_MOMENT: Final = 0.01
"""Seconds that those who have no work of their own leave to the others."""

Say = Callable[[str], object]


@contextmanager
def at_work(say: Say, folder: Path) -> Iterator[tuple[Repository, threading.Event]]:
    """The repository, and an event that is set when the client has been asked to end."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with percola.open(folder, schema=ledger.SCHEMA) as repo:
        say("ready")
        yield repo, stop


def writer(say: Say, folder: Path, history: Path) -> None:
    """Moves money between two accounts, in one step or in two phases; places orders as well."""
    rng = random.Random(history.stem)
    with at_work(say, folder) as (repo, stop), Recorder(history.stem, path=history) as recorder:
        number = 0
        while not stop.is_set():
            number += 1
            with contextlib.suppress(TransientError):
                two_phase = rng.random() < 0.5
                with recorder.transaction(repo, two_phase=two_phase) as t:
                    _move_money(t, rng)
                    if number % 3 == 0:
                        order = f"c{rng.randrange(4)}/{history.stem}-{number}"
                        t.set(ledger.amount, order, rng.randrange(1, 100))


def _move_money(t: RecordedTransaction, rng: random.Random) -> None:
    one, other = rng.sample(range(ACCOUNTS), 2)
    money = rng.randrange(1, 50)
    for account, change in ((f"a{one:02}", -money), (f"a{other:02}", money)):
        t.set(ledger.balance, account, (t.get(ledger.balance, account) or 0) + change)


def worker(say: Say, folder: Path, history: Path) -> None:
    """Runs the observers of the ledger; in every other life without the one-step commit."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    one_step = random.Random(history.stem).random() < 0.5
    with percola.open(folder, schema=ledger.SCHEMA, one_step=one_step) as repo:
        running = Worker(repo, [ledger.book, ledger.add_up], threads=2, sweep=0.2, rescan=0.1)
        running.start()
        say("ready")
        stop.wait()
        running.stop()


def collector(say: Say, folder: Path, history: Path) -> None:
    """Collects garbage again and again, and keeps nothing that nobody reads."""
    with at_work(say, folder) as (repo, stop):
        while not stop.wait(_A_MOMENT):
            repo.collect_garbage(retention=0)


def reader(say: Say, folder: Path) -> int:
    """Counts the money in one snapshot after the other; how often. Fails if it is not all there."""
    samples = 0
    with at_work(say, folder) as (repo, stop):
        while not stop.wait(_A_MOMENT):
            with contextlib.suppress(TransientError):
                balances = ledger.balances(repo)
                assert len(balances) == ACCOUNTS and sum(balances.values()) == MONEY, balances
                samples += 1
    return samples
