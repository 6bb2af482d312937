"""The arithmetic that the benchmarks' figures rest on, and that both sides do the same work."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import lmdb
import pytest
from rich.console import Console

import percola
from benchmarks import __main__ as main
from benchmarks import (
    calls,
    chain,
    checker,
    clusters,
    exporters,
    fig7,
    fig8_lmdb,
    fleet,
    locked_cells,
    maintenance,
    measure,
    repeated,
    stages,
    tpch_recipes,
)
from benchmarks.articles import Judged
from benchmarks.corpus import CorpusError, given
from benchmarks.crawl import crawled_again, multiplied, recaptured, sample, write_warc
from benchmarks.fig8_lmdb import OPERATIONS, ROWS, _cut
from benchmarks.measure import (
    Comparison,
    Distribution,
    compare,
    cpu_seconds,
    parse_sizes,
    percentile,
    shares,
    throughput,
)
from benchmarks.postgres import PeerError
from benchmarks.processes import StageError
from benchmarks.stages import Stage, Stages
from percola import PercolaError, Table
from percola.cells import Op, decode_write
from percola.ranges import HERE
from percola.store.memory import MemoryStore
from percola.store.walks import scan_writes
from webindex import tables
from webindex.crawl.warc import Capture, read_captures
from webindex.load.transaction import load_captures
from webindex.page.pages import Page, parse


def test_the_ratio_is_the_median_of_the_pairs_and_not_the_ratio_of_the_medians() -> None:
    # The machine is slow in the second pair, for both.
    found = Comparison(raw=[100.0, 10.0, 100.0], percola=[50.0, 5.0, 40.0])
    assert found.ratios == [0.5, 0.5, 0.4]
    assert found.ratio == 0.5
    assert found.to_json()["percola_per_second"] / found.to_json()["raw_per_second"] == 0.4


def test_half_of_the_pairs_lie_in_the_middle_half() -> None:
    found = Comparison(raw=[1.0] * 5, percola=[0.5, 0.1, 0.6, 9.0, 0.4])
    assert found.middle == (0.4, 0.6)


def test_neither_of_the_two_always_goes_first() -> None:
    order = []

    def rate(name: str, value: float) -> float:
        order.append(name)
        return value

    found = Comparison()
    compare(4, lambda: rate("raw", 4.0), lambda: rate("percola", 1.0), found)
    assert order == ["raw", "percola", "percola", "raw"] * 2
    assert found.raw == [4.0] * 4
    assert found.percola == [1.0] * 4


def test_throughput_counts_the_time_in_which_one_process_worked_alone() -> None:
    assert throughput([(100, 5.0, 6.0), (100, 5.0, 6.0)]) == 200
    assert throughput([(100, 5.0, 6.0), (100, 6.0, 7.0)]) == 100


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 1), (0.5, 50), (0.951, 96), (0.99, 99), (1.0, 100)]
)
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(
    share: float, expected: float
) -> None:
    assert percentile(range(1, 101), share) == expected


def test_the_percentiles_of_one_value_are_that_value_and_of_none_there_are_none() -> None:
    assert Distribution.of([7.0]) == Distribution(1, 7.0, 7.0, 7.0, 7.0)
    assert Distribution.of([]) is None


def test_percentiles_do_not_depend_on_the_order_of_the_values() -> None:
    found = Distribution.of([float(one * 37 % 101) for one in range(101)])
    assert found == Distribution(101, 50.0, 95.0, 99.0, 100.0)


def test_shares_add_up_to_one_and_those_of_nothing_are_none() -> None:
    assert shares({"a": 3.0, "b": 1.0}) == {"a": 0.75, "b": 0.25}
    assert shares({"a": 0.0}) == {"a": 0.0}


def test_what_no_stage_took_was_spent_looking_for_work() -> None:
    stages = Stages(10, seconds=8.0, by_name={"a": Stage(1, 2.0, 1.0), "b": Stage(1, 0.5, 0.5)})
    assert stages.scanning == 4.0
    assert stages.parts() == {"a": 3.0, "b": 1.0, "looking for work": 4.0}
    assert sum(stages.parts().values()) == stages.seconds


def test_sizes_are_read_as_bytes_and_lines_without_a_size_are_left_out() -> None:
    text = (
        "55d0-7ffd ---p 0000 00:00 0   [rollup]\nRss:    2048 kB\nAnonymous:  12 kB\nName:\tkB x\n"
    )
    assert parse_sizes(text) == {"Rss": 2048 * 1024, "Anonymous": 12 * 1024}


def test_processor_time_is_found_behind_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    fields = " ".join(str(one) for one in range(3, 30))
    assert cpu_seconds(f"17 (a b) 1 (c) S {fields[2:]}") == pytest.approx((14 + 15) / 100)


def test_an_exporters_processor_time_is_that_of_its_export_and_not_of_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent = [5.0]
    monkeypatch.setattr(exporters, "time", SimpleNamespace(process_time=lambda: spent[0]))
    monkeypatch.setattr(exporters.os, "sched_setaffinity", lambda *_: None)
    for name in ("open_repository", "OpenSearchIndex", "export_to", "Worker"):
        monkeypatch.setattr(exporters, name, MagicMock())
    working = exporters.Worker.return_value.run_until_idle  # type: ignore[attr-defined]
    working.side_effect = lambda: spent.append(spent.pop() + 2.0)
    pipe = MagicMock()
    exporters._export(pipe, "repository", "url", {0})
    assert [one.args for one in pipe.send.call_args_list] == [("ready",), (2.0,)]


def test_nothing_of_the_benchmark_computes_beside_an_idle_fleet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside: list[list[threading.Thread]] = []

    def look(*_: object) -> fleet.Jobs:
        beside.append([one for one in threading.enumerate() if one not in before])
        if len(beside) == 2:
            raise StageError("That was all.")
        return fleet.Jobs(1, 1.0, 1.0, 1.0, (1, 1), 1.0)

    monkeypatch.setattr(measure, "OUTPUT", tmp_path)
    monkeypatch.setattr(fleet, "measure", look)
    monkeypatch.setattr(fleet, "measure_jobs", look)
    before = threading.enumerate()
    with pytest.raises(StageError, match="That was all"):
        fleet.run(Console(quiet=True), quick=True)
    assert beside == [[], []]


def test_figures_of_an_earlier_run_stay_if_there_is_no_room_for_new_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_text = Path.write_text

    def full(path: Path, text: str) -> int:
        write_text(path, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(measure, "OUTPUT", tmp_path)
    kept = measure.write_json("one", {"figures": [1, 2, 3]})
    before = kept.read_text()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        measure.write_json("one", {"figures": [4, 5, 6]})
    assert kept.read_text() == before
    assert list(tmp_path.iterdir()) == [kept]
    for name in main.NAMES:  # Nor do tables in Markdown.
        text = Path(main.__file__).with_name(f"{name}.py").read_text()
        assert ".write_text(words)" not in text, name


def test_a_run_of_another_size_or_on_other_stores_leaves_the_figures_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (measure, fig7, locked_cells):
        monkeypatch.setattr(module, "OUTPUT", tmp_path)
    comparison = MagicMock()
    comparison.return_value.documents.keys.return_value = [(1, 2, 3)]
    monkeypatch.setattr(fig7, "Comparison", comparison)
    monkeypatch.setattr(fig7.fig7_percola, "Clustering", MagicMock())
    finish = MagicMock()
    monkeypatch.setattr(fig7, "finish", finish)
    for documents in (None, 1000):
        fig7.run(Console(quiet=True), quick=True, documents=documents)
    assert [one.args[3] for one in finish.call_args_list] == ["fig7-quick", "fig7-1000-quick"]
    for name in ("opened", "measure", "table", "plot"):
        monkeypatch.setattr(locked_cells, name, MagicMock())
    locked_cells.measure.return_value = []  # type: ignore[attr-defined]
    console = Console(quiet=True)
    locked_cells.run(console, quick=False)
    locked_cells.run(console, quick=False, stores=["memory", "LMDB"])
    locked_cells.run(console, quick=False, stores=["HBase"])
    found = {one.name for one in tmp_path.glob("*.json")}
    assert found == {"locked_cells.json", "locked_cells-hbase.json"}


def test_workers_of_tpch_that_have_ended_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tpch_recipes, "EXAMPLE", tmp_path)  # There is no module queries.
    monkeypatch.setattr(tpch_recipes, "_WAIT_SECONDS", 60)
    with (
        percola.open(tmp_path / "repo", [Table("docs")]) as repo,
        pytest.raises(PeerError, match="workers have ended with exit code 1; their error"),
        tpch_recipes._workers(tmp_path / "repo", repo),
    ):
        pass


def test_pages_that_are_not_held_out_do_not_stand_in_for_packages_that_cannot_be_had() -> None:
    judged = Judged("https://one.example/", 0.5, 0.5)
    page = repeated.Page("one", held_out=False, whole=judged, shown=judged, changed=True)
    told = repeated.report({"as served": [page]}, {"other": "apt does not know it"})
    assert "held out" not in told
    assert "Not to be had: other: apt does not know it." in told


def test_maintenance_on_hbase_begins_warm_and_nothing_is_done_twice_to_a_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[tuple[str, str]] = []

    def rate(name: str, address: str, target: str, rows: int, *, spark: bool) -> float:
        done.append((name, target if name == "copy" else address))
        return 2.0 + len(done) if spark else 1.0

    monkeypatch.setattr(measure, "OUTPUT", tmp_path)
    monkeypatch.setattr(maintenance, "_rate", rate)
    monkeypatch.setattr(maintenance, "STEPS", ())
    monkeypatch.setattr(maintenance, "fill", MagicMock())
    cluster = MagicMock()
    cluster.return_value.__enter__.return_value = SimpleNamespace(address="hbase")
    monkeypatch.setattr(maintenance, "small_cluster", cluster)
    monkeypatch.setattr(maintenance, "OracleProcess", MagicMock())
    maintenance.run(Console(quiet=True), quick=True)
    assert len(done) == len(set(done)) == 3 + 2 + 2
    figures = json.loads((tmp_path / "maintenance-quick.json").read_text())["figures"]
    assert [one["spark"] for one in figures.values()] == [5.0, 7.0, 9.0]


@pytest.mark.parametrize("name", maintenance.STEPS)
def test_maintenance_is_measured_only_if_it_was_about_all_rows(tmp_path: Path, name: str) -> None:
    maintenance.fill(tmp_path / "repo", 50)
    address, target = str(tmp_path / "repo"), str(tmp_path / "target")
    assert maintenance.step(name, address, target, HERE) == 50
    told = MagicMock(returncode=0, stdout=json.dumps({"rows": 49, "seconds": 2.0}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "subprocess", MagicMock(run=MagicMock(return_value=told)))
        assert maintenance._rate(name, address, target, 49, spark=True) == 24.5
        with pytest.raises(PercolaError, match=f"{name} by Spark of .* about 49 rows, .* are 50"):
            maintenance._rate(name, address, target, 50, spark=True)


def test_a_quick_run_of_the_checkers_leaves_the_figures_of_a_whole_one_and_tells_their_own_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "OUTPUT", tmp_path)
    monkeypatch.setattr(checker, "QUICK", 100)
    for one in list(checker.CASES)[1:]:
        monkeypatch.delitem(checker.CASES, one)
    (tmp_path / "checker.json").write_text("a whole run")
    before = b"x" * 400_000_000  # What other benchmarks have used in this process.
    checker.run(Console(quiet=True), quick=True)
    assert (tmp_path / "checker.json").read_text() == "a whole run"
    found = json.loads((tmp_path / "checker-quick.json").read_text())
    assert "conditions" in found
    assert 10 < found["figures"]["by timestamps"]["megabytes"] < len(before) / 1e6


@pytest.mark.parametrize(
    ("error", "foreseen"),
    [
        (StageError("The pages cannot be cloned."), True),
        (OSError(errno.ENOSPC, "No space left on device", "/a/[b]/data"), True),
        (lmdb.DiskError("mdb_txn_commit: Input/output error"), False),
    ],
)
def test_a_benchmark_that_fails_does_not_keep_the_next_ones_from_running(
    error: Exception,
    foreseen: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = []

    def run(console: Console, *, quick: bool) -> None:
        ran.append(quick)
        if len(ran) == 1:
            raise error

    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    monkeypatch.setattr(main.importlib, "import_module", lambda _: SimpleNamespace(run=run))
    assert main.main(["--quick", "articles", "checker"]) == 1
    assert ran == [True, True]
    said = capsys.readouterr().err
    assert f"Error: articles: {error}" in said and "Failed: articles." in said
    assert ("Traceback" in said) != foreseen
    assert main.main(["--quick", "articles", "checker"]) == 0


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_that_is_ended_leaves_no_folder_behind(told: signal.Signals) -> None:
    program = """if True:
        import signal, sys
        from types import SimpleNamespace
        from benchmarks import __main__ as main
        from benchmarks.measure import temporary_folder

        def run(console, *, quick):
            with temporary_folder() as folder:
                print(folder, flush=True)
                signal.pause()

        main.importlib.import_module = lambda _: SimpleNamespace(run=run)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Under nohup it is ignored.
        sys.exit(main.main(["checker"]))
    """
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir() and folder.name.startswith("tmp-")
        process.send_signal(told)
        ended = process.wait()
    left = folder.exists()
    if left:
        folder.rmdir()
    assert (ended, left) == (130, False)


def test_the_figures_of_all_benchmarks_that_measure_come_with_the_conditions() -> None:
    for name in main.NAMES.keys() - {"scale"}:
        text = Path(main.__file__).with_name(f"{name}.py").read_text()
        assert "conditions()" in text and "output_name(" in text, name


def test_the_locked_cells_have_a_lock_only_record_for_each_of_so_many_transactions() -> None:
    with percola.open("memory:", [locked_cells._table]) as repo:
        for locks in (0, 7):
            locked_cells.fill(repo, locks)
        for locks in (0, 7):
            cells, _ = scan_writes(
                repo.context.store,
                "cells",
                f"{locks:07}/".encode(),
                f"{locks:07}0".encode(),
                limit=1000,
            )
            found = {
                (cell.row.decode(), cell.column): Counter(
                    decode_write(raw).op for _, raw in records
                )
                for cell, records in cells
            }
            assert len({row for row, _ in found}) == locked_cells.ROWS
            row = locked_cells.row_of(locks)
            assert found[row, b"value"] == Counter({Op.PUT: 1, Op.LOCK: locks})
            assert found.get((row, b"version"), Counter()) == Counter({Op.LOCK: locks})
            assert sum(one[Op.LOCK] for one in found.values()) == 2 * locks


@pytest.mark.long
def test_what_locked_cells_cost_is_measured_beside_each_number_of_locks() -> None:
    with percola.open("memory:", [locked_cells._table]) as repo:
        lines = locked_cells.measure(repo, "memory", (2, 5), 3, 0.0, Console(quiet=True))
    assert [line.operation for line in lines] == [*locked_cells.READS, locked_cells.COMMIT]
    for line in lines:
        assert [len(one.ratios) for one in line.compared.values()] == [3, 3]
    line = locked_cells.Line("memory", "get", {9: Comparison(raw=[100.0] * 2, percola=[50.0] * 2)})
    assert line.cost(9) == 2.0, "half as many a second take twice as long"
    assert line.microseconds() == 10_000.0


# --- The same work ------------------------------------------------------------------------


def test_both_stores_are_asked_for_the_same_rows_in_the_same_order() -> None:
    rows = list(range(0, ROWS, 7))
    for name in OPERATIONS:
        raw = str(_cut(rows, f"raw {name}")).replace("b'", "'")
        assert raw == str(_cut(rows, name))


def parsed(capture: Capture) -> Page:
    headers = capture.headers
    return parse(capture.body, capture.url, headers.get("content-type") or capture.content_type)


@pytest.fixture(scope="module")
def pages() -> list[Capture]:
    return [one for one in sample() if 200 <= one.status < 300]


@pytest.mark.parametrize("lacks", ["", "raw", "percola"])
def test_reads_that_do_not_find_what_was_written_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacks: str
) -> None:
    monkeypatch.setattr(fig8_lmdb, "ROWS", 1000)
    monkeypatch.setattr(fig8_lmdb, "RENEWED", 100)
    fig8_lmdb.fill(tmp_path)
    if lacks:
        shutil.rmtree(tmp_path / lacks)
        found: Any = pytest.raises(PercolaError, match="1,000 of 2,000 reads did not find")
    else:
        found = nullcontext()
    with found, fig8_lmdb.open_player(0, 1, str(tmp_path), "relaxed") as play:
        assert play("read", 0.01)[0] > 0


def test_a_changed_page_that_is_not_taken_ends_the_steady_pass(
    monkeypatch: pytest.MonkeyPatch, pages: list[Capture]
) -> None:
    monkeypatch.setattr(chain, "wait_until_idle", lambda *_: None)
    with percola.open("memory:", tables.SCHEMA) as repo:
        load_captures(repo, [pages[0], recaptured(pages[1], "Later.", hours=2)], "crawl")
        figures = chain.Figures()
        chain._steady(repo, MagicMock(), pages[:1], 1e9, figures)
        assert figures.steady_rate > 0
        with pytest.raises(chain.ChainError, match="was not taken as newer"):
            chain._steady(repo, MagicMock(), pages[1:2], 1e9, figures)


def have_fail(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Have an observer that a benchmark builds fail on every change."""
    build = module.build_observers

    def fail(*_: object) -> None:
        raise LookupError

    def observers(index: Any) -> list[Any]:
        return [replace(one, function=fail) if one.name == name else one for one in build(index)]

    monkeypatch.setattr(module, "build_observers", observers)


