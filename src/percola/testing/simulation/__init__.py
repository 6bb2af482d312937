"""Deterministic simulation: Percola's own code under seeded schedules and faults.

Transactions, locks, observers and workers are the real ones. Their environment is simulated: a
store behind a network, an oracle, a lock service, clocks. At every call and every sleep another
client may run; calls arrive late, twice or never, replies are lost, and processes die with calls in
flight. All randomness comes from one seed, so a failure is reproducible, and can be shrunk to a
readable trace.

To simulate your own observers, describe a workload: what clients do, and what must hold once
everything is at rest.

    class Measuring(Workload):
        name = "measuring"
        tables = (docs,)
        sizes = {"docs": (1, 3)}                       # drawn for each seed

        def observers(self):
            return [measure]                           # the ones that your workers run

        def turn(self, client, number):                # taken by several clients, which may die
            row = f"doc {client.rng.randrange(self.size('docs'))}"
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

For every workload, each run also checks that every row mutation keeps the protocol's rules
(`invariants`), that no lock is left at rest, that every transaction is visible in all of its cells
or in none, that the history recorded by `client.transact` satisfies snapshot isolation
(`percola.testing.histories.timestamps`), and that the run terminates.

An observer must take time and randomness from the simulation: no threads, no `time`, no `random`.
Its effects outside its transaction are repeated when it is retried. Its transactions are not
recorded: what a client reads by `client.transact`, only such transactions may write. For cells that
observers write, as those of recipes, use `client.repo`, which raises `StoreError` when a fault
happens.

Structure:

    schedule       greenlets and virtual time: which task runs next
    faults         what can go wrong, drawn from the seed or listed
    world          the state shared by all processes, and the life of one process
    store, environment
                   the store, oracle, coordination and clock as one process sees them
    feeds          the requests of feeds and their index, as on HBase and Bigtable
    clients        clients and workers: the code that runs in a process
    workload, run  the workload to derive from, and one run of it
    invariants, at_rest
                   checks of every mutation, and after each run
    trace, shrink  how a failure is reported and reduced

To inject a bug, pass `Simulation(…, make_store=…, make_oracle=…, make_coordination=…)`: each
creates the object that a process uses, and may return a subclass that violates its contract;
`watches_steps=False` checks only the outcome, not every mutation. Requires `greenlet` (the extra
`testing`), pytest and Hypothesis.
"""

from percola.testing.simulation.clients import Attempt, Client, SimulatedWorker
from percola.testing.simulation.environment import (
    SimulatedClock,
    SimulatedCoordination,
    SimulatedOracle,
)
from percola.testing.simulation.faults import Call, Fault, FaultKind, parse_faults
from percola.testing.simulation.run import BATCHED, READ_AHEAD, Result, Simulation
from percola.testing.simulation.shrink import shrink, shrink_run
from percola.testing.simulation.store import SimulatedStore
from percola.testing.simulation.trace import draw, tell
from percola.testing.simulation.workload import Mode, Sizes, Workload
from percola.testing.simulation.world import LOST, ClaimViolatedError, Event, Process, World

__all__ = [
    "BATCHED",
    "LOST",
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
