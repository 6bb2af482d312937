"""Exactly-once counters: an observer counts each document once, however often it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from percola import Observer, Repository, Table, Transaction, observer
from percola.testing.simulation import Client, Sizes, Workload
from tests.simulation.workloads.observing import check_answered

docs = Table("docs")
author = docs.column("author", str, observed=True)
authors = Table("authors")
written = authors.column("written", int)

AUTHORS = ("Ann", "Bob")


class Counters(Workload):
    """Clients add documents, each once; the observer adds one to its author's count."""

    name = "counters"
    tables = (docs, authors)
    sizes: ClassVar[Sizes] = {"turns": (2, 5)}

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(author)
        def count(t: Transaction, row: str) -> None:
            name = t.get(author, row) or ""
            t.set(written, name, (t.get(written, name) or 0) + 1)

        return [count]

    def turn(self, client: Client, number: int) -> None:
        name = client.rng.choice(AUTHORS)
        row = f"{client.number}/{number}"
        client.transact(lambda t: t.set(author, row, name))

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        found = {row.key: row[author] for row in now.scan(docs)}
        check_answered(self, repo, author, found, "count")
        for name in AUTHORS:
            expected = sum(1 for one in found.values() if one == name)
            if (now.get(written, name) or 0) != expected:
                self.violate(
                    f"{name} wrote {expected} documents, and the counter says "
                    f"{now.get(written, name)}.",
                    (written, name),
                )
