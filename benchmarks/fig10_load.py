"""Figure 10's load as its driver sees it: clients to start and kill, commits, and a verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import percola
from benchmarks.fig10_bank import ACCOUNTS, EACH
from benchmarks.servers import ROOT
from percola.devcluster import Cluster
from percola.testing.histories.recorder import Outcome, Recorded, read_folder
from percola.testing.histories.timestamps import check, explain

REGIONS: Final = 6
_DEADLINE: Final = 300.0
SMALL_JAVA: Final = "-Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ActiveProcessorCount=1"


class BankError(percola.PercolaError):
    """The bank's load did not do the work to be measured, or a guarantee was violated."""


class Program:
    """A process of `fig10_bank`.

    Args:
        prefix: what its command begins with: to run it somewhere else.
    """

    def __init__(self, *arguments: object, log: Path, prefix: Sequence[str] = ()) -> None:
        self.name = " ".join(map(str, arguments[:1]))
        self._log = log
        sources = os.pathsep.join((str(ROOT), str(Path(percola.__file__).parents[1])))
        with open(log, "ab") as said:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "benchmarks.fig10_bank", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env={
                    **os.environ,
                    "PYTHONPATH": sources,
                    "PERCOLA_HBASE_JVM_OPTIONS": SMALL_JAVA,
                },
            )

    def hear(self) -> dict[str, Any]:
        """The next line that it prints; BankError with its last words if it ends instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            words = self._log.read_text(errors="replace").strip().splitlines()
            raise BankError(f"'{self.name}' ended with {code}: {' '.join(words[-3:])[-1500:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> int:
        """Tell it to end, and wait for that; its exit code."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait(_DEADLINE)

    def kill(self) -> None:
        """End it as kill -9 does; harmless if it has ended."""
        self.process.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            if end is not None:
                with suppress(BrokenPipeError):
                    end.close()


def _run(*arguments: object, log: Path) -> dict[str, Any]:
    program = Program(*arguments, log=log)
    try:
        return program.hear()
    finally:
        program.end()


def placement(address: str, cluster: Cluster, log: Path) -> dict[str, list[str]]:
    """Which region server, by its name in the cluster, serves regions of which tables."""
    found = _run("places", address, log=log)["servers"]
    names = [one for one in cluster.names if one.startswith("regionserver")]
    ports = {cluster.process(name).port: name for name in names}
    return {ports[int(server.split(",")[1])]: sorted(of) for server, of in found.items()}


@dataclass(frozen=True, slots=True)
class Event:
    """An action on the servers, and its time by the clock of the histories, in ns."""

    name: str
    at: int
    is_fault: bool = True