@pytest.mark.parametrize("fails", ["", "assemble"])
def test_stages_are_told_only_if_no_observer_has_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pages: list[Capture], fails: str
) -> None:
    have_fail(monkeypatch, stages, fails)
    wrong: Any = pytest.raises(StageError, match="1 changes were dead-lettered")
    with wrong if fails else nullcontext():
        assert stages.measure_stages(tmp_path, pages[:1]).pages == 1


@pytest.mark.parametrize("lacks", ["", "join"])
def test_changes_are_measured_in_a_cluster_of_so_many_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacks: str
) -> None:
    build = clusters.build_observers
    monkeypatch.setattr(
        clusters, "build_observers", lambda index: [o for o in build(index) if o.name != lacks]
    )
    for module in (measure, clusters):
        monkeypatch.setattr(module, "OUTPUT", tmp_path / "build" / "benchmarks")
    monkeypatch.setattr(clusters, "SIZES", (10,))
    wrong: Any = pytest.raises(PercolaError, match=r"The cluster has . pages and not 10")
    with wrong if lacks else nullcontext():
        clusters.run(Console(quiet=True), quick=True)


@pytest.mark.parametrize("fails", ["", "assemble"])
def test_calls_are_told_only_if_all_work_was_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pages: list[Capture], fails: str
) -> None:
    monkeypatch.setattr(calls, "sample", lambda: pages[:4])
    have_fail(monkeypatch, calls, fails)
    store = MemoryStore()
    wrong: Any = pytest.raises(StageError, match=r"[1-9] cells are still dirty, and .* failed")
    with wrong if fails else nullcontext():
        found = calls.measure(store, store, tmp_path / "index", 1, (False, False))
        assert found.bulk.documents == 4 and found.trickle.documents == 1


