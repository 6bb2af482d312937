"""What is read by whom: leases inside a process, and what processes tell each other."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import engines
import pytest
from children import Child, hear, say
from forked import Forked, in_child
from stores import all_at_once

import percola
from percola import Repository, RepositoryClosedError, Snapshot, Table
from percola.coordination.local.active_slots import ActiveSlots
from percola.coordination.local.coordination import LocalCoordination
from percola.transactions.active_snapshots import ActiveSnapshots, leases_of

bank = Table("bank")
bal = bank.column("bal", int)


# --- Inside a process -------------------------------------------------------------------


@pytest.fixture(params=engines.ENGINES)
def active(request: pytest.FixtureRequest) -> type[ActiveSnapshots]:
    """`ActiveSnapshots`, and what does the same in native code."""
    if request.param == "python":
        return ActiveSnapshots
    found: type[ActiveSnapshots] = engines.native().ActiveSnapshots
    return found


def test_repositories_on_one_folder_do_not_take_back_what_one_reads(tmp_path: Path) -> None:
    with (
        percola.open(tmp_path / "repo", schema=[bank]) as reading,
        percola.open(tmp_path / "repo", schema=[bank]) as writing,
    ):
        writing.run(lambda t: t.set(bal, "Bob", 0))
        with reading.snapshot() as now:
            for value in range(1, 4):
                writing.run(lambda t, value=value: t.set(bal, "Bob", value))
            collected = writing.collect_garbage(retention=0)
            assert collected.safe_point <= now.start_ts
            assert now.get(bal, "Bob") == 0
        assert writing.collect_garbage(retention=0).safe_point > now.start_ts


def test_the_oldest_active_one_is_what_others_are_told(active: type[ActiveSnapshots]) -> None:
    told: list[int] = []
    leases = active(told.append)
    leases.add(1, 10)
    leases.add(2, 20)
    leases.add(3, 30)
    leases.drop(2)
    leases.drop(1)
    leases.drop(3)
    leases.drop(3)
    assert told == [10, 30, 0]


def test_an_older_one_that_begins_later_is_told_at_once_and_until_it_ends(
    active: type[ActiveSnapshots],
) -> None:
    told: list[int] = []
    leases = active(told.append)
    leases.add(0, 50)
    leases.add(1, 40)
    assert told == [50, 40]
    leases.add(2, 60)
    leases.drop(2)
    leases.drop(1)
    assert told == [50, 40, 50]


def test_a_snapshot_of_the_past_is_kept_though_one_of_the_present_was_open_before(
    tmp_path: Path,
) -> None:
    with percola.open(tmp_path / "repo", schema=[bank]) as repo:
        repo.run(lambda t: t.set(bal, "Bob", 1))
        past = repo.context.oracle.read_timestamp()
        repo.run(lambda t: t.set(bal, "Bob", 2))
        with repo.snapshot(), repo.snapshot(at=past) as then:
            assert repo.collect_garbage(retention=0).safe_point <= past
            assert then.get(bal, "Bob") == 1
        assert repo.collect_garbage(retention=0).safe_point > past


def test_a_snapshot_of_the_empty_repository_leaves_others_protected(
    tmp_path: Path, active: type[ActiveSnapshots]
) -> None:
    told: list[int] = []
    leases = active(told.append)
    for key, ts in enumerate((0, 0, 50, 60)):
        leases.add(key, ts)
    assert told[-1] == leases.oldest() == 50
    leases.drop(2)
    assert told[-1] == 60
    leases.drop(3)
    assert told[-1] == 0
    with percola.open(tmp_path / "repo", schema=[bank]) as repo, repo.snapshot() as empty:
        assert empty.start_ts == 0
        repo.run(lambda t: t.set(bal, "Bob", 1))
        with repo.snapshot() as now:
            repo.run(lambda t: t.set(bal, "Bob", 2))
            assert repo.collect_garbage(retention=0).safe_point <= now.start_ts
            assert now.get(bal, "Bob") == 1


def test_a_faster_way_to_publish_is_used_until_it_is_refused() -> None:
    told: list[tuple[str, int]] = []
    refused = False

    def faster(ts: int) -> None:
        if refused:
            raise ValueError
        told.append(("faster", ts))

    def hold_back(ts: int) -> Callable[[int], object] | None:
        told.append(("slowly", ts))
        return None if refused else faster

    leases = ActiveSnapshots(hold_back)
    leases.add(1, 10)
    leases.drop(1)
    leases.add(1, 20)
    refused = True
    leases.drop(1)
    leases.add(1, 30)
    leases.drop(1)
    assert told[:3] == [("slowly", 10), ("faster", 0), ("faster", 20)]
    assert told[3:] == [("slowly", 0), ("slowly", 30), ("slowly", 0)]


@pytest.mark.parametrize("look", ["oldest", "readers"])
def test_who_looks_for_readers_while_another_thread_closes_is_told_that_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    coordination = LocalCoordination(tmp_path)
    coordination.hold_back(5)
    found = getattr(ActiveSlots, look)

    def closed_before(slots: ActiveSlots, *timestamps: int) -> object:
        coordination.close()
        return found(slots, *timestamps)

    monkeypatch.setattr(ActiveSlots, look, closed_before)
    with pytest.raises(RepositoryClosedError):
        _ = coordination.oldest_held() if look == "oldest" else coordination.readers(5)


def test_what_ends_after_the_coordination_is_closed_publishes_nothing(tmp_path: Path) -> None:
    coordination = LocalCoordination(tmp_path)
    leases = leases_of(coordination)
    for key in range(3):
        leases.add(key, 5)
        leases.drop(key)
    leases.add(7, 5)
    assert coordination.oldest_held() == 5
    coordination.close()
    leases.drop(7)
    leases.add(8, 6)
    with contextlib.closing(LocalCoordination(tmp_path)) as other:
        assert other.oldest_held() is None


def test_many_threads_that_come_and_go_leave_nothing_held(active: type[ActiveSnapshots]) -> None:
    told: list[int] = []
    leases = active(told.append)

    def come_and_go(seed: int) -> None:
        rng = random.Random(seed)
        for i in range(2000):
            leases.add(seed * 10_000 + i, rng.randrange(1, 100))
            leases.drop(seed * 10_000 + i)

    all_at_once([lambda seed=seed: come_and_go(seed) for seed in range(6)])
    assert leases.oldest() is None
    leases.add(1, 7)
    leases.drop(1)
    assert told[-1] == 0


def test_one_that_begins_while_the_last_one_ends_is_not_forgotten(
    active: type[ActiveSnapshots],
) -> None:
    """What it publishes is followed by the other one's 0."""
    told: list[int] = []

    def hold_back(ts: int) -> None:
        if ts == 0 and leases.oldest() is None:
            leases.add(2, 50)
        told.append(ts)

    leases = active(hold_back)
    leases.add(1, 40)
    leases.drop(1)
    assert told == [40, 50, 0, 50]


