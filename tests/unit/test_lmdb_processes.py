"""Several real processes on one LMDB store: nothing lost, kill -9, fork."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from children import Child, ask, hear, say
from engines import engine as engine
from forked import in_child

import percola
from percola import RepositoryError, StoreError, Table
from percola.cells import MAX_TS, Cell, Kind, Op
from percola.coordination.local.coordination import LocalCoordination
from percola.store.base import Condition, OneStepStore, Put, RowMutation
from percola.store.lmdb import environment as lmdb_environment
from percola.store.lmdb.driver import Txn
from percola.store.lmdb.environment import Environment
from percola.store.lmdb.store import LmdbStore
from percola.testing.conformance.one_step import assert_nothing_missed, commit_often, sight

PROCESSES = 4
COUNTER = Cell("t", b"counter", b"c")

table = Table("t")
count = table.column("count", int)


@contextlib.contextmanager
def open_store(
    folder: Path, map_bytes: int = 1 << 30, *, durability: str = "relaxed"
) -> Iterator[LmdbStore]:
    store = LmdbStore(folder, durability=durability, map_bytes=map_bytes)
    store.create_tables(["t"])
    yield store
    store.close()


# --- Writing at once --------------------------------------------------------------------


def increment_under_a_condition(store: OneStepStore) -> None:
    while True:
        newest = store.entries(COUNTER, Kind.DATA, 0, MAX_TS, 1)
        ts = newest[0][0] if newest else 0
        unchanged = Condition(False, Kind.DATA, b"c", ts + 1, MAX_TS)
        put = Put(Kind.DATA, b"c", ts + 1, b"")
        if store.mutate([RowMutation("t", COUNTER.row, [unchanged], [put])])[0]:
            return


def increment_in_one_step(store: OneStepStore) -> None:
    while True:
        start_ts = store.last_drawn()
        value = int(store.read([COUNTER], start_ts)[0][2] or b"0") + 1
        outcome = store.commit_one_step(start_ts, [(COUNTER, int(Op.PUT), b"%d" % value, False)])
        if isinstance(outcome, int):
            return


def increments(
    pipe: Connection, folder: Path, increment: Callable[[OneStepStore], None], times: int
) -> None:
    with open_store(folder) as store:
        say(pipe, "ready")
        hear(pipe)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: increment(store), range(times)))


def hear_all(children: Iterable[Child]) -> list[Any]:
    return [child.hear() for child in children]


def tell_all(children: Iterable[Child]) -> None:
    for child in children:
        child.tell()


@pytest.mark.parametrize("increment", [increment_under_a_condition, increment_in_one_step])
def test_processes_that_count_at_once_lose_no_increment(
    tmp_path: Path, increment: Callable[[OneStepStore], None]
) -> None:
    times = 100
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(Child(increments, tmp_path, increment, times))
            for _ in range(PROCESSES)
        ]
        assert hear_all(children) == ["ready"] * PROCESSES
        tell_all(children)
        hear_all(children)
    with open_store(tmp_path) as store:
        if increment is increment_in_one_step:
            value = int(store.read([COUNTER], store.last_drawn())[0][2] or b"0")
        else:
            value = store.entries(COUNTER, Kind.DATA, 0, MAX_TS, 1)[0][0]
    assert value == PROCESSES * times


def write_large(pipe: Connection, folder: Path, who: int, values: int) -> None:
    with open_store(folder, 1 << 20) as store:
        say(pipe, "ready")
        hear(pipe)
        for i in range(values):
            put = Put(Kind.DATA, b"c", 1, b"%d" % who * 1_000_000)
            store.mutate([RowMutation("t", b"%d/%d" % (who, i), (), [put])])
            store.entries(Cell("t", b"%d/%d" % (1 - who, i), b"c"), Kind.DATA, 0, 9)


def test_two_processes_make_the_map_grow_in_turn(tmp_path: Path) -> None:
    values = 25
    with (
        Child(write_large, tmp_path, 0, values) as one,
        Child(write_large, tmp_path, 1, values) as two,
    ):
        hear_all([one, two])
        tell_all([one, two])
        hear_all([one, two])
    with open_store(tmp_path, 1 << 20) as store:
        for who in range(2):
            for i in range(values):
                cell = Cell("t", b"%d/%d" % (who, i), b"c")
                assert store.entries(cell, Kind.DATA, 0, 9) == [(1, b"%d" % who * 1_000_000)]


# --- Timestamps -------------------------------------------------------------------------


def draw_for_ever(pipe: Connection, folder: Path, log: Path) -> None:
    with open_store(folder) as store, log.open("wb", buffering=0) as out:
        say(pipe, "ready")
        while True:
            out.write(b"%d\n" % store.draw())


def drawn(log: Path) -> list[int]:
    """What a process has drawn for certain; the last line may be cut off by its end."""
    return [int(line) for line in log.read_bytes().split(b"\n")[:-1]] if log.exists() else []


def test_timestamps_only_go_up_across_processes_that_are_killed_and_reopening(
    tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    highest, logs = 0, []
    for generation in range(2):
        with contextlib.ExitStack() as stack:
            mine = [tmp_path / f"{generation}-{i}" for i in range(PROCESSES)]
            children = [stack.enter_context(Child(draw_for_ever, tmp_path, log)) for log in mine]
            hear_all(children)
            for log in mine:
                wait_until(lambda log=log: len(drawn(log)) > 200)
            for child in children:
                child.kill()
        for log in mine:
            numbers = drawn(log)
            assert numbers == sorted(numbers)
            assert numbers[0] > highest
        logs += mine
        highest = max(number for log in logs for number in drawn(log))
        with open_store(tmp_path) as store:
            assert store.last_drawn() >= highest
            highest = store.draw()
    every = [number for log in logs for number in drawn(log)]
    assert len(set(every)) == len(every)


def commits_of(pipe: Connection, folder: Path, row: bytes, times: int) -> list[int]:
    with open_store(folder) as store:
        say(pipe, "ready")
        hear(pipe)
        return commit_often(store, Cell("t", row, b"c"), times)


def sightings_of(pipe: Connection, folder: Path, rows: list[bytes]) -> list[object]:
    with open_store(folder) as store:
        cells = [Cell("t", row, b"c") for row in rows]
        say(pipe, "ready")
        seen: list[object] = [sight(store, cells)]
        while not pipe.poll():
            seen.append(sight(store, cells))
        return seen


def test_no_process_that_reads_misses_a_commit_at_or_below_its_timestamp(tmp_path: Path) -> None:
    rows = [b"r0", b"r1"]
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        readers = [start(Child(sightings_of, tmp_path, rows)) for _ in range(2)]
        writers = [start(Child(commits_of, tmp_path, row, 2000)) for row in rows]
        hear_all([*readers, *writers])
        tell_all(writers)
        commits = hear_all(writers)
        tell_all(readers)
        sightings = [seen for all_ in hear_all(readers) for seen in all_]
    assert len(sightings) > 100
    assert_nothing_missed(commits, sightings)


# --- Killed in the middle ---------------------------------------------------------------


def put(environment: Environment, key: bytes) -> bool:
    return environment.write(lambda txn: txn.put(key, b"", db=environment.databases[0]))


def stop_in_a_write(pipe: Connection, folder: Path) -> None:
    environment = Environment(folder, [b"one"])

    def operation(txn: Txn) -> None:
        txn.put(b"half", b"", db=environment.databases[0])
        say(pipe, "writing")
        hear(pipe)

    environment.write(operation)


def stop_in_a_read(pipe: Connection, folder: Path) -> None:
    environment = Environment(folder, [b"one"])
    with environment.reading():
        say(pipe, "reading")
        hear(pipe)


def test_a_process_that_is_killed_while_it_writes_holds_up_nobody(tmp_path: Path) -> None:
    environment = Environment(tmp_path, [b"one"])
    with Child(stop_in_a_write, tmp_path) as child, ThreadPoolExecutor(1) as pool:
        child.hear()
        waiting = pool.submit(put, environment, b"whole")
        child.kill()
        assert waiting.result(30)
    with environment.reading() as txn:
        assert txn.get(b"half", db=environment.databases[0]) is None
        assert txn.get(b"whole", db=environment.databases[0]) == b""
    environment.close()


def commit_when_told(pipe: Connection, folder: Path) -> None:
    with open_store(folder) as store:
        say(pipe, "open")
        while words := hear(pipe):
            say(pipe, commit(store, *words))


def commit(store: LmdbStore, row: bytes) -> object:
    write = Cell("t", row, b"c"), int(Op.PUT), b"v", False
    return store.commit_one_step(store.last_drawn(), [write])


@pytest.mark.usefixtures("engine")
def test_a_process_whose_lock_file_was_deleted_writes_over_nothing(tmp_path: Path) -> None:
    # Relaxed, a thread would notice it first.
    with open_store(tmp_path, durability="full") as store:
        assert commit(store, b"1") == 1
        (tmp_path / "lock.mdb").unlink()  # As something that a process has left, it was thought.
        with Child(commit_when_told, tmp_path) as child:
            child.hear()
            assert ask(child, b"2") == 2
            for _ in range(2):
                with pytest.raises(RepositoryError, match=r"lock\.mdb was removed or replaced"):
                    commit(store, b"lost")
            store.close()
            with open_store(tmp_path) as again:
                found = [commit(again, b"3"), ask(child, b"4"), commit(again, b"5")]
                assert found == [3, 4, 5]
                cells = [Cell("t", row, b"c") for row in (b"1", b"2", b"3", b"4", b"5", b"lost")]
                assert [state[1] for state in again.read(cells, 5)] == [1, 2, 3, 4, 5, 0]


def test_a_process_with_a_new_lock_file_writes_over_nothing_of_those_with_the_old_one(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path, durability="full") as store:
        (tmp_path / "lock.mdb").unlink()
        with Child(commit_when_told, tmp_path) as child:
            child.hear()
            assert commit(store, b"mine") == 1
            with pytest.raises(AssertionError, match=r"lock\.mdb was removed or replaced"):
                ask(child, b"theirs")
    with open_store(tmp_path) as store:
        assert commit(store, b"later") == 2
        assert store.read([Cell("t", b"theirs", b"c")], 2)[0][1] == 0


def stop_before_the_lock_file_is_begun(pipe: Connection, folder: Path) -> None:
    with open(folder / "lock.mdb", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_SH, 1)
        say(pipe, "locked")
        hear(pipe)


def test_a_process_that_is_killed_as_it_begins_the_lock_file_leaves_no_damaged_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Environment(tmp_path, [b"one"]).close()
    (tmp_path / "lock.mdb").write_bytes(bytes(lmdb_environment._LOCK_BYTES))
    with Child(stop_before_the_lock_file_is_begun, tmp_path) as child:
        child.hear()
        monkeypatch.setattr(lmdb_environment.time, "sleep", lambda seconds: child.kill())
        environment = Environment(tmp_path, [b"one"])
    assert put(environment, b"mine")
    environment.close()


def test_a_fork_while_a_write_waits_for_another_process_does_it_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., object]
) -> None:
    monkeypatch.setattr(lmdb_environment, "_TIMEOUT_SECONDS", 0.2)
    environment = Environment(tmp_path, [b"one"])
    with Child(stop_in_a_write, tmp_path) as child, ThreadPoolExecutor(1) as pool:
        child.hear()
        waiting = pool.submit(put, environment, b"mine")
        wait_until(lambda: environment._running)
        assert in_child(lambda: None) == "None"
        child.tell()
        assert waiting.result(30)
    for key in (b"half", b"mine"):
        with environment.reading() as txn:
            assert txn.get(key, db=environment.databases[0]) == b""
    environment.close()


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_reader_that_was_killed_is_forgotten_in_time_by_those_that_write(
    tmp_path: Path, durability: str, wait_until: Callable[..., object]
) -> None:
    environment = Environment(tmp_path, [b"one"], durability=durability)
    assert environment._env is not None
    with Child(stop_in_a_read, tmp_path) as child:
        child.hear()
        child.kill()
    # It would keep every page that was freed since then from being used again.
    assert str(child.pid) in environment._env.readers()
    environment._care_at = 0.0
    environment.write(lambda txn: None)
    if durability == "full":
        assert str(child.pid) not in environment._env.readers()
    wait_until(lambda: environment._env and str(child.pid) not in environment._env.readers())
    environment.close()


def readers_of(pipe: Connection, folder: Path) -> str:
    # Opening it frees the slots of readers that seem to be dead.
    environment = Environment(folder, [b"one"])
    assert environment._env is not None
    return environment._env.readers()


def test_a_process_that_opens_its_store_by_another_path_as_well_is_refused_and_stays_alive(
    tmp_path: Path,
) -> None:
    """Closing `lock.mdb` drops the lock by which others know that its readers are alive."""
    folder, renamed = tmp_path / "store", tmp_path / "renamed"
    environment = Environment(folder, [b"one"])
    with environment.reading() as txn:
        folder.rename(renamed)
        with pytest.raises(StoreError, match=f"has opened as {folder}: the folder was renamed"):
            Environment(renamed, [b"one"])
        with Child(readers_of, renamed) as child:
            assert str(os.getpid()) in child.hear().split()
        assert txn.get(b"any", db=environment.databases[0]) is None
    environment.close()
    Environment(renamed, [b"one"]).close()


def lock_as_if_it_had_the_id(pipe: Connection, folder: Path, pid: int) -> None:
    with (folder / "lock.mdb").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, pid)
        say(pipe, "locked")
        hear(pipe)


def test_a_process_of_another_container_with_the_same_id_is_told_apart(tmp_path: Path) -> None:
    """Each container has a process 1, unless they share a PID namespace."""
    LmdbStore(tmp_path).close()
    with Child(lock_as_if_it_had_the_id, tmp_path, os.getpid()) as child:
        child.hear()
        with pytest.raises(StoreError, match=f"this one's id, {os.getpid()}: .* PID namespace"):
            LmdbStore(tmp_path)
        child.tell()
        child.hear()
    LmdbStore(tmp_path).close()


# --- fork -------------------------------------------------------------------------------


def add(repo: percola.Repository, times: int, row: str = "children") -> None:
    for _ in range(times):
        repo.run(lambda t: t.set(count, row, (t.get(count, row) or 0) + 1))


def fork_often(pipe: Connection, folder: Path, forks: int, each: int) -> list[int]:
    """Fork while threads write; children and their children write too. What this one wrote."""
    repo = percola.open(folder, schema=[table], durability="relaxed")
    own, done = [0, 0], threading.Event()

    def write(i: int) -> None:
        while not done.is_set():
            add(repo, 1, f"thread {i}")
            own[i] += 1

    threads = [threading.Thread(target=write, args=(i,)) for i in range(len(own))]
    for thread in threads:
        thread.start()

    def child() -> None:
        add(repo, each)
        assert in_child(lambda: add(repo, each)) == "None"
        add(repo, each)

    for _ in range(forks):
        assert in_child(child) == "None"
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=add, args=(repo, each))
    process.start()
    process.join()
    done.set()
    for thread in threads:
        thread.join()
    assert process.exitcode == 0
    repo.close()
    return own


def test_parent_child_and_grandchild_of_a_fork_all_read_and_write(tmp_path: Path) -> None:
    forks, each = 8, 5
    with Child(fork_often, tmp_path / "repo", forks, each) as parent:
        own = parent.hear()
    with percola.open(tmp_path / "repo", schema=[table]) as repo:
        snapshot = repo.snapshot()
        assert all(own)
        assert [snapshot.get(count, f"thread {i}") for i in range(len(own))] == own
        assert snapshot.get(count, "children") == forks * 3 * each + each


def fork_and_tell_tokens(pipe: Connection, folder: Path) -> None:
    repo = percola.open(folder, schema=[table])
    parents = repo.context.coordination.token
    pid = os.fork()
    if pid == 0:
        coordination = repo.context.coordination
        say(pipe, (os.getpid(), parents, coordination.token, coordination.is_alive(parents)))
        signal.pause()
    hear(pipe)


def test_a_child_has_a_token_of_its_own_and_does_not_keep_its_parents_alive(
    tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    folder = tmp_path / "repo"
    with percola.open(folder, schema=[table]) as repo:
        coordination = repo.context.coordination
        with Child(fork_and_tell_tokens, folder) as parent:
            pid, parents, childs, parent_is_seen = parent.hear()
            try:
                assert parents != childs
                assert parent_is_seen
                assert coordination.is_alive(parents)
                assert coordination.is_alive(childs)
                parent.kill()
                assert not coordination.is_alive(parents)
                assert coordination.is_alive(childs)
            finally:
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not coordination.is_alive(childs))
        assert isinstance(coordination, LocalCoordination)
