"""`percola observers`: what it lists, pauses and resumes, and what real workers make of it.

And what `percola failed` lists where very many changes are dead-lettered.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import (
    SECONDS,
    Running,
    call,
    contents,
    folder,
    is_error,
    put,
    repo,
    run,
    running,
    score,
    size,
)

from percola import Repository
from percola.cells import DeadLetter, Kind, encode_dead_letter, failed_column
from percola.coordination.local.coordination import LocalCoordination
from percola.store.base import Put, RowMutation

__all__ = ["folder", "repo"]

APP = """
from percola import Table, observer

docs = Table("docs")
contents = docs.column("contents", observed=True)
size = docs.column("size", int)
score = docs.column("score", float)
recluster = docs.weak_column("recluster")

@observer(contents)
def measure(t, row):
    t.set(size, row, len(t.get(contents, row) or b""))

@observer(contents, recluster)
def rate(t, row):
    t.set(score, row, 1.0)

both = [measure, rate]
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


class Started:
    """A worker in a process of its own, and the lines that it logs."""

    def __init__(self, worker: Running) -> None:
        self.process = worker.process
        self.logged: list[str] = []
        worker.expect('"started"')
        self._thread = threading.Thread(target=lambda: self.logged.extend(worker.err))
        self._thread.start()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SECONDS) == 0
        self._thread.join(SECONDS)


@pytest.fixture
def worker(app: Path, repo: Repository, wait_until: Callable[..., object]) -> Iterator[Started]:
    where = ("--repo", repo.address, "--json")
    with running(*where, "worker", "app:both", cwd=app) as process:
        started = Started(process)
        wait_until(
            lambda: call(*where, "observers").json["observers"],
            what="the worker has announced its observers",
        )
        yield started
        started.stop()


def test_an_observer_is_paused_and_resumed_while_its_worker_runs(
    repo: Repository, worker: Started, wait_until: Callable[..., object]
) -> None:
    where = ("--repo", repo.address, "--json")
    done = call(*where, "observers", "pause", "measure", "--reason", "wrong sizes")
    assert done.code == 0, done
    assert done.json["columns"] == ["docs.contents"]
    wait_until(lambda: any("measure is paused" in one for one in worker.logged), what="a log line")
    put(repo, contents, "a", b"abc")
    wait_until(lambda: repo.snapshot().get(score, "a") == 1.0, what="the other one runs")
    assert repo.snapshot().get(size, "a") is None
    found = call(*where, "observers").json["observers"]
    assert [(one["name"], one["dirty"], one["pids"]) for one in found] == [
        ("measure", 1, [worker.process.pid]),
        ("rate", 1, [worker.process.pid]),
    ]
    assert found[0]["paused"]["reason"] == "wrong sizes" and found[1]["paused"] is None
    assert found[1]["columns"] == ["docs.contents", "docs.recluster"]
    out = call("--repo", repo.address, "observers").out
    assert "measure" in out and "paused" in out and "no live worker" not in out
    assert call(*where, "status").json["paused"] == ["measure"]
    assert "measure  (percola observers)" in call("--repo", repo.address, "status").out
    assert call(*where, "observers", "resume", "measure").json["paused"] is None
    wait_until(lambda: repo.snapshot().get(size, "a") == 3, what="the change is answered")
    wait_until(repo.is_idle, what="its notification is gone")
    wrong = call("--repo", repo.address, "observers", "pause", "mesure")
    assert is_error(wrong, "No live worker runs", "'mesure'", "not paused", "measure, rate.")
    assert repo.paused_observers() == []


