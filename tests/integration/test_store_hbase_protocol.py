"""The protocol on HBase: the tests of §2.2, §2.4 and of the anomalies, on a real HBase.

Each class holds the tests of one module, which say what they claim; only what they stand on is
another here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from hbase import HBase, empty, hbase
from stores import Ground

from percola.coordination.memory import MemoryCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.store import hbase_shared
from percola.store.hbase import HBaseStore
from percola.store.memory import MemoryStore
from tests.anomalies import (
    test_dirty_read,
    test_dirty_write,
    test_lost_update,
    test_phantoms,
    test_predicate_write_skew,
    test_read_only_anomaly,
    test_read_skew,
    test_write_skew,
)
from tests.paper import (
    test_2_1_garbage_collection,
    test_2_2_joint,
    test_2_2_locks,
    test_2_2_lost_replies,
    test_2_2_reads,
    test_2_2_retry,
    test_2_2_transactions,
    test_2_4_failures,
    test_2_4_notifications,
    test_2_4_observers,
    test_feed,
)

__all__ = ["hbase"]

MODULES: Final = (
    test_2_1_garbage_collection,
    test_2_2_joint,
    test_2_2_locks,
    test_2_2_lost_replies,
    test_2_2_reads,
    test_2_2_retry,
    test_2_2_transactions,
    test_2_4_failures,
    test_2_4_notifications,
    test_2_4_observers,
    test_dirty_read,
    test_dirty_write,
    test_feed,
    test_lost_update,
    test_phantoms,
    test_predicate_write_skew,
    test_read_only_anomaly,
    test_read_skew,
    test_write_skew,
)


NAMESPACE: Final = f"protocol_{os.getpid()}"


class HBaseGround(Ground):
    """A namespace of a real HBase; timestamps and liveness tokens come from this process."""

    def __init__(self, hbase: HBase, folder: Path, stack: ExitStack) -> None:
        self.kind, self.one_step, self.folder = "hbase", False, folder
        store = hbase.store(NAMESPACE)
        # A store of its own, for the test may close this one.
        stack.callback(self._clear, hbase.store(NAMESPACE))
        # No call of these tests outlives its caller, and they watch what the collector does.
        store.latest_arrival = 0.0
        self.store = store  # type: ignore[assignment]
        self.coordination = MemoryCoordination()
        stack.callback(self.store.close)
        stack.callback(self.coordination.close)
        self.oracle = EmbeddedOracle(MemoryStore())

    @staticmethod
    def _clear(store: HBaseStore) -> None:
        """Leave the namespace to the next test, for making one takes seconds."""
        empty(store)
        store.close()


@pytest.fixture
def ground(hbase: HBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """As `stores.ground`, on HBase."""
    # All processes must agree on it; here there is one.
    monkeypatch.setattr(hbase_shared, "LEASE", 0.02)
    with ExitStack() as stack:
        yield HBaseGround(hbase, tmp_path, stack)


def on_hbase(module: ModuleType) -> type:
    """The module's tests as a class, with its fixtures `repo` and `pair` on HBase."""

    @pytest.fixture
    def repo(self: object, ground: Ground) -> Any:
        return ground.repo(module.TABLES)

    @pytest.fixture
    def pair(self: object, ground: Ground) -> Any:
        return module.pair.__wrapped__(ground)

    tests = {name: staticmethod(one) for name, one in vars(module).items() if name[:5] == "test_"}
    assert tests, f"{module.__name__} has no tests"
    return type("Test", (), {**tests, "repo": repo, "pair": pair, "__doc__": module.__doc__})


for _module in MODULES:
    _name = _module.__name__.rpartition(".")[2].removeprefix("test_")
    globals()["Test_" + _name] = on_hbase(_module)
