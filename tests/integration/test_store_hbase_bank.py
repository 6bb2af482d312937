"""Figure 10 in small: a bank on HBase while servers, an oracle, ZooKeeper's leader, a client die.

Java runs in the bank's own processes only, not in this one. `make bench ARGS=fig10_faults` is the
same for longer, with a curve.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hbase import require_jars
from oracle_drawing import Drawing
from oracle_schedules import broken_promises

from benchmarks.fig10_faults import arena
from benchmarks.servers import leader
from percola.coordination.zookeeper.coordination import ZooKeeperCoordination
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
        tmp_path / "cluster",
        region_servers=3,
        data_nodes=1,
        heap=SMALL_HEAP,
        session=10,
        zookeepers=3,
    )
    with (
        arena(tmp_path, clients=2, threads=1, cluster=small, pause=0.05) as faults,
        ExitStack() as stack,
    ):
        bank, cluster = faults.bank, faults.cluster
        bank.await_commits(25)

        faults.kill_region_server(of_meta=False)
        [killed] = [name for name in faults.placed if not cluster.process(name).runs]
        assert "accounts" in faults.placed[killed]
        wait_until(lambda: killed not in cluster.region_servers(), seconds=60)
        bank.await_commits(25)
        now = bank.placement(cluster)
        assert killed not in now and sum(one.count("accounts") for one in now.values()) == 6
        faults.start_servers()

        handed_out = leader(faults.oracles)
        faults.kill_oracle()
        assert handed_out.process.returncode == -9
        bank.await_commits(15)
        assert leader(faults.oracles) is not handed_out
        faults.start_oracles()

        # The leader of the ensemble, while each oracle is asked for timestamps by itself.
        servers = cluster.quorum.split(",")
        living, watching = (
            # Their sessions outlast an election on any machine.
            ZooKeeperCoordination(servers, "/percola/living", session_seconds=60)
            for _ in range(2)
        )
        stack.callback(living.close)
        stack.callback(watching.close)
        token, led = living.token, cluster.zookeeper_leader()
        drawing = [Drawing(stack, n, one.address) for n, one in enumerate(faults.oracles)]
        faults.kill_zookeeper()
        assert not led.runs
        drawn = sum(len(one.events) for one in drawing)
        bank.await_commits(15)
        cluster.await_ready()
        assert cluster.zookeeper_leader().name != led.name
        wait_until(lambda: sum(len(one.events) for one in drawing) > drawn + 50)
        assert living.token == token
        assert token in {process["token"] for process in watching.processes()}
        faults.start_servers()
        for one in drawing:
            one.stop()
        assert broken_promises([event for one in drawing for event in one.events]) == []
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
