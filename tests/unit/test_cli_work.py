"""`notifications`, `failed`, `status` and `worker`: the work, and those who do it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from commands import (
    SECONDS,
    TABLES,
    Running,
    answer_of,
    call,
    command,
    contents,
    folder,
    is_error,
    put,
    recluster,
    repo,
    run,
    running,
)

import percola
from percola import DATE, Repository, Table, Transaction, Worker, WorkerOptions, observer
from percola.cells import Cell, Kind, LockRecord, Op, encode_lock
from percola.store.base import Put, RowMutation

__all__ = ["folder", "repo"]

Start = Callable[..., Running]
Wait = Callable[..., object]

APP = """
import percola
from percola import Table, observer

docs = Table("docs")
contents = docs.column("contents", observed=True)
size = docs.column("size", int)
recluster = docs.weak_column("recluster")

@observer(contents)
def measure(t, row):
    body = t.get(contents, row) or b""
    if body == b"bad":
        raise ValueError("cannot digest [this]")
    t.set(size, row, len(body))

@observer(recluster)
def look(t, row):
    pass

OBSERVERS = [measure, look]
NUMBER = 7
MIXED = [measure, "look"]
TWICE = [measure, measure]

def no_argument():
    return OBSERVERS

def with_repo(repo):
    assert list(repo.schema)
    return measure

def leaves():
    raise SystemExit(0)

def broken():
    raise RuntimeError("no settings\\nfound")

