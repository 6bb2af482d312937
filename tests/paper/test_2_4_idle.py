"""§2.4: whether anything is left to do, while work is handed from table to table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stores import Ground, ground, notify

from percola import Repository, Table, Worker, observer
from percola.cells import Cell, Kind
from percola.observers.schedule import Schedule

__all__ = ["ground"]

first = Table("first")
stirred = first.weak_column("stirred")
second = Table("second")
shaken = second.weak_column("shaken")
COLUMNS = {"first": stirred, "second": shaken}


class Ball:
    """A piece of work that is always handed to the table that has just been looked at."""

    def __init__(self, repo: Repository, monkeypatch: pytest.MonkeyPatch, throws: int) -> None:
        self.repo = repo
        self.left = throws
        self.at = "second"
        notify(repo, shaken, "ball")
        self.look = repo.context.store.scan_kind
        monkeypatch.setattr(type(repo.context.store), "scan_kind", self._look)

    def _look(self, kind: Kind, table: str, *where: Any, **how: Any) -> Any:
        found = self.look(kind, table, *where, **how)
        if kind is Kind.NOTIFY and table != self.at and not found[0] and self.left:
            self.left -= 1
            self.throw(table)
        return found

    def throw(self, to: str) -> None:
        """What an observer's run does: it notifies, and answers what it was notified of."""
        with self.repo.transaction() as t:
            t.notify(COLUMNS[to], "ball")
            self.answer(t, self.at)
        self.at = to

    def catch(self) -> None:
        """The last run: nothing is left to do."""
        with self.repo.transaction() as t:
            self.answer(t, self.at)

    def answer(self, t: Any, table: str) -> None:
        for cell, ts, _ in self.look(Kind.NOTIFY, table)[0]:
            assert isinstance(cell, Cell)
            t._answer(Kind.NOTIFY, cell, ts)


@pytest.mark.parametrize("asked", ["repository", "worker"])
@pytest.mark.parametrize("throws", [1, 2, 3, 4, 50])
def test_work_that_is_handed_from_table_to_table_is_never_taken_for_none(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, asked: str, throws: int
) -> None:
    repo: Repository = ground.repo([first, second])
    looks: list[Callable[[Any, str], None]] = [lambda t, row: None] * 2
    both = [observer(stirred, name="one")(looks[0]), observer(shaken, name="two")(looks[1])]
    worker = Worker(repo, both)
    is_idle = repo.is_idle if asked == "repository" else worker.is_idle
    assert is_idle()
    ball = Ball(repo, monkeypatch, throws)
    while ball.left:
        before = ball.left
        assert not is_idle(), "there is a ball"
        if ball.left == before:  # It was seen before it could be thrown.
            ball.left -= 1
    assert not is_idle()
    ball.catch()
    assert is_idle()


def test_a_worker_that_is_told_to_end_asks_no_further_whether_anything_is_left(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others draw timestamps meanwhile, it would ask a thousand times; each may be long."""
    repo = ground.repo([first])
    worker = Worker(repo, [observer(stirred, name="one")(lambda t, row: None)], threads=1)
    looks: list[int] = []

    def look(*_: object, **__: object) -> bool:
        looks.append(repo.context.oracle.timestamp())
        if len(looks) == 5:
            worker.stop(wait=False)
        return False

    monkeypatch.setattr(Schedule, "_is_dirty", look)
    assert worker.run_until_idle() is False
    assert len(looks) < 10
