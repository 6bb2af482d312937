"""What the tests of the protocol stand on: every store, both ways to commit, and a seam.

`ground` is a store with what belongs to it, once for each of memory and LMDB and once for each
of one-step and two-phase commit. `Ground.repo` opens any number of repositories on it, each as
if it were another process: with a clock, a liveness token and a view of the store of its own.

`SeamStore` stands between a repository and its store and hands every row mutation to a
function, which may look at it, wait, apply it twice, lose its reply or never apply it. That is
how a test stops between the phases of a commit: production code has no hooks for it.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import engines
import pytest

from percola import Repository, Table, Transaction
from percola.cells import Cell, Kind, Op, decode_write
from percola.clock import Clock
from percola.coordination.base import Coordination
from percola.coordination.local.coordination import LocalCoordination
from percola.coordination.memory import MemoryCoordination
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle
from percola.schema import Column
from percola.store.base import OneStepStore, Put, RowMutation
from percola.store.forwarding import ForwardingOneStepStore
from percola.store.lmdb.store import LmdbStore
from percola.store.memory import MemoryStore
from percola.store.remote.feed_index import FEED_TABLE

DEADLINE = 60.0
"""Seconds that a test waits for a thing that has to happen. It fails after them."""


# --- Grounds ----------------------------------------------------------------------------


class Ground:
    """A store, its oracle and its coordination, and whether commits go in one step.

    Attributes:
        near: whether the store is in this process. Of one on a server, tests expect less a second.
    """

    def __init__(self, kind: str, one_step: bool, folder: Path, stack: ExitStack) -> None:
        self.kind = kind
        self.one_step = one_step
        self.folder = folder
        self.near = True
        self.store: OneStepStore
        self.coordination: Coordination
        if kind == "memory":
            self.store, self.coordination = MemoryStore(), MemoryCoordination()
        else:
            (folder / "store").mkdir(parents=True)
            with engines.using("python") if kind == "lmdb-python" else nullcontext():
                self.store = LmdbStore(folder / "store", durability="relaxed")
            self.coordination = LocalCoordination(folder)
        stack.callback(self.store.close)
        stack.callback(self.coordination.close)
        self.oracle = EmbeddedOracle(self.store)

    @functools.cached_property
    def alive(self) -> set[str]:
        """The names of the processes that live: those for which `repo` was given one know them."""
        return set()

    def repo(
        self,
        tables: Iterable[Table[Any]],
        *,
        store: OneStepStore | None = None,
        oracle: Oracle | None = None,
        coordination: Coordination | None = None,
        process: str = "",
        one_step: bool | None = None,
        **options: Any,
    ) -> Repository:
        """A repository object on this ground, with parts of it replaced.

        Args:
            process: makes it one of a process of this name, which lives for as long as it is in
                `alive`.
        """
        if process:
            coordination = ScriptedCoordination(process, self.alive)
        return Repository(
            self.kind,
            store or self.store,
            oracle or self.oracle,
            coordination or self.coordination,
            tables,
            one_step=self.one_step if one_step is None else one_step,
            **options,
        )

    def entries(self, column: Column[Any, Any], row: Any, kind: Kind) -> list[tuple[int, bytes]]:
        """All entries of a kind that a cell has in the store, newest first."""
        return self.store.entries(cell_of(column, row), kind, 0, 2**63 - 1)

    def lock_holders(self, column: Column[Any, Any], row: Any) -> list[int]:
        """The start timestamps of the locks on a cell."""
        return [ts for ts, _ in self.entries(column, row, Kind.LOCK)]

    def left_over(self, table: Table[Any], kind: Kind) -> list[tuple[str, int]]:
        """Every entry of a kind (LOCK, NOTIFY or FAILED) in a table: (row and column, ts)."""
        found: list[tuple[str, int]] = []
        position: bytes | None = b""
        while position is not None:
            entries, position = self.store.scan_kind(kind, table.name, position)
            found += [(str(cell), ts) for cell, ts, _ in entries]
        return found


def in_memory(tables: Iterable[Table[Any]], *, name: str = "memory:", **options: Any) -> Repository:
    """A repository in this process, and no other part."""
    store = MemoryStore()
    return Repository(name, store, EmbeddedOracle(store), MemoryCoordination(), tables, **options)


def cell_of(column: Column[Any, Any], row: Any) -> Cell:
    """The store's address of a cell."""
    return Cell(column.table.name, column.table.encode_row(row), column.key)


GROUNDS = [
    pytest.param((kind, one_step), id=f"{kind}-{'one-step' if one_step else 'two-phase'}")
    for kind in ("memory", "lmdb")
    for one_step in (True, False)
]
GROUNDS.append(pytest.param(("lmdb-python", True), id="lmdb-python", marks=pytest.mark.long))


