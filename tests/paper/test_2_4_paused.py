"""§2.4: an observer that an operator has paused (`Repository.pause_observer`)."""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any

import pytest
from benches import Bench
from stores import Ground, SeamStore, at_work, heard, notify, put_all, telling

from percola import (
    ConflictingOptionsError,
    NotAnsweredError,
    Observer,
    Repository,
    Table,
    Transaction,
    UsageError,
    Worker,
    observer,
    rerun,
)
from percola.cells import MAX_TS, Cell, Kind
from percola.inspection import failures, retry_failures
from percola.store.base import RowMutation

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
links = docs.column("links", str, observed=True)
poke = docs.weak_column("poke")
other = Table("other")
target = other.column("target", str, observed=True)
TABLES = [docs, other]

QUICK: dict[str, Any] = {"attempts": 2, "first_wait": 0.01, "longest_wait": 0.02, "threads": 1}


class Operated(Bench):
    """A scanner that is looked through by hand, what it ran, and what it asked of its store."""

    def __init__(self, ground: Ground, *observers: Observer[str]) -> None:
        self.forget()
        store = heard(
            ground.store,
            scan_kind=self._note_scan,
            entries=self._note_read,
            mutate=lambda _, batch: self.mutations.append(batch),
        )
        super().__init__(ground, TABLES, store, **QUICK)
        self.operator: Repository = ground.repo(TABLES, clock=self.clock)
        self.scan_with(observers, sweep=1e9)

    def forget(self) -> None:
        self.scans: list[str] = []
        self.scanned = self.listed = 0
        self.reads: list[bytes] = []
        self.mutations: list[object] = []

    def _note_scan(self, found: Any, kind: Kind, table: str, *where: object) -> None:
        if kind is Kind.NOTIFY:
            self.scans.append(table)
            self.scanned += len(found[0])

    def _note_read(self, found: Any, cell: Cell, *where: object) -> None:
        self.reads.append(cell.row)
        self.listed += len(found)

    def write(self, column: Any, *rows: str) -> int:
        with self.operator.transaction() as t:
            for row in rows:
                t.set(column, row, f"{row}, {t.start_ts}")
        assert t.commit_ts is not None
        return t.commit_ts

    def look(self) -> float:
        """Look round until nothing is left to do; the seconds until the next look."""
        while not (wait := self.scanner.look()):
            pass
        return wait

    def later(self) -> float:
        """Look round after the time that the last look said."""
        self.clock.now += 1.0
        return self.look()


