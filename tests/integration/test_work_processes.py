"""Worker processes may come and go by kill -9: what they leave is what a computation gives.

So it is with plain processes, and with tasks on Spark.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from effort import mostly_long
from fleets import is_alive
from from_scratch import again, check, recrawl, sample
from spark_processes import children, kill_all, terminal
from stores import put

from percola import Repository
from webindex import tables
from webindex.cli.main import STOPPED
from webindex.crawl.warc import Capture
from webindex.errors import WorkingError
from webindex.load.transaction import load_captures
from webindex.page.urls import page_row
from webindex.sample import CHANGED_URL, CHANGED_WORDS
from webindex.serving import TantivyIndex
from webindex.workers import processes
from webindex.workers.processes import (
    Workers,
    open_index,
    open_repository,
    running,
    wait_until_idle,
)

SECONDS = 270

Wait = Callable[..., Any]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with open_repository(str(tmp_path / "repo"), create=True) as opened:
        yield opened


@pytest.fixture
def index(repo: Repository) -> Iterator[TantivyIndex]:
    with open_index(repo, create=True) as opened:
        yield opened


def load(repo: Repository, captures: list[Capture] | tuple[Capture, ...], group: int = 4) -> None:
    for at in range(0, len(captures), group):
        load_captures(repo, captures[at : at + group], "crawl.warc.gz")


def documents(repo: Repository) -> int:
    return sum(1 for _ in repo.snapshot().scan(tables.clusters, columns=[tables.document]))


def parsed(repo: Repository) -> int:
    return sum(1 for _ in repo.snapshot().scan(tables.pages, columns=[tables.fingerprint]))


def webindex(*words: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """The command in a session of its own."""
    return terminal("-m", "webindex.cli.main", *words)


def kill_at_work(
    victim: int, repo: Repository, captures: list[Capture], wait_until: Wait
) -> list[Capture]:
    """Load captures, and kill a worker while work is left; those that are not loaded yet.

    However quick the workers are: it stands still while it is checked that there is work left.
    """
    while captures:
        before = parsed(repo)
        load(repo, captures[:60])
        captures = captures[60:]
        wait_until(lambda before=before: parsed(repo) > before + 10, what="pages to be parsed")
        os.kill(victim, signal.SIGSTOP)
        if repo.pending():
            os.kill(victim, signal.SIGKILL)
            return captures
        os.kill(victim, signal.SIGCONT)
    raise AssertionError("the kill should fall in the middle of the work")


# --- Killed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "restarted",
    [
        pytest.param(True, id="restarted"),
        pytest.param(False, id="not-restarted", marks=pytest.mark.long),
    ],
)
def test_a_worker_killed_in_the_middle_of_a_load_loses_nothing(
    repo: Repository, index: TantivyIndex, wait_until: Wait, restarted: bool
) -> None:
    captures = sample()
    with running(repo.address, 2) as workers:
        workers.wait_ready()
        victim = workers.processes[0]
        left = kill_at_work(victim.pid, repo, captures, wait_until)
        assert victim.wait(SECONDS) == -signal.SIGKILL
        load(repo, left)
        if restarted:
            wait_until_idle(repo, workers, SECONDS)
            assert workers.restarts == 1
            assert workers.processes[0] is not victim
        else:
            wait_until(lambda: not repo.pending(), seconds=SECONDS, what="the work to end")
            assert workers.processes[0] is victim
    check(repo, index, captures)


def test_two_percola_workers_of_which_one_is_killed_leave_nothing_undone(
    repo: Repository, index: TantivyIndex, wait_until: Wait
) -> None:
    captures = sample()
    worker = ("percola.cli", "--repo", repo.address, "--json", "worker", "webindex.main:observers")
    with terminal("-m", *worker) as victim, terminal("-m", *worker) as survivor:
        for one in (victim, survivor):
            assert one.stdout is not None
            told = json.loads(one.stdout.readline())
            assert told["event"] == "started" and "pages.capture" in told["observers"]
        left = kill_at_work(victim.pid, repo, captures, wait_until)
        assert victim.wait(SECONDS) == -signal.SIGKILL
        load(repo, left)
        survivor.terminate()
        assert survivor.wait(SECONDS) == 0
    work_off = ("work", "--repo", repo.address, "--processes", 2, "--until-idle", "--json")
    with webindex(*work_off) as work:
        out, err = work.communicate(timeout=SECONDS)
    assert (work.returncode, err) == (0, "")
    summary = json.loads(out)
    assert (summary["pages"], summary["clusters"], summary["dead_lettered"]) == (204, 183, 0)
    check(repo, index, captures)


def test_workers_end_when_their_supervisor_is_killed(
    repo: Repository, index: TantivyIndex, wait_until: Wait
) -> None:
    load(repo, sample()[:40])
    with terminal(
        "-m", "webindex.cli.main", "work", "--repo", repo.address, "--processes", 2
    ) as work:
        wait_until(lambda: documents(repo) > 0, seconds=SECONDS, what="the first document")
        workers = children(work.pid)
        assert len(workers) == 2 and all(map(is_alive, workers))
        try:
            work.kill()
            work.wait(SECONDS)
            wait_until(lambda: not any(map(is_alive, workers)), what="the workers to end")
        finally:
            kill_all(workers)
    with running(repo.address, 1) as others:
        wait_until_idle(repo, others, SECONDS)
    check(repo, index, sample()[:40])


# --- Stopped ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", mostly_long([signal.SIGTERM, signal.SIGINT]))
def test_a_signal_ends_work_cleanly_and_leaves_no_child(
    repo: Repository, index: TantivyIndex, wait_until: Wait, how: signal.Signals
) -> None:
    load(repo, sample()[:20])
    with terminal(
        "-m", "webindex.cli.main", "work", "--repo", repo.address, "--processes", 2
    ) as work:
        wait_until(
            lambda: index.count() > 0 and not repo.pending(), seconds=SECONDS, what="the work"
        )
        # It goes on: what is loaded now is followed as well.
        load(repo, [*sample()[20:], *recrawl()])
        wait_until(
            lambda: [hit.url for hit in index.search(CHANGED_WORDS).hits] == [CHANGED_URL],
            seconds=SECONDS,
            what="the changed page to be found",
        )
        workers = children(work.pid)
        assert len(workers) == 2
        # Ctrl-C reaches every process of the terminal's foreground group.
        os.killpg(work.pid, how)
        out, err = work.communicate(timeout=SECONDS)
    assert (work.returncode, err) == (0, "")
    assert "Pages" in out and "Loaded to searchable" in out
    assert not any(map(is_alive, workers))
    with running(repo.address, 1) as others:
        wait_until_idle(repo, others, SECONDS)
    check(repo, index, [*sample(), *recrawl()])


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--until-idle"], STOPPED)])
def test_ctrl_c_while_the_workers_start_ends_without_a_word(
    repo: Repository, wait_until: Wait, options: list[str], status: int
) -> None:
    load(repo, sample()[:2])
    with terminal(
        "-m", "webindex.cli.main", "work", "--repo", repo.address, "--processes", 2, *options
    ) as work:
        # Python is at their imports then, where a Ctrl-C would end them with a traceback.
        wait_until(
            lambda: (
                len(found := children(work.pid)) == 2
                and all("pycld2" in Path(f"/proc/{pid}/maps").read_text() for pid in found)
            ),
            what="two workers that import modules",
        )
        workers = children(work.pid)
        os.killpg(work.pid, signal.SIGINT)
        _, err = work.communicate(timeout=SECONDS)
    assert (work.returncode, err) == (status, "")
    assert len(workers) == 2 and not any(map(is_alive, workers))


# --- Together -----------------------------------------------------------------------------

LOADER = """
import sys
from from_scratch import again, sample
from webindex.load.transaction import load_captures
from webindex.workers.processes import open_repository

