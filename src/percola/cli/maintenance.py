"""`check`, `copy`, `backup`, `restore` and `gc`: long work on a whole repository."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import click
from rich import filesize
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table as Grid
from rich.text import Text

from percola import inspection
from percola.cli import arguments, display
from percola.cli import json_output as documents
from percola.cli.session import (
    Session,
    at_option,
    common,
    completes,
    standard_input,
    standard_output,
)
from percola.cli.spark import runner_of, spark_options
from percola.connect.local import folder_of
from percola.errors import ConflictingOptionsError, PercolaError, UsageError
from percola.gc.collector import Collected
from percola.maintenance.backup import Backup, backup_network, is_network, restore_network
from percola.maintenance.backup import backup as make_backup
from percola.maintenance.backup import restore as restore_backup
from percola.maintenance.check import Counts, Finding, Severity
from percola.maintenance.check import check as walk
from percola.maintenance.copy import Copied, copy_repository
from percola.maintenance.row_rules import LOST, Columns
from percola.observers import loading as targets
from percola.platform.files import expanded
from percola.ranges import HERE, Runner
from percola.recipes import Checkable
from percola.recipes import check as check_recipes
from percola.repository import Repository
from percola.store.lmdb.environment import DURABILITIES

_PICTURES = 5
"""How many damaged cells are drawn in the form of figure 4, below their findings."""
_DRAWN = 20
"""The newest versions of such a cell that are drawn."""


# --- check ------------------------------------------------------------------------------


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Show so many findings; all are counted.",
)
@click.option(
    "--recipes",
    metavar="MODULE:NAME",
    help="Compare the derived tables of these recipes with what their sources have contributed, "
    "instead: a recipe of percola.recipes, or a list of them. The current directory can be "
    "imported from.",
)
@spark_options
@common
@click.pass_obj
def check(session: Session, limit: int, recipes: str | None, master: str | None) -> None:
    """Check the repository for integrity errors.

    Scans the whole repository and changes nothing; programs and workers may run meanwhile. Exit
    code 1 if there are errors; what is merely unusual is reported as a note. Derived tables
    (--recipes) are compared at one timestamp: what observers have yet to handle may differ.
    """
    if recipes is not None:
        _check_recipes(session, limit, recipes, master)
        return
    counts = Counts()
    found: list[Finding] = []
    with session.open() as repo:
        with _checking(repo, master) as (runner, progress):
            for finding in walk(repo, counts=counts, progress=progress, runner=runner, most=limit):
                if len(found) < limit:
                    found.append(finding)
        if session.json:
            documents.write_json(
                {
                    "sound": not counts.errors,
                    "counts": dataclasses.asdict(counts),
                    "findings": [_finding_json(one) for one in found],
                }
            )
        else:
            _print_check(repo, counts, found)
    if counts.errors:
        click.get_current_context().exit(1)


def _check_recipes(session: Session, limit: int, target: str, master: str | None) -> None:
    """Compare derived tables with the records of what was contributed."""
    with session.user_code():
        recipes = _load_recipes(target)
    with (
        session.open() as repo,
        display.progress_line("Comparing") as line,
        runner_of(repo, master, "check", line) as runner,
    ):
        found = check_recipes(repo, recipes, runner=runner, most=limit)
    session.show(
        {"sound": not found, "differences": found},
        "\n".join(map(display.printable, found))
        or f"The derived tables of {target} are what was contributed to them.",
    )
    if found:
        click.get_current_context().exit(1)


def _load_recipes(target: str) -> list[Checkable]:
    found = targets.load(target)
    recipes = list(found) if isinstance(found, Iterable) else [found]
    for one in recipes:
        if not isinstance(one, Checkable):
            is_class = isinstance(one, type)
            held = f"the class {one.__name__}" if is_class else f"a {type(one).__name__}"
            raise UsageError(
                f"{target} should be a recipe that can be checked or a list of them: Sums, "
                f"Distinct, Tree, Index or Export of percola.recipes. It holds {held}."
            )
    return recipes


@contextlib.contextmanager
def _checking(
    repo: Repository, master: str | None
) -> Iterator[tuple[Runner, Callable[[Counts], None]]]:
    """Who checks, and what shows its progress."""
    if master is None:
        with _check_bar(repo) as progress:
            yield HERE, progress
        return
    with (
        display.progress_line("Checking") as line,
        runner_of(repo, master, "check", line) as runner,
    ):
        yield runner, lambda counts: None


@contextlib.contextmanager
def _check_bar(repo: Repository) -> Iterator[Callable[[Counts], None]]:
    """A progress bar of the rows scanned; with a total if the store can estimate it."""
    out = display.console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    total = repo.context.store.statistics().get("cells")
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("Checking", total=total)

        def progress(counts: Counts) -> None:
            walked = counts.writes + counts.pending + counts.left
            rows = display.count(counts.rows, "row")
            bar.update(task, completed=walked, description=f"Checking: {rows}")

        yield progress


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        **documents.cell_json(finding.cell),
        "ts": finding.ts,
        "message": finding.message,
    }


def _print_check(repo: Repository, counts: Counts, found: list[Finding]) -> None:
    out = display.console()
    facts = Grid.grid(padding=(0, 2))
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column(justify="right")
    facts.add_column(overflow="fold")
    for name, number, meaning in (
        ("tables", counts.tables, ""),
        ("rows", counts.rows, ""),
        ("cells", counts.cells, "observers' acknowledgments included"),
        ("write records", counts.writes, ""),
        ("long values", counts.data, "stored outside their write records"),
        ("locks", counts.pending, "of transactions that are committing"),
        (
            "locks left",
            counts.left,
            "by processes that have ended: the next client that meets one resolves it",
        ),
        ("notifications", counts.notifications, "that observers have yet to look at"),
        ("dead-lettered", counts.failures, "where an observer kept failing (percola failed)"),
        ("unsettled", counts.unsettled, "rows that changed too fast: check again"),
    ):
        if number or name in ("tables", "rows", "cells", "write records"):
            facts.add_row(name, f"{number:,}", meaning)
    out.print(facts)
    out.print()
    columns = Columns(repo.schema)
    drawn: list[Any] = []
    for one in found:
        style = "bold red" if one.severity is Severity.ERROR else "bold yellow"
        line = Text(f"{one.severity.value}: ", style=style)
        line.append(f"{display.printable(one.message)} ", "not bold default")
        out.print(line.append(f"({one.rule})", "not bold cyan"), soft_wrap=True)
        if one.cell not in drawn and len(drawn) < _PICTURES and _draw(repo, columns, one):
            drawn.append(one.cell)
    more = counts.errors + counts.notes - len(found)
    if more and found:
        out.print(f"… and {more:,} more (--limit)")
    errors = [one for one in found if one.severity is Severity.ERROR]
    totals = f"{display.count(counts.errors, 'error')}, {display.count(counts.notes, 'note')}"
    if errors and all(one.rule == LOST for one in errors):
        they = "They" if len(errors) == counts.errors else "Those that are shown"
        display.say(
            f"The repository has {totals}. {they} are changes without a notification: 'percola "
            "rerun OBSERVER' has an observer look at them. A column that was not observed when it "
            "was written needs that once."
        )
    elif counts.errors:
        display.say(
            f"The repository is damaged: {totals}. Keep a copy as it is, and restore a backup."
        )
    else:
        notes = f", {display.count(counts.notes, 'note')}" if counts.notes else ""
        display.say(f"The repository is sound: no rule is broken{notes}.")


def _draw(repo: Repository, columns: Columns, finding: Finding) -> bool:
    """Draw the cell of a finding in the form of figure 4, if it can be read."""
    cell = finding.cell
    column = columns.of(cell.table, cell.column)
    if column is None:
        return False
    try:
        row = columns.decode_row(cell.table, cell.row)
        versions, times = inspection.history(repo, column, row, _DRAWN), repo.commit_times()
    except (PercolaError, ValueError):
        return False
    if versions:
        display.print_history(cell, row, column, versions, (), times)
    return bool(versions)


# --- copy -------------------------------------------------------------------------------


@click.command()
@click.argument("target", shell_complete=completes("dir"))
@at_option
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    help="Of a folder: whether its commits wait for the disk.  [default: full]",
)
@click.option(
    "--history",
    is_flag=True,
    help="With the older versions, as far back as the repository can be read, and the feeds.",
)
@spark_options
@common
@click.pass_obj
def copy(
    session: Session,
    target: str,
    at: int | datetime | None,
    durability: str | None,
    history: bool,
    master: str | None,
) -> None:
    """Copy the repository to an empty TARGET.

    TARGET is a new folder, or the address of a network store whose oracle is running. The copy is
    the repository at one timestamp, with the pending work of observers; programs and workers may go
    on using the repository meanwhile. The target can be opened once the copy is complete. If it is
    interrupted, the same command resumes it.
    """
    began = time.monotonic()
    with (
        session.open() as repo,
        display.progress_line("Copying") as line,
        runner_of(repo, master, "copy", line, target=target) as runner,
    ):

        def show(copied: Copied) -> None:
            rows = display.count(copied.rows, "row")
            line(f"Copying {copied.table} as of {copied.ts}: {rows}")

        done = copy_repository(
            repo,
            target,
            at=at,
            durability=durability,
            history=history,
            progress=show,
            runner=runner,
        )
    seconds = time.monotonic() - began
    rows = done.rows - done.resumed
    document = {"repository": session.where(), "target": target, **dataclasses.asdict(done)}
    del document["table"]
    resumed = f", resumed after {done.resumed:,}" if done.resumed else ""
    session.show(
        document | {"seconds": round(seconds, 3)},
        f"Copied {session.where()} to {target} as of timestamp {done.ts}: "
        f"{display.count(done.rows, 'row')}{resumed}, {rows / max(seconds, 0.001):,.0f} a second.",
    )


# --- backup and restore -----------------------------------------------------------------


@click.command()
@click.argument("file", shell_complete=completes("file"))
@spark_options
@common
@click.pass_obj
def backup(session: Session, file: str, master: str | None) -> None:
    """Write a backup to FILE, or to stdout (-).

    The backup is a consistent snapshot; programs and workers may run meanwhile. An existing file is
    not overwritten. A repository on a network store is copied to a folder beside FILE first. With
    executors on other machines, FILE is on a path that all share.
    """
    network = is_network(session.where())
    _refuse(network, file, master)
    with _removing_what_is_begun(), session.open() as repo:
        if network:
            with (
                display.progress_line("Copying") as line,
                runner_of(repo, master, "backup", line, target=file) as runner,
            ):
                made = backup_network(repo, expanded(file), runner=runner, copying=_on(line))
        elif file == "-":
            if sys.stdout.isatty():
                raise ConflictingOptionsError(
                    "A backup is not text for a terminal: name a file, or put - before a pipe."
                )
            out = standard_output()
            with _bytes_bar("Backing up") as progress, _cut_off_on_error():
                made = make_backup(repo, out, progress=progress)
        else:
            with _bytes_bar("Backing up") as progress:
                made = make_backup(repo, expanded(file), progress=progress)
    target = "stdout" if file == "-" else file
    sentence = (
        f"Backed up {session.where()} to {target}, as of timestamp {made.timestamp}: every commit "
        "up to it, and none above."
    )
    _tell(session, made, {"file": file}, sentence, stderr=file == "-")


@click.command()
@click.argument("file", shell_complete=completes("file"))
@spark_options
@common
@click.pass_obj
def restore(session: Session, file: str, master: str | None) -> None:
    """Create a repository from a backup.

    FILE is the backup, - is stdin. --repo names the folder, which must be empty or not exist yet,
    or an empty network store whose oracle is running. For the latter the backup is restored to a
    folder beside FILE first. With executors on other machines, FILE is on a path that all share.
    """
    network = is_network(session.where())
    _refuse(network, file, master)
    address = session.where()
    if network:
        with _removing_what_is_begun(), display.progress_line("Restoring") as line:
            made = restore_network(
                expanded(file),
                address,
                runner=lambda repo: runner_of(repo, master, "restore", line, target=address),
                copying=_on(line),
            )
        size = ""
    else:
        source: Any = standard_input() if file == "-" else expanded(file)
        with _removing_what_is_begun(), _bytes_bar("Restoring") as progress:
            made = restore_backup(source, address, progress=progress)
        # Of the store alone: who opens the repository now makes and removes other files.
        size = filesize.decimal((folder_of(address) / "store" / "data.mdb").stat().st_size)
        size = f" ({size}, durability {made.durability})"
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(made.made_ms / 1000))
    sentence = (
        f"Restored {address}{size} as it was at timestamp {made.timestamp}, from a backup of {at}."
    )
    _tell(session, made, {}, sentence)


@contextlib.contextmanager
def _removing_what_is_begun() -> Iterator[None]:
    """Have SIGTERM, and the end of the terminal unless that is ignored, do what Ctrl-C does.

    Else they leave a part as large as the repository.
    """
    ends = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As by nohup.
        ends.append(signal.SIGHUP)
    before = {one: signal.signal(one, signal.default_int_handler) for one in ends}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _refuse(network: bool, file: str, master: str | None) -> None:
    """Refuse what does not go together, and an empty name: as a path it is the current folder."""
    if not file:
        raise UsageError(
            "The name of the backup's file is empty, as of a variable that is not set."
        )
    if network and file == "-":
        raise ConflictingOptionsError(
            "The backup of a network store is a file, with a folder beside it while it is made or "
            "restored: name a file instead of -."
        )
    if not network and master is not None:
        raise ConflictingOptionsError(
            "The backup of a folder is its file, which is copied in one piece: leave out --spark."
        )


def _on(line: Callable[[str], None]) -> Callable[[Copied], None]:
    """Shows how far a copy is."""
    return lambda copied: line(f"Copying {copied.table}: {display.count(copied.rows, 'row')}")


@contextlib.contextmanager
def _cut_off_on_error() -> Iterator[None]:
    """After an error, write nothing more to stdout: neither buffered data nor an error's JSON."""
    try:
        yield
    except PercolaError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _tell(
    session: Session, made: Backup, more: dict[str, Any], sentence: str, *, stderr: bool = False
) -> None:
    if not stderr:
        document = {"repository": session.where(), **more, **dataclasses.asdict(made)}
        session.show(document, sentence)
    else:
        click.echo(sentence, err=True)


