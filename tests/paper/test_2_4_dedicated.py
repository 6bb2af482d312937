"""§2.4: an observer that runs on a thread of its own, in one worker (`dedicated=True`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benches import Bench
from stores import DEADLINE, Ground, Program, at_work, notify

import percola
from percola import ObserverError, Repository, Table, Transaction, Worker, observer
from percola.cells import Kind

pages = Table("pages")
body = pages.column("body", int, observed=True)
parsed = pages.column("parsed", int)
totals = Table("totals")
changed = totals.weak_column("changed")
by = totals.column("by", int)
times = totals.column("times", int)
TABLES = [pages, totals]


def parse(t: Transaction, row: str) -> None:
    t.set(parsed, row, t.get(body, row) or 0)
    t.notify(changed, "all")


def write(repo: Repository, row: str, value: int = 1) -> None:
    repo.run(lambda t: t.set(body, row, value))


@contextmanager
def working(repo: Repository, *observers: percola.Observer[str]) -> Iterator[Worker]:
    worker = Worker(repo, observers, threads=1, rescan=0.05)
    with at_work(worker):
        yield worker


def test_others_do_not_wait_while_it_waits_for_something_outside(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    """A worker of one thread."""
    waits, go_on = threading.Event(), threading.Event()

    def export(t: Transaction, row: str) -> None:
        waits.set()
        assert go_on.wait(DEADLINE)

    with working(
        repo,
        observer(body, name="parse")(parse),
        observer(changed, name="export", dedicated=True)(export),
    ):
        write(repo, "first")
        assert waits.wait(DEADLINE)
        write(repo, "second", 7)
        wait_until(lambda: repo.snapshot().get(parsed, "second") == 7)
        go_on.set()


def test_one_worker_runs_it_and_another_takes_over_when_that_one_stops(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    ran: list[str] = []

    def named(name: str) -> percola.Observer[str]:
        return observer(changed, name="export", dedicated=True)(lambda t, row: ran.append(name))

    def notify() -> None:
        before = len(ran)
        repo.run(lambda t: t.notify(changed, "all"))
        wait_until(lambda: len(ran) > before)

    with working(repo, named("first")):
        notify()
        with working(repo, named("second")):
            for _ in range(20):
                notify()
            assert set(ran) == {"first"}
    ran.clear()
    with working(repo, named("second")) as second:
        notify()
        assert set(ran) == {"second"}
        with working(repo, named("third")):
            second.stop()
            notify()
            assert ran[-1] == "third"


def test_with_a_number_so_many_workers_run_it_at_once_for_different_rows(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    ran: set[tuple[str, str]] = set()
    both = threading.Barrier(2)

    def named(name: str) -> percola.Observer[str]:
        def export(t: Transaction, row: str) -> None:
            ran.add((name, row))
            both.wait(DEADLINE)

        return observer(changed, name="export", batch=1, dedicated=2)(export)

    with working(repo, named("first")) as first, working(repo, named("second")) as second:
        # Their threads take the two places; the third one's might be faster.
        wait_until(lambda: first._schedule._claims and second._schedule._claims)
        with working(repo, named("third")) as third:
            for row in ("a", "b"):
                repo.run(lambda t, row=row: t.notify(changed, row))
            wait_until(repo.is_idle)
            assert len({name for name, _ in ran}) == len({row for _, row in ran}) == 2
            assert len(third._schedule.claimed()) + sum(name == "third" for name, _ in ran) <= 1


def test_the_columns_of_one_observer_have_their_thread_in_the_same_worker(ground: Ground) -> None:
    """Also if another worker looks at the same time."""
    orders = Table("orders")
    price, due = orders.column("price", int, observed=True), orders.weak_column("due")
    repo = ground.repo([orders])
    export = observer(price, due, name="export", dedicated=True)(lambda t, row: None)
    first, second = (Worker(repo, [export])._schedule for _ in range(2))
    coordination, claimed = repo.context.coordination, []

    def try_lock(table: str, row: bytes) -> bool:
        del coordination.try_lock
        locked = coordination.try_lock(table, row)
        claimed.append(second.claimed())
        return locked

    coordination.try_lock = try_lock  # type: ignore[method-assign]
    assert first.claimed() == {price.address, due.address}
    assert claimed == [frozenset()]
    first.disclaim()
    assert second.claimed() == {price.address, due.address}


def test_the_observers_of_other_columns_are_run_by_all_workers(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    """One stands by for what runs on a dedicated thread, and does its other work."""

    def make(name: str) -> list[percola.Observer[str]]:
        def noting(t: Transaction, row: str) -> None:
            seen.add(name)
            t.set(parsed, row, 1)
            both.wait(DEADLINE)

        return [
            observer(body, name="parse")(noting),
            observer(changed, name="export", dedicated=True)(lambda t, row: None),
        ]

    seen: set[str] = set()
    both = threading.Barrier(2)
    with working(repo, *make("first")), working(repo, *make("second")):
        write(repo, "a")
        write(repo, "b")
        wait_until(lambda: seen == {"first", "second"})


def test_another_process_takes_over_from_one_that_was_killed(
    tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    folder = tmp_path / "repo"
    with percola.open(folder, schema=TABLES, durability="relaxed") as repo:

        def runner() -> int | None:
            """Notify the observer; the process that has run it."""
            before = repo.snapshot().get(times, "all") or 0
            repo.run(lambda t: t.notify(changed, "all"))
            wait_until(lambda: (repo.snapshot().get(times, "all") or 0) > before)
            return repo.snapshot().get(by, "all")

        with Program("dedicated_process.py", folder) as one:
            one.expect("ready")
            first = runner()
            with Program("dedicated_process.py", folder) as other:
                other.expect("ready")
                assert [runner() for _ in range(5)] == [first] * 5
                one.kill()
                assert runner() not in (first, None)


def test_run_until_idle_waits_for_it(repo: Repository, ground: Ground) -> None:
    exported: list[str] = []
    observers = [
        observer(body, name="parse")(parse),
        observer(changed, name="export", dedicated=True)(lambda t, row: exported.append(row)),
    ]
    write(repo, "a")
    worker = Worker(repo, observers, threads=1)
    worker.run_until_idle()
    assert exported
    assert ground.left_over(totals, Kind.NOTIFY) == []
    write(repo, "b")
    exported.clear()
    worker.run_until_idle()
    assert exported, "also when it is called again"


class Exporting(Bench):
    """A common scanner and one of a dedicated thread, looked through by hand."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, TABLES)

        def export(t: Transaction, row: str) -> None:
            self.clock.now += 1
            self.ran.append("export")

        self.scan_with(
            [
                observer(body, name="parse")(parse),
                observer(changed, name="export", share=0.2, dedicated=True)(export),
            ]
        )
        self.dedicated = self.another_scanner(dedicated=True)

    def exports(self) -> int:
        """Notify the observer with a dedicated thread and have it look; how often it ran."""
        notify(self.repo, changed, "all")
        self.ran.clear()
        self.waits = self.dedicated.look()
        return len(self.ran)


def test_the_common_scanners_leave_it_alone(ground: Ground) -> None:
    bench = Exporting(ground)
    bench.repo.run(lambda t: t.notify(changed, "all"))
    bench.scanner.look()
    assert bench.ran == []
    bench.dedicated.look()
    assert bench.ran == ["export"]


def test_it_rests_for_its_share_only_while_the_others_find_work(ground: Ground) -> None:
    bench = Exporting(ground)
    assert [bench.exports() for _ in range(3)] == [1, 1, 1], "nobody else wants the time"
    write(bench.repo, "a")
    bench.scanner.look()
    assert bench.exports() == 0, "it ran for a second, and may take a fifth of the time"
    assert 3 < bench.waits <= 4
    bench.clock.now += 4
    assert bench.exports() == 1
    bench.clock.now += 1
    bench.scanner.look()
    assert bench.exports() == 1, "the others have found nothing more to do"


def test_one_that_is_deferred_cannot_have_a_dedicated_thread() -> None:
    with pytest.raises(
        ObserverError, match="cannot both run on a dedicated thread and be deferred"
    ):
        observer(changed, name="export", dedicated=True, defer=3.0)(lambda t, row: None)
