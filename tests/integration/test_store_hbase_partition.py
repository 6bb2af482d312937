"""HBase with networks that are cut, between a client and everything, and around a region server.

Java runs in the bank's own processes only, not in this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hbase import require_jars
from namespaces import Namespace, Network, require_namespaces, token

from benchmarks.fig10_load import Bank, errors
from benchmarks.servers import OracleProcess
from percola.devcluster import Cluster
from percola.devcluster.settings import SMALL_HEAP

WaitUntil = Callable[..., Any]

__all__ = ["token"]

TIMEOUT = 4.0
NEAR, FAR = "c1", "c2"


@pytest.fixture(scope="module")
def network(token: None) -> Iterator[Network]:
    require_namespaces()
    require_jars()
    with Network() as running:
        yield running


@pytest.fixture(scope="module")
def away(network: Network) -> Namespace:
    """Where the second region server is."""
    return network.namespace()


@pytest.fixture(scope="module")
def cluster(
    network: Network, away: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two region servers and one data node; each test leaves all of them running."""
    with Cluster(
        tmp_path_factory.mktemp("partition") / "cluster",
        region_servers=2,
        data_nodes=1,
        heap=SMALL_HEAP,
        host=network.address,
        away={"regionserver-2": (away.address, away.name)},
        session=10,
    ) as running:
        yield running


def open_bank(
    stack: ExitStack, folder: Path, network: Network, cluster: Cluster, namespace: str
) -> Bank:
    """A bank in a namespace of HBase, with one oracle, and a client that is not away."""
    store = f"hbase://{cluster.quorum}/{namespace}"
    oracle = stack.enter_context(OracleProcess(store, f"{network.address}:0"))
    address = f"{store}?oracle={oracle.address}"
    # Beside other tests: clients that rest leave them the cores.
    bank = Bank(folder / "histories", address, clients=1, threads=1, timeout=TIMEOUT, pause=0.05)
    return stack.enter_context(bank)


@pytest.mark.long
@pytest.mark.timeout(900)  # HBase's start, and waits as long as sessions last.
def test_a_client_that_is_cut_off_waits_fails_in_words_and_tears_nothing(
    stack: ExitStack, network: Network, cluster: Cluster, tmp_path: Path, wait_until: WaitUntil
) -> None:
    far = network.namespace()
    bank = open_bank(stack, tmp_path, network, cluster, "client")
    bank.start_client(far.prefix).hear()
    bank.await_commits(20, FAR)

    # Shorter than any time-out: it costs time and nothing else.
    far.cut(network)
    bank.work(TIMEOUT / 8)
    far.mend(network)
    bank.await_commits(20, FAR)
    assert errors(bank.folder, FAR) == []

    # Longer: each thread is told, once its timeout is at its end.
    began = time.monotonic_ns()
    far.cut(network)
    bank.note("cut")
    notes = [bank.folder / f"{FAR}.{thread + 1}.errors" for thread in range(bank.threads)]
    wait_until(lambda: all(one.stat().st_size for one in notes), seconds=120)
    told = errors(bank.folder, FAR)
    # Others go on, whatever it has locked: once its session has ended at the latest.
    at = bank.commits(FAR)
    bank.await_commits(20, NEAR)
    assert bank.commits(FAR) == at
    far.mend(network)
    bank.await_commits(20, FAR)
    for one in told:
        assert one["ended"] > began
        assert one["ended"] - one["began"] < 45e9, one
        assert one["says"].endswith(".") or one["says"].endswith("?"), one
        assert "\n" not in one["says"] and "Traceback" not in one["says"], one
    verdict = bank.close()
    assert verdict.broken() == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_region_server_that_is_cut_off_is_replaced_and_what_it_still_thinks_changes_nothing(
    stack: ExitStack,
    network: Network,
    away: Namespace,
    cluster: Cluster,
    tmp_path: Path,
    wait_until: WaitUntil,
) -> None:
    bank = open_bank(stack, tmp_path, network, cluster, "server")
    server = cluster.process("regionserver-2")
    assert "accounts" in bank.placement(cluster)["regionserver-2"]
    bank.await_commits(20)

    # Shorter than its session: nobody else takes its regions.
    away.cut(network)
    bank.work(1.0)
    away.mend(network)
    bank.await_commits(20)
    assert "accounts" in bank.placement(cluster)["regionserver-2"]

    away.cut(network)
    bank.note("cut")
    wait_until(lambda: cluster.region_servers() == ["regionserver-1"], seconds=60)
    assert server.runs, "it was not the network that took it away"
    bank.await_commits(20)
    assert bank.placement(cluster)["regionserver-1"].count("accounts") == bank.regions
    away.mend(network)
    bank.note("mended", is_fault=False)
    wait_until(lambda: not server.runs, seconds=60, what="the server to give itself up")
    server.start()
    cluster.await_ready()
    bank.await_commits(20)
    verdict = bank.close()
    assert verdict.broken() == []
