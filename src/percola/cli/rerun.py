"""§2.4: `rerun`: marks rows dirty, so that workers run an observer over rows that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from percola.cli import arguments, display
from percola.cli.session import Session, common
from percola.errors import UsageError
from percola.inspection import processes
from percola.observers import loading as targets
from percola.observers.observer import ObservedColumn
from percola.observers.rerun import Rerun, rerun_named
from percola.repository import Repository


@click.command()
@click.argument("observer")
@click.option(
    "--prefix", "prefixes", multiple=True, metavar="TEXT", help="Only rows that begin with it."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1000.0,
    show_default=True,
    metavar="ROWS",
    help="Rows per second at most.",
)
@click.option("--restart", is_flag=True, help="Begin at the first row even if one was interrupted.")
@common
@click.pass_obj
def rerun(
    session: Session, observer: str, prefixes: tuple[str, ...], rate: float, restart: bool
) -> None:
    """Run an observer over rows that are there.

    OBSERVER is the name of an observer that a live worker runs, or MODULE:NAME. Rows with a value
    in one of its columns are marked dirty, and the workers run it on them, even if it has run
    there before. Use it for a new observer, for one whose function has changed once no worker runs
    the old one, and after writes that notified nobody. If it is interrupted, the same command
    resumes it.
    """
    with _opened(session, observer) as (repo, name, columns):
        table = columns[0].table
        rows = [arguments.parse_row(table, one) for one in prefixes]
        with display_progress(name) as progress:
            done = rerun_named(
                repo, name, columns, prefixes=rows, rate=rate, restart=restart, progress=progress
            )
    session.show(document(done), sentence(done))


def document(done: Rerun) -> dict[str, Any]:
    """A finished rerun as JSON."""
    return {"observer": done.observer, "rows": done.rows, "resumed_after": done.resumed}


def sentence(done: Rerun) -> str:
    """A finished rerun as a sentence."""
    resumed = f", resumed after {done.resumed:,}" if done.resumed else ""
    marked = display.count(done.rows, "row")
    return f"Marked {marked} dirty{resumed}: workers run {done.observer} on them."


@contextmanager
def display_progress(name: str) -> Iterator[Callable[[Rerun], None]]:
    """A function for `rerun` that shows its progress on standard error."""
    with display.progress_line(f"Marking for {name}") as line:

        def show(so_far: Rerun) -> None:
            at = display.printable(so_far.position.decode("utf-8", "backslashreplace"))
            rows = display.count(so_far.rows, "row")
            line(f"Marking for {name}: {rows}, up to {at or 'the end'}")

        yield show


@contextmanager
def _opened(
    session: Session, target: str
) -> Iterator[tuple[Repository, str, list[ObservedColumn[Any]]]]:
    """The repository, and the name and columns of the observer."""
    if ":" in target:
        with targets.opened(session.where(), target) as (repo, observers):
            if len(observers) != 1:
                names = ", ".join(one.name for one in observers) or "none"
                raise UsageError(
                    f"{target} gives several observers ({names}): name one of them, as "
                    "MODULE:NAME of the observer itself, or by its name while a worker runs it."
                    if observers
                    else f"{target} gives no observer."
                )
            yield repo, observers[0].name, list(observers[0].columns)
    else:
        with session.open() as repo:
            yield repo, target, _columns_of(repo, target)


def _columns_of(repo: Repository, name: str) -> list[ObservedColumn[Any]]:
    """The columns that an observer of a live worker observes."""
    announced: dict[str, set[str]] = {}
    for process in processes(repo):
        for column, labels in process.observers.items():
            for label in labels:
                # The label of an observer of several columns lists them.
                announced.setdefault(label.partition("(")[0], set()).add(column)
    if name not in announced:
        running = ", ".join(sorted(announced)) or "none"
        raise UsageError(
            f"No live worker runs an observer named {name!r}. Start one, or name the observer as "
            f"MODULE:NAME. Observers of live workers: {running}."
        )
    found: list[ObservedColumn[Any]] = []
    for column in sorted(announced[name]):
        table, _, short = column.partition(".")
        found.append(repo.table(table).resolve(short))
    return found
