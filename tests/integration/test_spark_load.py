"""`webindex load` on a real Spark: what is loaded, what survives, and what the user sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_processes import children, kill_all, python_workers
from warc_files import HTML, Crawl, page, pages

import percola
from percola import Repository
from percola.inspection import notifications
from webindex import tables
from webindex.crawl.warc import Capture, NotAWarcError, Rejected, read_captures
from webindex.errors import LoadError
from webindex.load.job import Progress, load
from webindex.load.report import LoadReport
from webindex.load.transaction import Loaded
from webindex.page.urls import page_row
from webindex.sample import CHANGED_URL, OLDER_URL, recrawl_path, sample_path

Load = Callable[..., LoadReport]
Wait = Callable[..., object]


@pytest.fixture
def load_here(spark: SparkSession, folder: Path) -> Load:
    def run(*files: Path, **options: Any) -> LoadReport:
        return load(folder, files, spark=spark, quiet=True, **options)

    return run


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    with percola.open(folder, schema=tables.SCHEMA) as opened:
        yield opened


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crawl that takes a few seconds to load."""
    path = tmp_path_factory.mktemp("crawl") / "crawl.warc.gz"
    path.write_bytes(pages(2000, size=4000).data)
    return path


def content(repo: Repository) -> dict[str, tuple[dict[str, Any], bytes]]:
    """What is loaded, without the time at which it was."""
    return {
        row.key: ({**row[tables.capture], "loaded_ms": 0}, row[tables.body])
        for row in repo.snapshot().scan(tables.pages, columns=[tables.capture, tables.body])
    }


def found(*paths: Path) -> tuple[list[Capture], list[Rejected]]:
    """What the reader finds in files, without Spark."""
    records = [record for path in paths for record in read_captures(path)]
    return (
        [one for one in records if isinstance(one, Capture)],
        [one for one in records if isinstance(one, Rejected)],
    )


# --- What is loaded -----------------------------------------------------------------------


def test_every_capture_of_the_sample_is_loaded_and_the_rest_is_counted(
    load_here: Load, repo: Repository
) -> None:
    report = load_here(sample_path())
    assert (report.loaded.written, report.loaded.same, report.loaded.older) == (206, 0, 0)
    assert report.rejected == {"damaged": 1, "not a page": 1}
    assert report.skipped == {"warcinfo": 1, "request": 1}
    assert report.retried == 0
    captures, rejected = found(sample_path())
    assert report.messages == [f"{sample_path()} {one}" for one in rejected]
    loaded = content(repo)
    assert {capture["url"] for capture, _ in loaded.values()} == {one.url for one in captures}
    statuses = sorted(capture["status"] for capture, _ in loaded.values())
    assert statuses == [200] * 204 + [301, 404]
    assert repo.pending() == {"pages.capture": 206}


def test_the_report_is_kept_in_the_journal_and_can_be_printed(
    load_here: Load, repo: Repository
) -> None:
    report = load_here(sample_path())
    [kept] = repo.snapshot().scan(tables.journal, prefix="load/")
    assert kept[tables.report] == report.to_json()
    rows = dict(report.rows())
    assert rows["Loaded"] == "206 of 206 captures, from 1 file (0.8 MB)"
    assert rows["Rejected records"] == "2: 1 damaged, 1 not a page"


def test_server_errors_are_not_kept_and_unchanged_pages_cause_no_work(
    load_here: Load, repo: Repository, tmp_path: Path
) -> None:
    crawl = Crawl()
    for n in range(4):
        crawl.add(f"https://example.org/{n}", page(n))
    first = tmp_path / "first.warc.gz"
    first.write_bytes(crawl.data)
    load_here(first)
    before = (content(repo), list(notifications(repo)))

    found = repo.snapshot().get(tables.capture, page_row("https://example.org/3"))
    assert found is not None
    digest = found["payload"]
    later = Crawl()
    for n, status in enumerate(("503 Busy", "429 Slow down", "304 Not Modified")):
        later.add(f"https://example.org/{n}", b"", status=status, WARC_Date="2024-02-01T00:00:00Z")
    later.add(
        *("https://example.org/3", b""),
        kind="revisit",
        http=HTML,
        WARC_Payload_Digest=digest,
        WARC_Date="2024-02-01T00:00:00Z",
    )
    second = tmp_path / "second.warc.gz"
    second.write_bytes(later.data)
    report = load_here(second)
    assert report.loaded == Loaded(unavailable=2, unchanged=2)
    assert not report.rejected and not report.skipped
    assert (content(repo), list(notifications(repo))) == before
    rows = dict(report.rows())
    assert rows["Loaded"].startswith("0 of 2 captures")
    assert rows["Say nothing of a page"].startswith("2: ")
    assert rows["Reported as unchanged"] == "2"
    revisited = repo.snapshot().get(tables.revisited, page_row("https://example.org/3"))
    assert revisited is not None
    [kept] = revisited["reports"]
    assert (kept["date"], kept["payload"]) == ("2024-02-01T00:00:00.000000Z", digest)