def test_one_that_ends_while_another_looks_for_the_oldest_leaves_nothing_held(
    active: type[ActiveSnapshots],
) -> None:
    told: list[int] = []

    def hold_back(ts: int) -> None:
        if ts == 50:
            leases.drop(2)  # Publishes 0, before the 50 that is under way.
        told.append(ts)

    leases = active(hold_back)
    leases.add(1, 40)
    leases.add(2, 50)
    leases.drop(1)
    assert told == [40, 0, 50, 0]


# --- Between processes ------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[LocalCoordination]:
    coordination = LocalCoordination(tmp_path)
    yield coordination
    coordination.close()


def hold(pipe: Connection, folder: Path) -> None:
    """A process that holds back what it is told."""
    coordination = LocalCoordination(folder)
    while True:
        coordination.hold_back(hear(pipe))
        say(pipe, coordination.oldest_held())


def test_the_oldest_of_all_live_processes_counts_and_the_dead_are_forgotten(
    tmp_path: Path, mine: LocalCoordination
) -> None:
    with Child(hold, tmp_path) as other, Child(hold, tmp_path) as third:
        mine.hold_back(50)
        other.tell(40)
        assert other.hear() == 40
        third.tell(60)
        assert third.hear() == 40
        assert mine.oldest_held() == 40
        other.kill()
        assert mine.oldest_held() == 50
        mine.hold_back(0)
        assert mine.oldest_held() == 60
        third.tell(0)
        third.hear()
        assert mine.oldest_held() is None