def text():
    return "observers"
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A folder with a program in it: modules that work and modules that do not."""
    path = tmp_path / "program"
    path.mkdir()
    for name, text in {
        "app.py": APP,
        "raises.py": "import os\n\nvalue = int('seven')\n",
        "syntax.py": "def (:\n",
        "leaves.py": "raise SystemExit(3)\n",
        "lacks.py": "import not_installed_anywhere\n",
        "unobserved.py": "from percola import *\nc = Table('t').column('c')\nobserver(c)(print)\n",
    }.items():
        (path / name).write_text(text)
    return path


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(repo: object, *words: object, cwd: Path) -> Running:
            line = ("--repo", repo, "worker", *words)
            return stack.enter_context(running(*line, cwd=cwd))

        yield begin


# --- notifications, failed --------------------------------------------------------------


def test_notifications_counts_dirty_cells_by_column(repo: Repository) -> None:
    where = ("--repo", repo.address)
    assert "No cell is dirty" in call(*where, "notifications").out
    oldest = put(repo, contents, "b", b"")
    put(repo, contents, "a", b"")
    put(repo, contents, "a", b"again")
    repo.run(lambda t: t.notify(recluster, "z"))
    out = call(*where, "notifications", "--limit", 2).out
    assert "docs.contents" in out and "docs.recluster" in out and "start a worker" in out
    assert "docs['a'].contents" in out and "and 1 more" in out
    answer = call(*where, "notifications", "--limit", 1, "--json").json
    assert answer["columns"][0] == {
        "table": "docs",
        "column": "contents",
        "cells": 2,
        "oldest_ts": oldest,
        "observers": [],
    }
    assert answer["cells"] == [
        {"table": "docs", "row": "a", "column": "contents", "timestamps": [oldest + 1, oldest + 2]}
    ]
    assert call(*where, "notifications", "--limit", "x").code == 2


def test_of_a_cell_that_changes_all_the_time_notifications_shows_the_oldest_changes(
    repo: Repository,
) -> None:
    """As beside a paused observer, where each change leaves an entry: there may be millions."""
    where = ("--repo", repo.address, "notifications", "--limit", 1)
    timestamps = [put(repo, contents, "a", b"") for _ in range(12)]
    [line] = [one for one in call(*where).out.splitlines() if "docs['a']" in one]
    shown = ", ".join(map(str, timestamps[:5]))
    assert line == f"  docs['a'].contents  at {shown}, … and 7 more"
    assert call(*where, "--json").json["cells"][0]["timestamps"] == timestamps


def test_rows_of_a_type_are_shown_as_their_keys(tmp_path: Path) -> None:
    days = Table("days", rows=DATE)
    sales = days.column("sales", int, observed=True)

    @observer(sales)
    def fails(t: Transaction, day: date) -> None:
        raise ValueError("no such day")

    where = ("--repo", tmp_path / "repo")
    shown, key = "days['2010-10-04'].sales", "2010-10-04"
    with percola.open(tmp_path / "repo", schema=[days]) as repo:
        repo.run(lambda t: t.set(sales, date(2010, 10, 4), 7))
        assert shown in call(*where, "notifications", "--limit", 1).out
        cells = call(*where, "notifications", "--limit", 1, "--json").json["cells"]
        assert [one["row"] for one in cells] == [key]
        Worker(repo, [fails], WorkerOptions(attempts=1)).run_until_idle()
        assert f"fails on {shown}" in call(*where, "failed", "--no-traceback").out
        failures = call(*where, "failed", "--json").json["failures"]
        assert [one["row"] for one in failures] == [key]
        assert "or dead-lettered (percola failed)" in call(*where, "notifications").out
        cell = Cell("days", days.encode_row(date(2010, 10, 4)), b"sales")
        lock = LockRecord(Op.PUT, cell, "1-x", 0, 0, False, b"7")
        put_lock = Put(Kind.LOCK, cell.column, 9, encode_lock(lock))
        assert repo.context.store.mutate([RowMutation("days", cell.row, (), [put_lock])]) == [True]
        assert shown in call(*where, "locks").out
        [found] = call(*where, "locks", "--json").json["locks"]
        assert (found["row"], found["primary"]["row"]) == (key, key)


def test_a_failure_is_listed_retried_and_gone(folder: Path, app: Path) -> None:
    where = ("--repo", folder)
    assert call(*where, "failed").out == "No change is dead-lettered.\n"
    for row in ("a", "b"):
        assert call(*where, "set", row, "contents", "bad").code == 0
    words = (*where, "worker", "app:OBSERVERS", "--until-idle")
    answer = run(*words, cwd=app, tracebacks=True)
    assert answer.code == 3
    assert "2 changes are dead-lettered, as an observer kept failing" in answer.out
    assert answer.err.count("Traceback (most recent call last)") == 10, "five attempts each"
    for row in ("a", "b"):
        for number in range(1, 6):
            assert f"measure failed on docs['{row}'].contents, attempt {number} of 5" in answer.err
    out = call(*where, "failed").out
    assert "measure on docs['a'].contents" in out and "5 attempts, dead-lettered" in out
    assert out.count("Traceback (most recent call last)") == 2 and "app.py" in out
    out = call(*where, "failed", "--no-traceback").out
    assert "ValueError: cannot digest [this]" in out and "Traceback" not in out
    assert call(*where, "failed", "list").out.count("ValueError: cannot digest [this]") == 2
    out = call(*where, "history", "a", "contents").out
    assert "dead-lettered for measure" in out and "cannot digest [this]" in out
    found = call(*where, "failed", "--json").json["failures"]
    assert [(one["row"], one["observer"], one["attempts"]) for one in found] == [
        ("a", "measure", 5),
        ("b", "measure", 5),
    ]
    assert call(*where, "failed", "list", "--observer", "look", "--json").json["failures"] == []

    assert call(*where, "set", "a", "contents", "good").code == 0
    retry = ("failed", "retry")
    assert call(*where, *retry, "--row", "a", "-t", "docs", "--json").json == {"retried": 1}
    assert call(*where, "failed", "retry", "--observer", "look", "--json").json == {"retried": 0}
    assert "1 failure made dirty" in call(*where, *retry, "--all").out
    assert "Nothing was dead-lettered" in call(*where, *retry, "--all").out
    answer = run(*words, "--json", cwd=app, tracebacks=True)
    assert (answer.code, answer.lines[-1]["dead_lettered"]) == (3, 1)
    assert call(*where, "get", "a", "size").out == "4\n"
    assert [one["row"] for one in call(*where, "failed", "--json").json["failures"]] == ["b"]
    assert run(*words, cwd=app).code == 3, "what an earlier worker has dead-lettered counts"
    look = ("worker", "app:look", "--until-idle")
    assert run(*where, *look, cwd=app).code == 0, "it is not for this worker's observers"


def test_a_name_that_no_dead_letter_has_is_named_where_none_is_listed(
    folder: Path, repo: Repository
) -> None:
    words = ("--repo", folder, "failed", "list")
    assert call(*words).out == "No change is dead-lettered.\n"
    told = "No change is dead-lettered for an observer named 'mesure'.\n"
    assert call(*words, "--observer", "mesure").out == told


@pytest.mark.parametrize("name", ["list", "retry"])
def test_an_observer_may_have_the_name_of_a_command(
    folder: Path, repo: Repository, name: str
) -> None:
    for words in (["--observer", name], ["--json", "--repo", str(folder), "--observer", name]):
        answer = call("--repo", folder, "failed", *words)
        assert answer.code == 0 and ("no change" in answer.out.lower() or answer.json), answer
    assert "--no-traceback" in call("--repo", folder, "failed", "--observer", name, "--help").out


def test_retry_shows_how_far_it_is(
    folder: Path, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each call of the store: a million take a while."""

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        raise ValueError

    put(repo, contents, "a", b"x")
    put(repo, contents, "b", b"x")
    Worker(repo, [measure], attempts=1).run_until_idle()
    monkeypatch.setattr("percola.cli.display._EVERY", 0.0)
    monkeypatch.setattr("percola.inspection._TOGETHER", 1)
    answer = call("--repo", folder, "failed", "retry", "--all")
    assert answer.err == "Retrying: 1 change\nRetrying: 2 changes\n"
    told = "2 failures made dirty again: no worker is running, so start one.\n"
    assert answer.out == told


