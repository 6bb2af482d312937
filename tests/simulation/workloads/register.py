"""Registers that are read, written, and changed if they still hold what was seen."""

from __future__ import annotations

from typing import ClassVar

from percola import Repository, Table
from percola.testing.histories.recorder import Outcome, RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload

registers = Table("registers")
value = registers.column("value", str)


class Register(Workload):
    """Reads, blind writes, deletes and compare-and-set on a few rows."""

    name = "register"
    tables = (registers,)
    sizes: ClassVar[Sizes] = {"rows": (1, 3), "long": (0, 1)}

    def turn(self, client: Client, number: int) -> None:
        rng = client.rng
        # Long values have data entries of their own.
        fill = "." * (300 if self.size("long") else 0)
        row = f"r{rng.randrange(self.size('rows'))}"
        new = f"{client.number}/{number}{fill}"
        what = rng.choice(("read", "write", "delete", "compare and set", "lock"))

        def work(t: RecordedTransaction) -> None:
            match what:
                case "read":
                    t.get(value, row)
                case "write":
                    t.set(value, row, new)
                case "delete":
                    t.delete(value, row)
                case "compare and set":
                    seen = t.get(value, row)
                    if seen is None or len(seen) % 2:
                        t.set(value, row, new)
                case "lock":
                    if t.get_for_update(value, row) is None:
                        t.set(value, "r0", new)

        client.transact(work)

    def at_rest(self, repo: Repository) -> None:
        """What stands in a row is what its last writer put there."""
        last: dict[str, tuple[int, object]] = {}
        for record in self.simulation.history():
            if record.outcome is Outcome.UNKNOWN:
                return  # One that died in one step: nobody can say when it was.
            if record.outcome is Outcome.COMMITTED and record.commit_ts is not None:
                for key, written in record.writes:
                    if record.commit_ts > last.get(key, (0, None))[0]:
                        last[key] = (record.commit_ts, written)
        for key, (commit_ts, written) in last.items():
            row = key.partition("/")[2]
            found = repo.snapshot().get(value, row)
            if found != written:
                self.violate(
                    f"The last commit of {row}, at {commit_ts}, put {written!r}; now it is "
                    f"{found!r}.",
                    (value, row),
                )
