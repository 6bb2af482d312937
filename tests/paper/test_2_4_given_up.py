"""§2.4: a run that takes too long is given up, and its transaction with it (N5, P12)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from borrowed import only_near
from stores import DEADLINE, Gate, Ground, ShiftedClock, at_work

from percola import ObserverTimeoutError, Repository, Table, Transaction, Worker, observer
from percola.cells import Kind
from percola.inspection import failures
from percola.observers.runner import Runner
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)
poke = docs.weak_column("poke")
TABLES = [docs]


class Hanging:
    """An observer that hangs on one row until it is let go on, and then does what it is told."""

    def __init__(self, column: Any = contents, batch: int = 1) -> None:
        self.gate = Gate()
        self.then: Callable[[Transaction], object] = lambda t: None
        self.raised: list[BaseException | None] = []
        self.thread: threading.Thread | None = None
        self.observer = observer(column, name="hangs", batch=batch)(self._run)

    def _run(self, t: Transaction, row: str) -> None:
        t.set(size, row, 1)
        if row != "bad" or self.thread is not None:
            return
        self.thread = threading.current_thread()
        self.gate.wait_here()
        try:
            self.then(t)
        except Exception as error:
            self.raised.append(error)
        else:
            self.raised.append(None)

    def __enter__(self) -> Hanging:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.open()

    def go_on(self) -> None:
        self.gate.open()
        assert self.thread is not None
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()


def write(repo: Repository, row: str, text: str = "text") -> None:
    with repo.transaction() as t:
        t.set(contents, row, text)
        t.notify(poke, row)


@pytest.mark.parametrize("column", [contents, poke])
@pytest.mark.parametrize("batch", [1, 8])
def test_p12_an_observer_that_hangs_does_not_hold_garbage_collection_back_once_dead_lettered(
    ground: Ground,
    wait_until: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    column: Any,
    batch: int,
) -> None:
    hanging, clock = Hanging(column, batch), ShiftedClock(monkeypatch)
    repo = ground.repo(TABLES, clock=clock)
    for row in ("bad", "good"):
        write(repo, row)
    worker = Worker(repo, [hanging.observer], threads=1, timeout=DEADLINE, retention=None)
    with at_work(worker), hanging:
        hanging.gate.await_arrival()
        assert repo.collect_garbage(retention=0).safe_point <= repo.snapshot().start_ts
        clock.overrun()
        wait_until(lambda: list(failures(repo)))
        wait_until(lambda: repo.snapshot().get(size, "good") == 1)
        for number in range(5):
            repo.run(lambda t, number=number: t.set(size, "else", number))
        newest = repo.snapshot().start_ts
        wait_until(lambda: repo.collect_garbage(retention=0).safe_point >= newest)
        hanging.then = lambda t: t.get(contents, "good")
        hanging.go_on()
    [error] = hanging.raised
    assert isinstance(error, ObserverTimeoutError), "never a value that may be wrong"
    assert repo.snapshot().get(size, "bad") is None


@pytest.mark.parametrize(
    "then",
    [
        lambda t: t.get(contents, "good"),
        lambda t: t.get_many([(contents, "good")]),
        lambda t: t.get_row(docs, "good"),
        lambda t: list(t.scan(docs)),
        lambda t: t.get_for_update(contents, "good"),
        lambda t: t.version(contents, "good"),
        lambda t: t.set(size, "bad", 2),
        lambda t: t.notify(poke, "bad"),
        lambda t: t.commit(),
    ],
    ids=["get", "get_many", "get_row", "scan", "lock", "version", "set", "notify", "commit"],
)
def test_n5_what_a_given_up_run_does_next_says_that_it_was_given_up(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch, then: Any
) -> None:
    hanging, clock = Hanging(), ShiftedClock(monkeypatch)
    hanging.then = then
    repo = ground.repo(TABLES, clock=clock)
    write(repo, "bad")
    worker = Worker(repo, [hanging.observer], threads=1, timeout=DEADLINE)
    with at_work(worker), hanging:
        hanging.gate.await_arrival()
        clock.overrun()
        wait_until(lambda: list(failures(repo)))
        hanging.go_on()
    [error] = hanging.raised
    assert isinstance(error, ObserverTimeoutError)
    assert str(error) == (
        f"hangs ran for longer than {DEADLINE:g} s; its transaction will not commit."
    )
    assert repo.snapshot().get(size, "bad") is None
    assert ground.left_over(docs, Kind.LOCK) == []
    assert len(list(failures(repo))) == 1


class SlowOracle(EmbeddedOracle):
    """An oracle that keeps one thread's first question unanswered."""

    def __init__(self, store: Any, gate: Gate) -> None:
        super().__init__(store)
        self.gate = gate
        self.slow: threading.Thread | None = None

    def timestamp(self) -> int:
        self._wait()
        return super().timestamp()

    def read_timestamp(self) -> int:
        self._wait()
        return super().read_timestamp()

    def _wait(self) -> None:
        here = threading.current_thread()
        if self.slow is None and here.name.startswith("percola-scan"):
            self.slow = here
            self.gate.wait_here()