def test_retry_wants_to_know_which(folder: Path) -> None:
    where = ("--repo", folder, "failed", "retry")
    assert call(*where).code == 2
    assert call(*where, "--all", "--observer", "x").code == 2
    assert is_error(call(*where, "--row", "a"), "several tables")
    assert is_error(call(*where, "--row", "", "-t", "docs"), "not empty")
    assert is_error(call(*where, "--table", "nowhere"), "nowhere")
    # As of a variable that is not set: not those of all tables.
    assert is_error(call(*where, "--table", ""), "no table ''")
    assert "Usage" in call("--repo", folder, "failed", "--help").out


# --- worker -----------------------------------------------------------------------------


def test_an_empty_name_of_a_schema_is_none(folder: Path, app: Path, tmp_path: Path) -> None:
    """As of a variable that is not set: what it should name would be missing."""
    answer = run("--repo", folder, "worker", "app:measure", "--schema", "", cwd=app)
    assert is_error(answer, "MODULE:NAME")
    assert is_error(call("--repo", tmp_path / "new", "init", "--schema", ""), "MODULE:NAME")
    assert not (tmp_path / "new").exists()


def test_a_module_may_configure_logging(folder: Path, app: Path) -> None:
    program = """
import logging
from app import contents
from percola import observer

logging.basicConfig(level=logging.INFO, format="own %(levelname)s %(name)s: %(message)s")

@observer(contents)
def measure(t, row):
    logging.getLogger("shop").info("measured %s", row)
"""
    (app / "logs.py").write_text(program)
    assert call("--repo", folder, "set", "a", "contents", "x").code == 0
    answer = run("--repo", folder, "worker", "logs:measure", "--until-idle", cwd=app)
    assert (answer.code, answer.err) == (0, "own INFO shop: measured a\n")


def test_what_a_users_module_prints_is_no_part_of_the_json(folder: Path, app: Path) -> None:
    program = """
import app
from percola import observer

print("imported")

@observer(app.contents)
def measure(t, row):
    print("measured", row)
"""
    (app / "prints.py").write_text(program)
    assert call("--repo", folder, "set", "a", "contents", "x").code == 0
    where = ("--repo", folder, "--json")
    answer = run(*where, "worker", "prints:measure", "--until-idle", cwd=app)
    assert [one["event"] for one in answer.lines] == ["started", "stopped"]
    assert answer.err == "imported\nmeasured a\n"
    answer = run(*where, "rerun", "prints:measure", cwd=app)
    assert (answer.json["rows"], answer.err.splitlines()[0]) == (1, "imported")
    answer = run(*where, "worker", "prints:nothing", cwd=app)
    assert (answer.code, answer.json["error"]["kind"]) == (1, "UsageError")


