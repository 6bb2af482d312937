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
