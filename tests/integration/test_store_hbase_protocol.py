"""The protocol on HBase: the tests of §2.2, §2.4 and of the anomalies, on a real HBase.

Each class holds the tests of one module, which say what they claim; only what they stand on is
another here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from borrowed import protocol
from hbase import HBase, HBaseGround
from stores import Ground

from percola.store import shared_row
from percola.store.hbase import HBaseStore

NAMESPACE: Final = f"protocol_{os.getpid()}"


@pytest.fixture(scope="module")
def cleaner(hbase: HBase) -> Iterator[HBaseStore]:
    store = hbase.store(NAMESPACE)
    yield store
    store.close()


@pytest.fixture
def ground(
    hbase: HBase, cleaner: HBaseStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    """As `stores.ground`, on HBase."""
    # All processes must agree on it; here there is one.
    monkeypatch.setattr(shared_row, "LEASE", 0.02)
    with ExitStack() as stack:
        yield HBaseGround(hbase, NAMESPACE, cleaner, tmp_path, stack)


globals().update(protocol())