def test_each_copy_has_the_duplicates_and_links_of_the_sample_and_no_page_of_another(
    pages: list[Capture],
) -> None:
    def shape(copy: list[Page]) -> tuple[list[int], list[int], Counter[bool]]:
        """Sizes of clusters, links of each page, and how many lead to a page of the crawl."""
        known = {one.url for one in copy}
        inside = Counter(link.url in known for one in copy for link in one.links)
        clusters = Counter(one.text_hash for one in copy)
        return sorted(clusters.values()), [len(one.links) for one in copy], inside

    copies = list(multiplied(pages, 2))
    first, second = (
        [parsed(one) for one in half] for half in (copies[: len(pages)], copies[len(pages) :])
    )
    originals = [parsed(one) for one in pages]
    expected = shape(originals)
    assert expected[2][True] > 1000
    assert shape(first) == shape(second) == expected
    assert not {one.url for one in first} & {one.url for one in second}
    assert not {one.text_hash for one in first} & {one.text_hash for one in second}
    for one in first:
        for other in second:
            if one.sketch and other.sketch and one.heading == other.heading:
                assert not one.sketch.is_near(other.sketch)
    # The sentence is in English, and one page has few words of its own.
    differ = sum(one.language != two.language for one, two in zip(originals, first, strict=True))
    assert differ <= len(pages) / 100


