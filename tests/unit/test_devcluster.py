"""The development cluster without its servers: ports, settings, and what it refuses."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import socket
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import call, run
from hypothesis import given
from hypothesis import strategies as st
from stores import DEADLINE, in_thread

from percola.devcluster import Cluster, ClusterError, pids, settings
from percola.devcluster.settings import HEAP, MOST, PORTS, SMALL_HEAP, Layout

region_counts = st.integers(1, MOST["region_servers"])
data_counts = st.integers(1, MOST["data_nodes"])
zookeeper_counts = st.integers(1, MOST["zookeepers"])


def listening(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def read_settings(file: Path) -> dict[str, str]:
    return {
        str(entry.findtext("name")): str(entry.findtext("value"))
        for entry in ET.parse(file).getroot()
    }


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that runs nothing: it does what its program `act` says, given the process's name."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/sh\n"
        "for word; do case $word in -Dpercola.process=*) name=${word#*process=} ;; esac; done\n"
        f'. "{home}/act"\n'
    )
    program.chmod(0o755)
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "hbase-server-2.jar").touch()
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PERCOLA_HBASE_SERVER_JARS", str(jars))
    return home / "act"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cluster's folder; nothing of it outlives the test."""
    folder = tmp_path / "cluster"
    yield folder
    pids.end_all(folder)


# --- Ports --------------------------------------------------------------------------------


@given(region_servers=region_counts, data_nodes=data_counts, zookeepers=zookeeper_counts)
def test_every_port_of_a_cluster_is_its_own_and_in_its_row(
    region_servers: int, data_nodes: int, zookeepers: int
) -> None:
    layout = Layout(region_servers, data_nodes, 21_000, zookeepers=zookeepers)
    ports = list(itertools.chain.from_iterable(layout.ports(name) for name in layout.names))
    assert len(layout.names) == 2 + region_servers + data_nodes + zookeepers
    assert len(set(ports)) == len(ports)
    assert set(ports) <= set(range(21_000, 21_000 + PORTS))


def test_a_row_of_ports_in_which_one_is_taken_is_passed_over(tmp_path: Path) -> None:
    first = settings.choose_ports(tmp_path)
    assert settings.choose_ports(tmp_path) == first
    with listening(first + 7):
        assert not settings.is_free(first + 7)
        assert not 0 <= first + 7 - settings.choose_ports(tmp_path) < PORTS
    assert settings.choose_ports(tmp_path) == first


def test_ports_are_free_at_the_address_on_which_the_cluster_listens(tmp_path: Path) -> None:
    first = Cluster(tmp_path, host="127.0.0.2").layout.first_port
    with socket.create_server(("127.0.0.2", first + 7)):
        other = Cluster(tmp_path, host="127.0.0.2").layout.first_port
        assert not 0 <= first + 7 - other < PORTS


def test_no_free_row_of_ports_is_said(tmp_path: Path) -> None:
    first = settings.choose_ports(tmp_path)
    with listening(first), pytest.raises(ClusterError, match=r"no 56 free ports.*ss -ltnp"):
        settings.choose_ports(tmp_path, range(first, first + 1))


# --- The folder ---------------------------------------------------------------------------


@given(region_servers=region_counts, data_nodes=data_counts, first_port=st.integers(1024, 65_000))
def test_a_layout_is_found_again_in_its_folder(
    tmp_path_factory: pytest.TempPathFactory, region_servers: int, data_nodes: int, first_port: int
) -> None:
    folder = tmp_path_factory.mktemp("layout")
    assert Layout.load(folder) is None
    layout = Layout(region_servers, data_nodes, first_port, SMALL_HEAP)
    layout.save(folder)
    assert Layout.load(folder) == layout
    shutil.rmtree(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"region_servers": 3}', '"x"'])
