"""A child that is forked while other threads hold locks goes on, and with a state of its own."""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from children import Child
from effort import mostly_long
from forked import held_by_a_thread, in_child
from stores import all_at_once, at_work

import percola
from percola import Repository, Table, Worker
from percola.cells import Cell
from percola.connect import shared
from percola.coordination.lock_service.client import LockServiceClient
from percola.coordination.memory import MemoryCoordination
from percola.coordination.zookeeper.coordination import ZooKeeperCoordination
from percola.errors import PercolaError
from percola.observers import worker
from percola.oracle.client import NetworkOracle
from percola.oracle.embedded import EmbeddedOracle
from percola.platform import fork_safety as forks
from percola.platform.fork_safety import Unforkable
from percola.store.bigtable import client as bigtable_calls
from percola.store.bigtable.store import BigtableStore
from percola.store.counting import CountedStore, StoreCalls
from percola.store.hbase import client as hbase_calls
from percola.store.hbase import jvm as hbase_jvm
from percola.store.hbase.store import HBaseStore
from percola.store.memory import MemoryStore

Wait = Callable[..., object]

docs = Table("docs")
body = docs.column("body", observed=True)
length = docs.column("length", int)


@percola.observer(body)
def measure(t: percola.Transaction, row: str) -> None:
    value = t.get(body, row)
    t.set(length, row, len(value) if value else 0)


def use(repo: Repository) -> str:
    """Everything that a process does with a repository; what an observer made of a row."""
    repo.run(lambda t: t.set(body, "child", b"four"))
    context = repo.context
    # Nobody's transaction: it is rolled back, which is remembered.
    context.resolver.fate(Cell("docs", b"other", b"body"), context.oracle.timestamp())
    Worker(repo, [measure], threads=1, retention=None).run_until_idle()
    repo.collect_garbage(retention=0)
    with repo.snapshot() as now:
        found = now.get(length, "child")
    if context.calls is not None:
        context.calls.counts()
    repo.close()
    return str(found)


# --- On one machine ---------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", [docs], durability="relaxed") as repo:
        repo.run(lambda t: t.set(body, "parent", b""))
        yield repo


@pytest.fixture
def counted() -> Iterator[Repository]:
    """In memory, with what otherwise only network stores have."""
    memory = MemoryStore()
    store, oracle = CountedStore(memory, StoreCalls()), EmbeddedOracle(memory)
    coordination = MemoryCoordination()
    with Repository("memory:", store, oracle, coordination, [docs], prefetches=True) as repo:
        repo.run(lambda t: t.set(body, "parent", b""))
        yield repo


LOCKS: Mapping[str, Callable[[Any], Any]] = {
    "LockResolver._guard": lambda context: context.resolver._guard,
    "LocalCoordination._guard": lambda context: context.coordination._guard,
    "ActiveSlots._guard": lambda context: context.coordination._active_slots._guard,
    "Environment._writing": lambda context: context.store._environment._writing,
    "_Registry._guard": lambda context: shared._registry._guard,
    "_Slot.lock": lambda context: next(iter(shared._registry._slots.values())).lock,
    "percola.observers.worker._announcing": lambda context: worker._announcing,
}


@pytest.mark.parametrize("name", LOCKS)
def test_a_child_commits_though_a_thread_held_a_lock_when_it_was_forked(
    local: Repository, name: str
) -> None:
    with held_by_a_thread(LOCKS[name](local.context)):
        assert in_child(lambda: use(local)) == "4"
    with local.snapshot() as now:
        assert now.get(length, "child") == 4


COUNTED_LOCKS: Mapping[str, Callable[[Any], Any]] = {
    "MemoryCoordination._guard": lambda context: context.coordination._guard,
    "Prefetch._guard": lambda context: context.prefetch._guard,
    "StoreCalls._guard": lambda context: context.calls._guard,
}


@pytest.mark.parametrize("name", COUNTED_LOCKS)
def test_a_child_reads_ahead_and_counts_though_a_thread_held_a_lock_when_it_was_forked(
    counted: Repository, name: str
) -> None:
    with held_by_a_thread(COUNTED_LOCKS[name](counted.context)):
        assert in_child(lambda: use(counted)) == "4"


