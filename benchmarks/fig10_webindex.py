"""Figure 10 with the web index: it follows a crawl on HBase while servers and workers are killed.

The bank of `fig10_faults` shows what a fault costs transactions; this, what it costs an index. A
crawl is loaded into a repository on three region servers, with three DataNodes and two oracles,
and two worker processes drain it. Meanwhile are killed with -9, one after the other:

    regionserver    the one with the most tables of the index that does not serve hbase:meta
    oracle          the one that hands out timestamps
    worker          with whatever it was doing

Killed processes are restarted. When no work is left, `webindex verify` compares every row with
a computation from scratch, and `percola check` looks at every cell.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group
from rich.text import Text

from benchmarks.crawl import multiplied, sample, write_warc
from benchmarks.fig10_faults import SESSION, effects, plot, start_again, table, with_oracles
from benchmarks.fig10_load import Event, placement
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.processes import StageError, command
from benchmarks.servers import OracleProcess, leader
from benchmarks.tablets import WorkerProcess, worker
from percola.devcluster import Cluster
from webindex.serving.located import SEARCH_VARIABLE

_OBSERVERS: Final = "webindex.main:observers"
_WORKERS: Final = 2
_LOOK_SECONDS: Final = 0.25
_DEADLINE: Final = 1800.0


class Work:
    """Workers, and when their observers ran.

    Attributes:
        events: what was done to them and to the servers.
        runs: the moment of each run, in order, in ns; within a look they are spread evenly.
    """

    def __init__(self, address: str, stack: ExitStack) -> None:
        self.address = address
        self.events: list[Event] = []
        self.runs: list[int] = []
        self._stack = stack
        self._workers: dict[WorkerProcess, int] = {}
        self._looked = time.monotonic_ns()

    def note(self, name: str, *, is_fault: bool = True) -> None:
        """Remember that something is done now."""
        self.events.append(Event(name, time.monotonic_ns(), is_fault))

    def start_worker(self) -> None:
        """Start one; returns when it has begun."""
        one = self._stack.enter_context(worker(self.address, 1, _OBSERVERS))
        self._workers[one] = 0

    def kill_worker(self) -> None:
        """Kill one."""
        one = next(iter(self._workers))
        del self._workers[one]
        one.process.kill()
        one.process.wait()

    def look(self) -> int:
        """Ask the workers how often their observers have run; how often more than before."""
        now, more = time.monotonic_ns(), 0
        for one, before in self._workers.items():
            if (code := one.process.poll()) is not None:
                raise StageError(f"A worker has ended by itself, with the exit code {code}.")
            # One that waits for a server says so later.
            with suppress(OSError):
                self._workers[one] = one.runs()
                more += self._workers[one] - before
        self.runs += [self._looked + (now - self._looked) * at // (more + 1) for at in range(more)]
        self._looked = now
        return more

    def watch(self, seconds: float) -> int:
        """Look again and again for so long; how often observers ran."""
        end, more = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            more += self.look()
            time.sleep(_LOOK_SECONDS)  # Workers only answer: nothing tells when they have run.
        return more

    def rest(self) -> None:
        """Wait until no cell is dirty."""
        end = time.monotonic() + _DEADLINE
        while self.watch(3.0) or self._is_dirty():
            if time.monotonic() > end:
                raise StageError(f"After {_DEADLINE:.0f} s there is still something to do.")

    def _is_dirty(self) -> bool:
        # Servers that have just come back may not answer somebody new for a while.
        with suppress(StageError):
            return bool(ask(self.address, "status")["notifications"])
        return True

    def end(self) -> None:
        """Let the workers end."""
        for one in self._workers:
            one.end()
        self._workers.clear()


def ask(address: str, *arguments: str, codes: Sequence[int] = (0,)) -> Any:
    """What a command of `percola` says, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "percola.cli", "--repo", address, "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in codes:
        raise StageError(f"'percola {' '.join(arguments)}': {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def _plan(
    work: Work, cluster: Cluster, oracles: list[OracleProcess], log: Path
) -> Iterator[tuple[float, Callable[[], None]]]:
    """What is done, and for how many times the unit the workers work before it."""
    down: list[str] = []

    def kill_region_server() -> None:
        placed = placement(work.address, cluster, log)
        others = [one for one in placed if "hbase:meta" not in placed[one]]
        chosen = max(others, key=lambda one: sum(not t.startswith("@") for t in placed[one]))
        told = ", ".join(f"{name} ({count})" for name, count in Counter(placed[chosen]).items())
        work.look()
        work.note(f"{chosen} killed: {told}")
        cluster.process(chosen).kill()
        down.append(chosen)

    def start_region_server() -> None:
        work.note("region server started", is_fault=False)
        cluster.process(down.pop()).start()

    def kill_oracle() -> None:
        chosen = leader(oracles)
        work.note(f"oracle {chosen.address} killed, which handed out")
        chosen.kill()

    def start_oracle() -> None:
        work.note("oracle started", is_fault=False)
        start_again(oracles, cluster)

    def kill_worker() -> None:
        work.note("worker killed")
        work.kill_worker()

    def start_worker() -> None:
        work.start_worker()
        work.note("worker started", is_fault=False)

    yield 1, kill_region_server
    yield 1, start_region_server
    yield 1, kill_oracle
    yield 0.5, start_oracle
    yield 0.5, kill_worker
    yield 0.5, start_worker


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def run(console: Console, *, quick: bool) -> None:
    """Load, work off beside faults, verify; print what the faults did, and draw the curve.

    Raises StageError if a row differs, a cell is not sound, or the work was done too early.
    """
    circumstances = conditions()
    copies, unit = (3, 8.0) if quick else (4, 20.0)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        stack.enter_context(_environment(SEARCH_VARIABLE, str(folder / "search")))
        console.log("Figure 10: starting HBase and two oracles …")
        cluster = Cluster(folder / "cluster", session=SESSION)
        oracles, address = stack.enter_context(with_oracles(cluster))
        write_warc(folder / "crawl.warc.gz", multiplied(sample(), copies))
        console.log("Figure 10: loading the crawl …")
        loaded = command("load", "--repo", address, "--json", str(folder / "crawl.warc.gz"))
        work = Work(address, stack)
        for _ in range(_WORKERS):
            work.start_worker()
        work.note("begin", is_fault=False)
        for units, happen in _plan(work, cluster, oracles, folder / "places.log"):
            work.watch(units * unit)
            known = len(work.events)
            happen()
            for event in work.events[known:]:
                console.log(f"Figure 10: {event.name}")
        work.rest()
        if work.runs[-1] < work.events[-1].at:
            raise StageError("All was worked off before the last worker had been killed.")
        # When the last observer had run: since then it was only looked whether there is more.
        work.events.append(Event("all worked off", work.runs[-1], is_fault=False))
        work.end()
        console.log("Figure 10: verifying every row …")
        verdict = command("verify", "--repo", address, "--json", accepted=(0, 1))
        sound = ask(address, "check", codes=(0, 1))
    _tell(console, work, loaded, verdict, sound, circumstances, quick=quick)


