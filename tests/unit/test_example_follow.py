"""`examples/changes/follow.py`, where its first run comes late."""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

import percola

CHANGES = Path(__file__).resolve().parents[2] / "examples" / "changes"


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(CHANGES))
    known = {*sys.modules}
    yield importlib.import_module("follow")
    for name in {"follow", "orders"} - known:
        sys.modules.pop(name, None)


def test_a_follower_that_begins_after_garbage_collection_has_the_rows_from_before(
    follow: ModuleType,
) -> None:
    orders = sys.modules["orders"]
    empty, other = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    with closing(empty), closing(other), percola.open("memory:", orders.SCHEMA) as repo:
        assert follow.follow(repo, empty) == 0
        repo.run(lambda t: t.set(orders.customer, "old", "ann"))
        for _ in range(2):  # The first one begins to track the time.
            repo.collect_garbage(retention=0)
        repo.run(lambda t: t.set(orders.customer, "new", "bob"))
        assert follow.follow(repo, other) == 2
        repo.run(lambda t: t.delete(orders.customer, "old"))
        assert (follow.follow(repo, other), follow.follow(repo, other)) == (1, 0)
        assert other.execute("SELECT name, customer FROM orders").fetchall() == [("new", "bob")]
