"""The environment of a simulated process besides the store: oracle, coordination, clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from percola.clock import Clock
from percola.coordination.base import Coordination
from percola.coordination.wake_ups import Place, wake_up_of
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle
from percola.testing.simulation.faults import Call
from percola.testing.simulation.schedule import Died
from percola.testing.simulation.world import Process


class SimulatedClock(Clock):
    """The clocks of one process; while it sleeps, others run."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.monotonic = process.monotonic  # type: ignore[method-assign]

    @property
    def machine(self) -> str:
        return self._process.name

    def wall_ms(self) -> int:
        return self._process.wall_ms()

    def sleep(self, seconds: float) -> None:
        process = self._process
        if process.is_dead:
            raise Died
        if process.schedule.current is None:
            process.schedule.now += seconds
        else:
            process.schedule.pause(seconds)


class SimulatedOracle(Oracle):
    """The oracle as one process reaches it: every request takes time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._inner = EmbeddedOracle(process.world.store)

    def timestamp(self) -> int:
        self._process.call(Call.ORACLE)
        ts = self._inner.timestamp()
        self._process.world.tell(self._process.name, "timestamp", ts)
        # The reply's latency: replies to others may overtake it.
        self._process.gap()
        return ts

    def read_timestamp(self) -> int:
        self._process.call(Call.ORACLE)
        ts = self._inner.read_timestamp()
        self._process.world.tell(self._process.name, "read timestamp", ts)
        self._process.gap()
        return ts


class SimulatedCoordination(Coordination):
    """Liveness, row locks and wake-ups, as one process sees them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._observers: dict[str, list[str]] = {}

    @property
    def token(self) -> str:
        return self._process.name

    def is_alive(self, token: str) -> bool:
        self._process.call(Call.COORDINATION)
        alive = token in self._world.alive
        if not alive:
            self._world.tell(self._process.name, "sees dead", token)
        return alive

    def try_lock(self, table: str, row: bytes) -> bool:
        self._process.call(Call.COORDINATION)
        if (table, row) in self._world.row_locks:
            return False  # Another scanner has it, perhaps one of this process.
        self._world.row_locks[table, row] = self._process
        return True

    def unlock(self, table: str, row: bytes) -> None:
        self._process.call(Call.COORDINATION)
        if self._world.row_locks.get((table, row)) is self._process:
            del self._world.row_locks[table, row]

    def wake(self, places: Iterable[Place] | None = None) -> None:
        fault = self._process.call(Call.WAKE)
        if fault is None:
            wake_up = wake_up_of(places)
            for callbacks in self._world.callbacks.values():
                for callback in callbacks:
                    callback(wake_up)

    def on_wake(self, callback: Callable[[bytes], float | None]) -> Callable[[], None]:
        callbacks = self._world.callbacks.setdefault(self._process, [])
        callbacks.append(callback)
        return lambda: callbacks.remove(callback) if callback in callbacks else None

    def hold_back(self, ts: int) -> None:
        # Not a point at which others go on: a snapshot that nobody needs any more says it from
        # wherever that happens to be.
        if ts and not self._process.is_dead:
            self._world.leases[self._process.name] = ts
        else:
            self._world.leases.pop(self._process.name, None)

    def oldest_held(self) -> int | None:
        self._process.call(Call.COORDINATION)
        return min(self._world.leases.values(), default=None)

    def announce_observers(self, observers: dict[str, list[str]]) -> None:
        self._observers = observers

    def processes(self) -> list[dict[str, object]]:
        return [
            {"token": token, "pid": number, "observers": {}}
            for number, token in enumerate(sorted(self._world.alive), start=1)
        ]

    def close(self) -> None:
        self._world.alive.discard(self._process.name)
