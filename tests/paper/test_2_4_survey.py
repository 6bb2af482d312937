"""§2.4: what a worker's metrics tell of changes that wait, and how long answered ones have."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from holders import Holder
from stores import Ground, ScriptedClock, at_work, heard, notify, put_all

from percola import (
    ConflictingOptionsError,
    Repository,
    StoreError,
    Table,
    Transaction,
    Worker,
    observer,
)
from percola.cells import Kind
from percola.observers import survey as surveying
from percola.observers.draw_times import DrawTimes
from percola.observers.metrics import WorkerMetrics
from percola.observers.observer import Observer, Observers
from percola.observers.runner import Runner, WorkerOptions
from percola.observers.survey import Survey, Surveyed

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
links = docs.column("links", str, observed=True)
poke = docs.weak_column("poke")
TABLES = [docs]

QUICK: dict[str, Any] = {"attempts": 1, "first_wait": 0.001, "threads": 1}


def nothing(t: Transaction, row: str) -> None:
    """Do nothing."""


def fails(t: Transaction, row: str) -> None:
    raise ValueError(row)


def put(repo: Repository, column: Any, *rows: str) -> int:
    return put_all(repo, column, dict.fromkeys(rows, "text"))


def survey(repo: Repository, *observers: Observer[str]) -> Surveyed:
    one = Survey(repo.context, Observers(observers))
    one.look()
    one.end_turn()
    assert one.last is not None
    return one.last


def test_a_survey_counts_the_cells_that_wait_and_finds_the_oldest_change(repo: Repository) -> None:
    a, b = observer(contents, name="a")(nothing), observer(links, poke, name="b")(nothing)
    first = put(repo, contents, "m")
    second = put(repo, links, "z")
    put(repo, contents, "a", "m")
    notify(repo, poke, "a")
    found = survey(repo, a, b)
    assert (found.dirty, found.complete) == ({"a": 2, "b": 2}, True)
    assert found.oldest == {"a": first, "b": second}
    Worker(repo, [a, b], **QUICK).run_until_idle()
    found = survey(repo, a, b)
    assert (found.dirty, found.oldest) == ({"a": 0, "b": 0}, {})


def test_what_is_dead_lettered_or_handled_beside_a_paused_observer_does_not_wait(
    repo: Repository,
) -> None:
    a, b = observer(contents, name="a")(nothing), observer(contents, name="b")(nothing)
    dead = observer(contents, name="dead")(fails)
    repo.pause_observer(a)
    put(repo, contents, "x", "y")
    Worker(repo, [a, b, dead], **QUICK).run_until_idle()
    found = survey(repo, a, b, dead)
    assert found.dirty == {"a": 2, "b": 0, "dead": 0}
    assert found.dead == {"a": 0, "b": 0, "dead": 2}
    put(repo, contents, "x")
    assert survey(repo, a, b, dead).dirty == {"a": 2, "b": 1, "dead": 1}, "a newer change"


def test_a_survey_names_the_oldest_cell_and_counts_those_that_failed(repo: Repository) -> None:
    a, bad = observer(contents, name="a")(nothing), observer(links, name="bad")(fails)
    put(repo, contents, "m")
    put(repo, contents, "a")
    put(repo, links, "x", "y")
    options = WorkerOptions(attempts=2, first_wait=3_600, longest_wait=3_600)
    mine, metrics = Observers([a, bad]), WorkerMetrics()
    runs = Runner(repo.context, mine, metrics, options, random.Random(1))
    [dirty] = [cell for cell, _, _ in entries(repo) if cell.row == b"x"]
    runs.work_cell(dirty, [])
    found = survey(repo, a, bad)
    assert (found.oldest_cells["a"].row, found.oldest_cells["bad"].column) == (b"m", b"links")
    assert (found.dirty["bad"], found.retrying) == (2, {"bad": 1, "a": 0})


def test_a_survey_finds_the_oldest_lock(ground: Ground, repo: Repository) -> None:
    one = observer(contents, name="one")(nothing)
    assert survey(repo, one).oldest_lock is None
    holders = [Holder(ground, TABLES, contents, row) for row in "yx"]
    for holder in holders:
        holder.lock()
    assert survey(repo, one).oldest_lock == holders[0].start_ts


def test_a_survey_reads_a_bounded_part_and_says_so(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[object] = []
    store = heard(ground.store, scan_kind=lambda found, *where: scanned.extend(found[0]))
    monkeypatch.setattr(surveying, "COUNTED", 100)
    monkeypatch.setattr(surveying, "_STEP", 10)
    repo = ground.repo(TABLES, store=store)
    one = observer(contents, name="one")(nothing)
    put(repo, contents, *(f"{number:03}" for number in range(100)))
    assert survey(repo, one).complete
    put(repo, contents, *(f"{number:03}" for number in range(100, 300)))
    scanned.clear()
    found = survey(repo, one)
    assert (found.dirty["one"], found.complete) == (100, False)
    assert len(scanned) <= 111


def test_a_survey_counts_what_waits_behind_a_cell_with_very_many_changes(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that changes all the time has them beside a paused observer, which runs for none."""
    monkeypatch.setattr(surveying, "COUNTED", 100)
    scanned: list[object] = []
    store = heard(ground.store, scan_kind=lambda found, *where: scanned.extend(found[0]))
    repo = ground.repo(TABLES, store=store)
    hot = observer(contents, name="hot")(nothing)
    behind = observer(links, name="behind")(nothing)
    first = put(repo, links, "b", "c")
    for _ in range(150):
        put(repo, contents, "a")
    put(repo, contents, *(f"d{number:03}" for number in range(200)))
    scanned.clear()
    found = survey(repo, hot, behind)
    assert found.dirty == {"hot": 98, "behind": 2} and not found.complete
    assert found.oldest["behind"] == first
    assert len(scanned) <= 3 * surveying._STEP


