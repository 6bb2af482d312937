"""The development cluster for real: it comes up, it is killed in parts and as a whole, it ends.

A client of HBase is a JVM in a process, which cannot be had twice in one: each use of the cluster
is a process of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest
from children import Child, hear, say
from commands import run
from hbase import require_jars

from percola.devcluster import Cluster, ClusterError, pids

WaitUntil = Callable[..., Any]

SECONDS: Final = 240
COPROCESSOR: Final = "org.apache.hadoop.hbase.coprocessor.MultiRowMutationEndpoint"
ROWS: Final = 200


@pytest.fixture(autouse=True)
def _needs(java_home: Path) -> None:
    require_jars()


def use(pipe: Connection, folder: Path, quorum: str, *writes: int) -> list[int]:
    """A client: makes a table with the coprocessor, if there is none; writes; reads it all."""
    import jpype

    # It lives for a second.
    jpype.startJVM("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", classpath=[f"{folder}/*"])
    hbase, client = (
        jpype.JPackage("org").apache.hadoop.hbase,
        jpype.JPackage("org").apache.hadoop.hbase.client,
    )
    to_bytes = hbase.util.Bytes.toBytes

    host, _, port = quorum.partition(":")
    configuration = hbase.HBaseConfiguration.create()
    configuration.set("hbase.zookeeper.quorum", host)
    configuration.set("hbase.zookeeper.property.clientPort", port)
    connection = client.ConnectionFactory.createConnection(configuration)
    name = hbase.TableName.valueOf("numbers")
    admin = connection.getAdmin()
    if not admin.tableExists(name):
        made = client.TableDescriptorBuilder.newBuilder(name).setCoprocessor(COPROCESSOR)
        made.setColumnFamily(client.ColumnFamilyDescriptorBuilder.of("f"))
        admin.createTable(made.build())
    table = connection.getTable(name)
    family, column = to_bytes("f"), to_bytes("c")
    for number in range(*writes) if writes else ():
        put = client.Put(to_bytes(f"{number:06}"))
        table.put(put.addColumn(family, column, to_bytes(str(number))))
    rows = table.getScanner(client.Scan())
    found = [int(str(hbase.util.Bytes.toString(row.getValue(family, column)))) for row in rows]
    connection.close()
    return found


def used(cluster: Cluster, *writes: int) -> list[int]:
    """What the table holds after a client in a process of its own has written these numbers."""
    with Child(use, require_jars()["client"], cluster.quorum, *writes) as client:
        found: list[int] = client.hear()
        return found


@pytest.mark.long
def test_a_region_server_that_is_killed_and_started_again_loses_nothing(
    tmp_path: Path, wait_until: WaitUntil
) -> None:
    with Cluster.small(tmp_path, session=6) as cluster:
        assert cluster.region_servers() == ["regionserver-1"]
        assert all(state.pid and not state.stopped for state in cluster.status())
        with pytest.raises(ClusterError, match="is up already"), Cluster(tmp_path):
            pass
        assert used(cluster, ROWS) == list(range(ROWS))

        server = cluster.process("regionserver-1")
        killed = server.pid
        server.kill()
        assert not server.runs
        assert cluster.region_servers() == ["regionserver-1"], "its session has not ended yet"
        wait_until(lambda: cluster.region_servers() == [], seconds=60, what="the master to notice")
        server.start()
        cluster.await_ready()
        assert cluster.region_servers() == ["regionserver-1"]
        assert server.pid != killed
        assert used(cluster, ROWS, 2 * ROWS) == list(range(2 * ROWS))

        # At once, while the master still takes the old one for alive.
        server.kill()
        server.start()
        assert cluster.region_servers() == []
        cluster.await_ready()
        assert used(cluster) == list(range(2 * ROWS))

        server.stop()
        assert server.state.stopped
        server.resume()
        assert not server.state.stopped
        running = pids.running(tmp_path)
        assert set(running) == set(cluster.names)
    assert not any(process.runs for process in running.values())
    assert pids.running(tmp_path) == {}
    assert list((tmp_path / "pids").iterdir()) == []


def hold(pipe: Connection, folder: Path) -> None:
    """A program that uses a cluster until it is killed."""
    with Cluster.small(folder):
        say(pipe, "up")
        hear(pipe)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["format", "regionserver-1", "up"])
def test_a_cluster_ends_with_the_program_that_started_it(
    tmp_path: Path, moment: str, wait_until: WaitUntil
) -> None:
    with Child(hold, tmp_path) as program:
        if moment == "up":
            assert program.hear() == "up"
        else:
            wait_until(lambda: moment in pids.running(tmp_path), seconds=90, what=moment)
        left = [*pids.running(tmp_path).values(), pids.noted(tmp_path, pids.GUARD)]
        assert len(left) >= 2
        os.kill(program.pid, signal.SIGKILL)
        wait_until(lambda: not any(one and one.runs for one in left), what="the end of all")
        assert pids.running(tmp_path) == {}


def command(*words: str) -> str:
    """What the command printed; it succeeded."""
    done = run("dev-cluster", *words, seconds=SECONDS)
    assert done.code == 0, done.out + done.err
    return done.out


@pytest.mark.long
def test_a_cluster_from_the_command_line_runs_until_it_is_taken_down_and_keeps_its_tables(
    tmp_path: Path,
) -> None:
    cluster = Cluster.small(tmp_path)
    try:
        said = command("up", "--small", "--folder", str(tmp_path))
        assert cluster.address in said and str(cluster.logs) in said
        first = pids.running(tmp_path)
        assert set(first) == set(cluster.names)
        assert used(cluster, ROWS) == list(range(ROWS))
        assert "up after 0 s" in command("up", "--folder", str(tmp_path))
        assert pids.running(tmp_path) == first
        assert f"pid {first['master'].pid}" in command("status", "--folder", str(tmp_path))

        # By another process than the one that started it, and with a server that does not listen.
        cluster.process("regionserver-1").stop()
        command("down", "--folder", str(tmp_path))
        assert not any(process.runs for process in first.values())
        assert list((tmp_path / "pids").iterdir()) == []

        command("up", "--folder", str(tmp_path))
        assert used(cluster) == list(range(ROWS))
        command("down", "--folder", str(tmp_path))
        assert pids.running(tmp_path) == {}
    finally:
        pids.end_all(tmp_path)
