"""Rule P12: a timestamp may be held back from garbage collection by name, for readers that no
process stands for all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stores import Gate, Ground, ScriptedClock, SeamStore, all_at_once, in_thread, put, telling

from percola import ConflictingOptionsError, Repository, SnapshotTooOldError, Table, UsageError
from percola.cells import Kind
from percola.ranges import Here
from percola.store.base import SYSTEM_TABLE, RowMutation

bank = Table("bank")
bal = bank.column("bal", int)
TABLES = [bank]


def write(repo: Repository, value: int) -> int:
    return put(repo, bal, "Bob", value)


def seen(repo: Repository, ts: int) -> int | None:
    with repo.snapshot(ts) as snapshot:
        return snapshot.get(bal, "Bob")


def entries(ground: Ground) -> list[bytes]:
    found, _ = ground.store.scan_kind(Kind.DATA, SYSTEM_TABLE, b"hold/", b"hold0", 1000)
    return [cell.row for cell, _, _ in found]


def test_what_is_held_is_kept_until_it_is_released(ground: Ground, repo: Repository) -> None:
    old = write(repo, 1)
    name = repo.hold(old, 3600, name="a frame")
    write(repo, 2)
    collected = repo.collect_garbage(retention=0)
    assert (collected.safe_point, name) == (old, "a frame")
    assert collected.held_back == f"'a frame' holds {old} back"
    assert seen(repo, old) == 1
    repo.release(name)
    repo.release(name)
    assert repo.collect_garbage(retention=0).held_back == ""
    with pytest.raises(SnapshotTooOldError):
        seen(repo, old)
    assert entries(ground) == []


def test_a_hold_ends_by_itself_and_is_renewed_by_name(ground: Ground) -> None:
    clock = ScriptedClock()
    repo = ground.repo(TABLES, clock=clock)
    first = write(repo, 1)
    repo.hold(first, 100, name="stream")
    later = write(repo, 2)
    write(repo, 3)
    clock.now += 60
    repo.hold(first, 100, name="stream")
    clock.now += 60
    assert repo.collect_garbage(retention=0).safe_point == first
    # It has moved on: what it held before is free.
    repo.hold(later, 100, name="stream")
    assert [(one.name, one.ts) for one in repo.holds()] == [("stream", later)]
    assert repo.collect_garbage(retention=0).safe_point == later
    assert seen(repo, later) == 2
    clock.now += 101
    assert repo.holds() == []
    assert repo.collect_garbage(retention=0).safe_point > later


def test_the_oldest_of_several_counts_and_another_process_sees_it(ground: Ground) -> None:
    mine, other = ground.repo(TABLES), ground.repo(TABLES)
    stamps = [write(mine, value) for value in range(4)]
    names = [mine.hold(ts, 3600) for ts in (stamps[2], stamps[1])]
    assert len(set(names)) == 2
    assert [one.ts for one in other.holds()] == [stamps[1], stamps[2]]
    assert other.collect_garbage(retention=0).safe_point == stamps[1]
    assert seen(mine, stamps[2]) == 2


def test_what_is_gone_cannot_be_held_and_leaves_no_hold(ground: Ground, repo: Repository) -> None:
    old = write(repo, 1)
    write(repo, 2)
    repo.collect_garbage(retention=0)
    with pytest.raises(SnapshotTooOldError):
        repo.hold(old, 3600)
    assert (repo.holds(), entries(ground)) == ([], [])


def test_a_hold_that_the_collector_has_overtaken_is_refused_and_leaves_no_hold(
    ground: Ground,
) -> None:
    repo = ground.repo(TABLES)
    old = write(repo, 1)
    write(repo, 2)
    store = SeamStore(ground.store)
    holder = ground.repo(TABLES, store=store)

    def collected_before(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        repo.collect_garbage(retention=0)
        return apply()

    store.hook = collected_before
    with pytest.raises(SnapshotTooOldError):
        holder.hold(old, 3600)
    assert (repo.holds(), entries(ground)) == ([], [])


def test_what_is_read_or_held_while_a_collector_looks_for_locks_is_kept(repo: Repository) -> None:
    first, second, _ = (write(repo, value) for value in range(3))

    class Meanwhile(Here):
        def __init__(self, do: Callable[[], object]) -> None:
            self.do = do

        def run(self, *args: Any, title: str, **options: Any) -> Any:
            if title == "Resolving locks":
                self.done = self.do()
            return super().run(*args, title=title, **options)

    reads = Meanwhile(lambda: repo.snapshot(first))
    assert repo.collect_garbage(retention=0, runner=reads).safe_point == first
    assert reads.done.get(bal, "Bob") == 0
    reads.done.close()
    holds = Meanwhile(lambda: repo.hold(second, 3600, name="job"))
    collected = repo.collect_garbage(retention=0, runner=holds)
    assert (collected.safe_point, collected.held_back) == (second, f"'job' holds {second} back")
    assert seen(repo, second) == 1


def test_a_hold_of_what_is_gone_does_not_end_the_one_of_its_name(repo: Repository) -> None:
    """A follower that asks for too much still has what it has."""
    gone = write(repo, 1)
    write(repo, 2)
    kept = repo.collect_garbage(retention=0).safe_point
    repo.hold(kept, 3600, name="follower")
    with pytest.raises(SnapshotTooOldError):
        repo.hold(gone, 3600, name="follower")
    write(repo, 3)
    repo.collect_garbage(retention=0)
    assert [one.ts for one in repo.holds()] == [kept]
    assert seen(repo, kept) == 2


def test_a_collector_that_looked_before_the_hold_makes_no_wrong_answer(ground: Ground) -> None:
    gate = Gate()

    class Waiting(SeamStore):
        def raise_safe_point(self, ts: int) -> None:
            gate.wait_here()
            super().raise_safe_point(ts)

    repo = ground.repo(TABLES)
    old = write(repo, 1)
    write(repo, 2)
    collector = ground.repo(TABLES, store=Waiting(ground.store))
    collecting = in_thread(lambda: collector.collect_garbage(retention=0))
    gate.await_arrival()
    repo.hold(old, 3600)  # Too late, and nobody can know that yet.
    gate.open()
    collecting.result(20)
    with pytest.raises(SnapshotTooOldError):
        seen(repo, old)
    # The next one does see it, and a later timestamp is not affected.
    now = write(repo, 3)
    repo.hold(now, 3600)
    write(repo, 4)
    repo.collect_garbage(retention=0)
    assert seen(repo, now) == 3


def test_of_many_who_hold_by_one_name_at_once_one_stands(ground: Ground, repo: Repository) -> None:
    stamps = [write(repo, value) for value in range(8)]
    done = all_at_once([lambda ts=ts: repo.hold(ts, 3600, name="same") for ts in stamps])  # type: ignore[misc]
    assert done == ["same"] * 8
    [one] = repo.holds()
    assert one.ts in stamps
    assert entries(ground) == [b"hold/same"]


def overtaking(ground: Ground, act: Callable[[], object]) -> tuple[Repository, list[RowMutation]]:
    """A repository beside which somebody acts just before its first write of the hold `same`."""
    overtaken: list[RowMutation] = []

    def overtake(mutation: RowMutation) -> None:
        if mutation.row == b"hold/same" and not overtaken:
            overtaken.append(mutation)
            act()

    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store)
    store.hook = telling(overtake)
    return repo, overtaken


def test_a_hold_that_others_have_overtaken_is_written_anew_and_is_the_one_that_stands(
    ground: Ground,
) -> None:
    """Between its look and its write, somebody else has held twice by the same name."""
    others = ground.repo(TABLES)
    stamps = [write(others, value) for value in range(4)]
    others.hold(stamps[0], 3600, name="same")
    repo, overtaken = overtaking(
        ground, lambda: [others.hold(ts, 3600, name="same") for ts in stamps[1:3]]
    )
    repo.hold(stamps[3], 3600, name="same")
    assert overtaken
    assert [one.ts for one in others.holds()] == [stamps[3]]
    assert entries(ground) == [b"hold/same"], "what was overtaken should not be left beside it"


def test_a_release_that_a_hold_has_overtaken_releases_that_as_well(ground: Ground) -> None:
    others = ground.repo(TABLES)
    ts = write(others, 1)
    others.hold(ts, 3600, name="same")
    repo, overtaken = overtaking(ground, lambda: others.hold(ts, 3600, name="same"))
    repo.release("same")
    assert overtaken
    assert (others.holds(), entries(ground)) == ([], [])


def test_expired_holds_are_removed_by_the_collector(ground: Ground) -> None:
    clock = ScriptedClock()
    repo = ground.repo(TABLES, clock=clock)
    ts = write(repo, 1)
    for number in range(5):
        repo.hold(ts, 10, name=f"old-{number}")
    clock.now += 11
    repo.hold(ts, 10, name="new")
    repo.collect_garbage()
    assert entries(ground) == [b"hold/new"]


def test_what_cannot_be_held_is_refused(repo: Repository) -> None:
    ts = write(repo, 1)
    for seconds in (-1, "1h"):
        with pytest.raises(ConflictingOptionsError, match=f"cannot be held for {seconds!r} sec"):
            repo.hold(ts, seconds)  # type: ignore[arg-type]
    for retention in ("24h", None, -1, float("nan")):
        with pytest.raises(ConflictingOptionsError, match=r"is not a number of seconds from 0 up"):
            repo.collect_garbage(retention=retention)  # type: ignore[arg-type]
    for name in ("x" * 129, "\ud800", 5):
        with pytest.raises(ConflictingOptionsError, match="cannot name a hold"):
            repo.hold(ts, 1, name=name)  # type: ignore[arg-type]
        with pytest.raises(ConflictingOptionsError, match="cannot name a hold"):
            repo.release(name)  # type: ignore[arg-type]
    for bad in (ts + 1000, -1, "now"):
        with pytest.raises(UsageError, match="cannot be held: timestamps go from 1"):
            repo.hold(bad, 1)  # type: ignore[arg-type]
