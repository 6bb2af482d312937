"""The command `webindex crawl-docs`, which makes the corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

__all__ = ["crawl_docs"]


@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--pages",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Only so many documents, each package giving its share; all of them by default.",
)
@click.option(
    "--packages",
    default=None,
    metavar="A,B",
    help="Only these packages; 'usual' (the default) and 'all' are groups.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides all that is chance.")
@click.option(
    "--recrawl",
    is_flag=True,
    help="Crawl packages that have one version only once more, with made-up changes.",
)
@click.option(
    "--resources",
    is_flag=True,
    help="Also the stylesheets, images and fonts of the pages, and a changed stylesheet a package.",
)
@click.option(
    "--split",
    type=click.IntRange(1, 4096),
    default=32,
    show_default=True,
    metavar="MB",
    help="Megabytes at which the next WARC file begins.",
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="DIR",
    help="Where .deb files are kept; FOLDER/packages by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the manifest without its truth.")
def crawl_docs(
    folder: Path,
    pages: int | None,
    packages: str | None,
    seed: int,
    recrawl: bool,
    resources: bool,
    split: int,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Make a corpus of real pages: Debian's documentation packages as WARC files.

    Writes crawl-NNN.warc.gz, recrawl-NNN.warc.gz (newer versions of the same packages),
    seeded-recrawl-NNN.warc.gz (removals and other made-up changes) and manifest.json, which lists
    what an index must make of them. Needs apt with up-to-date lists, but no rights; nothing is
    installed, and no web site is contacted.
    """
    from webindex.corpus.building import Wanted, build

    console = Console(highlight=False, soft_wrap=True)
    wanted = Wanted(seed, pages, packages, recrawl, split << 20, resources)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    quiet = as_json or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task("Looking for packages", total=None)

        def step(what: str, done: int, of: int) -> None:
            progress.update(task, description=what, completed=done, total=of)

        manifest = build(folder, wanted, cache=cache, step=step)
    if as_json:
        click.echo(json.dumps({k: v for k, v in manifest.items() if k != "truth"}))
    else:
        _print(console, folder, manifest)


def _print(console: Console, folder: Path, manifest: dict[str, Any]) -> None:
    for sentence in manifest["not_to_be_had"]:
        console.print(Text(sentence, style="yellow"))
    console.print(_packages(manifest["packages"]))
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for crawl in manifest["crawls"]:
        grid.add_row(crawl["name"], _crawl(crawl))
    for what, counts in manifest["counts"].items():
        if counts:
            words = f"{counts:,}" if isinstance(counts, int) else _counted(counts)
            grid.add_row(what.capitalize(), words)
    console.print(grid)
    size = sum(file["bytes"] for crawl in manifest["crawls"] for file in crawl["files"])
    made = (
        f"Made in {manifest['seconds']:,.0f} s"
        if manifest["made_now"]
        else "Was there already, as asked for"
    )
    console.print(f"{made}: {size / 1e6:,.1f} MB in {folder}", markup=False)


def _packages(packages: list[dict[str, Any]]) -> Grid:
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("Package", no_wrap=True)
    grid.add_column("Version", no_wrap=True)
    grid.add_column("Pages", no_wrap=True, justify="right")
    grid.add_column("Recrawled")
    for one in packages:
        version, recrawl = one["version"], "–"
        if found := one["recrawl"]:
            version += f"\n→ {one['recrawl_version']}"
            recrawl = (
                f"{found.get('other text', 0):,} of {found.get('pages', 0):,} texts new\n"
                f"{found.get('same bytes', 0):,} of the same bytes"
            )
        grid.add_row(one["name"], version, f"{one['chosen']:,}", recrawl)
    return grid


def _crawl(crawl: dict[str, Any]) -> str:
    files = crawl["files"]
    if not files:
        return "none"
    statuses = _counted(crawl["by status"])
    revisits = crawl["unchanged (revisit records)"]
    return (
        f"{crawl['captures']:,} captures ({statuses}"
        + (f"; {revisits:,} of them unchanged" if revisits else "")
        + f") in {len(files)} file{'' if len(files) == 1 else 's'}, "
        + f"{sum(one['bytes'] for one in files) / 1e6:,.1f} MB"
    )


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} × {what}" for what, number in counts.items()) or "none"
