"""Rule P12 behind a network: who commits by an old view of the safe point commits over nothing.

The safe point stands in a row that each process looks at once in a while (`percola.store.
shared_row`). Here that row is a dictionary, the store is memory, and the time a test's own: the
collector waits for the time that the row takes, and what is to happen meanwhile happens then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from stores import Crashed, CrashingStore, ScriptedCoordination, SeamStore, cell_of, phase

from percola import (
    CommitUnknownError,
    ConflictError,
    OutcomeUnknownError,
    Repository,
    SnapshotTooOldError,
    Table,
)
from percola.cells import MAX_TS, Kind
from percola.gc.collector import Collected
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import OneStepStore, RowMutation
from percola.store.memory import MemoryStore
from percola.store.remote import shared_row
from percola.store.remote.feed import Index
from percola.store.remote.shared_row import LEASE, SharedRow
from percola.testing import simulation
from percola.testing.simulation.feeds import SimulatedRows

bank = Table("bank")
bal = bank.column("bal", int)


class World:
    """A store, the shared row, and the time, which passes while somebody waits for it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.row: dict[bytes, int] = {}
        self.store = MemoryStore()
        self.oracle = EmbeddedOracle(self.store)
        self._due: list[tuple[float, Callable[[], object]]] = []

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        """Have something happen when so many seconds from now have passed."""
        self._due.append((self.now + seconds, what))

    def sleep(self, seconds: float) -> None:
        """Let time pass, with all that happens meanwhile."""
        until = self.now + seconds
        while due := [one for one in self._due if one[0] <= until]:
            first = min(due, key=lambda one: one[0])
            self._due.remove(first)
            self.now = first[0]
            first[1]()
        self.now = until

    def repo(self, name: str, wrap: Callable[[OneStepStore], OneStepStore] = SeamStore) -> Process:
        """A process, which knows of no other whether it lives or reads."""
        return Process(self, name, wrap)


class Process:
    """A repository with a view of the shared row of its own."""

    def __init__(
        self, world: World, name: str, wrap: Callable[[OneStepStore], OneStepStore]
    ) -> None:
        self.view = _Row(world)
        self.store = wrap(_Viewing(world.store, self.view))
        coordination = ScriptedCoordination(name, set())
        self.repo = Repository(name, self.store, world.oracle, coordination, [bank], one_step=False)

    def write(self, **values: int | None) -> int:
        """Write rows in one transaction; None deletes."""
        with self.repo.transaction() as t:
            for row, value in values.items():
                if value is None:
                    t.delete(bal, row)
                else:
                    t.set(bal, row, value)
        assert t.commit_ts is not None
        return t.commit_ts

    def read(self, row: str) -> int | None:
        """What is there now."""
        return self.repo.snapshot().get(bal, row)

    def collect(self) -> Collected:
        """A cycle of garbage collection: it takes as long as the shared row wants."""
        return self.repo.collect_garbage(retention=0)


class _Row(SharedRow):
    def __init__(self, world: World) -> None:
        super().__init__(world.sleep)
        self._world = world
        self.looks = 0

    def _read(self) -> Mapping[bytes, int]:
        self.looks += 1
        return dict(self._world.row)

    def _put(self, column: bytes, ts: int) -> None:
        self._world.row[column] = max(ts, self._world.row.get(column, 0))


class _Viewing(SeamStore):
    """As the stores behind a network have it."""

    def __init__(self, inner: OneStepStore, view: SharedRow) -> None:
        super().__init__(inner)
        self._view = view

    def safe_point(self) -> int:
        return self._view.look().in_force

    def check_safe_point(self, ts: int) -> None:
        self._view.check(ts)

    def raise_safe_point(self, ts: int) -> None:
        self._view.raise_safe_point(ts)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(shared_row, "elapsed", lambda: made.now)
    return made


def there(world: World, row: str, kind: Kind) -> int:
    return len(world.store.entries(cell_of(bal, row), kind, 0, MAX_TS))


def before_the_prewrite(happens: Callable[[], object]) -> Callable[[OneStepStore], OneStepStore]:
    """Have something happen once, when a prewrite is on its way and has not arrived."""
    waiting = [happens]

    def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == "prewrite" and waiting:
            waiting.pop()()
        return apply()

    return lambda inner: SeamStore(inner, hook)


def test_a_commit_makes_no_call_for_the_safe_point_while_its_view_is_new(world: World) -> None:
    writer = world.repo("writer")
    writer.write(a=1)
    looks = writer.view.looks
    world.now += LEASE * 0.9
    writer.write(a=2)
    assert writer.view.looks == looks
    world.now += LEASE * 0.2
    writer.write(a=3)
    assert writer.view.looks == looks + 1


@pytest.mark.parametrize("age", [0.0, 0.5, 0.99])
def test_p12_what_locks_after_something_was_removed_does_not_commit_however_old_its_view(
    world: World, age: float
) -> None:
    """The delete that it conflicts with was there when it began, and is gone when it locks."""
    collector = world.repo("collector")

    def collect() -> None:
        collector.collect()
        assert there(world, "a", Kind.WRITE) == 0, "the collector has not been there"

    writer = world.repo("writer", before_the_prewrite(collect))
    collector.write(a=1)
    late = writer.repo.transaction()
    writer.view.look()
    collector.write(a=None)
    late.set(bal, "a", (late.get(bal, "a") or 0) + 1)
    world.now += LEASE * age
    with pytest.raises(SnapshotTooOldError):
        late.commit()
    assert there(world, "a", Kind.LOCK) == 0
    assert collector.read("a") is None


