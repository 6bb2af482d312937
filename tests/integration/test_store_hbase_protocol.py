"""The protocol on HBase: the tests of §2.2, §2.4 and of the anomalies, on a real HBase.

Each class holds the tests of one module, which say what they claim; only what they stand on is
another here.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from borrowed import protocol
from hbase import REGION_SERVERS, check_upkeep, fixtures_in
from hbase_admin import Admin
from hbase_upkeep import Upkeep
from stores import Ground

from percola import Table
from percola.store.hbase.store import HBaseStore

NAMESPACE: Final = f"protocol_{os.getpid()}"


cleaner, upkeep, ground = fixtures_in(NAMESPACE)
globals().update(protocol())


def test_rows_of_the_tables_of_these_tests_stand_on_three_servers(
    ground: Ground, cleaner: HBaseStore
) -> None:
    ground.repo([Table("docs")])
    admin = Admin(cleaner)
    made = admin.tables()
    assert "docs" in made
    for name in made:
        assert len({admin.server(name, row) for row in (b"a", b"b", b"x")}) == REGION_SERVERS, name


@pytest.mark.long
def test_the_tables_of_these_tests_are_flushed_and_compacted_meanwhile(
    ground: Ground, upkeep: Upkeep
) -> None:
    check_upkeep(ground, upkeep)
