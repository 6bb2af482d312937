"""Lists that only grow: their order tells who came before whom, without any timestamp."""

from __future__ import annotations

import itertools
from typing import ClassVar

from percola import JSON, Repository, Table
from percola.testing.histories.appends import check_appends
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Simulation, Sizes, Workload

lists = Table("lists")
elements = lists.column("elements", JSON)


class Appends(Workload):
    """Clients append to some lists and read others."""

    name = "list-append"
    tables = (lists,)
    sizes: ClassVar[Sizes] = {"lists": (1, 4)}

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.numbers = itertools.count(1)

    def turn(self, client: Client, number: int) -> None:
        names = [f"list {n}" for n in range(self.size("lists"))]
        some = client.rng.sample(names, client.rng.randint(1, len(names)))
        writes = [name for name in some if client.rng.random() < 0.6]

        def append(t: RecordedTransaction) -> None:
            # Each attempt has an element of its own.
            element = next(self.numbers)
            for name in some:
                found = t.get(elements, name) or []
                if name in writes:
                    t.set(elements, name, [*found, element])

        client.transact(append)

    def at_rest(self, repo: Repository) -> None:
        for violation in check_appends(self.simulation.history()):
            keys = [violation.key] if violation.key else []
            self.violate(str(violation), *((elements, key.partition("/")[2]) for key in keys))