def test_loading_the_same_again_changes_nothing_and_notifies_nobody(
    load_here: Load, repo: Repository
) -> None:
    load_here(sample_path())
    before = (content(repo), list(notifications(repo)))
    again = load_here(sample_path())
    assert (again.loaded.written, again.loaded.same, again.loaded.older) == (0, 206, 0)
    assert (content(repo), list(notifications(repo))) == before


@pytest.mark.parametrize("together", [True, False])
def test_the_newest_capture_wins_whatever_order_files_come_in(
    load_here: Load, repo: Repository, together: bool
) -> None:
    if together:
        load_here(recrawl_path(), sample_path())
    else:
        load_here(recrawl_path())
        report = load_here(sample_path())
        assert (report.loaded.written, report.loaded.older) == (205, 1)
    loaded = content(repo)
    assert len(loaded) == 206
    changed, _ = loaded[page_row(CHANGED_URL)]
    older, _ = loaded[page_row(OLDER_URL)]
    assert (changed["file"], older["file"]) == (str(recrawl_path()), str(sample_path()))


def test_of_damaged_files_everything_else_is_loaded(
    load_here: Load, repo: Repository, tmp_path: Path
) -> None:
    data = sample_path().read_bytes()
    damaged, cut_off = tmp_path / "damaged.warc.gz", tmp_path / "cut-off.warc.gz"
    damaged.write_bytes(data[:100_000] + bytes(3000) + data[103_000:])
    cut_off.write_bytes(data[:300_001])
    captures, rejected = found(damaged, cut_off)
    report = load_here(damaged, cut_off, recrawl_path())
    assert report.files == 3
    assert report.captures == len(captures) + 2
    assert report.rejected.total() == len(rejected)
    assert report.rejected["cut off by the end of the file"] == 1
    assert any(one.startswith(f"{cut_off} at byte ") for one in report.messages)
    urls = {capture["url"] for capture, _ in content(repo).values()}
    assert urls == {one.url for one in captures} | {CHANGED_URL, OLDER_URL}


def test_a_folder_stands_for_the_warc_files_in_it(
    load_here: Load, repo: Repository, tmp_path: Path
) -> None:
    crawls = tmp_path / "crawls"
    crawls.mkdir()
    for name in ("a.warc.gz", "b.warc"):
        (crawls / name).write_bytes(pages(3, gzip=name.endswith("gz")).data)
    (crawls / "notes.txt").write_text("no WARC file")
    report = load_here(crawls, crawls / "a.warc.gz")
    assert (report.files, report.captures) == (2, 6)
    with pytest.raises(NotAWarcError, match=r"has no \.warc or \.warc\.gz file"):
        load_here(tmp_path)


