"""§2.4: observers that raise, and observers that never end (rule N5)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import (
    DEADLINE,
    Gate,
    Ground,
    SeamStore,
    ShiftedClock,
    at_work,
    heard,
    in_thread,
    stop_at,
)

import percola
from percola import (
    Repository,
    RepositoryClosedError,
    StoreError,
    Table,
    Transaction,
    Worker,
    observer,
)
from percola.cells import Kind
from percola.inspection import failures, retry_failures
from percola.observers import runner
from percola.store.base import Limits, RowMutation
from percola.store.memory import MemoryStore

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)
poke = docs.weak_column("poke")
TABLES = [docs]

QUICK = {"attempts": 3, "first_wait": 0.01, "longest_wait": 0.02, "threads": 2}


def write(repo: Repository, *rows: str, text: str = "text") -> None:
    for row in rows:
        repo.run(lambda t, row=row: t.set(contents, row, text))


def count(worker: Worker, metric: str, name: str = "measure") -> float:
    return worker.metrics.counts().get(metric, {}).get(name, 0)


class Measure:
    """An observer that fails on some rows, and notes what it was called for."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)
        self.calls: list[str] = []
        self.observer = observer(contents, name="measure")(self._run)

    def _run(self, t: Transaction, row: str) -> None:
        self.calls.append(row)
        t.set(size, row, len(t.get(contents, row) or ""))
        if row in self.bad:
            raise ValueError(f"cannot measure {row}")


def test_n5_a_failing_observer_is_tried_again_then_dead_lettered_with_its_traceback(
    ground: Ground, repo: Repository
) -> None:
    measure = Measure("bad")
    write(repo, "bad", "good", "fine")
    worker = Worker(repo, [measure.observer], **QUICK)
    worker.run_until_idle()
    # A batch that fails counts for none of its rows; each runs again by itself.
    split = count(worker, "observer_batches_split")
    assert split <= 1
    assert measure.calls.count("bad") == 3 + split
    assert measure.calls.count("good") + measure.calls.count("fine") <= 2 + 2 * split
    [failure] = failures(repo)
    assert (failure.cell.row, failure.observer, failure.attempts) == (b"bad", "measure", 3)
    assert failure.error == "ValueError: cannot measure bad"
    assert "Traceback" in failure.traceback and "in _run" in failure.traceback
    assert ground.left_over(docs, Kind.NOTIFY) == []
    snapshot = repo.snapshot()
    assert snapshot.get_many([(size, "bad"), (size, "good")]) == [None, 4]
    assert (count(worker, "observer_failures"), count(worker, "observer_dead_lettered")) == (3, 1)
    assert count(worker, "observer_runs") == 2


def test_n5_attempts_are_spaced_by_growing_waits_even_if_scans_are_rare(repo: Repository) -> None:
    """The next attempt comes when it is due, not when the safety net scans."""
    moments: list[float] = []

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        moments.append(time.monotonic())
        raise ValueError

    write(repo, "a")
    Worker(
        repo, [measure], attempts=4, first_wait=0.05, longest_wait=0.2, rescan=60, threads=1
    ).run_until_idle()
    waits = [b - a for a, b in itertools.pairwise(moments)]
    assert len(waits) == 3
    for wait, ceiling in zip(waits, (0.05, 0.1, 0.2), strict=True):
        assert wait >= ceiling / 10
    assert sum(waits) < 20


def test_n5_a_failure_that_passes_leaves_no_trace(ground: Ground, repo: Repository) -> None:
    measure = Measure("a")

    def recover(t: Transaction, row: str) -> None:
        if len(measure.calls) == 2:
            measure.bad.clear()
        measure._run(t, row)

    write(repo, "a")
    worker = Worker(repo, [observer(contents, name="measure")(recover)], **QUICK)
    worker.run_until_idle()
    assert measure.calls == ["a"] * 3
    assert list(failures(repo)) == []
    assert repo.snapshot().get(size, "a") == 4
    assert (count(worker, "observer_failures"), count(worker, "observer_dead_lettered")) == (2, 0)


