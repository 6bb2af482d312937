"""Weak notifications: none is lost, whoever dies, and none conflicts (N4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from percola import Observer, Repository, Table, Transaction, observer
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload

links = Table("links")
weight = links.column("weight", int)
targets = Table("targets")
poke = targets.weak_column("poke")
total = targets.column("total", int)


class Weak(Workload):
    """Clients put links to few targets; the observer of a target adds up what links to it."""

    name = "weak"
    tables = (links, targets)
    sizes: ClassVar[Sizes] = {"targets": (1, 3)}

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(poke)
        def add_up(t: Transaction, row: str) -> None:
            found = sum(link[weight] for link in t.scan(links, prefix=f"{row}/", columns=[weight]))
            if found != (t.get(total, row) or 0):  # A careful program: what is right stays.
                t.set(total, row, found)

        return [add_up]

    def turn(self, client: Client, number: int) -> None:
        target = f"t{client.rng.randrange(self.size('targets'))}"
        link = f"{target}/{client.number}.{number % 3}"
        what = client.rng.random()

        def put(t: RecordedTransaction) -> None:
            if what < 0.5:
                t.set(weight, link, 1)
            elif what < 0.9:
                t.delete(weight, link)
            t.notify(poke, target)  # One in ten only notifies.

        client.transact(put)

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        for number in range(self.size("targets")):
            target = f"t{number}"
            expected = sum(row[weight] for row in now.scan(links, prefix=f"{target}/"))
            found = now.get(total, target)
            if (found or 0) != expected:
                self.violate(
                    f"The links to {target} weigh {expected}, and its observer says {found}: a "
                    "weak notification was lost (N4).",
                    (total, target),
                )
