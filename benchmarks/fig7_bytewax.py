"""Figure 7 on Bytewax: keys and clusters are in memory, in one stateful step; nothing is durable.

Clusters are connected components, so no key divides the state: one step holds a union-find of all.
It runs in an environment of its own, fills the state with the repository, then takes documents at
each rate in turn, and prints a line of JSON a step.

    python benchmarks/fig7_bytewax.py KEYS SIZE TOTAL LABELS PERCENT:RATE:COUNT…
"""

from __future__ import annotations

import importlib
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# These need nothing but the standard library.
from benchmarks.fig7_steps import read_keys, say, step_of

op: Any = importlib.import_module("bytewax.operators")
dataflow: Any = importlib.import_module("bytewax.dataflow")
inputs: Any = importlib.import_module("bytewax.inputs")
outputs: Any = importlib.import_module("bytewax.outputs")
testing: Any = importlib.import_module("bytewax.testing")

_FILLED: Final = 500
Item = tuple[int, tuple[int, int, int]]


class State:
    """The index of keys, and a forest of clusters."""

    def __init__(self) -> None:
        self.firsts: list[dict[int, int]] = [{}, {}, {}]
        self.parent: dict[int, int] = {}

    def find(self, doc: int) -> int:
        """The cluster of a document."""
        parent = self.parent
        while (above := parent[doc]) != doc:
            parent[doc] = parent[above]
            doc = above
        return doc

    def join(self, doc: int, keys: tuple[int, int, int]) -> int:
        """Put a document into its cluster."""
        self.parent[doc] = doc
        for firsts, key in zip(self.firsts, keys, strict=True):
            low, high = sorted((self.find(firsts.setdefault(key, doc)), self.find(doc)))
            self.parent[high] = low
        return self.find(doc)


class Arrivals(inputs.StatelessSourcePartition):  # type: ignore[misc]
    """First the repository, then each step's documents as they are due, then the rest."""

    def __init__(
        self, keys: list[tuple[int, int, int]], size: int, steps: list[list[float]]
    ) -> None:
        self.keys, self.next, self.size = keys, 0, size
        self.steps = steps
        self.done: dict[int, int] = {}
        self.first = self.start = 0
        self.cpu = 0.0
        self.again = False
        self.awake: datetime | None = None

    def next_batch(self) -> list[tuple[str, Item]]:
        """What is due."""
        if self.next < self.size:
            return self._take(min(self.size, self.next + _FILLED))
        if not self.steps:
            if self.next == len(self.keys):
                raise StopIteration
            return self._take(min(len(self.keys), self.next + _FILLED))
        percent, rate, count = self.steps[0]
        if not self.start:
            self.first, self.done, self.start = self.next, {}, time.monotonic_ns()
            self.cpu = time.process_time()
        given = self.next - self.first
        if given < count:
            due = min(int(count), int((time.monotonic_ns() - self.start) * rate / 1e9) + 1)
            if due > given:
                return self._take(self.first + due)
            wait = given / rate - (time.monotonic_ns() - self.start) / 1e9
        elif len(self.done) == count:
            cpu = time.process_time() - self.cpu
            step = step_of(percent, rate, self.first, self.start, self.done, cpu)
            say(step.to_json())
            self.start, wait = 0, 0.0
            # A rate that is not held is tried once more, and is the last one if it fails again.
            self.again = not step.held and not self.again
            if step.held:
                self.steps.pop(0)
            elif not self.again:
                self.steps.clear()
        else:
            wait = 0.001
        self.awake = datetime.now(UTC) + timedelta(seconds=max(0.0, wait))
        return []

    def _take(self, end: int) -> list[tuple[str, Item]]:
        taken = [("all", (doc, self.keys[doc])) for doc in range(self.next, end)]
        self.next, self.awake = end, None
        return taken

    def next_awake(self) -> datetime | None:
        """When the next document is due."""
        return self.awake


def main() -> None:
    """Run the flow."""
    file, size, total, labels, *words = sys.argv[1:]
    keys = read_keys(Path(file))[: int(total)]
    steps = [[float(one) for one in word.split(":")] for word in words]
    part = Arrivals(keys, int(size), steps)
    state = State()

    class Source(inputs.DynamicSource):  # type: ignore[misc]
        """The one partition."""

        def build(self, *_: object) -> Arrivals:
            """It."""
            return part

    class Noting(outputs.StatelessSinkPartition):  # type: ignore[misc]
        """Notes when each document's cluster came."""

        def write_batch(self, items: list[tuple[str, int]]) -> None:
            """All at this time."""
            at = time.monotonic_ns()
            part.done.update((doc, at) for _, doc in items)

    class Sink(outputs.DynamicSink):  # type: ignore[misc]
        """The one partition."""

        def build(self, *_: object) -> Noting:
            """It."""
            return Noting()

    def join(kept: State | None, item: Item) -> tuple[State, int]:
        kept = kept or state
        kept.join(*item)
        return kept, item[0]

    flow = dataflow.Dataflow("fig7")
    stream = op.input("documents", flow, Source())
    op.output("noted", op.stateful_map("join", stream, join), Sink())
    # At the end of an epoch, by default each ten seconds, Bytewax copies the state for a recovery
    # that this flow does not have: a second in which nothing is clustered.
    testing.run_main(flow, epoch_interval=timedelta(days=1))
    lines = (f"{doc} {state.find(doc)}\n" for doc in range(len(keys)))
    Path(labels).write_text("".join(lines))


if __name__ == "__main__":
    main()
