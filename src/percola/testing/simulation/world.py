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

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import PercolaError, StoreError
from percola.store.base import Delete, Put, RowMutation, Tablet
from percola.store.memory import MemoryStore
from percola.store.remote.feed_index import FEED_TABLE
from percola.testing.simulation.faults import Call, Fault, FaultKind, Faults
from percola.testing.simulation.schedule import Died, Mortal, Schedule

_LATENCY: Final = 0.002
"""Seconds that a call takes at most, if nothing happens to it."""
_EPOCH_MS: Final = 1_750_000_000_000
_LOSES: Final = 0.7
LOST: Final = "a lock was lost with its server"
"""What is seen in runs in which servers of the store die."""

ANY_BYTES: Final = "surrogateescape"
"""How bytes become a text, from which they are made again."""

_OF_THE_STORE: Final = (Call.MUTATE, Call.READ, Call.ORACLE, Call.ONE_STEP)


class ClaimViolatedError(PercolaError):
    """A property that the simulation checks is violated.

    Attributes:
        claim: what should have held and did not, in sentences.
        cells: (table, row, column) of the cells involved, as texts; bytes that are not UTF-8 are
            surrogates (`surrogateescape`).
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
                (one.table, one.row.decode(errors=ANY_BYTES), one.column.decode(errors=ANY_BYTES))
                for one in cells
            ],
        )


class Event(NamedTuple):
    """Something that happened: when, to or by which process, what, and with which details."""

    at: float
    who: str
    what: str
    details: tuple[Any, ...]


_Slot = tuple[Kind, bytes, int, int]
"""Where one entry stands: kind, column and a range of timestamps. A cell has one lock."""


def _slot_of(change: Put | Delete) -> _Slot:
    if change.kind is Kind.LOCK:
        return change.kind, change.column, 0, MAX_TS
    return change.kind, change.column, change.ts, change.ts


class World:
    """Everything outside the simulated processes.

    Args:
        seed: all randomness of the run comes from it.
        listed: the faults that happen, instead of those that the seed would draw.
        longest_delay: seconds of virtual time within which whatever is late arrives. Most of
            it arrives much sooner.
        has_notify_table: whether notify entries have a table of their own.
        has_volatile_writes: whether what is not written durably may be lost.
        has_feed_index: whether feeds are in the changed rows, and have an index.
        watches_steps: whether to check every row mutation (`invariants`), or only the outcome.

    Attributes:
        store: the shared store.
        deletes_hide: whether what was deleted of the index of feeds stays so, also if it is put
            again, as on HBase until a major compaction.
        trace: what happened, in order.
        counts: how many transactions committed, conflicted and so on.
        sightings: anomalies that are allowed, and were seen.
        server_deaths: how often servers of the store have died.
        lost_locks: (cell, start_ts) of the locks that were lost with one.
    """

    def __init__(
        self,
        seed: str,
        *,
        listed: Sequence[Fault] | None = None,
        kinds: Sequence[FaultKind] = tuple(FaultKind),
        longest_delay: float = 2.0,
        has_notify_table: bool = False,
        has_volatile_writes: bool = False,
        has_feed_index: bool = False,
        watches_steps: bool = True,
    ) -> None:
        self.seed = seed
        self.has_notify_table = has_notify_table
        self.has_volatile_writes = has_volatile_writes
        self.has_feed_index = has_feed_index
        self.watches_steps = watches_steps
        self.longest_delay = longest_delay
        self.schedule = Schedule()
        self.store = MemoryStore()
        self.faults = Faults(random.Random(f"{seed}/faults"), listed, kinds)
        self.alive: set[str] = set()
        self.row_locks: dict[tuple[str, bytes], Process] = {}
        self.leases: dict[str, int] = {}
        self.callbacks: dict[Process, list[Callable[[bytes], float | None]]] = {}
        self.splits: dict[str, list[Tablet]] = {}
        self.trace: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.sightings: Counter[str] = Counter()
        self.on_the_wire = 0
        self.server_deaths = 0
        self.lost_locks: set[tuple[Cell, int]] = set()
        # (table, row) → what stands in place of each entry if its server dies.
        self._volatile: dict[tuple[str, bytes], dict[_Slot, list[Put]]] = {}
        self.deletes_hide = random.Random(f"{seed}/deletes").random() < 0.5
        self._hidden: set[bytes] = set()
        self._ticks = 0

    def tell(self, who: str, what: str, *details: Any) -> None:
        """Add to the trace."""
        self.trace.append(Event(self.schedule.now, who, what, details))

    def hides(self, mutation: RowMutation) -> bool:
        """Whether a put in the index of feeds is hidden by an earlier delete of the same entry."""
        if mutation.table != FEED_TABLE or not self.deletes_hide:
            return False
        [change] = mutation.changes
        if isinstance(change, Delete):
            self._hidden.add(mutation.row)
        return isinstance(change, Put) and mutation.row in self._hidden

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

    # --- The store's servers ------------------------------------------------------------

    def mutate(self, mutation: RowMutation) -> bool:
        """Apply a mutation to the store; what is not durable is lost if a server dies later."""
        if not self.has_volatile_writes:
            return self.store.mutate([mutation])[0]
        before: dict[_Slot, list[Put]] = {}
        for one in mutation.changes:
            slot = _slot_of(one)
            standing = self._standing(mutation.table, mutation.row, slot)
            if isinstance(one, Put) or any(put.ts == one.ts for put in standing):
                before.setdefault(slot, standing)
        applied = self.store.mutate([mutation])[0]
        if applied:
            kept = self._volatile.setdefault((mutation.table, mutation.row), {})
            for slot, puts in before.items():
                if mutation.durable:
                    kept.pop(slot, None)
                else:
                    kept.setdefault(slot, puts)
        return applied

    def lose(self, rng: random.Random) -> None:
        """Let servers die: some rows lose all that is volatile in them, others nothing."""
        self.server_deaths += 1
        rows = [at for at, kept in self._volatile.items() if kept and rng.random() < _LOSES]
        for table, row in rows:
            changes: list[Put | Delete] = []
            for slot, puts in self._volatile.pop((table, row)).items():
                for gone in self._standing(table, row, slot):
                    changes.append(Delete(gone.kind, gone.column, gone.ts))
                    if gone.kind is Kind.LOCK and gone not in puts:
                        self.lost_locks.add((Cell(table, row, gone.column), gone.ts))
                        self.sightings[LOST] += 1
                changes += puts
            self.store.mutate([RowMutation(table, row, (), changes)])
        if rows:
            self.tell("", "loses", [f"{table}[{row!r}]" for table, row in rows])

    def _standing(self, table: str, row: bytes, slot: _Slot) -> list[Put]:
        """What stands in a slot, as the puts that would bring it back."""
        kind, column, low, high = slot
        found = self.store.entries(Cell(table, row, column), kind, low, high)
        return [Put(kind, column, ts, value) for ts, value in found]

    def split(self, rng: random.Random) -> None:
        """Change a table's tablet boundaries, to existing or possible rows.

        Servers write what is volatile to files before they part with a tablet.
        """
        self._volatile.clear()
        known = sorted(self.splits) or [""]
        table = rng.choice(known)
        cuts = sorted({bytes([rng.randrange(1, 255)]) for _ in range(rng.randint(0, 4))})
        bounds = [b"", *cuts, b""]
        self.splits[table] = [Tablet(a, b) for a, b in itertools.pairwise(bounds)]


class Process(Mortal):
    """A simulated process: a client or a worker, for one life.

    Attributes:
        rng: randomness for whatever the process does by chance.
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
            case FaultKind.SERVER_DIED:
                world.lose(random.Random(amount))
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