WORKER_LOCKS: Mapping[str, Callable[[Any], Any]] = {
    "Worker._guard": lambda worker: worker._guard,
    "Worker._shared.changed": lambda worker: worker._shared.changed,
    "Runs._guard": lambda worker: worker._runs._guard,
    "Schedule._guard": lambda worker: worker._schedule._guard,
    "CleanTables._guard": lambda worker: worker._schedule.clean._guard,
    "_Latencies._guard": lambda worker: worker.metrics.latency._guard,
}


@pytest.mark.parametrize("name", WORKER_LOCKS)
def test_a_child_runs_a_worker_of_its_parent_though_a_thread_held_a_lock_in_it(
    local: Repository, name: str
) -> None:
    inherited = Worker(local, [measure], threads=1, retention=None)

    def run() -> str:
        local.run(lambda t: t.set(body, "child", b"four"))
        inherited.run_until_idle()
        with local.snapshot() as now:
            return str(now.get(length, "child"))

    with held_by_a_thread(WORKER_LOCKS[name](inherited)):
        assert in_child(run) == "4"


@pytest.mark.parametrize("name", WORKER_LOCKS)
def test_a_child_stops_a_worker_that_runs_in_its_parent_and_only_there(
    local: Repository, wait_until: Wait, name: str
) -> None:
    running = Worker(local, [measure], threads=1, retention=None)
    with at_work(running):
        with held_by_a_thread(WORKER_LOCKS[name](running)):
            assert in_child(running.stop) == "None"
        local.run(lambda t: t.set(body, "parent", b"three"))
        wait_until(lambda: local.snapshot().get(length, "parent") == 5, what="the observer")


@pytest.mark.parametrize("batch", [1, 8])
def test_the_child_of_an_observer_that_forks_ends_when_the_observer_returns(
    local: Repository, wait_until: Wait, batch: int
) -> None:
    """It neither commits what its parent commits, nor goes on to other rows."""
    with local.transaction() as t:
        t.set(body, "another", b"twelve chars")
    ended: list[int] = []

    @percola.observer(body, batch=batch)
    def forks_first(t: percola.Transaction, row: str) -> None:
        child = os.fork()
        if not child:
            # As gRPC does after a fork: a thread that would keep the child alive.
            threading.Thread(target=threading.Event().wait).start()
            return
        try:
            wait_until(lambda: _ended(child), what="the child's end", seconds=20)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        t.set(length, row, os.getpid())
        ended.append(child)

    worker = Worker(local, [forks_first], threads=1, retention=None, attempts=1)
    worker.run_until_idle()
    assert len(ended) == 2
    with local.snapshot() as now:
        assert {now.get(length, row) for row in ("parent", "another")} == {os.getpid()}


def _ended(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG)[0] == child


def test_no_lock_of_an_open_repository_is_left_out(local: Repository, counted: Repository) -> None:
    """Every lock in an object that is made anew in a child, with the hooks as the list of them."""
    running = Worker(local, [measure])
    named = {*LOCKS, *COUNTED_LOCKS, *WORKER_LOCKS, *NETWORK_LOCKS, *WAITED_FOR}
    # Copies: threads of other tests may register objects, and objects may get fields meanwhile.
    owners = [hooks.in_child() for hooks in [*forks._registered.values()]]
    found = {
        f"{type(owner).__name__}.{field}"
        for one in owners
        if type(owner := getattr(one, "__self__", None)).__module__.startswith("percola.")
        # Of pages that other tests of this process have served: no part of a repository.
        and not type(owner).__module__.startswith("percola.serve.")
        for field, value in [*vars(owner).items()]
        if isinstance(value, LOCK_TYPES)
    }
    assert found
    assert found <= named
    running.stop()


LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()), threading.Condition)

WAITED_FOR = {"Environment._changing", "MemoryStore._lock"}
"""Locks that a fork waits for: what they protect cannot be made anew in the child."""


def test_a_fork_waits_until_a_change_in_memory_is_whole() -> None:
    store = MemoryStore()
    store.create_tables(["docs"])
    forked: list[str] = []
    forking = threading.Thread(target=lambda: forked.append(in_child(lambda: store.draw(2))))
    with store._lock:
        forking.start()
        forking.join(0.2)
        assert forking.is_alive()
        store._drawn = 10
    forking.join()
    assert forked == ["12"]
    assert store.draw(2) == 12, "the copy is the child's own"


