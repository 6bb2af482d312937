"""Figure 10: a bank on HBase while region servers, oracles, ZooKeeper and clients are killed.

The paper kills a third of the tablet servers and shows the throughput fall and come back. Here the
load is a bank (`fig10_bank`), so that besides the curve there is a verdict: after all of it the sum
is right, the recorded history is one of snapshot isolation, `percola check` finds nothing, and no
lock is left once every account has been read.

    regionserver    the one that serves a third of the accounts and nothing of HBase's or Percola's
                    own, where there is such a one; later the one that serves hbase:meta
    oracle          the one that hands out timestamps; the other takes over
    zookeeper       the leader of three servers; liveness tokens and HBase's own sessions hang on it
    datanode        its disk is filled to the last byte, and later freed; it is not killed
    client          dies with whatever it has locked

The others are killed with -9 and started again.
"""

from __future__ import annotations

import errno
import itertools
import subprocess
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

from benchmarks.fig10_load import Bank, BankError, Event
from benchmarks.measure import (
    OUTPUT,
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.servers import OracleProcess, leader
from percola.devcluster import Cluster, jars
from percola.devcluster.settings import SMALL_HEAP

SESSION: Final = 6
"""Seconds after which a region server that was killed is missed."""
AIM_SHARE: Final = 0.95
"""The share of the throughput before a fault with which it counts as overcome."""
_HEAP: Final = {**SMALL_HEAP, "zookeeper": 128}
_BLOCK: Final = 8 << 20
"""Bytes of a block of HDFS: small, so that a small disk has room for those that are written."""
_DISK_MIB: Final = 512
_ON_SMALL_DISK: Final = "datanode-1"

# --- The plan -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and for how long the clients work before it."""

    seconds: float
    happen: Callable[[], None]


class Disk:
    """A small file system that can be filled, mounted at a folder; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._freed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Disk | None:
        """Mount it; None where that is not allowed: it takes root."""
        self.folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(self.folder)]
        with suppress(FileNotFoundError):
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                return self
        return None

    def __exit__(self, *_: object) -> None:
        self.free()
        if self.folder.is_mount():
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        """Take all the room that there is, and what becomes free, until `free`."""
        self._thread = threading.Thread(target=self._fill, daemon=True)
        self._thread.start()

    def _fill(self) -> None:
        with open(self.folder / "filler", "wb", buffering=0) as file:
            while not self._freed.is_set():
                try:
                    file.write(bytes(1 << 20))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    self._freed.wait(0.1)

    def free(self) -> None:
        """Give the room back; harmless if it was not taken."""
        if self._thread is not None:
            self._freed.set()
            self._thread.join()
            (self.folder / "filler").unlink()
            self._thread = None


class Faults:
    """The faults of a bank on a cluster with two oracles: what is killed and restarted.

    Args:
        disk: that of a DataNode, to be filled.
    """

    def __init__(
        self,
        bank: Bank,
        cluster: Cluster,
        oracles: list[OracleProcess],
        disk: Disk | None = None,
    ) -> None:
        self.bank = bank
        self.cluster = cluster
        self.oracles = oracles
        self.disk = disk
        self.placed: dict[str, list[str]] = {}
        """What the region servers served when one was last chosen."""
        self._down: list[str] = []

    def kill_region_server(self, *, of_meta: bool) -> None:
        """Kill the one that serves hbase:meta, or one that serves accounts and as little else."""
        self.placed = self.bank.placement(self.cluster)
        with_accounts = [one for one, tables in self.placed.items() if "accounts" in tables]
        if of_meta:
            [chosen] = [one for one, tables in self.placed.items() if "hbase:meta" in tables]
        else:
            chosen = min(with_accounts, key=lambda one: _others(self.placed[one]))
        served = Counter(self.placed[chosen])
        told = ", ".join(f"{table} ({count})" for table, count in served.items())
        # Looking took a while: what counts begins now.
        self.bank.note(f"{chosen} killed: {told}")
        self.cluster.process(chosen).kill()
        self._down.append(chosen)

    def start_servers(self) -> None:
        """Restart those of the cluster that were killed."""
        while self._down:
            self.cluster.process(self._down.pop()).start()

    def kill_oracle(self) -> None:
        """Kill the active oracle."""
        chosen = leader(self.oracles)
        self.bank.note(f"oracle {chosen.address} killed, which handed out")
        chosen.kill()

    def start_oracles(self) -> None:
        """Restart those that were killed, at their addresses."""
        start_again(self.oracles, self.cluster)

    def kill_zookeeper(self) -> None:
        """Kill the leader of the ensemble; sessions go on at the other servers."""
        chosen = self.cluster.zookeeper_leader()
        self.bank.note(f"{chosen.name} killed, which led")
        chosen.kill()
        self._down.append(chosen.name)

    def fill_disk(self) -> None:
        """Fill the disk of a DataNode."""
        assert self.disk is not None
        self.bank.note(f"disk of {_ON_SMALL_DISK} full")
        self.disk.fill()

    def free_disk(self) -> None:
        """Give the room on it back; BankError if the DataNode has not noticed that it was full."""
        assert self.disk is not None
        told = self.cluster.process(_ON_SMALL_DISK).log.read_text(errors="replace")
        if "No space left on device" not in told:
            raise BankError(f"{_ON_SMALL_DISK} has not met its full disk: nothing was tested.")
        self.disk.free()

    def kill_client(self) -> None:
        """Kill a client."""
        self.bank.note("client killed")
        self.bank.kill_client()


def _others(tables: Sequence[str]) -> int:
    return sum(table != "accounts" for table in tables)


@contextmanager
def with_oracles(cluster: Cluster) -> Iterator[tuple[list[OracleProcess], str]]:
    """Start a cluster and two oracles; yields these, and the address with both."""
    jars.install_all()
    with ExitStack() as stack:
        stack.enter_context(cluster)
        oracles: list[OracleProcess] = []
        stack.callback(kill_all, oracles)
        for _ in range(2):
            oracles.append(OracleProcess(cluster.address))
        yield oracles, f"{cluster.address}?oracle={','.join(one.address for one in oracles)}"


@contextmanager
def arena(
    folder: Path,
    *,
    cluster: Cluster,
    clients: int,
    threads: int = 2,
    disk: Disk | None = None,
    pause: float = 0.0,
) -> Iterator[Faults]:
    """A cluster, two oracles, and a bank that works on them.

    Args:
        disk: that of a DataNode of the cluster.
        pause: seconds for which a thread of a client rests after each transaction.
    """
    with ExitStack() as stack:
        oracles, address = stack.enter_context(with_oracles(cluster))
        bank = Bank(folder / "histories", address, clients=clients, threads=threads, pause=pause)
        yield Faults(stack.enter_context(bank), cluster, oracles, disk)


def start_again(oracles: list[OracleProcess], cluster: Cluster) -> None:
    """Put a new process at the address of each oracle that has ended."""
    for at, one in enumerate(oracles):
        if one.process.poll() is not None:
            oracles[at] = OracleProcess(cluster.address, one.address)


def kill_all(oracles: Sequence[OracleProcess]) -> None:
    """Kill all processes in the list."""
    for one in oracles:
        one.kill()


def plan(faults: Faults, unit: float) -> list[Step]:
    """The whole benchmark's; `unit` is the time between two faults, in seconds."""

    def again(what: Callable[[], None], name: str) -> Callable[[], None]:
        def happen() -> None:
            faults.bank.note(name, is_fault=False)
            what()

        return happen

    def new_client() -> None:
        faults.bank.start_client().hear()

    with_disk = [
        Step(unit / 2, faults.fill_disk),
        Step(unit, again(faults.free_disk, "room on the disk")),
    ]
    return [
        Step(unit, lambda: faults.kill_region_server(of_meta=False)),
        Step(unit, again(faults.start_servers, "region server started")),
        Step(unit, faults.kill_oracle),
        Step(unit / 2, again(faults.start_oracles, "oracle started")),
        Step(unit / 2, faults.kill_zookeeper),
        Step(unit, again(faults.start_servers, "zookeeper started")),
        *(with_disk if faults.disk is not None else ()),
        Step(unit / 2, faults.kill_client),
        Step(unit, again(new_client, "client started")),
        Step(unit / 2, lambda: faults.kill_region_server(of_meta=True)),
        Step(unit, again(faults.start_servers, "region server started")),
        Step(unit, lambda: None),
    ]


# --- What is shown ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effect:
    """What a fault did to the bank.

    Attributes:
        name: the fault.
        at: seconds after the load began.
        without: the longest time without any commit until the next fault, in seconds.
        before: commits a second in the ten seconds before it.
        lowest: commits in the worst second after it.
        after: commits a second in the ten seconds before the next fault.
        back: seconds until ten seconds begin with `AIM_SHARE` of `before`; None: not before the
            next fault.
    """

    name: str
    at: float
    without: float
    before: float
    lowest: float
    after: float
    back: float | None


_AROUND: Final = 10.0


def effects(events: Sequence[Event], commits: Sequence[int]) -> list[Effect]:
    """What each fault did, told by the moments of commits (both in ns, in order)."""
    first = commits[0]
    found = []
    faults = [one for one in events if one.is_fault]
    ends = [one.at for one in faults[1:]] + [events[-1].at]
    for one, end in zip(faults, ends, strict=True):
        within = [one.at, *(at for at in commits if one.at <= at < end), end]
        gaps = [later - earlier for earlier, later in itertools.pairwise(within)]
        seconds = [
            rate(commits, at, at + 10**9)
            for at in range(one.at, max(one.at + 1, end - 10**9), 10**9)
        ]
        around = int(_AROUND * 1e9)
        before = rate(commits, max(first, one.at - around), one.at)
        found.append(
            Effect(
                one.name,
                (one.at - first) / 1e9,
                max(gaps) / 1e9,
                before,
                min(seconds),
                rate(commits, max(one.at, end - around), end),
                recovered(commits, before, one.at, end),
            )
        )
    return found


def recovered(commits: Sequence[int], before: float, start: int, end: int) -> float | None:
    """Seconds from `start` until ten seconds begin with `AIM_SHARE` of `before`; None: never.

    `before` is a second; the moments are in ns, and the ten seconds are over at `end`.
    """
    around = int(_AROUND * 1e9)
    for at in range(start, end - around + 1, 10**9):
        if rate(commits, at, at + around) >= AIM_SHARE * before:
            return (at - start) / 1e9
    return None


def rate(commits: Sequence[int], start: int, end: int) -> float:
    """Commits a second between two moments; 0 if they are one."""
    if start >= end:
        return 0.0
    return (bisect_left(commits, end) - bisect_left(commits, start)) / (end - start) * 1e9


def table(found: Sequence[Effect], what: str = "commits") -> Grid:
    """A line for each fault, and how many commits, or what it is, there were a second."""
    grid = Grid(
        title=f"Figure 10 on HBase: {what} a second around each fault",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    grid.add_column("")
    back = f"Seconds until {AIM_SHARE:.0%}"
    for name in ("At s", "Before", "Worst second", "After", "Seconds without any", back):
        grid.add_column(name, justify="right", no_wrap=True)
    for one in found:
        grid.add_row(
            one.name,
            f"{one.at:.0f}",
            f"{one.before:.0f}",
            f"{one.lowest:.0f}",
            f"{one.after:.0f}",
            f"{one.without:.1f}",
            "–" if one.back is None else f"{one.back:.0f}",
        )
    return grid


def plot(
    events: Sequence[Event],
    commits: Sequence[int],
    path: Path,
    what: str = "transfers committed in a second",
) -> None:
    """Commits, or `what` happens at these moments, a second over time; a line for each event."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    first = commits[0]
    seconds = range(int((events[-1].at - first) / 1e9) + 1)
    rates = [rate(commits, first + at * 10**9, first + (at + 1) * 10**9) for at in seconds]
    figure, axes = pyplot.subplots(figsize=(12, 4.5), layout="constrained")
    axes.step(seconds, rates, where="post", color="#4c78a8")
    axes.fill_between(seconds, rates, step="post", color="#4c78a8", alpha=0.2)
    top = max(rates) * 1.05
    for one in events:
        at = (one.at - first) / 1e9
        colour = "#d62728" if one.is_fault else "#2ca02c"
        axes.axvline(at, color=colour, linewidth=1)
        axes.text(
            at, top, f" {one.name.partition(':')[0]}", color=colour, fontsize=7, rotation=90,
            verticalalignment="top", horizontalalignment="right",
        )  # fmt: skip
    axes.set_xlabel("seconds")
    axes.set_ylabel(what)
    axes.set_ylim(0, top)
    axes.set_xlim(0, seconds[-1] if seconds else 1)
    figure.suptitle("Figure 10 on HBase", x=0.02, horizontalalignment="left")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def run(console: Console, *, quick: bool) -> None:
    """Run the bank through all faults, print what they did, draw the curve, give the verdict."""
    circumstances = conditions()
    unit, clients = (12.0, 2) if quick else (25.0, 4)
    with temporary_folder() as folder:
        console.log("Figure 10: starting HBase, two oracles and the bank …")
        cluster = Cluster(
            folder / "cluster",
            heap=_HEAP,
            session=SESSION,
            settings={"dfs.blocksize": str(_BLOCK)},
            zookeepers=3,
        )
        with (
            Disk(cluster.folder / "data" / _ON_SMALL_DISK) as disk,
            arena(folder, cluster=cluster, clients=clients, disk=disk) as faults,
        ):
            if disk is None:
                console.log("Figure 10: no disk is filled: to mount a small one takes root.")
            for step in plan(faults, unit):
                faults.bank.work(step.seconds)
                known = len(faults.bank.events)
                step.happen()
                for event in faults.bank.events[known:]:
                    console.log(f"Figure 10: {event.name}")
            console.log("Figure 10: reading the last, and judging the history …")
            events = faults.bank.events
            verdict = faults.bank.close()
    commits = verdict.commits()
    found = effects(events, commits)
    name = output_name("fig10_faults", quick=quick)
    picture = OUTPUT / f"{name}.png"
    plot(events, commits, picture)
    figures = {
        "conditions": circumstances,
        "clients": clients,
        "events": [{"name": one.name, "at": (one.at - commits[0]) / 1e9} for one in events],
        "effects": [asdict(one) for one in found],
        "outcomes": dict(verdict.outcomes),
        "errors": verdict.errors,
        "broken": verdict.broken(),
        "commits": [(at - commits[0]) / 1e9 for at in commits],
    }
    path = write_json(name, figures)
    told = Counter(one["error"] for one in verdict.errors)
    outcomes = ", ".join(f"{count:,} {what}" for what, count in verdict.outcomes.items())
    errors = ", ".join(f"{count} {what}" for what, count in told.items()) or "nothing"
    console.print(
        Group(
            table(found),
            Text(f"Transactions: {outcomes}. Clients were told of {errors}."),
            Text(
                f"Locks before the last reader: {verdict.locks_left}. The sum is "
                f"{verdict.total}, the history is judged, percola check has run: "
                + ("; ".join(verdict.broken()) or "nothing is broken."),
            ),
            Text(f"On {conditions_line(circumstances)}; the servers are on the same cores."),
            Text(f"Plot: {picture}   Figures: {path}", style="dim"),
        )
    )
    if verdict.broken():
        raise BankError("; ".join(verdict.broken()))
