"""A cluster at any size: who has how many cores, what a transaction asks of each, what limits.

Of C cores one is the oracle's that hands out timestamps, one the masters' and ZooKeeper's. Each
oracle process serves a share of the advisory locks: from two hundred cores on there is one for each
hundred, all but the first two with a core of their own. The others are region servers of eight
cores and client or worker processes of one core (Python computes on one) and four threads each, in
the proportion in which a transaction needs them. From a hundred cores on sixteen of these processes
share a relay for timestamps. What grows with the number of processes or of regions, and not with
the work, comes on top of that: it ends the straight line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.scale_calls import brokerage_calls, clustering_calls
from benchmarks.scale_costs import program_costs
from benchmarks.scale_queues import Load, Station, Visit

SIZES: Final = (11, 30, 100, 300, 1_000, 3_000, 10_000, 15_000)
SERVER_CORES: Final = 8
THREADS: Final = 4
"""Of a worker, as `WorkerOptions` has them."""
_FIXED: Final = 2
_RELAYED: Final = 100
"""Cores from which on each machine has a relay."""
_CORES_A_LOCK_SERVICE: Final = 100
ORACLE: Final = "oracle"
LOCKS: Final = "lock service"
_SENDING: Final = 0.1
"""The share of the oracle's time in which it may send wake-ups (lock_service/server.py)."""
_WAKE_CALLS: Final = 4000.0
"""The most reports of commits a second, of all processes (lock_service/server.py)."""


_NAMED: Final = 16 * 24
"""The most rows of 32 bytes that a process reports at a time (percola.coordination)."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one transaction, or one document, asks for.

    Attributes:
        client_ms: processor time of clients and workers.
        servers_ms: processor time of the store's servers.
        draws: timestamps.
        syncs: writes to the log, one after the other, that it waits for.
        calls: calls to the store, one after the other.
        row_locks: advisory locks taken and given back; also commits that wake the workers.
        scanning: the share of the processes that are workers, and look for work.
        changes: cells of an observed or followed table that it changes.
    """

    name: str
    client_ms: float
    servers_ms: float
    draws: float
    syncs: float
    calls: float
    row_locks: float
    scanning: float
    changes: float = 1.0


def brokerage(figures: Mapping[str, Any]) -> Work:
    """A transaction of figure 9's mix, put together from its calls with sixteen threads.

    With its share of the observer's runs, one for each completed trade at most.
    """
    mix, worker, results, writing = brokerage_calls()
    client, servers = (program_costs(figures, part, 16) for part in ("client", "servers"))
    observing = results * client.of(worker)
    return Work(
        "brokerage (figure 9)",
        client.of(mix) + observing,
        servers.of(mix) + results * servers.of(worker),
        mix["draws"] + results * worker["draws"],
        syncs=SYNCS * writing,
        calls=mix["reads"] + 4 * writing,
        row_locks=results,
        scanning=observing / (client.of(mix) + observing),
    )


SYNCS: Final = 3
"""Of a transaction that writes other rows than its primary's, whose locks are not in the log."""