def test_a_damaged_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ClusterError, match=r"cluster\.json does not describe.*another folder"):
        Cluster(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(({"region_servers": number}, "1 to 15 region servers, not") for number in (0, 16)),
        *(({"data_nodes": number}, "1 to 7 data nodes, not") for number in (0, 8)),
        *(({"zookeepers": number}, "1 to 3 zookeepers, not") for number in (0, 4)),
        ({"heap": {**HEAP, "regionservers": 5}}, r"heap.*regionservers"),
        ({"session": 1}, "silent for 2 seconds or more, not 1"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ClusterError, match=says):
        Cluster(tmp_path, **options)


def test_a_folder_keeps_the_cluster_that_it_has(tmp_path: Path) -> None:
    made = Cluster.small(tmp_path)
    made.layout.save(tmp_path)
    assert Cluster(tmp_path).layout == made.layout
    assert Cluster(tmp_path / ".." / tmp_path.name).address == made.address
    with pytest.raises(ClusterError, match="with region servers 1, not 2: leave that out"):
        Cluster(tmp_path, region_servers=2)
    with pytest.raises(ClusterError, match="with zookeepers 1, not 3"):
        Cluster(tmp_path, zookeepers=3)


@pytest.mark.parametrize("name", ["a b", "a:b", "a,b", "a*", "${x}", "100%"])
def test_a_path_that_hadoop_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClusterError, match=r"Hadoop takes .* Name another folder"):
        Cluster(tmp_path / name)


def test_a_process_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    cluster = Cluster.small(tmp_path)
    with pytest.raises(ClusterError, match=r"no process 'regionserver-2'.*regionserver-1"):
        cluster.process("regionserver-2")
    with pytest.raises(ClusterError, match=r"regionserver-1 .* does not run"):
        cluster.process("regionserver-1").stop()


# --- Settings -----------------------------------------------------------------------------


def test_every_process_listens_on_the_loopback_address_and_on_its_ports(tmp_path: Path) -> None:
    layout = Layout(3, 3, 21_000)
    for name in layout.names:
        conf = settings.write_files(tmp_path, layout, name)
        said = "".join(file.read_text() for file in conf.iterdir() if file.is_file())
        for port in layout.ports(name):
            assert str(port) in said, (name, port)
        assert "0.0.0.0" not in said
    hdfs = read_settings(tmp_path / "conf" / "datanode-3" / "hdfs-site.xml")
    assert hdfs["dfs.datanode.address"] == f"127.0.0.1:{layout.ports('datanode-3')[0]}"
    assert hdfs["dfs.replication"] == "3"
    hbase = read_settings(tmp_path / "conf" / "regionserver-2" / "hbase-site.xml")
    assert hbase["hbase.regionserver.port"] == str(layout.ports("regionserver-2")[0])
    assert hbase["hbase.rootdir"] == f"hdfs://127.0.0.1:{layout.ports('namenode')[0]}/hbase"
    assert hbase["hbase.coprocessor.user.enabled"] == "true"
    assert "tickTime=1000" in (tmp_path / "conf" / "zookeeper" / "zoo.cfg").read_text()


def test_a_server_may_be_silent_as_long_as_said_and_the_master_longer(tmp_path: Path) -> None:
    def timeouts(layout: Layout) -> list[str]:
        settings.write_files(tmp_path, layout, "zookeeper")
        [longest] = [
            line.partition("=")[2]
            for line in (tmp_path / "conf" / "zookeeper" / "zoo.cfg").read_text().splitlines()
            if line.startswith("maxSessionTimeout=")
        ]
        found = [longest]
        for name in ("regionserver-1", "master"):
            conf = settings.write_files(tmp_path, layout, name)
            found.append(read_settings(conf / "hbase-site.xml")["zookeeper.session.timeout"])
        return found

    assert timeouts(Layout(1, 1, 21_000)) == ["90000", "90000", "90000"]
    assert timeouts(Layout(1, 1, 21_000, session=6)) == ["90000", "6000", "90000"]
    assert timeouts(Layout(1, 1, 21_000, session=120)) == ["120000", "120000", "120000"]
    made = Cluster.small(tmp_path / "cluster", session=6)
    made.folder.mkdir()
    made.layout.save(made.folder)
    assert Cluster(made.folder).layout.session == 6
    with pytest.raises(ClusterError, match="with session 6, not 7"):
        Cluster(made.folder, session=7)


def test_further_settings_overrule_the_usual_ones_and_stay(tmp_path: Path) -> None:
    own = {"hbase.rpc.timeout": "777", "hbase.server.netty.tls.enabled": "true"}
    made = Cluster.small(tmp_path)
    assert made.layout.settings == {}
    made = Cluster(tmp_path, region_servers=1, settings=own)
    made.layout.save(tmp_path)
    again = Cluster(tmp_path)
    conf = settings.write_files(tmp_path, again.layout, "master")
    found = read_settings(conf / "hbase-site.xml")
    assert {name: found[name] for name in own} == own
    with pytest.raises(ClusterError, match="with settings"):
        Cluster(tmp_path, settings={})