def test_absolute_links_within_the_crawl_lead_to_the_same_copy_and_others_stay_as_they_are(
    pages: list[Capture],
) -> None:
    host = urlsplit(pages[0].url).netloc
    body = f'<body><a href="https://{host}/a">A</a><a href="https://example.org/">B</a>'.encode()
    (_, copy) = multiplied([replace(pages[0], body=body)], 2)
    assert [one.url for one in parsed(copy).links] == [
        f"https://copy01.{host}/a",
        "https://example.org/",
    ]


def test_a_multiplied_crawl_is_read_back_from_its_file_as_it_was(
    pages: list[Capture], tmp_path_factory: pytest.TempPathFactory
) -> None:
    written = list(multiplied(pages[:20], 2))
    path = tmp_path_factory.mktemp("crawl") / "crawl.warc.gz"
    write_warc(path, written)
    read = list(read_captures(path))
    assert all(isinstance(one, Capture) for one in read)
    for theirs, ours in zip(read, written, strict=True):
        assert isinstance(theirs, Capture)
        assert (theirs.url, theirs.status, theirs.body) == (ours.url, ours.status, ours.body)
        assert theirs.headers == ours.headers
        assert theirs.date == ours.date.replace(microsecond=0)


def test_a_recaptured_page_is_later_with_new_text_and_the_same_links(pages: list[Capture]) -> None:
    for before in pages[::20]:
        after = recaptured(before, "Something new.")
        assert after.date > before.date
        assert parsed(after).text_hash != parsed(before).text_hash
        assert parsed(after).links == parsed(before).links
        assert urlsplit(after.url) == urlsplit(before.url)