def clustering(figures: Mapping[str, Any]) -> Work:
    """A document of figure 7, put together from its calls with sixteen threads."""
    client, servers = (program_costs(figures, part, 16) for part in ("client", "servers"))
    document, observed = clustering_calls()
    return Work(
        "clustering (figure 7)",
        client.of(document),
        servers.of(document),
        document["draws"],
        syncs=1 + SYNCS,
        calls=8,
        row_locks=1,
        scanning=client.of(observed) / client.of(document),
        changes=5,
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of `cores`.

    Attributes:
        workers: processes of clients and workers, a core each.
        scanning: those of them that look for work.
        linear: transactions a second if nothing limits but cores.
        machines: region servers.
        regions: of the tables that observers scan, all together.
        oracles: processes of the oracle: one hands out timestamps, each serves locks.
        relays: whether each machine has a relay for timestamps.
    """

    cores: int
    workers: int
    scanning: int
    linear: float
    machines: int
    server_cores: int
    regions: int
    oracles: int
    relays: bool

    @classmethod
    def of(cls, cores: int, work: Work, regions_a_machine: int) -> Cluster:
        """Cores in the proportion of what a transaction needs."""
        oracles = max(2, cores // _CORES_A_LOCK_SERVICE)
        free = max(2, cores - _FIXED - (oracles - 2))
        share = work.servers_ms / (work.client_ms + work.servers_ms)
        for_servers = min(free - 1, max(1, round(free * share)))
        machines = max(1, round(for_servers / SERVER_CORES))
        each = max(1, for_servers // machines)
        workers = free - each * machines
        return cls(
            cores,
            workers,
            max(1, round(workers * work.scanning)),
            free * per_core(work),
            machines,
            each,
            max(1, machines * regions_a_machine),
            oracles,
            cores >= _RELAYED,
        )


@dataclass(frozen=True, slots=True)
class Shared:
    """What the parts that exist once cost, in milliseconds of one core unless noted.

    Attributes:
        call: of the oracle.
        lock_call: a call that takes or gives back an advisory lock.
        relay_share: what a timestamp costs the oracle if it comes by a relay, as a share of what it
            does without.
        relay: what a timestamp costs the relay.
        read_servers, read_client: an empty scan of one region.
        sync, trip: a write to the log, and a round trip, as a wait.
    """

    call: float
    lock_call: float
    relay_share: float
    relay: float
    read_servers: float
    read_client: float
    sync: float
    trip: float

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> Shared:
        """From all figures."""
        stated, oracle = figures["stated"], figures["oracle"]
        call, lock = oracle["call_us"] / 1000, oracle["lock_us"] / 1000
        servers, client = (program_costs(figures, part, 16) for part in ("servers", "client"))
        return cls(
            call,
            lock,
            oracle["relay_share"],
            oracle["relay_us"] / 1000,
            servers.read,
            client.read,
            stated["sync_ms"]["value"],
            stated["trip_ms"]["value"],
        )


def network(
    cluster: Cluster, work: Work, shared: Shared
) -> tuple[dict[str, Station], list[Visit], Load]:
    """The closed network that a cluster is under full load."""
    wakes = wake_calls(cluster, work, shared)
    slower = 1 / max(0.02, 1 - wakes)
    scans = scan_cores(cluster, work, shared, busy=True)
    left = max(0.05, 1 - scans / (cluster.machines * cluster.server_cores))
    stations = {
        "workers": Station(of_process=True),
        "region servers": Station(cluster.server_cores, copies=cluster.machines),
        ORACLE: Station(),
        LOCKS: Station(copies=cluster.oracles - 1),
        "waiting": Station(0),
    }
    parts = 4
    visits = []
    # A relay computes on a core of the clients.
    client_ms = work.client_ms + (shared.relay * work.draws if cluster.relays else 0.0)
    for _ in range(parts):
        visits += [
            Visit("workers", client_ms / parts / 1000),
            Visit("region servers", work.servers_ms / left / parts / 1000),
        ]
    visits.append(Visit("waiting", (work.syncs * shared.sync + work.calls * shared.trip) / 1000))
    # Draws are whole visits, so that calls can be shared; a part of one is a shorter call.
    draws = max(1, round(work.draws))
    call = shared.call * work.draws / draws * slower / 1000
    if cluster.relays:
        call *= shared.relay_share
    for at in range(draws):
        visits.insert(at * len(visits) // draws, Visit(ORACLE, call, shared=True))
    if work.row_locks:
        # In the mean over all oracles: of each transaction a part at the one that hands out
        # timestamps, and the rest at another.
        locks = 2 * work.row_locks * shared.lock_call * slower / 1000
        visits.append(Visit(ORACLE, locks / cluster.oracles))
        visits.append(Visit(LOCKS, locks * (cluster.oracles - 1) / cluster.oracles))
    return stations, visits, Load(cluster.workers, THREADS)


# --- What grows with the number of processes ------------------------------------------------


def wake_calls(cluster: Cluster, work: Work, shared: Shared) -> float:
    """The share of an oracle's core that wake-ups take under full load.

    A process reports its commits to one of the oracles, once in ten milliseconds, or in a quarter
    of one for each session; sending wake-ups takes a tenth of the time at most.
    """
    most = 1000 * cluster.workers / report_ms(cluster)
    calls = min(most, cluster.linear * work.row_locks) / cluster.oracles
    return min(0.9, calls * shared.lock_call / 1000 + _SENDING)


def report_ms(cluster: Cluster) -> float:
    """Milliseconds between two reports of a process."""
    return max(10.0, 1000 * cluster.workers / _WAKE_CALLS)


def names_rows(cluster: Cluster, rows: float) -> bool:
    """Whether wake-ups name the rows, where so many a second are changed, by all workers alike."""
    return rows / cluster.workers * report_ms(cluster) / 1000 <= _NAMED


def wakes_a_second(cluster: Cluster, shared: Shared) -> float:
    """How often a process is woken while others commit: a round takes a tenth of the time.

    Each of the oracles has rounds of its own.
    """
    round_ms = max(10.0, cluster.workers * shared.call / 2 / _SENDING)
    return cluster.oracles * 1000 / round_ms if cluster.workers > 1 else 0.0


def scan_cores(cluster: Cluster, work: Work, shared: Shared, *, busy: bool) -> float:
    """Cores of the region servers that looking for work takes.

    A thread of each worker scans all regions once a second, or as often as takes a tenth of its
    time if nothing is found. While others commit, one idle worker looks at each row; where a report
    would name too many, each worker scans all regions after each wake-up. It scans one region after
    the other, so no faster than a call takes. While there is work for all (`busy`), it is not
    woken.
    """
    latency = shared.read_servers + shared.read_client + shared.trip
    if busy:
        calls = float(cluster.regions)
    else:
        calls = min(cluster.regions, 0.1 * 1000 / latency)
        rows = cluster.linear * work.row_locks
        if names_rows(cluster, rows):
            calls += rows / cluster.scanning
        else:
            calls += wakes_a_second(cluster, shared) * cluster.regions
    return cluster.scanning * min(calls, 1000 / latency) * shared.read_servers / 1000


# --- Parts that exist once ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wall:
    """A part that does not grow with the cluster.

    Attributes:
        per_second: transactions or documents a second at which it is full.
        cores: the cluster that would do so many.
        can_move: whether a change of code moves it.
    """

    part: str
    per_second: float
    cores: float
    can_move: bool
    why: str


def per_core(work: Work) -> float:
    """Transactions a second and core, if nothing is in the way."""
    return 1000 / (work.client_ms + work.servers_ms)


def walls(figures: Mapping[str, Any], work: Work) -> list[Wall]:
    """All of them, the nearest first."""
    stated, shared = figures["stated"], Shared.of(figures)
    rate = per_core(work)
    found: list[Wall] = []

    def add(part: str, per_second: float, can_move: bool, why: str) -> None:
        found.append(Wall(part, per_second, per_second / rate + _FIXED, can_move, why))

    def value(name: str) -> float:
        return float(stated[name]["value"])

    shared_by = THREADS / 2
    drawing = shared.call * work.draws / shared_by
    add(
        "oracle: timestamps, a call from each process",
        1000 / drawing,
        False,
        f"{work.draws:.1f} timestamps, {shared_by:.0f} to a call of {1000 * shared.call:.0f} µs",
    )
    add(
        "oracle: timestamps, by a relay on each machine",
        1000 / (drawing * shared.relay_share),
        False,
        f"each costs the oracle {shared.relay_share:.2f} of that; measured with 16 processes on 2 "
        "cores",
    )
    if work.row_locks:
        locking = work.row_locks * shared.lock_call  # Half of a lock and its release.
        woken = work.row_locks * shared.lock_call / 2
        most = 1000 * (1 - _SENDING) / (drawing + locking + woken)
        if most * work.row_locks > _WAKE_CALLS:
            most = (1000 * (1 - _SENDING) - _WAKE_CALLS * shared.lock_call / 2) / (
                drawing + locking
            )
        add(
            "oracle: timestamps, and the locks of half of the rows",
            most,
            False,
            f"besides timestamps {3 * work.row_locks / 2:.2f} calls of "
            f"{1000 * shared.lock_call:.0f} µs: lock, unlock, wake; each further oracle process "
            "takes a share",
        )
    cores = _scanned(work, shared, int(value("regions_a_machine")), 0.1)
    found.append(
        Wall(
            "looking for work takes a tenth of the region servers",
            (cores - _FIXED) * rate,
            cores,
            True,
            f"while others commit: after a report of over {_NAMED} rows each idle worker scans all "
            "regions",
        )
    )
    processes = value("sessions")
    share = work.client_ms / (work.client_ms + work.servers_ms)
    cores = processes / share + _FIXED
    found.append(
        Wall(
            "sessions of the lock service",
            (cores - _FIXED) * rate,
            cores,
            True,
            f"it refuses more than {processes:,.0f} processes",
        )
    )
    collected = value("collector_rows_per_second")
    rows = collected * value("retention_seconds")
    documents = rows / value("rows_a_document")
    found.append(
        Wall(
            "garbage collector, one process for all tables",
            documents / value("documents_a_core") * rate,
            documents / value("documents_a_core"),
            False,
            f"{collected:,.0f} rows/s: a walk of {rows / 1e6:,.0f} million rows takes the "
            "retention of a day; percola gc --spark shares it",
        )
    )
    exporters = value("exporters")
    pages = value("exported_per_second") * exporters
    cores = pages * value("page_ms") / 1000 + _FIXED
    found.append(
        Wall(
            "exporters of the web index",
            pages,
            cores,
            False,
            f"{exporters:.0f} write {pages:,.0f} pages/s; a page costs {value('page_ms'):.1f} ms; "
            "a URL may say more",
        )
    )
    followed = value("followed_changes_per_second")
    add(
        "feed of a followed table",
        followed / work.changes,
        True,
        f"one follower looks at {followed:,.0f} changes/s",
    )
    hot = value("hottest_share")
    busy_ms = work.syncs / 2 * shared.sync + work.client_ms + work.servers_ms
    add(
        "hot rows",
        1000 / busy_ms / hot,
        False,
        f"if {hot:.2%} of transactions write one row, each for {busy_ms:.0f} ms",
    )
    add(
        "Spark's driver, as the workers' supervisor",
        value("driver_workers") / share * rate,
        True,
        f"a thread and a job for each worker; {value('driver_workers'):,.0f} are a guess",
    )
    return sorted(found, key=lambda one: one.cores)


def _scanned(work: Work, shared: Shared, regions: int, share: float) -> float:
    """The size at which an idle fleet scans that share of the region servers' cores."""
    cores = float(SIZES[0])
    while cores < 1e6:
        cluster = Cluster.of(round(cores), work, regions)
        used = scan_cores(cluster, work, shared, busy=False)
        if used >= share * cluster.machines * cluster.server_cores:
            break
        cores *= 1.05
    return cores
