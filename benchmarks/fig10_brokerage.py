"""Figure 10 with figure 9's load: a brokerage on HBase while a third of its region servers dies.

As in §3.3, a third of the tablet servers is killed at once, here with a third of the DataNodes, and
the throughput is drawn over time. Fifteen region servers, as small as they come, share this
machine's cores with five DataNodes, two oracles, ZooKeeper, the clients and a worker. After that
are killed, one after the other: the active oracle, ZooKeeper for three seconds, the worker.

A client that is told of an error goes on with its next transaction. In the end every invariant of
the brokerage is checked, and each trade that a client was told of must be there; one whose outcome
a client does not know may be there or not.

    python -m benchmarks.fig10_brokerage ADDRESS FOLDER CUSTOMERS NUMBER      a client
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group
from rich.text import Text

import percola
from benchmarks import fig9_brokerage
from benchmarks.fig9 import BrokerageError, Process
from benchmarks.fig9_brokerage import PercolaBrokerage, key
from benchmarks.fig9_emulator import FEED, Emulator, Facts, InvariantError, Size, check
from benchmarks.fig10_bank import EXPECTED, cut
from benchmarks.fig10_faults import (
    AIM_SHARE,
    SESSION,
    effects,
    plot,
    rate,
    recovered,
    start_again,
    table,
    with_oracles,
)
from benchmarks.fig10_load import SMALL_JAVA, Event
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.servers import leader
from percola import Worker
from percola.devcluster import Cluster, ClusterError
from percola.devcluster.cluster import Regions

AIM_SECONDS: Final = 30.0
"""Seconds from the last region's opening until the throughput is back."""
_BEFORE: Final = 30
"""Seconds before the kill whose throughput is that to be reached again."""
_HEAP: Final = {"zookeeper": 64, "namenode": 128, "datanode": 96, "master": 256}
_BY_ACCOUNT: Final = ("accounts", "holdings", "holding_history", "by_account")


@dataclass(frozen=True, slots=True)
class Scale:
    """How many servers there are, and for how long clients work before and after a fault."""

    region_servers: int
    data_nodes: int
    heap: int
    clients: int
    warm: float
    unit: float


FULL: Final = Scale(15, 5, 160, 4, 120.0, 30.0)
QUICK: Final = Scale(3, 3, 256, 2, 20.0, 12.0)


# --- A client ---------------------------------------------------------------------------------


