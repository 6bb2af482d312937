"""A load keeps step with workers, and waits for nobody who does not get on."""

from __future__ import annotations

import threading

import pytest

from percola import Observer, Repository, Transaction, Worker, observer
from webindex import tables
from webindex.load import throttle as pacing
from webindex.load.throttle import BACKLOG, Pace

ROWS = 600


def load(repo: Repository, number: int) -> None:
    with repo.transaction() as t:
        t.set(tables.capture, f"{number:04}", {"url": "https://example.org/"})


def dirty(repo: Repository) -> int:
    return repo.pending().get("pages.capture", 0)


def parser(function: object = lambda t, row: None) -> Observer[str]:
    return observer(tables.capture, name="parse")(function)  # type: ignore[arg-type]


def test_without_workers_a_load_goes_ahead(repo: Repository) -> None:
    pace = Pace(repo)
    for number in range(2 * BACKLOG):
        load(repo, number)
        pace.keep()
    assert dirty(repo) == 2 * BACKLOG


def test_beside_workers_a_load_never_gets_far_ahead(repo: Repository) -> None:
    worker = Worker(repo, [parser()], threads=1)
    worker.start()
    pace, most = Pace(repo), 0
    try:
        for number in range(ROWS):
            load(repo, number)
            pace.keep()
            most = max(most, dirty(repo))
    finally:
        worker.stop()
    assert 0 < most <= BACKLOG


def test_a_load_goes_ahead_of_workers_that_do_not_get_on(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "_TIMEOUT_SECONDS", 0.1)
    stuck, free = threading.Event(), threading.Event()

    def hang(t: Transaction, row: str) -> None:
        stuck.set()
        assert free.wait(60)

    worker = Worker(repo, [parser(hang)], threads=1)
    worker.start()
    try:
        load(repo, 0)
        assert stuck.wait(60)
        pace = Pace(repo)
        for number in range(1, BACKLOG + 3):
            load(repo, number)
            pace.keep()
        assert dirty(repo) == BACKLOG + 3

        # Having waited in vain once, it neither waits nor counts again for a while.
        def counted() -> int:
            raise AssertionError

        monkeypatch.setattr(pace, "_backlog", counted)
        for number in range(BACKLOG + 3, 3 * BACKLOG):
            load(repo, number)
            pace.keep()
    finally:
        free.set()
        worker.stop()