@pytest.fixture(params=GROUNDS)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    """Memory and LMDB, with one-step commit and without; LMDB also through py-lmdb."""
    kind, one_step = request.param
    with ExitStack() as stack:
        yield Ground(kind, one_step, tmp_path / "ground", stack)


@pytest.fixture
def repo(ground: Ground, request: pytest.FixtureRequest) -> Repository:
    """A repository on the ground with the tables that the test's module lists as TABLES."""
    return ground.repo(request.module.TABLES)


# --- The seam ---------------------------------------------------------------------------


class PassingStore(ForwardingOneStepStore):
    """Passes every call on; the ground closes the store itself."""

    def close(self) -> None:
        pass


def heard(inner: OneStepStore, **hears: Callable[..., object]) -> PassingStore:
    """A store that tells `hears[name](found, *arguments)` of each call of that name."""

    def heard_by(call: Callable[..., Any], hear: Callable[..., object]) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            found = call(*args, **kwargs)
            hear(found, *args)
            return found

        return told

    store = PassingStore(inner)
    vars(store).update({one: heard_by(getattr(inner, one), hear) for one, hear in hears.items()})
    return store


Hook = Callable[[RowMutation, Callable[[], bool]], bool]


class SeamStore(PassingStore):
    """Applies mutations row by row, each through `hook(mutation, apply)`.

    The hook is set after the repository has been opened, so that it sees transactions only.
    """

    def __init__(self, inner: OneStepStore, hook: Hook | None = None) -> None:
        super().__init__(inner)
        self.hook = hook

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        hook = self.hook
        if hook is None:
            return self.inner.mutate(batch)
        return [hook(one, lambda one=one: self.inner.mutate([one])[0]) for one in batch]


def phase(mutation: RowMutation) -> str:
    """What a row mutation of the protocol does: see the returned words."""
    if mutation.table == FEED_TABLE:
        return "index"
    puts = {(one.kind, one.ts): one for one in mutation.changes if isinstance(one, Put)}
    kinds = {kind for kind, _ in puts}
    if Kind.LOCK in kinds:
        return "refresh" if mutation.conditions[0].present else "prewrite"
    for (kind, _), put in puts.items():
        if kind is Kind.WRITE:
            return "roll back" if decode_write(put.value).op is Op.ROLLBACK else "commit"
    if kinds == {Kind.NOTIFY}:
        return "notify"
    if any(one.kind is Kind.LOCK for one in mutation.changes):
        return "remove lock"
    return "other"


class Gate:
    """A place where one thread waits until another lets it go on."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def wait_here(self) -> None:
        """Say that this place has been reached, and wait to be let through."""
        self._reached.set()
        assert self._open.wait(DEADLINE), "nobody opened the gate"

    def await_arrival(self) -> None:
        """Return once the other thread waits here."""
        assert self._reached.wait(DEADLINE), "nobody arrived at the gate"

    def open(self) -> None:
        """Let through whoever waits, now or later."""
        self._open.set()


def stop_at(where: str, row: str, gate: Gate, *, after: bool = False) -> Hook:
    """A hook that waits at the gate before (or after) the first such mutation of a row."""
    stopped: list[RowMutation] = []

    def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) != where or mutation.row != row.encode() or stopped:
            return apply()
        stopped.append(mutation)
        if after:
            applied = apply()
            gate.wait_here()
            return applied
        gate.wait_here()
        return apply()

    return hook


def telling(hear: Callable[[RowMutation], object]) -> Hook:
    """A hook that tells of each mutation before it is applied."""

    def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        hear(mutation)
        return apply()

    return hook


@contextmanager
def stopped(
    store: SeamStore, commit: Callable[[], Any], where: str, row: str, *, after: bool = False
) -> Iterator[Future[Any]]:
    """A commit that stands still at a place for the length of the block: see `stop_at`."""
    gate = Gate()
    store.hook = stop_at(where, row, gate, after=after)
    committing = in_thread(commit)
    gate.await_arrival()
    try:
        yield committing
    finally:
        gate.open()


class Crashed(BaseException):
    """The end of a simulated process: no handler of the code under test may run on."""


class CrashingStore(PassingStore):
    """Dies before the row mutation number `at` (from 1) of a commit; nothing works after that.

    Puts of notify entries alone are counted only if they `count` (weak ones are on every store), or
    where they stand apart they would make a commit longer. So would entries of a feed's index.
    """

    def __init__(self, inner: OneStepStore, at: int, *, count: bool = False) -> None:
        super().__init__(inner)
        self.armed = False
        self._left = at
        self._passes_over = {"index"}
        if inner.has_notify_table and not count:
            self._passes_over.add("notify")

    def _check(self) -> None:
        if self.armed and self._left <= 0:
            raise Crashed

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        applied = []
        for one in batch:
            if self.armed and phase(one) not in self._passes_over:
                self._left -= 1
            self._check()
            applied += self.inner.mutate([one])
        return applied

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        self._check()
        return self.inner.entries(cell, kind, low, high, limit)


def die(
    ground: Ground,
    tables: Iterable[Table[Any]],
    at: int,
    column: Any,
    values: Mapping[Any, Any],
    process: str = "dying",
) -> Transaction:
    """A process writes a column of several rows, and dies before row mutation number `at` of its
    commit."""
    store = CrashingStore(ground.store, at=at)
    t = ground.repo(tables, store=store, process=process).transaction(two_phase=True)
    for row, value in values.items():
        t.set(column, row, value)
    store.armed = True
    with pytest.raises(Crashed):
        t.commit()
    ground.alive.discard(process)
    return t


# --- Clocks and tokens ------------------------------------------------------------------


class ScriptedClock(Clock):
    """A clock that moves only when somebody sleeps on it or a test advances it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()


