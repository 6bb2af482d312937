"""`percola copy`: a repository copied to another store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Final

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from percola.cli import display
from percola.cli.session import Session, at_option, common
from percola.maintenance.copy import Copied, copy_repository
from percola.store.lmdb.environment import DURABILITIES

__all__ = ["copy"]

_EVERY: Final = 10.0
"""Seconds between two lines of progress where no terminal is."""


@click.command()
@click.argument("target")
@at_option
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    help="Of a folder: whether its commits wait for the disk.  [default: full]",
)
@common
@click.pass_obj
def copy(session: Session, target: str, at: int | datetime | None, durability: str | None) -> None:
    """Copy the repository to an empty TARGET.

    TARGET is a new folder, or the address of a network store whose oracle is running. The copy is
    the repository at one timestamp, with the pending work of observers; programs and workers may go
    on using the repository meanwhile. The target can be opened once the copy is complete. If it is
    interrupted, the same command resumes it.
    """
    began = time.monotonic()
    with session.open() as repo, _display_progress() as progress:
        done = copy_repository(repo, target, at=at, durability=durability, progress=progress)
    seconds = time.monotonic() - began
    rows = done.rows - done.resumed
    document = {"repository": session.where(), "target": target, **asdict(done)}
    del document["table"]
    resumed = f", resumed after {done.resumed:,}" if done.resumed else ""
    session.show(
        document | {"seconds": round(seconds, 3)},
        f"Copied {session.where()} to {target} as of timestamp {done.ts}: "
        f"{display.count(done.rows, 'row')}{resumed}, {rows / max(seconds, 0.001):,.0f} a second.",
    )


@contextmanager
def _display_progress() -> Iterator[Callable[[Copied], None]]:
    """Shows the progress of a copy on standard error."""
    out = display.console(stderr=True)
    spoke = time.monotonic()

    def show(copied: Copied) -> None:
        nonlocal spoke
        text = f"Copying {copied.table} as of {copied.ts}: {display.count(copied.rows, 'row')}"
        bar.update(task, description=text)
        if not out.is_terminal and time.monotonic() - spoke >= _EVERY:
            spoke = time.monotonic()
            out.print(text, soft_wrap=True)

    shown = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*shown, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("Copying", total=None)
        yield show