def test_servers_of_an_ensemble_know_each_other_and_clients_all_of_them(tmp_path: Path) -> None:
    layout = Layout(1, 1, 21_000, zookeepers=3)
    assert [name for name in layout.names if "zoo" in name] == [f"zookeeper-{n}" for n in (1, 2, 3)]
    assert layout.quorum == "127.0.0.1:21000,127.0.0.1:21048,127.0.0.1:21049"
    said = []
    for number, port in ((1, 21_000), (2, 21_048), (3, 21_049)):
        conf = settings.write_files(tmp_path, layout, f"zookeeper-{number}")
        assert (tmp_path / "data" / f"zookeeper-{number}" / "myid").read_text() == f"{number}\n"
        lines = (conf / "zoo.cfg").read_text().splitlines()
        assert f"clientPort={port}" in lines
        said.append([line for line in lines if line.startswith("server.")])
    peers = [f"server.{n}=127.0.0.1:{21_048 + 2 * n}:{21_049 + 2 * n}" for n in (1, 2, 3)]
    assert said == [peers] * 3
    for name in ("master", "regionserver-1"):
        conf = settings.write_files(tmp_path, layout, name)
        found = read_settings(conf / "hbase-site.xml")
        assert found["hbase.zookeeper.quorum"] == layout.quorum
    alone = settings.write_files(tmp_path, Layout(1, 1, 21_000), "zookeeper") / "zoo.cfg"
    assert "server." not in alone.read_text(), "it needs no other"


def test_a_block_has_no_more_replicas_than_there_are_data_nodes(tmp_path: Path) -> None:
    for data_nodes, replicas in ((1, "1"), (2, "2"), (5, "3")):
        conf = settings.write_files(tmp_path, Layout(1, data_nodes, 21_000), "namenode")
        assert read_settings(conf / "hdfs-site.xml")["dfs.replication"] == replicas


def test_the_memory_of_every_process_is_bounded(tmp_path: Path) -> None:
    layout = Layout(3, 3, 21_000)
    heaps = []
    for name in layout.names:
        words = settings.command(tmp_path, layout, name, Path("java"))
        heaps += [int(word[4:-1]) for word in words if word.startswith("-Xmx")]
        assert any(word.startswith("-XX:MaxDirectMemorySize=") for word in words)
    assert len(heaps) == len(layout.names)
    assert sum(heaps) < 4000


def test_options_for_java_reach_every_process_and_come_after_those_set_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERCOLA_HBASE_SERVER_JVM_OPTIONS", "-Xmx99m '-Da=b c'")
    layout = Layout(1, 1, 21_000)
    for name in layout.names:
        words = settings.command(tmp_path, layout, name, Path("java"))
        assert [word for word in words if word.startswith("-Xmx")][-1] == "-Xmx99m"
        assert "-Da=b c" in words


def test_options_for_java_with_an_open_quote_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERCOLA_HBASE_SERVER_JVM_OPTIONS", "-Da='b")
    with pytest.raises(ClusterError, match=r"JVM_OPTIONS=-Da='b cannot be split .* quotation"):
        settings.command(tmp_path, Layout(1, 1, 21_000), "master", Path("java"))


def test_what_the_environment_says_of_another_hadoop_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/elsewhere")
    monkeypatch.setenv("HBASE_OPTS", "-Xmx1m")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m")
    found = settings.environment(tmp_path, "master", tmp_path / "jars")
    assert not {"HADOOP_CONF_DIR", "HBASE_OPTS", "JAVA_TOOL_OPTIONS"} & set(found)
    assert found["CLASSPATH"] == f"{tmp_path}/conf/master:{tmp_path}/jars/*"
    assert found["PATH"] == os.environ["PATH"]


# --- Refusals -----------------------------------------------------------------------------


def test_without_java_or_jars_nothing_starts(
    java: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster.small(folder)
    java.write_text("exit 0\n")
    monkeypatch.setenv("PERCOLA_HBASE_SERVER_JARS", str(tmp_path))
    with pytest.raises(ClusterError, match=r"not in .* names the wrong folder"):
        cluster.up()
    monkeypatch.delenv("PERCOLA_HBASE_SERVER_JARS")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ClusterError, match=r"percola hbase-jars server"):
        cluster.up()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match=r"Java.*17 or later.*JAVA_HOME=.*none is none"):
        cluster.up()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"Java.*none was found.*install one"):
        cluster.up()