class ListeningClock(Clock):
    """The real clock, which says when somebody sleeps: a test waits for that."""

    def __init__(self) -> None:
        self.slept = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.slept.set()
        super().sleep(seconds)


class ShiftedClock(Clock):
    """The real clock, but for what a test adds to it: an observer hangs when the test says so.

    A limit of `DEADLINE` is exceeded after `overrun`, and not because the machine is busy.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shift = 0.0
        monkeypatch.setattr("percola.observers.worker._WATCH", 0.02)

    def monotonic(self) -> float:
        return super().monotonic() + self._shift

    def overrun(self) -> None:
        """Whatever runs now has run for longer than `DEADLINE`."""
        self._shift += 2 * DEADLINE


class ScriptedCoordination(MemoryCoordination):
    """A process with a name of its own; `alive` is what all of them know of each other."""

    def __init__(self, name: str, alive: set[str]) -> None:
        super().__init__()
        self._name, self._alive = name, alive
        alive.add(name)

    @property
    def token(self) -> str:
        return self._name

    def is_alive(self, token: str) -> bool:
        return token in self._alive


# --- What tests do to a repository ------------------------------------------------------


def put(repo: Repository, column: Any, row: Any, value: Any, **options: Any) -> int:
    """Write one cell; its commit_ts. The options are those of the transaction."""
    return put_all(repo, column, {row: value}, **options)


def put_all(repo: Repository, column: Any, values: Mapping[Any, Any], **options: Any) -> int:
    """Write a column of several rows in one transaction; its commit_ts."""
    t = repo.transaction(**options)
    for row, value in values.items():
        t.set(column, row, value)
    return t.commit()


def delete(repo: Repository, column: Any, row: Any, **options: Any) -> int:
    """Delete one cell; the commit_ts."""
    t = repo.transaction(**options)
    t.delete(column, row)
    return t.commit()


def notify(repo: Repository, column: Any, *rows: Any, **options: Any) -> int:
    """Notify rows weakly in one transaction; its commit_ts."""
    t = repo.transaction(**options)
    for row in rows:
        t.notify(column, row)
    return t.commit()


@contextmanager
def at_work(*workers: Any) -> Iterator[None]:
    """Workers, or other things that start and stop, run for the length of the block."""
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.stop()


# --- Waiting, threads, processes --------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Run a function in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def all_at_once(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run functions in threads that begin together; what they returned or raised, in order."""
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        barrier.wait(DEADLINE)
        return function()

    futures = [in_thread(lambda one=one: run(one)) for one in functions]
    return [one.exception(DEADLINE) or one.result() for one in futures]


class Program:
    """A Python program of `tests/paper/programs` in a process of its own."""

    def __init__(self, name: str, *arguments: object) -> None:
        path = Path(__file__).parents[1] / "paper" / "programs" / name
        # The child finds percola and this module where we found them.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self.lines: list[str] = []

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def expect(self, line: str, seconds: float = DEADLINE) -> None:
        """Return once the program has printed this line."""
        end = time.monotonic() + seconds
        output = self._process.stdout
        assert output is not None
        while True:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([output], [], [], left)
            assert ready, f"{line!r} was not printed within {seconds} s, but {self.lines}"
            text = output.readline()
            assert text, f"the program ended without {line!r}; it printed {self.lines}"
            self.lines.append(text.decode().rstrip("\n"))
            if self.lines[-1] == line:
                return

    def tell(self, line: str) -> None:
        """Send the program a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def terminate(self) -> None:
        """Ask it to end: SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it without asking: SIGKILL. Harmless if it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(DEADLINE)

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait(DEADLINE)