def test_copies_of_other_numbers_are_other_pages(pages: list[Capture]) -> None:
    few = pages[:5]
    first, later = list(multiplied(few, 1)), list(multiplied(few, 1, first=7))
    assert not {one.url for one in first} & {one.url for one in later}
    assert [one.url for one in later] == [one.url for one in multiplied(few, 8)][35:]


def test_a_later_crawl_changes_all_bytes_and_every_so_many_texts(pages: list[Capture]) -> None:
    few = pages[:12]
    later = list(crawled_again([*few, replace(few[0], status=404)], changed=4))
    assert [one.url for one in later] == [one.url for one in few]
    assert all(new.body != old.body for new, old in zip(later, few, strict=True))
    assert all(new.date > old.date for new, old in zip(later, few, strict=True))
    changed = [
        parsed(new).text_hash != parsed(old).text_hash for new, old in zip(later, few, strict=True)
    ]
    assert changed == [number % 4 == 0 for number in range(12)]


def test_a_part_of_a_crawl_is_runs_of_neighbours_from_all_over_it(
    pages: list[Capture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.corpus.SMALL", 20)
    monkeypatch.setattr("benchmarks.corpus._RUN", 5)
    monkeypatch.setattr("benchmarks.corpus._beside", lambda folder, copies: folder / "beside")
    crawl, folder = tmp_path / "crawl", tmp_path / "made"
    crawl.mkdir()
    folder.mkdir()
    for number in range(2):
        write_warc(crawl / f"crawl-{number:03}.warc.gz", pages[40 * number : 40 * number + 40])
    write_warc(crawl / "recrawl-000.warc.gz", pages[:3])
    found = given(crawl, folder)
    assert found.real
    assert [one.name for one in found.crawl] == ["crawl-000.warc.gz", "crawl-001.warc.gz"]
    assert found.small is not None
    small = [one.url for one in read_captures(found.small) if isinstance(one, Capture)]
    runs = [pages[start : start + 5] for start in range(0, 80, 4 * 5)]
    assert small == [one.url for run in runs for one in run]


def test_a_folder_without_a_crawl_or_its_later_crawl_is_refused_in_a_sentence(
    pages: list[Capture], tmp_path: Path
) -> None:
    with pytest.raises(CorpusError, match=r"holds no crawl-\*\.warc\.gz"):
        given(tmp_path, tmp_path)
    write_warc(tmp_path / "crawl-000.warc.gz", pages[:1])
    with pytest.raises(CorpusError, match=r"holds no recrawl-\*\.warc\.gz"):
        given(tmp_path, tmp_path)