def test_looking_at_others_keeps_ones_own_lease(tmp_path: Path, mine: LocalCoordination) -> None:
    mine.hold_back(50)
    assert mine.oldest_held() == 50
    with Child(hold, tmp_path) as other:
        other.tell(60)
        assert other.hear() == 50
        other.tell(60)
        assert other.hear() == 50


def test_the_child_of_a_fork_has_a_lease_of_its_own(mine: LocalCoordination) -> None:
    mine.hold_back(50)

    def hold_in_child() -> int | None:
        mine.hold_back(30)
        return mine.oldest_held()

    assert in_child(hold_in_child) == "30"
    assert mine.oldest_held() == 50


def test_a_slot_that_is_taken_while_another_thread_frees_those_of_the_dead_is_kept(
    tmp_path: Path,
) -> None:
    """Record locks do not keep the threads of a process apart."""

    class Freeing(ActiveSlots):
        def _try_lock(self, slot: int) -> bool:
            locked = super()._try_lock(slot)
            if threading.current_thread() is frees:
                begins.set()
                frees_on.wait(0.2)
            return locked

    with Child(_hold_in_one_slot, tmp_path) as dead:
        assert dead.hear() == "holds"
    file = Freeing(tmp_path)
    begins, frees_on = threading.Event(), threading.Event()
    frees = threading.Thread(target=file.oldest)
    frees.start()
    assert begins.wait(60)
    file.hold(7)
    frees_on.set()
    frees.join()
    with Child(_oldest, tmp_path) as other:
        assert other.hear() == 7
    file.close()


def _oldest(pipe: Connection, folder: Path) -> int | None:
    return ActiveSlots(folder).oldest()


def test_where_no_slot_is_free_a_process_holds_nothing_back_and_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percola.coordination.local.active_slots._SLOTS", 1)
    first = ActiveSlots(tmp_path)
    with Child(_hold_in_one_slot, tmp_path) as other:
        assert other.hear() == "holds"
        first.hold(5)
        assert first.oldest() == 9
        first.hold(0)
    first.close()


def _hold_in_one_slot(pipe: Connection, folder: Path) -> None:
    file = ActiveSlots(folder)
    file.hold(9)
    say(pipe, "holds")
    threading.Event().wait()


def read_slowly(pipe: Connection, folder: Path) -> None:
    with percola.open(folder, [bank]) as repo:
        snapshot = repo.snapshot()
        say(pipe, snapshot.start_ts)
        while hear(pipe) == "read":
            say(pipe, snapshot.get(bal, "a"))


def test_a_snapshot_in_another_process_holds_garbage_collection_back_until_that_is_killed(
    tmp_path: Path,
) -> None:
    with percola.open(tmp_path / "repo", [bank], durability="relaxed") as repo:
        put(repo, 1)
        with Child(read_slowly, tmp_path / "repo") as other:
            start_ts = other.hear()
            put(repo, 2, 3)
            collected = repo.collect_garbage(retention=0)
            assert collected.safe_point == start_ts
            assert f"a snapshot at {start_ts} is still being read" in collected.held_back
            other.tell("read")
            assert other.hear() == 1
            other.kill()
            assert repo.collect_garbage(retention=0).safe_point > start_ts
        assert [value for _, value in repo.versions(bal, "a")] == [3]


# --- After a fork -----------------------------------------------------------------------


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", [bank], durability="relaxed") as opened:
        put(opened, 1)
        yield opened


def put(repo: Repository, *values: int) -> None:
    for value in values:
        with repo.transaction() as t:
            t.set(bal, "a", value)