class Ran:
    """Observers that note what they ran for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def observer(self, name: str, *columns: Any, **options: Any) -> Observer[str]:
        @observer(*columns, name=name, **options)
        def note(t: Transaction, row: str) -> None:
            self.calls.append((name, row))

        return note

    def take(self) -> list[tuple[str, str]]:
        """What ran since the last call, in order."""
        calls, self.calls = sorted(self.calls), []
        return calls


@pytest.fixture
def ran() -> Ran:
    return Ran()


def test_a_paused_observer_does_not_run_and_answers_everything_once_it_is_resumed(
    ground: Ground, ran: Ran
) -> None:
    a = ran.observer("a", contents)
    bench = Operated(ground, a, ran.observer("b", links))
    bench.operator.pause_observer(a, reason="too slow")
    for _ in range(3):
        bench.write(contents, "x", "y")
    bench.write(links, "x")
    bench.look()
    assert ran.take() == [("b", "x")]
    assert bench.operator.pending() == {"docs.contents": 2}
    bench.operator.resume_observer("a")
    bench.look()
    assert ran.take() == [("a", "x"), ("a", "y")]
    assert bench.operator.pending() == {}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_n2_another_observer_of_the_column_goes_on_and_does_not_answer_for_a_paused_one(
    ground: Ground, ran: Ran, order: str
) -> None:
    both = {name: ran.observer(name, contents) for name in "ab"}
    bench = Operated(ground, *(both[name] for name in order))
    bench.operator.pause_observer(both["a"])
    bench.write(contents, "x")
    bench.look()
    bench.write(contents, "x")
    bench.look()
    assert ran.take() == [("b", "x"), ("b", "x")], "b sees each change"
    bench.operator.resume_observer(both["a"])
    bench.look()
    assert ran.take() == [("a", "x")]
    assert bench.operator.pending() == {}


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside a paused one of others"])
def test_observers_that_are_paused_in_turn_answer_the_change_between_them(
    ground: Ground, ran: Ran, others: bool
) -> None:
    a, b, c = ran.observer("a", contents), ran.observer("b", contents), ran.observer("c", target)
    bench = Operated(ground, a, b, c)
    bench.operator.pause_observer(a)
    bench.write(contents, "x")
    bench.look()
    bench.operator.pause_observer(b)
    bench.operator.resume_observer(a)
    bench.look()
    assert ran.take() == [("a", "x"), ("b", "x")]
    assert bench.operator.pending() == {"docs.contents": 1}, "each left it to the other"
    if others:
        bench.operator.pause_observer(c)
    bench.operator.resume_observer(b)
    bench.look()
    assert ran.take() == [], "both have handled it"
    assert bench.operator.pending() == {}


def test_a_pause_of_one_of_several_columns_observers_keeps_each_change_for_it(
    ground: Ground, ran: Ran
) -> None:
    several = ran.observer("several", contents, links)
    bench = Operated(ground, several, ran.observer("single", contents))
    bench.operator.pause_observer(several)
    bench.write(contents, "x")
    bench.write(links, "x")
    bench.look()
    assert ran.take() == [("single", "x")]
    bench.operator.resume_observer(several)
    bench.operator.pause_observer(ran.observer("single", contents))
    bench.write(contents, "x")
    bench.look()
    assert ran.take() == [("several", "x")], "one run for both columns"
    assert bench.operator.pending() == {"docs.contents": 1}, "links was its own to answer"
    bench.operator.resume_observer("single")
    bench.look()
    assert ran.take() == [("single", "x")]
    assert bench.operator.pending() == {}


def test_weak_notifications_and_batches_wait_as_well(ground: Ground, ran: Ran) -> None:
    weak = ran.observer("weak", poke, batch=8)
    bench = Operated(ground, weak)
    bench.operator.pause_observer(weak)
    notify(bench.operator, poke, *(f"{number:02}" for number in range(20)))
    bench.look()
    assert ran.take() == []
    bench.operator.resume_observer(weak)
    bench.look()
    assert ran.take() == [("weak", f"{number:02}") for number in range(20)]


def test_no_run_begins_a_second_after_a_pause_even_within_one_look(
    ground: Ground, ran: Ran
) -> None:
    first = []

    @observer(contents, name="slow", batch=1)
    def slow(t: Transaction, row: str) -> None:
        first.append(row)
        bench.clock.now += 0.3
        if len(first) == 1:
            bench.operator.pause_observer(slow)
            bench.operator.pause_observer(second)

    second = ran.observer("second", contents)
    bench = Operated(ground, slow, second)
    bench.write(contents, *(f"{number}" for number in range(50)))
    bench.look()
    assert 1 <= len(first) <= 4, "runs for a second at most"
    answered = len(ran.take())
    assert answered <= 4
    bench.later()
    assert len(first) <= 4
    assert bench.operator.pending() == {"docs.contents": 50 - answered}


def test_a_batch_begins_not_for_an_observer_that_was_paused_after_the_scan(
    ground: Ground, ran: Ran
) -> None:
    one = ran.observer("one", contents)
    bench = Operated(ground, one)
    bench.write(contents, "x", "y")
    bench.look()
    ran.take()
    bench.operator.pause_observer(one)
    bench.clock.now += 1.0
    cells = [Cell("docs", row, contents.key) for row in (b"x", b"y")]
    bench.write(contents, "x", "y")
    ahead = iter(cells)
    assert bench.runs.work_batch(lambda most: [*islice(ahead, most)], []) == set()
    assert ran.take() == []


def test_a_table_of_paused_observers_alone_is_not_scanned(ground: Ground, ran: Ran) -> None:
    a = ran.observer("a", target)
    bench = Operated(ground, a, ran.observer("b", contents))
    bench.operator.pause_observer(a)
    bench.write(target, *(f"{number:04}" for number in range(1000)))
    bench.look()
    bench.forget()
    for _ in range(10):
        assert bench.later() == 1.0
    assert set(bench.scans) == {"docs"}
    assert bench.scanned == 0
    assert bench.reads.count(b"paused") == 10, "one read a second"
    assert bench.schedule.is_idle()
    assert bench.scanned == 0


def test_cells_that_wait_beside_another_observer_are_not_looked_at_again_until_there_is_news(
    ground: Ground, ran: Ran
) -> None:
    """Each cell costs one record that the other observer has handled it, and then a scan only."""
    a = ran.observer("a", contents)
    bench = Operated(ground, a, ran.observer("b", contents))
    bench.operator.pause_observer(a)
    bench.write(contents, *(f"{number:04}" for number in range(200)))
    bench.look()
    assert len(ran.take()) == 200
    bench.look()
    bench.forget()
    locked: list[bytes] = []
    lock = bench.repo.context.coordination.try_lock

    def try_lock(table: str, row: bytes) -> bool:
        locked.append(row)
        return lock(table, row)

    bench.repo.context.coordination.try_lock = try_lock  # type: ignore[method-assign]
    for _ in range(3):
        bench.later()
    assert bench.scanned >= 200, "scanned"
    assert (ran.take(), locked, bench.mutations) == ([], [], []), "and no more"
    bench.write(contents, "0007")
    bench.look()
    assert ran.take() == [("b", "0007")]
    assert set(locked) == {b"0007"}
    bench.operator.resume_observer(a)
    bench.look()
    assert ran.take() == [("a", f"{number:04}") for number in range(200)]
    assert bench.operator.pending() == {}


def test_what_is_dead_lettered_beside_a_paused_observer_is_not_looked_at_again(
    ground: Ground, ran: Ran
) -> None:
    @observer(contents, name="fails")
    def fails(t: Transaction, row: str) -> None:
        raise ValueError(row)

    a = ran.observer("a", contents)
    bench = Operated(ground, a, fails)
    bench.operator.pause_observer(a)
    bench.write(contents, *(f"{number:04}" for number in range(200)))
    bench.look()
    bench.later()
    assert bench.operator.dead_lettered() == 200
    bench.look()
    bench.forget()
    for _ in range(3):
        bench.later()
    assert bench.scanned >= 200, "scanned"
    assert (set(bench.reads), bench.mutations) == ({b"paused"}, []), "and no more"
    retry_failures(bench.operator)
    assert bench.operator.dead_lettered() == 0
    bench.look()
    bench.later()
    assert bench.operator.dead_lettered() == 200, "what is retried is tried"
    bench.operator.resume_observer(a)
    bench.look()
    assert ran.take() == [("a", f"{number:04}") for number in range(200)]
    assert bench.operator.pending() == {}


def test_a_scan_over_waiting_cells_takes_large_steps_and_a_small_part_of_the_time(
    ground: Ground, ran: Ran
) -> None:
    a = ran.observer("a", links)
    bench = Operated(ground, a, ran.observer("b", contents))
    bench.operator.pause_observer(a)
    bench.write(links, *(f"{number:05}" for number in range(5000)))
    store, seconds = bench.repo.context.store, 0.1
    scan = store.scan_kind

    def slow(*where: Any, **how: Any) -> Any:
        bench.clock.now += seconds
        return scan(*where, **how)

    store.scan_kind = slow  # type: ignore[method-assign]
    began = bench.clock.now
    bench.look()
    took = bench.clock.now - began
    assert took < 15 * seconds, "not 5,000 / 64 calls"
    bench.forget()
    ended = bench.clock.now
    while bench.clock.now < ended + 9 * took - 1:
        bench.later()
    assert bench.scanned == 0
    bench.later()
    bench.later()
    assert bench.scanned >= 5000
    bench.write(contents, "00500")
    bench.look()
    assert ran.take() == [("b", "00500")], "a wake-up is not put off"


def test_what_a_run_reads_of_its_cell_does_not_grow_with_changes_that_wait_for_a_paused_observer(
    ground: Ground, ran: Ran
) -> None:
    a, b = ran.observer("a", contents), ran.observer("b", contents)
    bench = Operated(ground, a, b)
    bench.operator.pause_observer(b)
    for _ in range(900):
        bench.write(contents, "x")
    bench.look()
    bench.forget()
    bench.write(contents, "x")
    bench.look()
    assert ran.take() == [("a", "x")] * 2
    assert bench.scanned < 10
    assert bench.listed < 300
    bench.operator.resume_observer("b")
    bench.look()
    assert ran.take() == [("b", "x")]
    assert bench.operator.pending() == {}


def test_a_failing_observer_backs_off_as_before_while_another_one_is_paused(
    ground: Ground, ran: Ran
) -> None:
    @observer(contents, name="fails")
    def fails(t: Transaction, row: str) -> None:
        ran.calls.append(("fails", row))
        raise ValueError(row)

    a = ran.observer("a", contents)
    bench = Operated(ground, a, fails, ran.observer("b", contents))
    bench.operator.pause_observer(a)
    bench.write(contents, "x")
    assert bench.look() == 0.02
    assert ran.take() == [("b", "x"), ("fails", "x")]
    assert not bench.schedule.is_idle()
    assert bench.look() > 0
    assert ran.take() == [], "it waits for its next attempt"
    bench.later()
    assert ran.take() == [("fails", "x")]
    assert [one.observer for one in failures(bench.operator)] == ["fails"]
    bench.look()
    assert bench.schedule.is_idle(), "dead-lettered for the one, waiting for the other"
    retry_failures(bench.operator)
    assert not bench.schedule.is_idle()
    bench.look()
    assert ("fails", "x") in ran.take()


def test_a_rerun_of_an_observer_beside_a_paused_one_runs_it(ground: Ground, ran: Ran) -> None:
    a, b = ran.observer("a", contents), ran.observer("b", contents)
    bench = Operated(ground, a, b)
    bench.operator.pause_observer(a)
    bench.write(contents, "x")
    bench.look()
    assert ran.take() == [("b", "x")]
    rerun(bench.operator, b)
    bench.look()
    assert ran.take() == [("b", "x")]


def test_a_worker_is_idle_if_only_paused_observers_have_work(repo: Repository, ran: Ran) -> None:
    a, b = ran.observer("a", contents), ran.observer("b", contents, links)
    repo.pause_observer(a)
    put_all(repo, contents, dict.fromkeys("xyz", "text"))
    assert not Worker(repo, [a, b], **QUICK).is_idle(), "b has work on the same cells"
    put_all(repo, links, dict.fromkeys("xyz", "text"))
    Worker(repo, [a, b], **QUICK).run_until_idle()
    assert {name for name, _ in ran.take()} == {"b"}
    assert repo.pending() == {"docs.contents": 3}
    repo.resume_observer(a)
    assert not Worker(repo, [a, b], **QUICK).is_idle()
    Worker(repo, [a, b], **QUICK).run_until_idle()
    assert ran.take() == [("a", "x"), ("a", "y"), ("a", "z")]


def test_a_dead_letter_that_another_change_answered_is_no_work_beside_a_paused_observer(
    ground: Ground, ran: Ran
) -> None:
    well: list[bool] = []

    @observer(contents, links, name="both")
    def both(t: Transaction, row: str) -> None:
        if not well:
            raise ValueError(row)

    a = ran.observer("a", contents)
    bench = Operated(ground, a, both)
    bench.operator.pause_observer(a)
    bench.write(contents, "r")
    bench.look()
    bench.later()
    assert bench.operator.dead_lettered() == 1
    well.append(True)
    bench.write(links, "r")
    bench.look()
    assert bench.operator.dead_lettered() == 0
    assert Worker(bench.operator, [a, both], **QUICK).is_idle()
    bench.operator.resume_observer(a)
    bench.look()
    assert (ran.take(), bench.operator.pending()) == ([("a", "r")], {})


def test_a_dedicated_observer_can_be_paused(repo: Repository, ran: Ran) -> None:
    a, b = ran.observer("a", target, dedicated=True), ran.observer("b", contents)
    repo.pause_observer(a)
    with repo.transaction() as t:
        t.set(target, "x", "text")
        t.set(contents, "x", "text")
    Worker(repo, [a, b], **QUICK).run_until_idle()
    assert ran.take() == [("b", "x")]
    repo.resume_observer(a)
    Worker(repo, [a, b], **QUICK).run_until_idle()
    assert ran.take() == [("a", "x")]


def test_a_worker_logs_once_that_an_observer_is_paused_and_that_it_is_resumed(
    ground: Ground, ran: Ran, caplog: pytest.LogCaptureFixture
) -> None:
    a = ran.observer("a", contents)
    bench = Operated(ground, a)
    bench.operator.pause_observer(a, reason="the index is full")
    bench.operator.pause_observer(ran.observer("elsewhere", links))
    with caplog.at_level(logging.INFO, "percola.worker"):
        for _ in range(3):
            bench.later()
        bench.operator.resume_observer(a)
        for _ in range(3):
            bench.later()
    assert [record.getMessage() for record in caplog.records] == [
        "observer a is paused, and its changes wait: the index is full",
        "observer a is resumed",
    ]


def test_waiting_for_an_answer_says_that_the_observer_is_paused(ground: Ground, ran: Ran) -> None:
    bench = Operated(ground, ran.observer("a", contents))
    bench.operator.pause_observer(ran.observer("a", contents), reason="too slow")
    bench.operator.pause_observer(ran.observer("elsewhere", links))
    commit_ts = bench.write(contents, "x")
    with pytest.raises(NotAnsweredError, match=r"It is paused: a \(too slow\)\. 'percola obs"):
        bench.operator.wait_answered(commit_ts, timeout=5)
    bench.operator.resume_observer("a")
    with pytest.raises(NotAnsweredError, match="Is a worker with its observer running"):
        bench.operator.wait_answered(commit_ts, timeout=5)


def test_a_name_that_nobody_knows_pauses_and_resumes_nothing(repo: Repository, ran: Ran) -> None:
    with pytest.raises(UsageError, match=r"No live worker runs an observer named 'a'.*: none"):
        repo.pause_observer("a")
    assert repo.paused_observers() == []
    worker = Worker(repo, [ran.observer("a", contents, links)], **QUICK)
    with at_work(worker):
        with pytest.raises(UsageError, match="workers: a"):
            repo.pause_observer("aa")
        found = repo.pause_observer("a", reason="why")
        assert (found.name, found.columns, found.reason) == (
            "a", ("docs.contents", "docs.links"), "why",
        )  # fmt: skip
    again = repo.pause_observer("a")
    assert again == found, "known by its pause, which keeps its time and reason"
    with pytest.raises(UsageError, match=r"'aa' is not paused\. Paused observers: a"):
        repo.resume_observer("aa")
    assert repo.paused_observers() == [found]
    assert repo.resume_observer("a") == found
    with pytest.raises(UsageError, match="Paused observers: none"):
        repo.resume_observer("a")
    with pytest.raises(ConflictingOptionsError, match="1,001 characters"):
        repo.pause_observer(ran.observer("a", contents), reason="x" * 1001)


def test_pauses_at_the_same_time_are_both_kept(ground: Ground, ran: Ran) -> None:
    """A second one is written between the first one's read and its write."""

    elsewhere = ground.repo(TABLES)
    done: list[bool] = []

    def pause_another(mutation: RowMutation) -> None:
        if mutation.row == b"paused" and not done:
            done.append(True)
            elsewhere.pause_observer(ran.observer("b", links))

    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store)
    store.hook = telling(pause_another)
    repo.pause_observer(ran.observer("a", contents))
    assert [one.name for one in elsewhere.paused_observers()] == ["a", "b"]
    cell = Cell("@percola", b"paused", b"@observers")
    assert len(ground.store.entries(cell, Kind.DATA, 0, MAX_TS)) == 1, "old versions are removed"
