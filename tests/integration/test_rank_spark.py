"""`webindex rank` on a real Spark: what it ranks, what it survives, and what the user sees."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from children import Child
from click.testing import CliRunner
from link_graphs import Web, edges, put, random_web, ranks, written
from pyspark.sql import SparkSession
from spark_processes import children, kill_all, python_workers, terminal

import percola
from percola import Repository, Transaction, inspection
from percola.spark import jobs as spark_jobs
from webindex import tables
from webindex.cli.rank import rank_command
from webindex.page.urls import page_row
from webindex.ranking import distributed
from webindex.ranking.job import RankError, rank
from webindex.ranking.report import RankReport
from webindex.ranking.writing import begin
from webindex.spark.jobs import Progress

Wait = Callable[..., object]

MANY = random_web(2500, seed=3)
SOME = random_web(300, seed=4)


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    with percola.open(folder, schema=tables.SCHEMA, durability="relaxed") as opened:
        yield opened


@pytest.fixture
def rank_here(spark: SparkSession, folder: Path) -> Callable[..., RankReport]:
    def run(**options: Any) -> RankReport:
        return rank(folder, spark=spark, quiet=True, **options)

    return run


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is shown so often that the middle of a step is not missed."""
    monkeypatch.setattr(spark_jobs, "_POLL_SECONDS", 0.01)


def values(repo: Repository, web: Web) -> dict[str, float]:
    found = written(repo)
    return {url: found[page_row(url)][0] for url in web.live}


# --- What is ranked -----------------------------------------------------------------------


