"""Figure 7 on Percola: documents are written at once, and an observer clusters them.

The observer has an index table for each key, with the first document that had the key, and a
table of clusters, each with its documents. A document joins the cluster of the first documents of
its keys; if these are several, it brings their clusters together. Whatever changes a cluster
writes its list of documents, so two transactions that change one cluster conflict.

    python -m benchmarks.fig7_percola REPOSITORY DURABILITY NOTES BATCH      a worker process

The durability is "" for a repository on a network store, whose own it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import percola
from benchmarks.fig7_documents import KEYS, Documents, expected
from benchmarks.fig7_steps import (
    Notes,
    Step,
    arrivals,
    count_notes,
    cpu_of,
    read_notes,
    step_of,
    wait_for,
)
from benchmarks.fig7_texts import Bodies
from percola import (
    Observer,
    PercolaError,
    Repository,
    Table,
    Transaction,
    Worker,
    WorkerOptions,
    observer,
)
from percola.observers.observer import NOBODY, Notified, Watch
from percola.transactions.context import TransactionContext

docs = Table("docs")
keys = docs.column("keys", bytes, observed=True)
body = docs.column("body", str)
cluster = docs.column("cluster", str)
indexes = [Table(f"key{number}") for number in range(KEYS)]
firsts = [one.column("first", str) for one in indexes]
clusters = Table("clusters")
members = clusters.column("documents", str)
SCHEMA: Final = [docs, *indexes, clusters]

_KEYS: Final = struct.Struct(f"<{KEYS}q")
_LOADED: Final = 1000
TIMEOUT: Final = 120.0
BATCH: Final = 32
"""Of the batched runs: documents that the observer answers in a transaction at most."""
TOGETHER: Final = 100
"""Of the batched runs: documents that are due, and are written in one transaction, at most."""


def row_of(doc: int) -> str:
    """The row of a document."""
    return f"{doc:010d}"


def join(t: Transaction, row: str) -> None:
    """Put a document into its cluster."""
    found = t.get(keys, row)
    if found is None:
        return
    cells = [(first, f"{key:016x}") for first, key in zip(firsts, _KEYS.unpack(found), strict=True)]
    owners = t.get_many(cells)
    for (first, key), owner in zip(cells, owners, strict=True):
        if owner is None:
            t.set(first, key, row)
    known = sorted({owner for owner in owners if owner is not None and owner != row})
    near = sorted({one for one in t.get_many((cluster, owner) for owner in known) if one})
    if not near:
        t.set(members, row, row)
        t.set(cluster, row, row)
        return
    into = near[0]
    together = [t.get(members, into) or "", row]
    for other in near[1:]:
        moved = t.get(members, other) or ""
        t.delete(members, other)
        for one in moved.split():
            t.set(cluster, one, into)
        together.append(moved)
    t.set(members, into, " ".join(together))
    t.set(cluster, row, into)


@dataclass(frozen=True)
class Noted(Observer[Any]):
    """An observer that notes which documents it has clustered, once their transaction committed."""

    notes: Notes | None = field(default=None)

    def run(
        self, context: TransactionContext, row: bytes, notified: Notified, watch: Watch = NOBODY
    ) -> bool:
        """As an observer does."""
        ran = super().run(context, row, notified, watch)
        if ran:
            self._note([row])
        return ran

    def run_batch(
        self,
        context: TransactionContext,
        rows: Iterable[tuple[bytes, Notified]],
        most: int,
        watch: Watch = NOBODY,
        ahead: Collection[bytes] = (),
    ) -> tuple[list[bytes], int]:
        """As an observer does."""
        answered, runs = super().run_batch(context, rows, most, watch, ahead)
        self._note(answered)
        return answered, runs

    def _note(self, rows: Sequence[bytes]) -> None:
        assert self.notes is not None
        self.notes.add([int(row) for row in rows], time.monotonic_ns())


def main() -> None:
    """Work until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fig7_percola")
    parser.add_argument("repository")
    parser.add_argument("durability")
    parser.add_argument("notes", type=Path)
    parser.add_argument("batch", type=int)
    options = parser.parse_args()
    notes = Notes(options.notes / f"{os.getpid()}.notes")
    made = observer(keys, name="join", batch=options.batch)(join)
    noted = Noted(**{each.name: getattr(made, each.name) for each in fields(made)}, notes=notes)
    with percola.open(options.repository, SCHEMA, durability=options.durability or None) as repo:
        worker = Worker(repo, [noted], WorkerOptions(threads=1))
        with worker.ending_with_input():
            print("ready", flush=True)
            worker.run()


