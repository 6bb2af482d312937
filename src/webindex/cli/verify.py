"""The commands `webindex verify` and `webindex rebuild`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from webindex.cli.options import (
    console,
    grid,
    json_option,
    master_option,
    page_bytes_option,
    print_json,
    repo_option,
)

if TYPE_CHECKING:
    from webindex.batch.verdict import Judged, Verdict


@click.command("verify")
@repo_option
@json_option
@master_option
@click.option(
    "--at", type=int, default=None, metavar="TIMESTAMP", help="Compare this moment; now by default."
)
@click.option(
    "--crawl",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="WARC files or folders that were loaded, to compare captures with; may be repeated. "
    "By default those that the captures come from.",
)
@click.option(
    "--most",
    type=click.IntRange(0, 20),
    default=5,
    show_default=True,
    help="Differing rows to name for each invariant.",
)
@click.pass_context
def verify_command(
    ctx: click.Context,
    repo: str,
    as_json: bool,
    master: str | None,
    at: int | None,
    crawl: tuple[str, ...],
    most: int,
) -> None:
    """Compare the index, row by row, with one computed from scratch by a Spark job.

    Nothing is written. Exits with 1 if anything differs.
    """
    from webindex.batch.verify import verify

    verdict = verify(repo, master=master, at=at, crawl=crawl, quiet=as_json)
    if as_json:
        print_json(verdict.to_json())
    else:
        show(verdict, console, most)
    ctx.exit(0 if verdict.holds else 1)


def show(verdict: Verdict, console: Console, most: int = 5) -> None:
    """Print a verdict as a table, and the first differing rows as sentences."""
    if verdict.unfinished:
        console.print(Text("There is still work to do, so differences may settle:", style="bold"))
        for sentence in verdict.unfinished:
            console.print(Text(f"  {sentence}"))
        console.print()
    table = Grid(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("Invariant")
    table.add_column("Rows", justify="right")
    table.add_column("Differing", justify="right")
    table.add_column("")
    for one in verdict.judged:
        table.add_row(
            str(one.invariant),
            Text(one.name + (f" ({one.note})" if one.note else "")),
            f"{one.compared:,}" if one.checked and one.invariant != 11 else "",
            f"{one.differing:,}" if one.checked else "",
            _mark(one),
        )
    console.print(table)
    console.print()
    console.print(
        f"{verdict.pages:,} pages, {verdict.live:,} of them live, in {verdict.clusters:,} "
        f"clusters, compared at {verdict.at} in {verdict.seconds:.1f} s."
    )
    sentences = verdict.sentences(most)
    if verdict.holds:
        console.print(Text("The index is what its captures make it.", style="green"))
    elif sentences:
        console.print()
        for sentence in sentences:
            console.print(Text(f"  {sentence}"))


def _mark(one: Judged) -> Text:
    if not one.checked:
        return Text("not checked", style="yellow")
    return Text("differs", style="bold red") if one.differing else Text("holds", style="green")


@click.command("rebuild")
@repo_option
@json_option
@master_option
@page_bytes_option
@click.argument("files", nargs=-1, required=True, type=click.Path())
def rebuild_command(
    repo: str, as_json: bool, master: str | None, max_page_bytes: int, files: tuple[str, ...]
) -> None:
    """Fill an empty repository from WARC files in bulk, with a Spark job.

    Continue with 'load' and 'work'.
    """
    from webindex.batch.rebuild import rebuild

    report = rebuild(repo, files, master=master, max_page_bytes=max_page_bytes, quiet=as_json)
    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    console.print(grid(report.rows()))
