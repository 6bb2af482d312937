"""What the simulation says about this machine's measurements, beside what was measured.

Nothing is predicted from itself: each line names what it is calibrated on. Here client, servers and
oracle share a machine, so their processor time is spent at one station with its two cores; what a
Python client computes also holds its global lock.

Rates are predicted of runs that had the machine for themselves. Of runs beside other programs,
whose rates say how busy the machine was, the processor time of each part is, and the rate only by
for how long the kernel says that each part waited for a core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.scale_calls import brokerage_calls, clustering_calls
from benchmarks.scale_cluster import SYNCS
from benchmarks.scale_costs import OPERATIONS, call_costs, program_costs
from benchmarks.scale_queues import Load, Outcome, Station, Visit, simulate

THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Prediction:
    """A line of the table.

    Attributes:
        used: what it is calibrated on.
    """

    name: str
    unit: str
    predicted: float
    measured: float
    used: str

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a transaction here: milliseconds of processor time, and of waiting for the disk.

    Attributes:
        client, others: processor time of the client, and of servers or oracle.
        python: how much of the client's holds its global lock.
        shared: a draw, which the threads of a process share.
    """

    client: float
    others: float
    python: float
    wait: float = 0.0
    shared: bool = False


def on_one_machine(steps: Sequence[Step], load: Load, cores: int, seed: int = 0) -> Outcome:
    """Simulate clients, servers and oracle that share the cores of a machine.

    A call waits for a core where it is sent, where it is served and where its answer is read.
    """
    stations = {"cores": Station(cores), "lock": Station(of_process=True), "disk": Station(0)}
    visits: list[Visit] = []
    for one in steps:
        if one.shared:
            whole = (one.client + one.others) / 1000
            visits.append(Visit("cores", whole, shared=True, hops=3))
            continue
        around = [Visit("cores", one.python / 2000, holding="lock")] if one.python else []
        rest = one.client + one.others - one.python
        visits += around
        if rest:
            visits.append(Visit("cores", rest / 1000, hops=2))
        visits += around
        if one.wait:
            visits.append(Visit("disk", one.wait / 1000))
    # Some thousand transactions.
    together = min(cores, load.processes * load.threads)
    seconds = 4 * sum(one.client + one.others + one.wait for one in steps) / together
    return simulate(stations, visits, load, seconds=seconds, warm=seconds / 10, seed=seed)


_DRAWS: Final = ("start_ts", "commit_ts")
_LOGGED: Final = "commit, "
"""Begins the stage that waits for the store's log: the primary's lock is not in it (068)."""


def _steps(figures: Mapping[str, Any], name: str, threads: int) -> list[Step]:
    """The steps of an operation with so many threads, from the stages of one thread.

    A stage is processor time but for the log's sync. The client's share of it is that of the same
    run's processor times; with many threads a call is as much cheaper as the raw store's.
    """
    run = figures["fig8"]
    lines, sync = run["lines"], run["source"]["sync_ms"]
    client, servers = (call_costs(figures, part, 1) for part in ("client", "servers"))
    oracle = lines["read alone"]["1"]["percola"]["oracle"]
    raw = "read" if "read" in name else "write"

    def processor(line: str, wait: float) -> float:
        """Of the raw store: with one thread all but the sync, with many what both sides compute."""
        if threads == 1:
            return float(1000 / lines[line]["1"]["raw"]["per_second"] - wait)
        both = lines[line][str(threads)]["raw"]
        servers_ms = 1000 / run["raw_a_second_of_servers"][line]
        return float(servers_ms * (1 + both["client"] / both["servers"]))

    logged = sync if raw == "write" else 0.0
    alone = 1000 / lines[raw]["1"]["raw"]["per_second"] - logged
    cheaper = processor(raw, logged) / alone
    rows = processor("write five", sync) / processor("write", sync)
    java = lines[raw]["1"]["raw"]["client"] * cheaper
    found = []
    for stage, ms in run["stages"]["write" if raw == "write" else name]:
        if stage == "Python":
            found.append(Step(ms, 0.0, ms))
        elif stage in _DRAWS:
            mine = ms * client.draw / (client.draw + oracle)
            found.append(Step(mine, ms - mine, max(0.0, mine - java), shared=True))
        else:
            ours, theirs = (
                (client.read, servers.read) if stage == "read" else (client.mutate, servers.mutate)
            )
            wait = sync if stage.startswith(_LOGGED) else 0.0
            took = (ms - wait) * cheaper
            mine = took * ours / (ours + theirs)
            step = Step(mine, took - mine, max(0.0, mine - java), wait)
            found.append(step)
            if name == "write five":
                # The other four rows go in one call, which costs more as the raw store's does.
                found.append(Step(mine * rows, step.others * rows, step.python * rows, sync))
    return found


def figure_8(figures: Mapping[str, Any]) -> list[Prediction]:
    """Sixteen threads from one, and five cells from one cell."""
    run = figures["fig8"]
    found = []
    for name, shown in OPERATIONS.items():
        for threads in (1, THREADS):
            if threads == 1 and name != "write five":
                continue  # That is what the stages are.
            steps = _steps(figures, name, threads)
            outcome = on_one_machine(steps, Load(1, threads), run["source"]["cores"])
            found.append(
                Prediction(
                    f"fig8: {shown}, {threads} thread{'s' if threads > 1 else ''}",
                    "/s",
                    outcome.per_second,
                    run["lines"][name][str(threads)]["percola"]["per_second"],
                    "stages of one thread" + (" writing one cell" if "five" in name else ""),
                )
            )
    return found


