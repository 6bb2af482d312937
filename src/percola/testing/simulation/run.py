"""One run of a simulation: set up, work under faults, come to rest, check."""

from __future__ import annotations

import gc
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from percola.cells import Cell, Kind
from percola.errors import PercolaError, SnapshotTooOldError
from percola.observers.metrics import WorkerMetrics
from percola.observers.observer import Observers
from percola.observers.schedule import Schedule
from percola.repository import Repository
from percola.store.walks import walk_kind
from percola.testing.histories.recorder import Outcome, Recorded, merge
from percola.testing.simulation.at_rest import check_at_rest
from percola.testing.simulation.clients import Client, SimulatedWorker, Unknown
from percola.testing.simulation.environment import (
    SimulatedClock,
    SimulatedCoordination,
    SimulatedOracle,
)
from percola.testing.simulation.faults import Fault, FaultKind
from percola.testing.simulation.schedule import NoRestError
from percola.testing.simulation.store import SimulatedStore
from percola.testing.simulation.workload import COMMON_SIZES, Mode, Workload
from percola.testing.simulation.world import ClaimViolatedError, Event, Process, World
from percola.transactions.prefetch import Prefetch

_LIVES: Final = 4
_LONGEST: Final = 600.0
_LOCK_WAIT: Final = 3.0
_PREFETCHING: Final = 0.5
_SEPARATE: Final = 0.5
_VOLATILE: Final = 0.5
_INDEXED: Final = 0.5
READ_AHEAD: Final = "a cell that came ahead was read"
BATCHED: Final = "several rows were answered by one transaction"
"""What is seen in runs that prefetch."""


@dataclass(slots=True)
class Result:
    """The result of a run.

    Attributes:
        violated: the violated property, if any.
        faults: the faults that happened.
        counts: of transactions by outcome, of observers' runs.
        sightings: allowed anomalies that were seen.
        trace: all events; `percola.testing.simulation.trace` prints them.
        history: the recorded transactions, unknown outcomes settled.
        world: the final world, mainly its store.
    """

    seed: int
    workload: str
    mode: Mode
    sizes: dict[str, int]
    violated: ClaimViolatedError | None = None
    faults: list[Fault] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sightings: Counter[str] = field(default_factory=Counter)
    trace: list[Event] = field(default_factory=list)
    history: list[Recorded] = field(default_factory=list)
    world: World | None = None


