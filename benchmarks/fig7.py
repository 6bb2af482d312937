"""Figure 7: the delay of clustering a document, by rate: Percola, batch jobs, streams, a database.

All take the same documents: a repository of a million, clustered beforehand, and then more that
arrive at each rate in turn (an open loop). In the end each system has the same documents, and its
clusters are compared with those of union-find: the benchmark fails if they differ.

    Percola              a transaction writes a document, an observer in another process clusters
                         it; batched: what is due is written together, a run answers up to 32
    Spark, batch         three jobs in a row as in the paper, and one fused, over everything
    Structured Streaming foreachBatch with an index in Parquet; transformWithState
    PostgreSQL           a transaction a document, by plain statements, in one client
    Bytewax, Pathway     keys and clusters in memory

Durability is named: full waits for the disk at each commit, relaxed does not. The batch's and the
streams' files are not synced; Bytewax and Pathway have no durability.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks import fig7_percola, fig7_report, fig7_spark, fig7_stream, postgres
from benchmarks.fig7_documents import Documents, Shape, check, expected
from benchmarks.fig7_steps import RATES, plan, write_keys
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from percola.spark import spark_session

IN_MEMORY: Final = {"Bytewax": "bytewax==0.21.1", "Pathway": "pathway==0.33.0"}
"""Peers that keep all in memory, and the package of each."""
_HERE: Final = Path(__file__).parent
_MOST: Final = 80_000
_TIMEOUT: Final = 900.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    documents: int
    rates: Sequence[float]
    streamed: Sequence[float]
    seconds: float
    passes: int


FULL: Final = Size(1_000_000, RATES, (1.0, 10.0, 100.0, 1000.0), 8.0, 3)
QUICK: Final = Size(20_000, (100.0, 3000.0, 30000.0), (3000.0,), 1.5, 1)


@dataclass
class Line:
    """A system's steps, as they are stored, in one durability."""

    system: str
    durability: str
    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For tables and plots."""
        return f"{self.system}, {self.durability}" if self.durability else self.system

    @property
    def held(self) -> list[dict[str, Any]]:
        """The steps that it kept up with."""
        return [one for one in self.steps if one["held"]]

    def saturation(self) -> float | None:
        """Percent an hour at which it no longer keeps up; None if it held every rate."""
        if not self.steps or self.steps[-1]["held"]:
            return None
        last = self.steps[-1]
        highest = max((one["percent"] for one in self.held), default=0.0)
        reached = last["percent"] * last["documents"] / last["seconds"] / last["per_second"]
        return float(max(highest, reached))

    def cpu_ms(self) -> float | None:
        """Processor milliseconds a document, in the step with the most documents."""
        busy = max(self.steps, key=lambda one: one["documents"], default=None)
        return None if busy is None else float(busy["cpu_ms_a_document"])


class Comparison:
    """The documents that all systems take, and what each made of them."""

    def __init__(self, folder: Path, size: Size, say: Callable[[str], None]) -> None:
        self.folder, self.size, self.say = folder, size, say
        self.documents = Documents(size.documents)
        self.steps = [
            (percent, rate, min(count, _MOST))
            for percent, rate, count in plan(size.documents, size.rates, size.seconds)
        ]
        self.lines: list[Line] = []
        self.passes: dict[str, list[fig7_spark.Pass]] = {}
        self.missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.checked: list[str] = []
        # Enough for PostgreSQL, which may try each rate twice in both durabilities: who has run out
        # of documents seems to hold all rates.
        self.total = size.documents + 4 * sum(count for _, _, count in self.steps) + 1000
        self._keys: list[tuple[int, int, int]] = []

    def check(self, system: str, labels: Mapping[int, Any]) -> None:
        """Compare with union-find."""
        self.say(f"checking the clusters of {system}")
        check(system, self._keys, labels)
        self.checked.append(system)

    def percola(
        self,
        clustering: fig7_percola.Clustering,
        system: str = "Percola",
        durabilities: Sequence[str] = ("relaxed", "full"),
    ) -> None:
        """Percola, in each durability, a document a transaction and batched."""
        self.say(f"loading {self.size.documents:,} documents into {system}")
        clustering.load()
        most = self.size.documents + 8 * sum(count for _, _, count in self.steps)
        for durability in durabilities:
            for batched in (False, True):
                line = Line(f"{system}, batched" if batched else system, durability)
                self.say(line.name)
                steps = fig7_percola.measure(
                    clustering, durability, self.steps, most, batched=batched
                )
                line.steps = [one.to_json() for one in steps]
                self.lines.append(line)
        self.total = max(self.total, clustering.count)
        self._keys = self.documents.keys(0, self.total)
        clustering.fill(self.total)
        self.check(system, clustering.labels())
        clustering.remove()

    def postgres(self, labels: Sequence[int]) -> None:
        """PostgreSQL, in both durabilities."""
        python = postgres.environment("postgres-client", [postgres.CLIENT])
        keys, base = self.folder / "keys", self.folder / "labels"
        write_keys(keys, self._keys)
        base.write_text("\n".join(map(str, labels)))
        with postgres.running(self.folder / "postgres") as server:
            self.versions["PostgreSQL"] = server.version
            command = [str(python), str(_HERE / "fig7_postgres.py"), server.dsn, str(server.pid)]
            command += [str(keys), str(self.size.documents)]
            self.say(f"loading {self.size.documents:,} documents into PostgreSQL")
            _lines([*command, "load", str(base)])
            count = self.size.documents
            for durability, commit in (("relaxed", "off"), ("full", "on")):
                line = Line("PostgreSQL", durability)
                self.say(line.name)
                # The first ones warm up the connection and the program that are measured.
                words = [f"0:{1e9}:20", *_words(self.steps)]
                found = _lines([*command, commit, str(count), str(self.total), *words])
                count = max([count, *(one.pop("next") for one in found)])
                line.steps = _last_of_each(found)
                self.lines.append(line)
            if count < self.total:
                rest = f"0:{1e9}:{self.total - count}"
                _lines([*command, "off", str(count), str(self.total), rest])
            _lines([*command, "labels", str(base)])
        self.check("PostgreSQL", _read_labels(base))

    def attempt(self, peer: str, measure: Callable[[], None]) -> None:
        """Measure a peer; if it cannot be, nothing of it is shown: it has not been checked."""
        known = len(self.lines)
        try:
            measure()
        except postgres.PeerError as error:
            del self.lines[known:]
            self.missing[peer] = str(error)

    def in_memory(self, peer: str) -> None:
        """Bytewax or Pathway."""
        package = IN_MEMORY[peer]
        python = postgres.environment(peer.lower(), [package])
        self.versions[peer] = package.partition("==")[2]
        keys, labels = self.folder / "keys", self.folder / "labels"
        write_keys(keys, self._keys)
        line = Line(f"{peer}, in memory", "")
        self.say(line.name)
        words = [str(keys), str(self.size.documents), str(self.total), str(labels)]
        words += _words(self.steps)
        found = _lines([str(python), str(_HERE / f"fig7_{peer.lower()}.py"), *words])
        line.steps = _last_of_each(found)
        self.lines.append(line)
        self.check(peer, _read_labels(labels))

    def spark(self, labels: Sequence[int], *, streams: bool = True) -> None:
        """The batch jobs, and the streams."""
        self.say("starting Spark")
        repository = fig7_spark.Repository(self.folder / "spark", self.documents)
        repository.write(self.total)
        me = os.getpid()
        with spark_session("local[*]", "fig7", fig7_spark.CONFIG | fig7_stream.CONFIG) as spark:
            self.versions["Spark"] = spark.version
            self.say("passes of Spark over everything")
            sizes = [self.size.documents] * self.size.passes + [self.total] * 2
            self.passes = fig7_spark.measure_batch(spark, repository, sizes, me)
            for name, job in fig7_spark.JOBS.items():
                place = job(spark, repository, self.total)
                self.check(f"Spark, {name}", repository.labels(spark, place))
            streamed = plan(self.size.documents, self.size.streamed, 2 * self.size.seconds)
            for kind, one in fig7_stream.STREAMS.items() if streams else ():
                name = f"Structured Streaming, {kind}"
                self.say(name)
                line = Line(name, "")
                with one(spark, repository, labels, me, _TIMEOUT) as stream:
                    line.steps = [one.to_json() for one in stream.measure(streamed)]
                    stream.fill(self.total)
                self.lines.append(line)
                self.check(name, stream.labels())
        repository.remove()

    def batches(self) -> dict[str, fig7_spark.Batch]:
        """The delays of the batch jobs, by what their passes took."""
        return {name: fig7_spark.Batch.of(passes) for name, passes in self.passes.items()}


def _words(steps: Sequence[tuple[float, float, int]]) -> list[str]:
    return [f"{percent}:{rate}:{count}" for percent, rate, count in steps]


def _last_of_each(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a rate that was tried twice, the second time."""
    return list({one["percent"]: one for one in found if one["percent"] > 0}.values())


