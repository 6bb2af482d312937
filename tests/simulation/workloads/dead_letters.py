"""Changes whose observer fails or never ends are dead-lettered; the others go on (N5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from percola import Observer, Repository, Table, Transaction, observer
from percola.inspection import failures
from percola.testing.simulation import Client, Sizes, Workload

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)
copy = docs.column("copy", str)

DEAD_LETTERED = "a change was dead-lettered"


class DeadLetters(Workload):
    """One observer fails on some contents and hangs on others; the other one copies them all."""

    name = "dead-lettered"
    tables = (docs,)
    sizes: ClassVar[Sizes] = {"docs": (1, 3), "turns": (2, 4)}
    pause = 0.1
    options = replace(Workload.options, timeout=0.6)

    def observers(self) -> Sequence[Observer[Any]]:
        schedule = self.simulation.world.schedule

        @observer(contents)
        def measure(t: Transaction, row: str) -> None:
            text = t.get(contents, row) or ""
            t.set(size, row, len(text))
            if text.startswith("bad"):
                raise ValueError(f"cannot measure {text}")
            if text.startswith("endless"):
                schedule.pause(2.0)

        @observer(contents, name="copy")
        def copies(t: Transaction, row: str) -> None:
            t.set(copy, row, t.get(contents, row) or "")

        return [measure, copies]

    def turn(self, client: Client, number: int) -> None:
        row = f"doc {client.rng.randrange(self.size('docs'))}"
        text = f"{client.rng.choice(('bad', 'good', 'fine', 'endless'))} {'x' * number}"
        client.transact(lambda t: t.set(contents, row, text))

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        failed = {(failure.cell.row.decode(), failure.observer) for failure in failures(repo)}
        if failed:
            self.simulation.world.sightings[DEAD_LETTERED] += 1
        for number in range(self.size("docs")):
            row = f"doc {number}"
            text = now.get(contents, row)
            if text is None:
                continue
            cells = ((contents, row), (size, row), (copy, row))
            # A change whose observer took too long is dead-lettered as well: the operator knows.
            if now.get(copy, row) != text and (row, "copy") not in failed:
                self.violate(
                    f"{row} holds {text!r}, the observer that goes on has copied "
                    f"{now.get(copy, row)!r}, and no operator is told.",
                    *cells,
                )
            is_measured = now.get(size, row) == len(text) and not text.startswith("bad")
            if not is_measured and (row, "measure") not in failed:
                self.violate(
                    f"{row} holds {text!r} and measures {now.get(size, row)}, and no operator "
                    "is told.",
                    *cells,
                )
