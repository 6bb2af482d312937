"""Figure 10 in small: a bank on HBase while a server, an oracle, ZooKeeper, a client are killed.

Java runs in the bank's own processes only, not in this one. `make bench ARGS=fig10_faults` is the
same for longer, with a curve.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hbase import require_jars

from benchmarks.fig10_faults import arena
from benchmarks.servers import leader
from percola.devcluster import Cluster
from percola.devcluster.settings import SMALL_HEAP

WaitUntil = Callable[..., Any]


@pytest.mark.long
@pytest.mark.timeout(900)  # HBase's start, and waits as long as sessions last.
def test_money_is_neither_made_nor_lost_while_servers_of_every_kind_are_killed(
    tmp_path: Path, wait_until: WaitUntil
) -> None:
    require_jars()
    # Beside other tests: as small as it can be, clients that rest, and a session that bears it.
    small = Cluster(
        tmp_path / "cluster", region_servers=3, data_nodes=1, heap=SMALL_HEAP, session=10
    )
    with arena(tmp_path, clients=2, threads=1, cluster=small, pause=0.05) as faults:
        bank, cluster = faults.bank, faults.cluster
        bank.await_commits(25)

        faults.kill_region_server(of_meta=False)
        [killed] = [name for name in faults.placed if not cluster.process(name).runs]
        assert "accounts" in faults.placed[killed]
        wait_until(lambda: killed not in cluster.region_servers(), seconds=60)
        bank.await_commits(25)
        now = bank.placement(cluster)
        assert killed not in now and sum(one.count("accounts") for one in now.values()) == 6
        faults.start_region_servers()

        handed_out = leader(faults.oracles)
        faults.kill_oracle()
        assert handed_out.process.returncode == -9
        bank.await_commits(15)
        assert leader(faults.oracles) is not handed_out
        faults.start_oracles()

        faults.kill_zookeeper()
        assert not cluster.process("zookeeper").runs
        faults.start_zookeeper()
        bank.await_commits(15)

        victim = bank.clients[0]
        faults.kill_client()
        assert victim.process.returncode == -9
        bank.await_commits(25)
        cluster.await_ready()
        verdict = bank.close()
    assert len([one for one in bank.events if one.is_fault]) == 4
    assert verdict.broken() == []
    assert verdict.outcomes["committed"] >= 105
    # What clients were told is what a server that is gone may be told as, and nothing worse.
    assert {one["error"] for one in verdict.errors} <= {
        "StoreError",
        "OutcomeUnknownError",
        "CommitUnknownError",
        "RetriesExhaustedError",
    }
