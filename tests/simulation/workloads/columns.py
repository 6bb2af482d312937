"""An observer of several columns: one run for several changes, each acknowledged once (N2, N3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from percola import Observer, Repository, Table, Transaction, observer
from percola.cells import Cell, ack_column
from percola.inspection import failures
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload
from tests.simulation.workloads.observing import check_answered, committed

items = Table("items")
price = items.column("price", int, observed=True)
category = items.column("category", str, observed=True)
refresh = items.weak_column("refresh")
label = items.column("label", str)
audited = items.column("audited", int)

TOGETHER = "changes of several columns answered by one run"


class Columns(Workload):
    """Clients change the price and the category of items, together or not; one observer labels
    them for both, another audits prices."""

    name = "columns"
    tables = (items,)
    sizes: ClassVar[Sizes] = {"items": (1, 3), "turns": (3, 8), "batch": (1, 4)}

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(category, price, refresh, batch=self.size("batch"))
        def labels(t: Transaction, row: str) -> None:
            t.set(label, row, f"{t.get(category, row)} at {t.get(price, row)}")

        @observer(price)
        def audits(t: Transaction, row: str) -> None:
            t.set(audited, row, t.get(price, row) or 0)

        return [labels, audits]

    def rows(self) -> list[str]:
        return [f"item {number}" for number in range(self.size("items"))]

    def turn(self, client: Client, number: int) -> None:
        rng = client.rng
        rows = rng.sample(self.rows(), rng.randint(1, len(self.rows())))
        what = rng.choice(("price", "category", "both", "refresh"))

        def change(t: RecordedTransaction) -> None:
            for row in rows:
                if what in ("price", "both"):
                    t.set(price, row, 100 * client.number + number)
                if what in ("category", "both"):
                    t.set(category, row, f"category {client.number}.{number}")
                if what == "refresh":
                    t.notify(refresh, row)

        client.transact(change)

    def at_rest(self, repo: Repository) -> None:
        dead = {(one.cell.row.decode(), one.observer) for one in failures(repo)}
        for column, name in ((price, "labels"), (category, "labels"), (price, "audits")):
            rows = [row for row in self.rows() if (row, name) not in dead]
            check_answered(self, repo, column, rows, name)
        now = repo.snapshot()
        for row in self.rows():
            acks = [
                {start_ts for _, start_ts in committed(repo, Cell("items", row.encode(), name))}
                for name in (ack_column("labels", one.key) for one in (price, category))
            ]
            self.simulation.world.sightings[TOGETHER] += len(acks[0] & acks[1])
            found = now.get(price, row), now.get(category, row)
            expected = f"{found[1]} at {found[0]}"
            changed = found != (None, None) and (row, "labels") not in dead
            if changed and now.get(label, row) != expected:
                self.violate(
                    f"{row} is {expected!r}, and its label says {now.get(label, row)!r}.",
                    *((one, row) for one in (price, category, label)),
                )
            if found[0] != now.get(audited, row) and (row, "audits") not in dead:
                self.violate(
                    f"{row} costs {found[0]}, and the audit says {now.get(audited, row)}.",
                    *((one, row) for one in (price, audited)),
                )