part = int(sys.argv[2])
with open_repository(sys.argv[1]) as repo:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(part, 80, 4):
        one = again(sample()[0], url=f"https://example.org/copy/{number:03}")
        load_captures(repo, [one], "copies")
"""


def test_copies_of_one_page_loaded_by_four_processes_at_once_end_in_one_cluster(
    repo: Repository, index: TantivyIndex
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    loaders = [
        subprocess.Popen(
            [sys.executable, "-c", LOADER, repo.address, str(part)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for part in range(4)
    ]
    try:
        with running(repo.address, 2) as workers:
            workers.wait_ready()
            for one in loaders:
                assert one.stdout is not None and one.stdout.readline() == b"ready\n"
            for one in loaders:
                assert one.stdin is not None
                one.stdin.write(b"go\n")
                one.stdin.flush()
            assert [one.wait(SECONDS) for one in loaders] == [0] * 4
            wait_until_idle(repo, workers, SECONDS)
    finally:
        for one in loaders:
            one.kill()
            one.communicate()
    copies = [again(sample()[0], url=f"https://example.org/copy/{n:03}") for n in range(80)]
    expected = check(repo, index, copies)
    [document] = expected.documents.values()
    assert len(document["duplicates"]) == tables.MOST_URLS == 79 - document["more"]


# --- On Spark -----------------------------------------------------------------------------


def tasks(work: subprocess.Popen[str]) -> list[int]:
    """The processes of the tasks of `webindex work`: children of its JVM's daemon."""
    jvms = [one for one in children(work.pid) if is_alive(one)]
    daemons = [one for jvm in jvms for one in children(jvm)]
    return [one for daemon in daemons for one in children(daemon) if is_alive(one)]