@dataclass
class Client(Emulator):
    """An emulator that survives errors, and writes down each outcome when it knows it."""

    log: Path = field(default=Path(os.devnull), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._file = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _time(self, kind: str, function: Any, *arguments: Any) -> Any:
        trade = arguments[0] if kind in ("trade_order", "trade_result") else "-"
        try:
            found = super()._time(kind, function, *arguments)
        except EXPECTED as error:
            self._note(kind, trade, type(error).__name__)
            raise
        self._note(kind, trade, "")
        return found

    def _note(self, kind: str, trade: str, error: str) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {kind} {trade} {error}\n".encode())

    def work(self, ended: threading.Event) -> None:
        """Transactions until then."""
        while not ended.is_set():
            try:
                self.step()
            except EXPECTED:
                ended.wait(0.1)


def client(address: str, folder: Path, customers: int, number: int) -> None:
    """Work until standard input ends."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    with percola.open(address, fig9_brokerage.SCHEMA) as repo:
        working = Client(
            PercolaBrokerage(repo, number), Size(customers), number, log=folder / f"{number}.log"
        )
        print("ready", flush=True)
        threading.Thread(target=wait, daemon=True).start()
        working.work(ended)


# --- What clients were told ---------------------------------------------------------------------


@dataclass
class Told:
    """What all clients wrote down.

    Attributes:
        feeds: Market-Feeds that a client knows to have committed, and those that ended with an
            error.
        commits: when transactions ended well, in ns, in order.
        known: trades by kind of the transactions that a client knows to have committed.
        unknown: the same of those that ended with an error.
        errors: how many of each.
    """

    commits: list[int] = field(default_factory=list)
    known: dict[str, set[str]] = field(default_factory=dict)
    unknown: dict[str, set[str]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    feeds: list[int] = field(default_factory=lambda: [0, 0])

    @classmethod
    def of(cls, folder: Path) -> Told:
        """Read all logs."""
        told = cls()
        for path in folder.glob("*.log"):
            for line in path.read_text().splitlines():
                at, kind, trade, *error = line.split(" ")
                into = told.unknown if error[0] else told.known
                into.setdefault(kind, set()).add(trade)
                told.feeds[bool(error[0])] += kind == "market_feed"
                if error[0]:
                    told.errors[error[0]] += 1
                else:
                    told.commits.append(int(at))
        told.commits.sort()
        return told

    def broken(self, facts: Facts, size: Size) -> str:
        """Which promise the stored facts do not keep, in a sentence; empty if they keep all."""
        completed = {trade for trade, one in facts.trades.items() if one[4]}
        for kind, stored in (("trade_order", set(facts.trades)), ("trade_result", completed)):
            known, unknown = self.known.get(kind, set()), self.unknown.get(kind, set())
            if lost := known - stored:
                return f"{len(lost)} transactions of the kind {kind} are lost: {min(lost)} …"
            if made_up := stored - known - unknown:
                return f"{len(made_up)} of the kind {kind} were never made: {min(made_up)} …"
        known_feeds, unknown_feeds = self.feeds
        if not 0 <= facts.ticks // FEED - known_feeds <= unknown_feeds:
            return (
                f"{facts.ticks:,} prices were recorded by {known_feeds:,} Market-Feeds, and "
                f"{unknown_feeds:,} that may have been."
            )
        try:
            check(facts, size, len(facts.trades), len(completed), facts.ticks // FEED)
        except InvariantError as error:
            return str(error)
        return ""


# --- The cluster --------------------------------------------------------------------------------


class Watch:
    """What the master says about the regions, over time; a context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.seen: list[tuple[int, Regions]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(0.25):
            try:
                self.seen.append((time.monotonic_ns(), self._cluster.regions()))
            except ClusterError:
                continue  # It is busy; the next look will tell.

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def opened(self, killed: int, dead: int) -> int | None:
        """When all regions were served again after so many servers were killed, in ns."""
        total = max(one.served for at, one in self.seen if at <= killed)
        for at, one in self.seen:
            if at > killed and one.dead >= dead and one.served >= total and not one.in_transition:
                return at
        return None


def set_up(address: str, size: Size, regions: int) -> None:
    """Make the tables, those by account in so many regions, and load the brokerage."""
    percola.open(address, fig9_brokerage.SCHEMA).close()
    at = [key(size.accounts * one // regions).encode() for one in range(1, regions)]
    for name in _BY_ACCOUNT:
        cut(address, name, at)
    with percola.open(address, fig9_brokerage.SCHEMA) as repo:
        fig9_brokerage.load(repo, size)


class Brokerage:
    """The clients and the worker, and what is done to them and to the servers."""

    def __init__(self, address: str, folder: Path, scale: Scale, size: Size) -> None:
        self.events: list[Event] = []
        self._environment = {**os.environ, "PERCOLA_HBASE_JVM_OPTIONS": SMALL_JAVA}
        self._worker_command = [
            *(sys.executable, "-m", "benchmarks.fig9_brokerage", address, "", "worker")
        ]
        command = [sys.executable, "-m", "benchmarks.fig10_brokerage", address, str(folder)]
        self._stack = ExitStack()
        with self._stack:
            self._clients: list[Process] = []
            for number in range(scale.clients):
                one = Process([*command, str(size.customers), str(number)], self._environment)
                self._stack.callback(one.end, kill=True)
                self._clients.append(one)
            self.worker = Process(self._worker_command, self._environment)
            self._stack.callback(lambda: self.worker.end(kill=True))
            self._stack = self._stack.pop_all()

    def note(self, name: str, *, is_fault: bool = True) -> int:
        """Remember that something is done now; when that is, in ns."""
        self.events.append(Event(name, time.monotonic_ns(), is_fault))
        return self.events[-1].at

    def restart_worker(self) -> None:
        """Kill the worker and start another."""
        self.worker.check()
        self.worker.end(kill=True)
        self.worker = Process(self._worker_command, self._environment)

    def end(self) -> None:
        """Let the clients finish. BrokerageError if one, or the worker, has ended by itself."""
        self.note("end", is_fault=False)
        for one in (*self._clients, self.worker):
            one.check()
        for one in (*self._clients, self.worker):
            one.end()

    def close(self) -> None:
        """Leave no process behind."""
        self._stack.close()


def work(seconds: float) -> None:
    """Let the clients work: the stretch of time is what is asked for."""
    time.sleep(seconds)


def run(console: Console, *, quick: bool) -> None:
    """Run the brokerage through all faults, print what they did, draw the curve, judge it."""
    scale = QUICK if quick else FULL
    found = conditions()
    size = Size(250 * scale.clients)
    third = scale.region_servers // 3
    nodes = scale.data_nodes // 3
    with temporary_folder() as folder, ExitStack() as stack:
        console.log(f"Figure 10: starting HBase with {scale.region_servers} region servers …")
        cluster = Cluster(
            folder / "cluster",
            region_servers=scale.region_servers,
            data_nodes=scale.data_nodes,
            heap={**_HEAP, "regionserver": scale.heap},
            session=SESSION,
        )
        oracles, address = stack.enter_context(with_oracles(cluster))
        console.log(f"Figure 10: loading a brokerage of {size.customers:,} customers …")
        set_up(address, size, scale.region_servers)
        logs = folder / "clients"
        logs.mkdir()
        watch = stack.enter_context(Watch(cluster))
        brokerage = Brokerage(address, logs, scale, size)
        stack.callback(brokerage.close)
        work(scale.warm)
        names = [f"regionserver-{one}" for one in range(1, third + 1)]
        lost = names + [f"datanode-{one}" for one in range(1, nodes + 1)]
        killed = brokerage.note(f"a third of the servers killed: {third} of HBase, {nodes} of HDFS")
        for name in lost:
            cluster.process(name).kill()
        console.log(f"Figure 10: killed {', '.join(lost)}")
        until = time.monotonic() + 180.0
        while (opened := watch.opened(killed, third)) is None and time.monotonic() < until:
            work(0.25)
        work(AIM_SECONDS + _BEFORE)
        brokerage.note("restarted", is_fault=False)
        for name in lost:
            cluster.process(name).start()
        work(scale.unit)
        brokerage.note("active oracle killed")
        leader(oracles).kill()
        work(scale.unit)
        start_again(oracles, cluster)
        brokerage.note("ZooKeeper killed, for 3 s")
        cluster.process("zookeeper").kill()
        work(3.0)
        cluster.process("zookeeper").start()
        work(scale.unit)
        brokerage.note("worker killed")
        brokerage.restart_worker()
        work(scale.unit)
        console.log("Figure 10: checking what is stored …")
        brokerage.end()
        told = Told.of(logs)
        with percola.open(address, fig9_brokerage.SCHEMA) as repo:
            Worker(repo, [fig9_brokerage.add_up]).run_until_idle()
            facts = fig9_brokerage.facts(repo)
        broken = told.broken(facts, size)
    events = brokerage.events
    restarted = next(one.at for one in events if one.name == "restarted")
    before = rate(told.commits, killed - _BEFORE * 10**9, killed)
    seconds = None if opened is None else recovered(told.commits, before, opened, restarted)
    shown = effects(events, told.commits)
    name = output_name("fig10_brokerage", quick=quick)
    picture = OUTPUT / f"{name}.png"
    what = "transactions in a second"
    plot(events, told.commits, picture, what)
    first = told.commits[0]
    path = write_json(
        name,
        {
            "conditions": found,
            "scale": asdict(scale),
            "events": [{"name": one.name, "at": (one.at - first) / 1e9} for one in events],
            "effects": [asdict(one) for one in shown],
            "opened_after": None if opened is None else (opened - killed) / 1e9,
            "recovered_after": seconds,
            "errors": dict(told.errors),
            "trades": len(facts.trades),
            "broken": broken,
            "commits": [(at - first) / 1e9 for at in told.commits],
        },
    )
    errors = ", ".join(f"{count} {kind}" for kind, count in told.errors.items()) or "no error"
    console.print(
        Group(
            table(shown, "transactions"),
            Text(_recovery(killed, opened, seconds)),
            Text(
                f"{len(told.commits):,} transactions, {len(facts.trades):,} trades; clients were "
                f"told of {errors}. {broken or 'All invariants hold and no trade is lost.'}"
            ),
            Text(f"On {conditions_line(found)}; the servers are on the same cores."),
            Text(f"Plot: {picture}   Figures: {path}", style="dim"),
        )
    )
    if broken:
        raise BrokerageError(broken)


def _recovery(killed: int, opened: int | None, seconds: float | None) -> str:
    if opened is None:
        return "The regions of the killed servers were not served again within 180 s."
    words = f"All regions were served again {(opened - killed) / 1e9:.1f} s after the kill; "
    if seconds is None:
        return f"{words}throughput did not return to {AIM_SHARE:.0%} before the restart."
    return (
        f"{words}throughput was back to {AIM_SHARE:.0%} {seconds:.0f} s later "
        f"(aim: {AIM_SECONDS:.0f} s)."
    )


if __name__ == "__main__":
    client(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
