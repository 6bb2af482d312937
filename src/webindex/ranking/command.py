"""`webindex rank`: the job for a terminal."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table as Grid

from webindex.ranking.report import EPSILON


@click.command("rank")
@click.option(
    "--repo",
    required=True,
    envvar="WEBINDEX_REPO",
    metavar="FOLDER",
    help="The repository; WEBINDEX_REPO is the default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--master", default=None, metavar="URL", help="The Spark master; local by default.")
@click.option(
    "--epsilon",
    type=click.FloatRange(min=0),
    default=EPSILON,
    show_default=True,
    help="Write ranks that have moved by more than this; the mean is 1.",
)
def rank_command(repo: str, as_json: bool, master: str | None, epsilon: float) -> None:
    """Compute PageRank over all pages, with a Spark job, and write back what has moved.

    Workers may run meanwhile. Afterwards 'webindex work' elects canonical pages anew and exports
    the documents that have changed.
    """
    from webindex.ranking.job import rank

    report = rank(repo, master=master, epsilon=epsilon, quiet=as_json)
    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in report.rows():
        grid.add_row(name, value)
    Console(highlight=False, soft_wrap=True).print(grid)
