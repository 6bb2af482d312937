"""§2.4: observers together: chains, several on one column, cycles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest
from stores import Ground, PassingStore, at_work, cell_of, put_all

from percola import (
    ConflictError,
    Observer,
    ObserverError,
    Repository,
    Table,
    Transaction,
    Worker,
    observer,
)
from percola.cells import Cell, Kind
from percola.inspection import failures
from percola.store.base import CellState, OneStepStore

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
parsed = docs.column("parsed", str, observed=True)
linked = docs.column("linked", str, observed=True)
done = docs.column("done", str)
recluster = docs.weak_column("recluster")
TABLES = [docs]


def write(repo: Repository, row: str, text: str) -> None:
    repo.run(lambda t: t.set(contents, row, text))


def drain(repo: Repository, *observers: Observer[str], **options: float) -> Worker:
    worker = Worker(repo, observers, threads=2, **options)
    worker.run_until_idle()
    return worker


def test_an_observers_writes_trigger_the_next_observer(repo: Repository) -> None:
    @observer(contents)
    def parse(t: Transaction, row: str) -> None:
        t.set(parsed, row, f"parsed {t.get(contents, row)}")

    @observer(parsed)
    def link(t: Transaction, row: str) -> None:
        t.set(linked, row, f"linked {t.get(parsed, row)}")

    @observer(linked)
    def finish(t: Transaction, row: str) -> None:
        t.set(done, row, f"done {t.get(linked, row)}")

    for number in range(10):
        write(repo, f"page {number}", str(number))
    drain(repo, finish, link, parse)
    assert {row.key: row[done] for row in repo.snapshot().scan(docs)} == {
        f"page {n}": f"done linked parsed {n}" for n in range(10)
    }


def test_several_observers_of_one_column_each_run_once_for_a_change(
    ground: Ground, repo: Repository
) -> None:
    seen: list[str] = []

    def make(name: str) -> Observer[str]:
        return observer(contents, name=name)(lambda t, row: seen.append(f"{name} {row}"))

    three = [make("one"), make("two"), make("three")]
    for row in "ab":
        write(repo, row, "x")
    drain(repo, *three)
    assert sorted(seen) == [f"{n} {row}" for n in ("one", "three", "two") for row in "ab"]
    assert ground.left_over(docs, Kind.NOTIFY) == []
    drain(repo, *three)
    assert len(seen) == 6


def test_a_cycle_of_observers_is_not_prevented_and_shows_in_the_metrics(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    ping = observer(contents, name="ping")(lambda t, row: t.notify(recluster, row))

    pong = observer(recluster, name="pong")(lambda t, row: t.set(contents, row, "again"))

    worker = Worker(repo, [ping, pong], threads=2)

    def counts() -> dict[str, float]:
        return worker.metrics.counts().get("observer_runs", {})

    write(repo, "a", "once")
    with at_work(worker):
        wait_until(lambda: min(counts().get("ping", 0), counts().get("pong", 0)) >= 20)


def test_a_function_that_works_only_after_its_run_has_committed_is_refused() -> None:
    async def wait(t: Transaction, row: str) -> None: ...

    def each(t: Transaction, row: str) -> Iterator[None]:
        yield t.notify(recluster, row)

    for function in (wait, each):
        with pytest.raises(ObserverError, match=f"{function.__name__}' is a coroutine or a gen"):
            observer(contents)(function)


@pytest.mark.parametrize("rows", ["a", "abc"])
def test_n5_a_function_that_returns_its_work_undone_fails(repo: Repository, rows: str) -> None:
    """A decorator in between hides from the declaration what it is."""

    async def later(t: Transaction, row: str) -> None:
        t.set(done, row, "done")

    def each(t: Transaction, row: str) -> Iterator[None]:
        yield t.set(done, row, "done")

    async def both(t: Transaction, row: str) -> AsyncIterator[None]:
        yield t.set(done, row, "done")

    for function in (later, each, both):
        traced = observer(contents, name="traced")(lambda t, row, f=function: f(t, row))
        for row in rows:
            write(repo, row, "text")
        Worker(repo, [traced], attempts=1, threads=1).run_until_idle()
        assert [one.cell.row.decode() for one in failures(repo)] == list(rows)
        [error] = {one.error for one in failures(repo)}
        assert "Make it a plain function" in error


def test_a_generator_that_has_begun_may_be_returned(repo: Repository) -> None:
    def begin(t: Transaction, row: str) -> object:
        rows = t.scan(docs)
        next(rows)
        return rows

    write(repo, "a", "text")
    Worker(repo, [observer(contents)(begin)], threads=1).run_until_idle()
    assert list(failures(repo)) == []


# --- Several observers of one column: none may answer for another -----------------------


def test_an_observer_that_keeps_conflicting_is_not_answered_for_by_the_next(
    ground: Ground, repo: Repository
) -> None:
    """It conflicts more often in a row than a worker is willing to try at once."""
    tries: list[str] = []

    @observer(contents)
    def unlucky(t: Transaction, row: str) -> None:
        tries.append(row)
        if len(tries) <= 20:
            t.get(done, row)
            repo.run(lambda other: other.set(done, row, "other"))
        t.set(done, row, "unlucky")

    lucky = observer(contents, name="lucky")(lambda t, row: t.set(linked, row, "lucky"))

    write(repo, "a", "x")
    drain(repo, unlucky, lucky)
    snapshot = repo.snapshot()
    assert (snapshot.get(done, "a"), snapshot.get(linked, "a")) == ("unlucky", "lucky")
    assert len(tries) == 21
    assert ground.left_over(docs, Kind.NOTIFY) == [
        ("docs['a'].linked", snapshot.version(linked, "a"))
    ]


@pytest.mark.parametrize("order", ["failing first", "failing last"])
def test_an_observer_that_is_dead_lettered_does_not_take_the_others_notification_along(
    ground: Ground, repo: Repository, order: str
) -> None:
    """The other one conflicts until then, and has its turn afterwards."""
    seen: list[str] = []

    @observer(contents)
    def failing(t: Transaction, row: str) -> None:
        raise ValueError("always")

    @observer(contents)
    def late(t: Transaction, row: str) -> None:
        if not list(failures(repo)):
            raise ConflictError(cell_of(contents, row), t.start_ts, t.start_ts, locked=True)
        seen.append(row)

    write(repo, "a", "x")
    group = [failing, late] if order == "failing first" else [late, failing]
    drain(repo, *group, attempts=3, first_wait=0.01, longest_wait=0.02)
    assert seen == ["a"]
    assert [(f.observer, f.attempts) for f in failures(repo)] == [("failing", 3)]
    assert ground.left_over(docs, Kind.NOTIFY) == []


def test_a_failing_observer_runs_the_others_once_and_not_again_and_again(repo: Repository) -> None:
    runs: list[str] = []

    @observer(contents)
    def failing(t: Transaction, row: str) -> None:
        raise ValueError("always")

    fine = observer(contents, name="fine")(lambda t, row: runs.append(row))

    for row in "abc":
        write(repo, row, "x")
    worker = drain(repo, failing, fine, attempts=3, first_wait=0.01, longest_wait=0.02)
    assert sorted(runs) == ["a", "b", "c"]
    assert worker.metrics.counts()["observer_runs"] == {"fine": 3}
    assert len(list(failures(repo))) == 3


def test_counters_and_histograms_of_an_observer_begin_at_zero(repo: Repository) -> None:
    # Prometheus sees no increase in one that appears with its first event.
    idle = observer(contents, name="idle")(lambda t, row: None)
    registry = Worker(repo, [idle], survey=15.0).metrics.registry
    counters = ("runs", "conflicts", "failures", "dead_lettered", "batches", "batches_split")
    for name in (*(f"{one}_total" for one in counters), "seconds_count", "latency_seconds_count"):
        assert registry.get_sample_value(f"percola_observer_{name}", {"observer": "idle"}) == 0, (
            name
        )


class _Reads(PassingStore):
    """Keeps the cells that were read."""

    def __init__(self, inner: OneStepStore) -> None:
        super().__init__(inner)
        self.cells: list[Cell] = []

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        self.cells += cells
        return self.inner.read(cells, ts)


@pytest.mark.parametrize("batch", [1, 8])
def test_an_observed_cell_is_read_once_and_a_run_sees_its_own_write_of_it(
    ground: Ground, batch: int
) -> None:
    store = _Reads(ground.store)
    repo = ground.repo(TABLES, store=store)
    found: dict[str, list[object]] = {}

    @observer(contents, batch=batch)
    def parse(t: Transaction, row: str) -> None:
        seen: list[object] = [t.get(contents, row), *t.get_many([(contents, row)])]
        if row in found:
            return  # Its own write is a change as well.
        t.get_for_update(contents, row)
        seen.append(t.get(contents, row))
        t.set(contents, row, "own")
        seen.append(t.get(contents, row))
        t.delete(contents, row)
        seen += [t.get(contents, row), *t.get_many([(contents, row), (contents, "other")])]
        t.set(contents, row, "own")
        found[row] = seen

    put_all(repo, contents, {"other": "first", "page": "second"})
    store.cells.clear()
    worker = Worker(repo, [parse], threads=1)
    worker.run_until_idle()
    assert found["page"][:4] == ["second", "second", "second", "own"]
    assert found["page"][4:6] == [None, None]
    read = [cell for cell in store.cells if cell.row == b"page" and cell.column == contents.key]
    assert len(read) <= 2 + 1, "once for each change, and once for update"
