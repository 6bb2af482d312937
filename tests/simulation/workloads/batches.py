"""Notifications answered in batches: each row comes out as if it were alone (N2, N3, N5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from percola import Observer, Repository, Table, Transaction, observer
from percola.inspection import failures, notifications
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload

links = Table("links")
weight = links.column("weight", int)
targets = Table("targets")
poke = targets.weak_column("poke")
total = targets.column("total", int, observed=True)
twice = targets.column("twice", int)
sums = Table("sums")
whole = sums.column("whole", int)

_BAD: Final = -1
_ENDLESS: Final = 1000


class Batches(Workload):
    """Clients put links to many targets at once; the observer of a target adds up what links to
    it, several in one transaction. It fails on some, hangs on others, and keeps the sum of all,
    which is where its transactions meet. Another one doubles what a target comes to."""

    name = "batches"
    tables = (links, targets, sums)
    sizes: ClassVar[Sizes] = {
        "targets": (3, 8),
        "turns": (2, 5),
        "batch": (2, 8),
        "fails": (0, 1),
        "hangs": (0, 1),
        "meets": (0, 1),
    }
    options = replace(Workload.options, timeout=0.6)

    def observers(self) -> Sequence[Observer[Any]]:
        schedule = self.simulation.world.schedule

        @observer(poke, batch=self.size("batch"))
        def add_up(t: Transaction, row: str) -> None:
            before = t.get(total, row) or 0
            found = [link[weight] for link in t.scan(links, prefix=f"{row}/", columns=[weight])]
            t.set(total, row, sum(found))
            if self.size("meets"):
                t.set(whole, "all", (t.get(whole, "all") or 0) + sum(found) - before)
            if _BAD in found:
                raise ValueError(f"cannot add up {row}")
            if _ENDLESS in found:
                schedule.pause(2.0)

        @observer(total)
        def follow(t: Transaction, row: str) -> None:
            t.set(twice, row, 2 * (t.get(total, row) or 0))

        return [add_up, follow]

    def rows(self) -> list[str]:
        return [f"t{number}" for number in range(self.size("targets"))]

    def turn(self, client: Client, number: int) -> None:
        rng = client.rng
        rows = rng.sample(self.rows(), rng.randint(1, len(self.rows())))
        weights = dict.fromkeys(rows, number)
        for size, value in (("fails", _BAD), ("hangs", _ENDLESS)):
            if self.size(size) and rng.random() < 0.4:
                weights[rng.choice(rows)] = value

        def put(t: RecordedTransaction) -> None:
            for row, value in weights.items():
                t.set(weight, f"{row}/{client.number}", value)
                t.notify(poke, row)

        client.transact(put)

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        failed = {failure.cell.row.decode(): failure.error for failure in failures(repo)}
        # A run may commit after another scanner dead-lettered its row: then that is dirty.
        dirty = {one.cell.row.decode() for one in notifications(repo)}
        for row, error in failed.items():
            # One that took too long, or whose commit is unknown, is dead-lettered as well.
            if "cannot add up" in error and error != f"ValueError: cannot add up {row}":
                self.violate(f"{row} was dead-lettered for what befell another: {error} (N5).")
        found = {row: now.get(total, row) or 0 for row in self.rows()}
        for row in self.rows():
            linking = [link[weight] for link in now.scan(links, prefix=f"{row}/")]
            cells = (total, row), *((weight, f"{row}/{n}") for n in range(1, 6))
            if row in failed:
                continue
            if row not in dirty and (now.get(twice, row) or 0) != 2 * found[row]:
                self.violate(
                    f"{row} comes to {found[row]}, and twice that is said to be "
                    f"{now.get(twice, row)}: a change of an observed column was lost (N2, N3).",
                    (total, row),
                    (twice, row),
                )
            if _BAD in linking:
                self.violate(
                    f"{row} cannot be added up, and no operator is told: its links weigh "
                    f"{linking}, and its observer says {found[row]} (N5).",
                    *cells,
                )
            if found[row] != sum(linking):
                self.violate(
                    f"The links to {row} weigh {linking}, and its observer says {found[row]}: a "
                    "weak notification was lost (N2, N4).",
                    *cells,
                )
        if self.size("meets") and (now.get(whole, "all") or 0) != sum(found.values()):
            self.violate(
                f"The targets come to {found}, and all of them to {now.get(whole, 'all')}: a run "
                "did not see what the one before it has written.",
                (whole, "all"),
                *((total, row) for row in self.rows()),
            )
