"""Large transactions: many rows in several batches, under locks that do not live long."""

from __future__ import annotations

from typing import Any, ClassVar
from unittest import mock

from percola import Repository, Table
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload
from percola.transactions import read_cache as batching

pages = Table("pages")
stamp = pages.column("stamp", str)
other = pages.column("other", str)


class Large(Workload):
    """Clients stamp every row with their mark, and read whether all marks agree."""

    name = "large"
    has_volatile_writes = True
    tables = (pages,)
    sizes: ClassVar[Sizes] = {"rows": (10, 30), "turns": (1, 3)}
    lock_ttl_seconds = 0.06

    def rows(self) -> list[str]:
        return [f"page {number:02}" for number in range(self.size("rows"))]

    def patched(self) -> Any:
        # Several batches need not be thousands of rows.
        return mock.patch.object(batching, "BATCH_ROWS", 4)

    def turn(self, client: Client, number: int) -> None:
        if client.rng.random() < 0.4:
            self.read(client)
            return
        fill = "." * client.rng.choice((0, 300))
        mark = f"{client.process.name}/{number}{fill}"
        # Each its own order, and so its own primary.
        rows = client.rng.sample(self.rows(), len(self.rows()))

        def stamp_all(t: RecordedTransaction) -> None:
            for row in rows:
                t.set(stamp, row, mark)
                if row < "page 05":
                    t.set(other, row, mark)

        client.transact(stamp_all, attempts=3)

    def read(self, client: Client) -> None:
        attempt = client.transact(lambda t: [row[stamp] for row in t.scan(pages, columns=[stamp])])
        if attempt:
            self.check_same(attempt.value, f"A reader at {attempt.start_ts}")

    def at_rest(self, repo: Repository) -> None:
        found = repo.snapshot().scan(pages)
        self.check_same([row[stamp] for row in found], "A reader at rest")

    def check_same(self, found: list[str], who: str) -> None:
        marks = sorted(set(found))
        if len(marks) > 1 or len(found) not in (0, self.size("rows")):
            self.violate(
                f"{who} saw {len(found)} of {self.size('rows')} rows, with the marks "
                f"{[mark.rstrip('.') for mark in marks]}.",
                *((stamp, row) for row in self.rows()[:4]),
            )
