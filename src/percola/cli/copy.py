"""`percola copy`: a repository copied to another store."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime

import click

from percola.cli import display
from percola.cli.session import Session, at_option, common
from percola.maintenance.copy import Copied, copy_repository
from percola.store.lmdb.environment import DURABILITIES

__all__ = ["copy"]


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
    with session.open() as repo, display.progress_line("Copying") as line:

        def show(copied: Copied) -> None:
            rows = display.count(copied.rows, "row")
            line(f"Copying {copied.table} as of {copied.ts}: {rows}")

        done = copy_repository(repo, target, at=at, durability=durability, progress=show)
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
