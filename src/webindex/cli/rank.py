"""The command `webindex rank`."""

from __future__ import annotations

import json

import click

from webindex.cli.options import console, grid, json_option, master_option, repo_option
from webindex.ranking.report import EPSILON


@click.command("rank")
@repo_option
@json_option
@master_option
@click.option(
    "--epsilon",
    type=click.FloatRange(min=0),
    default=EPSILON,
    show_default=True,
    help="Write ranks that have moved by more than this; the mean is 1.",
)
def rank_command(repo: str, as_json: bool, master: str | None, epsilon: float) -> None:
    """Compute PageRank over all pages, with a Spark job, and write the ranks that changed.

    Workers may run meanwhile. Afterwards 'webindex work' elects canonical pages again and exports
    the documents that have changed.
    """
    from webindex.ranking.job import rank

    report = rank(repo, master=master, epsilon=epsilon, quiet=as_json)
    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    console.print(grid(report.rows()))