@only_near("it is the embedded oracle that does not answer")
def test_n5_a_transaction_that_begins_only_after_its_run_was_given_up_is_of_no_use(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle did not answer for as long as the run may take, and then it did."""
    gate, calls = Gate(), []
    oracle: Oracle = SlowOracle(ground.store, gate)
    clock = ShiftedClock(monkeypatch)
    repo = ground.repo(TABLES, oracle=oracle, clock=clock)
    here = ground.repo(TABLES)

    @observer(poke)
    def refresh(t: Transaction, row: str) -> None:
        calls.append(row)
        with pytest.raises(ObserverTimeoutError):
            t.get(contents, row)
        repo_leases.append(repo.context.leases.oldest())

    repo_leases: list[int | None] = []
    write(here, "a")
    worker = Worker(repo, [refresh], threads=1, timeout=DEADLINE, retention=None)
    worker.start()
    try:
        gate.await_arrival()
        clock.overrun()
        wait_until(lambda: list(failures(here)))
        slow = oracle.slow  # type: ignore[attr-defined]
        gate.open()
        slow.join(DEADLINE)
        assert calls == ["a"]
        assert repo_leases == [None], "it holds nothing back from garbage collection"
    finally:
        gate.open()
        worker.stop()
    assert len(list(failures(here))) == 1


@pytest.mark.parametrize("batch", [1, 64])
def test_n5_an_observer_that_raises_the_error_of_a_time_limit_itself_counts_as_failing(
    repo: Repository, batch: int, wait_until: Callable[..., object]
) -> None:
    """Its thread goes on, and its row is not locked for ever."""

    @observer(contents, batch=batch)
    def measure(t: Transaction, row: str) -> None:
        if row == "bad":
            raise ObserverTimeoutError("The service did not answer.")
        t.set(size, row, 1)

    for row in ("bad", "good"):
        repo.run(lambda t, row=row: t.set(contents, row, "text"))
    worker = Worker(repo, [measure], attempts=2, first_wait=0.01, longest_wait=0.02, threads=1)
    with at_work(worker):
        wait_until(worker.is_idle)
    [failure] = failures(repo)
    assert failure.error.endswith("The service did not answer.")
    assert repo.snapshot().get(size, "good") == 1


def test_n5_time_for_which_the_process_was_stopped_does_not_count(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-Z in a terminal, or with its container."""
    clock = ShiftedClock(monkeypatch)
    monkeypatch.setattr("percola.observers.worker.monotonic", clock.monotonic)
    repo = ground.repo(TABLES, clock=clock)
    looks: list[float] = []
    monkeypatch.setattr(
        repo.context.coordination, "check_place", lambda: looks.append(clock.monotonic())
    )
    hanging = Hanging()
    write(repo, "bad")
    worker = Worker(repo, [hanging.observer], threads=1, timeout=DEADLINE, retention=None)
    with at_work(worker), hanging:
        hanging.gate.await_arrival()
        clock.overrun()
        went_on = clock.monotonic()
        wait_until(lambda: sum(at >= went_on for at in looks) >= 2)
        hanging.gate.open()
        wait_until(lambda: repo.snapshot().get(size, "bad") or list(failures(repo)))
    assert list(failures(repo)) == []


def test_n5_a_worker_may_be_stopped_while_it_gives_up_a_run_that_ends_then(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, gave_up, stopped = ShiftedClock(monkeypatch), threading.Event(), threading.Event()
    repo = ground.repo(TABLES, clock=clock)
    give_up_late, unlocked = Runner.give_up_late, list[bytes]()

    def slowly(runner: Runner) -> Any:
        if late := give_up_late(runner):
            gave_up.set()
            assert stopped.wait(DEADLINE)
        return late

    def unlock(table: str, row: bytes) -> None:
        if stopped.is_set():
            unlocked.append(row)

    monkeypatch.setattr(Runner, "give_up_late", slowly)
    monkeypatch.setattr(repo.context.coordination, "unlock", unlock)
    hanging = Hanging()
    write(repo, "bad")
    worker = Worker(repo, [hanging.observer], threads=1, timeout=DEADLINE, retention=None)
    worker.start()
    with hanging:
        hanging.gate.await_arrival()
        clock.overrun()
        assert gave_up.wait(DEADLINE)
        hanging.gate.open()
        worker.stop()
        stopped.set()
        wait_until(lambda: unlocked or worker._failure)
    worker.stop()