def test_processes_of_several_machines_are_told_with_their_machines(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers each is the process 1."""
    live = [
        {"token": f"1-{host}", "pid": 1, "host": host, "observers": {"docs.contents": ["measure"]}}
        for host in ("worker-b", "worker-a")
    ]
    monkeypatch.setattr(LocalCoordination, "processes", lambda coordination: live)
    where = ("--repo", repo.address)
    assert "1 on worker-a, 1 on worker-b" in call(*where, "observers", COLUMNS="200").out
    [one] = call(*where, "observers", "--json").json["observers"]
    assert one["pids"] == [1, 1]
    assert one["processes"] == [{"pid": 1, "host": "worker-a"}, {"pid": 1, "host": "worker-b"}]
    status = call(*where, "status", COLUMNS="200").out
    assert "1 on worker-b (docs.contents); 1 on worker-a (docs.contents)" in status


def test_a_worker_that_is_to_end_when_idle_says_what_is_paused(app: Path, repo: Repository) -> None:
    where = ("--repo", repo.address)
    words = (*where, "worker", "app:both", "--until-idle")
    done = run(*where, "observers", "pause", "app:measure", "--reason", "too slow", cwd=app)
    assert done.code == 0, done
    assert done.out.startswith("Paused measure: ") and "observers resume measure" in done.out
    answer = run(*words, cwd=app)
    assert answer.code == 0, "nothing waits"
    assert "1 observer is paused (measure (too slow)), and 0 dirty cells wait" in answer.out
    for row in "ab":
        put(repo, contents, row, b"abc")
    answer = run(*words, cwd=app)
    assert answer.code == 4, answer
    assert "and 2 dirty cells wait: 'percola observers' lists them." in answer.out
    assert run(*words, "--processes", 2, cwd=app).code == 4
    answer = run(*words, "--json", cwd=app)
    assert answer.code == 4 and [one["event"] for one in answer.lines] == ["started", "stopped"]
    assert call(*where, "observers", "resume", "measure").code == 0
    assert run(*words, cwd=app).code == 0
    assert {row[size] for row in repo.snapshot().scan(contents.table)} == {3}


def test_the_only_table_needs_no_name_also_while_runs_are_recorded(tmp_path: Path) -> None:
    """The table of the records made two of them: commands of scripts ended with an error."""
    where = ("--repo", tmp_path / "new")
    assert call(*where, "init", "--column", "pages.title:str").code == 0
    assert call(*where, "set", "a", "title", "A").code == 0
    assert call(*where, "observers", "record", "on").code == 0
    assert call(*where, "scan", "--json").json == {"row": "a", "columns": {"title": "A"}}
    assert call(*where, "get", "a", "--json").json["table"] == "pages"
    assert "no such rows" in call(*where, "scan", "percola_runs").out


def test_a_name_that_cannot_be_meant_is_one_sentence(app: Path, repo: Repository) -> None:
    where = ("--repo", repo.address, "observers")
    assert call(*where).out == "No live worker runs an observer, and none is paused.\n"
    assert json.loads(call(*where, "list", "--json").out) == {"observers": []}
    assert is_error(call(*where, "pause", "x"), "No live worker runs", "'x'", "workers: none.")
    assert is_error(run(*where, "pause", "app:both", cwd=app), "several observers (measure, rate)")
    assert is_error(call(*where, "resume", "x"), "'x' is not paused", "observers: none.")
    words = ("pause", "app:rate", "--reason", "x" * 1001)
    assert is_error(run(*where, *words, cwd=app), "1,001 characters")


def test_of_many_failures_the_first_are_listed_and_all_counted(
    folder: Path, repo: Repository
) -> None:
    """A mistake in an observer dead-letters every row, each with a traceback of many lines."""
    with repo.transaction() as t:
        for number in range(120):
            t.set(contents, f"{number:03}", b"x")
    assert t.commit_ts is not None
    letter = DeadLetter("measure", "contents", 5, 0, "ValueError: no", "Traceback\nValueError: no")
    name, raw = failed_column("measure", b"contents"), encode_dead_letter(letter)
    put_letter = [Put(Kind.FAILED, name, t.commit_ts, raw)]
    rows = [f"{number:03}".encode() for number in range(120)]
    repo.context.store.mutate([RowMutation("docs", row, (), put_letter) for row in rows])
    words = ("--repo", folder, "failed")
    out = call(*words).out
    assert out.count("Traceback") == 100 and "['099']" in out
    assert "120 failures, of which these are the first 100 (--limit 0 lists all). Once" in out
    assert call(*words, "list", "--limit", 1).out.count("Traceback") == 1
    every = call(*words, "--limit", 0).out
    assert every.count("Traceback") == 120 and "\n120 failures. Once" in every
    assert len(call(*words, "--json").json["failures"]) == 120
    assert len(call(*words, "--json", "--limit", 7).json["failures"]) == 7
