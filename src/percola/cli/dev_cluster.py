"""`dev-cluster`: starts and stops an HBase on this machine; `hbase-jars`: fetches its jars."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

import click

from percola.cli.session import Session, json_option
from percola.devcluster import jars
from percola.devcluster.cluster import Cluster
from percola.devcluster.settings import MOST, SMALL_HEAP, ClusterError, Layout

MIB: Final = 1 << 20

folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cache/hbase-cluster"),
    show_default=True,
    help="Where everything of the cluster stands: settings, data, logs.",
)


@click.group(name="dev-cluster")
@json_option
def dev_cluster() -> None:
    """Start a real HBase on this machine, for development.

    ZooKeeper, NameNode, three DataNodes, master and three region servers, each in a separate
    process; everything listens on 127.0.0.1, unless --host says otherwise. It needs Java 17 and
    about 5 GB of memory (2 with --small). Its jars are fetched with Maven the first time.
    """


@dev_cluster.command()
@folder_option
@click.option(
    "--region-servers",
    type=click.IntRange(1, MOST["region_servers"]),
    help="How many.  [default: 3]",
)
@click.option(
    "--data-nodes", type=click.IntRange(1, MOST["data_nodes"]), help="How many.  [default: 3]"
)
@click.option(
    "--zookeepers",
    type=click.IntRange(1, MOST["zookeepers"]),
    help="How many ZooKeeper servers; three go on when one is lost.  [default: 1]",
)
@click.option("--small", is_flag=True, help="One region server, one DataNode, less memory.")
@click.option(
    "--first-port",
    type=click.IntRange(1024, 65_000),
    help="The first of 56 ports.  [default: what is free, below 32000]",
)
@click.option(
    "--session",
    type=click.IntRange(2),
    metavar="SECONDS",
    help="A server that is silent for so long is taken for dead.  [default: 90]",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    help="The address of this machine on which everything listens, without a password.  "
    "[default: 127.0.0.1]",
)
@json_option
@click.pass_obj
def up(
    to_show: Session,
    folder: Path,
    region_servers: int | None,
    data_nodes: int | None,
    zookeepers: int | None,
    small: bool,
    first_port: int | None,
    session: int | None,
    host: str | None,
) -> None:
    """Start all processes that are not running; they run until `down`."""
    # On SIGTERM, stop the processes that were started, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if small:
        region_servers, data_nodes = region_servers or 1, data_nodes or 1
    cluster = Cluster(
        folder,
        region_servers=region_servers,
        data_nodes=data_nodes,
        heap=SMALL_HEAP if small else None,
        first_port=first_port,
        session=session,
        host=host,
        zookeepers=zookeepers,
    )
    jars.install_all(_tell)
    begun = time.monotonic()
    cluster.up(tell=lambda step: _tell(f"starting {step} …"))
    to_show.show(
        {"address": cluster.address, "web": cluster.web, "logs": str(cluster.logs)},
        f"up after {time.monotonic() - begun:.0f} s: {cluster.address}\n"
        f"tables and servers: {cluster.web}\n"
        f"logs:               {cluster.logs}\n"
        f"to end it:          percola dev-cluster down --folder {cluster.folder}",
    )


@dev_cluster.command()
@folder_option
@json_option
@click.pass_obj
def down(to_show: Session, folder: Path) -> None:
    """Stop all processes; the data stay in the folder."""
    cluster = _existing(folder)
    begun = time.monotonic()
    cluster.down()
    to_show.show(
        {"folder": str(cluster.folder)},
        f"down after {time.monotonic() - begun:.0f} s; its tables stay in {cluster.folder}.",
    )


@dev_cluster.command()
@folder_option
@json_option
@click.pass_obj
def status(to_show: Session, folder: Path) -> None:
    """List the processes; exit code 1 if one is not running."""
    cluster = _existing(folder)
    states = cluster.status()
    lines = []
    for state in states:
        pid = f"pid {state.pid}" if state.pid else "does not run"
        memory = f"{state.resident / MIB:5.0f} MB" if state.pid else ""
        stopped = "  stopped" if state.stopped else ""
        lines.append(f"{state.name:<16} {pid:<13} port {state.port}  {memory}{stopped}".rstrip())
    together = sum(state.resident for state in states) / MIB
    lines.append(f"together {together:.0f} MB; {cluster.address}")
    to_show.show(
        {"address": cluster.address, "processes": [state._asdict() for state in states]},
        "\n".join(lines),
    )
    if not all(state.pid for state in states):
        raise SystemExit(1)


def _tell(line: str) -> None:
    """Print progress to stderr; stdout is for the result."""
    click.echo(line, err=True)


def _existing(folder: Path) -> Cluster:
    if Layout.load(folder) is None:
        raise ClusterError(f"There is no development cluster in {folder.absolute()}.")
    return Cluster(folder)


@click.command(name="hbase-jars")
@click.argument("which", type=click.Choice(jars.SETS), required=False)
@json_option
@click.pass_obj
def hbase_jars(to_show: Session, which: str | None) -> None:
    """Fetch HBase's jars with Maven if they are missing.

    The client's are for hbase:// addresses, the server's for `percola dev-cluster`; without an
    argument, both. Prints the folders they are in.
    """
    folders = {which: jars.install(which, _tell)} if which else jars.install_all(_tell)
    to_show.show(
        {one: str(folder) for one, folder in folders.items()},
        "\n".join(map(str, folders.values())),
    )