def test_n5_a_new_write_tries_again_and_success_removes_the_failure(
    ground: Ground, repo: Repository
) -> None:
    measure = Measure("a")
    write(repo, "a")
    Worker(repo, [measure.observer], **QUICK).run_until_idle()
    assert len(list(failures(repo))) == 1
    measure.bad.clear()
    Worker(repo, [measure.observer], **QUICK).run_until_idle()
    assert len(list(failures(repo))) == 1, "nothing has changed: it stays aside"
    write(repo, "a", text="longer text")
    Worker(repo, [measure.observer], **QUICK).run_until_idle()
    assert list(failures(repo)) == []
    assert repo.snapshot().get(size, "a") == 11


def test_n5_retrying_failures_makes_the_cells_dirty_again(ground: Ground, repo: Repository) -> None:
    measure = Measure("a", "b")
    write(repo, "a", "b", "c")
    Worker(repo, [measure.observer], **QUICK).run_until_idle()
    assert len(list(failures(repo))) == 2
    measure.bad = {"b"}
    before = measure.calls.count("c")
    assert retry_failures(repo) == 2
    assert list(failures(repo)) == []
    assert len(ground.left_over(docs, Kind.NOTIFY)) == 2
    Worker(repo, [measure.observer], **QUICK).run_until_idle()
    assert [failure.cell.row for failure in failures(repo)] == [b"b"]
    assert repo.snapshot().get_many([(size, "a"), (size, "b")]) == [4, None]
    assert measure.calls.count("c") == before, "it had been answered"


def test_n5_a_conflict_is_no_failure(repo: Repository) -> None:
    calls: list[str] = []

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        calls.append(row)
        t.get(size, row)
        if len(calls) < 6:
            repo.run(lambda other: other.set(size, row, -1))
        t.set(size, row, 1)

    write(repo, "a")
    worker = Worker(repo, [measure], attempts=1, threads=1)
    worker.run_until_idle()
    assert repo.snapshot().get(size, "a") == 1
    assert count(worker, "observer_conflicts") == 5
    assert count(worker, "observer_failures") == 0
    assert list(failures(repo)) == []


@pytest.mark.parametrize("others", [0, 1])
def test_n5_a_worker_rests_while_it_waits_to_try_again(
    ground: Ground, wait_until: Callable[..., object], others: int
) -> None:
    """Also if the column has another observer, which has run already."""
    scans: list[object] = []
    repo = ground.repo(
        TABLES, store=heard(ground.store, scan_kind=lambda *scan: scans.append(scan))
    )
    measure = Measure("a")
    fine = [observer(contents, name="fine")(lambda t, row: None)] * others
    write(repo, "a")
    worker = Worker(repo, [measure.observer, *fine], first_wait=60, longest_wait=60, rescan=60)
    with at_work(worker):
        wait_until(lambda: measure.calls)
        before = len(scans)
        threading.Event().wait(0.3)
        assert len(scans) - before < 200
    assert measure.calls == ["a"]


# --- Observers that never end -----------------------------------------------------------


