"""Calls that a transaction makes on a store that commits in two phases, counted.

The brokerage of figure 9 and the clustering of figure 7 run on the memory store; nothing is timed.
A call is what HBase would receive as one: rows of different tables are in different regions, so a
batch over three tables is three calls.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from benchmarks import fig7_percola, fig9_brokerage
from benchmarks.fig7_documents import Documents
from benchmarks.fig9_emulator import Emulator, Size
from percola import Repository, Table, Worker, observer
from percola.cells import Cell
from percola.coordination.memory import MemoryCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import CellState, RowMutation, Store
from percola.store.forwarding import ForwardingStore
from percola.store.memory import MemoryStore

_STEPS: Final = 2_000
_CUSTOMERS: Final = 100
_LOADED: Final = 500
_DOCUMENTS: Final = 200


class CallCounter(ForwardingStore):
    """Counts, in `counts`: reads, mutates (calls), rows (mutated), cells (read)."""

    def __init__(self, inner: Store, counts: Counter[str]) -> None:
        super().__init__(inner)
        self.counts = counts

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        self.counts["mutates"] += len({one.table for one in batch})
        self.counts["rows"] += len(batch)
        return self.inner.mutate(batch)

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        self.counts["reads"] += len({one.table for one in cells})
        self.counts["cells"] += len(cells)
        return self.inner.read(cells, ts)

    def scan(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        *,
        columns: Sequence[tuple[bytes, bool]] | None = None,
        limit: int = 256,
    ) -> tuple[list[tuple[Cell, CellState]], bytes | None]:
        found = self.inner.scan(table, start, end, ts, columns=columns, limit=limit)
        self.counts["reads"] += 1
        self.counts["cells"] += max(1, len(found[0]))
        return found

    def scan_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        ts: int,
        *,
        columns: Sequence[tuple[bytes, bool]] | None = None,
        limit: int = 256,
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        found = self.inner.scan_rows(table, rows, ts, columns=columns, limit=limit)
        self.counts["reads"] += 1
        self.counts["cells"] += max(1, sum(map(len, found.values())))
        return found


class _CountedOracle(EmbeddedOracle):
    def __init__(self, clockwork: MemoryStore, counts: Counter[str]) -> None:
        super().__init__(clockwork)
        self._counts = counts

    def timestamp(self) -> int:
        self._counts["draws"] += 1
        return super().timestamp()

    def read_timestamp(self) -> int:
        self._counts["draws"] += 1
        return super().read_timestamp()


def _counted(counts: Counter[str], schema: Sequence[Table[Any]]) -> Repository:
    """A repository in memory that commits in two phases, and counts its calls."""
    store = MemoryStore()
    return Repository(
        "counted",
        CallCounter(store, counts),
        _CountedOracle(store, counts),
        MemoryCoordination(),
        schema,
        one_step=False,
    )


NAMES: Final = ("reads", "cells", "mutates", "rows", "draws")


@lru_cache
def of_brokerage() -> dict[str, dict[str, float]]:
    """The mean calls (`NAMES`) of each kind of transaction, and of the clients' mix ("").

    "worker" is one run of the observer, with its search for work. `share`: how often a kind occurs
    among the clients' transactions.
    """
    counts: Counter[str] = Counter()
    totals: dict[str, Counter[str]] = {}
    runs: Counter[str] = Counter()

    def note(kind: str, before: Counter[str], many: int = 1) -> None:
        totals.setdefault(kind, Counter()).update(counts - before)
        runs[kind] += many

    class Noted(Emulator):
        def _time(self, kind: str, function: Any, *arguments: Any) -> Any:
            before = counts.copy()
            found = function(*arguments)
            note(kind, before)
            return found

    size = Size(_CUSTOMERS)
    with _counted(counts, fig9_brokerage.SCHEMA) as repo:
        fig9_brokerage.load(repo, size)
        emulator = Noted(fig9_brokerage.PercolaBrokerage(repo, 0), size, 0)
        for _ in range(_STEPS):
            emulator.step()
        before = counts.copy()
        Worker(repo, [fig9_brokerage.add_up]).run_until_idle()
        note("worker", before, size.brokers)
    whole = sum(many for kind, many in runs.items() if kind != "worker")
    found = {
        kind: {"share": runs[kind] / whole, **{name: told[name] / runs[kind] for name in NAMES}}
        for kind, told in totals.items()
    }
    del found["worker"]["share"]
    mix = [one for one in found.values() if "share" in one]
    found[""] = {name: sum(one["share"] * one[name] for one in mix) for name in NAMES}
    return found


class BrokerageCalls(NamedTuple):
    """What figure 9 calls for, in a transaction of its mix.

    Attributes:
        mix: the calls of a client's transaction.
        worker: those of an observer's run.
        results: observer's runs, one for each completed trade at most.
        writing: transactions that write.
    """

    mix: Mapping[str, float]
    worker: Mapping[str, float]
    results: float
    writing: float

    @property
    def all(self) -> Mapping[str, float]:
        """The calls of a transaction with its share of the observer's runs."""
        return {name: self.mix[name] + self.results * self.worker[name] for name in self.mix}


def brokerage_calls() -> BrokerageCalls:
    """Those of the brokerage that `of_brokerage` counts."""
    calls = of_brokerage()
    results = calls["trade_result"]["share"]
    return BrokerageCalls(
        calls[""], calls["worker"], results, results + calls["trade_order"]["share"]
    )


class ClusteringCalls(NamedTuple):
    """What a document of figure 7 calls for.

    Attributes:
        document: the calls of the transaction that inserts it, and of all that follows.
        observed: of these, the observer's.
    """

    document: Mapping[str, float]
    observed: Mapping[str, float]


@lru_cache
def clustering_calls() -> ClusteringCalls:
    """The mean calls (`NAMES`) of documents that come one by one."""
    counts: Counter[str] = Counter()
    written: Counter[str] = Counter()
    observed: Counter[str] = Counter()
    documents = Documents(_LOADED)
    with _counted(counts, fig7_percola.SCHEMA) as repo:
        worker = Worker(repo, [observer(fig7_percola.keys, name="join")(fig7_percola.join)])

        def insert(first: int, end: int) -> None:
            with repo.transaction() as t:
                for doc, keys in enumerate(documents.keys(first, end), first):
                    t.set(fig7_percola.keys, fig7_percola.row_of(doc), struct.pack("<3q", *keys))
                    t.set(fig7_percola.body, fig7_percola.row_of(doc), "text")

        insert(0, _LOADED)
        worker.run_until_idle()
        for doc in range(_LOADED, _LOADED + _DOCUMENTS):
            before = counts.copy()
            insert(doc, doc + 1)
            written.update(counts - before)
            before = counts.copy()
            worker.run_until_idle()
            observed.update(counts - before)
    # A worker draws more, to find that there is nothing left to do.
    written["draws"] = observed["draws"] = 2 * _DOCUMENTS
    both = written + observed
    return ClusteringCalls(
        *({name: one[name] / _DOCUMENTS for name in NAMES} for one in (both, observed))
    )
