"""What is read by whom: leases inside a process, and what processes tell each other."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from children import Child, hear, say
from stores import all_at_once

import percola
from percola import Repository, Table
from percola.coordination.local import LocalCoordination
from percola.coordination.local_leases import LeaseFile
from percola.leases import Leases

bank = Table("bank")
bal = bank.column("bal", int)


# --- Inside a process -------------------------------------------------------------------


def test_repositories_that_share_a_folder_do_not_take_back_what_one_of_them_reads(
    tmp_path: Path,
) -> None:
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


def test_the_oldest_that_is_active_is_what_the_others_are_told() -> None:
    told: list[int] = []
    leases = Leases(told.append)
    leases.add(1, 10)
    leases.add(2, 20)
    leases.add(3, 30)
    leases.drop(2)
    leases.drop(1)
    leases.drop(3)
    leases.drop(3)
    assert told == [10, 30, 0]


def test_an_older_one_that_begins_later_is_told_after_a_while_at_the_latest() -> None:
    told: list[int] = []
    leases = Leases(told.append)
    leases.add(0, 50)
    leases.add(1, 40)
    for key in range(2, 500):
        leases.add(key, 60)
        leases.drop(key)
    assert told == [50, 40]


def test_many_threads_that_come_and_go_leave_nothing_held() -> None:
    told: list[int] = []
    leases = Leases(told.append)

    def come_and_go(seed: int) -> None:
        chance = random.Random(seed)
        for i in range(2000):
            leases.add(seed * 10_000 + i, chance.randrange(1, 100))
            leases.drop(seed * 10_000 + i)

    all_at_once([lambda seed=seed: come_and_go(seed) for seed in range(6)])
    assert leases.oldest() is None
    leases.add(1, 7)
    leases.drop(1)
    assert told[-1] == 0


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


def test_looking_at_the_others_does_not_lose_ones_own_lease(
    tmp_path: Path, mine: LocalCoordination
) -> None:
    mine.hold_back(50)
    assert mine.oldest_held() == 50
    with Child(hold, tmp_path) as other:
        other.tell(60)
        assert other.hear() == 50
        other.tell(60)
        assert other.hear() == 50


def test_the_child_of_a_fork_has_a_lease_of_its_own(
    tmp_path: Path, mine: LocalCoordination
) -> None:
    mine.hold_back(50)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        # In the child: whatever happens, it ends here.
        try:
            mine.hold_back(30)
            os.write(writing, b"%d" % (mine.oldest_held() or 0))
        finally:
            os._exit(0)
    try:
        os.close(writing)
        assert os.read(reading, 100) == b"30"
    finally:
        os.waitpid(pid, 0)
        os.close(reading)
    assert mine.oldest_held() == 50


def test_where_no_slot_is_free_a_process_holds_nothing_back_and_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percola.coordination.local_leases._SLOTS", 1)
    first = LeaseFile(tmp_path)
    with Child(_hold_in_one_slot, tmp_path) as other:
        assert other.hear() == "holds"
        first.hold(5)
        assert first.oldest() == 9
        first.hold(0)
    first.close()


def _hold_in_one_slot(pipe: Connection, folder: Path) -> None:
    file = LeaseFile(folder)
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
    def write(repo: Repository, value: int) -> None:
        with repo.transaction() as t:
            t.set(bal, "a", value)

    with percola.open(tmp_path / "repo", [bank], durability="relaxed") as repo:
        write(repo, 1)
        with Child(read_slowly, tmp_path / "repo") as other:
            start_ts = other.hear()
            write(repo, 2)
            write(repo, 3)
            collected = repo.collect_garbage(retention=0)
            assert collected.safe_point == start_ts
            assert f"a snapshot at {start_ts} is still being read" in collected.held_back
            other.tell("read")
            assert other.hear() == 1
            other.kill()
            assert repo.collect_garbage(retention=0).safe_point > start_ts
        assert [value for _, value in repo.versions(bal, "a")] == [3]
