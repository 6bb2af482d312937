"""§2.4: a worker says which columns have dirty cells that nobody will look at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from borrowed import only_near
from stores import Ground, heard, put_all

from percola import Repository, Table, Transaction, Worker, observer
from percola.observers import unobserved

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
title = docs.column("title", str, observed=True)
poke = docs.weak_column("poke")
links = Table("links")
target = links.column("target", str, observed=True)
TABLES = [docs, links]


def ignore(t: Transaction, row: str) -> None:
    """Does nothing."""


def started(repo: Repository, *names: str) -> None:
    """Start a worker that observes these columns, and stop it."""
    observed = {"contents": contents, "title": title, "poke": poke, "target": target}
    worker = Worker(repo, [observer(observed[name], name=name)(ignore) for name in names])
    worker.start()
    worker.stop()


def logged(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    found = [one.getMessage() for one in caplog.records if one.name == "percola.worker"]
    caplog.clear()
    return found


def test_each_column_with_dirty_cells_and_no_observer_is_one_line(
    repo: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    with repo.transaction() as t:
        for row in ("a", "b"):
            t.set(contents, row, "text")
            t.set(title, row, "text")
        t.set(target, "a", "x")
        t.notify(poke, "a")
    repo.run(lambda t: t.set(title, "a", "changed twice"))
    started(repo, "contents")
    assert logged(caplog) == [
        "docs.poke has 1 dirty cell, and no worker observes it.",
        "docs.title has 2 dirty cells, and no worker observes it.",
        "links.target has 1 dirty cell, and no worker observes it.",
    ]
    started(repo, "contents", "title", "poke", "target")
    assert logged(caplog) == []


def test_a_worker_that_is_idle_says_what_its_runs_have_notified_and_nobody_observes(
    repo: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    def follow(t: Transaction, row: str) -> None:
        t.notify(poke, row)

    repo.run(lambda t: [t.set(contents, "a", "text"), t.set(target, "a", "x")])
    worker = Worker(repo, [observer(contents, name="contents")(follow)], threads=1)
    assert worker.run_until_idle()
    assert logged(caplog) == [
        "links.target has 1 dirty cell, and no worker observes it.",  # When it started, once.
        "docs.poke has 1 dirty cell, and no worker observes it.",
    ]
    repo.run(lambda t: t.set(contents, "b", "text"))
    assert Worker(repo, worker._observers, warn_unobserved=False).run_until_idle()
    assert logged(caplog) == []


def test_a_column_that_another_live_worker_observes_is_not_mentioned(
    ground: Ground, repo: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    repo.run(lambda t: t.set(title, "a", "text"))
    ground.coordination.announce_observers({"docs.title": ["title"]})
    started(repo, "contents")
    assert logged(caplog) == []


@only_near("it counts what is read")
def test_n6_however_much_is_dirty_the_look_is_bounded(
    ground: Ground, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unobserved, "COUNTED", 300)
    read: list[object] = []
    store = heard(ground.store, scan_kind=lambda found, *where: read.extend(found[0]))
    repo = ground.repo(TABLES, store=store)
    for column in (title, target, contents):
        put_all(repo, column, {f"row {number:04}": "text" for number in range(2_000)})
    context = repo.context
    mine = unobserved.Observers([observer(contents, name="contents")(ignore)])
    unobserved.warn_of_unobserved(context, mine)
    assert logged(caplog) == [
        "docs.title has at least 150 dirty cells, and no worker observes it.",
        "links.target has more than 300 dirty cells, and no worker observes it.",
    ]
    assert len(read) <= 2 * (300 + 256 + 1)
    everything = [contents, title, poke, target]
    all_of_them = unobserved.Observers([observer(one, name=one.name)(ignore) for one in everything])
    read.clear()
    unobserved.warn_of_unobserved(context, all_of_them)
    assert read == []