def _lines(command: Sequence[str]) -> list[dict[str, Any]]:
    """Run a peer's program; the JSON that it prints. Raises PeerError with its last words."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise postgres.PeerError(f"{Path(command[1]).name} failed: {said[-1] if said else ''}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _read_labels(file: Path) -> dict[int, int]:
    pairs = (line.split() for line in file.read_text().splitlines())
    return {int(doc): int(label) for doc, label in pairs}


def run(console: Console, *, quick: bool, documents: int | None = None) -> None:
    """Measure, check, print the tables, draw the plot, write the figures as JSON."""
    size = QUICK if quick else FULL
    if documents is not None:
        size = replace(size, documents=documents)
    found = conditions()
    with temporary_folder() as folder, console.status("Figure 7 …") as status:

        def say(words: str) -> None:
            status.update(f"Figure 7: {words} …")

        comparison = Comparison(folder, size, say)
        labels = expected(comparison.documents.keys(0, size.documents))
        shape = Shape.of(labels)
        console.print(f"{shape}.", soft_wrap=True)
        comparison.percola(fig7_percola.Clustering(folder, comparison.documents))
        peers: dict[str, Callable[[], None]] = {
            "PostgreSQL": lambda: comparison.postgres(labels),
            **{peer: partial(comparison.in_memory, peer) for peer in IN_MEMORY},
        }
        for name, measure in peers.items():
            comparison.attempt(name, measure)
        comparison.spark(labels)
    name = "fig7" if documents is None else f"fig7-{documents}"
    finish(console, comparison, shape, output_name(name, quick=quick), found)


def finish(
    console: Console, comparison: Comparison, shape: Shape, name: str, found: Mapping[str, Any]
) -> None:
    """Print the tables, draw the plot, write the figures as JSON.

    Args:
        found: the conditions before the run.
    """
    picture = OUTPUT / f"{name}.png"
    batches = comparison.batches()
    report = fig7_report.Report(
        comparison.size.documents, comparison.lines, batches, comparison.passes, comparison.missing
    )
    report.plot(picture)
    path = write_json(
        name,
        {
            "conditions": found,
            "load_after": os.getloadavg()[0],
            "documents": comparison.size.documents,
            "documents_at_the_end": comparison.total,
            "clusters": {"mean": shape.mean, "with_others": shape.with_others},
            "versions": comparison.versions,
            "missing": comparison.missing,
            "checked": comparison.checked,
            **report.to_json(),
        },
    )
    report.show(console)
    console.print(
        f"The clusters of {', '.join(comparison.checked)} are those of union-find over all "
        f"{comparison.total:,} documents.",
        soft_wrap=True,
    )
    for peer, why in comparison.missing.items():
        console.print(f"Not measured: {peer}. {why}", soft_wrap=True)
    console.print(f"On {conditions_line(found)}; load after it {os.getloadavg()[0]:.1f}.")
    console.print(f"Plot: {picture}   Figures: {path}", style="dim", soft_wrap=True)
