"""§3.1: `webindex rerun` runs an observer again: over the pages of one host, or over everything.

After the parser has changed, the pages that it changes are parsed again from their stored captures;
whatever follows from them follows as after a crawl, and nothing else is read.
"""

from __future__ import annotations

import json
from typing import Any, Final

import click

from percola import Observer, Rerun, UsageError, rerun
from webindex import tables
from webindex.cli.options import console, json_option, progress_line, repo_option
from webindex.incomplete import refuse_half_built
from webindex.load.resources import keeps_resources
from webindex.page.urls import host_rows
from webindex.rendering import tables as rendering
from webindex.text_format import count
from webindex.workers.processes import build_observers, open_index, open_repository

_NAMED_AS_PAGES: Final = (
    *(tables.pages, tables.aliases, tables.inlinks, tables.sitemaps, tables.listed),
    rendering.resources,
)


@click.command("rerun")
@repo_option
@click.argument("observer")
@click.option("--host", metavar="NAME", help="Only the pages of this host, as www.example.com.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1000.0,
    show_default=True,
    metavar="ROWS",
    help="Rows per second at most.",
)
@click.option("--restart", is_flag=True, help="Begin at the first row even if one was interrupted.")
@json_option
def rerun_command(
    repo: str, observer: str, host: str | None, rate: float, restart: bool, as_json: bool
) -> None:
    """Run an observer again, such as parse after the parser has changed.

    Stop the workers of the old version first. Rows are marked dirty, and the workers run the
    observer on them: those that run, or 'webindex work'. If it is interrupted, the same command
    resumes it.
    """
    with open_repository(repo) as opened, open_index(opened, create=True) as index:
        refuse_half_built(opened)
        one = _named(observer, build_observers(index, resources=keeps_resources(opened)))
        prefixes = _prefixes(one, host) if host is not None else []
        with progress_line("Marking rows …", shown=not as_json) as line:

            def note(so_far: Rerun) -> None:
                line(f"{count(so_far.rows, 'row')} marked")

            done = rerun(opened, one, prefixes=prefixes, rate=rate, restart=restart, progress=note)
    if as_json:
        click.echo(json.dumps({"observer": one.name, "rows": done.rows}))
    else:
        console.print(f"{count(done.rows, 'row')} marked: the workers run {one.name} on them.")


def _named(name: str, observers: list[Observer[Any]]) -> Observer[Any]:
    for one in observers:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in observers)
    raise UsageError(f"The web index has no observer {name!r}. It has: {names}.")


def _prefixes(one: Observer[Any], host: str) -> list[str]:
    if one.table not in _NAMED_AS_PAGES:
        raise UsageError(
            f"The rows of {one.table.name}, where {one.name} runs, are not named after hosts: "
            "leave out --host."
        )
    return host_rows(host)
