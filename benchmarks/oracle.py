"""§2.3 The timestamp oracle: timestamps a second and their latency, over clients and processes.

One process of `percola oracle`, as users start it, on Bigtable's emulator, where it only reserves a
range now and then. Client processes have threads that draw timestamps one after the other, as
transactions do: a thread that draws is a client. The threads of a process share its one pending
call, so more of them make calls larger and not more frequent; each process adds a call.

    python -m benchmarks.oracle ADDRESS THREADS      a client process
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.fig7_steps import cpu_of
from benchmarks.measure import (
    OUTPUT,
    Distribution,
    conditions,
    conditions_line,
    output_name,
    throughput,
    write_json,
)
from benchmarks.servers import OracleProcess, RelayProcess, emulator
from percola import PercolaError
from percola.coordination.lock_service.client import LockServiceClient
from percola.oracle.client import NetworkOracle

PROCESSES: Final = (1, 2, 4, 8)
THREADS: Final = (1, 4, 16, 64)
JOINED: Final = (100, 1000)
PAPER: Final = 2_000_000
MACHINE: Final = (16, 4)
"""Processes of a machine that share a relay, and their threads."""
TOGETHER: Final = 32
"""Advisory locks that are taken together, as those of an observer's batch."""
_DEADLINE: Final = 60.0
_KEPT: Final = 20_000
"""Latencies of each thread that are kept: the last ones."""


class OracleError(PercolaError):
    """Timestamps were handed out twice or did not rise, or a process does not do its part."""


@dataclass(frozen=True, slots=True)
class Point:
    """What client processes measured together.

    Attributes:
        joined: requests that each thread's call carries by itself.
        per_second: timestamps of all processes.
        latency: milliseconds of a draw, as its thread waits.
        a_call: timestamps a call to the oracle carried.
        calls: of all processes.
        calls_per_second: likewise.
        oracle_us: processor time of the oracle a call, in microseconds.
        oracle_busy: share of a core that the oracle used.
        client_us: processor time of the clients a call, in microseconds.
    """

    processes: int
    threads: int
    joined: int
    per_second: float
    latency: Distribution
    a_call: float
    calls: int
    calls_per_second: float
    oracle_us: float
    oracle_busy: float
    client_us: float

    @classmethod
    def of(
        cls, threads: int, joined: int, said: Sequence[dict[str, Any]], oracle_cpu: float
    ) -> Point:
        """From what each client process said. Raises OracleError if timestamps came twice."""
        drawn = sum(one["drawn"] for one in said)
        range_ = max(one["most"] for one in said) - min(one["least"] for one in said) + 1
        if drawn > range_ or not all(one["rises"] for one in said):
            raise OracleError(f"{drawn:,} timestamps were drawn of {range_:,}, or did not rise.")
        latency = Distribution.of([ms for one in said for ms in one["ms"]])
        assert latency is not None
        spans = [(int(one["drawn"]), float(one["began"]), float(one["ended"])) for one in said]
        rate = throughput(spans)
        calls = max(1, sum(one["calls"] for one in said))
        return cls(
            len(said),
            threads,
            joined,
            rate,
            latency,
            drawn / calls,
            calls,
            rate * calls / drawn,
            1e6 * oracle_cpu / calls,
            oracle_cpu * rate / drawn,
            1e6 * sum(one["cpu"] for one in said) / calls,
        )


# --- A client process ---------------------------------------------------------------------


def client(address: str, threads: int, joined: int) -> None:
    """Draw timestamps in threads, for as many seconds as a line of standard input says."""
    oracle = NetworkOracle([address])
    try:
        oracle.timestamp()
        print("ready", flush=True)
        seconds = float(sys.stdin.readline())
        found: list[dict[str, Any]] = []
        calls, cpu, began = oracle.statistics()["calls"], time.process_time(), time.monotonic()
        drawing = [
            threading.Thread(target=_draw, args=(oracle, joined, began + seconds, found))
            for _ in range(threads)
        ]
        for thread in drawing:
            thread.start()
        for thread in drawing:
            thread.join()
        said = {
            "drawn": sum(one["drawn"] for one in found),
            "least": min(one["least"] for one in found),
            "most": max(one["most"] for one in found),
            "rises": len(found) == threads and all(one["rises"] for one in found),
            "ms": [ms for one in found for ms in one["ms"]],
            "began": began,
            "ended": time.monotonic(),
            "calls": oracle.statistics()["calls"] - calls,
            "cpu": time.process_time() - cpu,
        }
        print(json.dumps(said), flush=True)
    finally:
        oracle.close()


def _draw(oracle: NetworkOracle, joined: int, until: float, found: list[dict[str, Any]]) -> None:
    milliseconds: list[float] = []
    draw = oracle.timestamp if joined == 1 else partial(oracle._line().ask, joined)
    least = draw()
    last = least + joined - 1
    calls, rises = 1, True
    now = time.monotonic()
    while now < until:
        ts = draw()
        after = time.monotonic()
        if calls % _KEPT < len(milliseconds):
            milliseconds[calls % _KEPT] = 1000 * (after - now)
        else:
            milliseconds.append(1000 * (after - now))
        rises = rises and ts > last
        last, now, calls = ts + joined - 1, after, calls + 1
    drawn = calls * joined
    found.append({"drawn": drawn, "least": least, "most": last, "rises": rises, "ms": milliseconds})