def test_the_ranks_are_those_of_the_equations_and_the_report_says_how_it_went(
    repo: Repository, rank_here: Callable[..., RankReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(repo, SOME)
    report = rank_here(tolerance=1e-9)
    assert values(repo, SOME) == pytest.approx(ranks(SOME), abs=2e-6)
    assert {run for _, run in written(repo).values()} == {report.run}
    assert (report.pages, report.written, report.gone) == (300, 300, 0)
    assert report.edges == len(edges(SOME))
    assert report.converged and report.residual <= 1e-9 and 20 < report.iterations < 150
    assert (report.error, report.retried) == (None, 0)
    [kept] = repo.snapshot().scan(tables.journal, prefix="rank/")
    assert (kept.key, kept[tables.report]) == (f"rank/{report.run:020}", report.to_json())
    rows = dict(report.rows())
    assert rows["Pages"] == f"300, with {report.edges:,} links between them"
    assert "Not converged" not in rows


@pytest.mark.long
def test_a_second_run_writes_nothing_and_blocks_in_tasks_come_to_the_very_same(
    repo: Repository, rank_here: Callable[..., RankReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(repo, SOME)
    report = rank_here(tolerance=1e-2)
    with repo.snapshot() as snapshot:
        before = snapshot.start_ts
    steps: list[Progress] = []
    monkeypatch.setattr(distributed, "_EDGES_A_BLOCK", report.edges // 4)
    again = rank_here(tolerance=1e-2, epsilon=0.0, progress=steps.append)
    done = {step.done for step in steps if step.step == "Iterating"}
    assert done == set(range(1, again.iterations + 1))
    assert (again.written, again.residual) == (0, report.residual)
    assert {run for _, run in written(repo).values()} == {report.run}
    # It began, and it reported: besides that there was no transaction.
    began = {repo.versions(tables.rank_run, f"{byte:02x}")[0][0] for byte in range(256)}
    reported = repo.versions(tables.report, f"rank/{again.run:020}")[0][0]
    with repo.snapshot() as snapshot:
        assert sorted({*began, reported}) == list(range(before + 1, snapshot.start_ts + 1))


def test_an_empty_repository_has_no_ranks_and_too_few_iterations_are_told(
    repo: Repository, rank_here: Callable[..., RankReport]
) -> None:
    nothing = rank_here()
    assert (nothing.pages, nothing.iterations, nothing.written) == (0, 0, 0)
    assert nothing.converged
    put(repo, SOME)
    report = rank_here(most_iterations=2)
    assert (report.iterations, report.converged, report.written) == (2, False, 300)
    assert "Not converged" in dict(report.rows())


def change_everything(pipe: Connection, address: str) -> tuple[int, int]:
    """In another process: no page links to anything any more, and what was is collected."""
    with percola.open(address, schema=tables.SCHEMA) as repo:
        for url in SOME.live:
            repo.run(lambda t, url=url: t.set(tables.links, page_row(url), []))  # type: ignore[misc]
        collected = repo.collect_garbage(retention=0)
        with repo.snapshot() as snapshot:
            return collected.safe_point, snapshot.start_ts


def test_what_changes_while_it_runs_is_not_in_it_even_if_garbage_is_collected(
    repo: Repository, rank_here: Callable[..., RankReport], folder: Path
) -> None:
    put(repo, SOME)
    repo.close()
    found: list[tuple[int, int]] = []

    def change(progress: Progress) -> None:
        if progress.step == "Reading pages" and not found:
            with Child(change_everything, str(folder)) as child:
                found.append(child.hear())

    report = rank_here(progress=change, tolerance=1e-9)
    [(safe_point, latest)] = found
    # It collected all that the run does not need.
    assert 0 < safe_point <= report.run < latest - 300
    with percola.open(folder, schema=tables.SCHEMA) as after:
        assert values(after, SOME) == pytest.approx(ranks(SOME), abs=2e-6)


def test_the_ranks_of_pages_that_are_newer_than_the_run_are_estimated_again(
    repo: Repository, rank_here: Callable[..., RankReport]
) -> None:
    put(repo, SOME)
    new = page_row("https://new.example/")
    arrived: list[int] = []

    def arrive(t: Transaction) -> int:
        t.set(tables.fingerprint, new, {"url": "https://new.example/"})
        t.set(tables.rank, new, {"value": 0.15, "run": 1, "interim": True})
        return t.start_ts

    def change(progress: Progress) -> None:
        if progress.step == "Reading pages" and not arrived:
            arrived.append(repo.run(arrive))

    rank_here(progress=change)
    assert repo.pending()["inlinks.changed"] == 1
    assert inspection.is_dirty(repo, tables.inlinks_changed, new)
    linking = {source for source, _ in edges(SOME)}
    with repo.snapshot() as now:
        kept = {url: now.get(tables.rank, page_row(url)) for url in SOME.live}
    assert {url for url, rank in kept.items() if rank and rank.get("links")} == linking
    # The next run has read it, and nothing is left to be estimated.
    rank_here()
    assert repo.pending()["inlinks.changed"] == 1
    with repo.snapshot() as now:
        rank_of_new = now.get(tables.rank, new)
    assert rank_of_new is not None and "interim" not in rank_of_new


# --- What it survives ---------------------------------------------------------------------


@pytest.mark.long
def test_a_run_that_is_overtaken_before_it_writes_says_so_and_leaves_the_newer_ranks(
    repo: Repository, rank_here: Callable[..., RankReport]
) -> None:
    put(repo, SOME)
    newer: list[RankReport] = []

    def overtake(progress: Progress) -> None:
        if progress.step == "Writing" and not newer:
            # A page more, so that the ranks of the two differ.
            put(repo, Web({"https://more.example/": [(url, "follow") for url in SOME.live]}))
            newer.append(rank_here())

    with pytest.raises(RankError) as caught:
        rank_here(progress=overtake)
    assert str(caught.value) == (
        "The rank run ended early: a newer rank run has begun, and this one has ended. "
        "0 ranks were written; they stay."
    )
    assert newer[0].written == 301
    assert {run for _, run in written(repo).values()} == {newer[0].run}
    reports = [row[tables.report] for row in repo.snapshot().scan(tables.journal, prefix="rank/")]
    assert [one["error"] is None for one in reports] == [False, True]


@pytest.mark.long
def test_a_run_that_is_overtaken_in_the_middle_of_writing_writes_nothing_after_that(
    repo: Repository, rank_here: Callable[..., RankReport], looks_often: None
) -> None:
    put(repo, MANY)
    begun: list[int] = []

    def overtake(progress: Progress) -> None:
        if progress.step == "Writing" and not begun and written(repo):
            with repo.snapshot() as snapshot:
                begun.append(snapshot.start_ts)
            begin(repo, begun[0])
            begun.append(repo.snapshot().start_ts)

    with pytest.raises(RankError, match="a newer rank run has begun"):
        rank_here(progress=overtake)
    _, at = begun
    commits = [repo.versions(tables.rank, row)[0][0] for row in written(repo)]
    assert 0 < len(commits) < len(MANY.live)
    assert max(commits) < at
    # The newest rank run ranks everything.
    assert rank_here().written >= len(MANY.live) - len(commits)
    assert len(written(repo)) == len(MANY.live)


@pytest.mark.long
def test_when_the_processes_of_tasks_are_killed_in_the_middle_of_writing_nothing_is_lost(
    repo: Repository,
    rank_here: Callable[..., RankReport],
    spark: SparkSession,
    looks_often: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    put(repo, MANY)
    killed: list[int] = []
    before: list[int] = []

    def kill(progress: Progress) -> None:
        if progress.step == "Writing" and not killed and (there := len(written(repo))):
            before.append(there)
            killed.extend(kill_all(python_workers(spark)))

    report = rank_here(progress=kill)
    assert killed and 0 < before[0] < len(MANY.live)
    assert report.retried >= 1
    assert report.written == len(MANY.live) == len(written(repo))
    assert {len(repo.versions(tables.rank, row)) for row in written(repo)} == {1}
    again = rank_here(epsilon=0.0)
    assert again.written == 0
    assert capfd.readouterr() == ("", "")


def test_a_repository_that_vanishes_ends_the_run_with_a_sentence(
    repo: Repository, rank_here: Callable[..., RankReport], folder: Path
) -> None:
    put(repo, SOME)

    def move(progress: Progress) -> None:
        if progress.step == "Reading pages" and folder.exists():
            folder.rename(folder.with_name("elsewhere"))

    with pytest.raises(
        RankError, match=r"^The rank run ended early: Spark gave up on it: There is no repository"
    ) as caught:
        rank_here(progress=move)
    assert "\n" not in str(caught.value)


# --- What the user sees -------------------------------------------------------------------


@pytest.mark.long
def test_the_command_prints_its_report(repo: Repository, spark: SparkSession) -> None:
    put(repo, SOME)
    shown = CliRunner().invoke(rank_command, ["--repo", repo.address])
    assert shown.exit_code == 0, shown.output
    assert [line.split("  ")[0] for line in shown.output.splitlines()] == [
        *("Pages", "Iterations", "Written", "Time")
    ]
    assert "300 ranks that moved by more than 0.01" in shown.output
    shown = CliRunner().invoke(rank_command, ["--repo", repo.address, "--json", "--epsilon", "0"])
    assert json.loads(shown.output)["written"] == 0


@pytest.mark.long
def test_ctrl_c_ends_the_run_and_spark_at_once_and_another_run_does_it_all(
    java_home: Path, repo: Repository, rank_here: Callable[..., RankReport], wait_until: Wait
) -> None:
    put(repo, MANY)
    with terminal("-c", COMMAND, "--repo", repo.address) as process:
        # Begun, and with most of its work to come.
        wait_until(lambda: begun(repo) or process.poll() is not None, seconds=100)
        [jvm] = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        said, complained = process.communicate(timeout=180)
    assert (process.returncode, said, complained.strip()) == (1, "", "Aborted!")
    with pytest.raises(ProcessLookupError):
        os.kill(jvm, 0)
    assert list(repo.snapshot().scan(tables.journal)) == []
    rank_here()
    assert len(written(repo)) == len(MANY.live)


def begun(repo: Repository) -> bool:
    """Whether a run has claimed the last shard."""
    return repo.snapshot().get(tables.rank_run, "ff") is not None


COMMAND = "from webindex.cli.rank import rank_command; rank_command()"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": -0.1}, "An epsilon of -0.1 makes no sense"),
        ({"epsilon": float("nan")}, "An epsilon of nan makes no sense"),
        ({"tolerance": float("inf")}, "A tolerance of inf"),
        ({"most_iterations": 0}, "at most 0 iterations"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RankError, match=message):
        rank(folder, **options)
    assert not folder.exists()


def test_where_there_is_no_web_index_nothing_is_made(folder: Path) -> None:
    with pytest.raises(percola.NotARepositoryError, match="There is no repository"):
        rank(folder)
    assert not folder.exists()