def test_so_many_threads_are_refused(folder: Path, app: Path) -> None:
    answer = run("--repo", folder, "worker", "app:measure", "--threads", "100000", cwd=app)
    assert is_error(answer, "at most 1,000")


@pytest.mark.parametrize("name", ["OBSERVERS", "measure", "no_argument", "with_repo"])
def test_a_worker_runs_what_the_module_names(folder: Path, app: Path, name: str) -> None:
    assert call("--repo", folder, "set", "a", "contents", "hello").code == 0
    answer = run("--repo", folder, "worker", f"app:{name}", "--until-idle", "--json", cwd=app)
    assert answer.code == 0, answer
    started, stopped = answer.lines
    assert started["event"] == "started"
    assert started["observers"]["docs.contents"] == ["measure"]
    assert stopped == {
        "event": "stopped",
        "runs": 1,
        "conflicts": 0,
        "failures": 0,
        "dead_lettered": 0,
    }
    assert call("--repo", folder, "get", "a", "size").out == "5\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_cleanly_when_it_is_told_to(
    folder: Path, app: Path, start: Start, number: int
) -> None:
    worker = start(folder, "app:OBSERVERS", cwd=app)
    worker.expect(f"Worker {worker.process.pid} observes:")
    worker.expect("  docs.contents: measure")
    worker.expect("  docs.recluster: look")
    # The signal may come before the worker has its threads: that is no less clean.
    code, out, err = worker.end(number)
    assert (code, err) == (0, "")
    assert out == "Stopped: runs 0, conflicts 0, failures 0, dead lettered 0.\n"


def test_a_worker_lets_a_running_observer_commit_before_it_ends(
    folder: Path, app: Path, start: Start, wait_until: Wait
) -> None:
    os.mkfifo(app / "go")
    (app / "slow.py").write_text(
        "from app import *\n"
        "@observer(contents)\n"
        "def slow(t, row):\n"
        "    open('begun', 'w').close()\n"
        "    open('go').read()\n"
        "    t.set(size, row, 99)\n"
    )
    assert call("--repo", folder, "set", "a", "contents", "hello").code == 0
    worker = start(folder, "slow:slow", "--threads", 1, cwd=app)
    worker.expect("observes")
    wait_until((app / "begun").exists, what="the observer to begin")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.poll() is None
    (app / "go").write_text("go")
    code, out, err = worker.rest()
    assert (code, err) == (0, "") and "runs 1" in out
    assert call("--repo", folder, "get", "a", "size").out == "99\n"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_is_told_to_end_before_it_is_idle_does_not_say_that_it_is(
    folder: Path, app: Path, start: Start, wait_until: Wait, processes: int
) -> None:
    os.mkfifo(app / "go")
    (app / "slow.py").write_text(
        "from app import *\n"
        "@observer(contents, batch=1)\n"
        "def slow(t, row):\n"
        "    open('begun', 'w').close()\n"
        "    open('go').read()\n"
    )
    with percola.open(folder, TABLES) as repo, repo.transaction() as t:
        for number in range(500):
            t.set(contents, f"r{number}", b"hello")
    words = ("--processes", processes, "--until-idle", "--threads", 1)
    worker = start(folder, "slow:slow", *words, cwd=app)
    wait_until((app / "begun").exists, what="the observer to begin")
    worker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: _let_go(app / "go", worker), what="the end")
    assert worker.rest()[0] == 5
    assert "No cell is dirty" not in call("--repo", folder, "notifications").out


def _let_go(pipe: Path, worker: Running) -> bool:
    """Let an observer that reads the pipe go on; whether the worker has ended."""
    with contextlib.suppress(OSError):  # Nobody reads it.
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return worker.process.poll() is not None


def test_worker_processes_import_no_module_of_the_current_folder_in_place_of_pythons(
    folder: Path, app: Path
) -> None:
    (app / "secrets.py").write_text("raise RuntimeError('not this one')\n")
    program = "import sys; sys.path.pop(0); from percola.cli import main; main()"
    words = ("--repo", folder, "worker", "app:measure", "--until-idle", "--processes", 2)
    answer = answer_of([sys.executable, "-c", program, *words], cwd=app)
    assert (answer.code, answer.err) == (0, "")