class Simulation:
    """A workload under one seed.

    Args:
        sizes: instead of those that the seed would draw, as far as given.
        faults: these and no others happen, instead of those that the seed would draw.
        kinds: what may go wrong at all.
        prefetches: whether what past transactions read next comes along (§2.5), instead of what
            the workload or the seed says.
        watches_steps: whether every row mutation is checked, or only what comes of them.
        make_store: makes a process's way to the store, and so on: what a test replaces to
            put a fault of its own into the protocol's surroundings.

    Attributes:
        world: what its processes share.
        mode: how its transactions commit.
        sizes: of this run.
        histories: what the clients' lives recorded.
        cells: the cells of their keys.
        unknown: commits whose outcome their client did not learn.
    """

    def __init__(
        self,
        workload: type[Workload],
        seed: int,
        *,
        sizes: Mapping[str, int] | None = None,
        faults: Sequence[Fault] | None = None,
        mode: Mode | None = None,
        kinds: Sequence[FaultKind] = tuple(FaultKind),
        prefetches: bool | None = None,
        watches_steps: bool = True,
        make_store: Callable[[Process], SimulatedStore] = SimulatedStore,
        make_oracle: Callable[[Process], SimulatedOracle] = SimulatedOracle,
        make_coordination: Callable[[Process], SimulatedCoordination] = SimulatedCoordination,
    ) -> None:
        rng = random.Random(f"{workload.name}/{seed}/sizes")
        drawn_mode = rng.choice(workload.modes)
        self.mode = mode or drawn_mode
        ranges = {**COMMON_SIZES, **workload.sizes}
        self.sizes = {name: rng.randint(*ranges[name]) for name in sorted(ranges)}
        self.sizes.update(sizes or {})
        self.seed = seed
        # Not from the generator above, so that the rest of the seed's run is unchanged.
        drawn = random.Random(f"{workload.name}/{seed}/reads").random() < _PREFETCHING
        wanted = workload.prefetches if prefetches is None else prefetches
        self.prefetches = drawn if wanted is None else wanted
        self._prefetches: list[Prefetch] = []
        separate = workload.has_notify_table
        if separate is None:
            separate = random.Random(f"{workload.name}/{seed}/apart").random() < _SEPARATE
        volatile = workload.has_volatile_writes
        if volatile is None:
            volatile = random.Random(f"{workload.name}/{seed}/volatile").random() < _VOLATILE
        indexed = workload.has_feed_index
        if indexed is None:
            indexed = random.Random(f"{workload.name}/{seed}/feeds").random() < _INDEXED
        possible = [kind for kind in kinds if kind in workload.kinds]
        if not volatile and FaultKind.SERVER_DIED in possible:
            possible.remove(FaultKind.SERVER_DIED)
        self.world = World(
            f"{workload.name}/{seed}",
            listed=faults,
            kinds=possible,
            has_notify_table=separate,
            has_volatile_writes=volatile,
            # A store that has it commits in two phases.
            has_feed_index=indexed and self.mode is Mode.TWO_PHASE,
            watches_steps=watches_steps,
        )
        self.histories: list[list[Recorded]] = []
        self.cells: dict[str, Cell] = {}
        self.unknown: list[Unknown] = []
        self.metrics = WorkerMetrics()
        self._make_store = make_store
        self._make_oracle = make_oracle
        self._make_coordination = make_coordination
        self._kind = workload
        self._workload = workload(self)
        self._clients_left = 0
        self._workers: dict[str, SimulatedWorker] = {}
        self._stops = False

    def run(self) -> Result:
        """Run the simulation; a violation is in the result."""
        result = Result(self.seed, self._kind.name, self.mode, self.sizes)
        # Python's garbage collection would call finalisers at unpredictable moments.
        collects = gc.isenabled()
        gc.disable()
        logs = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with self._workload.patched():
                self._run()
        except ClaimViolatedError as error:
            result.violated = error
        except NoRestError as error:
            result.violated = ClaimViolatedError(f"The run does not come to rest. {error}")
        except PercolaError as error:
            result.violated = ClaimViolatedError(
                f"An error got out: {type(error).__name__}: {error}"
            )
        finally:
            self.world.schedule.close()
            logging.disable(logs)
            if collects:
                gc.enable()
        result.faults = self.world.faults.fired
        result.counts = self.world.counts
        for metric, by_observer in self.metrics.counts().items():
            self.world.counts[metric] += int(sum(by_observer.values()))
        if batches := self.world.counts["observer_batches"]:
            self.world.sightings[BATCHED] += batches
        if used := sum(one.used for one in self._prefetches):
            self.world.sightings[READ_AHEAD] += used
        result.sightings = self.world.sightings
        result.trace = self.world.trace
        result.world = self.world
        result.history = merge(self.histories)
        return result

    def history(self) -> list[Recorded]:
        """All recorded transactions, in the order in which they began."""
        return merge(self.histories)

    # --- Processes ----------------------------------------------------------------------

    def open(self, process: Process, *, one_step: bool | None = None) -> Repository:
        """A repository object for a process, on its simulated environment."""
        if one_step is None:
            one_step = self.mode is not Mode.TWO_PHASE
            if self.mode.is_mixed:
                one_step = process.rng.random() < 0.7
        process.opens = True
        try:
            repo = Repository(
                "simulated",
                self._make_store(process),
                self._make_oracle(process),
                self._make_coordination(process),
                self._kind.tables,
                one_step=one_step,
                clock=SimulatedClock(process),
                random_=process.rng,
                lock_ttl_seconds=self._kind.lock_ttl_seconds,
                lock_wait_seconds=_LOCK_WAIT,
                prefetches=self.prefetches,
            )
        finally:
            process.opens = False
        if repo.context.prefetch is not None:
            self._prefetches.append(repo.context.prefetch)
        return repo

    def _start_client(self, number: int, life: int, turns: list[int]) -> None:
        name = f"client {number}" if life == 1 else f"client {number}.{life}"
        process = Process(self.world, name)

        def work() -> None:
            Client(self, process, number, turns).work(self._workload)
            self._clients_left -= 1

        def reborn(dead: Process) -> None:
            if turns and life < _LIVES:
                wait = process.rng.random() * 0.5
                self.world.schedule.at(wait, lambda: self._start_client(number, life + 1, turns))
            else:
                self._clients_left -= 1

        process.on_death = reborn
        self.world.schedule.start(process, work, process.rng.random() * 0.01)

    def _start_worker(self, number: int, life: int) -> None:
        if self._stops:
            return
        name = f"worker {number}" if life == 1 else f"worker {number}.{life}"
        process = Process(self.world, name)
        worker = SimulatedWorker(
            process,
            self.open(process),
            self._workload.observers(),
            self._kind.options,
            self.metrics,
        )
        self._workers[f"worker {number}"] = worker

        def reborn(dead: Process) -> None:
            wait = process.rng.random() * 0.5
            self.world.schedule.at(wait, lambda: self._start_worker(number, life + 1))

        process.on_death = reborn
        worker.start()

    # --- The run ------------------------------------------------------------------------

    def _run(self) -> None:
        world, schedule = self.world, self.world.schedule
        first = Client(self, Process(world, "set-up"), 0, [])
        self._workload.set_up(first)
        has_observers = bool(self._workload.observers())
        self._clients_left = self.sizes["clients"]
        for number in range(1, self.sizes["clients"] + 1):
            self._start_client(number, 1, list(range(1, self.sizes["turns"] + 1)))
        if has_observers:
            for number in range(1, self.sizes["workers"] + 1):
                self._start_worker(number, 1)
        schedule.run(lambda: self._clients_left == 0, longest=_LONGEST)
        world.faults.is_over = True
        world.tell("", "phase", "From here on nothing goes wrong any more.")
        self._recover(has_observers)
        self._stops = True
        for worker in self._workers.values():
            worker.stop()
        schedule.run(lambda: False, longest=_LONGEST)
        world.tell("", "phase", "All is at rest.")
        final = self.open(Process(world, "judge"), one_step=False)
        self._settle(final)
        tables = [table.name for table in self._kind.tables]
        check_at_rest(world.store, tables, self.history(), self.cells)
        self._workload.at_rest(final)

    def _recover(self, has_observers: bool) -> None:
        """Let a live process resolve what dead processes left, and the workers do the rest."""
        process = Process(self.world, "recovery")
        repo = self.open(process)
        context = repo.context
        tables = [table.name for table in self._kind.tables]
        done = [False]
        schedule: Schedule | None = None
        if has_observers:
            observers = Observers(self._workload.observers())
            schedule = Schedule(context, observers, 0.0, 1.0, context.coordination.wake)

        def settle() -> None:
            while True:
                # Asked first: what arrives during the walk may lock what the walk has passed.
                all_arrived = self.world.on_the_wire == 0
                self._workload.recover(repo)
                locked = [
                    one for name in tables for one in walk_kind(context.store, Kind.LOCK, name)
                ]
                for cell, start_ts, raw in locked:
                    context.resolver.try_resolve(cell, start_ts, raw)
                if all_arrived and not locked and (schedule is None or schedule.is_idle()):
                    done[0] = True
                    return
                context.clock.sleep(0.1)

        self.world.schedule.start(process, settle)
        self.world.schedule.run(lambda: done[0], longest=_LONGEST)

    def _settle(self, repo: Repository) -> None:
        """Learn from the primaries what became of the commits of unknown outcome (P7)."""
        for error, record in self.unknown:
            try:
                committed = repo.resolve(error)
            except SnapshotTooOldError:
                continue  # Asked too late: what would have told has been collected (P12).
            record.outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
            record.commit_ts = error.commit_ts if committed else None