def test_of_workers_with_the_same_observers_one_surveys_at_a_time(repo: Repository) -> None:
    a, b = observer(contents, name="a")(nothing), observer(links, name="b")(nothing)
    first, second = (Survey(repo.context, Observers([a, b])) for _ in range(2))
    other = Survey(repo.context, Observers([b]))
    for one in (first, second, other):
        one.look()
    assert first.last is not None and second.last is None
    assert other.last is not None, "it knows other observers"
    first.look()
    assert first.last is not None, "its turn lasts"
    first.end_turn()
    second.look()
    first.look()
    assert second.last is not None
    assert first.last is None, "what it found is not shown any more"
    second.end_turn()
    other.end_turn()


class Bench:
    """A runner by hand, whose runs take half a second each."""

    def __init__(self, ground: Ground, *names: str) -> None:
        self.clock = ScriptedClock()
        self.repo: Repository = ground.repo(TABLES, clock=self.clock)
        self.metrics, self.times = WorkerMetrics(), DrawTimes(self.clock)
        mine = Observers(observer(contents, name=name)(self._run) for name in names)
        self.runs = Runner(
            self.repo.context, mine, self.metrics, WorkerOptions(), random.Random(1), self.times
        )

    def _run(self, t: Transaction, row: str) -> None:
        self.clock.now += 0.5

    def latency(self, name: str) -> tuple[float | None, float | None]:
        """How many changes it has answered, and the sum of their latencies."""
        count, total = (
            self.metrics.registry.get_sample_value(
                f"percola_observer_latency_seconds_{what}", {"observer": name}
            )
            for what in ("count", "sum")
        )
        return count, total if total is None else round(total, 3)


def test_a_latency_is_from_the_oldest_change_that_a_run_answers_to_its_commit(
    ground: Ground,
) -> None:
    bench = Bench(ground, "one")
    bench.times.note(put(bench.repo, contents, "x"))
    bench.clock.now += 10
    bench.times.note(put(bench.repo, contents, "x"))
    bench.clock.now += 10
    [dirty] = {entry[0] for entry in entries(bench.repo)}
    bench.runs.work_cell(dirty, [])
    assert bench.latency("one") == (1, 20.5)
    put(bench.repo, contents, "x")
    bench.runs.work_cell(dirty, [])
    assert bench.latency("one") == (2, 21.0), "at least as long as the run"


def test_a_batch_has_a_latency_for_each_row(ground: Ground) -> None:
    bench = Bench(ground, "one")
    bench.times.note(put(bench.repo, contents, "a"))
    bench.clock.now += 60
    put(bench.repo, contents, "b")
    cells = sorted({entry[0] for entry in entries(bench.repo)})
    for _ in cells:  # A batch ends after a long run.
        ahead = iter(cells)
        bench.runs.work_batch(lambda most, ahead=ahead: [*islice(ahead, most)], [])
        cells = sorted({entry[0] for entry in entries(bench.repo)})
    assert bench.latency("one")[0] == 2
    assert 61.0 <= (bench.latency("one")[1] or 0) <= 61.5


def test_observers_of_one_column_count_from_its_newest_change(ground: Ground) -> None:
    """The older ones may be answered: the entries stay for another observer."""
    bench = Bench(ground, "a", "b")
    bench.times.note(put(bench.repo, contents, "x"))
    bench.clock.now += 10
    bench.times.note(put(bench.repo, contents, "x"))
    bench.clock.now += 10
    [dirty] = {entry[0] for entry in entries(bench.repo)}
    bench.runs.work_cell(dirty, [])
    assert (bench.latency("a"), bench.latency("b")) == ((1, 10.5), (1, 11.0))


def entries(repo: Repository) -> list[Any]:
    return repo.context.store.scan_kind(Kind.NOTIFY, "docs")[0]