def _tell(
    console: Console,
    work: Work,
    loaded: dict[str, Any],
    verdict: dict[str, Any],
    sound: dict[str, Any],
    circumstances: dict[str, Any],
    *,
    quick: bool,
) -> None:
    found = effects(work.events, work.runs)
    name = output_name("fig10_webindex", quick=quick)
    picture = OUTPUT / f"{name}.png"
    plot(work.events, work.runs, picture, "observers' runs in a second")
    differing = {one["invariant"]: one["differing"] for one in verdict["invariants"]}
    first = work.runs[0]
    figures = {
        "conditions": circumstances,
        "captures": loaded["loaded"]["written"],
        "runs": len(work.runs),
        "events": [{"name": one.name, "at": (one.at - first) / 1e9} for one in work.events],
        "effects": [asdict(one) for one in found],
        "differing": differing,
        "sound": sound,
    }
    path = write_json(name, figures)
    wrong = [f"invariant {number}: {count} rows" for number, count in differing.items() if count]
    if not sound.get("sound"):
        wrong.append(f"percola check: {sound}")
    seconds = (work.events[-1].at - work.events[0].at) / 1e9
    console.print(
        Group(
            table(found, "observers' runs"),
            Text(
                f"{figures['captures']:,} captures, {figures['runs']:,} runs in {seconds:.0f} s. "
                f"webindex verify and percola check: {'; '.join(wrong) or 'nothing differs'}."
            ),
            Text(f"On {conditions_line(circumstances)}; the servers are on the same cores."),
            Text(f"Plot: {picture}   Figures: {path}", style="dim"),
        )
    )
    if wrong:
        raise StageError("; ".join(wrong))
