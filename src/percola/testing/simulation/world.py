"""The world that simulated processes share, and the processes.

    World      one memory store, the set of live tokens, the row locks, the wake-ups, the tablets;
               the schedule, the faults, and the trace of what happened
    Process    a name, a token, clocks of its own, its numbered calls, and a life that can end

A process sees the world only through the store, oracle, coordination and clock that
`percola.testing.simulation.environment` makes for it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from percola.cells import Cell
from percola.errors import PercolaError, StoreError
from percola.store.base import Tablet
from percola.store.memory import MemoryStore
from percola.testing.simulation.faults import Call, Fault, FaultKind, Faults
from percola.testing.simulation.schedule import Died, Mortal, Schedule

_LATENCY: Final = 0.002
"""Seconds that a call takes at most, if nothing happens to it."""
_EPOCH_MS: Final = 1_750_000_000_000

_OF_THE_STORE: Final = (Call.MUTATE, Call.READ, Call.ORACLE, Call.ONE_STEP)


class ClaimViolatedError(PercolaError):
    """A property that the simulation checks is violated.

    Attributes:
        claim: what should have held and did not, in sentences.
        cells: (table, row, column) of the cells involved, as texts.
    """

    def __init__(self, claim: str, cells: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__(claim)
        self.claim = claim
        self.cells = list(cells)

    @classmethod
    def of(cls, claim: str, cells: Iterable[Cell]) -> ClaimViolatedError:
        """The same from the store's addresses."""
        return cls(
            claim,
            [
                (one.table, one.row.decode(errors="replace"), one.column.decode(errors="replace"))
                for one in cells
            ],
        )


class Event(NamedTuple):
    """Something that happened: when, to or by which process, what, and with which details."""

    at: float
    who: str
    what: str
    details: tuple[Any, ...]


class World:
    """Everything outside the simulated processes.

    Args:
        seed: all randomness of the run comes from it.
        listed: the faults that happen, instead of those that the seed would draw.
        longest_delay: seconds of virtual time within which whatever is late arrives. Most of
            it arrives much sooner.
        has_notify_table: whether notify entries have a table of their own.
        watches_steps: whether to check every row mutation (`invariants`), or only the outcome.

    Attributes:
        store: the shared store.
        trace: what happened, in order.
        counts: how many transactions committed, conflicted and so on.
        sightings: anomalies that are allowed, and were seen.
    """

    def __init__(
        self,
        seed: str,
        *,
        listed: Sequence[Fault] | None = None,
        kinds: Sequence[FaultKind] = tuple(FaultKind),
        longest_delay: float = 2.0,
        has_notify_table: bool = False,
        watches_steps: bool = True,
    ) -> None:
        self.seed = seed
        self.has_notify_table = has_notify_table
        self.watches_steps = watches_steps
        self.longest_delay = longest_delay
        self.schedule = Schedule()
        self.store = MemoryStore()
        self.faults = Faults(random.Random(f"{seed}/faults"), listed, kinds)
        self.alive: set[str] = set()
        self.row_locks: dict[tuple[str, bytes], Process] = {}
        self.leases: dict[str, int] = {}
        self.callbacks: dict[Process, list[Callable[[], None]]] = {}
        self.splits: dict[str, list[Tablet]] = {}
        self.trace: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.sightings: Counter[str] = Counter()
        self.on_the_wire = 0
        self._ticks = 0

    def tell(self, who: str, what: str, *details: Any) -> None:
        """Add to the trace."""
        self.trace.append(Event(self.schedule.now, who, what, details))

    def delay(self, amount: float) -> float:
        """The delay in seconds of a fault of this amount, in [0, 1)."""
        return self.longest_delay * amount**3

    def tick(self) -> int:
        """A counter that increases with every call: a clock that all processes share."""
        self._ticks += 1
        return self._ticks

    def deliver_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Deliver a call in flight after some seconds, even if its sender has died."""
        self.on_the_wire += 1

        def arrive() -> None:
            self.on_the_wire -= 1
            action()

        self.schedule.at(seconds, arrive)

    def split(self, rng: random.Random) -> None:
        """Change a table's tablet boundaries, to existing or possible rows."""
        known = sorted(self.splits) or [""]
        table = rng.choice(known)
        cuts = sorted({bytes([rng.randrange(1, 255)]) for _ in range(rng.randint(0, 4))})
        bounds = [b"", *cuts, b""]
        self.splits[table] = [Tablet(a, b) for a, b in itertools.pairwise(bounds)]