def test_a_java_that_is_too_old_is_refused(java: Path) -> None:
    (java.parent / "release").write_text('IMPLEMENTOR="X"\nJAVA_VERSION="11.0.2"\n')
    with pytest.raises(ClusterError, match=r"needs Java 17 or later, and .*java is \"11.0.2\""):
        settings.find_java()
    (java.parent / "release").write_text('JAVA_VERSION="21-ea"\n')
    assert settings.find_java() == java.parent / "bin" / "java"


def test_a_port_that_is_taken_is_named_with_who_wants_it(java: Path, folder: Path) -> None:
    java.write_text("exec tail -f /dev/null\n")
    cluster = Cluster.small(folder)
    port = cluster.layout.ports("datanode-1")[2]
    with (
        listening(port),
        pytest.raises(ClusterError, match=f"Port {port}, .*datanode-1.* is taken"),
    ):
        cluster.up()
    assert pids.running(folder) == {}


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_an_address_that_this_machine_lacks_is_no_question_of_a_taken_port(
    java: Path, folder: Path, host: str
) -> None:
    with pytest.raises(ClusterError, match=f"cannot listen at {host}.*IPv4 address of this"):
        Cluster(folder, host=host).up()


def test_an_address_that_clients_cannot_use_is_refused(java: Path, folder: Path) -> None:
    with pytest.raises(ClusterError, match=r"0\.0\.0\.0: HBase's servers tell their clients"):
        Cluster(folder, host="0.0.0.0").up(seconds=0.1)


def test_a_folder_that_cannot_be_made_is_told(java: Path) -> None:
    with pytest.raises(ClusterError, match=r"cannot stand in /proc/percola: "):
        Cluster("/proc/percola").up()


def test_what_hdfs_said_when_it_could_not_be_formatted_is_told(java: Path, folder: Path) -> None:
    java.write_text("echo Error: Could not find or load main class X; echo more; exit 1\n")
    with pytest.raises(ClusterError, match=r"(?s)formatted: Error: Could not .*format\.out$"):
        Cluster.small(folder).up()
    assert pids.running(folder) == {}


def test_what_was_interrupted_while_hdfs_was_formatted_is_formatted_anew(
    java: Path, folder: Path
) -> None:
    current = folder / "data" / "namenode" / "current"
    current.mkdir(parents=True)
    for name in ("VERSION", "seen_txid", "fsimage.ckpt_0000000000000000000.md5"):
        (current / name).touch()
    java.write_text("echo Error: $name once more; exit 1\n")
    with pytest.raises(ClusterError, match="could not be formatted: Error: format once more"):
        Cluster.small(folder).up()


def test_one_that_ends_at_start_is_named_and_the_others_are_ended(java: Path, folder: Path) -> None:
    java.write_text(
        "case $name in format) exit 0 ;; namenode) ;; *) exec tail -f /dev/null ;; esac\n"
        f'echo "2026-01-01 ERROR [main] Address in use" >"{folder}/logs/namenode.log"\n'
        f'echo "2026-01-01 INFO  [main] Exiting" >>"{folder}/logs/namenode.log"\n'
        # The wait is over once the others run, so that there is something to end.
        f'while [ ! -e "{folder}/pids/datanode-1" ]; do :; done\n'
    )
    with pytest.raises(ClusterError, match=r"(?s)namenode ended.*Address in use\n.*namenode\.log"):
        Cluster.small(folder).up()
    assert (folder / "logs" / "zookeeper.out").exists()
    assert pids.running(folder) == {}
    assert list((folder / "pids").iterdir()) == []


def test_a_process_that_ended_before_anybody_looked_is_named(
    java: Path, folder: Path, wait_until: Callable[..., object]
) -> None:
    java.write_text("echo Error: at once; exit 1\n")
    cluster = Cluster.small(folder)
    server = cluster.process("zookeeper")
    server.start()
    wait_until(lambda: not server.runs)
    with pytest.raises(ClusterError, match=r"zookeeper ended.*: Error: at once\nIts log: .*out$"):
        cluster.await_ready(5)
    with pytest.raises(ClusterError, match=r"zookeeper of .* has ended: Error: at once"):
        cluster.check()


