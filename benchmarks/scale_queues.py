"""Queues: a network of stations, simulated event by event with SimPy or solved by mean values.

Work goes from station to station. A *station* has a number of servers and one queue, or is a delay
without a queue (waiting for a disk). Either a fixed number of customers circulates, as threads do
that begin their next transaction when the last one has ended (closed), or work arrives at a rate
(open).

A *shared call* is §2.3's: the threads of one process have one call to the oracle pending, and those
that ask meanwhile share the next one. So calls become larger as the oracle slows down.

`simulate` follows each piece of work; its cost grows with the number of events. `solve` is
approximate mean value analysis (Schweitzer's, with Erlang's formula for many servers), whose
cost does not depend on the number of customers. Where both can be run, they are compared
(`tests/unit/test_benchmarks_scale.py`, docs/scale.md). References: Lazowska et al., Quantitative
System Performance, 1984, chapters 6 and 7.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import simpy

_ROUNDS: Final = 20_000
_EXACT: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Station:
    """Where work waits and is served.

    Attributes:
        servers: how many pieces of work it serves at once; 0: all, without a queue (a delay).
        of_process: each process has a station of this kind for itself; else all share it.
        copies: so many stations alike, of which each visit goes to a random one.
    """

    servers: int = 1
    of_process: bool = False
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Visit:
    """A step of a transaction.

    Attributes:
        station: where it is served.
        seconds: mean service time; of a shared call: of the call, whatever it carries.
        holding: a station that it occupies meanwhile, waiting time included (Python's global lock).
        shared: the threads of a process share one pending call.
        fixed: the service takes just so long; else it is exponentially distributed.
        hops: the work is done in so many pieces, each of which queues: a call goes from process to
            process on one machine.
    """

    station: str
    seconds: float
    holding: str = ""
    shared: bool = False
    fixed: bool = False
    hops: int = 1


@dataclass(frozen=True, slots=True)
class Load:
    """Who works: `processes` of `threads` each, in a closed loop; or arrivals a second (open)."""

    processes: int = 1
    threads: int = 1
    arrivals: float = 0.0
    think: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a network does.

    Attributes:
        per_second: completed transactions a second.
        seconds: mean response time of a transaction.
        busy: share of the time that a server of each station is occupied.
        carried: requests that a shared call carries, by station.
        times: response times of single transactions, in order of completion; only simulated.
    """

    per_second: float
    seconds: float
    busy: Mapping[str, float]
    carried: Mapping[str, float] = field(default_factory=dict)
    times: Sequence[float] = ()

    @property
    def limit(self) -> str:
        """The station that is busiest."""
        return max(self.busy, key=lambda name: self.busy[name])


# --- Event by event -----------------------------------------------------------------------


class _Line:
    """One process's pending call to a station."""

    def __init__(self, network: _Network, process: int, visit: Visit) -> None:
        self.network, self.process, self.visit = network, process, visit
        self.waiting: list[simpy.Event] = []
        self.is_open = False

    def ask(self) -> simpy.Event:
        """An event that happens when the call that carries this request has been answered."""
        event = self.network.env.event()
        self.waiting.append(event)
        if not self.is_open:
            self.is_open = True
            self.network.env.process(self._call())
        return event

    def _call(self) -> Generator[simpy.Event, Any, None]:
        while self.waiting:
            carried, self.waiting = self.waiting, []
            self.network.calls[self.visit.station] += 1
            self.network.requests[self.visit.station] += len(carried)
            yield from self.network.serve(self.process, self.visit)
            for event in carried:
                event.succeed()
        self.is_open = False


class _Network:
    def __init__(
        self, stations: Mapping[str, Station], visits: Sequence[Visit], load: Load, seed: int
    ) -> None:
        self.env = simpy.Environment()
        self.rng = random.Random(seed)
        self.stations, self.visits, self.load = stations, visits, load
        self.calls = {one.station: 0 for one in visits if one.shared}
        self.requests = dict(self.calls)
        self.worked = dict.fromkeys(stations, 0.0)
        self.resources: dict[tuple[str, int], simpy.Resource] = {}
        self.lines: dict[tuple[str, int], _Line] = {}
        self.done: list[tuple[float, float]] = []

    def _resource(self, name: str, process: int) -> simpy.Resource:
        station = self.stations[name]
        if station.of_process:
            key = name, process
        else:
            key = name, self.rng.randrange(station.copies) if station.copies > 1 else 0
        if key not in self.resources:
            self.resources[key] = simpy.Resource(self.env, station.servers)
        return self.resources[key]

    def serve(self, process: int, visit: Visit) -> Generator[simpy.Event, Any, None]:
        """One visit, from its arrival at the station until it leaves it."""
        for _ in range(visit.hops):
            yield from self._hop(process, visit, visit.seconds / visit.hops)

    def _hop(self, process: int, visit: Visit, takes: float) -> Generator[simpy.Event, Any, None]:
        if not visit.fixed and takes:
            takes = self.rng.expovariate(1 / takes)
        if not self.stations[visit.station].servers:
            yield self.env.timeout(takes)
            self.worked[visit.station] += takes
            return
        names = (visit.holding, visit.station) if visit.holding else (visit.station,)
        held: list[tuple[simpy.Resource, Any]] = []
        for name in names:
            resource = self._resource(name, process)
            request = resource.request()
            held.append((resource, request))
            yield request
        began = self.env.now
        yield self.env.timeout(takes)
        for (resource, request), name in zip(held, names, strict=True):
            resource.release(request)
            self.worked[name] += self.env.now - began

    def _one(self, process: int) -> Generator[simpy.Event, Any, None]:
        began = self.env.now
        for visit in self.visits:
            if not visit.shared:
                yield from self.serve(process, visit)
                continue
            key = visit.station, process
            if key not in self.lines:
                self.lines[key] = _Line(self, process, visit)
            yield self.lines[key].ask()
        self.done.append((self.env.now, self.env.now - began))

    def customer(self, process: int) -> Generator[simpy.Event, Any, None]:
        """A thread that begins again and again."""
        while True:
            if self.load.think:
                yield self.env.timeout(self.rng.expovariate(1 / self.load.think))
            yield from self._one(process)

    def source(self) -> Generator[simpy.Event, Any, None]:
        """Work that arrives, for the processes in turn."""
        number = 0
        while True:
            yield self.env.timeout(self.rng.expovariate(self.load.arrivals))
            self.env.process(self._one(number % self.load.processes))
            number += 1


def simulate(
    stations: Mapping[str, Station],
    visits: Sequence[Visit],
    load: Load,
    *,
    seconds: float,
    warm: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Simulate `seconds`, after `warm` ones that do not count; a seed always gives one outcome."""
    network = _Network(stations, visits, load, seed)
    if load.arrivals:
        network.env.process(network.source())
    else:
        for process in range(load.processes):
            for _ in range(load.threads):
                network.env.process(network.customer(process))
    if warm:
        network.env.run(until=warm)
    worked, before = dict(network.worked), len(network.done)
    calls, requests = dict(network.calls), dict(network.requests)
    network.env.run(until=warm + seconds)
    times = [took for _, took in network.done[before:]]
    busy = {}
    for name, station in stations.items():
        if station.servers:
            many = station.servers * (load.processes if station.of_process else station.copies)
            busy[name] = (network.worked[name] - worked[name]) / (seconds * many)
    carried = {
        name: (network.requests[name] - requests[name]) / max(1, network.calls[name] - calls[name])
        for name in calls
    }
    mean = sum(times) / len(times) if times else float("inf")
    return Outcome(len(times) / seconds, mean, busy, carried, times)


def erlang_c(servers: int, busy: float) -> float:
    """The share of arrivals that find all `servers` busy, each for the share `busy` of the time."""
    if busy >= 1:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        offered = servers * busy * blocked
        blocked = offered / (number + offered)
    return blocked / (1 - busy * (1 - blocked))


# --- Mean values --------------------------------------------------------------------------


def solve(stations: Mapping[str, Station], visits: Sequence[Visit], load: Load) -> Outcome:
    """Solve a closed network by approximate mean value analysis.

    `holding` counts as work of that station as well, but not the time that it waits for the other
    one: the result is then an upper bound. Raises ValueError for an open load.
    """
    if load.arrivals:
        raise ValueError("Mean value analysis is for a closed load: give processes and threads.")
    customers = load.processes * load.threads
    plain: dict[str, float] = {}
    shared: dict[str, list[float]] = {}
    singles: dict[str, int] = {}
    delay = load.think
    for visit in visits:
        if visit.shared:
            shared.setdefault(visit.station, []).append(visit.seconds)
        elif not stations[visit.station].servers:
            delay += visit.seconds
        else:
            for name in filter(None, (visit.holding, visit.station)):
                plain[name] = plain.get(name, 0.0) + visit.seconds
                singles[name] = singles.get(name, 0) + 1
    names = dict.fromkeys([*plain, *shared])
    # Residence of a customer at each station for one transaction; queue: of all customers there.
    residence = {name: plain.get(name, 0.0) + sum(shared.get(name, ())) for name in names}
    carried = dict.fromkeys(shared, 1.0)
    lasts = {name: sum(calls) / len(calls) for name, calls in shared.items()}
    by_itself = {name: plain.get(name, 0.0) for name in shared}
    rate, damp = 0.0, 0.3
    for _ in range(_ROUNDS):
        before = rate
        rate = customers / (delay + sum(residence.values()))
        for name in names:
            station = stations[name]
            calls = shared.get(name, ())
            demand = plain.get(name, 0.0) + sum(calls) / carried.get(name, 1.0)
            many = station.servers
            # Those met there, by the arrival theorem: all others, as if this one were not.
            alone = load.threads if station.of_process else customers
            places = load.processes if station.of_process else station.copies
            met = rate / places * (alone - 1) / alone
            if not calls:
                queue = met * max(0.0, residence[name] - demand)
                all_busy = erlang_c(many, min(1.0, met * demand / many))
                found = demand + demand / many * (all_busy + queue)
            else:
                # There wait calls, at most one of each process, and what is not shared.
                call = sum(calls) / len(calls)
                rate_of_calls = rate * len(calls) / carried[name]
                others = (load.processes - 1) / load.processes * rate_of_calls * lasts[name] * call
                single = plain.get(name, 0.0)
                number = singles.get(name, 0)
                wait = others + (met * by_itself[name] * single / number if number else 0.0)
                by_itself[name] += damp * (single + number * wait - by_itself[name])
                lasts[name] += damp * (call + wait - lasts[name])
                # Those who ask during a call wait for its end, and share the next. At worst two
                # halves take turns: of all threads, or of those that are here on average. The
                # simulation is between the two.
                asking = rate / load.processes * len(calls) * lasts[name]
                here = (residence[name] - by_itself[name]) * rate / load.processes
                most = max(1.0, (load.threads + here) / 4)
                carried[name] += damp * (min(most, max(1.0, asking)) - carried[name])
                pending = min(1.0, rate_of_calls / load.processes * lasts[name])
                meets = (load.threads - 1) / load.threads * pending
                found = len(calls) * lasts[name] * (1 + meets / 2) + by_itself[name]
            residence[name] += damp * (found - residence[name])
        if abs(rate - before) <= _EXACT * rate:
            break
    busy = {}
    for name in names:
        station = stations[name]
        demand = plain.get(name, 0.0) + sum(shared.get(name, ())) / carried.get(name, 1.0)
        many = station.servers * (load.processes if station.of_process else station.copies)
        busy[name] = rate * demand / many
    return Outcome(rate, customers / rate - load.think, busy, carried)


def respond(stations: Mapping[str, Station], visits: Sequence[Visit], load: Load) -> Outcome:
    """Mean response time of an open load, station by station by Erlang's formula.

    Of a station that is not keeping up, and so of all, the time is infinite. Shared calls count as
    calls of their own, which is an upper bound.
    """
    demands: dict[str, float] = {}
    seconds = 0.0
    for visit in visits:
        if not stations[visit.station].servers:
            seconds += visit.seconds
        else:
            demands[visit.station] = demands.get(visit.station, 0.0) + visit.seconds
    busy = {}
    for name, demand in demands.items():
        station = stations[name]
        places = load.processes if station.of_process else station.copies
        use = busy[name] = load.arrivals * demand / (places * station.servers)
        waits = erlang_c(station.servers, use) / (1 - use) if use < 1 else float("inf")
        seconds += demand * (1 + waits / station.servers)
    return Outcome(min(load.arrivals, load.arrivals / max(1.0, *busy.values())), seconds, busy)