class Bank:
    """A bank that works: its servers are given, its clients are its own; a context manager.

    Args:
        folder: for the histories.
        address: the repository's address, with its oracles.
        clients: how many processes.
        threads: of each.
        regions: in how many regions the accounts are.
        timeout: for how long a client tries in vain, in seconds; None: as usual.
        pause: seconds for which a thread rests after each transaction.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        *,
        clients: int,
        threads: int = 2,
        regions: int = REGIONS,
        timeout: float | None = None,
        pause: float = 0.0,
    ) -> None:
        self.folder = folder
        self.address = address
        self.threads = threads
        self.clients: list[Program] = []
        self.events: list[Event] = []
        self.regions = regions
        self.timeout = timeout
        self.pause = pause
        self._started = 0
        self._stack = ExitStack()
        self._sizes: dict[Path, int] = {}
        self._commits: Counter[Path] = Counter()
        folder.mkdir(parents=True, exist_ok=True)
        self._count = clients

    def __enter__(self) -> Self:
        with self._stack:
            self.run("set-up", self.address, self.folder, self.regions)
            new = [self.start_client() for _ in range(self._count)]
            for one in new:
                one.hear()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, *arguments: object) -> dict[str, Any]:
        """Run one of the other commands of `fig10_bank`; what it prints."""
        return _run(*arguments, log=self.folder / "log")

    def start_client(self, prefix: Sequence[str] = ()) -> Program:
        """Start another client, `c1` and so on; it prints a line when it has begun.

        `prefix` is what its command begins with: to run it somewhere else.
        """
        self._started += 1
        name = f"c{self._started}"
        words = ["client", self.address, self.folder, name, self.threads, self.pause]
        if self.timeout is not None:
            words.append(self.timeout)
        one = Program(*words, log=self.folder / f"{name}.log", prefix=prefix)
        self._stack.callback(one.kill)
        self.clients.append(one)
        return one

    def note(self, name: str, *, is_fault: bool = True) -> None:
        """Remember that something is done now."""
        self.events.append(Event(name, time.monotonic_ns(), is_fault))

    def commits(self, client: str = "c*") -> int:
        """How many commits clients, or one of them, have heard of until now."""
        for path in self.folder.glob(f"{client}.*.jsonl"):
            with open(path, "rb") as file:
                file.seek(self._sizes.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._sizes[path] = self._sizes.get(path, 0) + len(whole)
            self._commits[path] += whole.count(b'"outcome":"committed"')
        wanted = self.folder.glob(f"{client}.*.jsonl")
        return sum(self._commits[path] for path in wanted)

    def await_commits(self, count: int, client: str = "c*", seconds: float = _DEADLINE) -> None:
        """Wait for so many more commits of all, or of one; BankError if they do not come."""
        wanted = self.commits(client) + count
        end = time.monotonic() + seconds
        while (now := self.commits(client)) < wanted:
            self.check_clients()
            if time.monotonic() > end:
                raise BankError(
                    f"For {seconds:.0f} s there were {now - wanted + count} commits of {client}, "
                    f"not {count}; the last thing that was done is "
                    f"{self.events[-1].name if self.events else 'nothing'}."
                )
            time.sleep(0.05)  # The clients note their commits in files.

    def work(self, seconds: float) -> None:
        """Let the clients work for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check_clients()
            time.sleep(0.1)  # The stretch of time is what is asked for.

    def check_clients(self) -> None:
        """BankError if a client has ended by itself: only what is not to be expected does that."""
        for one in self.clients:
            if one.process.poll() is not None:
                one.hear()

    def kill_client(self) -> None:
        """Kill the first of the clients with -9, whatever it is about."""
        self.clients.pop(0).kill()

    def placement(self, cluster: Cluster) -> dict[str, list[str]]:
        """Which region server, by its name in the cluster, serves regions of which tables."""
        return placement(self.address, cluster, self.folder / "log")

    # --- The end --------------------------------------------------------------------------

    def close(self) -> Verdict:
        """End the clients, and find out whether everything that was promised has been kept."""
        self.note("end", is_fault=False)
        codes = [one.end() for one in self.clients]
        self.clients.clear()
        if any(codes):
            raise BankError(f"Clients ended with the exit codes {codes}; see {self.folder}.")
        closed = self.run("close", self.address, self.folder)
        history = read_folder(self.folder)
        violations = check(history)
        return Verdict(
            closed["sum"],
            explain(violations, len(history)) if violations else "",
            closed["locks_left"],
            closed["locks"],
            closed["checked"],
            Counter(one.outcome.value for one in history),
            errors(self.folder),
            history,
        )


def errors(folder: Path, client: str = "c*") -> list[dict[str, Any]]:
    """What clients, or one of them, were told, in order."""
    found = [
        json.loads(line)
        for path in folder.glob(f"{client}.*.errors")
        for line in path.read_text().splitlines()
    ]
    return sorted(found, key=lambda one: int(one["ended"]))


@dataclass(slots=True)
class Verdict:
    """What is so after all.

    Attributes:
        total: what all accounts come to.
        violations: what is wrong with the history, in words; empty if nothing is.
        locks_left: locks before the last reader came.
        locks: those after it.
        checked: what `percola check` says.
        outcomes: of the recorded transactions.
        errors: what clients were told: {"began", "ended", "error", "says"}.
        history: all of it.
    """

    total: int
    violations: str
    locks_left: int
    locks: int
    checked: dict[str, Any]
    outcomes: Counter[str]
    errors: list[dict[str, Any]]
    history: list[Recorded]

    def broken(self) -> list[str]:
        """The promises that were not kept."""
        found = []
        if self.total != ACCOUNTS * EACH:
            found.append(f"all accounts come to {self.total}, not {ACCOUNTS * EACH}")
        if self.violations:
            found.append(f"the history is none of snapshot isolation: {self.violations}")
        if self.locks:
            found.append(f"{self.locks} locks are left after every account was read")
        if not self.checked.get("sound"):
            found.append(f"percola check: {self.checked.get('findings', 'it said nothing')}")
        return found

    def commits(self) -> list[int]:
        """When clients heard of the commits of transfers, in order, in ns."""
        return sorted(
            one.ended
            for one in self.history
            if one.outcome is Outcome.COMMITTED and one.writes and one.ended is not None
        )
