"""The command `webindex frontier`: what to crawl next."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.text import Text

from webindex.cli.options import console, print_json, repo_option
from webindex.incomplete import refuse_half_built
from webindex.reports import Due, Uncaptured, due, frontier
from webindex.text_format import count, date, harmless
from webindex.workers.processes import open_repository


@click.command("frontier")
@repo_option
@click.option("--host", metavar="NAME", help="Only URLs of this host, as www.example.com.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True)
@click.option(
    "--recrawl", is_flag=True, help="List captured pages that are due for another crawl instead."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "seeds"]),
    default="text",
    show_default=True,
    help="seeds: one URL a line, as crawlers read them.",
)
def frontier_command(repo: str, host: str | None, limit: int, recrawl: bool, form: str) -> None:
    """List URLs that were never captured: those that most pages link to, then those of sitemaps.

    With --recrawl, list pages that have probably changed since they were last seen, by PageRank.
    '--format seeds' makes a seed list for Heritrix, Browsertrix or 'wget -i'. Blocked URLs are left
    out.
    """
    with open_repository(repo) as opened:
        refuse_half_built(opened)
        found: Sequence[Uncaptured | Due]
        if recrawl:
            found = due(opened, host=host, limit=limit)
        else:
            found = frontier(opened, host=host, limit=limit)
    if form == "json":
        print_json([one.to_json() for one in found])
    elif form == "seeds":
        for one in found:
            click.echo(one.url)
    elif found:
        for one in found:
            _print(one)
    else:
        where = "" if host is None else f" of {host}"
        if recrawl:
            console.print(f"No page{where} is due for another crawl.")
        else:
            console.print(
                f"The frontier has no URL{where}: all that pages link to was captured, or is "
                "blocked."
            )


def _print(one: Uncaptured | Due) -> None:
    if isinstance(one, Due):
        notes = ["no rank" if one.rank is None else f"rank {one.rank:.3g}", f"due {date(one.due)}"]
        seen = count(one.intervals + 1, "time")
        notes.append(f"seen {seen}, {count(one.changes, 'change')}")
    else:
        notes = [count(one.links, "link") if one.sitemap is None else f"listed in {one.sitemap}"]
        if one.modified is not None:
            notes.append(f"changed {one.modified}")
        if one.rank is not None:
            notes.append(f"best rank {one.rank:.3g}")
        if one.anchors:
            notes.append(repr(" | ".join(one.anchors)))
    words = "  " + " · ".join(map(harmless, notes))
    console.print(Text.assemble((harmless(one.url), "green"), (words, "dim")))