def test_if_one_file_is_no_warc_file_nothing_is_loaded(
    load_here: Load, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "page.html"
    other.write_text("<html>")
    with pytest.raises(NotAWarcError, match=r"page\.html is not a WARC.*Nothing was loaded"):
        load_here(sample_path(), other)
    with pytest.raises(NotAWarcError, match=r"There is no file .*missing.* 1 more of the files"):
        load_here(tmp_path / "missing.warc.gz", sample_path(), other)
    assert not folder.exists()


def test_however_a_file_is_cut_the_repository_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    contents = []
    totals = []
    for part_bytes in (64 << 10, 1 << 40):
        steps: list[Progress] = []
        place = tmp_path / str(part_bytes)
        load(place, [sample_path()], spark=spark, part_bytes=part_bytes, progress=steps.append)
        totals.append(steps[-1].total)
        with percola.open(place, schema=tables.SCHEMA) as repo:
            contents.append(content(repo))
    assert totals[0] >= 10 and totals[1] == 1
    assert contents[0] == contents[1]


# --- What survives ------------------------------------------------------------------------


@pytest.fixture
def killing(spark: SparkSession, repo: Repository, wait_until: Wait) -> Callable[..., None]:
    """Runs a load while its worker processes are killed: once in the middle, or always."""

    def run(job: Callable[[], None], *, always: bool) -> None:
        over = threading.Event()
        killed: list[int] = []

        def kill() -> None:
            wait_until(lambda: over.is_set() or repo.pending().get("pages.capture", 0) > 100)
            while not over.is_set() and (always or not killed):
                killed.extend(kill_all(python_workers(spark)))
                over.wait(0.01)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            job()
        finally:
            over.set()
            killer.join()
        assert killed

    return run


def test_when_the_processes_of_tasks_are_killed_nothing_is_lost_or_doubled(
    load_here: Load,
    repo: Repository,
    crawl: Path,
    killing: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    reports = []
    # One task: what is there when it is killed is of its own making, and not of one that has ended.
    killing(lambda: reports.append(load_here(crawl, part_bytes=1 << 40)), always=False)
    [report] = reports
    assert report.retried >= 1
    assert report.loaded.same >= 32  # What the killed ones had committed.
    assert report.captures == 2000
    loaded = content(repo)
    assert {capture["url"] for capture, _ in loaded.values()} == {
        f"https://example.org/{n}" for n in range(2000)
    }
    assert all(len(repo.versions(tables.capture, row)) == 1 for row in loaded)
    assert len(list(notifications(repo))) == 2000
    assert capfd.readouterr() == ("", "")


def test_when_processes_die_again_and_again_the_load_says_so_and_can_be_resumed(
    load_here: Load, repo: Repository, crawl: Path, killing: Callable[..., None]
) -> None:
    def job() -> None:
        with pytest.raises(LoadError) as caught:
            load_here(crawl)
        assert "died again and again" in str(caught.value)
        assert "run the same load again" in str(caught.value)
        assert "\n" not in str(caught.value)

    killing(job, always=True)
    # A task that was given up may go on for a moment: what it writes is there already, too.
    there = len(content(repo))
    assert 0 < there < 2000
    rest = load_here(crawl)
    assert (rest.captures, len(content(repo))) == (2000, 2000)
    assert rest.loaded.same >= there


def test_a_file_that_vanishes_ends_the_load_with_a_sentence_and_what_was_loaded(
    load_here: Load, repo: Repository, tmp_path: Path
) -> None:
    doomed = tmp_path / "doomed.warc.gz"
    doomed.write_bytes(pages(5).data)

    def remove(progress: Progress) -> None:
        if progress.total:
            doomed.unlink(missing_ok=True)

    with pytest.raises(LoadError) as caught:
        load_here(sample_path(), doomed, progress=remove)
    assert str(caught.value).startswith(f"The load ended early: There is no file {doomed}.")
    assert "206 captures were loaded" in str(caught.value)
    assert len(content(repo)) == 206
    [kept] = repo.snapshot().scan(tables.journal, prefix="load/")
    assert kept[tables.report]["error"].startswith("There is no file")


def test_a_repository_that_vanishes_ends_the_load_with_a_sentence(
    load_here: Load, folder: Path
) -> None:
    def move(progress: Progress) -> None:
        if progress.total and folder.exists():
            folder.rename(folder.with_name("elsewhere"))

    with pytest.raises(LoadError, match=r"ended early: There is no repository at .*repo\."):
        load_here(sample_path(), progress=move)


def test_an_unexpected_failure_in_a_task_is_one_sentence_with_its_cause(
    load_here: Load, repo: Repository
) -> None:
    row = page_row(CHANGED_URL)
    repo.run(lambda t: t.set(tables.capture, row, {"not": "a capture"}))
    with pytest.raises(LoadError, match=r"^Spark gave up .*: KeyError: 'date'\. What is") as caught:
        load_here(sample_path())
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


def test_a_repository_in_memory_is_refused(spark: SparkSession) -> None:
    with pytest.raises(LoadError, match="one process only"):
        load("memory:", [sample_path()], spark=spark)


# --- What the user sees -------------------------------------------------------------------


def webindex(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """The command, in a process group of its own as a shell would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "webindex.cli.main", *map(str, arguments)],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_command_prints_its_report_and_not_a_word_of_spark(
    java_home: Path, folder: Path, tmp_path: Path
) -> None:
    # Not even an installation of Spark that others use has a say.
    (tmp_path / "spark-defaults.conf").write_text("spark.master yarn\nnonsense here\n")
    process = webindex(
        *("load", "--repo", folder, sample_path()),
        SPARK_HOME=str(tmp_path),
        SPARK_CONF_DIR=str(tmp_path),
    )
    said, complained = process.communicate(timeout=180)
    assert complained == ""
    assert process.returncode == 0
    assert said.splitlines()[0].split("  ")[0] == "Loaded"
    assert len(said.splitlines()) == 6
    assert "\x1b" not in said
    assert not [path for path in Path.cwd().glob("*") if path.name in LEFT_BEHIND]


LEFT_BEHIND = {"artifacts", "derby.log", "metastore_db", "spark-warehouse"}


def test_ctrl_c_ends_the_load_and_spark_at_once_and_leaves_what_was_loaded(
    java_home: Path, load_here: Load, folder: Path, repo: Repository, crawl: Path, wait_until: Wait
) -> None:
    process = webindex("load", "--repo", folder, crawl)
    try:
        wait_until(lambda: repo.pending().get("pages.capture", 0) > 100, seconds=60)
        [jvm] = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        said, complained = process.communicate(timeout=180)
    finally:
        process.kill()
    assert (process.returncode, said, complained.strip()) == (1, "", "Aborted!")
    with pytest.raises(ProcessLookupError):
        os.kill(jvm, 0)
    assert list(repo.snapshot().scan(tables.journal)) == []
    rest = load_here(crawl)
    assert rest.loaded.same > 100
    assert (rest.captures, len(content(repo))) == (2000, 2000)


def test_without_java_the_command_says_how_to_get_one(folder: Path) -> None:
    process = webindex("load", "--repo", folder, sample_path(), PATH="", JAVA_HOME="")
    said, complained = process.communicate(timeout=180)
    assert (process.returncode, said) == (1, "")
    assert complained.startswith("Error: Spark needs Java 17 or newer, but neither JAVA_HOME nor")
    assert complained.count("\n") == 1