class Stuck:
    """An observer that waits on one row until it is let go, and then writes."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.threads: list[threading.Thread] = []
        self.observer = observer(contents, name="stuck")(self._run)

    def _run(self, t: Transaction, row: str) -> None:
        if row == "stuck":
            self.threads.append(threading.current_thread())
            assert self.go.wait(DEADLINE)
        t.set(size, row, 1)

    def release(self) -> None:
        self.go.set()
        for thread in self.threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()


@pytest.mark.parametrize("how", ["run", "start"])
def test_n5_an_observer_that_never_ends_is_dead_lettered_and_its_late_commit_refused(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stuck, clock = Stuck(), ShiftedClock(monkeypatch)
    repo = ground.repo(TABLES, clock=clock)
    write(repo, "stuck")
    worker = Worker(repo, [stuck.observer], threads=1, timeout=DEADLINE, rescan=60)
    if how == "run":
        running = in_thread(worker.run)
    else:
        worker.start()
    wait_until(lambda: stuck.threads)
    clock.overrun()
    wait_until(lambda: list(failures(repo)))
    [failure] = failures(repo)
    said = f"ObserverTimeoutError: stuck ran for longer than {DEADLINE:g} s"
    assert failure.error.startswith(said)
    assert "go.wait" in failure.traceback, "it says where it hangs"
    # The others go on, although the only thread was lost.
    write(repo, "a", "b")
    wait_until(lambda: repo.snapshot().get_many([(size, "a"), (size, "b")]) == [1, 1])
    stuck.release()
    assert repo.snapshot().get(size, "stuck") is None, "nothing of it may be committed"
    assert [one.cell.row for one in failures(repo)] == [b"stuck"]
    # It can be run again.
    retry_failures(repo)
    wait_until(lambda: repo.snapshot().get(size, "stuck") == 1)
    assert list(failures(repo)) == []
    worker.stop()
    if how == "run":
        running.result(DEADLINE)


def test_n5_an_observer_that_cannot_be_dead_lettered_for_a_moment_runs_and_is_given_up_again(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, clock = Stuck(), ShiftedClock(monkeypatch)
    refused: list[RowMutation] = []

    def refuse(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if not refused and any(one.kind is Kind.FAILED for one in mutation.changes):
            refused.append(mutation)
            raise StoreError("The server is being restarted.")
        return apply()

    repo = ground.repo(TABLES, store=SeamStore(ground.store, refuse), clock=clock)
    write(repo, "stuck")
    worker = Worker(repo, [stuck.observer], threads=1, timeout=DEADLINE, rescan=0.05)
    with at_work(worker):
        for runs in (1, 2):
            wait_until(lambda runs=runs: len(stuck.threads) == runs)
            clock.overrun()
        wait_until(lambda: list(failures(repo)))
        assert refused
        write(repo, "a")
        wait_until(lambda: repo.snapshot().get(size, "a") == 1)
        stuck.release()


def test_n5_an_observer_that_has_begun_to_commit_is_not_dead_lettered_any_more(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could be listed as failed, and yet have committed."""
    gate = Gate()

    class SlowToCommit(SeamStore):
        def commit_one_step(self, *args: Any, **kwargs: Any) -> Any:
            gate.wait_here()
            return self.inner.commit_one_step(*args, **kwargs)

    store, clock = SlowToCommit(ground.store), ShiftedClock(monkeypatch)
    repo = ground.repo(TABLES, store=store, clock=clock)
    write(ground.repo(TABLES), "a")
    store.hook = stop_at("prewrite", "a", gate)
    worker = Worker(repo, [Measure().observer], threads=1, timeout=DEADLINE)
    looks: list[object] = []
    look = worker._runs.give_up_late

    def note() -> Any:
        found = look()
        looks.append(found)
        return found

    monkeypatch.setattr(worker._runs, "give_up_late", note)
    worker.start()
    gate.await_arrival()
    clock.overrun()
    before = len(looks)
    # The second of these looks has begun after that.
    wait_until(lambda: len(looks) > before + 1)
    assert list(failures(repo)) == []
    gate.open()
    wait_until(lambda: ground.left_over(docs, Kind.NOTIFY) == [])
    worker.stop()
    assert repo.snapshot().get(size, "a") == 4
    assert list(failures(repo)) == []