class Slow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of Percola's that is being imported until `ends` is set."""

    name = "percola.observers.for_a_test_of_forks"

    def __init__(self) -> None:
        self.begun, self.ends = threading.Event(), threading.Event()

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        self.begun.set()
        assert self.ends.wait(60)
        vars(module)["whole"] = True


def test_a_fork_waits_until_a_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child would wait for ever for the thread that has begun to import it."""
    slow = Slow()
    monkeypatch.setattr(sys, "meta_path", [slow, *sys.meta_path])
    monkeypatch.setattr(forks, "_IMPORT_SECONDS", 60.0)
    forked: list[str] = []

    def use() -> bool:
        return bool(vars(importlib.import_module(slow.name))["whole"])

    importing = threading.Thread(target=use)
    forking = threading.Thread(target=lambda: forked.append(in_child(use)))
    importing.start()
    try:
        assert slow.begun.wait(20)
        forking.start()
        forking.join(0.2)
        assert forking.is_alive()
    finally:
        slow.ends.set()
        importing.join()
        forking.join()
        sys.modules.pop(slow.name, None)
    assert forked == ["True"]


def test_a_fork_does_not_wait_for_what_its_own_thread_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Forks(Slow):
        def exec_module(self, module: ModuleType) -> None:
            vars(module)["forked"] = in_child(lambda: True)

    name = Slow.name
    monkeypatch.setattr(sys, "meta_path", [Forks(), *sys.meta_path])
    monkeypatch.setattr(forks, "_IMPORT_SECONDS", 3600.0)
    try:
        assert vars(importlib.import_module(name))["forked"] == "True"
    finally:
        sys.modules.pop(name, None)


def test_several_threads_may_fork_at_once(local: Repository) -> None:
    def write(number: int) -> int:
        local.run(lambda t: t.set(length, f"{number}", number))
        return number

    forks = [lambda n=n: in_child(lambda: write(n)) for n in range(4)]
    assert all_at_once(forks) == ["0", "1", "2", "3"]
    with local.snapshot() as now:
        assert [now.get(length, f"{n}") for n in range(4)] == [0, 1, 2, 3]


def fork_at_the_first_use(pipe: Connection) -> list[int]:
    """How children ended that were forked while another thread did everything for the first time.

    Threads that want the interpreter come between as many of its steps as they can.
    """
    sys.setswitchinterval(1e-6)
    begins, over = threading.Event(), threading.Event()
    with percola.open("memory:", [docs]) as repo:

        def commit_and_read(row: str) -> None:
            repo.run(lambda t: t.set(body, row, b"x"))
            with repo.snapshot() as now:
                assert now.get(body, row) == b"x"

        def compute() -> None:
            while not over.is_set():
                pass

        def parent() -> None:
            begins.wait()  # Not in a child: this thread may hold the event's own lock.
            commit_and_read("parent")

        threads = [threading.Thread(target=parent)]
        threads += [threading.Thread(target=compute) for _ in range(8)]
        for thread in threads:
            thread.start()
        begins.set()
        children = []
        for _ in range(20):
            children.append(os.fork())
            if not children[-1]:
                signal.alarm(60)  # Ends a child that waits for ever.
                commit_and_read("child")
                os._exit(0)
        over.set()
        ended = [os.waitpid(child, 0)[1] for child in children]
        for thread in threads:
            thread.join()
    return ended


@pytest.mark.parametrize("time", mostly_long(range(6), first=2))
def test_a_child_commits_though_a_thread_was_the_first_to_commit_when_it_was_forked(
    time: int,
) -> None:
    with Child(fork_at_the_first_use) as child:
        assert child.hear() == [0] * 20


# --- On a network: nothing is asked of a server before the fork -------------------------


class Network:
    """Everything a repository on a network has, and no server for any of it."""

    def __init__(self) -> None:
        nowhere = ["127.0.0.1:1"]
        self.oracle = NetworkOracle(nowhere, timeout_seconds=0.2, request_seconds=0.1)
        self.lock_service = LockServiceClient(nowhere, lock_seconds=0.1)
        self.zookeeper = ZooKeeperCoordination(
            nowhere, "/percola/x", request_seconds=0.1, timeout_seconds=0.2
        )
        place = bigtable_calls.Place("p", "i", emulator=nowhere[0])
        self.bigtable = BigtableStore(place, request_seconds=0.1, timeout_seconds=0.2)
        self.hbase = HBaseStore(hbase_calls.Place(nowhere[0], "ns"), timeout_seconds=0.2)

    def use(self) -> str:
        for call in (
            self.oracle.timestamp,
            lambda: self.lock_service.try_lock("docs", b"r"),
            lambda: self.zookeeper.is_alive("1-x"),
            lambda: self.zookeeper.token,
            lambda: self.bigtable.create_tables(["docs"]),
            self.bigtable.safe_point,
            lambda: self.hbase.create_tables(["docs"]),
            self.hbase.safe_point,
        ):
            try:
                call()
            except PercolaError:
                continue
        return "goes on"


NETWORK_LOCKS: Mapping[str, Callable[[Network], Any]] = {
    "_Line._guard": lambda one: one.oracle._current._guard,
    "LockServiceClient._guard": lambda one: one.lock_service._guard,
    "LockService._guard": lambda one: one.zookeeper._lock_service._guard,
    "Session._changed": lambda one: one.zookeeper._session._changed,
    "Session._writing": lambda one: one.zookeeper._session._writing,
    "BigtableStore._guard": lambda one: one.bigtable._guard,
    "bigtable Shared._guard": lambda one: one.bigtable._shared._guard,
    "Index._guard": lambda one: one.bigtable.feed_index._guard,
    "Calls._guard": lambda one: one.bigtable._calls._guard,
    "HBaseStore._guard": lambda one: one.hbase._guard,
    "Shared._guard": lambda one: one.hbase._shared._guard,
    "hbase Calls._guard": lambda one: one.hbase._calls._guard,
    "percola.store.hbase.jvm._guard": lambda one: hbase_jvm._guard,
}


@pytest.mark.parametrize("name", NETWORK_LOCKS)
def test_a_child_is_answered_by_network_stores_though_a_thread_held_a_lock_when_it_was_forked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(hbase_jvm.JARS, str(tmp_path))  # There are none: Java is not started.
    one = Network()
    with held_by_a_thread(NETWORK_LOCKS[name](one)):
        assert in_child(one.use) == "goes on"


def test_what_a_library_that_does_not_survive_a_fork_has_made_is_refused_in_all_descendants() -> (
    None
):
    library = Unforkable("It")

    def use_it() -> str:
        library.begin_use("x")
        return "used"

    assert in_child(use_it) == "used"
    assert use_it() == "used"
    assert "does not survive a fork" in in_child(use_it)
    assert "does not survive a fork" in in_child(lambda: in_child(use_it))
    assert use_it() == "used"


# --- The registry -----------------------------------------------------------------------


class Owner:
    """Counts how often it was made anew."""

    def __init__(self, *, fails: bool = False) -> None:
        self.times = 0
        self.fails = fails
        self.told: list[str] = []
        forks.at_fork(self.start_afresh, before=self.before, in_parent=self.in_parent)

    def start_afresh(self) -> None:
        self.times += 1
        if self.fails:
            raise RuntimeError("for a test")

    def before(self) -> None:
        self.told.append("before")
        if self.fails:
            raise RuntimeError("for a test")

    def in_parent(self) -> None:
        self.told.append("after")


def test_each_object_is_made_anew_in_a_child_once_even_if_another_fails(
    capfd: pytest.CaptureFixture[str],
) -> None:
    owners = [Owner(), Owner(fails=True), Owner()]
    assert in_child(lambda: [one.times for one in owners]) == "[1, 1, 1]"
    assert [one.times for one in owners] == [0, 0, 0]
    assert [one.told for one in owners] == [["before", "after"], ["before"], ["before", "after"]]
    assert "RuntimeError: for a test" in capfd.readouterr().err


def test_a_registered_object_is_let_go_of() -> None:
    registered = len(forks._registered)
    gone = weakref.ref(owner := Owner())
    assert len(forks._registered) == registered + 1
    del owner
    gc.collect()
    assert gone() is None
    assert len(forks._registered) <= registered


def test_parent_and_child_do_not_draw_the_same_random_numbers(local: Repository) -> None:
    here = in_child(local._random.random), in_child(local._random.random)
    assert len({*here, str(local._random.random())}) == 3
    given = random.Random(7)
    assert in_child(lambda: given.random()) == str(random.Random(7).random())
