"""What the benchmark `index` looks at processes and pages with, and what it makes of that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from stores import at_work

import percola
from benchmarks.arrivals import Arrival, Beside, arrive, one_at_a_time, pages_of
from benchmarks.clocked import Clock, Clocked, Ran, Work, observed, read_notes, total
from benchmarks.crawl import recaptured, sample
from benchmarks.index_figures import Figures, Filled, Point, Recrawled, Stage, curve
from benchmarks.index_plot import rates
from benchmarks.index_report import report
from benchmarks.markdown import table
from benchmarks.processes import (
    Footprint,
    StageError,
    Usage,
    command,
    descendants,
    parent_of,
    role_of,
    until,
    watched,
)
from percola import Repository, Transaction, Worker, observer
from webindex import tables
from webindex.crawl.warc import Capture, Revisit
from webindex.load.transaction import load_captures
from webindex.page.urls import normalise, page_row
from webindex.serving.tantivy.index import TantivyIndex
from webindex.workers.processes import build_observers

# --- What workers come to -----------------------------------------------------------------


def test_the_work_of_a_stretch_is_the_difference_of_what_was_written_down() -> None:
    before = Work(1.0, 2.0, {"a": Ran(runs=3, transactions=1, cpu=0.5)})
    after = Work(9.0, 5.0, {"a": Ran(runs=10, transactions=3, cpu=2.0), "b": Ran(runs=1, cpu=0.5)})
    found = after - before
    assert found.cpu == 3.0
    assert found.observers["a"] == Ran(runs=7, transactions=2, cpu=1.5)
    assert found.observers["b"] == Ran(runs=1, cpu=0.5)
    assert (found.runs, found.transactions, found.rest) == (8, 2, 1.0)
    assert (before + found).observers["a"].runs == 10


def test_a_process_that_died_counts_with_its_last_whole_line(tmp_path: Path) -> None:
    dead, alive = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    lines = [json.dumps(Work(at, at, {"a": Ran(runs=at)}).to_json()) for at in (1.0, 2.0, 3.0)]
    dead.write_text(f"{lines[0]}\n{lines[1]}\n{lines[2][:20]}")
    alive.write_text("".join(f"{line}\n" for line in lines))
    notes = read_notes([dead, alive])
    assert total(notes).observers["a"].runs == 2 + 3
    assert total(notes, at=1.5).observers["a"].runs == 1 + 1
    assert total(notes, at=0.5) == Work()


def test_a_clocked_observer_counts_a_batch_as_one_transaction_of_many_runs() -> None:
    words = percola.Table("words")
    due = words.weak_column("due")
    seen: set[str] = set()

    def see(t: Transaction, row: str) -> None:
        seen.add(row)

    clock = Clock()
    with percola.open("memory:", schema=[words]) as repo:
        rows = [f"{number:02}" for number in range(20)]

        def notify(t: Transaction) -> None:
            for row in rows:
                t.notify(due, row)

        repo.run(notify)
        one = observed(observer(due, name="see", batch=32, defer=0.5)(see), clock)
        assert isinstance(one, Clocked) and (one.batch, one.defer) == (32, 0.5)
        worker = Worker(repo, [one], threads=1)
        worker.run_until_idle()
        found = clock.work(worker).observers["see"]
    assert seen == set(rows)
    assert found.runs == 20
    assert 1 <= found.transactions < 5
    assert found.cpu > 0 and found.clock > 0


# --- Processes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"/usr/bin/python\0-m\0benchmarks.clocked\0--repo\0x\0", "worker"),
        (b"/usr/lib/jvm/bin/java\0-cp\0webindex.main\0", "Spark's JVM"),
        (b"python3\0-m\0pyspark.daemon\0pyspark.worker\0", "task of Spark"),
        (b"python3\0-m\0webindex.spark_daemon\0pyspark.worker\0", "task of Spark"),
        (b"python3\0-m\0webindex.main\0rank\0", "driver"),
        (b"/bin/javac\0", None),
        (b"", None),
    ],
)
def test_a_process_is_called_by_what_it_was_started_as(line: bytes, expected: str | None) -> None:
    assert role_of(line) == expected


def test_the_parent_of_a_process_is_found_behind_any_name() -> None:
    assert parent_of("17 (a ) b) S 4 17 17 0") == 4


@pytest.fixture
def busy_child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds 50 MB of its own, has computed, and counts as a driver."""
    code = (
        "import time; held = bytearray(b'x') * 50_000_000\n"
        "while time.process_time() < 0.2: pass\n"
        "print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "webindex.cli.main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def test_memory_and_processor_time_of_what_was_started_are_seen(
    busy_child: subprocess.Popen[bytes],
) -> None:
    with watched() as usage:
        assert busy_child.stdout is not None
        busy_child.stdout.readline()
        assert busy_child.pid in descendants(parent_of(Path("/proc/self/stat").read_text()))
    driver = usage.by_role["driver"]
    assert 50_000_000 <= driver.own <= driver.resident
    assert driver.own <= usage.own
    assert driver.own <= usage.mapped
    assert 0.1 <= usage.cpu("driver") == usage.cpu("driver", "worker")


def test_processor_time_from_before_does_not_count(busy_child: subprocess.Popen[bytes]) -> None:
    assert busy_child.stdout is not None
    busy_child.stdout.readline()
    with watched() as usage:
        pass
    assert usage.by_role["driver"].own >= 50_000_000
    assert usage.cpu("driver") < 0.1


def test_a_command_that_fails_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    turns = []
    with pytest.raises(StageError, match=r"exit code 1: .*There is no repository at"):
        command(
            "search", "--repo", str(tmp_path / "none"), "word", meanwhile=lambda: turns.append(1)
        )
    assert len(turns) > 10


def test_waiting_ends_with_an_error_once_nothing_moves() -> None:
    turns = iter(range(100))
    until(lambda: next(turns) == 5, lambda: 0, timeout=60, every=0)
    with pytest.raises(StageError, match="for 0 s none was done"):
        until(lambda: False, lambda: 0, timeout=0, every=0)
    moving = iter(range(100))
    until(lambda: next(turns) == 50, lambda: next(moving), timeout=0, every=0)
    assert next(moving) > 40


# --- How late a page is known -------------------------------------------------------------


Chain = tuple[Repository, TantivyIndex]


@pytest.fixture(scope="module")
def pages() -> list[Capture]:
    return [one for one in sample() if 200 <= one.status < 300][:12]


@pytest.fixture
def chain(pages: list[Capture], tmp_path: Path) -> Iterator[Chain]:
    """A web index of a few pages, worked off."""
    with (
        percola.open("memory:", schema=tables.SCHEMA) as repo,
        TantivyIndex(tmp_path / "serving") as index,
    ):
        load_captures(repo, pages, "a.warc")
        Worker(repo, build_observers(index), threads=2).run_until_idle()
        yield repo, index


def test_pages_to_change_are_as_they_were_loaded(pages: list[Capture], chain: Chain) -> None:
    repo, _ = chain
    found = pages_of(repo, 6, seed=1)
    assert len(found) == 6
    assert found == pages_of(repo, 6, seed=1) != pages_of(repo, 6, seed=2)
    known = {normalise(one.url): one for one in pages}
    for one in found:
        assert one.body == known[one.url].body
        assert one.date == known[one.url].date


def test_a_page_reported_unchanged_changes_after_that(pages: list[Capture], chain: Chain) -> None:
    repo, _ = chain
    [page] = pages_of(repo, 1, seed=1)
    [digest] = [one.payload_digest for one in pages if normalise(one.url) == page.url]
    assert digest is not None
    later = page.date + timedelta(days=30)
    load_captures(repo, [Revisit(page.url, later, digest, 0, 0)], "b.warc")
    [again] = pages_of(repo, 1, seed=1)
    assert (again.url, again.date) == (page.url, later)
    assert arrive(repo, recaptured(again, "A sentence more.")).assembled is None


def test_a_page_whose_text_no_sentence_changes_is_not_one_to_change(pages: list[Capture]) -> None:
    with percola.open("memory:", schema=tables.SCHEMA) as repo, TemporaryDirectory() as folder:
        bare = [replace(one, body=re.sub(rb"<body[^>]*>", b"", one.body)) for one in pages[:4]]
        load_captures(repo, [*bare, *pages[4:6]], "a.warc")
        with TantivyIndex(folder) as index:
            Worker(repo, build_observers(index), threads=1).run_until_idle()
        found = {one.url for one in pages_of(repo, 6, seed=1)}
    assert found == {normalise(one.url) for one in pages[4:6]}


def test_a_changed_page_has_its_document_before_it_is_found(chain: Chain) -> None:
    repo, index = chain
    pages = pages_of(repo, 3, seed=1)

    def rest() -> None:
        until(repo.is_idle, lambda: repo.snapshot().start_ts, timeout=60, every=0.005)

    began = time.perf_counter()
    with at_work(Worker(repo, build_observers(index), threads=2)):
        arrivals = one_at_a_time(repo, index, pages, rest, timeout=60)
    took = (time.perf_counter() - began) * 1000
    for one in arrivals:
        assert one.assembled is not None and one.found is not None
        assert 0 < one.assembled <= one.found < took
        joined = repo.snapshot().get(tables.joined, page_row(one.url))
        assert joined is not None
        shown = index.get(joined["cluster"])
        assert shown is not None
        assert "of a page at rest." in shown.text or shown.url != one.url


def test_a_page_is_found_only_once_search_has_this_document_of_it(chain: Chain) -> None:
    repo, index = chain
    [page] = pages_of(repo, 1, seed=1)
    one = arrive(repo, recaptured(page, "A sentence more."))
    assert not one.look(repo.snapshot(), index)
    assert one.assembled is None
    observers = build_observers(index)
    before = [each for each in observers if each.name != "export"]
    Worker(repo, before, threads=1).run_until_idle()
    assert not one.look(repo.snapshot(), index)
    assert one.assembled is not None
    Worker(repo, observers, threads=1).run_until_idle()
    assert one.look(repo.snapshot(), index)
    assert one.found is not None and one.found > one.assembled


def test_pages_come_beside_a_load_only_once_it_has_begun_and_are_all_found(
    pages: list[Capture], chain: Chain
) -> None:
    repo, index = chain
    beside = Beside(repo, index, pages_of(repo, 3, seed=1), every=0.5)
    beside.step()
    assert not beside.arrivals
    repo.run(lambda t: t.notify(tables.outbox_ready, tables.exports.window_of(t.start_ts, "any")))
    beside.step()
    assert beside.arrivals
    assert not beside.look()
    with at_work(Worker(repo, build_observers(index), threads=2)):
        until(beside.look, lambda: repo.snapshot().start_ts, timeout=60)
    assert len(beside.arrivals) == 3


# --- Figures and tables -------------------------------------------------------------------


def stage(name: str, cpu: float = 10.0, **fields: object) -> Stage:
    work = Work(0.0, cpu, {"parse": Ran(runs=100, transactions=50, cpu=cpu / 2)})
    usage = Usage({"task of Spark": Footprint(10, 20, 30, 2.0)}, own=10**9, mapped=2 * 10**9)
    report = {"loaded": {"written": 5, "unchanged": 1}}
    found = Stage(name, report, 5.0, 0.0, 3.0, 20.0, work, usage)
    for key, value in fields.items():
        setattr(found, key, value)
    return found


def filled(pages: int, cpu: float) -> Filled:
    return Filled(stage("load", cpu), pages + 1, pages, 5000, 700, 90, 80, 10**6, 10**5)


def test_growth_compares_the_cost_of_a_page_and_not_of_the_crawl() -> None:
    figures = Figures(whole=filled(1000, 28.0))
    assert figures.growth is None
    figures.small = filled(100, 0.5)
    assert figures.whole is not None
    assert figures.whole.ms_per_page == pytest.approx(30.0)
    assert figures.growth == pytest.approx(0.2)
    assert figures.whole.pages_per_second == 50


def test_work_saved_is_what_everything_from_nothing_takes_besides() -> None:
    found = Recrawled(stage("recrawl", 2.0, seconds=5.0), True, 1, 2, 3, stage("load", 14.0))
    assert found.saved == pytest.approx(0.75)
    assert found.saved_seconds == pytest.approx(0.75)


def test_a_difference_or_a_failed_observer_is_an_error_after_all_stages() -> None:
    figures = Figures(whole=filled(1000, 28.0))
    figures.check()
    judged = {"invariant": 5, "name": "clusters", "checked": True, "compared": 9, "differing": 0}
    figures.stages = [stage("verify", report={"invariants": [judged]})]
    figures.check()
    figures.stages[0].report["invariants"] = [{**judged, "differing": 2}]
    with pytest.raises(StageError, match=r"'verify' differ: 5 \(clusters, 2 rows\)"):
        figures.check()
    figures.stages = [stage("rank", dead_lettered=1)]
    with pytest.raises(StageError, match="After stage 'rank', 1 changes were dead-lettered"):
        figures.check()


def test_a_rate_is_of_the_stretch_since_the_last_point() -> None:
    curve = [Point(at, 0, pages, 0, 0.0) for at, pages in ((1, 0), (2, 10), (3, 12), (5, 40))]
    assert rates(curve, "parsed", points=4) == [(10, 5.0), (40, 10.0)]
    assert rates(curve, "found") == []
    assert rates([], "found") == []


def test_how_a_load_went_is_told_second_by_second_from_what_it_left(chain: Chain) -> None:
    repo, _ = chain
    stored = repo.snapshot().scan(tables.pages, columns=[tables.capture])
    began = min(row[tables.capture]["loaded_ms"] for row in stored) / 1000 - 1
    now = time.time()
    notes = [
        [
            Work(at, at - began, {"parse": Ran(runs=runs)})
            for at, runs in ((began + 0.9, 3), (now, 7))
        ],
        [Work(began + 1.1, 0.5, {"parse": Ran(runs=2)})],
    ]
    found = curve(repo, notes, 0, began)
    assert [one.seconds for one in found] == list(range(1, len(found) + 1))
    assert found[-1].seconds > now - began
    assert (found[0].parsed, found[0].found) == (3, 0)
    assert (found[-1].parsed, found[-1].loaded, found[-1].found) == (9, 12, 12)


def test_the_report_has_a_table_for_each_thing_that_was_measured_and_for_no_other() -> None:
    assert report(Figures()) == ""
    figures = Figures(2, "crawl", small=filled(100, 0.5), whole=filled(1000, 28.0))
    short = report(figures)
    assert "| Growth of the cost a page" in short and "+20%" in short
    assert "recrawl" not in short and "p99" not in short
    figures.recrawl = Recrawled(stage("recrawl"), True, 1, 2, 3, stage("load"))
    figures.trickle = [Arrival("a", 1, 0.0, assembled=7.0, found=9.0)]
    judged = {"invariant": 5, "name": "clusters", "checked": False, "compared": 0, "differing": 0}
    figures.stages = [stage("rank"), stage("verify", report={"invariants": [judged]})]
    whole = report(figures)
    assert "| A real recrawl" in whole
    assert "7.0 (< 15)" in whole
    assert "not checked" in whole
    assert [one.name for one in figures.all_stages] == ["load", "rank", "verify", "recrawl"]
    assert json.dumps(figures.to_json())


def test_a_table_is_aligned_and_a_bar_in_a_cell_ends_no_cell() -> None:
    lines = table(["Name", "a", "b"], [["x|y", "1"], ["long name", "22", "333"]]).splitlines()
    assert lines[0] == "| Name      |   a |   b |"
    assert lines[1] == "| --------- | --: | --: |"
    assert lines[2] == "| x\\|y      |   1 |     |"
    with pytest.raises(ValueError, match="3 cells in a table of 2"):
        table(["a", "b"], [["1", "2", "3"]])