@pytest.mark.long
def test_more_processes_than_the_system_starts_are_one_sentence(folder: Path, app: Path) -> None:
    words = ("--repo", folder, "worker", "app:measure", "--until-idle", "--processes", 60)
    answer = answer_of(["sh", "-c", 'ulimit -n 40 && exec "$@"', "sh", *command(*words)], cwd=app)
    assert answer.code == 1 and "Traceback" not in answer.err
    assert "Error: The system starts" in answer.err and "--processes" in answer.err


@pytest.fixture
def two(folder: Path, app: Path, start: Start) -> Callable[..., Any]:
    """Starts a worker of two processes: it, and their ids."""

    def begin(target: str = "app:OBSERVERS") -> tuple[Running, list[int]]:
        worker = start(folder, target, "--processes", 2, "--json", cwd=app)
        return worker, [json.loads(worker.expect("started"))["pid"] for _ in range(2)]

    return begin


def test_processes_share_the_work_and_end_together(
    folder: Path, app: Path, two: Callable[..., Any]
) -> None:
    for number in range(20):
        assert call("--repo", folder, "set", f"r{number}", "contents", "hello").code == 0
    words = ("worker", "app:OBSERVERS", "--processes", 2, "--until-idle", "--json")
    answer = run("--repo", folder, *words, cwd=app)
    assert (answer.code, answer.err) == (0, "")
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert sorted(one["event"] for one in events) == ["started", "started", "stopped", "stopped"]
    assert sum(one["runs"] for one in events if one["event"] == "stopped") == 20
    assert len({one["pid"] for one in events if one["event"] == "started"}) == 2
    worker, _ = two()
    code, out, err = worker.end(signal.SIGTERM)
    assert (code, err) == (0, "") and out.count("stopped") == 2


def test_a_worker_process_that_is_killed_ends_the_others(two: Callable[..., Any]) -> None:
    worker, pids = two()
    os.kill(pids[1], signal.SIGKILL)
    code, out, err = worker.rest()
    said = f"Worker process {pids[1]} was killed by signal 9: the others end, too.\n"
    assert (code, err) == (128 + signal.SIGKILL, said)
    assert out.count("stopped") == 1


def test_a_worker_process_that_ends_with_any_other_status_ends_the_others(
    folder: Path, app: Path, two: Callable[..., Any]
) -> None:
    (app / "quits.py").write_text(
        "import os\n"
        "from app import *\n"
        "@observer(contents)\n"
        "def quits(t, row):\n"
        "    try:\n"
        "        os.mkdir('quit')\n"
        "    except FileExistsError:\n"
        "        return\n"
        "    os._exit(9)\n"
    )
    worker, pids = two("quits:quits")
    assert call("--repo", folder, "set", "a", "contents", "hello").code == 0
    code, out, err = worker.rest()
    assert code == 9 and out.count("stopped") == 1
    said = [f"Worker process {pid} ended with status 9: the others end, too.\n" for pid in pids]
    assert err in said


def test_worker_processes_end_with_the_one_that_started_them(two: Callable[..., Any]) -> None:
    worker, _ = two()
    worker.process.kill()
    # Its output ends when the last process that inherited it does.
    _, out, err = worker.rest()
    assert out.count("stopped") == 2 and err == ""


def test_what_no_process_could_do_is_refused_once(folder: Path, app: Path) -> None:
    words = ("--repo", folder, "worker", "--processes", 3)
    answer = run(*words, "app:NOTHING", cwd=app)
    assert is_error(answer, "NOTHING") and answer.err.count("NOTHING") == 1
    assert is_error(run(*words, "app:measure", "--metrics-port", 9100, cwd=app), "9100", "free")
    assert is_error(run(*words, "app:measure", "--threads", 0, cwd=app), "threads")
    assert is_error(run(*words[:3], "app:measure", "--timeout", -1, cwd=app), "timeout")
    assert call(*words[:3], "app:measure", "--metrics-port", 99999).code == 2


