"""Write skew: snapshot isolation permits it, and `get_for_update` closes it."""

from __future__ import annotations

from typing import ClassVar

from percola import Repository, Table
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload

doctors = Table("doctors")
on_call = doctors.column("on-call", bool)

NAMES = ("Ann", "Bob")
SKEW = "write skew"


class WriteSkew(Workload):
    """Each doctor may go off call if the other one is on; some runs lock what they read."""

    name = "write-skew"
    tables = (doctors,)
    sizes: ClassVar[Sizes] = {"careful": (0, 1)}

    def set_up(self, client: Client) -> None:
        client.transact(lambda t: [t.set(on_call, name, True) for name in NAMES])

    def turn(self, client: Client, number: int) -> None:
        careful = bool(self.size("careful"))
        me, other = NAMES if client.number % 2 else NAMES[::-1]
        leaves = client.rng.random() < 0.7

        def change(t: RecordedTransaction) -> None:
            if not leaves:
                t.set(on_call, me, True)
            elif t.get_for_update(on_call, other) if careful else t.get(on_call, other):
                t.set(on_call, me, False)

        client.transact(change)

    def at_rest(self, repo: Repository) -> None:
        """At some commit nobody was on call: that is the skew."""
        moments = {ts for name in NAMES for ts, _ in repo.versions(on_call, name)}
        readable = repo.context.store.safe_point()
        for ts in sorted(moments)[len(NAMES) - 1 :]:
            if ts < readable:
                continue
            then = repo.snapshot(at=ts)
            if not any(then.get(on_call, name) for name in NAMES):
                if self.size("careful"):
                    self.violate(
                        f"At {ts} nobody is on call, though both locked what they read.",
                        *((on_call, name) for name in NAMES),
                    )
                self.simulation.world.sightings[SKEW] += 1
                return