class Process(Mortal):
    """A simulated process: a client or a worker, for one life.

    Attributes:
        chance: randomness for whatever the process does by chance.
        opens: set while it opens its repository, which nothing disturbs.
        on_death: called when it dies.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name)
        self.world = world
        self.schedule = world.schedule
        self.rng = random.Random(f"{world.seed}/{name}")
        self.opens = False
        self.on_death: Callable[[Process], None] = lambda process: None
        self._calls = 0
        self._lot = world.faults.of(name, random.Random(f"{world.seed}/{name}/faults"))
        self._unreachable_until = 0.0
        # Each machine has clocks of its own.
        self._monotonic_ahead = self.rng.random() * 1e6
        self._wall_ahead_ms = int((self.rng.random() - 0.5) * 600_000)
        world.alive.add(name)

    # --- Calls --------------------------------------------------------------------------

    def call(self, kind: Call, on_wire: Callable[[], None] | None = None) -> Fault | None:
        """Number a call, let time pass for it, and apply the faults to it.

        Returns the fault if only the callee can apply it. `on_wire` is the call's effect when it
        arrives, for a process that dies with the call in flight. Raises Died, and StoreError if the
        store cannot be reached.
        """
        if self.is_dead:
            raise Died
        schedule = self.schedule
        if self.opens or schedule.current is None:
            return None
        self._calls += 1
        seconds = self.rng.random() * _LATENCY
        fault: Fault | None = None
        if self._calls >= self._lot.due:
            fault = self._lot.happens(self._calls, kind)
            if fault is not None:
                seconds += self._suffer(fault, kind, on_wire)
        schedule.pause(seconds)
        if self._unreachable_until > schedule.now and not self.world.faults.is_over:
            goes_away = fault is not None and kind is Call.MUTATE  # With the call on its way.
            if kind in _OF_THE_STORE and not goes_away:
                raise StoreError("The simulated store cannot be reached at the moment.")
        return fault

    def gap(self) -> None:
        """A moment inside a call at which others may run."""
        if not self.opens and self.schedule.current is not None:
            if self.is_dead:
                raise Died
            self.schedule.pause(self.rng.random() * _LATENCY)

    def _suffer(self, fault: Fault, kind: Call, on_wire: Callable[[], None] | None) -> float:
        """Apply a fault to the process or the world; returns the seconds that it takes."""
        world, amount = self.world, fault.amount
        world.tell(self.name, "fault", fault)
        match fault.kind:
            case FaultKind.DIES:
                if on_wire is not None and amount < 0.5:
                    world.deliver_later(world.delay(2 * amount), on_wire)
                self.die(seen_after=world.delay(amount))
                raise Died
            case FaultKind.SLOW | FaultKind.PAUSED:
                return world.delay(amount)
            case FaultKind.UNREACHABLE:
                self._unreachable_until = self.schedule.now + world.delay(amount)
            case FaultKind.ORACLE_RESTARTED:
                world.store.draw(2 * (1 + int(amount * 500)))
                if kind is Call.ORACLE and amount < 0.5:
                    raise StoreError("The simulated oracle was restarted.")
            case FaultKind.TOKEN_LOST:
                # A session is mostly lost because the process was paused.
                self._lose_token()
                return world.delay(amount)
            case FaultKind.CLOCK_JUMP:
                self._monotonic_ahead += amount * 30
                self._wall_ahead_ms += int((amount - 0.5) * 1e9)
            case FaultKind.TABLET_SPLIT:
                world.split(random.Random(amount))
            case _:
                pass
        return 0.0

    # --- Life and death -----------------------------------------------------------------

    def die(self, *, seen_after: float = 0.0) -> None:
        """End this life; the others see it after some seconds."""
        if self.is_dead:
            return
        self.is_dead = True
        self.world.callbacks.pop(self, None)
        self.schedule.end(self)
        self.schedule.at(seen_after, self._lose_token)
        self.on_death(self)

    def _lose_token(self) -> None:
        world = self.world
        world.alive.discard(self.name)
        world.leases.pop(self.name, None)
        for key in [key for key, holder in world.row_locks.items() if holder is self]:
            del world.row_locks[key]

    # --- Clocks -------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Seconds by the process's monotonic clock."""
        return self.schedule.now + self._monotonic_ahead

    def wall_ms(self) -> int:
        """Milliseconds by its wall clock, which differs from all others."""
        return _EPOCH_MS + self._wall_ahead_ms + int(self.schedule.now * 1000)
