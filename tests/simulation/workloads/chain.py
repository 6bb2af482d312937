"""Chains of three observers: each one's write is the next one's change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from percola import Observer, Repository, Table, Transaction, observer
from percola.testing.simulation import Client, Sizes, Workload
from tests.simulation.workloads.observing import check_answered

docs = Table("docs")
raw = docs.column("raw", str, observed=True)
parsed = docs.column("parsed", str, observed=True)
index = Table("index")
counted = index.column("counted", int, observed=True)
label = index.column("label", str)


class Chain(Workload):
    """raw is parsed, what is parsed is counted in another table, what is counted is labelled."""

    name = "chain"
    tables = (docs, index)
    sizes: ClassVar[Sizes] = {"docs": (1, 3), "turns": (2, 4)}

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(raw)
        def parse(t: Transaction, row: str) -> None:
            t.set(parsed, row, (t.get(raw, row) or "").upper())

        @observer(parsed)
        def count(t: Transaction, row: str) -> None:
            t.set(counted, row, len(t.get(parsed, row) or ""))

        @observer(counted)
        def name_it(t: Transaction, row: str) -> None:
            t.set(label, row, f"{t.get(counted, row)} letters")

        return [parse, count, name_it]

    def turn(self, client: Client, number: int) -> None:
        row = f"doc {client.rng.randrange(self.size('docs'))}"
        client.transact(lambda t: t.set(raw, row, "x" * number))

    def at_rest(self, repo: Repository) -> None:
        rows = [f"doc {number}" for number in range(self.size("docs"))]
        check_answered(self, repo, raw, rows, "parse")
        check_answered(self, repo, parsed, rows, "count")
        check_answered(self, repo, counted, rows, "name_it")
        now = repo.snapshot()
        for row in rows:
            text = now.get(raw, row)
            expected = None if text is None else f"{len(text)} letters"
            if now.get(label, row) != expected:
                self.violate(
                    f"{row} holds {text!r}; at the end of the chain stands "
                    f"{now.get(label, row)!r}.",
                    (raw, row),
                    (parsed, row),
                    (counted, row),
                    (label, row),
                )