# --- The measurement ----------------------------------------------------------------------


@contextmanager
def clients(
    address: str, processes: int, threads: int, joined: int
) -> Iterator[list[subprocess.Popen[str]]]:
    """Client processes that are ready."""
    command = [sys.executable, "-m", "benchmarks.oracle", address, str(threads), str(joined)]
    started: list[subprocess.Popen[str]] = []
    try:
        for _ in range(processes):
            started.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for one in started:
            assert one.stdout is not None
            if one.stdout.readline().strip() != "ready":
                raise OracleError(f"A client of the oracle at {address} ended at once.")
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()
            for end in (one.stdin, one.stdout):
                if end is not None:
                    end.close()


def measure(
    oracle: OracleProcess | RelayProcess,
    processes: int,
    threads: int,
    joined: int,
    seconds: float,
) -> Point:
    """Let client processes draw for some seconds, together."""
    with clients(oracle.address, processes, threads, joined) as started:
        cpu = cpu_of(oracle.process.pid)
        for one in started:
            assert one.stdin is not None
            one.stdin.write(f"{seconds}\n")
            one.stdin.flush()
        said = []
        for one in started:
            assert one.stdout is not None
            line = one.stdout.readline()
            if not line:
                raise OracleError("A client of the oracle failed; its output is above.")
            said.append(json.loads(line))
        return Point.of(threads, joined, said, cpu_of(oracle.process.pid) - cpu)


def measure_relay(oracle: OracleProcess, store: str, seconds: float) -> dict[str, float]:
    """Let the processes of a machine draw, first from the oracle and then from a relay.

    Returns:
        timestamps a second, the median wait in milliseconds, and microseconds of processor time a
        timestamp of the oracle and the relay.
    """
    found: dict[str, float] = {}
    with RelayProcess(f"{store}?oracle={oracle.address}") as relay:
        for name, server in (("direct", oracle), ("relayed", relay)):
            before = [cpu_of(one.process.pid) for one in (oracle, relay)]
            point = measure(server, *MACHINE, 1, seconds)
            spent = [cpu_of(one.process.pid) for one in (oracle, relay)]
            drawn = point.a_call * point.calls
            used = [1e6 * (now - was) / drawn for now, was in zip(spent, before, strict=True)]
            found |= {
                f"{name}_per_second": point.per_second,
                f"{name}_ms": point.latency.p50,
                f"{name}_oracle_us": used[0],
                f"{name}_relay_us": used[1],
            }
    return found


def measure_locks(
    oracles: Sequence[OracleProcess], seconds: float, together: int
) -> dict[str, float]:
    """Take and give back advisory locks, so many together, as a scanner does for a batch of rows.

    Returns:
        pairs a second, and microseconds of processor time a call (two a pair) of the client, of the
        oracle that holds the lease, which is the first, and of all of them.
    """
    locks = LockServiceClient([oracle.address for oracle in oracles])

    def used() -> list[float]:
        return [cpu_of(oracle.process.pid) for oracle in oracles]

    try:
        stop = locks.on_wake(lambda _: None)
        end = time.monotonic() + _DEADLINE
        while (opened := len(locks.sessions)) < len(oracles):
            if time.monotonic() > end:
                raise OracleError(
                    f"{opened} of {len(oracles)} oracles have opened a session for locks within "
                    f"{_DEADLINE:.0f} s."
                )
            time.sleep(0.01)  # Other processes' state: there is nothing here to wait on.
        for number in range(100):
            locks.try_lock("warm", b"%d" % number)
            locks.unlock("warm", b"%d" % number)
        cpu, mine, began = used(), time.process_time(), time.monotonic()
        pairs = 0
        while time.monotonic() - began < seconds:
            rows = [("rows", b"%d" % number) for number in range(pairs, pairs + together)]
            if not all(locks.try_lock_many(rows)):
                raise OracleError("An advisory lock that nobody holds was refused.")
            locks.unlock_many(rows)
            pairs += together
        took = time.monotonic() - began
        spent = [now - before for now, before in zip(used(), cpu, strict=True)]
        stop()
    finally:
        locks.close()
    return {
        "per_second": pairs / took,
        "oracle_us": 1e6 * spent[0] / pairs / 2,
        "oracles_us": 1e6 * sum(spent) / pairs / 2,
        "client_us": 1e6 * (time.process_time() - mine) / pairs / 2,
    }


