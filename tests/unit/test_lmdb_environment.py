"""One LMDB environment a process: group commit, interrupts, a map that grows, the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import pytest
from engines import engine as engine

import percola
from percola import (
    ConflictingOptionsError,
    RepositoryClosedError,
    RepositoryError,
    StoreError,
    Table,
)
from percola.cells import Cell, Kind, Op
from percola.store.base import Put, RowMutation
from percola.store.lmdb.driver import OpenEnvironment, Txn
from percola.store.lmdb.environment import Environment
from percola.store.lmdb.store import LmdbStore

pytestmark = pytest.mark.usefixtures("engine")

THREADS = 16
DEADLINE = 90.0

Wait = Callable[..., object]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    environment = Environment(tmp_path, [b"one"])
    yield environment
    environment.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2 * THREADS) as pool:
        yield pool


def put(environment: Environment, key: bytes, value: bytes = b"") -> Callable[[Txn], bytes]:
    def operation(txn: Txn) -> bytes:
        txn.put(key, value, db=environment.databases[0])
        return key

    return operation


def stored(environment: Environment, key: bytes) -> bytes | None:
    with environment.reading() as txn:
        return txn.get(key, db=environment.databases[0])


def last_transaction(environment: Environment) -> int:
    assert environment._env is not None
    number: int = environment._env.info()["last_txnid"]
    return number


class Together:
    """Operations that are queued while another one runs, so that they are committed together."""

    def __init__(self, environment: Environment, pool: ThreadPoolExecutor, wait: Wait) -> None:
        self._environment = environment
        self._pool = pool
        self._wait = wait
        self._go = threading.Event()
        self._first = pool.submit(environment.write, self._hold)
        wait(lambda: environment._writing.locked() and not environment._queue)

    def _hold(self, txn: Txn) -> None:
        assert self._go.wait(DEADLINE)

    def run(
        self, *operations: Callable[[Txn], Any], leader: type[BaseException] | None = None
    ) -> list[Future[Any]]:
        """Queue the operations in order, let go, and return their outcomes.

        They run in the thread of the first one, the leader, which ends with an error or without.
        """
        outcomes = []
        for operation in operations:
            outcomes.append(self._pool.submit(self._environment.write, operation))
            count = len(outcomes)
            self._wait(lambda count=count: len(self._environment._queue) == count)
        self._go.set()
        error = self._first.exception(DEADLINE)
        assert (type(error) if error else None) is leader
        return outcomes


class Broken:
    """An environment whose last commit could not be written to disk: LMDB says MDB_PANIC."""

    def __init__(self, inner: OpenEnvironment) -> None:
        self._inner = inner

    def begin(self, *, write: bool = False) -> Any:
        raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC")

    def close(self) -> None:
        self._inner.close()


# --- Group commit -----------------------------------------------------------------------


def test_threads_that_wait_for_a_commit_share_the_next_one(
    environment: Environment, pool: ThreadPoolExecutor, wait_until: Wait
) -> None:
    together = Together(environment, pool, wait_until)
    before = last_transaction(environment)
    keys = [b"%d" % i for i in range(THREADS)]
    outcomes = together.run(*(put(environment, key) for key in keys))
    assert [outcome.result(DEADLINE) for outcome in outcomes] == keys
    # One for the operation that they waited for, one for all of them. (LMDB counts only
    # transactions that have written.)
    assert last_transaction(environment) - before <= 2
    assert all(stored(environment, key) is not None for key in keys)


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_write_at_once_leaves_nothing_held_and_nobody_waiting_whatever_becomes_of_it(
    tmp_path: Path, durability: str, pool: ThreadPoolExecutor, wait_until: Wait
) -> None:
    environment = Environment(tmp_path, [b"one"], durability=durability)

    def outcome(answer: object) -> object:
        def commit(turn: int, given: object) -> object:
            assert turn >= 0 and environment._running
            waiting.append(pool.submit(environment.write, put(environment, b"other")))
            wait_until(lambda: len(environment._queue) == 1)
            # Who finds a thread writing, or one that waits to, leaves it to the queue.
            assert environment.write_at_once(pytest.fail) is None
            if isinstance(given, BaseException):
                raise given
            return given

        waiting: list[Future[bytes]] = []
        try:
            return environment.write_at_once(commit, answer)
        except BaseException as error:
            return type(error)
        finally:
            assert waiting[0].result(DEADLINE) == b"other"
            assert not (environment._running or environment._queue or environment._writing.locked())

    full, no_room = lmdb.MapFullError("full"), lmdb.DiskError("No space left")
    answers = [7, None, full, no_room, KeyboardInterrupt()]
    expected = [7, None, None, percola.StoreFullError, KeyboardInterrupt]
    assert [outcome(answer) for answer in answers] == expected
    environment.close()
    assert environment.write_at_once(pytest.fail) is None


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (percola.UnknownTableError("no such table"), percola.UnknownTableError),
        (ZeroDivisionError("a mistake"), ZeroDivisionError),
        (lmdb.BadValsizeError("too long"), StoreError),
    ],
)
def test_an_operation_that_raises_writes_nothing_and_leaves_its_group_alone(
    environment: Environment,
    pool: ThreadPoolExecutor,
    wait_until: Wait,
    error: Exception,
    raised: type[Exception],
) -> None:
    def fail(txn: Txn) -> None:
        put(environment, b"half")(txn)
        raise error

    before, failing, after = Together(environment, pool, wait_until).run(
        put(environment, b"before"), fail, put(environment, b"after")
    )
    with pytest.raises(raised) as caught:
        failing.result(DEADLINE)
    assert caught.value is error or caught.value.__cause__ is error
    assert (before.result(DEADLINE), after.result(DEADLINE)) == (b"before", b"after")
    assert stored(environment, b"before") == stored(environment, b"after") == b""
    assert stored(environment, b"half") is None


def test_an_operation_that_is_undone_does_not_wait_for_a_pause_among_readers(
    environment: Environment, pool: ThreadPoolExecutor
) -> None:
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            stored(environment, b"key")

    def fail(txn: Txn) -> None:
        put(environment, b"key")(txn)
        raise ZeroDivisionError

    readers = [pool.submit(read) for _ in range(4)]
    try:
        began = time.monotonic()
        for _ in range(30):
            with pytest.raises(ZeroDivisionError):
                environment.write(fail)
        assert time.monotonic() - began < DEADLINE
    finally:
        done.set()
    for reader in readers:
        reader.result(DEADLINE)


def test_an_interrupted_writer_leaves_the_others_to_go_on(
    environment: Environment, pool: ThreadPoolExecutor, wait_until: Wait
) -> None:
    queued = threading.Event()

    def interrupted(txn: Txn) -> None:
        put(environment, b"interrupted")(txn)
        assert queued.wait(DEADLINE)
        raise KeyboardInterrupt

    def lead() -> str:
        try:
            environment.write(interrupted)
        except KeyboardInterrupt:
            return "interrupted"
        return "not interrupted"

    leader = pool.submit(lead)
    wait_until(lambda: environment._writing.locked() and not environment._queue)
    keys = [b"%d" % i for i in range(4)]
    others = [pool.submit(environment.write, put(environment, key)) for key in keys]
    wait_until(lambda: len(environment._queue) == len(keys))
    queued.set()
    assert leader.result(DEADLINE) == "interrupted"
    assert [other.result(DEADLINE) for other in others] == keys
    assert stored(environment, b"interrupted") is None
    assert not environment._running


def test_an_interrupt_before_another_one_has_led_to_a_wake_up_keeps_nobody_waiting(
    environment: Environment, pool: ThreadPoolExecutor, wait_until: Wait
) -> None:
    queued, fired = threading.Event(), threading.Event()
    promote = environment._promote

    def interrupted(*_: Txn) -> None:
        assert queued.wait(DEADLINE)
        raise KeyboardInterrupt

    def interrupted_once() -> None:
        if not fired.is_set():
            fired.set()
            raise KeyboardInterrupt
        promote()

    environment._promote = interrupted_once  # type: ignore[method-assign]
    leader = pool.submit(environment.write, interrupted)
    wait_until(lambda: environment._writing.locked() and not environment._queue)
    others = [pool.submit(environment.write, put(environment, b"%d" % i)) for i in range(4)]
    wait_until(lambda: len(environment._queue) == len(others))
    queued.set()
    with pytest.raises(KeyboardInterrupt):
        leader.result(DEADLINE)
    assert fired.is_set()
    assert [other.result(DEADLINE) for other in others] == [b"%d" % i for i in range(4)]


def test_an_interrupt_while_an_interrupted_write_is_undone_does_not_keep_it_open(
    environment: Environment, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is undone, no thread of any process can write."""

    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            raise KeyboardInterrupt

    def interrupted(txn: Txn) -> None:
        put(environment, b"interrupted")(txn)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "_changing", Interrupted())
        with pytest.raises(KeyboardInterrupt) as caught:
            environment.write(interrupted)
    assert caught.value.__traceback__ is not None  # As a debugger keeps it, with its variables.
    assert pool.submit(environment.write, put(environment, b"next")).result(DEADLINE) == b"next"
    assert stored(environment, b"interrupted") is None


