"""The development cluster from the command line: `up`, `down` and `status`."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any, Final

import click

from percola.testing.hbase_cluster import Cluster
from percola.testing.hbase_cluster_settings import MOST, SMALL_HEAP, ClusterError, Layout

MIB: Final = 1 << 20


class _Sentences(click.Group):
    """Says an error of the cluster in one sentence, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClusterError as error:
            raise click.ClickException(str(error)) from error


folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cache/hbase-cluster"),
    show_default=True,
    help="Where everything of the cluster stands: settings, data, logs.",
)


@click.group(cls=_Sentences, context_settings={"help_option_names": ["-h", "--help"]})
def dev_cluster() -> None:
    """A real HBase cluster on this machine, for development: each server a process of its own.

    ZooKeeper, NameNode, three DataNodes, master and three region servers; everything listens on
    127.0.0.1 only. It needs Java 17 and about 5 GB of memory (with --small 2), and
    `scripts/hbase_jars.sh install server`, once.
    """


@dev_cluster.command()
@folder_option
@click.option("--region-servers", type=click.IntRange(1, MOST), help="How many.  [default: 3]")
@click.option("--data-nodes", type=click.IntRange(1, MOST), help="How many.  [default: 3]")
@click.option("--small", is_flag=True, help="One region server, one DataNode, less memory.")
@click.option(
    "--first-port",
    type=click.IntRange(1024, 65_000),
    help="The first of 40 ports.  [default: what is free, below 32000]",
)
def up(
    folder: Path,
    region_servers: int | None,
    data_nodes: int | None,
    small: bool,
    first_port: int | None,
) -> None:
    """Start what does not run; it runs until `down`."""
    # Ended from outside, it takes down what it has started, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if small:
        region_servers, data_nodes = region_servers or 1, data_nodes or 1
    cluster = Cluster(
        folder,
        region_servers=region_servers,
        data_nodes=data_nodes,
        heap=SMALL_HEAP if small else None,
        first_port=first_port,
    )
    begun = time.monotonic()
    cluster.up(tell=lambda step: click.echo(f"starting {step} …", err=True))
    click.echo(f"up after {time.monotonic() - begun:.0f} s: {cluster.address}")
    click.echo(f"tables and servers: {cluster.web}")
    click.echo(f"logs:               {cluster.logs}")
    click.echo(f"to end it:          {_this_command()} down --folder {cluster.folder}")


@dev_cluster.command()
@folder_option
def down(folder: Path) -> None:
    """End every process; what was written stays in the folder."""
    cluster = _existing(folder)
    begun = time.monotonic()
    cluster.down()
    click.echo(f"down after {time.monotonic() - begun:.0f} s; its tables stay in {cluster.folder}.")


@dev_cluster.command()
@folder_option
def status(folder: Path) -> None:
    """List the processes; exit code 1 if one does not run."""
    cluster = _existing(folder)
    states = cluster.status()
    for state in states:
        pid = f"pid {state.pid}" if state.pid else "does not run"
        memory = f"{state.resident / MIB:5.0f} MB" if state.pid else ""
        stopped = "  stopped" if state.stopped else ""
        click.echo(f"{state.name:<16} {pid:<13} port {state.port}  {memory}{stopped}".rstrip())
    click.echo(
        f"together {sum(state.resident for state in states) / MIB:.0f} MB; {cluster.address}"
    )
    if not all(state.pid for state in states):
        raise SystemExit(1)


def _existing(folder: Path) -> Cluster:
    if Layout.load(folder) is None:
        raise ClusterError(f"There is no development cluster in {folder.absolute()}.")
    return Cluster(folder)


def _this_command() -> str:
    context = click.get_current_context()
    return context.parent.command_path if context.parent else context.command_path
