"""Inserting what is not there yet: of all who try, one at most succeeds."""

from __future__ import annotations

from typing import ClassVar

from percola import Repository, Table
from percola.testing.histories.recorder import Outcome, RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload

users = Table("users")
owner = users.column("owner", str)
emails = Table("emails")
user = emails.column("user", str)


class Unique(Workload):
    """Clients register the same few names, each in two tables."""

    name = "insert-unique"
    tables = (users, emails)
    sizes: ClassVar[Sizes] = {"names": (1, 4)}

    def turn(self, client: Client, number: int) -> None:
        name = f"name {client.rng.randrange(self.size('names'))}"
        me = f"{client.process.name}/{number}"

        def insert(t: RecordedTransaction) -> bool:
            if t.get(owner, name) is not None:
                return False
            t.set(owner, name, me)
            t.set(user, f"{name}@example.org", me)
            return True

        client.transact(insert)

    def at_rest(self, repo: Repository) -> None:
        inserted: dict[str, list[object]] = {}
        for record in self.simulation.history():
            if record.outcome is Outcome.COMMITTED:
                for key, written in record.writes:
                    inserted.setdefault(key.partition("/")[2], []).append(written)
        now = repo.snapshot()
        for number in range(self.size("names")):
            name = f"name {number}"
            winners = inserted.get(name, [])
            cells = ((owner, name), (user, f"{name}@example.org"))
            if len(winners) > 1:
                self.violate(f"{name} was inserted by each of {winners}.", *cells)
            found = now.get_many(cells)
            if found[0] != found[1] or (winners and found[0] != winners[0]):
                self.violate(f"{name} was inserted by {winners}, and holds {found}.", *cells)
