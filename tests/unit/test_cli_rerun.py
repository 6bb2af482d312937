"""`percola rerun`: real processes, one of which is killed, and what it refuses."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import call, contents, folder, is_error, repo, run, running, size
from stores import at_work

import percola
from percola import Repository, Table, Worker, observer
from percola.cells import Kind
from percola.maintenance.check import Severity, check
from percola.store.base import SYSTEM_TABLE
from percola.store.walks import walk_kind

__all__ = ["folder", "repo"]

APP = """
from percola import Table, observer

docs = Table("docs")
contents = docs.column("contents", observed=True)
size = docs.column("size", int)

@observer(contents, name="measure", batch=64)
def first(t, row):
    t.set(size, row, len(t.get(contents, row)))

@observer(contents, name="measure", batch=64)
def second(t, row):
    t.set(size, row, -len(t.get(contents, row)))

@observer(contents)
def other(t, row):
    pass

both = [first, other]
"""

ROWS = 1_500


@pytest.fixture
def app(tmp_path: Path, repo: Repository) -> Path:
    """A folder with a module, and a repository whose rows its first observer has handled."""
    (tmp_path / "app.py").write_text(APP)
    with repo.transaction() as t:
        for number in range(ROWS):
            t.set(contents, f"{'ab'[number % 2]}/{number:04}", b"x")
    work(tmp_path, repo, "app:first")
    assert sizes(repo) == {1}
    return tmp_path


def work(app: Path, repo: Repository, target: str) -> None:
    done = run("--repo", repo.address, "worker", target, "--until-idle", cwd=app)
    assert done.code == 0, done


def sizes(repo: Repository) -> set[int]:
    with repo.snapshot() as s:
        return {row[size] for row in s.scan(contents.table, columns=[size])}


def test_a_killed_rerun_is_resumed_and_every_row_runs_again(
    app: Path, repo: Repository, wait_until: Callable[..., object]
) -> None:
    rerun = ("--repo", repo.address, "rerun", "app:second")
    with running(*rerun, "--rate", "200", cwd=app) as killed:
        # More than a second's: it has noted how far it was.
        wait_until(lambda: repo.pending().get("docs.contents", 0) > 200, what="rows are marked")
    assert killed.process.returncode == -signal.SIGKILL
    assert repo.pending()["docs.contents"] < ROWS, "killed on the way"
    done = run(*rerun, "--rate", "1e9", cwd=app)
    assert done.code == 0, done
    found = re.fullmatch(
        r"Marked ([\d,]+) rows dirty, resumed after ([\d,]+): "
        r"no worker runs measure now, so start one\.\n",
        done.out,
    )
    assert found, done.out
    total, resumed = (int(one.replace(",", "")) for one in found.groups())
    assert total == ROWS and 0 < resumed < ROWS
    assert repo.pending() == {"docs.contents": ROWS}
    work(app, repo, "app:second")
    assert sizes(repo) == {-1}
    assert [str(one) for one in check(repo) if one.severity is not Severity.NOTE] == []
    assert not list(walk_kind(repo.context.store, Kind.DATA, SYSTEM_TABLE, b"rerun/", b"rerun0"))


@pytest.fixture
def worker(app: Path, repo: Repository) -> Iterator[None]:
    """A live worker with the second observer, in a process of its own."""
    words = ("--repo", repo.address, "--json", "worker", "app:second")
    with running(*words, cwd=app) as process:
        process.expect('"started"')
        yield
        assert process.end(signal.SIGTERM)[0] == 0


@pytest.mark.usefixtures("worker")
def test_an_observer_of_a_live_worker_is_rerun_by_its_name(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    wait_until(
        lambda: call("--repo", repo.address, "rerun", "measure", "--prefix", "zzz").code == 0,
        what="the worker has announced its observers",
    )
    done = call("--repo", repo.address, "--json", "rerun", "measure", "--prefix", "a/")
    assert done.json == {"observer": "measure", "rows": ROWS // 2, "resumed_after": 0}
    wait_until(lambda: sizes(repo) == {1, -1} and repo.is_idle(), what="the worker has run")
    with repo.snapshot() as s:
        changed = [row.key for row in s.scan(contents.table, columns=[size]) if row[size] < 0]
    assert len(changed) == ROWS // 2 and all(key.startswith("a/") for key in changed)
    wrong = call("--repo", repo.address, "rerun", "mesure")
    assert is_error(wrong, "No live worker runs an observer named 'mesure'", "workers: measure.")


def test_an_observer_of_a_table_whose_name_has_a_dot_is_rerun_by_its_name(
    tmp_path: Path,
) -> None:
    orders = Table("shop.orders")
    price = orders.column("price.cents", int, observed=True)
    note = observer(price, name="note")(lambda t, row: None)
    with percola.open(tmp_path / "shop", schema=[orders]) as shop:
        shop.run(lambda t: t.set(price, "o1", 1))
        with at_work(Worker(shop, [note])):
            done = call("--repo", shop.address, "rerun", "note")
            shop.pause_observer(note)
            waits = call("--repo", shop.address, "rerun", "note")
    assert done.code == 0 and done.out == "Marked 1 row dirty: workers run note on them.\n", done
    assert "note is paused" in waits.out and "observers resume note" in waits.out


def test_an_observer_that_cannot_be_found_is_an_error(app: Path, repo: Repository) -> None:
    answer = call("--repo", repo.address, "rerun", "measure")
    assert is_error(answer, "No live worker runs an observer named 'measure'", "MODULE:NAME")
    answer = run("--repo", repo.address, "rerun", "app:both", cwd=app)
    assert is_error(answer, "app:both gives several observers (measure, other)")
    assert call("--repo", repo.address, "rerun", "measure", "--rate", "0").code == 2
    # As of a variable that is not set: every row begins so.
    answer = run("--repo", repo.address, "rerun", "app:first", "--prefix", "", cwd=app)
    assert is_error(answer, "A prefix is empty", "leave --prefix out for all rows")
    assert repo.is_idle()