@contextlib.contextmanager
def _bytes_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    out = display.console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, expected: bar.update(task, completed=done, total=expected)


# --- gc ---------------------------------------------------------------------------------


@click.command()
@click.option(
    "--retention",
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Keep what was superseded for so long (30s, 15m, 24h, 7d, 0).",
)
@spark_options
@common
@click.pass_obj
def gc(session: Session, retention: str, master: str | None) -> None:
    """Remove versions that can no longer be read.

    Versions that a live process still reads are kept. Workers collect garbage automatically; this
    command does it now.
    """
    seconds = arguments.parse_duration(retention)
    with session.open() as repo:
        first = "Collecting garbage"
        with (
            display.progress_line(first) as line,
            runner_of(repo, master, "gc", line) as runner,
        ):
            collected = repo.collect_garbage(
                retention=seconds,
                progress=lambda so_far: line(
                    f"{first}: {display.count(so_far.cells, 'cell')}, "
                    f"{sum(so_far.removed.values()):,} entries removed"
                ),
                runner=runner,
            )
    session.show(dataclasses.asdict(collected), _collected_sentence(collected))


def _collected_sentence(collected: Collected) -> str:
    lines = []
    if collected.cells or not collected.complete:
        counted = [
            (collected.versions, "superseded version"),
            (collected.deleted, "deleted cell"),
            (collected.records, "rollback or lock record"),
            (collected.acknowledgments, "acknowledgment"),
            (collected.changes, "listed change"),
            (collected.index, "feed index record"),
        ]
        removed = [display.count(number, noun) for number, noun in counted if number]
        listed = ", ".join(removed) or "nothing"
        lines.append(f"Looked at {display.count(collected.cells, 'cell')}; removed {listed}.")
    elif collected.safe_point:
        lines.append("Nothing to do: there has been no later safe point since the last time.")
    else:
        lines.append(
            "Nothing to remove yet: a version is removed once it has been superseded for the whole "
            "retention, by the times that workers and each 'percola gc' record."
        )
    if collected.locks:
        lines.append(f"Resolved {display.count(collected.locks, 'lock')} of ended transactions.")
    if collected.safe_point:
        lines.append(f"The repository can be read from timestamp {collected.safe_point} on.")
    if collected.held_back:
        lines.append(f"Not later, because {collected.held_back}.")
    return "\n".join(lines)
