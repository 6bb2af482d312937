"""Options common to the commands of `webindex`, and how a report is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from webindex.crawl.resources import MAX_RESOURCE
from webindex.crawl.warc import MAX_BODY

LARGEST_PAGE: Final = 8 << 20
"""The range of `--max-page-bytes`."""
LARGEST_RESOURCE: Final = 8 << 20
"""The range of `--max-resource-bytes`."""

F = TypeVar("F", bound=Callable[..., Any])

console: Final = Console(highlight=False, soft_wrap=True)


def repo_option(function: F) -> F:
    """`--repo`, which every command takes."""
    return click.option(
        "--repo",
        required=True,
        envvar="WEBINDEX_REPO",
        metavar="FOLDER_OR_URL",
        help="The repository; WEBINDEX_REPO is the default.",
    )(function)


def json_option(function: F) -> F:
    """`--json`, for programs that read the output."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def master_option(function: F) -> F:
    """`--master`, of every Spark job."""
    return click.option(
        "--master", default=None, metavar="URL", help="The Spark master; local by default."
    )(function)


def page_bytes_option(function: F) -> F:
    """`--max-page-bytes`, of every command that reads WARC files."""
    return click.option(
        "--max-page-bytes",
        type=click.IntRange(1 << 10, LARGEST_PAGE),
        default=MAX_BODY,
        show_default=True,
        metavar="BYTES",
        help="How much to take of a page; what follows in a longer one is left out.",
    )(function)


def resources_options(function: F) -> F:
    """`--resources` and `--max-resource-bytes`, of `load`."""
    limit = click.option(
        "--max-resource-bytes",
        type=click.IntRange(1 << 10, LARGEST_RESOURCE),
        default=MAX_RESOURCE,
        show_default=True,
        metavar="BYTES",
        help="Longer resources are not kept.",
    )
    keep = click.option(
        "--resources/--no-resources",
        default=None,
        help="Keep stylesheets, images, fonts and scripts, with which 'webindex render' shows "
        "pages. By default, if an earlier load of this repository did.",
    )
    return keep(limit(function))


def never_fail_to_encode() -> None:
    """Have standard output and error escape what their encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_json(value: object) -> None:
    """Print a value as JSON in one line; in ASCII where standard output is not in UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    utf8 = encoding.lower().replace("-", "") == "utf8"
    click.echo(json.dumps(value, ensure_ascii=not utf8))


@contextmanager
def progress_line(first: str, *, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Shows a line on a terminal while a command runs; yields a function that replaces its text."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    disable = not (shown and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task(first)
        yield lambda text: progress.update(task, description=text)


def grid(rows: Sequence[tuple[str, str]]) -> Grid:
    """A report's lines, names in bold."""
    found = Grid.grid(padding=(0, 2))
    found.add_column(style="bold", no_wrap=True)
    found.add_column()
    for row in rows:
        found.add_row(*row)
    return found