def test_n5_an_abandoned_thread_runs_nothing_more(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the next observer of the row, nor the next row."""
    stuck, clock = Stuck(), ShiftedClock(monkeypatch)
    repo = ground.repo(TABLES, clock=clock)
    threads: list[threading.Thread] = []

    @observer(contents)
    def second(t: Transaction, row: str) -> None:
        threads.append(threading.current_thread())

    write(repo, "stuck")
    worker = Worker(repo, [stuck.observer, second], threads=1, timeout=DEADLINE, rescan=60)
    worker.start()
    wait_until(lambda: stuck.threads)
    clock.overrun()
    wait_until(lambda: list(failures(repo)))
    write(repo, "zzz")
    wait_until(lambda: len(threads) == 2)
    stuck.release()
    worker.stop()
    assert stuck.threads[0] not in threads
    assert repo.snapshot().get(size, "stuck") is None


def test_a_worker_whose_store_fails_for_good_ends_with_the_error(ground: Ground) -> None:
    def fail(*_: object) -> None:
        raise StoreError("The disk is gone.")

    repo = ground.repo(TABLES, store=heard(ground.store, scan_kind=fail))
    for work in ("run", "run_until_idle"):
        worker = Worker(repo, [Measure().observer], attempts=2, rescan=0.01)
        with pytest.raises(StoreError, match="disk is gone"):
            getattr(worker, work)()


@pytest.mark.parametrize("rows", [["bad"], ["bad", "worse"]], ids=["alone", "in a batch"])
def test_a_worker_whose_store_fails_in_a_run_says_of_which_observer_and_row(
    repo: Repository, caplog: pytest.LogCaptureFixture, rows: list[str]
) -> None:
    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        raise StoreError("The row is too large to be read.")

    write(repo, *rows)
    with pytest.raises(StoreError, match="too large"):
        Worker(repo, [measure], attempts=2, threads=1, rescan=0.01).run()
    told = [one.getMessage() for one in caplog.records if "in its run" in one.getMessage()]
    assert len(told) == 2
    for one in told:
        assert one.startswith("observer measure: the store failed in its run on docs['")
        assert "percola observers pause measure" in one


def test_a_worker_that_asks_whether_it_is_idle_outlives_a_store_that_fails_for_a_moment(
    ground: Ground,
) -> None:
    """As its scanners do; only the thread that asks meets the failure here."""
    failed: list[int] = []

    def fail(*_: object) -> None:
        if threading.current_thread() is threading.main_thread() and len(failed) < 2:
            failed.append(1)
            raise StoreError("The server is being restarted.")

    repo = ground.repo(TABLES, store=heard(ground.store, scan_kind=fail))
    measure = Measure()
    write(repo, "fine")
    worker = Worker(repo, [measure.observer], attempts=3, warn_unobserved=False)
    assert worker.run_until_idle()
    assert failed == [1, 1] and measure.calls == ["fine"]


def test_a_worker_whose_repository_is_closed_ends_with_an_error(
    ground: Ground, repo: Repository
) -> None:
    worker = Worker(repo, [Measure().observer], threads=2, rescan=0.01)
    running = in_thread(worker.run)
    ground.store.close()
    with pytest.raises(RepositoryClosedError):
        running.result(DEADLINE)


@pytest.mark.parametrize("dedicated", [False, True])
def test_a_worker_whose_repository_is_closed_while_it_holds_a_row_says_so(
    tmp_path: Path, dedicated: bool
) -> None:
    """In a folder its locks have gone with the repository, and are not given back again."""
    repo = percola.open(tmp_path / "r", TABLES)
    runs, go_on = threading.Event(), threading.Event()

    @observer(contents, dedicated=dedicated)
    def measure(t: Transaction, row: str) -> None:
        runs.set()
        assert go_on.wait(DEADLINE)

    worker = Worker(repo, [measure], threads=1)
    worker.start()
    write(repo, "a")
    assert runs.wait(DEADLINE)
    repo.close()
    go_on.set()
    with pytest.raises(RepositoryClosedError):
        worker.stop()


def _noted(error: Exception) -> Exception:
    error.add_note("a note")
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("two fields:\n  price: missing\nSee https://errors.example/2"), "two fields:"),
        (_noted(ValueError("no price")), "no price"),
        (ExceptionGroup("two fields", [ValueError("price"), KeyError("name")]), "two fields"),
        (SyntaxError("no price", ("formula", 1, 2, "a b", 1, 3)), "no price"),
        (ValueError("\nno price"), "no price"),
        (ValueError(), ""),
    ],
    ids=["lines", "note", "group", "syntax", "empty line", "nothing"],
)
def test_n5_a_dead_letter_tells_what_was_raised_whatever_ends_its_traceback(
    error: Exception, told: str
) -> None:
    repo = percola.open("memory:", TABLES)

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        raise error

    write(repo, "bad")
    Worker(repo, [measure], **QUICK).run_until_idle()
    [failure] = failures(repo)
    assert failure.error.startswith(type(error).__name__) and told in failure.error
    assert failure.traceback.startswith(("Traceback", "  + Exception Group Traceback"))
    assert told in failure.traceback


def test_n5_a_failure_whose_message_is_longer_than_a_value_may_be_is_dead_lettered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one that quotes what it could not parse: it is kept without its middle."""
    monkeypatch.setattr(MemoryStore, "limits", Limits(row_bytes=1000, value_bytes=1_000_000))
    repo = percola.open("memory:", TABLES)

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        if row == "bad":
            raise ValueError("cannot measure " + "x" * 5_000_000)
        t.set(size, row, 1)

    write(repo, "bad", "good")
    Worker(repo, [measure], **QUICK).run_until_idle()
    assert repo.snapshot().get(size, "good") == 1
    [failure] = failures(repo)
    assert failure.error.startswith("ValueError: cannot measure xxx") and len(failure.error) < 2_000
    assert failure.traceback.startswith("Traceback") and len(failure.traceback) < 60_000
    assert "ValueError: cannot measure" in failure.traceback
    assert len(caplog.text) < 500_000


def test_a_run_that_does_nothing_but_conflict_is_logged(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that writes a cell in a transaction of its own as well, which goes on for ever."""
    monkeypatch.setattr(runner, "_MANY_CONFLICTS", 2)
    calls: list[str] = []

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        calls.append(row)
        t.set(size, row, 1)
        if row == "bad" and calls.count("bad") <= 20:
            repo.run(lambda other: other.set(size, row, -1))

    write(repo, "bad", "good")
    Worker(repo, [measure], **QUICK).run_until_idle()
    told = [one.getMessage() for one in caplog.records if "in a row" in one.getMessage()]
    assert len(told) == 1
    assert "observer measure goes on trying on docs['bad'].contents: 16 runs in a row" in told[0]
    assert "cannot write docs['bad'].size" in told[0]


def test_n5_an_error_of_another_repository_is_the_observers(repo: Repository) -> None:
    other = percola.open("memory:", TABLES)
    other.close()

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        if row == "closed":
            other.transaction()
        elif row == "nowhere":
            percola.open("/nowhere/at/all", create=False)
        t.set(size, row, 1)

    write(repo, "closed", "nowhere", "well")
    Worker(repo, [measure], **QUICK).run_until_idle()
    assert sorted(one.error.partition(":")[0].rpartition(".")[2] for one in failures(repo)) == [
        "NotARepositoryError",
        "RepositoryClosedError",
    ]
    assert repo.snapshot().get(size, "well") == 1


def test_n5_an_observer_that_reads_what_is_no_longer_kept_fails_as_others_do(
    repo: Repository,
) -> None:
    write(repo, "a", "b")
    write(repo, "a")
    repo.collect_garbage(retention=0)

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        t.set(size, row, len(repo.snapshot(at=1).get(contents, row) or ""))

    worker = Worker(repo, [measure], **QUICK)
    running = in_thread(worker.run_until_idle)
    running.result(DEADLINE)
    assert [one.error.partition(": The")[0].rpartition(".")[2] for one in failures(repo)] == [
        "SnapshotTooOldError"
    ] * 2
    assert count(worker, "observer_failures") == 6


def test_n5_a_run_of_an_older_change_does_not_take_the_failure_of_a_newer_one_away(
    ground: Ground, repo: Repository
) -> None:
    """Two scanners on one row: its advisory lock, which nothing depends on, has been lost."""
    gate = Gate()

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        text = t.get(contents, row) or ""
        if text == "bad":
            raise ValueError("cannot measure")
        gate.wait_here()
        t.set(size, row, len(text))

    write(repo, "a", text="good")
    slow = Worker(repo, [measure], threads=1, attempts=1)
    with at_work(slow):
        gate.await_arrival()
        write(repo, "a", text="bad")
        ground.coordination.unlock("docs", b"a")
        Worker(repo, [measure], threads=1, attempts=1).run_until_idle()
        assert [failure.error for failure in failures(repo)] == ["ValueError: cannot measure"]
        gate.open()
    assert repo.snapshot().get(size, "a") == 4
    assert repo.dead_lettered() == 1
    assert retry_failures(repo) == 1
    assert repo.dead_lettered() == 0
