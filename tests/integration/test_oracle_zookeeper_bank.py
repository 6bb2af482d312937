"""§2.2: a bank whose processes have their tokens in ZooKeeper, which is killed and comes back."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest
from children import Child, hear, say
from zookeeper import ZooKeeper

from percola import Repository, StoreError, Table, Transaction
from percola.coordination.zookeeper.coordination import ZooKeeperCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.store.lmdb.store import LmdbStore

Wait = Callable[..., Any]

SECONDS: Final = 3.0
"""How long a session lasts, and how long a request is waited for and tried again."""

accounts = Table("accounts")
balance = accounts.column("balance", int)


@pytest.mark.long
def test_money_is_neither_made_nor_lost_while_zookeeper_is_killed_and_restarted(
    tmp_path: Path, java_home: Path, wait_until: Wait
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with (
        ZooKeeper(tmp_path / "zookeeper", java_home) as server,
        open_bank(folder, server.address) as bank,
    ):
        bank.run(lambda t: [t.set(balance, f"{n}", 100) for n in range(8)])
        with (
            Child(transfer, folder, server.address) as one,
            Child(transfer, folder, server.address) as two,
        ):
            both = (one, two)

            def more() -> None:
                """Each has moved money often again."""
                goals = [told(child, "moved")[0] + 10 for child in both]
                wait_until(
                    lambda: all(
                        told(child, "moved")[0] >= goal
                        for child, goal in zip(both, goals, strict=True)
                    )
                )

            more()
            server.kill()
            wait_until(
                lambda: all(told(child, "moved")[1] for child in both),
                what="both to be refused for want of a token",
            )
            server.start()
            more()
            one.kill()  # And with it, perhaps, a transfer that is half done.
            both = (two,)
            server.kill()
            server.start()
            more()
            moved, refusals = told(two, "stop")
            assert moved > 30 and refusals
        with bank.transaction() as t:
            found = [t.get(balance, f"{n}") or 0 for n in range(8)]
        assert sum(found) == 800 and found != [100] * 8


def told(child: Child, word: str) -> Any:
    """What a child answers."""
    child.tell(word)
    return child.hear()


def open_bank(folder: Path, address: str) -> Repository:
    store = LmdbStore(folder, durability="relaxed")
    coordination = ZooKeeperCoordination(
        [address],
        "/percola/bank",
        session_seconds=SECONDS,
        request_seconds=SECONDS,
        timeout_seconds=SECONDS,
    )

    def close() -> None:
        coordination.close()
        store.close()

    return Repository(
        "bank",
        store,
        EmbeddedOracle(store),
        coordination,
        [accounts],
        one_step=False,
        lock_ttl_seconds=3,
        close=close,
    )


def transfer(pipe: Connection, folder: Path, address: str) -> None:
    """Moves money between accounts until it is told to stop; answers how often, and in vain."""
    moved = refusals = 0
    stop = threading.Event()

    def work() -> None:
        nonlocal moved, refusals
        rng = random.Random(os.getpid())
        # Who goes on while sessions end leaves the cores to whom that is a test of.
        while not stop.wait(0.02):
            source, target = rng.sample(range(8), 2)

            def move(t: Transaction, source: int = source, target: int = target) -> None:
                t.set(balance, f"{source}", (t.get(balance, f"{source}") or 0) - 1)
                t.set(balance, f"{target}", (t.get(balance, f"{target}") or 0) + 1)

            try:
                bank.run(move)
                moved += 1
            except StoreError:
                refusals += 1

    with open_bank(folder, address) as bank:
        worker = threading.Thread(target=work)
        worker.start()
        word = ""
        while word != "stop":
            word = hear(pipe)
            if word == "stop":
                stop.set()
                worker.join()
            say(pipe, (moved, refusals))
