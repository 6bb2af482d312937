"""Garbage collection beside everything else: nobody misses what was removed (P12)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar
from unittest import mock

from percola import Repository, StoreError, TransientError
from percola.gc import collector
from percola.gc.collector import GarbageCollector
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Simulation, Sizes
from tests.simulation.workloads.bank import FIRST, Bank, balance

RETENTION = 0.5
"""Seconds: less than a call may be under way, which the collector has to see to by itself."""

COLLECTED = "old versions were removed"
SETTLED = "rollback or lock records were removed"
TOO_OLD = "a reader was told that its snapshot is too old"


class Collecting(Bank):
    """The bank, with accounts that are closed and opened again, and a client that collects."""

    name = "garbage"
    sizes: ClassVar[Sizes] = {"accounts": (2, 4), "turns": (3, 8)}
    pause = 1.5

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._collectors: dict[str, GarbageCollector] = {}

    def patched(self) -> AbstractContextManager[Any]:
        """Many versions of a cell need not be thousands."""
        return mock.patch.multiple(collector, _VERSIONS=2, MOST_CHANGES=3)

    def turn(self, client: Client, number: int) -> None:
        if client.number == 1 or client.rng.random() < 0.1:
            self.collect(client)
        elif client.rng.random() < 0.2:
            self.read_slowly(client)
        elif client.rng.random() < 0.4:
            self.lock(client)
        else:
            super().turn(client, number)

    def collect(self, client: Client) -> None:
        name = client.process.name
        if name not in self._collectors:
            # For a whole life: what it has watched for long enough goes.
            context = client.repo.context
            self._collectors[name] = GarbageCollector(context, retention=RETENTION)
        try:
            collected = self._collectors[name].collect()
        except (StoreError, TransientError) as error:
            client.note(f"collects no further: {error}")
            return
        client.note(f"collected: {collected}")
        if collected.records:
            self.simulation.world.sightings[SETTLED] += 1
        if collected.versions:
            self.simulation.world.sightings[COLLECTED] += 1

    def lock(self, client: Client) -> None:
        """Lock accounts without changing them, and sometimes change another one."""
        *locked, changed = client.rng.sample(self.names(), len(self.names()))
        changes = client.rng.random() < 0.3

        def work(t: RecordedTransaction) -> None:
            for name in locked:
                t.get_for_update(balance, name)
            if changes:
                t.set(balance, changed, t.get(balance, changed) or 0)

        client.transact(work)

    def read_slowly(self, client: Client) -> None:
        """Read the accounts one by one, at a snapshot that grows old."""
        try:
            with client.repo.snapshot() as snapshot:
                found = []
                for name in self.names():
                    found.append(snapshot.get(balance, name) or 0)
                    client.think(4 * RETENTION)
        except TransientError:
            self.simulation.world.sightings[TOO_OLD] += 1
            return
        except StoreError:
            return
        if sum(found) != FIRST * len(self.names()):
            self.check_total(found, f"A slow reader at {snapshot.start_ts}")

    def at_rest(self, repo: Repository) -> None:
        super().at_rest(repo)
        # All that is older than rest may go now, and nothing that is needed goes with it.
        repo.collect_garbage(retention=0)
        super().at_rest(repo)
        for name in self.names():
            kept = repo.versions(balance, name)
            if len(kept) > 1:
                self.violate(f"{len(kept)} versions of {name} are kept at rest.", (balance, name))