def figure_7(figures: Mapping[str, Any]) -> list[Prediction]:
    """The clustering on HBase, from a document's calls: one process writes, one observes."""
    client, servers = (program_costs(figures, part, 1) for part in ("client", "servers"))
    oracle, locks = figures["oracle"]["call_us"] / 1000, 3 * figures["oracle"]["lock_us"] / 1000
    document, observed = clustering_calls()
    run = Step(client.of(observed), servers.of(observed), 0.0, wait=SYNCS * _sync(figures))
    draws = observed["draws"] * oracle + locks
    outcome = on_one_machine([run, Step(0.0, draws, 0.0)], Load(1, 1), cores=2)
    stated = figures["stated"]["fig7_hbase"]
    used = "fig9 with one client; counted calls"
    return [
        Prediction(
            "fig7 on HBase: processor time of a document",
            "ms",
            client.of(document) + servers.of(document) + document["draws"] * oracle + locks,
            stated["document_ms"],
            used,
        ),
        Prediction(
            "fig7 on HBase: the most documents, one worker",
            "/s",
            outcome.per_second,
            stated["documents_per_second"],
            used,
        ),
    ]


def _sync(figures: Mapping[str, Any]) -> float:
    """Milliseconds that the log's disk takes."""
    return float(figures["stated"]["sync_ms"]["value"])


def figure_9(figures: Mapping[str, Any]) -> list[Prediction]:
    """The brokerage on HBase: from one client's processor time, its rate, and all of two clients.

    How long each part waited for a core is not predicted: the kernel has told it.
    """
    lines = figures["fig9"]["lines"]
    calls = brokerage_calls()
    oracle = figures["oracle"]["call_us"] / 1000
    alone, many = (
        {
            "clients": program_costs(figures, "client", threads).of(calls.mix),
            "servers": program_costs(figures, "servers", threads).of(calls.all),
        }
        for threads in (1, THREADS)
    )
    # The worker's part is not in a client's way.
    servers = program_costs(figures, "servers", 1)
    in_the_way = servers.of(calls.mix) / servers.of(calls.all)
    draws = calls.mix["draws"] * program_costs(figures, "client", 1).draw
    found = []
    for processes, line in lines.items():
        clients = f"{processes} client{'s' if processes != '1' else ''}"
        # Between one thread and sixteen, calls become cheaper with each doubling.
        depth = {"1": 0.0, "2": 0.25, "4": 0.5}.get(processes, 1.0)
        parts = {name: ms + depth * (many[name] - ms) for name, ms in alone.items()}
        used = "fig9 with one client"
        if processes != "1":
            found += [
                Prediction(
                    f"fig9 on HBase, {clients}: processor time of the {name}",
                    "ms",
                    ms,
                    line[name],
                    used,
                )
                for name, ms in parts.items()
            ]
        if "waited" not in line:
            continue  # Of an earlier run: its rate says how busy the machine was.
        # Of the stored run's clients it is below zero, as waits of ended threads were taken off.
        longer = {part: 1 + max(0.0, ms) / line[part] for part, ms in line["waited"].items()}
        mine = parts["clients"] - draws
        outcome = on_one_machine(
            [
                Step(
                    draws * longer["clients"],
                    calls.mix["draws"] * oracle * longer["oracle"],
                    0.0,
                    shared=True,
                ),
                Step(
                    mine * longer["clients"],
                    in_the_way * parts["servers"] * longer["servers"],
                    0.0,
                    SYNCS * calls.writing * _sync(figures),
                ),
            ],
            Load(int(processes), 1),
            # Waiting for one of the two is in the steps already.
            cores=100,
        )
        found.append(
            Prediction(
                f"fig9 on HBase, {clients}",
                "/s",
                outcome.per_second,
                line["per_second"],
                f"{used}; waits for a core",
            )
        )
    return found


def timestamps(figures: Mapping[str, Any]) -> list[Prediction]:
    """How many timestamps a call to the oracle carries."""
    oracle = figures["oracle"]
    draw = Step(oracle["client_us"] / 1000, oracle["call_us"] / 1000, 0.0, shared=True)
    return [
        Prediction(
            f"oracle: timestamps a call, {processes} x {threads} threads",
            "",
            on_one_machine([draw], Load(processes, threads), 2).carried["cores"],
            figures["stated"]["timestamps_a_call"][f"{processes}x{threads}"],
            "the rule of one pending call",
        )
        for processes, threads in ((1, 16), (4, 64))
    ]


def figure_10(figures: Mapping[str, Any]) -> list[Prediction]:
    """How long nothing commits after a fault."""
    stated = figures["stated"]["fig10"]
    reassigned = stated["region_server_webindex_seconds"] - stated["session_seconds"]
    lease = stated["lease_seconds"]
    # Renewed every third of a lease, so half of that is over on average; a successor waits 1.1.
    oracle = 1.1 * lease - lease / 6
    return [
        Prediction(
            "fig10: no commits after a region server's death",
            "s",
            stated["session_seconds"] + reassigned,
            stated["region_server_seconds"],
            "its session; fig10_webindex",
        ),
        Prediction(
            "fig10: the same, that of hbase:meta",
            "s",
            stated["session_seconds"] + reassigned,
            stated["meta_seconds"],
            "its session; fig10_webindex",
        ),
        Prediction(
            "fig10: the same, the oracle",
            "s",
            oracle,
            stated["oracle_seconds"],
            "its lease, renewed every third",
        ),
    ]


def predictions(figures: Mapping[str, Any]) -> list[Prediction]:
    """All of them."""
    parts = (figure_8, figure_7, figure_9, timestamps, figure_10)
    return [one for part in parts for one in part(figures)]
