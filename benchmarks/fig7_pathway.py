"""Figure 7 on Pathway: an incremental dataflow in memory; nothing is durable.

Clusters are brought together through each key once, as by the batch jobs on Spark (`fig7_spark`):
the least cluster of each key, the least of those for each cluster, and a join. Pathway keeps every
intermediate table up to date. It runs in an environment of its own, fills the tables with the
repository, then takes documents at each rate in turn, and prints a line of JSON a step.

    python benchmarks/fig7_pathway.py KEYS SIZE TOTAL LABELS PERCENT:RATE:COUNT…
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# These need nothing but the standard library.
from benchmarks.fig7_steps import arrivals, read_keys, say, step_of, wait_for

pw: Any = importlib.import_module("pathway")

COMMIT_MS: Final = 5
"""How often what has arrived becomes a batch of Pathway's."""
_AT_ONCE: Final = 1000
_TIMEOUT: Final = 600.0
_KEYS: Final = ("k0", "k1", "k2")


class Clusters:
    """The cluster of each document as Pathway last gave it out, and when it first did."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.first_at: dict[int, int] = {}

    def change(self, key: object, row: dict[str, Any], time: int, is_addition: bool) -> None:
        """Take a change of the last table. A change removes one row of a document and adds one."""
        del key, time
        if is_addition:
            doc = row["doc"]
            self.of[doc] = row["cluster"]
            self.first_at.setdefault(doc, now())


now = time.monotonic_ns


def clustered(docs: Any) -> Any:
    """The table of documents with their clusters, from documents and their keys."""
    found = docs.select(*(docs[name] for name in ("doc", *_KEYS)), cluster=docs.doc)
    for name in _KEYS:
        least = found.groupby(found[name]).reduce(
            key=found[name], least=pw.reducers.min(found.cluster)
        )
        reached = found.join(least, found[name] == least.key).select(found.cluster, least.least)
        moves = reached.groupby(reached.cluster).reduce(
            reached.cluster, into=pw.reducers.min(reached.least)
        )
        found = found.join(moves, found.cluster == moves.cluster, id=found.id).select(
            *(found[one] for one in ("doc", *_KEYS)), cluster=moves.into
        )
    return found.select(found.doc, found.cluster)


def main() -> None:
    """Run the dataflow."""
    file, size, total, labels, *words = sys.argv[1:]
    keys = read_keys(Path(file))[: int(total)]
    steps = [[float(one) for one in word.split(":")] for word in words]
    clusters = Clusters()

    class Arrivals(pw.io.python.ConnectorSubject):  # type: ignore[misc]
        """First the repository, then each step's documents as they are due, then the rest."""

        def run(self) -> None:
            """In a thread of Pathway's."""
            self.give(0, int(size))
            given = int(size)
            for percent, rate, count in steps:
                for _ in range(2):  # Another program may have had the machine for a moment.
                    start, cpu = now(), time.process_time()
                    for first, end in arrivals(rate, int(count), _AT_ONCE):
                        self.take(given + first, given + end)
                    self.wait(given + int(count))
                    done = {d: clusters.first_at[d] for d in range(given, given + int(count))}
                    cpu = time.process_time() - cpu
                    step = step_of(percent, rate, given, start, done, cpu)
                    say(step.to_json())
                    given += int(count)
                    if step.held:
                        break
                else:
                    break
            self.give(given, len(keys))

        def take(self, first: int, end: int) -> None:
            """Hand documents to Pathway."""
            for doc in range(first, end):
                self.next(doc=doc, **dict(zip(_KEYS, keys[doc], strict=True)))

        def give(self, first: int, end: int) -> None:
            """The same, as many at a time as fit a batch, and wait for their clusters."""
            for at in range(first, end, _AT_ONCE):
                self.take(at, min(end, at + _AT_ONCE))
            self.wait(end)

        def wait(self, end: int) -> None:
            """Until so many documents have a cluster."""
            seen = clusters.first_at
            wait_for(lambda: len(seen) >= end, "Pathway", _TIMEOUT, lambda: len(seen))

    schema = pw.schema_builder(
        {
            "doc": pw.column_definition(dtype=int, primary_key=True),
            **{name: pw.column_definition(dtype=int) for name in _KEYS},
        }
    )
    docs = pw.io.python.read(Arrivals(), schema=schema, autocommit_duration_ms=COMMIT_MS)
    pw.io.subscribe(clustered(docs), on_change=clusters.change)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    Path(labels).write_text("".join(f"{doc} {its}\n" for doc, its in sorted(clusters.of.items())))


if __name__ == "__main__":
    main()
