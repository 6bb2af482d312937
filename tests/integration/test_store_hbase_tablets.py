"""§2.4 on HBase: workers of two processes serve every region of a table, and every row.

`make bench ARGS=tablets` is the same for longer, on two region servers, with a table of figures.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hbase import HBase

from benchmarks import tablets
from benchmarks.servers import OracleProcess

WaitUntil = Callable[..., Any]

REGIONS, ROWS, TURNS = 6, 8, 10


@pytest.mark.long
def test_workers_of_two_processes_serve_every_region_and_row_where_work_never_ends(
    hbase: HBase, wait_until: WaitUntil
) -> None:
    with ExitStack() as stack:
        place = hbase.place()
        store = f"hbase://{place.quorum}/{place.namespace}"
        oracle = stack.enter_context(OracleProcess(store))
        address = f"{store}?oracle={oracle.address}"
        tablets.set_up(address, REGIONS, ROWS)
        workers = [stack.enter_context(tablets.worker(address)) for _ in range(2)]
        enough = TURNS * REGIONS * ROWS / 2
        wait_until(
            lambda: all(one.runs() >= enough for one in workers), seconds=240, what="both to serve"
        )
        for one in workers:
            one.end()
        served = tablets.count(address, ROWS)
        print(tablets.shown(served))
    assert len(served.regions) == REGIONS
    assert served.missed == 0
    # Scanners that began near each other serve the same rows soon one after the other.
    assert max(served.totals) <= 3 * sum(served.totals) / REGIONS