@pytest.mark.parametrize("parent_reads", [False, True])
def test_what_a_child_reads_is_kept_from_garbage_collection(
    repo: Repository, parent_reads: bool
) -> None:
    def read(child: Forked) -> object:
        snapshot = repo.snapshot()
        child.say(snapshot.start_ts)
        child.hear()
        found = snapshot.get(bal, "a")
        snapshot.close()
        child.say(found)
        return child.hear()

    inherited = repo.snapshot() if parent_reads else None
    with Forked(read) as child:
        start_ts = int(child.hear())
        if inherited is not None:
            inherited.close()
        put(repo, 2, 3, 4)
        assert repo.collect_garbage(retention=0).safe_point == start_ts
        child.say("read")
        assert child.hear() == "1"
        assert repo.collect_garbage(retention=0).safe_point > start_ts


def test_a_child_never_holds_back_what_its_parent_has_read(repo: Repository) -> None:
    """Neither snapshots of other threads, which nothing ends there, nor what it ends itself."""
    first = repo.snapshot()
    put(repo, 2)
    second = repo.snapshot()

    def live(child: Forked) -> object:
        first.close()
        for _ in range(300):
            with repo.snapshot() as now:
                now.get(bal, "a")
        child.say("has read")
        return child.hear()

    with Forked(live) as child:
        assert child.hear() == "has read"
        first.close()
        second.close()
        put(repo, 3, 4)
        collected = repo.collect_garbage(retention=0)
        assert collected.held_back == ""
        assert collected.safe_point > second.start_ts


def test_what_a_parent_reads_stays_kept_when_its_child_ends_or_closes(repo: Repository) -> None:
    with repo.snapshot() as reading:
        assert in_child(lambda: repo.snapshot().get(bal, "a")) == "1"
        assert in_child(repo.close) == "None"
        put(repo, 2, 3)
        assert repo.collect_garbage(retention=0).safe_point == reading.start_ts
        assert reading.get(bal, "a") == 1


USES: Mapping[str, Callable[[Snapshot], object]] = {
    "get": lambda one: one.get(bal, "a"),
    "get_many": lambda one: one.get_many([(bal, "a")]),
    "get_row": lambda one: one.get_row(bank, "a"),
    "get_rows": lambda one: one.get_rows(bank, ["a"]),
    "scan": lambda one: list(one.scan(bank)),
    "version": lambda one: one.version(bal, "a"),
}


@pytest.mark.parametrize("begin", [Repository.snapshot, Repository.transaction])
@pytest.mark.parametrize("name", USES)
def test_a_snapshot_or_transaction_that_began_before_a_fork_is_refused_in_the_child(
    repo: Repository, begin: Callable[[Repository], Snapshot], name: str
) -> None:
    inherited = begin(repo)
    assert inherited.get(bal, "a") == 1

    def use() -> object:
        with repo.snapshot() as mine:
            assert mine.get(bal, "a") == 1, "its own is not refused, and made a reader"
        return USES[name](inherited)

    words = in_child(use)
    assert words.startswith("TransactionUsedUpError: ")
    assert f"repo.snapshot(at={inherited.start_ts})" in words
    assert inherited.get(bal, "a") == 1


@pytest.mark.parametrize("two_phase", [False, True])
def test_a_transaction_is_committed_by_the_process_that_began_it_and_by_no_child(
    repo: Repository, two_phase: bool
) -> None:
    """Both have one start_ts: a lock of one could be resolved as if it were the other's."""
    inherited = repo.transaction(two_phase=two_phase)
    inherited.set(bal, "parent", 1)

    def commit() -> None:
        inherited.set(bal, "child", 2)
        inherited.commit()

    assert in_child(commit).startswith("TransactionUsedUpError: ")
    inherited.commit()
    with repo.snapshot() as now:
        assert now.get(bal, "parent") == 1
        assert now.get(bal, "child") is None


def test_a_child_may_give_up_and_close_what_it_inherited(repo: Repository) -> None:
    reading, writing = repo.snapshot(), repo.transaction()
    writing.set(bal, "parent", 1)

    def end() -> str:
        reading.close()
        writing.rollback()
        return "ended"

    assert in_child(end) == "ended"
    assert reading.get(bal, "a") == 1
    writing.commit()
