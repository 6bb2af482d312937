"""`examples/changes/publish.py`, with a producer that fails as a killed program does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from kafka_broker import Record, replayed

import percola

CHANGES = Path(__file__).resolve().parents[2] / "examples" / "changes"


class Producer:
    """Takes so many events and then fails."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: list[tuple[bytes, bytes | None]] = []

    def send(self, topic: str, *, key: bytes, value: bytes | None) -> Producer:
        if len(self.taken) >= self.most:
            raise KeyboardInterrupt
        self.taken.append((key, value))
        return self

    def get(self, timeout: float) -> None:
        """It has arrived."""


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(CHANGES))
    known = {*sys.modules}
    yield importlib.import_module("publish")
    for name in {"publish", "orders"} - known:
        sys.modules.pop(name, None)


def test_a_row_that_was_published_at_first_and_deleted_before_the_restart_gets_its_event(
    publish: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BATCH", 2)
    orders = sys.modules["orders"]
    with percola.open("memory:", orders.SCHEMA) as repo:
        for row in ("a", "b", "c", "d", "e"):
            with repo.transaction() as t:
                t.set(orders.customer, row, "ann")
        killed = Producer(4)
        with pytest.raises(KeyboardInterrupt):
            publish.publish(repo, killed)
        with repo.transaction() as t:
            t.delete(orders.customer, "a")
        restarted = Producer(100)
        while publish.publish(repo, restarted):
            pass
        rows = {row.key for row in repo.snapshot().scan(orders.orders)}
    found = replayed([Record(*one) for one in [*killed.taken, *restarted.taken]])
    assert found.keys() == rows == {"b", "c", "d", "e"}


def test_what_follows_the_stored_position_is_protected_wherever_the_program_is_killed(
    publish: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold follows the position: at first it protects more than has to be read again."""
    orders = sys.modules["orders"]
    hold, held = percola.Repository.hold, []

    def noted(repo: percola.Repository, ts: int, seconds: float, *, name: str) -> str:
        now = repo.snapshot()
        held.append(ts)
        stored = now.get(orders.position, name) or now.get(orders.first, name)
        assert stored == ts, "a position before the hold, if the program is killed here"
        return hold(repo, ts, seconds, name=name)

    monkeypatch.setattr(percola.Repository, "hold", noted)
    with percola.open("memory:", orders.SCHEMA) as repo:
        for row in ("a", "b"):
            repo.run(lambda t, row=row: t.set(orders.customer, row, "ann"))
            publish.publish(repo, Producer(100))
    assert len(held) > 2