def test_an_interrupt_in_the_middle_of_a_group_is_its_leaders_and_the_others_are_written(
    environment: Environment, pool: ThreadPoolExecutor, wait_until: Wait
) -> None:
    fired: list[bool] = []

    def interrupted_once(txn: Txn) -> bytes:
        if not fired:
            fired.append(True)
            raise KeyboardInterrupt
        return put(environment, b"1")(txn)

    outcomes = Together(environment, pool, wait_until).run(
        put(environment, b"0"), interrupted_once, put(environment, b"2"), leader=KeyboardInterrupt
    )
    assert [outcome.result(DEADLINE) for outcome in outcomes] == [b"0", b"1", b"2"]
    assert all(stored(environment, b"%d" % i) == b"" for i in range(3))
    assert not environment._running


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_what_a_signals_handler_raises_after_a_groups_commit_is_its_leaders_alone(
    environment: Environment,
    pool: ThreadPoolExecutor,
    wait_until: Wait,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    """As where a program has a time limit: the handler runs as soon as the disk has answered."""
    assert environment._turn is not None
    release, fired = environment._turn.release, list[bool]()

    def interrupted_once() -> None:
        if not fired:
            fired.append(True)
            raise error
        release()

    together = Together(environment, pool, wait_until)
    monkeypatch.setattr(environment._turn, "release", interrupted_once)
    outcomes = together.run(put(environment, b"0"), put(environment, b"1"), leader=error)
    assert [outcome.result(DEADLINE) for outcome in outcomes] == [b"0", b"1"]
    assert stored(environment, b"0") == stored(environment, b"1") == b""


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_what_a_signals_handler_raises_while_its_thread_waits_is_no_error_of_others(
    environment: Environment,
    pool: ThreadPoolExecutor,
    wait_until: Wait,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    assert environment._turn is not None
    take, queued, fired = environment._turn.take, threading.Event(), list[bool]()

    def interrupted_once() -> None:
        if not fired:
            fired.append(True)
            assert queued.wait(DEADLINE)
            raise error
        take()

    monkeypatch.setattr(environment._turn, "take", interrupted_once)
    first = pool.submit(environment.write, put(environment, b"0"))
    wait_until(lambda: bool(fired))
    others = [pool.submit(environment.write, put(environment, key)) for key in (b"1", b"2")]
    wait_until(lambda: len(environment._queue) == 3)
    queued.set()
    assert type(first.exception(DEADLINE)) is error
    assert [other.result(DEADLINE) for other in others] == [b"1", b"2"]
    assert stored(environment, b"0") is None


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_the_map_grows_while_threads_read(tmp_path: Path, durability: str) -> None:
    store = LmdbStore(tmp_path, durability=durability, map_bytes=1 << 20)
    store.create_tables(["t"])
    value, count = b"v" * 1_000_000, 50
    done = threading.Event()

    def read() -> int:
        reads = 0
        while not done.is_set():
            start_ts = store.last_drawn()
            states = store.read([Cell("t", b"%d" % i, b"c") for i in range(0, count, 7)], start_ts)
            assert all(state[2] in (None, value) for state in states)
            reads += 1
        return reads

    def write(numbers: range) -> None:
        for i in numbers:
            cell = Cell("t", b"%d" % i, b"c")
            assert isinstance(
                store.commit_one_step(store.last_drawn(), [(cell, int(Op.PUT), value, False)]), int
            )

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            writers = [pool.submit(write, range(i, count, 2)) for i in range(2)]
            for writer in writers:
                writer.result(DEADLINE)
        finally:
            done.set()
        assert sum(reader.result(DEADLINE) for reader in readers) > 0
    states = store.read([Cell("t", b"%d" % i, b"c") for i in range(count)], store.last_drawn())
    assert all(state[2] == value for state in states)
    store.close()


def test_one_batch_larger_than_the_map_is_written(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, durability="relaxed", map_bytes=1 << 20)
    store.create_tables(["t"])
    batch = [
        RowMutation("t", b"%d" % i, (), [Put(Kind.DATA, b"c", 1, b"v" * 100_000)])
        for i in range(200)
    ]
    assert store.mutate(batch) == [True] * 200
    assert store.entries(Cell("t", b"199", b"c"), Kind.DATA, 0, 9) == [(1, b"v" * 100_000)]
    store.close()


# --- The end ----------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["read", "write"])
def test_after_a_commit_that_the_disk_refused_the_file_is_opened_again(
    environment: Environment, act: str
) -> None:
    """Every transaction begins with a read: without one, the process could not go on."""
    environment.write(put(environment, b"a", b"1"))
    assert environment._env is not None
    environment._env = Broken(environment._env)  # type: ignore[assignment]
    if act == "read":
        assert stored(environment, b"a") == b"1"
    else:
        assert environment.write(put(environment, b"b")) == b"b"
    environment.write(put(environment, b"a", b"2"))
    assert stored(environment, b"a") == b"2"
    assert stored(environment, b"b") == (b"" if act == "write" else None)


@pytest.mark.parametrize("durability", ["full", "relaxed"])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("name", ["", "lock.mdb"])
def test_who_writes_to_a_file_that_was_removed_or_replaced_is_told_in_time(
    tmp_path: Path, durability: str, replaced: bool, name: str, wait_until: Wait
) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    Environment(other, [b"one"]).close()
    environment = Environment(folder, [b"one"], durability=durability)
    environment.write(put(environment, b"before"))
    (folder / name).rename(tmp_path / "moved")
    if replaced:
        (other / name).rename(folder / name)
    environment._care_at = 0.0
    environment.write(put(environment, b"lost"))
    wait_until(lambda: environment._env is None)
    for act in (lambda: environment.write(put(environment, b"more")), environment.begin_read):
        with pytest.raises(RepositoryError, match="removed or replaced while this process had it"):
            act()
    environment.close()
    assert (folder / name).exists() == replaced


def test_closing_while_others_read_and_write_ends_each_of_them_with_a_clear_error(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        environment = Environment(folder, [b"one"], durability="relaxed")
        begun = threading.Barrier(9)

        def use(
            i: int, environment: Environment = environment, begun: threading.Barrier = begun
        ) -> int:
            begun.wait(DEADLINE)
            for k in range(1_000_000):
                try:
                    if i % 2:
                        stored(environment, b"0")
                    else:
                        environment.write(put(environment, b"%d" % i, b"%d" % k))
                except RepositoryClosedError:
                    return k
            raise AssertionError("it has not been closed")

        users = [pool.submit(use, i) for i in range(8)]
        begun.wait(DEADLINE)
        environment.close()
        written = {i: user.result(DEADLINE) for i, user in enumerate(users)}
        again = Environment(folder, [b"one"], durability="relaxed")
        for i in range(0, 8, 2):
            # What was acknowledged is there.
            if written[i]:
                assert stored(again, b"%d" % i) == b"%d" % (written[i] - 1)
        again.close()


def test_two_repositories_on_a_folder_share_its_environment_until_closed(tmp_path: Path) -> None:
    docs = Table("docs")
    title = docs.column("title", str)
    first = percola.open(tmp_path / "repo", schema=[docs])
    second = percola.open(tmp_path / "." / "repo", schema=[docs])
    first.run(lambda t: t.set(title, "a", "from the first"))
    assert second.snapshot().get(title, "a") == "from the first"
    with pytest.raises(ConflictingOptionsError, match="durability"):
        percola.open(tmp_path / "repo", schema=[docs], durability="relaxed")
    first.close()
    first.close()
    second.run(lambda t: t.set(title, "b", "from the second"))
    with pytest.raises(RepositoryClosedError):
        first.snapshot()
    context = second.context
    second.close()
    with pytest.raises(RepositoryClosedError):
        context.store.read([Cell("docs", b"a", b"title")], 9)
    third = percola.open(tmp_path / "repo", schema=[docs], durability="relaxed")
    assert third.snapshot().get(title, "b") == "from the second"
    third.close()


def test_an_unknown_durability_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConflictingOptionsError, match="'some'"):
        Environment(tmp_path, [b"one"], durability="some")