def test_a_worker_opens_a_folder_with_the_durability_asked_for(folder: Path, app: Path) -> None:
    (app / "asks.py").write_text(
        "import percola\n"
        "from app import measure\n"
        "def asks(repo):\n"
        "    try:\n"
        "        percola.open(repo.address, durability='full', create=False).close()\n"
        "    except percola.ConflictingOptionsError as error:\n"
        "        open('told', 'w').write(str(error))\n"
        "    return measure\n"
    )
    words = ("--repo", folder, "worker", "asks:asks", "--until-idle")
    assert run(*words, "--durability", "full", cwd=app).code == 0
    assert not (app / "told").exists()
    assert run(*words, "--durability", "relaxed", "--processes", 2, cwd=app).code == 0
    assert "with durability 'relaxed'" in (app / "told").read_text()


def test_status_and_notifications_show_a_live_worker(
    folder: Path, app: Path, start: Start, wait_until: Wait
) -> None:
    worker = start(folder, "app:OBSERVERS", "--json", cwd=app)
    assert json.loads(worker.expect("started"))["pid"] == worker.process.pid

    def observed() -> dict[int, Any]:
        processes = call("--repo", folder, "status", "--json").json["processes"]
        return {one["pid"]: one["observers"] for one in processes}

    wait_until(lambda: observed().get(worker.process.pid), what="the worker's announcement")
    assert observed()[worker.process.pid] == {
        "docs.contents": ["measure"],
        "docs.recluster": ["look"],
    }
    out = call("--repo", folder, "status").out
    assert f"{worker.process.pid} (docs.contents, docs.recluster)" in out
    answer = run("--repo", folder, "worker", "app:with_repo", "--until-idle", cwd=app)
    assert answer.code == 0, "the same observers on the same column may work side by side"
    (app / "other.py").write_text(
        "from app import *\n@observer(contents)\ndef different(t, row): pass\n"
    )
    answer = run("--repo", folder, "worker", "other:different", cwd=app)
    assert answer.err.startswith("Error: ") and f"process {worker.process.pid}" in answer.err
    assert answer.code == 1
    assert worker.end(signal.SIGTERM)[0] == 0
    assert observed() == {}


def test_a_worker_brings_its_tables(tmp_path: Path, app: Path) -> None:
    (app / "more.py").write_text(
        "from percola import Table, observer\n"
        "news = Table('news'); body = news.column('body', str, observed=True)\n"
        "words = Table('words'); count = words.column('count', int)\n"
        "TABLES = [words]\n"
        "@observer(body)\n"
        "def split(t, row):\n"
        "    for word in (t.get(body, row) or '').split():\n"
        "        t.set(count, word, (t.get(count, word) or 0) + 1)\n"
    )
    where = ("--repo", tmp_path / "r")
    assert run(*where, "init").code == 0
    words = ("worker", "more:split", "--until-idle", "--schema", "more:TABLES")
    assert run(*where, *words, cwd=app).code == 0
    assert run(*where, "set", "1", "body", "to be or not to be").code == 0
    assert run(*where, *words, cwd=app).code == 0
    lines = run(*where, "scan", "words", "--json").lines
    counts = {line["row"]: line["columns"]["count"] for line in lines}
    assert counts == {"be": 2, "not": 1, "or": 1, "to": 2}


def test_what_creates_a_table_that_a_worker_lacks_is_told(tmp_path: Path, app: Path) -> None:
    """The operator who starts a worker has not written its program, so a command is named, too."""
    (app / "lacks.py").write_text(
        "from percola import Table, observer\n"
        "news = Table('news'); body = news.column('body', str, observed=True)\n"
        "sizes = Table('sizes'); size = sizes.column('size', int)\n"
        "TABLES = [news, sizes]\n"
        "@observer(body)\n"
        "def measure(t, row):\n"
        "    t.set(size, row, len(t.get(body, row)))\n"
    )
    where, words = ("--repo", tmp_path / "r"), ("worker", "lacks:measure", "--until-idle")
    assert run(*where, "init", "--column", "news.body:str:observed").code == 0
    assert run(*where, "set", "1", "body", "to be").code == 0
    assert run(*where, *words, cwd=app, tracebacks=True).code == 3
    [failure] = call(*where, "failed", "--json").json["failures"]
    assert "no table 'sizes'" in failure["error"]
    assert "'percola init --schema'" in failure["error"]
    assert run(*where, "init", "--schema", "lacks:TABLES", cwd=app).code == 0
    assert call(*where, "failed", "retry", "--all").code == 0
    assert run(*where, *words, cwd=app).code == 0
    assert call(*where, "get", "1", "sizes.size").out == "5\n"