@pytest.mark.long
def test_work_on_spark_follows_what_comes_and_a_killed_task_loses_nothing(
    repo: Repository, index: TantivyIndex, wait_until: Wait, java_home: Path
) -> None:
    captures = sample()
    load(repo, captures[:20])
    with terminal(
        "-m", "webindex.cli.main", "work", "--repo", repo.address, "--workers", 2
    ) as work:
        wait_until(lambda: parsed(repo) > 10, seconds=SECONDS, what="the first pages to be parsed")
        victim, *_ = tasks(work)
        load(repo, kill_at_work(victim, repo, captures[20:], wait_until))
        wait_until(lambda: not repo.pending(), seconds=SECONDS, what="the work to end")
        at_work = wait_until(
            lambda: found if len(found := tasks(work)) == 2 else None,
            seconds=SECONDS,
            what="another process in the place of the killed one",
        )
        assert victim not in at_work
        # Ctrl-C reaches every process of the terminal's foreground group.
        os.killpg(work.pid, signal.SIGINT)
        out, err = work.communicate(timeout=SECONDS)
    assert (work.returncode, err) == (0, "")
    assert "Loaded to searchable" in out
    wait_until(lambda: not any(map(is_alive, at_work)), what="the tasks to end")
    check(repo, index, captures)


def test_work_on_spark_ends_when_everything_is_worked_off(
    repo: Repository, index: TantivyIndex, java_home: Path
) -> None:
    load(repo, sample())
    work_off = ("work", "--repo", repo.address, "--workers", 2, "--until-idle", "--json")
    with webindex(*work_off) as work:
        out, err = work.communicate(timeout=SECONDS)
    assert (work.returncode, err) == (0, "")
    summary = json.loads(out)
    assert (summary["pages"], summary["clusters"], summary["dead_lettered"]) == (204, 183, 0)
    check(repo, index, sample())


@pytest.mark.long
def test_work_on_spark_ends_with_status_3_if_something_was_dead_lettered(
    repo: Repository, java_home: Path
) -> None:
    load(repo, recrawl())
    put(repo, tables.body, page_row(CHANGED_URL), b"this was never compressed")
    work = ("work", "--repo", repo.address, "--workers", 1, "--until-idle", "--json")
    with webindex(*work) as working:
        out, err = working.communicate(timeout=SECONDS)
    assert (working.returncode, json.loads(out)["dead_lettered"]) == (3, 1)
    assert "parse failed on pages[" in err and "attempt 5 of 5" in err
    assert err.count("Traceback (most recent call last)") >= 5


