"""`webindex remove`, `blocks` and `unblock`: takedown requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from rich.text import Text

from percola import Repository, inspection
from webindex.cli.options import console, grid, json_option, progress_line, repo_option
from webindex.load.removals import Rule, Scope, all_rules, scope_of
from webindex.takedown.removing import Removed, remove, unblock
from webindex.text_format import count, harmless
from webindex.workers.processes import open_index, open_repository

_SHOWN: Final = 10

F = TypeVar("F", bound=Callable[..., Any])


def _scope_options(function: F) -> F:
    """URLs, `--host` and `--prefix`, each any number of times."""
    hosts = click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="NAME",
        help="All pages of this host, as www.example.com.",
    )
    prefixes = click.option(
        "--prefix", "prefixes", multiple=True, metavar="URL", help="All URLs that begin with it."
    )
    return hosts(prefixes(click.argument("urls", nargs=-1)(function)))


def _scopes(
    urls: tuple[str, ...], hosts: tuple[str, ...], prefixes: tuple[str, ...]
) -> list[Scope]:
    """Raises UsageError if nothing is named, BadUrlError for what is no URL, host or prefix."""
    if not (urls or hosts or prefixes):
        raise click.UsageError("Name one or more URLs, or a --host, or a --prefix.")
    return [
        *(scope_of("url", one) for one in urls),
        *(scope_of("host", one) for one in hosts),
        *(scope_of("prefix", one) for one in prefixes),
    ]


@click.command("remove")
@repo_option
@json_option
@_scope_options
@click.option("--block", is_flag=True, help="Do not load later captures of them either.")
@click.option("--dry-run", is_flag=True, help="Only count what would be removed.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for running workers to change the search index.",
)
def remove_command(
    repo: str,
    as_json: bool,
    urls: tuple[str, ...],
    hosts: tuple[str, ...],
    prefixes: tuple[str, ...],
    block: bool,
    dry_run: bool,
    wait: float,
) -> None:
    """Remove pages from every table and from search, as a takedown request demands.

    Captures made up to now are not loaded again; with --block, later ones are not either. The
    workers change the search index: those that run, or 'webindex work'. If it is interrupted, the
    same command continues.
    """
    scopes = _scopes(urls, hosts, prefixes)
    with (
        open_repository(repo) as opened,
        open_index(opened, create=True) as index,
        progress_line("Looking for pages …", shown=not as_json) as line,
    ):

        def note(pages: int) -> None:
            line(f"{count(pages, 'URL')} …")

        removed = remove(
            opened,
            index,
            scopes,
            block=block,
            dry_run=dry_run,
            wait=wait if _is_exported(opened) else 0.0,
            note=note,
        )
    if as_json:
        click.echo(json.dumps(removed.to_json()))
        return
    console.print(grid(_lines(removed)))
    _print_some([f"Nothing was there of {harmless(name)}." for name in removed.missing])
    if removed.alike:
        gone = "a page that would be removed" if dry_run else "a removed page"
        console.print(f"These stay, and {'are' if dry_run else 'were'} one document with {gone}:")
        _print_some([f"  {harmless(url)}" for url in removed.alike])


def _print_some(sentences: Sequence[str]) -> None:
    """Print the first of these sentences, and how many more there are."""
    for one in sentences[:_SHOWN]:
        console.print(Text(one, style="dim"))
    if len(sentences) > _SHOWN:
        console.print(f"The same is true of {len(sentences) - _SHOWN:,} more.", style="dim")


def _is_exported(repo: Repository) -> bool:
    """Whether a worker runs that exports documents."""
    return any(
        "export" in names
        for process in inspection.processes(repo)
        for names in process.observers.values()
    )


def _lines(removed: Removed) -> list[tuple[str, str]]:
    lines = [
        ("Would be removed" if removed.dry_run else "Removed", count(removed.pages, "page")),
        ("Captures", f"{removed.captures:,}"),
        ("Links", f"{removed.links:,}"),
    ]
    if removed.resources or removed.images:
        lines += [("Resources", f"{removed.resources:,}"), ("Images", f"{removed.images:,}")]
    if removed.sitemaps:
        lines.append(("Sitemaps and robots.txt", f"{removed.sitemaps:,}"))
    lines.append(("Documents of search", f"{removed.documents:,}"))
    if removed.dry_run:
        return lines
    if removed.pending:
        waiting = f"{removed.pending:,} still to change: 'webindex work', or wait for the workers"
        lines.append(("In search", waiting))
    else:
        lines.append(("In search", "none of them"))
    again = "are not loaded, blocked" if removed.blocked else "are loaded"
    lines.append(("Later captures", again))
    return lines


@click.command("blocks")
@repo_option
@json_option
def blocks_command(repo: str, as_json: bool) -> None:
    """List what was removed, and what is blocked."""
    with open_repository(repo) as opened, opened.snapshot() as now:
        rules = list(all_rules(now))
    if as_json:
        click.echo(json.dumps([one.to_json() for one in rules]))
    elif not rules:
        console.print("Nothing was removed.")
    else:
        for one in rules:
            console.print(_line(one))


def _line(rule: Rule) -> Text:
    """A removal or a block in one line, however long its URL: a table would cut it off."""
    what = "blocked" if rule.until is None else f"removed, up to captures of {rule.until}"
    line = Text(f"{rule.scope.kind} {harmless(rule.scope.name)}", style="bold")
    return line.append(f"  {what}", "not bold")


@click.command("unblock")
@repo_option
@json_option
@_scope_options
def unblock_command(
    repo: str,
    as_json: bool,
    urls: tuple[str, ...],
    hosts: tuple[str, ...],
    prefixes: tuple[str, ...],
) -> None:
    """Lift removals and blocks, named as 'remove' was told, so that pages can be loaded again.

    Nothing comes back by itself: load the crawl again.
    """
    scopes = _scopes(urls, hosts, prefixes)
    with open_repository(repo) as opened:
        lifted = unblock(opened, scopes)
    left = [one for one in scopes if one not in lifted]
    if as_json:
        named = [{one.kind: one.name} for one in lifted]
        click.echo(json.dumps({"lifted": named, "unknown": [{o.kind: o.name} for o in left]}))
        return
    if lifted:
        console.print(
            f"{count(len(lifted), 'removal')} lifted: load the crawl again to have the pages back."
        )
    _print_some([f"The {one.kind} {harmless(one.name)} was not removed." for one in left])
