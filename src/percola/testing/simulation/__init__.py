"""Deterministic simulation: Percola's own code under seeded schedules and faults.

Transactions, locks, observers and workers are the real ones. What they stand on is simulated:
a store behind a network, an oracle, a lock service, clocks. Every call and every sleep is a
point at which another client goes on; calls come late, twice or never, replies get lost, and
processes die with calls on the wire. All chance comes from one seed, so a seed that fails fails
again, and shrinks to a story that can be read.

To simulate your own observers, describe a workload: what clients do, and what must hold once
everything is at rest.

    class Measuring(Workload):
        name = "measuring"
        tables = (docs,)
        sizes = {"docs": (1, 3)}                       # drawn for each seed

        def observers(self):
            return [measure]                           # the ones that your workers run

        def turn(self, client, number):                # taken by several clients, which may die
            row = f"doc {client.chance.randrange(self.size('docs'))}"
            client.transact(lambda t: t.set(contents, row, "x" * number))

        def at_rest(self, repo):
            for row in repo.snapshot().scan(docs):
                if row.get(size) != len(row[contents]):
                    self.violate("A document is not measured.", (contents, row.key))

    for seed in range(1000):
        result = Simulation(Measuring, seed).run()
        if result.violated:
            print(tell(shrink_run(Measuring, result)))
            break

Whatever the workload, each run also checks that every row mutation keeps the protocol's rules
(`steps`), that no lock is left at rest, that every transaction stands in all of its cells or in
none, that the history of what `client.transact` recorded is one of snapshot isolation
(`percola.testing.histories.timestamps`), and that it comes to rest at all.

An observer must take its time and its chance from where the simulation can see them: no threads,
no `time`, no `random` of its own. Whatever it does outside its transaction happens again when it
is run again.

How it is built:

    schedule       greenlets and virtual time: who goes on
    faults         what can go wrong, drawn from the seed or listed
    world          what all processes share, and the life of one process
    store, surroundings
                   the store, oracle, coordination and clock as one process sees them
    clients        clients and workers: what runs in a process
    workload, simulation
                   what you describe, and one run of it
    steps, claims  what is checked of every mutation, and after each run
    story, shrinking
                   how a failure is told

The seams for a bug of one's own are `Simulation(…, make_store=…, make_oracle=…,
make_coordination=…)`: each makes what a process sees, and may return a subclass that breaks a
promise; `watches_steps=False` leaves it to the outcome to show that. It needs `greenlet` (the
extra `testing`), pytest and Hypothesis.
"""

from percola.testing.simulation.clients import Attempt, Client, SimulatedWorker
from percola.testing.simulation.environment import (
    SimulatedClock,
    SimulatedCoordination,
    SimulatedOracle,
)
from percola.testing.simulation.faults import Call, Fault, FaultKind, parse_faults
from percola.testing.simulation.run import READ_AHEAD, Result, Simulation
from percola.testing.simulation.shrink import shrink, shrink_run
from percola.testing.simulation.store import SimulatedStore
from percola.testing.simulation.trace import draw, tell
from percola.testing.simulation.workload import Mode, Sizes, Workload
from percola.testing.simulation.world import ClaimViolatedError, Event, Process, World

__all__ = [
    "READ_AHEAD",
    "Attempt",
    "Call",
    "ClaimViolatedError",
    "Client",
    "Event",
    "Fault",
    "FaultKind",
    "Mode",
    "Process",
    "Result",
    "SimulatedClock",
    "SimulatedCoordination",
    "SimulatedOracle",
    "SimulatedStore",
    "SimulatedWorker",
    "Simulation",
    "Sizes",
    "Workload",
    "World",
    "draw",
    "parse_faults",
    "shrink",
    "shrink_run",
    "tell",
]
