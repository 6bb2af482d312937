"""Figure 9: a brokerage like TPC-E's, by processes: transactions a second, and what each costs.

The customers grow with the client processes. Percola on LMDB and PostgreSQL run the same mix in
turn, in blocks of a freshly loaded brokerage; after each block all invariants are checked, and the
benchmark fails if one does not hold. In the middle of each block on Percola, the worker that adds
up the brokers' commissions is killed with SIGKILL and another one is started.

Processor time is that of everything: clients, worker, and PostgreSQL's server processes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks import fig9_brokerage, postgres
from benchmarks.fig7_steps import cpu_of, waits_of
from benchmarks.fig9_emulator import InvariantError, Size, check, check_reads
from benchmarks.measure import (
    OUTPUT,
    Distribution,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    throughput,
    write_json,
)
from percola import PercolaError, Worker

CUSTOMERS: Final = 1000
"""For each client process."""
PROCESSES: Final = (1, 2)
_HERE: Final = Path(__file__).parent
_DEADLINE: Final = 120.0
_EARLY: Final = "A process of the benchmark ended early; its error is above."


class BrokerageError(PercolaError):
    """A client or a worker failed, or an invariant does not hold."""


@dataclass(frozen=True, slots=True)
class System:
    """A database and how it is run; `isolation` is PostgreSQL's, and empty for Percola.

    `durability` is empty where it is the store's own.
    """

    name: str
    durability: str
    isolation: str = ""

    @property
    def label(self) -> str:
        """For tables and plots."""
        return ", ".join(filter(None, (self.name, self.durability)))


PERCOLA: Final = (System("Percola", "relaxed"), System("Percola", "full"))
POSTGRES: Final = (
    System("PostgreSQL, serializable", "relaxed", "SERIALIZABLE"),
    System("PostgreSQL, repeatable read", "relaxed", "REPEATABLE_READ"),
    System("PostgreSQL, serializable", "full", "SERIALIZABLE"),
)


class Process:
    """A client or a worker, ready when this returns."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_HERE.parent,
            env=env,
        )
        self.pid = self._process.pid
        try:
            self.hear()
        except BaseException:
            self.end(kill=True)  # Who is interrupted here has nothing yet to end it by.
            raise

    def hear(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BrokerageError(_EARLY)
        return line

    def check(self) -> None:
        """BrokerageError if it has ended by itself."""
        if self._process.poll() is not None:
            raise BrokerageError(_EARLY)

    def tell(self, words: str) -> None:
        """Write it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()

    def end(self, *, kill: bool = False) -> None:
        """Close its input, or kill it, and wait for its end."""
        if kill:
            self._process.kill()
        # What nobody has read is read: a process whose pipe is full would not end.
        try:
            self._process.communicate(timeout=_DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def _drive(clients: Sequence[Process], seconds: float) -> list[dict[str, Any]]:
    """Let all clients run; what they tell."""
    for client in clients:
        client.tell(str(seconds))
    return [json.loads(client.hear()) for client in clients]


def _counts(told: Sequence[dict[str, Any]]) -> list[int]:
    """Of the transactions by which a block is checked."""
    kinds = ("trade_order", "trade_result", "market_feed")
    return [sum(len(one["times"].get(kind, ())) for one in told) for kind in kinds]


def on_percola(
    address: str,
    system: System,
    processes: int,
    seconds: float,
    *,
    warm: float = 0.0,
    servers: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """A block on Percola, in a new repository, checked; a worker is killed in its middle.

    Args:
        warm: seconds that clients run before the block; the worker is then killed in these.
        servers: by name, processes among the descendants of this one whose processor time, with
            that of their own descendants, is told apart, and for how long they waited for a core.
    """
    size, durability = Size(CUSTOMERS * processes), system.durability or None
    relaxed = durability and "relaxed"
    command = [sys.executable, "-m", "benchmarks.fig9_brokerage", address, system.durability]
    with percola.open(address, fig9_brokerage.SCHEMA, durability=relaxed) as repo:
        fig9_brokerage.load(repo, size)
    with ExitStack() as stack:
        clients = []
        for number in range(processes):
            clients.append(Process([*command, str(size.customers), str(number)]))
            stack.callback(clients[-1].end)
        parts = {**servers, **{f"client {n}": one.pid for n, one in enumerate(clients)}}

        def spent() -> dict[str, float]:
            return {"": cpu_of(os.getpid()), **{part: cpu_of(pid) for part, pid in parts.items()}}

        def waited() -> dict[str, dict[int, float]]:
            return {part: waits_of(pid) for part, pid in parts.items()}

        worker = Process([*command, "worker"])
        try:
            before, idle = spent(), waited()
            began = time.monotonic()
            for client in clients:
                client.tell(f"{seconds} {warm}")
            # The worker is killed in the middle of a stretch of time.
            time.sleep((warm or seconds) / 2)
            worker.check()
            worker.end(kill=True)
            worker = Process([*command, "worker"])
            if warm:
                # The clients end their warm-up by the clock, and tell nobody.
                time.sleep(max(0.0, began + warm - time.monotonic()))
                before, idle = spent(), waited()
            told = [json.loads(client.hear()) for client in clients]
            # What is left to do is done below: if no worker had run, nothing else would show it.
            worker.check()
            cpu = {part: after - before[part] for part, after in spent().items()}
            # By thread: what one that has ended waited before is not to be taken off.
            waits = {
                part: sum(after - idle[part].get(thread, 0.0) for thread, after in threads.items())
                for part, threads in waited().items()
            }
        finally:
            worker.end()
    with percola.open(address, fig9_brokerage.SCHEMA, durability=relaxed) as repo:
        Worker(repo, [fig9_brokerage.add_up]).run_until_idle()
        try:
            facts = fig9_brokerage.facts(repo)
            check(facts, size, *_counts(told))
            check_reads(fig9_brokerage.PercolaBrokerage(repo, 0), facts, size)
        except InvariantError as error:
            raise BrokerageError(f"{system.label}: {error}") from error
    block = _block(told, cpu[""])

    def apart(seconds: Mapping[str, float]) -> dict[str, float]:
        each = {part: 1000 * one / block["transactions"] for part, one in seconds.items()}
        of_clients = sum(ms for part, ms in each.items() if part.startswith("client"))
        return {"clients": of_clients, **{part: each[part] for part in servers}}

    parts_ms = apart(cpu)
    rest = block["cpu_ms"] - sum(parts_ms.values())
    return {**block, "processor_ms": {**parts_ms, "rest": rest}, "waited_ms": apart(waits)}


def on_postgres(
    server: postgres.Server, python: Path, system: System, processes: int, seconds: float
) -> dict[str, Any]:
    """A block on PostgreSQL, checked."""
    size = Size(CUSTOMERS * processes)
    commit = "on" if system.durability == "full" else "off"
    command = [str(python), str(_HERE / "fig9_postgres.py"), server.dsn, commit]
    command += [system.isolation, str(size.customers)]
    _run([*command, "load"])
    with ExitStack() as stack:
        clients = []
        for number in range(processes):
            clients.append(Process([*command, str(number)]))
            stack.callback(clients[-1].end)
        # The server is a child of this process: its time is in the sum.
        before = cpu_of(os.getpid())
        told = _drive(clients, seconds)
        cpu = cpu_of(os.getpid()) - before
    _run([*command, "check", *map(str, _counts(told))])
    return _block(told, cpu)


def _run(command: Sequence[str]) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        words = made.stderr.strip().splitlines()
        raise BrokerageError(f"PostgreSQL's client failed: {words[-1] if words else 'silent'}")


def _block(told: Sequence[dict[str, Any]], cpu: float) -> dict[str, Any]:
    for one in told:
        first = one.get("warm", {})
        one["times"] = {kind: ms[first.get(kind, 0) :] for kind, ms in one["times"].items()}
    counts = [sum(map(len, one["times"].values())) for one in told]
    spans = [(count, one["began"], one["ended"]) for count, one in zip(counts, told, strict=True)]
    times: dict[str, list[float]] = defaultdict(list)
    for one in told:
        for kind, found in one["times"].items():
            times[kind] += found
    return {
        "transactions": sum(counts),
        "per_second": throughput(spans),
        "cpu_ms": 1000 * cpu / sum(counts),
        "conflicts": sum(one["conflicts"] for one in told),
        "times": times,
    }


def summarize(system: System, processes: int, blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the blocks of a system; latencies over all of their transactions."""
    latencies = {}
    for kind in sorted({kind for one in blocks for kind in one["times"]}):
        found = Distribution.of([ms for one in blocks for ms in one["times"].get(kind, ())])
        assert found is not None
        latencies[kind] = {"count": found.count, "p50_ms": found.p50, "p99_ms": found.p99}
    total = sum(one["transactions"] for one in blocks)
    return {
        "system": system.label,
        "processes": processes,
        "per_second": statistics.median(one["per_second"] for one in blocks),
        "cpu_ms": statistics.median(one["cpu_ms"] for one in blocks),
        "conflicts_per_thousand": 1000 * sum(one["conflicts"] for one in blocks) / total,
        "latencies": latencies,
        "blocks": [{k: v for k, v in one.items() if k != "times"} for one in blocks],
    }


def run(console: Console, *, quick: bool) -> None:
    """Measure, check, print the tables, draw the plot, write the figures as JSON."""
    seconds, rounds = (3.0, 1) if quick else (5.0, 2)
    found, missing, version = conditions(), "", ""
    blocks: dict[tuple[System, int], list[dict[str, Any]]] = defaultdict(list)
    with (
        temporary_folder() as folder,
        ExitStack() as stack,
        console.status("Figure 9 …") as status,
    ):
        systems: list[System] = [*PERCOLA]
        peer: tuple[postgres.Server, Path] | None = None
        try:
            python = postgres.environment("postgres-client", [postgres.CLIENT])
            peer = stack.enter_context(postgres.running(folder / "postgres")), python
            version = peer[0].version
            systems += POSTGRES
        except postgres.PeerError as error:
            missing = str(error)
        for number in range(rounds):
            for processes in PROCESSES:
                # Every second round the other way round.
                for system in systems if number % 2 == 0 else systems[::-1]:
                    status.update(f"Figure 9: {system.label}, {processes} …")
                    if system.isolation and peer is not None:
                        block = on_postgres(*peer, system, processes, seconds)
                    else:
                        block = on_percola(str(folder / "repository"), system, processes, seconds)
                        shutil.rmtree(folder / "repository")
                    blocks[system, processes].append(block)
    lines = [
        summarize(system, processes, blocks[system, processes])
        for system in systems
        for processes in PROCESSES
    ]
    name = output_name("fig9", quick=quick)
    picture = OUTPUT / f"{name}.png"
    _plot(lines, picture)
    stored = {"conditions": found, "load_after": os.getloadavg()[0], "postgresql": version}
    path = write_json(name, {**stored, "missing": missing, "lines": lines})
    _show(console, lines)
    console.print("All invariants held after every block; each of Percola's had its worker killed.")
    if missing:
        console.print(f"Not measured: PostgreSQL. {missing}", soft_wrap=True)
    console.print(f"On {conditions_line(found)}; load after it {os.getloadavg()[0]:.1f}.")
    console.print(f"Plot: {picture}   Figures: {path}", style="dim", soft_wrap=True)


def _show(console: Console, lines: Sequence[dict[str, Any]]) -> None:
    grid = Grid("", "processes", "/s", "× one", "CPU ms", "conflicts ‰", box=SIMPLE_HEAD)
    ones = {one["system"]: one["per_second"] for one in lines if one["processes"] == 1}
    for one in lines:
        grid.add_row(
            one["system"],
            str(one["processes"]),
            f"{one['per_second']:,.0f}",
            f"{one['per_second'] / ones[one['system']]:.2f}",
            f"{one['cpu_ms']:.3f}",
            f"{one['conflicts_per_thousand']:.2f}",
        )
    console.print(grid)
    for processes in PROCESSES:
        here = [one for one in lines if one["processes"] == processes]
        kinds = Grid("", *(one["system"] for one in here), box=SIMPLE_HEAD)
        kinds.title = f"Latency p50 / p99, ms, {processes} client process(es)"
        for kind in here[0]["latencies"]:
            shown = [one["latencies"].get(kind) for one in here]
            cells = [f"{one['p50_ms']:.2f} / {one['p99_ms']:.2f}" if one else "" for one in shown]
            kinds.add_row(kind, *cells)
        console.print(kinds)


def _plot(lines: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    for number, name in enumerate(dict.fromkeys(one["system"] for one in lines)):
        here = [one for one in lines if one["system"] == name]
        at = [one["processes"] for one in here]
        color = f"C{number}"
        left.plot(at, [one["per_second"] for one in here], "o-", color=color, label=name)
        left.plot(at, [here[0]["per_second"] * one / at[0] for one in at], ":", color=color)
        right.plot(at, [one["cpu_ms"] for one in here], "o-", color=color, label=name)
    left.set(xlabel="client processes (dotted: linear)", ylabel="transactions/s", ylim=(0, None))
    right.set(xlabel="client processes", ylabel="processor ms a transaction", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(PROCESSES)
    left.legend(fontsize=8)
    figure.suptitle("Figure 9: a brokerage like TPC-E's")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