def test_where_nothing_is_to_do_spark_is_not_even_started(repo: Repository) -> None:
    with terminal(
        "-m",
        "webindex.cli.main",
        *("work", "--repo", repo.address, "--until-idle", "--json"),
        PATH="/nowhere",
        JAVA_HOME="",
    ) as work:
        out, err = work.communicate(timeout=SECONDS)
    assert (work.returncode, err) == (0, "")
    assert json.loads(out)["pages"] == 0


def test_without_java_work_says_how_to_do_without_spark(repo: Repository) -> None:
    load(repo, sample()[:2])
    with terminal(
        "-m", "webindex.cli.main", "work", "--repo", repo.address, PATH="/nowhere", JAVA_HOME=""
    ) as work:
        _, err = work.communicate(timeout=SECONDS)
    assert work.returncode == 1 and err.count("\n") == 1
    assert err.startswith("Error: Spark needs Java") and "--processes" in err


@pytest.mark.long
def test_tasks_end_when_their_driver_is_killed(
    repo: Repository, index: TantivyIndex, wait_until: Wait, java_home: Path
) -> None:
    load(repo, sample()[:40])
    with terminal(
        "-m", "webindex.cli.main", "work", "--repo", repo.address, "--workers", 2
    ) as work:
        wait_until(lambda: documents(repo) > 0, seconds=SECONDS, what="the first document")
        at_work = [*children(work.pid), *tasks(work)]
        assert len(at_work) == 3
        work.kill()
        work.wait(SECONDS)
        wait_until(lambda: not any(map(is_alive, at_work)), what="the JVM and its tasks to end")
    with running(repo.address, 1) as others:
        wait_until_idle(repo, others, SECONDS)
    check(repo, index, sample()[:40])


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_spark_starts_ends_work_without_a_word(
    repo: Repository, wait_until: Wait, java_home: Path, how: signal.Signals
) -> None:
    load(repo, sample()[:2])
    with terminal(
        "-m", "webindex.cli.main", "work", "--repo", repo.address, "--workers", 2
    ) as work:
        [jvm] = wait_until(lambda: children(work.pid), what="the JVM to start")
        os.kill(work.pid, how)
        _, err = work.communicate(timeout=SECONDS)
    assert (work.returncode, err) == (0, "")
    wait_until(lambda: not is_alive(jvm), what="the JVM to end")


# --- Memory -------------------------------------------------------------------------------


def private_bytes(pid: int) -> int:
    """Memory that a process has for itself, the pages of files that only it maps included."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return (sizes["Private_Clean:"] + sizes["Private_Dirty:"]) * 1024


def test_a_worker_stays_under_300_mb_while_it_works_off_the_sample(
    repo: Repository, index: TantivyIndex
) -> None:
    load(repo, sample(), group=32)
    most = 0
    pause = threading.Event()
    workers = Workers(repo.address, 1)
    try:
        workers.wait_ready()
        while repo.pending():
            most = max(most, private_bytes(workers.processes[0].pid))
            pause.wait(0.02)
        most = max(most, private_bytes(workers.processes[0].pid))
        assert workers.restarts == 0
    finally:
        workers.stop()
    assert 20_000_000 < most < 300_000_000
    check(repo, index, sample())


class Killed:
    """A worker process that was killed at once."""

    stdin = stdout = None

    def poll(self) -> int:
        return -9


def test_any_number_of_workers_may_die_but_not_within_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = [0.0]
    monkeypatch.setattr(Workers, "_start", lambda workers: Killed())
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: at[0]))
    workers = Workers("nowhere", 1)
    for _ in range(100):
        workers.check()
        at[0] += 3 * 60.0 + 1
    at[0] += 3600.0
    for _ in range(20):
        workers.check()
    with pytest.raises(WorkingError, match="exit code -9"):
        workers.check()