@pytest.mark.parametrize("age", [0.0, 0.3, 0.6, 0.99])
@pytest.mark.parametrize("waited", [0.0, 0.05, 0.5, 0.999, 1.0, 1.09])
def test_p12_who_commits_by_an_old_view_has_met_all_that_it_conflicts_with(
    world: World, age: float, waited: float
) -> None:
    """It comes while the collector waits: what it conflicts with is still there, and met."""
    collector, writer = world.repo("collector"), world.repo("writer")
    collector.write(a=1, b=1)
    conflicting, free = writer.repo.transaction(), writer.repo.transaction()
    ended: dict[str, str] = {}
    for transaction, row in ((conflicting, "a"), (free, "b")):
        transaction.set(bal, row, 2)
    writer.view.look()
    collector.write(a=None)
    world.now += LEASE * age
    is_old = age + waited < 1

    def commit() -> None:
        for name, transaction in (("conflicting", conflicting), ("free", free)):
            try:
                transaction.commit()
                ended[name] = "committed"
            except (ConflictError, SnapshotTooOldError) as error:
                ended[name] = type(error).__name__

    world.after(LEASE * waited, commit)
    safe_point = collector.collect().safe_point
    assert there(world, "a", Kind.WRITE) == 0, "the collector has not been there"
    assert ended == {
        "conflicting": "ConflictError",
        "free": "committed" if is_old else "SnapshotTooOldError",
    }
    assert (collector.read("a"), collector.read("b")) == (None, 2 if is_old else 1)
    assert not is_old or (free.commit_ts or 0) > safe_point > free.start_ts


def test_p12_a_lock_that_the_collector_could_not_see_is_resolved_before_its_record_goes(
    world: World,
) -> None:
    """It dies past its commit point while the collector waits for those that have an old view."""
    collector = world.repo("collector")
    stores: list[CrashingStore] = []

    def crashing(inner: OneStepStore) -> OneStepStore:
        stores.append(CrashingStore(inner, at=4))
        return stores[0]

    writer = world.repo("writer", crashing)
    collector.write(a=1, z=1)
    dying = writer.repo.transaction()
    for row in "az":
        dying.set(bal, row, 2)
    writer.view.look()
    collector.write(c=1)
    stores[0].armed = True

    def commit() -> None:
        with pytest.raises(Crashed):
            dying.commit()

    world.after(LEASE / 2, commit)
    assert collector.collect().safe_point > dying.start_ts
    assert (there(world, "a", Kind.LOCK), there(world, "z", Kind.LOCK)) == (0, 1)
    collector.write(a=None)
    assert collector.collect().locks == 1
    assert there(world, "a", Kind.WRITE) == 0, "the collector has not been there"
    assert collector.read("z") == 2


def test_p7_a_lost_reply_that_a_collector_overtakes_is_an_unknown_outcome_by_an_old_view_too(
    world: World,
) -> None:
    collector = world.repo("collector")
    replies = iter(["lost"])

    def lose(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        applied = apply()
        if phase(mutation) == "commit" and next(replies, None):
            collector.write(a=2)
            assert collector.collect().versions
            raise OutcomeUnknownError("the reply was lost")
        return applied

    writer = world.repo("writer", lambda inner: SeamStore(inner, lose))
    t = writer.repo.transaction()
    t.set(bal, "a", 1)
    with pytest.raises(CommitUnknownError):
        t.commit()
    assert collector.read("a") == 2


def test_p12_a_safe_point_whose_announcer_died_is_heeded_and_nothing_is_removed_by_it(
    world: World,
) -> None:
    collector, writer = world.repo("collector"), world.repo("writer")
    collector.write(a=1)
    begun = writer.repo.transaction()
    begun.set(bal, "b", 1)
    last = collector.write(a=2)

    def die() -> None:
        raise Crashed

    world.after(LEASE / 2, die)
    with pytest.raises(Crashed):
        collector.collect()
    world.now += LEASE
    with pytest.raises(SnapshotTooOldError):
        begun.commit()
    assert world.repo("other").store.safe_point() == 0
    assert there(world, "a", Kind.WRITE) == 2
    assert world.repo("next").collect().safe_point >= last
    assert there(world, "a", Kind.WRITE) == 1


def test_a_floor_of_feeds_whose_announcement_was_lost_is_announced_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = _Row(world)
    rows = SimulatedRows(simulation.Process(simulation.World("seed"), "process"))
    index = Index(world.store, lambda: None, view, rows)
    put = view._put

    def lose(column: bytes, ts: int) -> None:
        raise OutcomeUnknownError("The store did not answer.")

    monkeypatch.setattr(view, "_put", lose)
    with pytest.raises(OutcomeUnknownError):
        index.looked("bank", 10, index.now(), 1000, None)
    monkeypatch.setattr(view, "_put", put)
    index.looked("bank", 20, index.now(), 1000, None)
    assert (view.look().floors_announced, view.look().floors) == ({"bank": 20}, {})
    index.looked("bank", 30, index.now(), 0, None)
    assert view.look().floors == {}
    world.now += 2 * LEASE
    index.looked("bank", 30, index.now(), 0, 15)
    assert view.look().floors == {"bank": 14}