def test_of_two_that_start_one_cluster_the_second_waits_and_ends_nothing_of_the_firsts(
    java: Path, folder: Path, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    go = tmp_path / "go"
    java.write_text(f"while [ ! -e {go} ]; do sleep 0.01; done; echo Error: told; exit 1\n")
    first = in_thread(Cluster.small(folder).up)
    wait_until(lambda: pids.noted(folder, "format"))
    formatting = pids.noted(folder, "format")
    with pytest.raises(ClusterError, match="Another program is still starting the cluster"):
        Cluster.small(folder).up(seconds=0.1)
    assert pids.noted(folder, "format") == formatting
    go.touch()
    with pytest.raises(ClusterError, match="formatted: Error: told"):
        first.result(DEADLINE)


def test_the_time_that_it_may_take_is_bounded(java: Path, folder: Path) -> None:
    java.write_text("exec tail -f /dev/null\n")
    image = folder / "data" / "namenode" / "current" / "fsimage_0000000000000000000.md5"
    image.parent.mkdir(parents=True)
    image.touch()  # Formatting, which may take its time here, is done.
    with pytest.raises(ClusterError, match=r"HDFS in .* did not come up in time.*logs"):
        Cluster.small(folder).up(seconds=0.5)
    assert pids.running(folder) == {}


def test_the_command_says_what_is_wrong_in_a_sentence(folder: Path, java: Path) -> None:
    for words in (["down"], ["status"]):
        done = run("--json", "dev-cluster", *words, "--folder", folder)
        told = f"There is no development cluster in {folder}."
        assert (done.code, done.err) == (1, f"Error: {told}\n")
        assert done.json == {"error": {"kind": "ClusterError", "message": told}}
    java.write_text("echo Error: no; exit 1\n")
    done = run("dev-cluster", "up", "--small", "--folder", folder)
    assert done.code == 1
    assert "Error: HDFS could not be formatted: Error: no " in done.err


def one_started(java: Path, folder: Path) -> Cluster:
    """A cluster of which only ZooKeeper has been started."""
    java.write_text("exec tail -f /dev/null\n")
    cluster = Cluster.small(folder)
    cluster.folder.mkdir()
    cluster.layout.save(folder)
    cluster.process("zookeeper").start()
    return cluster


def test_status_lists_what_runs_and_fails_if_something_does_not(java: Path, folder: Path) -> None:
    cluster = one_started(java, folder)
    server = cluster.process("zookeeper")
    server.stop()
    done = call("dev-cluster", "status", "--folder", folder)
    assert done.code == 1
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(cluster.names)
    assert f"pid {server.pid}" in lines[0] and lines[0].endswith("stopped")
    assert all("does not run" in line for line in lines[1:-1])
    assert lines[-1].endswith(cluster.address)
    told = call("--json", "dev-cluster", "status", "--folder", folder).json
    assert told["address"] == cluster.address
    assert [one["pid"] for one in told["processes"]] == [server.pid, None, None, None, None]
    assert call("dev-cluster", "down", "--folder", folder).code == 0
    assert not server.runs


def test_a_cluster_of_another_user_is_told_when_it_is_to_be_taken_down(
    java: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = one_started(java, folder).process("zookeeper")

    def not_permitted(handle: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as another:
        another.setattr(signal, "pidfd_send_signal", not_permitted)
        done = call("dev-cluster", "down", "--folder", folder)
    assert (done.code, server.runs) == (1, True)
    assert f"The cluster in {folder} cannot be taken down" in done.err
    assert "another user's (Operation not permitted). Do so as that user." in done.err


@pytest.mark.parametrize("start", [Cluster.up, Cluster.__enter__])
def test_on_a_full_disk_no_process_is_left_that_nobody_knows_of(
    java: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[Cluster], object],
) -> None:
    java.write_text("exec tail -f /dev/null\n")
    started: list[pids.ProcessId] = []

    def note(folder: Path, name: str, process: pids.ProcessId) -> None:
        started.append(process)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pids, "note", note)
    with pytest.raises(ClusterError, match=r"cannot stand in .*No space left on device"):
        start(Cluster.small(folder))
    assert [one.runs for one in started] == [False]


def test_what_ended_without_a_word_on_a_full_disk_is_said_to_have_had_no_room(
    java: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java.write_text("exit 1\n")
    monkeypatch.setattr(shutil, "disk_usage", lambda of: SimpleNamespace(free=4096))
    with pytest.raises(ClusterError, match="formatted: the disk is full; it said nothing"):
        Cluster.small(folder).up()