class Clustering:
    """A repository, the documents that it has, and what is measured with it.

    Args:
        address: of a repository on a network store that is there; by default one in a folder is
            made.
        servers: processes of that store, whose processor time counts as well.
        warm: documents that are clustered before anything is measured.
    """

    def __init__(
        self,
        folder: Path,
        documents: Documents,
        address: str = "",
        servers: Sequence[int] = (),
        warm: int = 20,
    ) -> None:
        self._address = address or str(folder / "repository")
        self._loading = None if address else "relaxed"
        self._folder = folder
        self._documents = documents
        self._servers = servers
        self._warm = warm
        self._bodies = Bodies()
        self.count = 0
        if not address:
            percola.create(self._address, durability="relaxed")

    def load(self) -> None:
        """The repository as it is before the measurement: all clustered, nothing notified."""
        size = self._documents.size
        all_keys = self._documents.keys(0, size)
        labels = expected(all_keys)
        seen: list[set[int]] = [set() for _ in range(KEYS)]
        inside: dict[int, list[str]] = {}
        with percola.open(self._address, SCHEMA, durability=self._loading) as repo:
            for begin in range(0, size, _LOADED):
                with repo.transaction(notify=False) as t:
                    for doc in range(begin, min(begin + _LOADED, size)):
                        row, label = row_of(doc), labels[doc]
                        self._write(t, doc, all_keys[doc])
                        t.set(cluster, row, row_of(label))
                        inside.setdefault(label, []).append(row)
                        for number, key in enumerate(all_keys[doc]):
                            if key not in seen[number]:
                                seen[number].add(key)
                                t.set(firsts[number], f"{key:016x}", row)
            lists = list(inside.items())
            for begin in range(0, len(lists), _LOADED):
                with repo.transaction(notify=False) as t:
                    for label, rows in lists[begin : begin + _LOADED]:
                        t.set(members, row_of(label), " ".join(rows))
        self.count = size

    def _write(self, t: Transaction, doc: int, its: Sequence[int]) -> None:
        t.set(keys, row_of(doc), _KEYS.pack(*its))
        t.set(body, row_of(doc), self._bodies[doc])

    @contextmanager
    def running(self, durability: str, *, batched: bool) -> Iterator[Run]:
        """A worker process, and the repository open in this one, in one durability."""
        notes = self._folder / f"{durability}-{batched}"
        notes.mkdir(exist_ok=True)
        words = [self._address, durability, str(notes), str(BATCH if batched else 1)]
        with percola.open(self._address, SCHEMA, durability=durability or None) as repo:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fig7_percola", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert process.stdin is not None and process.stdout is not None
            try:
                if process.stdout.readline() != b"ready\n":
                    raise PercolaError("The worker of figure 7 ended at once; its error is above.")
                pids = [process.pid, *self._servers]
                run = Run(self, repo, pids, notes, TOGETHER if batched else 1)
                run.take(self.count, self._warm)
                yield run
            finally:
                process.stdin.close()
                try:
                    process.wait(TIMEOUT)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                process.stdout.close()

    def fill(self, total: int) -> None:
        """Let the observer cluster what arrives until there are so many documents, untimed."""
        if total > self.count:
            with self.running(self._loading or "", batched=True) as run:
                run.take(self.count, total - self.count)

    def remove(self) -> None:
        """Free the disk, if the repository is in a folder."""
        if self._loading:
            shutil.rmtree(self._address)

    def labels(self) -> dict[int, str]:
        """The cluster of each document."""
        with (
            percola.open(self._address, SCHEMA, durability=self._loading) as repo,
            repo.snapshot() as now,
        ):
            return {
                int(row.key): row[cluster]
                for row in now.scan(docs, columns=[cluster])
                if row.get(cluster) is not None
            }


@dataclass
class Run:
    """A worker that runs, and this process, which writes documents.

    Attributes:
        pids: the worker and the store's servers.
        together: documents that are written in one transaction, at most.
    """

    clustering: Clustering
    repo: Repository
    pids: Sequence[int]
    notes: Path
    together: int

    def take(self, first: int, count: int, rate: float = 1e9, percent: float = 0.0) -> Step:
        """Write documents as they are due, and wait until they are clustered."""
        its = self.clustering._documents.keys(first, first + count)
        before = count_notes(self.notes)
        cpu = self._spent()
        start = time.monotonic_ns()
        for begin, end in arrivals(rate, count, max(1, self.together)):
            with self.repo.transaction() as t:
                for at in range(begin, end):
                    self.clustering._write(t, first + at, its[at])

        def noted() -> int:
            return count_notes(self.notes) - before

        wait_for(lambda: noted() >= count, "Percola", TIMEOUT, noted)
        cpu = self._spent() - cpu
        self.clustering.count = first + count
        return step_of(percent, rate, first, start, read_notes(self.notes, first), cpu)

    def _spent(self) -> float:
        return sum(map(cpu_of, self.pids)) + time.process_time()


def measure(
    clustering: Clustering,
    durability: str,
    steps: Sequence[tuple[float, float, int]],
    most: int,
    *,
    batched: bool,
) -> list[Step]:
    """Each step in turn, until one is not held, twice; `most` documents in all at most."""
    found: list[Step] = []
    with clustering.running(durability, batched=batched) as run:
        for percent, rate, count in steps:
            if clustering.count + count > most:
                break
            step = run.take(clustering.count, count, rate, percent)
            if not step.held and clustering.count + count <= most:
                # Another program may have had the machine for a moment.
                step = run.take(clustering.count, count, rate, percent)
            found.append(step)
            if not step.held:
                break
    return found


if __name__ == "__main__":
    main()
