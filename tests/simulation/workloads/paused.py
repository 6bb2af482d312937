"""Observers that operators pause and resume while they work: no change is lost (N1, N2, N3)."""

from __future__ import annotations

from percola import Repository, StoreError, UsageError
from percola.testing.simulation import Client
from tests.simulation.workloads.columns import Columns

WAITED = "changes waited for a paused observer"


class Paused(Columns):
    """As `Columns`, and now and then a client pauses or resumes one of the two observers."""

    name = "paused"

    def turn(self, client: Client, number: int) -> None:
        if client.rng.random() < 0.6:
            super().turn(client, number)
            return
        try:
            paused = {one.name for one in client.repo.paused_observers()}
            one = client.rng.choice(self.observers())
            if one.name not in paused:
                client.repo.pause_observer(one)
            elif client.rng.random() < 0.5:
                client.repo.resume_observer(one)
        except (StoreError, UsageError) as error:  # Another client may have resumed it.
            client.note(f"cannot pause or resume: {error}")

    def recover(self, repo: Repository) -> None:
        for one in repo.paused_observers():
            self.simulation.world.sightings[WAITED] += bool(repo.pending())
            repo.resume_observer(one.name)