def run(console: Console, *, quick: bool) -> None:
    """Measure, print the table, draw the curves, write the figures as JSON."""
    processes, seconds = ((1, 2), 0.5) if quick else (PROCESSES, 3.0)
    threads, joined = ((1, 16), (1000,)) if quick else (THREADS, JOINED)
    each = [(one, 1) for one in threads] + [(1, one) for one in joined]
    found = conditions()
    points = []
    with (
        console.status("Oracle …") as status,
        emulator(),
        OracleProcess("bigtable://project/percola") as oracle,
    ):
        for count in processes:
            for clients_, joins in each:
                status.update(f"Oracle: {count} processes of {clients_ * joins} clients …")
                points.append(measure(oracle, count, clients_, joins, seconds))
        status.update("Oracle: advisory locks …")
        locks = measure_locks([oracle], seconds * 2, 1)
        locks_together = measure_locks([oracle], seconds * 2, TOGETHER)
        with OracleProcess("bigtable://project/percola") as standby:
            shared = measure_locks([oracle, standby], seconds * 2, 1)
            shared_together = measure_locks([oracle, standby], seconds * 2, TOGETHER)
        status.update("Oracle: a relay …")
        relayed = measure_relay(oracle, "bigtable://project/percola", seconds)
    name = output_name("oracle", quick=quick)
    picture = OUTPUT / f"{name}.png"
    plot(points, picture)
    best = max(points, key=lambda one: one.per_second)
    path = write_json(
        name,
        {
            "conditions": found,
            "paper_per_second": PAPER,
            "points": [asdict(p) for p in points],
            "locks": locks,
            "locks_together": {"rows": TOGETHER, **locks_together},
            "locks_shared": shared,
            "locks_shared_together": {"rows": TOGETHER, **shared_together},
            "relay": {"processes": MACHINE[0], "threads": MACHINE[1], **relayed},
        },
    )
    console.print(table(points))
    console.print(
        f"Most: {best.per_second:,.0f} timestamps a second (the paper: about {PAPER:,} from one "
        f"machine), the oracle at {best.oracle_busy:.0%} of a core. Every thread saw its "
        "timestamps rise, and no more were drawn than their range holds.",
        soft_wrap=True,
    )
    console.print(
        f"Advisory locks: {locks['per_second']:,.0f} taken and given back a second by one thread; "
        f"a call takes {locks['oracle_us']:.0f} µs of the oracle's processor and "
        f"{locks['client_us']:.0f} µs of the client's. With {TOGETHER} of them in "
        f"a call: {locks_together['per_second']:,.0f} a second, "
        f"{locks_together['oracle_us']:.1f} and {locks_together['client_us']:.1f} µs a lock. "
        f"With a standby, which serves half of the rows, the oracle that holds the lease takes "
        f"{shared['oracle_us']:.1f} µs for each of all locks, and both together "
        f"{shared['oracles_us']:.1f}; {TOGETHER} in a call: {shared_together['oracle_us']:.1f} and "
        f"{shared_together['oracles_us']:.1f}.",
        soft_wrap=True,
    )
    console.print(
        f"{MACHINE[0]} processes of {MACHINE[1]} threads by a relay: a timestamp takes "
        f"{relayed['relayed_oracle_us']:.1f} µs of the oracle's processor instead of "
        f"{relayed['direct_oracle_us']:.1f}, and {relayed['relayed_relay_us']:.1f} of the relay's; "
        f"a thread waits {relayed['relayed_ms']:.2f} ms instead of {relayed['direct_ms']:.2f}.",
        soft_wrap=True,
    )
    console.print(
        f"On {conditions_line(found)}. Clients and oracle share its cores.", soft_wrap=True
    )
    console.print(f"Plot: {picture}   Figures: {path}", style="dim", soft_wrap=True)


def table(points: Sequence[Point]) -> Grid:
    """A row for each number of processes and threads; processor times are those of a call."""
    grid = Grid("processes", "clients each", "timestamps/s", "median ms", "99th", box=SIMPLE_HEAD)
    for name in ("a call", "oracle µs", "oracle's core", "clients µs"):
        grid.add_column(name)
    for column in grid.columns:
        column.justify = "right"
    for one in points:
        grid.add_row(
            f"{one.processes}",
            f"{one.threads}" if one.joined == 1 else f"1×{one.joined}",
            f"{one.per_second:,.0f}",
            f"{one.latency.p50:.3f}",
            f"{one.latency.p99:.3f}",
            f"{one.a_call:,.1f}",
            f"{one.oracle_us:.1f}",
            f"{one.oracle_busy:.0%}",
            f"{one.client_us:.1f}",
        )
    return grid


def plot(points: Sequence[Point], path: Path) -> None:
    """Draw throughput and latency over all clients, a line for each number of processes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained")
    for count in sorted({one.processes for one in points}):
        line = sorted(
            (one for one in points if one.processes == count),
            key=lambda one: one.threads * one.joined,
        )
        clients_ = [count * one.threads * one.joined for one in line]
        left.plot(clients_, [one.per_second for one in line], "o-", label=f"{count} processes")
        right.plot(clients_, [one.latency.p50 for one in line], "o-", label=f"{count}: median")
        color = right.lines[-1].get_color()
        right.plot(clients_, [one.latency.p99 for one in line], "o:", color=color)
    left.axhline(PAPER, color="gray", linestyle="--", label="the paper")
    left.set(xlabel="clients", ylabel="timestamps a second", xscale="log", yscale="log")
    right.set(xlabel="clients", ylabel="ms a call (dotted: 99th)", xscale="log", yscale="log")
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("The oracle: timestamps by clients and processes")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


if __name__ == "__main__":
    client(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