def test_a_worker_serves_its_metrics(
    folder: Path, app: Path, start: Start, wait_until: Wait
) -> None:
    worker = start(folder, "app:OBSERVERS", "--json", "--metrics-port", 0, cwd=app)
    port = json.loads(worker.expect("started"))["metrics_port"]
    put_once = call("--repo", folder, "set", "a", "contents", "hello")
    assert put_once.code == 0

    def counted() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as page:
            return b'percola_observer_runs_total{observer="measure"} 1.0' in page.read()

    wait_until(counted, what="the run to be counted")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as page:
        assert b"percola_survey_complete 1.0" in page.read()
    taken = run("--repo", folder, "worker", "app:measure", "--metrics-port", port, cwd=app)
    assert is_error(taken, f"127.0.0.1:{port}", "--metrics-port")
    assert worker.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("app", ("MODULE:NAME",)),
        ("app.py:OBSERVERS", ("name the module", "app:OBSERVERS")),
        ("{app}/inner/app.py:OBSERVERS", ("'import': inner.app:OBSERVERS.",)),
        ("../other/app.py:OBSERVERS", ("'import', in the folder /", "/other: app:OBSERVERS.")),
        ("nowhere:x", ("no module 'nowhere'",)),
        ("folder:x", ("no module 'folder', only a folder", "folder.py")),
        ("time:x", ("'time' (of Python) has no 'x'",)),
        ("app.inner:x", ("no module 'app.inner'",)),
        ("app:nothing", ("app.py", "has no 'nothing'", "OBSERVERS")),
        ("raises:x", ("ValueError: invalid literal", "raises.py, line 3")),
        ("syntax:x", ("SyntaxError", "syntax.py, line 1")),
        ("leaves:x", ("SystemExit", "leaves.py, line 1")),
        ("lacks:x", ("ModuleNotFoundError", "not_installed_anywhere", "lacks.py, line 1")),
        ("unobserved:x", ("ObserverError", "observed=True", "unobserved.py, line 3")),
        ("app:NUMBER", ("7 (int)", "a list of observers")),
        ("app:MIXED", ("'look' (str), which is not an observer",)),
        ("app:TWICE", ("Two observers are named 'measure'",)),
        ("app:broken", ("app:broken raised RuntimeError: no settings", "app.py, line")),
        ("app:leaves", ("app:leaves raised SystemExit: 0", "app.py, line")),
        ("app:text", ("'observers' (str)",)),
    ],
)
def test_a_target_that_is_no_list_of_observers_is_one_sentence(
    folder: Path, app: Path, target: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(app)
    target = target.format(app=app)
    (app / "folder").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = {*sys.modules}
    try:
        for command in ("worker", "serve", "rerun"):
            if target != "app:TWICE" or command == "worker":
                assert is_error(call("--repo", folder, command, target), *words)
    finally:
        for name in {target.partition(":")[0]} - known:
            sys.modules.pop(name, None)


def test_a_module_that_opens_a_repository_on_import_is_refused(folder: Path, app: Path) -> None:
    """Whatever it would write, or whichever worker it would start, it does not get that far."""
    (app / "program.py").write_text(
        "from app import *\n"
        f"with percola.open({str(folder)!r}, schema=[docs]) as repo:\n"
        "    with repo.transaction() as t:\n"
        "        t.set(contents, 'written', b'text')\n"
        "    percola.Worker(repo, observers=OBSERVERS).run_until_idle()\n"
    )
    for name in ("measure", "misspelt"):
        answer = run("--repo", folder, "worker", f"program:{name}", "--until-idle", cwd=app)
        assert is_error(answer, "'program' opens the repository", "__main__", "program.py, line 2")
    assert call("--repo", folder, "get", "written", "contents", "-t", "docs").code == 1
    (app / "program.py").write_text(
        "from app import *\n"
        "def observers(repo):\n"
        "    with percola.open(repo.address):\n"
        "        return OBSERVERS\n"
    )
    answer = run("--repo", folder, "worker", "program:observers", "--until-idle", cwd=app)
    assert answer.code == 0, "a function that is called may open one"


def test_a_worker_says_which_columns_have_dirty_cells_and_no_worker(
    folder: Path, app: Path, start: Start, wait_until: Wait
) -> None:
    for row in ("a", "b"):
        assert call("--repo", folder, "set", row, "contents", "text").code == 0
    words = ("--repo", folder, "worker", "app:look", "--until-idle")
    answer = run(*words, cwd=app)
    assert answer.code == 0
    [line] = answer.err.splitlines()
    assert "docs.contents has 2 dirty cells, and no worker observes it" in line
    worker = start(folder, "app:measure", cwd=app)
    worker.expect("observes")
    wait_until(lambda: not call("--repo", folder, "notifications", "--json").json["cells"])
    assert run(*words, cwd=app).err == ""
    assert worker.end(signal.SIGTERM)[0] == 0


def test_init_refuses_a_schema_that_is_not_one(tmp_path: Path, app: Path) -> None:
    where = ("--repo", tmp_path / "r", "init", "--schema")
    assert is_error(run(*where, "app:NUMBER", cwd=app), "7 (int)", "list of tables")
    assert is_error(run(*where, "app:OBSERVERS", cwd=app), "list of tables")
    assert is_error(run(*where, "raises:x", cwd=app), "raises.py, line 3")
    assert not (tmp_path / "r").exists()
    (app / "clash.py").write_text("from percola import Table\nTABLES = [Table('a'), Table('a')]\n")
    assert is_error(run(*where, "clash:TABLES", cwd=app), "two tables")


def test_a_schema_that_contradicts_the_repository_is_refused(folder: Path, app: Path) -> None:
    (app / "wrong.py").write_text(
        "from percola import Table, observer\n"
        "docs = Table('docs'); docs.column('title', int)\n"
        "@observer(docs.column('contents', observed=True))\n"
        "def look(t, row): pass\n"
    )
    before = (folder / "percola.json").read_text(), call("--repo", folder, "status", "--json").json
    assert is_error(run("--repo", folder, "worker", "wrong:look", cwd=app), "docs.title", "str")
    after = (folder / "percola.json").read_text(), call("--repo", folder, "status", "--json").json
    assert before == after


def test_an_endless_observer_is_dead_lettered_and_the_worker_goes_on(
    folder: Path, app: Path
) -> None:
    (app / "endless.py").write_text(
        "import threading\nfrom app import *\n"
        "@observer(contents)\n"
        "def endless(t, row):\n    threading.Event().wait()\n"
    )
    assert call("--repo", folder, "set", "a", "contents", "x").code == 0
    words = ("worker", "endless:endless", "--until-idle", "--timeout", 0.3)
    answer = run("--repo", folder, *words, cwd=app, tracebacks=True)
    assert answer.code == 3 and "dead lettered 1" in answer.out
    assert "0.3 s" in call("--repo", folder, "failed").out
    assert call("--repo", folder, "get", "a", "size").code == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_is_told_to_end_while_it_starts_says_so(
    folder: Path,
    app: Path,
    start: Start,
    wait_until: Wait,
    processes: int,
) -> None:
    os.mkfifo(app / "go")
    (app / "slow_import.py").write_text(
        "import os\nopen('begun', 'a').close()\nopen('go').read()\nfrom app import *\n"
    )
    for wait in (True, False):  # While it imports a module, and while Python starts.
        (app / "begun").unlink(missing_ok=True)
        worker = start(folder, "slow_import:OBSERVERS", "--processes", processes, cwd=app)
        if wait:
            wait_until((app / "begun").exists, what="the import to begin")
        else:
            pid = worker.process.pid
            wait_until(lambda pid=pid: _holds_sigterm(pid), what="the command to begin")
        assert worker.end(signal.SIGTERM) == (0, "Stopped before it began.\n", "")


def _holds_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
    return bool(int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