def test_a_worker_that_surveys_exports_what_it_finds(
    ground: Ground, repo: Repository, wait_until: Callable[..., object]
) -> None:
    a, dead = observer(contents, name="a")(nothing), observer(links, name="dead")(fails)
    repo.pause_observer(a)
    put(repo, contents, "x", "y")
    put(repo, links, "x")
    worker = Worker(repo, [a, dead], **QUICK, survey=0.01, retention=3600.0)

    def value(name: str, observer: str = "") -> float | None:
        labels = {"observer": observer} if observer else {}
        return worker.metrics.registry.get_sample_value(f"percola_{name}", labels)

    assert value("observer_dirty_cells", "a") is None
    assert value("gc_retention_seconds") == 3600
    with at_work(worker):

        def dead_lettered() -> bool:
            # A survey between the two mutations' reads sees the change twice.
            found = value("observer_dead_letters", "dead"), value("observer_dirty_cells", "dead")
            return found == (1, 0)

        wait_until(dead_lettered, what="a survey")
        assert value("observer_paused", "a") == 1
        assert value("observer_paused", "dead") == 0
        assert value("observer_dirty_cells", "a") == 2
        assert value("survey_complete") == 1
        wait_until(lambda: (value("observer_oldest_change_seconds", "a") or 0) > 0, what="an age")
        assert value("observer_oldest_change_seconds", "dead") == 0
        wait_until(lambda: (value("gc_safe_point_age_seconds") or 0) > 0, what="an age")
        repo.resume_observer(a)
        wait_until(lambda: value("observer_dirty_cells", "a") == 0, what="its answers")
        assert value("observer_latency_seconds_count", "a") == 2
    with pytest.raises(ConflictingOptionsError, match="survey must be None or more than 0"):
        Worker(repo, [a], survey=0)


def test_after_a_survey_that_failed_its_worker_tells_nothing_and_another_one_may_survey(
    ground: Ground, repo: Repository
) -> None:
    """What was found before would hide for hours that nobody knows: the alert is about that."""
    fails = False

    def answer(found: object, *where: object) -> None:
        if fails:
            raise StoreError("the store does not answer")

    one = observer(contents, name="one")(nothing)
    other = ground.repo(TABLES, store=heard(ground.store, scan_kind=answer))
    first, second = (Survey(made.context, Observers([one])) for made in (other, repo))
    first.look()
    assert first.last is not None
    fails = True
    with pytest.raises(StoreError, match="does not answer"):
        first.look()
    assert first.last is None
    second.look()
    assert second.last is not None
    second.end_turn()


def test_dead_letters_are_not_read_where_that_takes_a_scan_of_whole_tables(
    ground: Ground,
) -> None:
    """Fifteen seconds later the next survey would begin, and the scan of a large table goes on."""
    read: list[Kind] = []
    store = heard(ground.store, scan_kind=lambda _, kind, *__: read.append(kind))
    store.has_notify_table = True
    one = observer(contents, name="one")(fails)
    repo = ground.repo(TABLES, store=store)
    put(repo, contents, "x")
    read.clear()
    found, metrics = survey(repo, one), WorkerMetrics()
    assert found.dirty == {"one": 1}
    assert Kind.NOTIFY in read and not {Kind.LOCK, Kind.FAILED} & set(read)
    metrics.watch_survey(["one"], lambda: (), lambda: (found, DrawTimes(ScriptedClock())), None)
    value = metrics.registry.get_sample_value
    assert value("percola_observer_dirty_cells", {"observer": "one"}) == 1
    assert value("percola_observer_dead_letters", {"observer": "one"}) is None


DAY = 86_400.0


def watched(safe_point: int) -> tuple[ScriptedClock, DrawTimes, Callable[[], float | None]]:
    """A clock, the times of timestamps by it, and how old the metrics say the safe point is."""
    clock, metrics = ScriptedClock(), WorkerMetrics()
    times = DrawTimes(clock)
    metrics.watch_survey([], lambda: (), lambda: (Surveyed(safe_point=safe_point), times), DAY)
    get, name = metrics.registry.get_sample_value, "percola_gc_safe_point_age_seconds"
    return clock, times, lambda: get(name)


def test_the_safe_point_of_a_repository_at_rest_does_not_grow_old() -> None:
    """It is the newest timestamp, so that nothing is kept, and the alert would be for nothing."""
    clock, times, age = watched(safe_point=10)
    times.note(10)
    clock.now += 3 * DAY
    assert age() == 0
    times.note(11)
    clock.now += DAY
    times.note(12)
    assert age() == DAY, "what was superseded at 11 has been kept since then"


def test_what_was_never_collected_grows_old() -> None:
    """As where a snapshot or a hold of the first day is kept: else no alert would tell of it."""
    clock, times, age = watched(safe_point=0)
    times.note(0)
    clock.now += 3 * DAY
    assert age() == 0, "nothing was written"
    times.note(1)
    clock.now += 3 * DAY
    assert age() == 3 * DAY


def test_a_worker_without_surveys_exports_none(repo: Repository) -> None:
    one = observer(contents, name="one")(nothing)
    put(repo, contents, "x")
    worker = Worker(repo, [one], **QUICK)
    worker.run_until_idle()
    names = {metric.name for metric in worker.metrics.registry.collect() if metric.samples}
    assert "percola_observer_runs" in names
    assert not names & {"percola_observer_latency_seconds", "percola_observer_dirty_cells"}
