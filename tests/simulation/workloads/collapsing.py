"""Observers with collapsing: many changes, few runs, and the last change is always seen (N3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from percola import Observer, Repository, Table, Transaction, observer
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload
from tests.simulation.workloads.observing import check_answered

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)
words = docs.column("words", int)

COLLAPSED = "several changes answered by one run"


class Collapsing(Workload):
    """Clients change and delete few documents often; two observers measure them."""

    name = "collapsing"
    tables = (docs,)
    sizes: ClassVar[Sizes] = {"docs": (1, 4), "turns": (3, 8)}

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(contents)
        def measure(t: Transaction, row: str) -> None:
            text = t.get(contents, row)
            if text is None:
                t.delete(size, row)
            else:
                t.set(size, row, len(text))

        @observer(contents)
        def count(t: Transaction, row: str) -> None:
            t.set(words, row, len((t.get(contents, row) or "").split()))

        return [measure, count]

    def rows(self) -> list[str]:
        return [f"doc {number}" for number in range(self.size("docs"))]

    def turn(self, client: Client, number: int) -> None:
        rows = client.rng.sample(self.rows(), client.rng.randint(1, len(self.rows())))
        text = " ".join("x" * number for _ in range(client.rng.randint(1, 3)))
        deletes = client.rng.random() < 0.2

        def change(t: RecordedTransaction) -> None:
            for row in rows:
                if deletes:
                    t.delete(contents, row)
                else:
                    t.set(contents, row, text)

        client.transact(change)

    def at_rest(self, repo: Repository) -> None:
        for one in self.observers():
            if check_answered(self, repo, contents, self.rows(), one.name):
                self.simulation.world.sightings[COLLAPSED] += 1
        now = repo.snapshot()
        for row in self.rows():
            text, measured, counted = (
                now.get_row(docs, row).get(contents),
                *now.get_many([(size, row), (words, row)]),
            )
            expected = None if text is None else len(text)
            if measured != expected or (text is not None and counted != len(text.split())):
                self.violate(
                    f"At rest {row} holds {text!r}, its observers {measured} and {counted}.",
                    (contents, row),
                    (size, row),
                    (words, row),
                )
