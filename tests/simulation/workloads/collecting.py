"""Garbage collection beside everything else: nobody misses what was removed (P12)."""

from __future__ import annotations

from typing import ClassVar

from percola import Repository, StoreError, TransientError
from percola.gc import GarbageCollector
from percola.testing.simulation import Client, Sizes
from tests.simulation.workloads.bank import FIRST, Bank, balance

RETENTION = 2.5
"""Seconds: longer than a call may be under way, as the collector asks for."""

COLLECTED = "old versions were removed"
TOO_OLD = "a reader was told that its snapshot is too old"


class Collecting(Bank):
    """The bank, with accounts that are closed and opened again, and a client that collects."""

    name = "garbage"
    sizes: ClassVar[Sizes] = {"accounts": (2, 4), "turns": (3, 8)}
    pause = 1.5

    def turn(self, client: Client, number: int) -> None:
        if client.number == 1 or client.chance.random() < 0.1:
            self.collect(client)
        elif client.chance.random() < 0.2:
            self.read_slowly(client)
        else:
            super().turn(client, number)

    def collect(self, client: Client) -> None:
        services = client.repo.services
        try:
            collected = GarbageCollector(services, retention=RETENTION).collect()
        except (StoreError, TransientError) as error:
            client.note(f"collects no further: {error}")
            return
        client.note(f"collected: {collected}")
        if collected.versions:
            self.simulation.world.sightings[COLLECTED] += 1

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
